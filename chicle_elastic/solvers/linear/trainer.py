"""Linear classifiers with hinge, squared hinge or logistic loss: the model, the method, and when to stop.

Coordinate descent (CoCoA). Every task improves the duals of its own samples against a local copy of w and returns the
change of w; the trainer adds the changes (gamma = 1), which is safe because each task damps its steps by sigma' = tasks
x threads (Ma et al. 2015, "Adding vs. averaging in distributed primal-dual optimization", eq. 9 and section 4). The
duals lie in the chunk state and move with their samples, so w = w(alpha) holds whichever task owns a chunk.

Newton's method. Every task returns sums over its rows, and the trainer takes the step (`newton.steps`). `methods`
decides between the two.

Stopping. During a pass the kernel sums an *estimate* of the duality gap at the moving vector; it only triggers the
certificate, a pass in float64 over all samples that evaluates the losses at w and the dual objective at w(alpha),
rebuilt from the duals. P(w) - D(alpha) bounds the distance of P(w) to the optimum whatever w is, so rounding drift
between w and w(alpha) cannot fake it. Only a certificate stops a run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema, StateSpec
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import NO_PROGRESS, Context, Report, Solver, Summed
from chicle_elastic.solvers.linear.agreement import dots
from chicle_elastic.solvers.linear.certified import (
    AGAIN,
    PATIENCE,
    CertifiedTrainer,
    correction,
    largest_ratio,
    num_outputs,
)
from chicle_elastic.solvers.linear.losses import margin_loss
from chicle_elastic.solvers.linear.methods import ALGORITHMS, Algorithm, Choice, Method, choose, newton_state
from chicle_elastic.solvers.linear.newton import steps
from chicle_elastic.solvers.linear.newton.state import NewtonState, Problem
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.working_set import steps as rounds
from chicle_elastic.solvers.linear.working_set.steps import WorkingSetPhase, WorkingSetState

GIVEN_UP = np.array([-1.0])
"""Progress after an iteration without an estimate of the gap: the only task, or the one that solves for a working set,
has come to the end of what Newton steps of its own can do, whose w is always that of duals. On features of 1e8 rounding
of the duals is all of that w."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTrainer(CertifiedTrainer):
    """Linear classifier, binary or one-vs-rest; all outputs share an iteration.

    Attributes:
        loss: "hinge", "squared_hinge" or "logistic".
        C: Factor of the sum of losses, > 0 (see `objectives`).
        tol: Relative duality gap, per output, at which to stop; 0 for never.
        intercept_scaling: Value of the constant column; 0 for no intercept.
        class_weights: Factor of C per target code; None for 1. Rows of a code with the factor 0 are left out.
        num_threads: Most threads a task may use; fewer are used on small data.
        code_classes: Class of each target code, from 0; None where codes are classes. With codes that tell more than
            the class, the fold of cross-validation say, `class_weights` says which rows a fit is of.
        penalises_intercept: Whether the weight of the intercept column is penalised like the others. If not, which is
            for the logistic loss and Newton's method, `intercept_scaling` has to be 1.
        algorithm: "cocoa" for coordinate descent alone, whatever it takes; "newton" for Newton's method on chunks;
            "auto" for what `methods.choose` says.
        before: Where a fit to some of the rows rests, see `newton.steps.start`; empty where another one will follow.
    """

    name = "CoCoA"
    machines: ClassVar[Any] = {NewtonState: steps, WorkingSetState: rounds}
    usual: ClassVar[Mapping[str, Any]] = {"penalises_intercept": True, "code_classes": None}
    is_of_classes: ClassVar[bool] = True
    sums_by_output = "loss", "gap", "dual"
    loss: str = "hinge"
    C: float = 1.0
    tol: float = 1e-3
    intercept_scaling: float = 1.0
    class_weights: tuple[float, ...] | None = None
    num_threads: int = 1
    code_classes: tuple[int, ...] | None = None
    penalises_intercept: bool = True
    algorithm: Algorithm = "auto"
    before: tuple[NewtonState, ...] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        Loss.named(self.loss)
        if not self.C > 0 or not self.tol >= 0 or self.num_threads < 1 or self.algorithm not in ALGORITHMS:
            raise UsageError(
                f"a linear classifier needs C > 0, tol >= 0, num_threads >= 1 and an algorithm of "
                f"{', '.join(ALGORITHMS)}, got C={self.C}, tol={self.tol}, num_threads={self.num_threads}, "
                f"algorithm={self.algorithm!r}"
            )
        if not self.penalises_intercept and (
            Loss.named(self.loss) is not Loss.LOGISTIC or self.intercept_scaling != 1 or self.algorithm == "cocoa"
        ):
            raise UsageError(
                "penalises_intercept=False needs loss='logistic', intercept_scaling=1 and an algorithm other than "
                f"'cocoa', got loss={self.loss!r}, intercept_scaling={self.intercept_scaling}, "
                f"algorithm={self.algorithm!r}"
            )

    def num_outputs(self, schema: DataSchema) -> int:
        """One output for two classes, else one per class; a UsageError where targets are not class codes."""
        return num_outputs(schema, None if self.code_classes is None else max(self.code_classes) + 1)

    def state(self, schema: DataSchema) -> StateSpec:
        """One dual per sample and output, float64."""
        return StateSpec(outputs=self.num_outputs(schema), width=1, dtype="float64")

    def identity(self) -> Mapping[str, Any]:
        """Leave out what a subclass has."""
        names = {"trainer", *(field.name for field in fields(LinearTrainer))}
        return {name: value for name, value in CertifiedTrainer.identity(self).items() if name in names}

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task; numba is imported here and not before."""
        from chicle_elastic.solvers.linear.solver import LinearSolver

        return LinearSolver(ctx, self)

    def kept_bytes(self, schema: DataSchema, num_tasks: int) -> int:
        """Return what passes of Newton's method keep, or coordinate descent and the Newton steps of a task alone."""
        from chicle_elastic.solvers.linear.newton.passes import kept_bytes

        of_passes = kept_bytes(self, schema)
        if self._choice(schema, num_tasks).method is Method.NEWTON:
            return of_passes
        from chicle_elastic.solvers.linear.wide.finish import bytes_of_steps

        has_steps = self.algorithm != "cocoa" and num_tasks == 1 and not schema.are_rows_in_files
        outputs = self.num_outputs(schema)
        # |x|^2, whether duals are left out, C_i, and signs; orders of buckets are next to nothing.
        of_descent = schema.num_rows * (8 + outputs + 8 + 8 * outputs)
        return max(of_passes, of_descent + has_steps * bytes_of_steps(schema.num_rows, outputs))

    def begin(self, schema: DataSchema, model: Array, progress: Any, num_tasks: int) -> Any:
        """Choose the method where there is none yet, and let a Newton run go on that rested too early."""
        state = self.look(progress)
        if isinstance(state, NewtonState):
            return CertifiedTrainer.begin(self, schema, model, progress, num_tasks)
        if self.algorithm == "cocoa":
            return NO_PROGRESS
        method = self._choice(schema, num_tasks).method
        has_too_many = state is not None and state.phase is WorkingSetPhase.GIVE_UP
        is_slow = state is not None and not (state.descends or has_too_many)
        is_large = state is not None and (
            (has_too_many and num_tasks > 1) or (state.descends and Loss.named(self.loss) is not Loss.HINGE)
        )
        if method is Method.NEWTON or is_large or (state is None and np.array_equal(progress, GIVEN_UP)):
            return CertifiedTrainer.begin(self, schema, model, NO_PROGRESS, num_tasks)
        if method is Method.COORDINATES and not is_slow:
            return NO_PROGRESS
        if state is None:
            outputs = self.num_outputs(schema)
            return WorkingSetState(num_outputs=outputs, D=schema.num_features + 1, num_rows=schema.num_rows)
        return CertifiedTrainer.begin(self, schema, model, progress, num_tasks)

    def _first_state(self, schema: DataSchema, model: Array, num_tasks: int) -> NewtonState:
        outputs = self.num_outputs(schema)
        state = newton_state(Loss.named(self.loss), schema, num_outputs=outputs, num_tasks=num_tasks)
        return steps.start(state, self.problem, model, self.before)

    def method(self, schema: DataSchema, num_tasks: int) -> str:
        """What `methods.choose` says, e.g. "Newton's method on chunks, because of a smooth loss, and ..."."""
        choice = self._choice(schema, num_tasks)
        return f"{choice.method.value}, because of {choice.reason}"

    def _choice(self, schema: DataSchema, num_tasks: int) -> Choice:
        return choose(
            Loss.named(self.loss),
            schema,
            num_outputs=self.num_outputs(schema),
            num_tasks=num_tasks,
            algorithm=self.algorithm,
            has_free_intercept=not self.penalises_intercept,
        )

    def may_be_cut(self, progress: Array) -> bool:
        """Coordinate descent may: w = w(alpha) after any part of a pass. The sums of other methods need every row."""
        state = self.look(progress)
        return state is None or (isinstance(state, WorkingSetState) and state.descends)

    def reads_all(self, progress: Array) -> bool:
        """Say no where one task solves for rows that the others have sent."""
        state = self.look(progress)
        return not (isinstance(state, WorkingSetState) and state.phase is WorkingSetPhase.SOLVE)

    def update_size(self, model: Array, progress: Array) -> int:
        """The change of w, or the sums of a pass of another method."""
        return len(model) if self.look(progress) is None else CertifiedTrainer.update_size(self, model, progress)

    def advance(self, model: Array, progress: Any, summed: Summed) -> tuple[Array, Any]:
        """See `newton.steps` and `working_set.steps` for what is more than a sum."""
        if self.may_be_cut(progress):
            model = self.merge(model, summed.delta, summed.weight)
            if not WorkingSetState.is_of(progress):
                has_given_up = self.loss != "hinge" and np.isinf(_column(summed.metrics, "gap")).any()
                return model, GIVEN_UP if has_given_up else progress
            state = WorkingSetState.take(progress)
            rounds.descended(state, self._estimated_gap(model, summed.metrics), self.tol)
        else:
            model, state = CertifiedTrainer.advance(self, model, progress, summed)
        has_stalled = isinstance(state, WorkingSetState) and state.num_stalls >= PATIENCE
        return model, GIVEN_UP if has_stalled else state.ready()

    def settled(self, model: Array, progress: Array, contribution: Array, num_tasks: int) -> Array | None:
        """w of the duals that a Newton run has written at its end, where w is not quite that."""
        state = self.look(progress)
        if isinstance(state, WorkingSetState):
            # A job that is interrupted after SOLVE has a model of duals that this evaluation has only now overwritten.
            return None if state.descends or state.is_at_rest else contribution
        if state is None or not state.has_newton_duals:
            return None
        found = model.reshape(len(state.outputs), -1).copy()
        for w, of_duals, output in zip(found, contribution.reshape(found.shape), state.outputs, strict=True):
            if output.shift.any():
                w[:] = of_duals if self.penalises_intercept else np.append(of_duals[:-1], w[-1] + output.shift[-1])
        return found.reshape(-1)

    @property
    def problem(self) -> Problem:
        """What Newton's method minimises for each output."""
        is_free = not self.penalises_intercept
        return Problem(
            loss=margin_loss(Loss.named(self.loss)), tol=self.tol, has_free_intercept=is_free, has_duals=True
        )

    def merge(self, model: Array, weighted_sum: Array, total_weight: float) -> Array:
        """w + sum of the changes (gamma = 1)."""
        weighted_sum += model
        return weighted_sum

    def rebuild(self, model: Array, contribution: Array, progress: Array) -> Array:
        """Return w(alpha), or the model in a Newton run or beside a free intercept, which do not follow from duals."""
        return model if NewtonState.is_of(progress) or not self.penalises_intercept else contribution

    def primal_and_dual(self, model: Array, report: Report) -> tuple[Array, Array]:
        """P and D per output at a certificate, each of shape (outputs,), float64.

        A free intercept b needs sum_i alpha_i y_i = 0. What rounding has left of that sum, times 2 |b| + 1, is taken
        from D, which then is a bound for all intercepts up to that.
        """
        losses, duals = _column(report.metrics, "loss"), _column(report.metrics, "dual")
        rebuilt = model if report.rebuilt is None else report.rebuilt
        w, of_duals = (each.reshape(len(losses), -1) for each in (model, rebuilt))
        if self.penalises_intercept:
            return _half_norms(w) + losses, duals - _half_norms(of_duals)
        left = np.abs(of_duals[:, -1]) * (2.0 * np.abs(w[:, -1]) + 1.0)
        dual = duals - _half_norms(of_duals[:, :-1]) - left
        return _half_norms(w[:, :-1]) + losses, np.maximum(dual, 0.0)  # which duals of 0 have

    def estimate(self, model: Array, report: Report) -> float:
        """See `CertifiedTrainer`."""
        if self.look(report.progress) is not None:
            return CertifiedTrainer.estimate(self, model, report)
        return np.inf if np.array_equal(report.progress, GIVEN_UP) else self._estimated_gap(model, report.metrics)

    def _estimated_gap(self, model: Array, metrics: Mapping[str, float]) -> float:
        """Return the gap as coordinate descent has summed it while w moved."""
        gap = _column(metrics, "gap")
        return largest_ratio(gap, _column(metrics, "dual") - _half_norms(model.reshape(len(gap), -1)) + gap)

    def reason_to_certify(self, model: Array, report: Report) -> str:
        """Say that the estimate of coordinate descent is near `tol`, or that the last certificate is long ago."""
        if not self.may_be_cut(report.progress):
            return CertifiedTrainer.reason_to_certify(self, model, report)
        gap = self.estimate(model, report)
        since = report.iteration - report.last_certificate
        is_first, is_alone = report.last_certificate == 0, report.num_tasks == 1
        goal = AGAIN * self.tol if is_alone and not is_first else self.tol
        figures = report.last_figures
        expected = gap * correction(figures.get("duality_gap", 0.0), figures.get("duality_gap_estimate", 0.0))
        is_near = expected <= goal and since >= max(1, report.last_certificate // 50)
        is_long_ago = since >= max(16, report.last_certificate)
        return f"estimated relative duality gap {gap:.2e}" if is_near or is_long_ago else ""


def _column(metrics: Mapping[str, float], name: str) -> Array:
    """Return the metric `name` of all outputs, in order."""
    found: list[float] = []
    while (value := metrics.get(f"{name}/{len(found)}")) is not None:
        found.append(value)
    return np.array(found)


def _half_norms(w: Array) -> Array:
    """1/2 |w_k|^2 per output, shape (outputs,)."""
    with np.errstate(over="ignore"):
        return 0.5 * dots(w, w)
