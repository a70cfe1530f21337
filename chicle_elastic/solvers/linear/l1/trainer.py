"""Models with an l1 penalty: the objective, the method, and when to stop. See `objective` and `steps`."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import Context, Report, Solver
from chicle_elastic.solvers.linear.certified import PATIENCE, CertifiedTrainer, one_output
from chicle_elastic.solvers.linear.l1 import steps
from chicle_elastic.solvers.linear.l1.objective import Objective, credible
from chicle_elastic.solvers.linear.l1.state import L1Output, L1State
from chicle_elastic.solvers.linear.methods import CHEAP_PRODUCTS, MOST_COLUMNS, is_narrow
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.products import FEW_COLUMNS
from chicle_elastic.solvers.linear.progress import NOTHING


class ColumnsTrainer(CertifiedTrainer):
    """A trainer whose steps are those of `l1.steps`; all outputs share an iteration."""

    C: float = 1.0
    class_weights: tuple[float, ...] | None = None
    machines: ClassVar[Any] = {L1State: steps}
    sums = ("rows",)
    sums_by_output = "loss", "dual", "size"

    @property
    @abstractmethod
    def problem(self) -> Objective:
        """The objective of each output."""

    @property
    @abstractmethod
    def intercept_scaling(self) -> float:
        """Value of the intercept column; 0 for none."""

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task; numba is imported here and not before."""
        from chicle_elastic.solvers.linear.l1.solver import L1Solver

        return L1Solver(ctx, self)

    def _first_state(self, schema: DataSchema, model: Array, num_tasks: int) -> L1State:
        num_outputs, D, objective = self.num_outputs(schema), schema.num_features + 1, self.problem
        is_parabola, is_sparse = objective.loss is None, schema.kind == "csr"
        is_cheap = is_parabola or D <= FEW_COLUMNS or schema.num_rows * D * D // 2 <= CHEAP_PRODUCTS
        output = L1Output(is_rough=schema.dtype != "float64" and not is_sparse, direction=np.zeros(D))
        return L1State(
            is_whole=is_cheap and is_narrow(schema, num_outputs),
            is_parabola=is_parabola,
            has_columns=is_sparse and not is_parabola and not is_narrow(schema, num_outputs),
            num_sides=objective.num_sides,
            D=D,
            outputs=[replace(output) for _ in range(num_outputs)],
        )

    def method(self, schema: DataSchema, num_tasks: int) -> str:
        """In words for the user."""
        state, outputs = self._first_state(schema, NOTHING, num_tasks), self.num_outputs(schema)
        products = f"products of {state.D} columns and {outputs} output{'s' if outputs > 1 else ''}"
        if state.is_whole:
            return f"a proximal Newton method on chunks, because {products} cost little"
        way = "on the columns of one task" if num_tasks == 1 and state.has_columns else "with a working set of columns"
        reason = "would take long" if is_narrow(schema, outputs) else "do not fit into a message"
        return f"a proximal Newton method {way}, because {products} {reason}"

    def primal_and_dual(self, model: Array, report: Report) -> tuple[Array, Array]:
        """P and D per output at a certificate, shape (outputs,); D is -inf where the means are those of other rows."""
        assert report.rebuilt is not None, "only a certificate has P and D"
        state, metrics, objective = L1State.look(report.progress), report.metrics, self.problem
        shape = len(state.outputs), -1
        primal, dual = np.empty((2, len(state.outputs)))
        with np.errstate(over="ignore", invalid="ignore"):
            for k, (w, v) in enumerate(zip(model.reshape(shape), report.rebuilt.reshape(shape), strict=True)):
                primal[k], of_duals = metrics[f"loss/{k}"] + objective.penalty(w), metrics[f"dual/{k}"]
                size = metrics[f"size/{k}"]
                if state.is_parabola:  # duals less their mean
                    of_mean = 0.5 * float(v[-1]) ** 2
                    v, of_duals, size = v - v[-1] * state.means, of_duals + of_mean, size - of_mean
                dual[k] = credible(objective.certified(of_duals, v, size), primal[k])
        if state.is_parabola and metrics["rows"] != state.num_rows:
            dual[:] = -np.inf
        return primal, dual

    def floor(self, report: Report) -> float:
        """See `CertifiedTrainer`."""
        return L1State.look(report.progress).floor

    def has_last_word(self, report: Report) -> bool:
        """See `CertifiedTrainer`: of a squared loss also after a solution that has followed it."""
        state = L1State.look(report.progress)
        return state.num_refused >= PATIENCE and not state.has_last_word


