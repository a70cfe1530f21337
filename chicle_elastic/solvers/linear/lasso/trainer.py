"""Lasso and elastic net: the model, the method, and when to stop. See `steps` for the objective and its gap."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import Context, Report, Solver, Summed
from chicle_elastic.solvers.linear.certified import CertifiedTrainer, is_narrow
from chicle_elastic.solvers.linear.lasso import steps
from chicle_elastic.solvers.linear.lasso.state import PATIENCE, LassoPhase, LassoState
from chicle_elastic.solvers.linear.methods import MOST_COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class LassoTrainer(CertifiedTrainer):
    """Linear regression with squared loss and l1 and l2 penalties, as scikit-learn's Lasso and ElasticNet have it.

    The model is w and the intercept, shape (num_features + 1,), float64.

    Attributes:
        alpha: Factor of both penalties, > 0.
        l1_ratio: Share of the l1 penalty, 0 to 1; 1 is the lasso. Wide data needs more than 0.
        tol: Relative duality gap at which to stop; 0 for never.
        has_intercept: Whether there is an intercept, which is not penalised.
    """

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
    def _penalty(self) -> steps.Penalty:
        return steps.Penalty(l1=self.alpha * self.l1_ratio, l2=self.alpha * (1.0 - self.l1_ratio))

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
        return np.zeros(schema.num_features + 1)

    def identity(self) -> Mapping[str, Any]:
        """What decides the optimum."""
        return {
            "trainer": "ElasticNet",
            "alpha": self.alpha,
            "l1_ratio": self.l1_ratio,
            "has_intercept": self.has_intercept,
        }

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """Of `evaluate`: see `steps.Residuals`, and the number of rows."""
        return ("losses", "squares", "products", "rows")

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task; numba is imported here and not before."""
        from chicle_elastic.solvers.linear.lasso.solver import LassoSolver

        return LassoSolver(ctx, penalty=self._penalty, tol=self.tol, has_intercept=self.has_intercept)

    def begin(self, schema: DataSchema, model: Array, progress: Array, num_tasks: int) -> Array:
        """Begin with a look at the data, and again after a certificate that was not good enough."""
        if not LassoState.is_of(progress):
            is_sparse = schema.kind == "csr"
            is_rough = schema.dtype == "float32" and not is_sparse
            return LassoState.fresh(
                schema.num_features, is_sparse=is_sparse, is_rough=is_rough, is_narrow=is_narrow(schema)
            ).encode()
        if LassoState.look(progress).phase is not LassoPhase.REST:
            return progress
        state = LassoState.take(progress)
        steps.reopen(state)
        return state.encode()

    def method(self, schema: DataSchema, num_tasks: int) -> str:
        """In words for the user."""
        d = schema.num_features
        if is_narrow(schema):
            return f"coordinate descent on sums over chunks, because products of {d} columns fit into a message"
        return f"a working set of columns, because products of {d} columns do not fit into a message"

    def update_size(self, model: Array, progress: Array) -> int:
        """See `LassoState.sums_size`."""
        return LassoState.look(progress).sums_size

    def advance(self, model: Array, progress: Array, summed: Summed) -> tuple[Array, Array]:
        """See `steps`."""
        state = LassoState.take(progress)
        with np.errstate(over="ignore", invalid="ignore"):  # of squares beyond all numbers; the gap is then NaN
            following = steps.advance(
                state, model, summed.delta, penalty=self._penalty, tol=self.tol, has_intercept=self.has_intercept
            )
        return following, state.encode()

    def primal_and_dual(self, model: Array, report: Report) -> tuple[float, float]:
        """P and D at a certificate; D is unknown, minus infinity, where the means are those of other rows."""
        assert report.rebuilt is not None, "only a certificate has P and D"
        state = LassoState.look(report.progress)
        found = steps.Residuals(
            total=float(report.rebuilt[-1]),
            losses=report.metrics["losses"],
            squares=report.metrics["squares"],
            products=report.metrics["products"],
            part=report.rebuilt[:-1],
        )
        with np.errstate(over="ignore", invalid="ignore"):
            primal, dual, _ = steps.bounds(state, model[:-1], found, self._penalty, has_intercept=self.has_intercept)
        return primal, dual if report.metrics["rows"] == state.num_rows else -np.inf

    def floor(self, report: Report) -> float:
        """See `CertifiedTrainer`."""
        return steps.floor(_state_of(report))

    def has_last_word(self, report: Report) -> bool:
        """See `CertifiedTrainer`: also after a solution that has followed it."""
        state = _state_of(report)
        return state.num_refused > PATIENCE and not state.has_last_word

    def estimate(self, model: Array, report: Report) -> tuple[float, bool]:
        """See `CertifiedTrainer`."""
        state = LassoState.look(report.progress)
        return steps.relative_gap(state), state.phase is LassoPhase.REST


def _state_of(report: Report) -> LassoState:
    assert report.rebuilt is not None, "only a certificate has P and D"
    return LassoState.look(report.progress)
