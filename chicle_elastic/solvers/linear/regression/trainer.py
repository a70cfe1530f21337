"""Regression with an l2 penalty: the model, the method, and when to stop. See `losses` for P and D."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import NO_PROGRESS, Context, Report, Solver, Summed
from chicle_elastic.solvers.linear.agreement import squared
from chicle_elastic.solvers.linear.certified import LEAST_SHARE, TINY, CertifiedTrainer, one_output
from chicle_elastic.solvers.linear.methods import is_narrow, newton_state
from chicle_elastic.solvers.linear.newton import steps
from chicle_elastic.solvers.linear.newton.state import NewtonState, Problem
from chicle_elastic.solvers.linear.regression.losses import EpsilonInsensitive, RegressionLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionTrainer(CertifiedTrainer):
    """Linear regression with any of `losses`.

    Attributes:
        loss: The loss.
        C: Factor of the losses, > 0.
        alpha: Factor of 1/2 |w|^2, > 0.
        is_mean: The losses count as their mean, by weight, and not as their sum.
        tol: Relative duality gap at which to stop; 0 for never.
        intercept_scaling: Value of the constant column; 0 for no intercept.
        penalises_intercept: Whether the weight of that column is penalised like the others.
    """

    name = "Regression"
    machines: ClassVar[Any] = {NewtonState: steps}
    sums = "loss", "lack", "squares", "total", "scores", "rows"
    loss: RegressionLoss = field(default_factory=EpsilonInsensitive)
    C: float = 1.0
    alpha: float = 1.0
    is_mean: bool = False
    tol: float = 1e-3
    intercept_scaling: float = 1.0
    penalises_intercept: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.loss, RegressionLoss):
            raise UsageError(f"a regression needs a RegressionLoss as its loss, got {self.loss!r}")
        if not 0 < self.C < np.inf or not 0 < self.alpha < np.inf or not self.tol >= 0:
            raise UsageError(
                f"a regression needs C > 0, alpha > 0 and tol >= 0, got C={self.C}, alpha={self.alpha}, tol={self.tol}"
            )

    @property
    def _has_free_intercept(self) -> bool:
        return self.intercept_scaling != 0 and not self.penalises_intercept

    @property
    def problem(self) -> Problem:
        """See `CertifiedTrainer`."""
        return Problem(
            loss=self.loss,
            alpha=self.alpha,
            is_mean=self.is_mean,
            has_free_intercept=self._has_free_intercept,
            tol=self.tol,
        )

    def num_outputs(self, schema: DataSchema) -> int:
        """See `one_output`."""
        return one_output(schema)

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task; numba is imported here and not before."""
        from chicle_elastic.solvers.linear.regression.solver import RegressionSolver

        return RegressionSolver(ctx, self)

    def _first_state(self, schema: DataSchema, model: Array, num_tasks: int) -> NewtonState:
        state = newton_state(None, schema, num_outputs=1, num_tasks=num_tasks)
        if not state.has_all_columns:  # columns hang together, and a block of some is worse than none
            state.block_columns, state.row_step = 0, 1
        state.is_rough = self.loss.is_parabola and schema.dtype != "float64" and schema.kind != "csr" and state.is_exact
        return steps.start(state, self.problem, model)

    def method(self, schema: DataSchema, num_tasks: int) -> str:
        """In words for the user."""
        columns = f"second derivatives of {schema.num_features + 1} columns"
        if is_narrow(schema):
            return f"Newton's method on chunks, because {columns} fit into a message"
        return f"Newton's method on chunks by conjugate gradients, because {columns} do not fit into a message"

    def update_size(self, model: Array, progress: Array) -> int:
        """Return the length of the sums; after several passes w and the state follow."""
        state = NewtonState.look(progress)
        return state.sums_size(self.problem) + (len(model) + state.room if state.passes > 1 else 0)

    def advance(self, model: Array, progress: Array, summed: Summed) -> tuple[Array, Array]:
        """See `newton.steps`; an only task may have gone on itself."""
        state = NewtonState.look(progress)
        reached = summed.delta[state.sums_size(self.problem) :] if state.passes > 1 else NO_PROGRESS
        if NewtonState.is_of(reached[len(model) :]):
            return reached[: len(model)].copy(), NewtonState.decode(reached[len(model) :]).encode()
        return CertifiedTrainer.advance(self, model, progress, summed)

    @np.errstate(over="ignore", invalid="ignore")
    def primal_and_dual(self, model: Array, report: Report) -> tuple[float, float]:
        """P and D at a certificate.

        What rounding leaves of the sum of the duals beside an intercept b that is not penalised, times 2 |b| and the
        mean size of the targets (1 where scores are logarithms), is taken from D: a bound for intercepts up to that.
        """
        assert report.rebuilt is not None, "only a certificate has P and D"
        metrics, v, problem = report.metrics, report.rebuilt, self.problem
        state = NewtonState.look(report.progress)
        output = state.outputs[0]
        alpha = self.alpha * (metrics["total"] if self.is_mean else 1.0)
        lack, is_centred = metrics["lack"], self._has_free_intercept and self.loss.is_parabola
        if is_centred:
            mean = v[-1] / max(metrics["total"], TINY)
            lack -= mean * (metrics["scores"] + 0.25 * mean * metrics["total"])
            v = v - v[-1] * output.beside / max(float(output.beside[-1]), TINY)
        w, of_duals = problem.penalised(model), problem.penalised(v) / alpha
        primal = 0.5 * alpha * squared(w) + metrics["loss"]
        lack += 0.5 * alpha * squared(w - of_duals)
        if is_centred and (metrics["rows"] != state.num_rows or not output.beside.any()):  # the means are of other rows
            lack = primal
        elif self._has_free_intercept and not is_centred:
            unit = state.typical if self.loss.is_of_residuals else 1.0
            lack += (2.0 * abs(model[-1]) + unit) * abs(v[-1]) - model[-1] * v[-1]
        if self.loss.has_scale:  # too large duals are made smaller: their part of D is linear, the norm a square
            share = min(1.0, math.sqrt(4.0 * metrics["total"] / max(metrics["squares"], TINY)))
            norm = 0.5 * alpha * squared(of_duals)
            lack += (1.0 - share) * (primal - lack + norm) - (1.0 - share * share) * norm
        dual = max(0.0, primal - lack)  # 0 is that of no duals
        total = max(metrics["total"], TINY) if self.is_mean else 1.0
        return primal / total, dual / total

    def floor(self, report: Report) -> float:
        """See `CertifiedTrainer`."""
        state = NewtonState.look(report.progress)
        return state.floor / (state.total if self.is_mean else 1.0)

    def has_last_word(self, report: Report) -> bool:
        """See `CertifiedTrainer`."""
        return NewtonState.look(report.progress).share <= LEAST_SHARE

    def scale(self, report: Report) -> float:
        """Return the scale of a loss that has one, as of a certificate."""
        return NewtonState.look(report.progress).outputs[0].theta
