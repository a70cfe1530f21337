"""Models with an l1 penalty: the objective, the method, and when to stop. See `objective` and `steps`."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import Context, Report, Solver, Summed
from chicle_elastic.solvers.linear.certified import CertifiedTrainer, is_narrow
from chicle_elastic.solvers.linear.l1 import steps
from chicle_elastic.solvers.linear.l1.objective import Objective, credible
from chicle_elastic.solvers.linear.l1.state import PATIENCE, L1State
from chicle_elastic.solvers.linear.methods import CHEAP_COLUMNS, CHEAP_PRODUCTS, MOST_COLUMNS, most_block_columns
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.trainer import num_outputs


class ColumnsTrainer(CertifiedTrainer):
    """A trainer whose steps are those of `l1.steps`; all outputs share an iteration.

    The model is w of shape (outputs, num_features + 1), flattened; the last column belongs to the intercept column.

    Attributes:
        name: Of the objective.
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def _objective(self) -> Objective:
        """That of each output."""

    def _outputs(self, schema: DataSchema) -> int:
        """How many there are."""
        return num_outputs(schema)

    def _is_whole(self, schema: DataSchema) -> bool:
        """Whether W always has all columns: their products fit into a message, and cost little beside the rows."""
        D = schema.num_features + 1
        is_once = self._objective.loss is None
        is_cheap = is_once or D <= CHEAP_COLUMNS or schema.num_rows * D * D // 2 <= CHEAP_PRODUCTS
        return is_cheap and not _is_wide(schema, self._outputs(schema))

    def _is_from_columns(self, schema: DataSchema, num_tasks: int) -> bool:
        """Whether one task has all rows, and their columns are the way to go."""
        is_alone = num_tasks == 1 and schema.kind == "csr" and self._objective.loss is not None
        return is_alone and _is_wide(schema, self._outputs(schema))

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """Zeros, shape (outputs * (num_features + 1),), float64."""
        return np.zeros(self._outputs(schema) * (schema.num_features + 1))

    def identity(self) -> Mapping[str, Any]:
        """What decides the optimum."""
        values: Any = self
        parameters = (field.name for field in fields(values) if field.name != "tol")
        return {"trainer": self.name} | {name: getattr(self, name) for name in parameters}

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """Of `evaluate`: rows, and per output k sums of losses, of dual values and `size` of `Objective.certified`."""
        parts = [f"{name}/{k}" for k in range(self._outputs(schema)) for name in ("loss", "dual", "size")]
        return ("rows", *parts)

    def begin(self, schema: DataSchema, model: Array, progress: Array, num_tasks: int) -> Array:
        """Begin with a look at the data, and again after a certificate that was not good enough."""
        is_alone = self._is_from_columns(schema, num_tasks)
        if L1State.is_of(progress):
            state = L1State.look(progress)
            if not state.is_at_rest and state.from_columns == is_alone:
                return progress
            state = L1State.take(progress)
            if state.is_at_rest:
                steps.reopen(state)
        else:
            outputs = self._outputs(schema)
            state = L1State.fresh(
                outputs,
                schema.num_features + 1,
                self._objective,
                is_whole=self._is_whole(schema),
                is_rough=schema.dtype != "float64" and schema.kind != "csr",
                most_columns=most_block_columns(outputs),
            )
        steps.set_alone(state, model, self._objective, is_alone=is_alone)
        return state.encode()

    def method(self, schema: DataSchema, num_tasks: int) -> str:
        """In words for the user."""
        outputs, D = self._outputs(schema), schema.num_features + 1
        products = f"products of {D} columns and {outputs} output{'s' if outputs > 1 else ''}"
        if self._is_whole(schema):
            return f"a proximal Newton method on chunks, because {products} cost little"
        do_not_fit = f"{products} do not fit into a message"
        if self._is_from_columns(schema, num_tasks):
            return f"a proximal Newton method on the columns of one task, because {do_not_fit}"
        reason = do_not_fit if _is_wide(schema, outputs) else f"{products} would take long"
        return f"a proximal Newton method with a working set of columns, because {reason}"

    def update_size(self, model: Array, progress: Array) -> int:
        """See `L1State.sums_size`."""
        return L1State.look(progress).sums_size

    def advance(self, model: Array, progress: Array, summed: Summed) -> tuple[Array, Array]:
        """See `steps`."""
        state = L1State.take(progress)
        with np.errstate(over="ignore", invalid="ignore"):  # of squares beyond all numbers; the gap is then NaN
            following = steps.advance(state, model, summed.delta, self._objective)
        return following, state.encode()

    def primal_and_dual(self, model: Array, report: Report) -> tuple[Array, Array]:
        """P and D per output at a certificate, each of shape (outputs,), float64.

        D of a squared loss is unknown, minus infinity, where the means are those of other rows.
        """
        state, metrics, objective = _state_of(report), report.metrics, self._objective
        assert report.rebuilt is not None
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
        return _state_of(report).floor

    def has_last_word(self, report: Report) -> bool:
        """See `CertifiedTrainer`: of a squared loss also after a solution that has followed it."""
        state = _state_of(report)
        return state.num_refused >= PATIENCE and not state.has_last_word

    def estimate(self, model: Array, report: Report) -> tuple[float, bool]:
        """See `CertifiedTrainer`."""
        state = L1State.look(report.progress)
        return max(output.gap for output in state.outputs), state.is_at_rest


