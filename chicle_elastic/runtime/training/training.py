"""What every runtime does once the updates of an iteration are summed: merge, judge, certify, record.

The in-process runtime sums over its tasks, a task of a cluster by an all-reduce; from there on both are the same. Every
task of a cluster has its own `Training`, gets the same sums, and so computes the same model and history.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import ContractError, UsageError
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.records import PARAMETERS_PREFIX, IterationRecord, Transition
from chicle_elastic.runtime.training.history_text import HistoryText
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import NO_PROGRESS, Action, Context, Report, Summed, Verdict
from chicle_elastic.values import DEADLINE, TrainingState


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationResult:
    """An iteration whose update is merged."""

    iteration: int  # its number, from 1
    samples: int  # samples processed by all tasks
    num_tasks: int  # tasks that took part
    metrics: Mapping[str, float]  # sums over the tasks
    is_complete: bool  # no chunk was missing
    num_chunks: Mapping[str, int]  # chunks of each task
    seconds: Mapping[str, float]  # seconds that each task with chunks computed
    lines: tuple[str, ...]  # what happened at the boundary before, in words
    parameters: Mapping[str, float] = field(default_factory=dict)  # what policies have set, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The sums of `Solver.evaluate` over all tasks."""

    contribution: Array  # of all tasks to a model rebuilt from state, ndarray of the model's shape
    metrics: Mapping[str, float]  # sums at the fixed model
    num_rows: int  # samples that the tasks have evaluated; a certificate needs all of them
    # the class of the solvers if they have `Solver.evaluate` alone, which returns no metrics
    without_evaluate: str = ""


