"""What all linear trainers have in common: one state from pass to pass, and an end on a certificate only."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import Action, Report, Summed, Trainer, Verdict
from chicle_elastic.solvers.linear.objectives import ROUNDING as ROUNDING
from chicle_elastic.solvers.linear.objectives import TINY as TINY

LEAST_FALL = 0.5  # what is progress from one certificate to the next, of the gap
PATIENCE = 3  # times in a row that bring nothing before rounding, or a slow pace, is taken for all there is
MOST_REPEATS = 1000  # of a loop that ends by itself but for rounding
MOST_INNER = 100  # products of a run of conjugate gradients at most, and sweeps between two exact steps
MOST_LEFT = 0.3
"""Share that may be left: by a run of conjugate gradients, of the gradient, or of its goal if the run may be the last
one; by a search, of the slope at its beginning; by an exact step, of the square of the gap."""
LEAST_SHARE = 0.05  # share of tol that is aimed at, at least; a fall of the objective by less is no progress
AGAIN = 0.8
"""Share of `tol` that Newton steps aim at first, and coordinate descent of one task after a certificate that was not
good enough: another one costs as much as two passes over all rows, and estimates scatter. Several tasks also wait for
each other in each iteration that it costs."""
HOW = "tol", "num_threads", "algorithm", "before"  # Parameters of trainers that do not change what is minimised
STUCK = "no step lowers the objective any further, for rounding"  # Why a job ends that would only repeat itself


class CertifiedTrainer(Trainer):
    """Fit a linear model in passes: what each one adds up, and what follows from it, is a matter of the state.

    The model is w of shape (outputs, num_features + 1), flattened; the last column belongs to the intercept column.
    Where the state rests, a certificate follows, which bounds the duality gap. `machines` has the kinds of states and
    the modules that lead them on, `sums` and `sums_by_output` name what solvers add up.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    name: ClassVar[str]
    machines: ClassVar[Mapping[type[Any], Any]]
    sums: ClassVar[tuple[str, ...]] = ()
    sums_by_output: ClassVar[tuple[str, ...]] = ()
    # by field, the value that its identity leaves out, as it did before there was a choice
    usual: ClassVar[Mapping[str, Any]] = {}
    tol: float
    has_one_softmax: ClassVar[bool] = False
    uses_blas_threads: ClassVar[bool] = False

    def num_outputs(self, schema: DataSchema) -> int:
        """One output for two classes, else one per class; a UsageError where targets are not class codes."""
        return num_outputs(schema)

    @property
    def problem(self) -> Any:
        """What is minimised, as the steps are told, where no state has to tell more of it."""
        raise NotImplementedError

    def problem_of(self, state: Any) -> Any:
        """Return what is minimised."""
        return self.problem

    @abstractmethod
    def _first_state(self, schema: DataSchema, model: Array, num_tasks: int) -> Any:
        """Return the state before the first pass."""

    def look(self, progress: Array) -> Any:
        """Return the state of a progress, for reading only; None where there is none."""
        return next((kind.look(progress) for kind in self.machines if kind.is_of(progress)), None)

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """Zeros, shape (outputs * (num_features + 1),), float64; a UsageError where targets are of the wrong kind."""
        return np.zeros(self.num_outputs(schema) * (schema.num_features + 1))

    def identity(self) -> Mapping[str, Any]:
        """Return what decides the optimum, and so which duals are feasible."""
        values = {field.name: _as_json(getattr(self, field.name)) for field in fields(self) if field.name not in HOW}
        own = {name: value for name, value in values.items() if value != self.usual.get(name, ...)}
        return {"trainer": self.name} | own

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """Name what solvers add up; "name/k" is that of output k."""
        return (*self.sums, *(f"{name}/{k}" for k in range(self.num_outputs(schema)) for name in self.sums_by_output))

    def begin(self, schema: DataSchema, model: Array, progress: Any, num_tasks: int) -> Any:
        """Begin with a first state, and again after a certificate that was not good enough."""
        state = self.look(progress)
        if state is None:
            state = self._first_state(schema, model, num_tasks)
        elif state.is_at_rest:
            state = type(state).take(progress)
            self.machines[type(state)].reopen(state, self.problem_of(state), model)
        else:
            return progress
        return state.ready()

    def update_size(self, model: Array, progress: Array) -> int:
        """Return the length of the sums of the next pass; after several passes w and the state follow."""
        state = self.look(progress)
        return int(state.sums_size(self.problem_of(state))) + (len(model) + state.room if state.passes > 1 else 0)

    def advance(self, model: Array, progress: Any, summed: Summed) -> tuple[Array, Any]:
        """Take the step that follows from the sums of a pass; an only task may have gone on."""
        state = type(self.look(progress)).take(progress)
        steps, problem = self.machines[type(state)], self.problem_of(state)
        if state.passes > 1:
            reached = summed.delta[state.sums_size(problem) :]
            if type(state).is_of(reached[len(model) :]):
                return reached[: len(model)].copy(), type(state).decode(reached[len(model) :]).ready()
        with np.errstate(over="ignore", invalid="ignore"):  # of squares beyond all numbers; the gap is then NaN
            return steps.advance(state, problem, model, summed.delta, summed.weight), state.ready()

    @abstractmethod
    def primal_and_dual(self, model: Array, report: Report) -> tuple[Any, Any]:
        """P and D at a certificate: numbers, or of several outputs arrays of shape (outputs,)."""

    def estimate(self, model: Array, report: Report) -> float:
        """Estimate (P - D) / P between certificates."""
        return float(self.look(report.progress).gap)

    def floor(self, report: Report) -> float:
        """What P counts as at least, in a certificate; by default its rounding is that of numbers near it."""
        return TINY

    def has_last_word(self, report: Report) -> bool:
        """Say whether a certificate was refused that the trainer cannot better; by default never."""
        return False

    def is_stuck(self, model: Array, report: Report) -> bool:
        """Say whether such a certificate brought nothing since the last one: then rounding is all that is left."""
        if not self.has_last_word(report):
            return False
        now, last = (
            [figures.get(name, np.inf) for name in ("duality_gap", "objective")]
            for figures in (self.figures(model, report), report.last_figures)
        )
        return not has_progress(*now, *last, tol=self.tol)

    def merge(self, model: Array, weighted_sum: Array, total_weight: float) -> Array:
        """Never called: what is summed up is not a change of the model."""
        raise NotImplementedError(f"the sums of {type(self).__name__} are merged by advance")

    def relative_gap(self, model: Array, report: Report) -> float:
        """(P - D) / P, the largest one of several outputs; an estimate unless the report is a certificate."""
        return self.figures(model, report)["duality_gap" if report.is_certificate else "duality_gap_estimate"]

    def figures(self, model: Array, report: Report) -> Mapping[str, float]:
        """ "objective", "dual_objective" and "duality_gap" at a certificate, else "duality_gap_estimate"."""
        if not report.is_certificate:
            return {"duality_gap_estimate": self.estimate(model, report)}
        primal, dual = self.primal_and_dual(model, report)
        gap = largest_ratio(primal - dual, primal, self.floor(report))
        return {
            "objective": float(np.asarray(primal).sum()),
            "dual_objective": float(np.asarray(dual).sum()),
            "duality_gap": gap,
        }

    def verdict(self, model: Array, report: Report) -> Verdict:
        """Certify where the steps rest; stop only on a certificate."""
        is_last = report.iteration >= report.max_iterations
        if report.is_certificate:
            gap = self.relative_gap(model, report)  # by rounding it may well be 0 or below
            if self.tol > 0 and gap <= self.tol and report.is_complete:
                return Verdict(action=Action.STOP, reason=f"relative duality gap {gap:.2e} <= tol {self.tol:.2e}")
            if self.tol > 0 and report.is_complete and self.is_stuck(model, report):
                return Verdict(action=Action.STOP, reason=STUCK)
            if is_last:
                end = f"at a relative duality gap of {gap:.2e}" if report.is_complete else "while samples were missing"
                return Verdict(action=Action.STOP, reason=f"all {report.max_iterations} iterations used {end}")
            return Verdict(action=Action.GO_ON)
        reason = self.reason_to_certify(model, report)
        if is_last or (reason and report.is_complete):
            return Verdict(action=Action.CERTIFY, reason=reason or "iterations used")
        return Verdict(action=Action.GO_ON)

    def reason_to_certify(self, model: Array, report: Report) -> str:
        """Say why the model may be good enough; nothing where it is not."""
        state = self.look(report.progress)
        return "the steps rest" if state is not None and state.is_at_rest else ""


