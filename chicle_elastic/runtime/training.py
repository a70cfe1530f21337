"""What every runtime does once the updates of an iteration are summed: merge, judge, certify, record.

The in-process runtime sums over its tasks, a task of a cluster by an all-reduce; from there on both are the same. Every
task of a cluster has a `Training` of its own, is given the same numbers, and so comes to the same model and history.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError
from chicle_elastic.monitoring.records import History, IterationRecord, Transition
from chicle_elastic.runtime.archive import Archive
from chicle_elastic.runtime.job import Job
from chicle_elastic.solvers.base import Action, Context, Report, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """An iteration whose update is merged.

    Attributes:
        iteration: Its number, from 1.
        samples: Samples processed by all tasks.
        num_tasks: Tasks that took part.
        metrics: Sums over the tasks.
        is_complete: No chunk was missing.
        num_chunks: Chunks of each task.
        seconds: Seconds that each task with chunks computed.
        lines: What happened at the boundary before, in words.
    """

    iteration: int
    samples: int
    num_tasks: int
    metrics: Mapping[str, float]
    is_complete: bool
    num_chunks: Mapping[str, int]
    seconds: Mapping[str, float]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The sums of `Solver.evaluate` over all tasks.

    Attributes:
        contribution: Of all tasks to a model rebuilt from state, ndarray of the model's shape.
        metrics: Sums at the fixed model.
        num_rows: Samples that were looked at; a certificate needs all of them.
    """

    contribution: Array
    metrics: Mapping[str, float]
    num_rows: int


