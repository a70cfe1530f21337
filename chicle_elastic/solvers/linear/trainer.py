"""Linear classifiers with hinge, squared hinge or logistic loss: the model, the method, and when to stop.

Coordinate descent (CoCoA). Every task improves the duals of its own samples against a local copy of w and returns the
change of w; the trainer adds the changes (gamma = 1), which is safe because each task damps its steps by sigma' = tasks
x threads (Ma et al. 2015, "Adding vs. averaging in distributed primal-dual optimization", eq. 9 and section 4; Chicle
paper, section on CoCoA). The duals lie in the chunk state and move with their samples, so w = w(alpha) holds whichever
task owns a chunk.

Newton's method. Every task returns sums over its rows, and the trainer takes the step (`newton.steps`); what belongs to
it besides w is the trainer's progress. `methods` has the rule that decides between the two.

Stopping. The duality gap bounds the distance to the optimum. During a pass the kernel sums an *estimate* at the moving
vector; it only triggers the certificate, a pass in float64 over all samples of all tasks that evaluates the losses at w
and the dual objective at w(alpha), rebuilt from the duals. P(w) - D(alpha) bounds the distance of P(w) to the optimum
whatever w is, so rounding drift between w and w(alpha) cannot fake it. Only a certificate stops a run.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema, StateSpec
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import NO_PROGRESS, Action, Context, Report, Solver, Summed, Trainer, Verdict
from chicle_elastic.solvers.linear.agreement import dots
from chicle_elastic.solvers.linear.certified import verdict_of_gap
from chicle_elastic.solvers.linear.methods import ALGORITHMS, Algorithm, Choice, Method, choose, newton_state
from chicle_elastic.solvers.linear.newton import steps
from chicle_elastic.solvers.linear.newton.margins import margin_loss
from chicle_elastic.solvers.linear.newton.state import NewtonState, Problem
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.working_set import steps as rounds
from chicle_elastic.solvers.linear.working_set.state import WorkingSetPhase, WorkingSetState
from chicle_elastic.solvers.linear.working_set.state import sums_size as rounds_size

if TYPE_CHECKING:
    from chicle_elastic.solvers.linear.solver import LinearSolver

AGAIN = 0.8
"""Share of `tol` that one task aims at after a certificate that was not good enough: another one costs as much as two
passes over all rows, and estimates scatter. Several tasks also wait for each other in each iteration that it costs."""
FAR_BELOW = 0.1
"""Share of the goal below which nothing is waited for after the last certificate: an iteration may take long."""
GIVEN_UP = np.array([-1.0])
"""Progress after an iteration without an estimate of the gap: the only task has come to the end of what its own Newton
steps can do, whose w is always that of duals. On features of 1e8 rounding of the duals is all of that w."""


def num_outputs(schema: DataSchema, num_classes: int | None = None) -> int:
    """One output for two classes, else one per class; `num_classes` where target codes tell more than the class.

    Raises:
        UsageError: The targets are not class codes.
    """
    num_classes = schema.num_classes if num_classes is None else num_classes
    if schema.target_dtype != "int32" or num_classes < 2:
        raise UsageError(
            f"a linear classifier needs int32 class codes of at least two classes, but the data has targets of "
            f"dtype {schema.target_dtype} and {num_classes} classes"
        )
    return 1 if num_classes == 2 else num_classes


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTrainer(Trainer):
    """Linear classifier, binary or one-vs-rest; all outputs share an iteration.

    The model is w of shape (outputs, num_features + 1), flattened; the last column belongs to the intercept column.

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
    """

    loss: str = "hinge"
    C: float = 1.0
    tol: float = 1e-3
    intercept_scaling: float = 1.0
    class_weights: tuple[float, ...] | None = None
    num_threads: int = 1
    code_classes: tuple[int, ...] | None = None
    penalises_intercept: bool = True
    algorithm: Algorithm = "auto"
    has_one_softmax: ClassVar[bool] = False
    """Whether scores are those of one distribution over all classes."""
    uses_blas_threads: ClassVar[bool] = False

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
        """One output for two classes, else one per class.

        Raises:
            UsageError: The targets are not class codes.
        """
        return num_outputs(schema, None if self.code_classes is None else max(self.code_classes) + 1)

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """Zeros, shape (outputs * (num_features + 1),), float64."""
        return np.zeros(self.num_outputs(schema) * (schema.num_features + 1))

    def state(self, schema: DataSchema) -> StateSpec:
        """One dual per sample and output, float64."""
        return StateSpec(outputs=self.num_outputs(schema), width=1, dtype="float64")

    def identity(self) -> Mapping[str, Any]:
        """What decides which duals are feasible: with another loss or C a gap of theirs would certify nothing."""
        found: dict[str, Any] = {
            "trainer": "CoCoA",
            "loss": self.loss,
            "C": self.C,
            "intercept_scaling": self.intercept_scaling,
            "class_weights": self.class_weights,
        }
        if not self.penalises_intercept:
            found["penalises_intercept"] = False
        if self.code_classes is not None:
            found["code_classes"] = self.code_classes
        return found

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """Per output k: "loss/k" (from `evaluate`), "gap/k" (estimate, from `solve`) and "dual/k" (from both)."""
        return tuple(f"{name}/{k}" for k in range(self.num_outputs(schema)) for name in ("loss", "gap", "dual"))

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task; numba is imported here and not before."""
        return self.linear_solver(ctx)

    def linear_solver(self, ctx: Context) -> "LinearSolver":
        """The same, by its type."""
        from chicle_elastic.solvers.linear.solver import LinearSolver
        from chicle_elastic.solvers.linear.tables import Bounds

        return LinearSolver(
            ctx,
            loss=Loss.named(self.loss),
            bounds=Bounds(C=float(self.C), class_weights=self.class_weights, code_classes=self.code_classes),
            intercept=float(self.intercept_scaling),
            tol=self.tol,
            num_threads=self.num_threads,
            descends_only=self.algorithm == "cocoa",
            problem=self.problem,
        )

    def begin(self, schema: DataSchema, model: Array, progress: Array, num_tasks: int) -> Array:
        """Choose the method where there is none yet, and let a Newton run go on that rested too early."""
        if NewtonState.is_of(progress):
            if not NewtonState.look(progress).is_at_rest:
                return progress
            state = NewtonState.take(progress)
            steps.reopen(state, self.problem, model)
            return state.encode()
        if self.algorithm == "cocoa":
            return NO_PROGRESS
        loss, outputs = Loss.named(self.loss), self.num_outputs(schema)
        method = self._choice(schema, num_tasks).method
        descent = WorkingSetState.look(progress) if WorkingSetState.is_of(progress) else None
        is_slow = descent is not None and descent.phase is not WorkingSetPhase.DESCEND
        is_large = descent is not None and not is_slow and loss is not Loss.HINGE
        if method is Method.NEWTON or is_large or np.array_equal(progress, GIVEN_UP):
            state = newton_state(loss, schema, num_outputs=outputs, num_tasks=num_tasks)
            return steps.start(state, self.problem, model).encode()
        if method is Method.COORDINATES and not is_slow:
            return NO_PROGRESS
        if descent is None:
            return rounds.start(outputs, schema.num_rows).encode()
        if descent.phase is WorkingSetPhase.REST:
            descent = WorkingSetState.take(progress)
            rounds.reopen(descent)
            return descent.encode()
        return progress

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
        if WorkingSetState.is_of(progress):
            return WorkingSetState.look(progress).phase is WorkingSetPhase.DESCEND
        return not NewtonState.is_of(progress)

    def update_size(self, model: Array, progress: Array) -> int:
        """The change of w, or the sums of a pass of another method."""
        if WorkingSetState.is_of(progress):
            return rounds_size(WorkingSetState.look(progress), len(model))
        return NewtonState.look(progress).sums_size(self.problem) if NewtonState.is_of(progress) else len(model)

    def advance(self, model: Array, progress: Array, summed: Summed) -> tuple[Array, Array]:
        """See `newton.steps` and `working_set.steps` for what is more than a sum."""
        if WorkingSetState.is_of(progress):
            return self._advance_round(WorkingSetState.take(progress), model, summed)
        if not NewtonState.is_of(progress):
            has_given_up = self.loss != "hinge" and np.isinf(_column(summed.metrics, "gap")).any()
            return self.merge(model, summed.delta, summed.weight), GIVEN_UP if has_given_up else progress
        state = NewtonState.take(progress)
        with np.errstate(over="ignore", invalid="ignore"):  # of squares beyond all numbers; such a step is not taken
            following = steps.advance(state, self.problem, model, summed.delta, summed.weight)
        return following, state.encode()

    def _advance_round(self, state: WorkingSetState, model: Array, summed: Summed) -> tuple[Array, Array]:
        if state.phase is WorkingSetPhase.DESCEND:
            model = self.merge(model, summed.delta, summed.weight)
            rounds.descended(state, self._estimated_gap(model, summed.metrics), self.tol)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                model = rounds.advance(state, model, summed.delta, self.tol)
        return model, state.encode()

    def settled(self, model: Array, progress: Array, contribution: Array, num_tasks: int) -> Array | None:
        """w of the duals that a Newton run has written at its end, where w is not quite that."""
        if WorkingSetState.is_of(progress):
            # A job that is interrupted after SOLVE has a model of duals that this evaluation has only now overwritten.
            phase = WorkingSetState.look(progress).phase
            return None if phase in (WorkingSetPhase.DESCEND, WorkingSetPhase.REST) else contribution
        if not NewtonState.is_of(progress):
            return None
        state = NewtonState.look(progress)
        if not state.has_newton_duals:
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
        """w(alpha), with nothing of the old model.

        In a Newton run w does not follow from the duals, and is kept. An intercept that is not penalised never does.
        """
        return model if NewtonState.is_of(progress) or not self.penalises_intercept else contribution

    def primal_and_dual(self, model: Array, report: Report) -> tuple[Array, Array]:
        """P and D per output at a certificate, each of shape (outputs,), float64.

        An intercept b that is not penalised needs sum_i alpha_i y_i = 0. What rounding has left of that sum, times
        2 |b| + 1, is taken from D, which then is a bound for all intercepts up to that.
        """
        rebuilt = model if report.rebuilt is None else report.rebuilt
        losses, duals = _column(report.metrics, "loss"), _column(report.metrics, "dual")
        if self.penalises_intercept:
            return _half_norms(model, len(losses)) + losses, duals - _half_norms(rebuilt, len(losses))
        w, of_duals = (each.reshape(len(losses), -1) for each in (model, rebuilt))
        primal = _half_norms(w[:, :-1], len(losses)) + losses
        left = np.abs(of_duals[:, -1]) * (2.0 * np.abs(w[:, -1]) + 1.0)
        dual = duals - _half_norms(of_duals[:, :-1], len(losses)) - left
        return primal, np.maximum(dual, 0.0)  # which duals of 0 have

    def relative_gap(self, model: Array, report: Report) -> float:
        """Largest (P - D) / P over the outputs; an estimate unless the report is a certificate."""
        if report.is_certificate:
            return self.figures(model, report)["duality_gap"]
        if NewtonState.is_of(report.progress):
            return max(output.gap for output in NewtonState.look(report.progress).outputs)
        if WorkingSetState.is_of(report.progress):
            return WorkingSetState.look(report.progress).gap
        return self._estimated_gap(model, report.metrics)

    def _estimated_gap(self, model: Array, metrics: Mapping[str, float]) -> float:
        """The same as coordinate descent summed it while w moved."""
        gap = _column(metrics, "gap")
        return _largest_ratio(gap, _column(metrics, "dual") - _half_norms(model, len(gap)) + gap)

    def figures(self, model: Array, report: Report) -> Mapping[str, float]:
        """ "objective", "dual_objective" and "duality_gap" at a certificate, else "duality_gap_estimate"."""
        if not report.is_certificate:
            return {"duality_gap_estimate": self.relative_gap(model, report)}
        primal, dual = self.primal_and_dual(model, report)
        gap = _largest_ratio(primal - dual, primal)
        return {"objective": float(primal.sum()), "dual_objective": float(dual.sum()), "duality_gap": gap}

    def verdict(self, model: Array, report: Report) -> Verdict:
        """Certify when the estimate is near `tol` or long ago; stop only on a certificate."""
        gap = self.relative_gap(model, report)
        is_last = report.iteration >= report.max_iterations
        if report.is_certificate:
            return verdict_of_gap(gap, self.tol, report)
        rests = self._rests(report.progress)
        if rests is not None:
            if is_last or (rests and report.is_complete):
                return Verdict(action=Action.CERTIFY, reason=f"relative duality gap {gap:.2e} as of the last pass")
            return Verdict(action=Action.GO_ON)
        since = report.iteration - report.last_certificate
        is_first, is_alone = report.last_certificate == 0, report.num_tasks == 1
        goal = AGAIN * self.tol if is_alone and not is_first else self.tol
        expected = gap * _correction(report)
        is_near = expected <= goal and (expected <= FAR_BELOW * goal or since >= max(1, report.last_certificate // 50))
        is_long_ago = since >= max(16, report.last_certificate)
        if is_last or (report.is_complete and (is_near or is_long_ago)):
            return Verdict(action=Action.CERTIFY, reason=f"estimated relative duality gap {gap:.2e}")
        return Verdict(action=Action.GO_ON)

    def _rests(self, progress: Array) -> bool | None:
        """Whether the method has done its work; None where the estimates of coordinate descent tell."""
        if NewtonState.is_of(progress):
            return NewtonState.look(progress).is_at_rest
        if WorkingSetState.is_of(progress):
            phase = WorkingSetState.look(progress).phase
            return None if phase is WorkingSetPhase.DESCEND else phase is WorkingSetPhase.REST
        return None


def _correction(report: Report) -> float:
    """What the last certificate found, as a multiple of the estimate of that time.

    Until there is one, half: the estimate is summed while w still moves, and is most often above what is found then.
    """
    estimate, found = (report.last_figures.get(name, 0.0) for name in ("duality_gap_estimate", "duality_gap"))
    return min(max(found / estimate, 0.1), 10.0) if estimate > 0 and found > 0 else 0.5


def _largest_ratio(gap: Array, primal: Array) -> float:
    with np.errstate(over="ignore"):  # beyond all numbers, where the objective is next to nothing
        if np.isinf(gap).any():  # there is no estimate
            return math.inf
        return float(np.max(gap / np.maximum(primal, np.finfo(np.float64).tiny)))


def _column(metrics: Mapping[str, float], name: str) -> Array:
    """The metric `name` of all outputs, in order."""
    found: list[float] = []
    while (value := metrics.get(f"{name}/{len(found)}")) is not None:
        found.append(value)
    return np.array(found)


def _half_norms(model: Array, num_outputs: int) -> Array:
    """1/2 |w_k|^2 per output, shape (outputs,)."""
    w = model.reshape(num_outputs, -1)
    with np.errstate(over="ignore"):
        return 0.5 * dots(w, w)