@dataclass(frozen=True, slots=True, kw_only=True)
class L1Trainer(ColumnsTrainer):
    """Linear classifier with an l1 penalty, binary or one-vs-rest.

    Attributes:
        loss: "squared_hinge", "modified_huber" or "logistic".
        C: Factor of the sum of losses, > 0.
        l1_ratio: Share of the l1 penalty, above 0 and up to 1; the rest is that of 1/2 |w|^2.
        tol: Relative duality gap, per output, at which to stop; 0 for never.
        intercept_scaling: Value of the constant column; 0 for no intercept.
        penalises_intercept: Whether the weight of that column is penalised like the others.
        class_weights: Factor of C per class code; None for 1.
    """

    name = "L1"
    loss: str = "logistic"
    C: float = 1.0
    l1_ratio: float = 1.0
    tol: float = 1e-3
    intercept_scaling: float = 1.0
    penalises_intercept: bool = False
    class_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if Loss.named(self.loss) is Loss.HINGE:
            raise UsageError("an l1 penalty comes with the losses 'squared_hinge' and 'logistic', got loss='hinge'")
        if not 0 < self.C < np.inf or not 0 < self.l1_ratio <= 1 or not self.tol >= 0:
            raise UsageError(
                "a classifier with an l1 penalty needs C > 0, l1_ratio above 0 and up to 1 and tol >= 0, got "
                f"C={self.C}, l1_ratio={self.l1_ratio}, tol={self.tol}"
            )

    @property
    def _objective(self) -> Objective:
        return Objective(
            loss=Loss.named(self.loss),
            l1=self.l1_ratio,
            l2=1.0 - self.l1_ratio,
            has_free_intercept=self.intercept_scaling != 0 and not self.penalises_intercept,
            tol=self.tol,
        )

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task; numba is imported here and not before."""
        from chicle_elastic.solvers.linear.l1.solver import L1Solver
        from chicle_elastic.solvers.linear.tables import Bounds

        bounds = Bounds(C=float(self.C), class_weights=self.class_weights)
        return L1Solver(ctx, objective=self._objective, bounds=bounds, intercept=float(self.intercept_scaling))


@dataclass(frozen=True, slots=True, kw_only=True)
class LassoTrainer(ColumnsTrainer):
    """Linear regression with squared loss and l1 and l2 penalties, as scikit-learn's Lasso and ElasticNet have it.

    Attributes:
        alpha: Factor of both penalties, > 0.
        l1_ratio: Share of the l1 penalty, 0 to 1; 1 is the lasso. Wide data needs more than 0.
        tol: Relative duality gap at which to stop; 0 for never.
        has_intercept: Whether there is an intercept, which is not penalised.
    """

    name = "ElasticNet"
    alpha: float = 1.0
    l1_ratio: float = 1.0
    tol: float = 1e-6
    has_intercept: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf or not 0 <= self.l1_ratio <= 1 or not self.tol >= 0:
            raise UsageError(
                "lasso and elastic net need alpha > 0, l1_ratio from 0 to 1 and tol >= 0, got "
                f"alpha={self.alpha}, l1_ratio={self.l1_ratio}, tol={self.tol}"
            )

    @property
    def _objective(self) -> Objective:
        l1, l2 = self.alpha * self.l1_ratio, self.alpha * (1.0 - self.l1_ratio)
        return Objective(loss=None, l1=l1, l2=l2, has_free_intercept=self.has_intercept, tol=self.tol)

    def _outputs(self, schema: DataSchema) -> int:
        return 1

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """Zeros.

        Raises:
            UsageError: The targets are class codes, or there is no l1 penalty on so many features.
        """
        if schema.target_dtype == "int32":
            raise UsageError(
                "l1 penalties come with the squared loss of real targets, but those of the data are class codes "
                "(int32); pass y as floats, or convert the data with --regression"
            )
        if self.l1_ratio == 0 and not is_narrow(schema):
            raise UsageError(
                f"l1_ratio=0 takes up to {MOST_COLUMNS - 1} features, because no weight is then 0, and the data has "
                f"{schema.num_features}; use ChicleRidge(alpha=alpha * n_samples), which has the same solution"
            )
        return ColumnsTrainer.init(self, schema, rng)

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task; numba is imported here and not before."""
        from chicle_elastic.solvers.linear.l1.solver import L1Solver
        from chicle_elastic.solvers.linear.target_rows import OF_SAMPLES

        return L1Solver(ctx, objective=self._objective, bounds=OF_SAMPLES, intercept=float(self.has_intercept))


def _state_of(report: Report) -> L1State:
    assert report.rebuilt is not None, "only a certificate has P and D"
    return L1State.look(report.progress)


def _is_wide(schema: DataSchema, outputs: int) -> bool:
    """Whether products of all columns are too many for a message."""
    return most_block_columns(outputs) <= schema.num_features
