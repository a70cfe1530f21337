"""Models whose duals are the slopes of their losses: regressions, classifiers with an l1 penalty, and the softmax.

See `losses` for P and D, `l1.problem` for those with an l1 penalty, and `multinomial.objective`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import Context, Report, Solver
from chicle_elastic.solvers.linear.certified import LEAST_SHARE, TINY, CertifiedTrainer, num_outputs
from chicle_elastic.solvers.linear.l1.problem import L1Problem, credible
from chicle_elastic.solvers.linear.losses import EpsilonInsensitive, RegressionLoss, SmoothLoss
from chicle_elastic.solvers.linear.methods import (
    CHEAP_PRODUCTS,
    FEW_VALUES,
    MOST_BLOCK_VALUES,
    ROWS_PER_COLUMN,
    is_narrow,
    most_block_columns,
    newton_state,
)
from chicle_elastic.solvers.linear.multinomial import objective
from chicle_elastic.solvers.linear.multinomial.problem import SoftmaxProblem, num_blocks
from chicle_elastic.solvers.linear.newton import steps
from chicle_elastic.solvers.linear.newton.state import KEPT_PRODUCTS, NewtonState, OutputState, Problem
from chicle_elastic.solvers.linear.products import FEW_COLUMNS, MOST_EXACT
from chicle_elastic.solvers.linear.race import ITERATION_VALUES, MULTIPLICATION


class NewtonTrainer(CertifiedTrainer):
    """Base of trainers of which every pass is one of Newton's method, and chunks have no state."""

    machines: ClassVar[Any] = {NewtonState: steps}
    usual: ClassVar[Mapping[str, Any]] = {"l1_ratio": 0.0, "code_classes": None}

    def kept_bytes(self, schema: DataSchema, num_tasks: int) -> int:
        """Return what passes keep of all rows, and the compiler of kernels where it is not loaded yet."""
        from chicle_elastic.solvers.linear.newton.passes import kept_bytes

        return kept_bytes(self, schema)

    def has_last_word(self, report: Report) -> bool:
        """See `CertifiedTrainer`: of a squared loss with an l1 penalty also after a solution for the duals alone."""
        state = NewtonState.look(report.progress)
        return state.share <= LEAST_SHARE and not self.problem_of(state).has_last_word(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionTrainer(NewtonTrainer):
    """Linear regression with any of `losses`.

    Attributes:
        loss: The loss.
        C: Factor of the losses, > 0.
        alpha: Factor of the penalties, > 0.
        l1_ratio: Share of |w|_1 in them, 0 to 1; the rest is that of 1/2 |w|^2. For smooth losses. The lasso is that of
            squares with C=1/2, l1_ratio=1 and a mean.
        is_mean: The losses count as C times their mean, by weight, and not as their sum.
        tol: Relative duality gap at which to stop; 0 for never.
        intercept_scaling: Value of the constant column; 0 for no intercept.
        penalises_intercept: Whether the weight of that column is penalised like the others.
    """

    name = "Regression"
    sums = "rows", "total"
    sums_by_output = "loss", "lack", "squares", "scores"
    is_of_classes: ClassVar[bool] = False
    class_weights: ClassVar[tuple[float, ...] | None] = None
    code_classes: ClassVar[tuple[int, ...] | None] = None
    loss: RegressionLoss = field(default_factory=EpsilonInsensitive)
    C: float = 1.0
    alpha: float = 1.0
    l1_ratio: float = 0.0
    is_mean: bool = False
    tol: float = 1e-3
    intercept_scaling: float = 1.0
    penalises_intercept: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.loss, RegressionLoss):
            raise UsageError(f"a regression needs a RegressionLoss as its loss, got {self.loss!r}")
        are_factors = 0 < self.C < np.inf and 0 < self.alpha < np.inf and 0 <= self.l1_ratio <= 1
        if not are_factors or not self.tol >= 0:
            raise UsageError(
                "a regression needs C > 0, alpha > 0, l1_ratio from 0 to 1 and tol >= 0, got "
                f"C={self.C}, alpha={self.alpha}, l1_ratio={self.l1_ratio}, tol={self.tol}"
            )
        if self.l1_ratio and (self.loss.has_corners or self.loss.has_scale):
            raise UsageError(f"l1_ratio={self.l1_ratio} needs a smooth loss without a scale, got loss={self.loss!r}")

    @property
    def problem(self) -> Problem:
        """See `CertifiedTrainer`."""
        l1, is_free = self.alpha * self.l1_ratio, self.intercept_scaling != 0 and not self.penalises_intercept
        shared: dict[str, Any] = {"loss": self.loss, "alpha": self.alpha - l1, "C": self.C, "is_mean": self.is_mean}
        shared |= {"has_free_intercept": is_free, "tol": self.tol}
        return L1Problem(**shared, l1=l1, is_of_classes=self.is_of_classes) if l1 else Problem(**shared)

    def num_outputs(self, schema: DataSchema) -> int:
        """One output per class but of two, or of a regression; a UsageError where targets are of the other kind."""
        if not self.is_of_classes and schema.target_dtype == "int32":
            raise UsageError(
                "a regression needs real targets, but those of the data are class codes (int32); pass y as floats, or "
                "convert the data with --regression"
            )
        return num_outputs(schema) if self.is_of_classes else 1

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task."""
        from chicle_elastic.solvers.linear.newton.solver import NewtonSolver

        return NewtonSolver(ctx, self)

    def _first_state(self, schema: DataSchema, model: Array, num_tasks: int) -> NewtonState:
        if not self.l1_ratio:
            state = newton_state(None, schema, num_outputs=1, num_tasks=num_tasks)
            if not state.has_all_columns:  # columns hang together, and a block of some is worse than none
                state.block_columns, state.row_step, state.is_exact = 0, 1, False
                state.few_rows = schema.num_rows * self._may_gather(schema)
            is_rough = self.loss.is_parabola and schema.dtype != "float64" and schema.kind != "csr"
            state.is_rough = is_rough and state.is_exact
            return steps.start(state, self.problem, model)
        num_outputs, D, problem = self.num_outputs(schema), schema.num_features + 1, self.problem
        is_cheap = problem.loss.is_parabola or D <= FEW_COLUMNS or schema.num_rows * D * D // 2 <= CHEAP_PRODUCTS
        has_columns = schema.kind == "csr" and not (problem.loss.is_parabola or is_narrow(schema, num_outputs))
        state = NewtonState(
            D=D,
            block_columns=0 if has_columns else most_block_columns(num_outputs),
            is_exact=is_cheap and is_narrow(schema, num_outputs),
            is_rough=schema.dtype != "float64" and schema.kind != "csr",
            outputs=[],
        )
        return steps.start(state, problem, model)

    def _may_gather(self, schema: DataSchema) -> bool:
        """Say whether wide rows may be so few that they are sent; a parabola needs one direction alone."""
        of_row = 2 if schema.kind == "csr" else schema.num_features + 2  # as `count_pass` counts them, at least
        is_wide = not (self.loss.is_parabola or is_narrow(schema))
        return is_wide and schema.num_rows * of_row <= FEW_VALUES

    def method(self, schema: DataSchema, num_tasks: int) -> str:
        """In words for the user."""
        if not self.l1_ratio:
            columns = f"second derivatives of {schema.num_features + 1} columns"
            if is_narrow(schema):
                return f"Newton's method on chunks, because {columns} fit into a message"
            way = "conjugate gradients" + (", by each task alone if values are few" if self._may_gather(schema) else "")
            return f"Newton's method on chunks by {way}, because {columns} do not fit into a message"
        outputs = self.num_outputs(schema)
        state = self._first_state(schema, np.zeros(outputs * (schema.num_features + 1)), num_tasks)
        products = f"products of {state.D} columns and {outputs} output{'s' if outputs > 1 else ''}"
        if state.is_exact:
            return f"a proximal Newton method on chunks, because {products} cost little"
        is_of_columns = num_tasks == 1 and not state.block_columns
        way = "on the columns of one task" if is_of_columns else "with a working set of columns"
        reason = "would take long" if is_narrow(schema, outputs) else "do not fit into a message"
        return f"a proximal Newton method {way}, because {products} {reason}"

    @np.errstate(over="ignore", invalid="ignore")
    def primal_and_dual(self, model: Array, report: Report) -> tuple[Array, Array]:
        """P and D per output at a certificate, shape (outputs,)."""
        assert report.rebuilt is not None, "only a certificate has P and D"
        metrics = report.metrics
        state = replace(NewtonState.look(report.progress), total=max(metrics["total"], TINY))
        shape, found = (len(state.outputs), -1), []
        outputs = zip(state.outputs, model.reshape(shape), report.rebuilt.reshape(shape), strict=True)
        for k, (output, w, v) in enumerate(outputs):
            sums = [metrics[f"{name}/{k}"] for name in self.sums_by_output]
            found.append(self._certified(state, output, w, v, sums, are_same_rows=metrics["rows"] == state.num_rows))
        primal, dual = np.array(found).T / self.problem.unit(state)
        return primal, dual

    def _certified(
        self, state: NewtonState, output: OutputState, w: Array, v: Array, sums: list[float], *, are_same_rows: bool
    ) -> tuple[float, float]:
        """Return P and D of the sums of an output (`sums_by_output`).

        What rounding leaves of the sum of the duals beside an intercept b that is not penalised, times 2 |b| and the
        mean size of the targets (1 where scores are logarithms), is taken from D: a bound for intercepts up to that.
        """
        loss, lack, squares, scores = sums
        problem, total, beside = self.problem, state.total, output.beside
        is_free, of_parabola = problem.has_free_intercept, problem.loss.is_parabola
        primal = problem.penalty(state, w) + loss
        if is_free and of_parabola:  # duals less their mean
            mean = v[-1] / total
            lack -= mean * (scores + 0.25 * mean * total)
            squares -= mean * mean * total
            v = v - v[-1] * beside / max(float(beside[-1]), TINY)
            if not are_same_rows or not beside.any():  # the means are of other rows
                return primal, 0.0
        lack = problem.lack(state, w, v, lack, primal, squares)
        if is_free and not of_parabola:
            unit = state.typical if problem.loss.is_of_residuals else 1.0
            lack += (2.0 * abs(w[-1]) + unit) * abs(v[-1]) - w[-1] * v[-1]
        return primal, credible(max(0.0, primal - lack), primal)  # 0 is that of no duals

    def floor(self, report: Report) -> float:
        """See `CertifiedTrainer`."""
        state = NewtonState.look(report.progress)
        return state.floor / self.problem.unit(state)

    def scale(self, report: Report) -> float:
        """Return the scale of a loss that has one, as of a certificate."""
        return NewtonState.look(report.progress).outputs[0].theta


@dataclass(frozen=True, slots=True, kw_only=True)
class L1Trainer(RegressionTrainer):
    """Linear classifier with an l1 penalty and a smooth loss of `margins`, binary or one-vs-rest."""

    name = "L1"
    is_of_classes: ClassVar[bool] = True
    loss: RegressionLoss = field(default_factory=SmoothLoss)
    l1_ratio: float = 1.0  # above 0
    penalises_intercept: bool = False
    class_weights: tuple[float, ...] | None = None  # type: ignore[misc]  # factor of C per class code; None for 1

    def __post_init__(self) -> None:
        RegressionTrainer.__post_init__(self)
        if not self.l1_ratio:
            raise UsageError(f"a classifier with an l1 penalty needs l1_ratio above 0, got l1_ratio={self.l1_ratio}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MultinomialTrainer(NewtonTrainer):
    """Logistic regression with one softmax over all classes, as scikit-learn's LogisticRegression has it.

    The model is W of shape (num_classes, num_features + 1), flattened, float64; its last column has the intercepts.
    """

    name = "Multinomial"
    sums = "loss", "entropy", "rows"
    C: float = 1.0  # factor of the sum of losses, > 0
    tol: float = 1e-3  # relative duality gap at which to stop; 0 for never
    has_intercept: bool = True  # whether there are intercepts, which are not penalised
    num_threads: int = 1  # most threads a task may use; fewer are used on small data
    # factor of C per target code; None for 1. Rows of a code with the factor 0 are left out
    class_weights: tuple[float, ...] | None = None
    code_classes: tuple[int, ...] | None = None  # class of each target code, from 0; None where codes are classes
    before: tuple[NewtonState, ...] | None = field(default=None, compare=False, repr=False)  # see `steps.start`
    has_one_softmax: ClassVar[bool] = True
    intercept_scaling: ClassVar[float] = 1.0  # of the last column of the model

    def __post_init__(self) -> None:
        if not 0 < self.C < np.inf or not self.tol >= 0:
            raise UsageError(f"multinomial regression needs C > 0 and tol >= 0, got C={self.C}, tol={self.tol}")

    def problem_of(self, state: NewtonState) -> SoftmaxProblem:
        """Return what is minimised."""
        return SoftmaxProblem(tol=self.tol, has_free_intercept=self.has_intercept, num_classes=state.num_classes)

    def num_outputs(self, schema: DataSchema) -> int:
        """One output per class; a UsageError where targets are not class codes."""
        K = self._num_classes(schema)
        return max(num_outputs(schema, K), K)

    def _num_classes(self, schema: DataSchema) -> int:
        return schema.num_classes if self.code_classes is None else max(self.code_classes) + 1

    def kept_bytes(self, schema: DataSchema, num_tasks: int) -> int:
        """Return what probabilities, their weights, C_i and numbers of rows take."""
        return schema.num_rows * 8 * (2 * self._num_classes(schema) + 3)

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task."""
        from chicle_elastic.solvers.linear.multinomial.solver import MultinomialSolver

        return MultinomialSolver(ctx, self)

    def _first_state(self, schema: DataSchema, model: Array, num_tasks: int) -> NewtonState:
        state = first_state(schema, self._num_classes(schema))
        return steps.start(state, self.problem_of(state), model, self.before)

    def method(self, schema: DataSchema, num_tasks: int) -> str:
        """In words for the user."""
        K, D = self._num_classes(schema), schema.num_features + 1
        state = first_state(schema, K)
        if state.is_exact:
            few = f"second derivatives of {D} columns and {K} classes are few"
            return f"Newton's method on chunks, because of the multinomial loss, and {few}"
        fit = {K: "fit", 1: "do not fit, but their mean does,", 0: "do not fit"}[num_blocks(K, D)]
        by_class = f"second derivatives by class of {D} columns and {K} classes {fit} into a message"
        return f"Newton's method on chunks by conjugate gradients, because of the multinomial loss; {by_class}"

    def primal_and_dual(self, model: Array, report: Report) -> tuple[float, float]:
        """P and D at a certificate; D is unknown, minus infinity, where other rows were looked at before."""
        assert report.rebuilt is not None, "only a certificate has P and D"
        state, metrics = NewtonState.look(report.progress), report.metrics
        linear = state.outputs[0].linear
        is_known = metrics["rows"] == state.num_rows and len(linear) > 0
        W = model.reshape(state.num_classes, -1)
        linear = linear.reshape(W.shape) if is_known else np.ones_like(W)
        known = metrics["loss"], metrics["entropy"], linear, self.has_intercept and is_known
        with np.errstate(over="ignore", invalid="ignore"):
            primal, dual = objective.primal_and_dual(W, report.rebuilt.reshape(W.shape), *known)
        return primal, dual if is_known and not np.isnan(dual) else -np.inf


