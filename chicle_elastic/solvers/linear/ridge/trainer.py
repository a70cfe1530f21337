"""Ridge regression: the model, the method, and when to stop. See `steps` for the objective and its gap."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import Context, Report, Solver, Summed
from chicle_elastic.solvers.linear.agreement import squared
from chicle_elastic.solvers.linear.certified import TINY, CertifiedTrainer, is_narrow
from chicle_elastic.solvers.linear.ridge import steps
from chicle_elastic.solvers.linear.ridge.state import RidgePhase, RidgeState


@dataclass(frozen=True, slots=True, kw_only=True)
class RidgeTrainer(CertifiedTrainer):
    """Linear regression with squared loss and l2 penalty, as scikit-learn's Ridge has it.

    The model is w and the intercept, shape (num_features + 1,), float64.

    Attributes:
        alpha: Factor of |w|^2, > 0.
        tol: Relative duality gap at which to stop; 0 for never.
        has_intercept: Whether there is an intercept, which is not penalised.
    """

    alpha: float = 1.0
    tol: float = 1e-6
    has_intercept: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf or not self.tol >= 0:
            raise UsageError(f"ridge regression needs alpha > 0 and tol >= 0, got alpha={self.alpha}, tol={self.tol}")

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """Zeros.

        Raises:
            UsageError: The targets are class codes.
        """
        if schema.target_dtype == "int32":
            raise UsageError(
                "a regression needs real targets, but those of the data are class codes (int32); pass y as floats, or "
                "convert the data with --regression"
            )
        return np.zeros(schema.num_features + 1)

    def identity(self) -> Mapping[str, Any]:
        """What decides the optimum."""
        return {"trainer": "Ridge", "alpha": self.alpha, "has_intercept": self.has_intercept}

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """Of `evaluate`: sum of s_i r_i^2, and of s_i."""
        return ("loss", "weight", "changes")

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task; numba is imported here and not before."""
        from chicle_elastic.solvers.linear.ridge.solver import RidgeSolver

        return RidgeSolver(ctx, has_intercept=self.has_intercept)

    def begin(self, schema: DataSchema, model: Array, progress: Array, num_tasks: int) -> Array:
        """Begin with a look at the data, and again after a certificate that was not good enough."""
        if not RidgeState.is_of(progress):
            d = schema.num_features
            is_sparse = schema.kind == "csr"
            is_rough = schema.dtype == "float32" and not is_sparse
            has_factor = is_narrow(schema)
            return RidgeState.fresh(d, is_sparse=is_sparse, is_rough=is_rough, has_factor=has_factor).encode()
        state = RidgeState.decode(progress)
        if state.phase is not RidgePhase.REST:
            return progress
        steps.reopen(state)
        return state.encode()

    def method(self, schema: DataSchema, num_tasks: int) -> str:
        """In words for the user."""
        if is_narrow(schema):
            return (
                "a Newton step on chunks, because of the squared loss, and second derivatives of "
                f"{schema.num_features} columns fit into a message"
            )
        return f"conjugate gradients, because of the squared loss and {schema.num_features} columns"

    def update_size(self, model: Array, progress: Array) -> int:
        """See `RidgeState.sums_size`."""
        return RidgeState.look(progress).sums_size

    def advance(self, model: Array, progress: Array, summed: Summed) -> tuple[Array, Array]:
        """See `steps`."""
        state = RidgeState.decode(progress)
        with np.errstate(over="ignore", invalid="ignore"):  # of squares beyond all numbers; the gap is then NaN
            following = steps.advance(
                state,
                model,
                summed.delta,
                summed.weight,
                alpha=self.alpha,
                tol=self.tol,
                has_intercept=self.has_intercept,
            )
        return following, state.encode()

    def primal_and_dual(self, model: Array, report: Report) -> tuple[float, float]:
        """P and D at a certificate; D is that of residuals less their weighted mean, where there is an intercept."""
        assert report.rebuilt is not None, "only a certificate has P and D"
        state = RidgeState.look(report.progress)
        w, part, total = model[:-1], report.rebuilt[:-1], float(report.rebuilt[-1])
        primal = report.metrics["loss"] + self.alpha * squared(w)
        gap = squared(steps.centred(state, part, total) - self.alpha * w) / self.alpha + report.metrics["changes"]
        if self.has_intercept:
            gap += total * total / max(report.metrics["weight"], TINY)
        is_rounding = primal <= steps.floor(state)  # then no duals at all, whose D is 0, are good enough
        return primal, max(primal - gap, 0.0) if is_rounding else primal - gap

    def floor(self, report: Report) -> float:
        """See `CertifiedTrainer`."""
        return steps.floor(_state_of(report))

    def has_last_word(self, report: Report) -> bool:
        """See `CertifiedTrainer`."""
        return _state_of(report).share <= steps.LEAST_SHARE

    def estimate(self, model: Array, report: Report) -> tuple[float, bool]:
        """See `CertifiedTrainer`."""
        state = RidgeState.look(report.progress)
        return steps.relative_gap(state), state.phase is RidgePhase.REST


def _state_of(report: Report) -> RidgeState:
    assert report.rebuilt is not None, "only a certificate has P and D"
    return RidgeState.look(report.progress)