def num_outputs(schema: DataSchema, num_classes: int | None = None) -> int:
    """Return one output for two classes, else one per class; `num_classes` where codes tell more than the class."""
    num_classes = schema.num_classes if num_classes is None else num_classes
    if schema.target_dtype != "int32" or num_classes < 2:
        raise UsageError(
            f"a linear classifier needs int32 class codes of at least two classes, but the data has targets of "
            f"dtype {schema.target_dtype} and {num_classes} classes"
        )
    return 1 if num_classes == 2 else num_classes


def largest_ratio(gap: Any, primal: Any, floor: float = TINY) -> float:
    """Return the largest gap as a share of P, over the outputs."""
    with np.errstate(over="ignore", invalid="ignore"):  # beyond all numbers, where the objective is next to nothing
        return math.inf if np.isinf(gap).any() else float(np.max(gap / np.maximum(primal, floor)))


def _as_json(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float, tuple)) else repr(value)


def correction(found: float, estimate: float) -> float:
    """Return the gap that a certificate found as a multiple of its estimate; half before, for w still moved then."""
    return min(max(found / estimate, 0.1), 10.0) if estimate > 0 and found > 0 else 0.5


def has_progress(gap: float, primal: float, old_gap: float, old_primal: float, *, tol: float) -> bool:
    """Say whether a gap is smaller, or P lower, by enough to go on in the same way; NaN is not."""
    return gap < LEAST_FALL * old_gap or old_primal - primal > LEAST_SHARE * tol * abs(old_primal)
