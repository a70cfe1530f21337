"""Losses of classifiers as Newton's method has them: of scores, with targets of 1 and -1. See `objectives`."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.objectives import Loss, dual_values, each_loss_and_slope, primal_losses
from chicle_elastic.solvers.linear.regression.losses import RegressionLoss


def margin_loss(loss: Loss) -> RegressionLoss:
    """Return the loss of a classifier."""
    return HingeLoss() if loss is Loss.HINGE else SmoothLoss(loss)


@dataclass(frozen=True, slots=True)
class HingeLoss(RegressionLoss):
    """max(0, 1 - y z); round with h(t) = (t + sqrt(t^2 + width^2)) / 2 of t = 1 - y z, see `EpsilonInsensitive`."""

    has_corners: ClassVar[bool] = True

    def values(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return f, round with theta > 0."""
        t = 1.0 - targets * scores
        if theta == 0.0:
            return np.maximum(t, 0.0)
        root = np.sqrt(t * t + theta * theta)
        return np.where(t > 0, 0.5 * (t + root), 0.5 * theta * theta / (root - np.minimum(t, 0.0)))

    def slopes(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return numbers between 0 and the target."""
        t = 1.0 - targets * scores
        return np.asarray(0.5 * targets * (1.0 + t / np.sqrt(t * t + theta * theta)))

    def curvatures(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return those of the round loss, which is curved everywhere."""
        return self.curvatures_beside(self.slopes(scores, targets, theta), scores, targets, theta)

    def curvatures_beside(self, duals: Array, scores: Array, targets: Array, theta: float) -> Array:
        """See `EpsilonInsensitive`: of the equation root(t) (2 y a - 1) = t."""
        t = 1.0 - targets * scores
        root = np.sqrt(t * t + theta * theta)
        of_corner = np.clip(2.0 * targets * duals - 1.0, -1.0, 1.0)
        return np.asarray(0.5 * (1.0 - of_corner * t / root) / root)

    def dual_values(self, duals: Array, scores: Array, targets: Array) -> Array:
        """Return y a - a z."""
        return np.asarray(duals * (targets - scores))

    def clipped(self, duals: Array, targets: Array) -> Array:
        """Return duals between 0 and the target."""
        return np.asarray(targets * np.clip(targets * duals, 0.0, 1.0))


@dataclass(frozen=True, slots=True)
class SmoothLoss(RegressionLoss):
    """One of `objectives` that has derivatives."""

    loss: Loss = Loss.LOGISTIC  # which

    @property
    def full_curvature(self) -> float | None:
        """See `RegressionLoss`."""
        return self.loss.most_curvature if self.loss.has_kinks else None

    @property
    def most_curvature(self) -> float:
        """See `RegressionLoss`."""
        return self.loss.most_curvature

    def at(self, scores: Array, targets: Array, theta: float) -> tuple[Array, Array, Array]:
        """Return losses, slopes and curvatures, which have most of the work in common."""
        losses, slopes, curvatures = each_loss_and_slope(self.loss, targets * scores, np.ones(len(scores)))
        slopes *= targets
        return losses, slopes, curvatures

    def values(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return f."""
        return primal_losses(self.loss, targets * scores, np.ones(()))

    def slopes(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return numbers with the sign of the target."""
        return self.at(scores, targets, theta)[1]

    def curvatures(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return the second derivatives; with kinks they are 0 or the largest one."""
        return self.at(scores, targets, theta)[2]

    def dual_values(self, duals: Array, scores: Array, targets: Array) -> Array:
        """Return the dual of `objectives`, less a z."""
        return np.asarray(
            dual_values(self.loss, self.clipped(duals, targets) * targets, np.ones(len(duals))) - duals * scores
        )

    def clipped(self, duals: Array, targets: Array) -> Array:
        """Return duals between 0 and the target, times the largest slope."""
        return np.asarray(targets * np.clip(targets * duals, 0.0, self.loss.most_slope))