class Training:
    """Model, certificate and history of a job.

    Args:
        keeps_address: Whether the model keeps its address in memory, which costs a copy per iteration.

    Attributes:
        model: ndarray of shape (num_parameters,).
        progress: The trainer's progress as of the last merge; float64.
        certificate: The last certified report of all samples, or None.
        best: Model and certificate of the least duality gap so far, or None.
        last_certificate: Iteration after which it was made; 0 for none.
        history: A record per merged iteration; a task that joined has the latest ones here, and all in `full_history`.
    """

    def __init__(
        self, job: Job, *, context: Context, elapsed_s: Callable[[], float], keeps_address: bool = False
    ) -> None:
        self.job = job
        self.model: Array = _first_model(job, context)
        self.progress = self.begun = NO_PROGRESS
        self.certificate: Report | None = None
        self.best: tuple[Array, Report] | None = None
        self._least_gap = np.inf
        self.last_certificate = 0
        self.samples = 0
        self.history = History()
        self.history_text = HistoryText()
        self.metric_names = job.trainer.metric_names(job.source.schema)
        self._elapsed_s = elapsed_s
        self._keeps_address = keeps_address
        self._known_figures: tuple[int, Mapping[str, float]] = (0, {})

    def begin(self, num_tasks: int) -> int:
        """Prepare an iteration of so many tasks with chunks; sets its progress, `begun`. Returns the length of the
        update of each task."""
        trainer = self.job.trainer
        self.begun = trainer.begin(self.job.source.schema, self.model, self.progress, num_tasks)
        return trainer.update_size(self.model, self.begun)

    def merge(self, summed: Summed) -> None:
        """Merge the sum of all updates into the model; its weight is 0 when no task had chunks."""
        if summed.weight > 0:
            model, self.progress = self.job.trainer.advance(self.model, self.begun, summed)
            self.begun = self.progress  # a certificate need not hold what was before, too
            self._set_model(model)

    def rebuild(self, contribution: Array) -> None:
        """Make the model consistent with the state: `contribution` is the sum of `Solver.recover` over all tasks."""
        contribution = contribution.astype(self.model.dtype, copy=False)
        self._set_model(self.job.trainer.rebuild(self.model, contribution, self.progress))

    def judge(
        self,
        result: IterationResult,
        evaluate: Callable[[], Evaluation],
        is_ended_by_caller: Callable[[IterationRecord], bool],
    ) -> Verdict:
        """Decide whether to go on or stop; the iteration gets its record even after an error. Returns `GO_ON` or
        `STOP`."""
        trainer = self.job.trainer
        self.samples += result.samples
        report = self._report(result)
        verdict = self._verdict(report)
        figures = {f"{PARAMETERS_PREFIX}{name}": value for name, value in result.parameters.items()}
        figures |= trainer.figures(self.model, report)
        record: IterationRecord | None = None
        try:
            if verdict.action is Action.CERTIFY:
                report = self.certify(result, lambda: _require_metrics(evaluate(), self))
                verdict = self._verdict(report)
                figures |= self._certified_figures(report)
            if verdict.action is not Action.STOP and result.iteration >= self.job.max_iterations:
                verdict = Verdict(action=Action.STOP, reason=f"all {self.job.max_iterations} iterations used")
            record = self._record(result, figures)
            if is_ended_by_caller(record) and verdict.action is not Action.STOP:
                verdict = Verdict(action=Action.STOP, reason="ended by a callback")
                if self.last_certificate < result.iteration:
                    # The last certificate is of an older model.
                    figures |= self._certified_figures(self.certify(result, evaluate))
                    record = None
        finally:
            self.history.append(record or self._record(result, figures))
        if report.is_certificate and verdict.action is not Action.STOP:
            model, self.progress = trainer.certified(self.model, self.progress, report)
            if model is not self.model:  # of another problem, with another gap
                self.best, self._least_gap = None, np.inf
                self._set_model(model)
        return verdict

    def _verdict(self, report: Report) -> Verdict:
        trainer = self.job.trainer
        verdict: object = trainer.verdict(self.model, report)
        if not isinstance(verdict, Verdict):
            raise ContractError(
                f"{type(trainer).__name__}.verdict returned {verdict!r}; it returns Verdict(action=Action.GO_ON), or "
                "one with Action.STOP or Action.CERTIFY and a reason"
            )
        return verdict

    def certify(self, result: IterationResult | None, evaluate: Callable[[], Evaluation]) -> Report:
        """Certify the present model, unless samples are missing: then `certificate` stays the last one. Returns the
        report of all present samples; `is_complete` says whether it is the certificate."""
        iteration = self.iteration if result is None else result.iteration
        report = self._report(result or self._empty_result(iteration))
        evaluation = self._settle(evaluate(), evaluate, report.num_tasks)
        has_all_rows = evaluation.num_rows == self.job.source.schema.num_rows
        rebuilt = evaluation.contribution.astype(self.model.dtype, copy=False)
        found = dataclasses.replace(
            report,
            metrics=dict(evaluation.metrics),
            is_certificate=True,
            is_complete=report.is_complete and has_all_rows,
            last_certificate=iteration,
            rebuilt=rebuilt.copy() if self._keeps_address else rebuilt,  # the buffer of the sum is reused
        )
        if found.is_complete:
            self.last_certificate, self.certificate = iteration, found
            gap = self.job.trainer.figures(self.model, found).get("duality_gap", np.nan)
            if self.best is None or gap <= self._least_gap:
                self.best, self._least_gap = (self.model.copy(), found), gap
        return found

    def _settle(self, evaluation: Evaluation, evaluate: Callable[[], Evaluation], num_tasks: int) -> Evaluation:
        """Evaluate once more if the trainer certifies another model, now that the state is complete."""
        contribution = evaluation.contribution.astype(self.model.dtype, copy=False)
        model = self.job.trainer.settled(self.model, self.progress, contribution, num_tasks)
        if model is None:
            return evaluation
        self._set_model(model.copy())
        return evaluate()

    def certificate_of(self, iteration: int) -> Report | None:
        """The certificate of the model of this iteration, if there is one."""
        return self.certificate if self.last_certificate == iteration else None

    def go_on_from(
        self,
        *,
        model: Array,
        progress: Array,
        certificate: Report | None,
        last_certificate: int,
        samples: int,
        records: Sequence[IterationRecord],
        first: int,
    ) -> None:
        """Continue from the state of another task.

        Args:
            model: Its model, of any float dtype; copied.
            records: Its records from iteration `first` on, or the latest of them; they replace those of this task.
        """
        self._set_model(model.astype(self.model.dtype))
        self.progress = self.begun = progress.astype(np.float64)
        self.certificate = certificate
        self.last_certificate = last_certificate
        self.samples = samples
        self.history = History([*(record for record in self.history if record.iteration < first), *records])
        self._known_figures = (0, {})
        self.history_text.forget(first)

    def full_history(self, transitions: Iterable[Transition] = ()) -> History:
        """A record of every merged iteration, and these changes of the membership."""
        history = self.history_text.complete(self.history)
        for transition in transitions:
            history.note(transition)
        return history

    @property
    def iteration(self) -> int:
        """The last one that has a record; 0 before the first."""
        return self.history[-1].iteration if self.history else 0

    def _report(self, result: IterationResult) -> Report:
        return Report(
            iteration=result.iteration,
            epochs=self.epochs,
            samples=result.samples,
            num_tasks=result.num_tasks,
            metrics=result.metrics,
            is_certificate=False,
            max_iterations=self.job.max_iterations,
            is_complete=result.is_complete,
            last_certificate=self.last_certificate,
            last_figures=self._figures_of(self.last_certificate),
            progress=self.progress,
            parameters=result.parameters,
        )

    def _certified_figures(self, report: Report) -> Mapping[str, float]:
        """Figures of a certificate; none of sums over a part of the samples."""
        return self.job.trainer.figures(self.model, report) if report.is_complete else {}

    def _figures_of(self, iteration: int) -> Mapping[str, float]:
        if iteration == 0:
            return {}
        if self._known_figures[0] != iteration:  # every iteration asks for these, perhaps of one long ago
            newest_first = reversed(self.history)
            found = next((record.figures for record in newest_first if record.iteration == iteration), None)
            if found is None:
                return {}
            self._known_figures = iteration, found
        return self._known_figures[1]

    def state_for_policies(self, parameters: Mapping[str, float]) -> TrainingState:
        """What policies see of the last iteration."""
        last = self.history[-1]
        deadline = {DEADLINE: 0.0} if self.job.trainer.may_be_cut(self.progress) else {}
        before_s = self.history[-2].time_s if len(self.history) > 1 else 0.0
        return TrainingState(
            figures={name: value for name, value in last.figures.items() if math.isfinite(value)},
            epochs=last.epochs,
            elapsed_s=last.time_s,
            duration_s=max(0.0, last.time_s - before_s),
            parameters={**deadline, **self.job.trainer.tunables(self.job.source.schema), **parameters},
        )

    def deadline_s(self, parameters: Mapping[str, float], now_s: float) -> float | None:
        """When the solver of a task that begins an iteration now has to end it; None where no policy says so."""
        seconds = parameters.get(DEADLINE, 0.0)
        return now_s + seconds if seconds > 0 and self.job.trainer.may_be_cut(self.begun) else None

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return self.samples / self.job.source.schema.num_rows

    def _record(self, result: IterationResult, figures: Mapping[str, float]) -> IterationRecord:
        return IterationRecord(
            iteration=result.iteration,
            epochs=self.epochs,
            time_s=self._elapsed_s(),
            num_tasks=result.num_tasks,
            num_chunks=result.num_chunks,
            seconds=result.seconds,
            samples=result.samples,
            figures=figures,
            events=result.lines,
        )

    def _empty_result(self, iteration: int) -> IterationResult:
        num_tasks = self.history[-1].num_tasks if self.history else 0
        return IterationResult(
            iteration=iteration,
            samples=0,
            num_tasks=num_tasks,
            metrics={},
            is_complete=True,
            num_chunks={},
            seconds={},
            lines=(),
        )

    def _set_model(self, model: Array) -> None:
        if self._keeps_address:
            np.copyto(self.model, model)
        else:
            self.model = model


def _first_model(job: Job, context: Context) -> Array:
    model = job.trainer.init(job.source.schema, context.rng)
    if job.initial_model is None:
        return model
    if job.initial_model.shape != model.shape:
        raise UsageError(
            f"initial_model has shape {job.initial_model.shape}, but models of this job have {model.shape}; pass a "
            "model of this trainer and data"
        )
    return job.initial_model.astype(model.dtype)


def _require_metrics(evaluation: Evaluation, training: Training) -> Evaluation:
    """Only where a verdict asks for a certificate: at the end of any job one is made of what there is."""
    if evaluation.without_evaluate and training.metric_names:
        raise ContractError(
            f"a certificate needs {', '.join(map(repr, training.metric_names))} at the fixed model, and "
            f"{evaluation.without_evaluate} has no evaluate(model, progress) that returns them; write one, or let "
            f"{type(training.job.trainer).__name__}.verdict stop without Action.CERTIFY"
        )
    return evaluation