@dataclass(frozen=True, slots=True, kw_only=True)
class L1Trainer(ColumnsTrainer):
    """Linear classifier with an l1 penalty, binary or one-vs-rest."""

    name = "L1"
    loss: str = "logistic"  # "squared_hinge", "modified_huber" or "logistic"
    C: float = 1.0  # factor of the sum of losses, > 0
    l1_ratio: float = 1.0  # share of the l1 penalty, above 0 and up to 1; the rest is that of 1/2 |w|^2
    tol: float = 1e-3  # relative duality gap, per output, at which to stop; 0 for never
    intercept_scaling: float = 1.0  # Value of the constant column; 0 for no intercept
    penalises_intercept: bool = False  # whether the weight of that column is penalised like the others
    class_weights: tuple[float, ...] | None = None  # factor of C per class code; None for 1

    def __post_init__(self) -> None:
        if Loss.named(self.loss) is Loss.HINGE:
            raise UsageError("an l1 penalty comes with the losses 'squared_hinge' and 'logistic', got loss='hinge'")
        if not 0 < self.C < np.inf or not 0 < self.l1_ratio <= 1 or not self.tol >= 0:
            raise UsageError(
                "a classifier with an l1 penalty needs C > 0, l1_ratio above 0 and up to 1 and tol >= 0, got "
                f"C={self.C}, l1_ratio={self.l1_ratio}, tol={self.tol}"
            )

    @property
    def problem(self) -> Objective:
        """See `CertifiedTrainer`."""
        return Objective(
            loss=Loss.named(self.loss),
            l1=self.l1_ratio,
            l2=1.0 - self.l1_ratio,
            has_free_intercept=self.intercept_scaling != 0 and not self.penalises_intercept,
            tol=self.tol,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LassoTrainer(ColumnsTrainer):
    """Linear regression with squared loss and l1 and l2 penalties, as scikit-learn's Lasso and ElasticNet have it."""

    name = "ElasticNet"
    alpha: float = 1.0  # factor of both penalties, > 0
    l1_ratio: float = 1.0  # share of the l1 penalty, 0 to 1; 1 is the lasso. Wide data needs more than 0
    tol: float = 1e-6  # relative duality gap at which to stop; 0 for never
    has_intercept: bool = True  # whether there is an intercept, which is not penalised

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf or not 0 <= self.l1_ratio <= 1 or not self.tol >= 0:
            raise UsageError(
                "lasso and elastic net need alpha > 0, l1_ratio from 0 to 1 and tol >= 0, got "
                f"alpha={self.alpha}, l1_ratio={self.l1_ratio}, tol={self.tol}"
            )

    @property
    def intercept_scaling(self) -> float:
        """See `ColumnsTrainer`."""
        return float(self.has_intercept)

    @property
    def problem(self) -> Objective:
        """See `CertifiedTrainer`."""
        l1, l2 = self.alpha * self.l1_ratio, self.alpha * (1.0 - self.l1_ratio)
        return Objective(loss=None, l1=l1, l2=l2, has_free_intercept=self.has_intercept, tol=self.tol)

    def num_outputs(self, schema: DataSchema) -> int:
        """See `one_output`."""
        return one_output(schema)

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """Zeros; a UsageError where targets are class codes, or there is no l1 penalty on many features."""
        if self.l1_ratio == 0 and not is_narrow(schema):
            raise UsageError(
                f"l1_ratio=0 takes up to {MOST_COLUMNS - 1} features, because no weight is then 0, and the data has "
                f"{schema.num_features}; use ChicleRidge(alpha=alpha * n_samples), which has the same solution"
            )
        return ColumnsTrainer.init(self, schema, rng)
