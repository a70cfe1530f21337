"""Support vector regression: the model, the method, and when to stop. See `losses` for the objective and its dual."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import Context, Report, Solver, Summed
from chicle_elastic.solvers.linear.agreement import squared
from chicle_elastic.solvers.linear.certified import CertifiedTrainer, is_narrow
from chicle_elastic.solvers.linear.methods import MOST_COLUMNS
from chicle_elastic.solvers.linear.svr import steps
from chicle_elastic.solvers.linear.svr.state import SvrPhase, SvrState

LOSSES = ("epsilon_insensitive", "squared_epsilon_insensitive")


@dataclass(frozen=True, slots=True, kw_only=True)
class SvrTrainer(CertifiedTrainer):
    """Linear support vector regression, as scikit-learn's LinearSVR has it.

    The model is w, shape (num_features + 1,), float64; the last value belongs to the intercept column.

    Attributes:
        loss: One of `LOSSES`.
        C: Factor of the sum of losses, > 0.
        epsilon: Residuals up to this cost nothing, >= 0.
        tol: Relative duality gap at which to stop; 0 for never.
        intercept_scaling: Value of the constant column; 0 for no intercept.
    """

    loss: str = "epsilon_insensitive"
    C: float = 1.0
    epsilon: float = 0.0
    tol: float = 1e-3
    intercept_scaling: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise UsageError(f"there is no loss {self.loss!r}; choose one of {', '.join(map(repr, LOSSES))}")
        if not 0 < self.C < np.inf or not 0 <= self.epsilon < np.inf or not self.tol >= 0:
            raise UsageError(
                f"support vector regression needs C > 0, epsilon >= 0 and tol >= 0, got C={self.C}, "
                f"epsilon={self.epsilon}, tol={self.tol}"
            )

    @property
    def _is_squared(self) -> bool:
        return self.loss == "squared_epsilon_insensitive"

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """Zeros.

        Raises:
            UsageError: The targets are class codes, or the loss does not take so many features.
        """
        if schema.target_dtype == "int32":
            raise UsageError(
                "a regression needs real targets, but those of the data are class codes (int32); pass y as floats, or "
                "convert the data with --regression"
            )
        if not self._is_squared and not is_narrow(schema):
            raise UsageError(
                f"epsilon_insensitive takes up to {MOST_COLUMNS - 1} features, and the data has {schema.num_features}; "
                "use squared_epsilon_insensitive, select features, or fit sklearn.svm.LinearSVR"
            )
        return np.zeros(schema.num_features + 1)

    def identity(self) -> Mapping[str, Any]:
        """What decides the optimum."""
        return {
            "trainer": "SVR",
            "loss": self.loss,
            "C": self.C,
            "epsilon": self.epsilon,
            "intercept_scaling": self.intercept_scaling,
        }

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """Of `evaluate`: sums of losses and of dual values."""
        return ("loss", "dual")

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task; numba is imported here and not before."""
        from chicle_elastic.solvers.linear.svr.losses import Insensitive
        from chicle_elastic.solvers.linear.svr.solver import SvrSolver

        loss = Insensitive(epsilon=float(self.epsilon), is_squared=self._is_squared)
        return SvrSolver(ctx, loss=loss, C=float(self.C), intercept=float(self.intercept_scaling))

    def begin(self, schema: DataSchema, model: Array, progress: Array, num_tasks: int) -> Array:
        """Begin with a look at the data, and again after a certificate that was not good enough."""
        if not SvrState.is_of(progress):
            return SvrState.fresh(len(model), has_factor=is_narrow(schema)).encode()
        state = SvrState.decode(progress)
        if state.phase is not SvrPhase.REST:
            return progress
        steps.reopen(state)
        return state.encode()

    def method(self, schema: DataSchema, num_tasks: int) -> str:
        """In words for the user."""
        columns = f"second derivatives of {schema.num_features + 1} columns"
        if is_narrow(schema):
            return f"Newton's method on chunks, because {columns} fit into a message"
        return f"Newton's method on chunks by conjugate gradients, because {columns} do not fit into a message"

    def update_size(self, model: Array, progress: Array) -> int:
        """See `SvrState.sums_size`."""
        return SvrState.look(progress).sums_size

    def advance(self, model: Array, progress: Array, summed: Summed) -> tuple[Array, Array]:
        """See `steps`."""
        state = SvrState.decode(progress)
        with np.errstate(over="ignore", invalid="ignore"):  # of squares beyond all numbers; the gap is then NaN
            following = steps.advance(
                state, model, summed.delta, summed.weight, tol=self.tol, is_squared=self._is_squared
            )
        return following, state.encode()

    def primal_and_dual(self, model: Array, report: Report) -> tuple[float, float]:
        """P and D at a certificate."""
        assert report.rebuilt is not None, "only a certificate has P and D"
        loss, dual = report.metrics["loss"], report.metrics["dual"]
        primal = 0.5 * squared(model) + loss
        return primal, max(0.0, primal - (loss - dual) - 0.5 * squared(model - report.rebuilt))  # 0 is that of no duals

    def floor(self, report: Report) -> float:
        """See `CertifiedTrainer`."""
        return _state_of(report).floor

    def has_last_word(self, report: Report) -> bool:
        """See `CertifiedTrainer`."""
        return _state_of(report).share <= steps.LEAST_SHARE

    def estimate(self, model: Array, report: Report) -> tuple[float, bool]:
        """See `CertifiedTrainer`."""
        state = SvrState.look(report.progress)
        return state.gap, state.phase is SvrPhase.REST


def _state_of(report: Report) -> SvrState:
    assert report.rebuilt is not None, "only a certificate has P and D"
    return SvrState.look(report.progress)
