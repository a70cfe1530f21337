"""The local part of a regression: the sums of a pass over the rows of one task."""

import copy
from dataclasses import dataclass, replace

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Budget, Context, Update
from chicle_elastic.solvers.linear.pass_solver import ALONE, HEAD, ROWS, PassSolver
from chicle_elastic.solvers.linear.regression import steps
from chicle_elastic.solvers.linear.regression.state import (
    SHARES,
    Evaluation,
    RegressionPhase,
    RegressionState,
)
from chicle_elastic.solvers.linear.regression.steps import Problem
from chicle_elastic.solvers.linear.rows import ALL
from chicle_elastic.solvers.linear.target_rows import LocalRows


@dataclass(frozen=True, slots=True)
class _Point:
    """Keep what is known of all rows at a w.

    Attributes:
        model: w.
        scores: As the loss has them.
        slopes, curvatures: Of the loss.
        duals: Those that the step to w has foretold.
    """

    model: Array
    scores: Array
    slopes: Array
    curvatures: Array
    duals: Array

    def foretold(self, scores: Array) -> Array:
        """Return the duals of a loss with corners after a step that leads to these scores."""
        return np.minimum(np.maximum(self.slopes + self.curvatures * (self.scores - scores), -1.0), 1.0)


class RegressionSolver(PassSolver[RegressionState, LocalRows]):
    """One per uni-task.

    Args:
        ctx: Of the task.
        problem: What is minimised.
        C: Factor of the losses.
        intercept: Value of the intercept column; 0 for none.
    """

    state_type = RegressionState

    def __init__(self, ctx: Context, *, problem: Problem, C: float, intercept: float) -> None:
        super().__init__(ctx)
        self._problem, self._loss = problem, problem.loss
        self._C = C
        self._intercept = intercept
        self._upper = self._targets = np.zeros(0)
        self._known: tuple[Array, Array] | None = None
        self._best: Array | None = None
        self._points: list[_Point] = []  # with corners: at the last w, and at the end of a direction from there

    def read_chunks(self) -> LocalRows:
        """Make tables of them.

        Raises:
            DataError: The loss does not have such targets.
        """
        local = LocalRows(self.chunks, intercept=self._intercept)
        self._upper = self._C * local.weights
        counts = local.weights > 0
        self._loss.require(local.targets[counts])
        self._targets = np.where(counts, 0.0 if self._loss.is_of_residuals else local.targets, 0.0)
        return local

    def forget(self) -> None:
        """Forget the scores, and duals: slopes will do."""
        self._known, self._best, self._points = None, None, []

    def _scores(self, model: Array) -> Array:
        """z_i at w, less y_i where targets are 0 for the loss, shape (num_rows,): one product of the rows per w."""
        if self._known is None or (self._known[0] != model).any():
            scores = -self.local.residuals(model) if self._loss.is_of_residuals else self.local.rows.times(model)
            self._known = model.copy(), scores
        return self._known[1]

    def solve(self, model: Array, budget: Budget) -> Update:
        """Make a pass over the local rows, or with little data and no other task several.

        Raises:
            DataError: A feature is NaN or infinite.
        """
        update, state = super().solve(model, budget), RegressionState.look(budget.progress)
        if state.passes == 1:
            return update
        room = np.zeros(len(model) + len(budget.progress))
        if budget.num_ranks == 1 and update.samples:
            room = self._go_on(copy.copy(state), model, update.delta, budget)
        return replace(update, delta=np.concatenate([update.delta, room]))

    def _go_on(self, state: RegressionState, model: Array, sums: Array, budget: Budget) -> Array:
        """Go on from a pass of the only task; returns w and the state, as the trainer would have them."""
        num_rows = sums[ROWS]
        with np.errstate(over="ignore", invalid="ignore"):  # as in the trainer
            model = steps.advance(state, self._problem, model, sums, 1.0)
            for _ in range(state.passes - 1):
                if state.phase in (RegressionPhase.LOOK, RegressionPhase.REST) or budget.is_spent():
                    break
                sums = np.zeros(state.sums_size)
                sums[ROWS], sums[ALONE] = num_rows, 1.0
                self.run_pass(state, model, sums, budget)
                model = steps.advance(state, self._problem, model, sums, 1.0)
        return np.concatenate([model, state.encode()])

    def run_pass(self, state: RegressionState, model: Array, sums: Array, budget: Budget) -> None:
        """See `RegressionState.sums_size`."""
        local, part = self.local, sums[HEAD:]
        y = local.targets if state.phase is RegressionPhase.LOOK else self._targets
        with np.errstate(over="ignore", invalid="ignore"):  # of steps that lead far beyond; they are not taken
            if state.phase is RegressionPhase.LOOK:
                local.weighted_sum()
                for number, values in enumerate((np.ones_like(y), np.abs(y), y, y * y)):
                    part[number] = self._upper @ values
            elif state.phase is RegressionPhase.EVALUATE:
                self._evaluate(state, model, state.evaluation(part))
            elif state.phase is RegressionPhase.MULTIPLY:
                point = self._point(model)
                scores = self._scores(model)
                curvatures = point.curvatures if point else self._loss.curvatures(scores, y, state.theta)
                curvatures = self._upper * curvatures
                part[: len(model)] = local.rows.curved_product(curvatures, state.conjugate)
                part[len(model) :] = state.conjugate
            elif state.phase is RegressionPhase.SEARCH:
                scores, changes = self._scores(model), local.rows.times(state.direction)
                for number, share in enumerate(SHARES):
                    step = state.reach * share
                    theta = state.theta + (0.0 if self._loss.has_corners else step * state.change)
                    losses = self._loss.values(scores + step * changes, y, theta)
                    part[number] = self._upper @ losses
                part[len(SHARES) :] = state.step

    def _point(self, model: Array) -> _Point | None:
        """Return what is known at w, of a loss with corners."""
        return next((point for point in self._points if (point.model == model).all()), None)

    def _best_duals(self, state: RegressionState) -> Array | None:
        """Return those with the largest D so far, of a loss with corners; None where they are not known."""
        return self._points[-1].duals if state.is_best and self._points else self._best

    def _evaluate(self, state: RegressionState, model: Array, found: Evaluation) -> None:
        rows, loss, upper, y, scalars = self.local.rows, self._loss, self._upper, self._targets, found.scalars
        there, theta = model + state.direction, state.theta + state.change
        scores = self._scores(there)
        found.step[:] = state.step
        slopes = duals = loss.slopes(scores, y, theta)
        scalars[0] = scalars[1] = upper @ loss.values(scores, y, theta)
        if loss.has_corners:
            self._best = self._best_duals(state)
            before = self._point(model)
            duals = before.foretold(scores) if before else slopes
            is_first = state.dual == -np.inf  # then a step has to come down from far above
            curvatures = loss.curvatures_beside(np.zeros(len(y)) if is_first else duals, scores, y, theta)
            here = _Point(there, scores, slopes, curvatures, duals)
            self._points = [before, here] if before else [here]
            sharp = float(upper @ loss.values(scores, y, 0.0))
            scalars[1], scalars[2] = sharp, sharp - upper @ loss.dual_values(duals, scores, y)
            scalars[7] = upper @ loss.values(scores, y, state.theta) if state.change else scalars[0]
            scalars[8] = sharp - upper @ loss.dual_values(slopes, scores, y)
            found.of_duals[:] = rows.weighted_sum(upper * duals)
        else:
            curvatures = loss.curvatures(scores, y, theta)
        curvatures = upper * curvatures
        if state.has_free_intercept:
            scalars[3:5] = upper @ np.maximum(duals, 0.0), upper @ np.maximum(-duals, 0.0)
        found.v[:] = rows.weighted_sum(upper * slopes)
        if state.has_factor and state.needs_products:
            rows.add_products(curvatures, ALL, found.second, is_rough=state.is_rough)
        elif state.needs_products:
            found.second[:] = rows.squares_sum(curvatures)
        if len(found.beside):
            found.beside[:] = rows.weighted_sum(curvatures)
        if state.has_scale:
            first, second, mixed = loss.by_scale(scores, y, theta)
            scalars[5:7] = upper @ first, upper @ second
            found.mixed[:] = rows.weighted_sum(upper * mixed)

    def evaluate(self, model: Array, progress: Array) -> Update:
        """Return as delta sum_i c_i a_i x_i of the duals; as metrics losses, these less dual values, sum c a^2, c
        and scores, and rows.

        The duals are the slopes at w + shift, and not at w; with corners those that the last step has foretold.
        """
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        local, state, loss = self.local, RegressionState.look(progress), self._loss
        y, point = self._targets, self._point(model)
        with np.errstate(over="ignore", invalid="ignore"):
            scores = self._scores(model)
            there = scores + local.rows.times(state.shift) if state.shift.any() else scores
            best = point.foretold(there) if point and state.shift.any() else self._best_duals(state)
            duals = loss.slopes(there, y, state.dual_theta) if best is None else best
            duals = duals * np.where(duals > 0, state.plus, state.minus)
            losses = loss.values(scores, y, 0.0 if loss.has_corners else state.theta)
            metrics = {
                "loss": float(self._upper @ losses),
                "lack": float(self._upper @ (losses - loss.dual_values(duals, scores, y))),
                "squares": float(self._upper @ (duals * duals)),
                "total": float(self._upper.sum()),
                "scores": float(self._upper @ scores),
                "rows": float(len(scores)),
            }
        return Update(delta=local.rows.weighted_sum(self._upper * duals), samples=0, weight=1.0, metrics=metrics)