def first_state(schema: DataSchema, K: int) -> NewtonState:
    """Say before the first pass over data of K classes which second derivatives are summed up, and of which rows."""
    n, D = schema.num_rows, schema.num_features + 1
    # Exact steps save about as many iterations as conjugate gradients may take products before a new block.
    is_joint = K * D <= MOST_EXACT and MULTIPLICATION * n * (K * D) ** 2 <= KEPT_PRODUCTS * ITERATION_VALUES
    row_step = 1 if is_joint or not num_blocks(K, D) else max(1, n // (ROWS_PER_COLUMN * D))
    return NewtonState(
        D=K * D,
        block_columns=K * D if is_joint else 0,
        row_step=row_step,
        is_exact=is_joint,
        is_rough=schema.kind != "csr" and schema.dtype != "float64" and not is_joint,
        has_many_rows=n * D > MOST_BLOCK_VALUES,
        # As many products as take the time of the blocks of dense rows: one per 8 columns. With 2 and 32 in place of 8,
        # 44 tables take 8 % more and 2 % fewer iterations, and 20,000 rows of 300 columns 1.0 and 1.3 of the time.
        kept_products=min(max(D // (KEPT_PRODUCTS * row_step), KEPT_PRODUCTS // 4), 2 * KEPT_PRODUCTS),
        num_classes=K,
        outputs=[],
    )
