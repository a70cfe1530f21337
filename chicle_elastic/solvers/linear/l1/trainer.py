"""Classifiers with an l1 penalty: the model, the method, and when to stop. See `objective` and `steps`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import Context, Report, Solver, Summed
from chicle_elastic.solvers.linear.certified import CertifiedTrainer
from chicle_elastic.solvers.linear.l1 import steps
from chicle_elastic.solvers.linear.l1.objective import Objective
from chicle_elastic.solvers.linear.l1.state import L1State
from chicle_elastic.solvers.linear.methods import CHEAP_COLUMNS, CHEAP_PRODUCTS, most_block_columns
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.trainer import num_outputs

PATIENCE = 3
"""Certificates that are refused before one that brings nothing ends the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class L1Trainer(CertifiedTrainer):
    """Linear classifier with an l1 penalty, binary or one-vs-rest; all outputs share an iteration.

    The model is w of shape (outputs, num_features + 1), flattened; the last column belongs to the intercept column.

    Attributes:
        loss: "squared_hinge" or "logistic".
        C: Factor of the sum of losses, > 0.
        l1_ratio: Share of the l1 penalty, above 0 and up to 1; the rest is that of 1/2 |w|^2.
        tol: Relative duality gap, per output, at which to stop; 0 for never.
        intercept_scaling: Value of the constant column; 0 for no intercept.
        penalises_intercept: Whether the weight of that column is penalised like the others.
        class_weights: Factor of C per class code; None for 1.
    """

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
        )

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """Zeros, shape (outputs * (num_features + 1),), float64."""
        return np.zeros(num_outputs(schema) * (schema.num_features + 1))

    def identity(self) -> Mapping[str, Any]:
        """What decides the optimum."""
        return {
            "trainer": "L1",
            "loss": self.loss,
            "C": self.C,
            "l1_ratio": self.l1_ratio,
            "intercept_scaling": self.intercept_scaling,
            "penalises_intercept": self.penalises_intercept,
            "class_weights": self.class_weights,
        }

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """Of `evaluate`, per output k: sums of losses, of dual values and of duals."""
        return tuple(f"{name}/{k}" for k in range(num_outputs(schema)) for name in ("loss", "dual", "mass"))

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task; numba is imported here and not before."""
        from chicle_elastic.solvers.linear.l1.solver import L1Solver
        from chicle_elastic.solvers.linear.tables import Bounds

        bounds = Bounds(C=float(self.C), class_weights=self.class_weights)
        return L1Solver(ctx, objective=self._objective, bounds=bounds, intercept=float(self.intercept_scaling))

    def begin(self, schema: DataSchema, model: Array, progress: Array, num_tasks: int) -> Array:
        """Begin with a look at the data, and again after a certificate that was not good enough."""
        is_alone = _has_columns(schema, num_tasks)
        if L1State.is_of(progress):
            state = L1State.look(progress)
            if not state.is_at_rest and state.from_columns == is_alone:
                return progress
            state = L1State.take(progress)
            if state.is_at_rest:
                steps.reopen(state)
        else:
            outputs = num_outputs(schema)
            state = L1State.fresh(
                outputs,
                schema.num_features + 1,
                is_whole=_is_whole(schema),
                is_rough=schema.dtype == "float32" and schema.kind != "csr",
                most_columns=most_block_columns(outputs),
                num_sides=self._objective.num_sides,
            )
        steps.set_alone(state, model, self._objective, is_alone=is_alone)
        return state.encode()

    def method(self, schema: DataSchema, num_tasks: int) -> str:
        """In words for the user."""
        outputs, D = num_outputs(schema), schema.num_features + 1
        products = f"products of {D} columns and {outputs} output{'s' if outputs > 1 else ''}"
        if _is_whole(schema):
            return f"a proximal Newton method on chunks, because {products} cost little"
        do_not_fit = f"{products} do not fit into a message"
        if _has_columns(schema, num_tasks):
            return f"a proximal Newton method on the columns of one task, because {do_not_fit}"
        reason = do_not_fit if _is_wide(schema) else f"{products} would take long"
        return f"a proximal Newton method with a working set of columns, because {reason}"

    def update_size(self, model: Array, progress: Array) -> int:
        """See `L1State.sums_size`."""
        return L1State.look(progress).sums_size

    def advance(self, model: Array, progress: Array, summed: Summed) -> tuple[Array, Array]:
        """See `steps`."""
        state = L1State.take(progress)
        with np.errstate(over="ignore", invalid="ignore"):  # of squares beyond all numbers; the gap is then NaN
            following = steps.advance(state, model, summed.delta, self._objective, tol=self.tol)
        return following, state.encode()

    def primal_and_dual(self, model: Array, report: Report) -> tuple[Array, Array]:
        """P and D per output at a certificate, each of shape (outputs,), float64."""
        assert report.rebuilt is not None, "only a certificate has P and D"
        outputs = sum(name.startswith("dual/") for name in report.metrics)
        objective, metrics = self._objective, report.metrics
        primal, dual = np.empty(outputs), np.empty(outputs)
        with np.errstate(over="ignore", invalid="ignore"):
            for k, (w, v) in enumerate(zip(*(a.reshape(outputs, -1) for a in (model, report.rebuilt)), strict=True)):
                primal[k] = metrics[f"loss/{k}"] + objective.penalty(w)
                dual[k] = objective.certified(metrics[f"dual/{k}"], v, metrics[f"mass/{k}"])
        return primal, dual

    def has_last_word(self, report: Report) -> bool:
        """See `CertifiedTrainer`."""
        return L1State.look(report.progress).num_refused >= PATIENCE

    def estimate(self, model: Array, report: Report) -> tuple[float, bool]:
        """See `CertifiedTrainer`."""
        state = L1State.look(report.progress)
        return max(output.gap for output in state.outputs), state.is_at_rest


def _is_wide(schema: DataSchema) -> bool:
    """Whether products of all columns are too many for a message."""
    return most_block_columns(num_outputs(schema)) <= schema.num_features


def _is_whole(schema: DataSchema) -> bool:
    """Whether products of all columns fit into a message, and cost little beside reading the rows."""
    D = schema.num_features + 1
    return not _is_wide(schema) and (D <= CHEAP_COLUMNS or schema.num_rows * D * D // 2 <= CHEAP_PRODUCTS)


def _has_columns(schema: DataSchema, num_tasks: int) -> bool:
    """Whether one task has all rows, and their columns are the way to go."""
    return num_tasks == 1 and schema.kind == "csr" and _is_wide(schema)