class Training:
    """Model, certificate and history of a job.

    Args:
        job: The job.
        context: Of the trainer; its generator makes the first model.
        elapsed_s: Seconds since the start of the job.
        keeps_address: Whether the model stays in one place in memory, which costs a copy per iteration.

    Attributes:
        model: ndarray of shape (num_parameters,).
        certificate: The last certified report, or None; one of a part of the samples is none.
        last_certificate: Iteration after which it was made; 0 for none.
        samples: Samples processed so far.
        history: A record per merged iteration; a task that joined has the latest ones here, and all in `full_history`.
        archive: The same as text, where tasks come and go.
        metric_names: Names of the sums, in the order in which they travel.
    """

    def __init__(
        self, job: Job, *, context: Context, elapsed_s: Callable[[], float], keeps_address: bool = False
    ) -> None:
        self.job = job
        self.model: Array = _first_model(job, context)
        self.certificate: Report | None = None
        self.last_certificate = 0
        self.samples = 0
        self.history = History()
        self.archive = Archive()
        self.metric_names = job.trainer.metric_names(job.source.schema)
        self._elapsed_s = elapsed_s
        self._keeps_address = keeps_address
        self._known_figures: tuple[int, Mapping[str, float]] = (0, {})

    def merge(self, weighted_sum: Array | None, total_weight: float) -> None:
        """Take in the sum of `weight * delta` over all tasks, which may be overwritten; None when nobody had any."""
        if weighted_sum is not None and total_weight > 0:
            weighted_sum = weighted_sum.astype(self.model.dtype, copy=False)
            self._set_model(self.job.trainer.merge(self.model, weighted_sum, total_weight))

    def rebuild(self, contribution: Array) -> None:
        """Make the model consistent with the state: `contribution` is the sum of `Solver.recover` over all tasks."""
        self._set_model(self._rebuilt(contribution))

    def judge(
        self, lap: Lap, evaluate: Callable[[], Evaluation], is_ended_by_caller: Callable[[IterationRecord], bool]
    ) -> Verdict:
        """Go on or stop; the lap gets its record whatever happens.

        Args:
            lap: It is merged already.
            evaluate: Evaluates the model on all tasks; called when the trainer wants a certificate.
            is_ended_by_caller: Tells the caller of the job of the record, and asks.

        Returns:
            `GO_ON` or `STOP`.
        """
        trainer = self.job.trainer
        self.samples += lap.samples
        report = self._report(lap)
        verdict = trainer.verdict(self.model, report)
        figures = dict(trainer.figures(self.model, report))
        try:
            if verdict.action is Action.CERTIFY:
                report = self.certify(lap, evaluate())
                verdict = trainer.verdict(self.model, report)
                figures |= self._certified_figures(report)
            if verdict.action is not Action.STOP and lap.iteration >= self.job.max_iterations:
                verdict = Verdict(action=Action.STOP, reason=f"all {self.job.max_iterations} iterations used")
            record = self._record(lap, figures)
            if is_ended_by_caller(record) and verdict.action is not Action.STOP:
                verdict = Verdict(action=Action.STOP, reason="ended by a callback")
                if self.last_certificate < lap.iteration:
                    # The last certificate is of an older model.
                    figures |= self._certified_figures(self.certify(lap, evaluate()))
        finally:
            self.history.append(self._record(lap, figures))
        return verdict

    def certify(self, lap: Lap | None, evaluation: Evaluation) -> Report:
        """Make a certificate of the present model, unless samples are missing: `certificate` is the last one then.

        Args:
            lap: The last iteration; None when it was cut off.
            evaluation: Of the model on all tasks.

        Returns:
            The report of all samples that are there; `is_complete` says whether it is the certificate.
        """
        iteration = self.iteration if lap is None else lap.iteration
        report = self._report(lap or self._no_lap(iteration))
        has_all_rows = evaluation.num_rows == self.job.source.schema.num_rows
        rebuilt = self._rebuilt(evaluation.contribution)
        found = dataclasses.replace(
            report,
            metrics=dict(evaluation.metrics),
            is_certificate=True,
            is_complete=report.is_complete and has_all_rows,
            last_certificate=iteration,
            rebuilt=rebuilt.copy() if self._keeps_address else rebuilt,  # the sum lies in a buffer that is used again
        )
        if found.is_complete:
            self.last_certificate, self.certificate = iteration, found
        return found

    def certificate_of(self, iteration: int) -> Report | None:
        """The certificate of the model of this iteration, if there is one."""
        return self.certificate if self.last_certificate == iteration else None

    def go_on_from(
        self,
        *,
        model: Array,
        certificate: Report | None,
        last_certificate: int,
        samples: int,
        records: Sequence[IterationRecord],
        first: int,
    ) -> None:
        """Go on where another task is.

        Args:
            model: Its model, of any float dtype; copied.
            certificate: Its certificate.
            last_certificate: Iteration of that.
            samples: Samples processed so far.
            records: Its records from iteration `first` on, or the latest of them; they take the place of those here.
            first: See `records`.
        """
        self._set_model(model.astype(self.model.dtype))
        self.certificate = certificate
        self.last_certificate = last_certificate
        self.samples = samples
        self.history = History([*(record for record in self.history if record.iteration < first), *records])
        self._known_figures = (0, {})
        self.archive.forget(first)

    def full_history(self, transitions: Iterable[Transition] = ()) -> History:
        """A record of every merged iteration, and these changes of the membership."""
        history = self.archive.complete(self.history)
        for transition in transitions:
            history.note(transition)
        return history

    @property
    def iteration(self) -> int:
        """The last one that has a record; 0 before the first."""
        return self.history[-1].iteration if self.history else 0

    def _report(self, lap: Lap) -> Report:
        return Report(
            iteration=lap.iteration,
            epochs=self.epochs,
            samples=lap.samples,
            num_tasks=lap.num_tasks,
            metrics=lap.metrics,
            is_certificate=False,
            max_iterations=self.job.max_iterations,
            is_complete=lap.is_complete,
            last_certificate=self.last_certificate,
            last_figures=self._figures_of(self.last_certificate),
        )

    def _certified_figures(self, report: Report) -> Mapping[str, float]:
        """Figures of a certificate; sums over a part of the samples are not worth one."""
        return self.job.trainer.figures(self.model, report) if report.is_complete else {}

    def _figures_of(self, iteration: int) -> Mapping[str, float]:
        """Figures in the record of an iteration; none before the first."""
        if iteration == 0:
            return {}
        if self._known_figures[0] != iteration:  # asked for in every iteration, perhaps of one that is long ago
            newest_first = reversed(self.history)
            found = next((record.figures for record in newest_first if record.iteration == iteration), None)
            if found is None:
                return {}
            self._known_figures = iteration, found
        return self._known_figures[1]

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return self.samples / self.job.source.schema.num_rows

    def _record(self, lap: Lap, figures: Mapping[str, float]) -> IterationRecord:
        return IterationRecord(
            iteration=lap.iteration,
            epochs=self.epochs,
            time_s=self._elapsed_s(),
            num_tasks=lap.num_tasks,
            num_chunks=lap.num_chunks,
            seconds=lap.seconds,
            samples=lap.samples,
            figures=figures,
            events=lap.lines,
        )

    def _no_lap(self, iteration: int) -> Lap:
        num_tasks = self.history[-1].num_tasks if self.history else 0
        return Lap(
            iteration=iteration,
            samples=0,
            num_tasks=num_tasks,
            metrics={},
            is_complete=True,
            num_chunks={},
            seconds={},
            lines=(),
        )

    def _rebuilt(self, contribution: Array) -> Array:
        contribution = contribution.astype(self.model.dtype, copy=False)
        return self.job.trainer.rebuild(self.model, contribution)

    def _set_model(self, model: Array) -> None:
        if self._keeps_address:
            np.copyto(self.model, model)
        else:
            self.model = model


def _first_model(job: Job, context: Context) -> Array:
    """The caller's, as a copy, or the trainer's.

    Raises:
        UsageError: The caller's has another length than the trainer's.
    """
    model = job.trainer.init(job.source.schema, context.rng)
    if job.initial_model is None:
        return model
    if job.initial_model.shape != model.shape:
        raise UsageError(
            f"initial_model has shape {job.initial_model.shape}, and models of this job have {model.shape}; it belongs "
            "to another trainer, or to other data"
        )
    return job.initial_model.astype(model.dtype)
