"""The job that a runtime runs, and the outcome that it returns. The same values serve every runtime."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chicle_elastic.chunks.sources import ChunkSource
from chicle_elastic.chunks.views import Array
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.job_ledger import JobLedger
from chicle_elastic.monitoring.records import IterationRecord, Transition
from chicle_elastic.policies.base import Policy, require_policies
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.solvers.base import Report, Trainer

DEFAULT_POLICIES: tuple[Policy, ...] = (Rebalance(),)  # of a job on a cluster without policies of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job.

    Attributes:
        trainer: Owns model and stopping rule.
        source: Where every chunk can be loaded from, at the start and after a loss.
        max_iterations: Iterations after which the job ends anyway, >= 1.
        seed: Decides the order of samples and the choice of chunks; same seed, one thread and fixed membership give
            bit-identical models.
        initial_state: Per-sample state to start from, by global row id, shape (num_rows, outputs, width); the model is
            rebuilt from it. None starts with the trainer's initial state.
        initial_model: Model to begin with, ndarray of shape (num_parameters,); None takes the one of `Trainer.init`.
        keep_state: Whether the outcome holds the per-sample state.
        checkpoint: Where and when the job is saved, and whether it resumes from there; by default the launcher's
            options.
        on_iteration: Called with the record of each iteration, at its boundary; returning True ends the job there.
        on_model: Called after it with the record and the model (not to be written); returning True ends the job too.
            On a cluster this sends the model to the caller every time, so set it only if the callback uses it.
        policies: Ask for chunks to be moved, all of them and in this order. None means `DEFAULT_POLICIES` on a
            cluster. In one process it means none: tasks take turns there, so their times do not measure nodes, and a
            fit would not be reproducible. A `LocalCluster` has a default of its own, which is none.
        tell: Called first, with the record; its return value is ignored, so it costs no message between tasks.
        keep: Called before it with the record and the model, which stays where it is and changes with each merge.
        on_transition: Called with each change of the membership once it is over, and again for a loss when all
            samples are reloaded.
    """

    trainer: Trainer
    source: ChunkSource
    max_iterations: int
    seed: int = 0
    initial_state: Array | None = None
    initial_model: Array | None = None
    keep_state: bool = False
    checkpoint: CheckpointSettings | None = None
    on_iteration: Callable[[IterationRecord], bool | None] | None = None
    on_model: Callable[[IterationRecord, Array], bool | None] | None = None
    policies: Sequence[Policy] | None = None
    tell: Callable[[IterationRecord], None] | None = None
    keep: Callable[[IterationRecord, Array], None] | None = None
    on_transition: Callable[[Transition], None] | None = None

    def __post_init__(self) -> None:
        if self.policies is not None:
            require_policies(self.policies)

    def is_ended_by_caller(self, record: IterationRecord, model: Array) -> bool:
        """Call the callbacks of an iteration, all of them; returns whether one of them ends the job there."""
        if self.keep is not None:
            self.keep(record, model)
        if self.tell is not None:
            self.tell(record)
        answers = []
        if self.on_iteration is not None:
            answers.append(self.on_iteration(record))
        if self.on_model is not None:
            answers.append(self.on_model(record, model))
        return any(answers)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The result of a job.

    Attributes:
        model: ndarray of shape (num_parameters,).
        certificate: The last certified report, whose figures belong to `model`; None if the trainer never asked for one
            and no callback ended the job early.
        history: A record per iteration.
        reason: Why the job ended, in words.
        is_interrupted: Ended by Ctrl-C; the model is consistent, and the caller decides whether to raise.
        state: Per-sample state by global row id, shape (num_rows, outputs, width), with `Job.keep_state`.
        ledger: Rows, owner and iterations of each chunk.
    """

    model: Array
    certificate: Report | None
    history: History = field(default_factory=History)
    reason: str = ""
    is_interrupted: bool = False
    state: Array | None = None
    ledger: JobLedger = field(default_factory=JobLedger)


class Runtime(Protocol):
    """Where a job runs. Runtimes are values: they compare, copy and pickle; they hold no process or connection."""

    def most_tasks(self) -> int:
        """Largest number of tasks there will be; chunks are cut so that each of these has some."""
        ...

    def run(self, job: Job) -> Outcome:
        """Run the job to its end."""
        ...
