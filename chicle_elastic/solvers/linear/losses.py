"""Losses with their slopes, curvatures and duals, in plain NumPy. A new loss is one class here.

A loss f(z; y) is convex in the score z = <w, x> + b. With c_i = C * weight_i, the objective and its dual are

    P(w, b) = sum_i c_i f(z_i; y_i) + alpha/2 |w|^2
    D(a)    = sum_i c_i dual(a_i; y_i) - 1/(2 alpha) |v|^2,      v = sum_i c_i a_i x_i,   dual(a) = -f*(-a)

and a = -df/dz, the *slope*, is the best dual where z is right. dual(0) = 0: every loss here is 0 at its least. Where
the intercept is not penalised, sum_i c_i a_i has to be 0.

theta is a number that the steps choose: how wide corners are rounded off (`has_corners`), or the scale of the residuals
that is found with w (`has_scale`). Arguments and results are ndarrays of shape (n,), float64.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.solvers.linear.objectives import ROUNDING, Loss, dual_values, each_loss_and_slope, primal_losses


class RegressionLoss(ABC):
    """A convex loss of a score and a target.

    Attributes:
        has_corners: Whether it has corners, which are rounded off less and less.
        has_scale: Whether theta is the scale of the residuals, which the objective is minimised over, too.
        is_of_residuals: Whether it is one of y - z alone. Then it gets z - y as scores, with targets of 0: what a step
            changes has more digits there. False is always right.
        is_quadratic: Whether it grows as the square of large targets, and not as they do themselves.
    """

    has_corners: ClassVar[bool] = False
    has_scale: ClassVar[bool] = False
    is_of_residuals: ClassVar[bool] = False
    is_quadratic: ClassVar[bool] = False

    @property
    def is_parabola(self) -> bool:
        """Say whether it is (y - z)^2, whose second derivatives are the same everywhere."""
        return False

    @property
    def has_theta(self) -> bool:
        """Say whether theta means anything; then duals are those that a step foretells."""
        return self.has_corners or self.has_scale

    def sharp(self, theta: float) -> float:
        """Return the theta that the loss itself has."""
        return 0.0 if self.has_corners else theta

    @property
    def full_curvature(self) -> float | None:
        """Return the second derivative that a smooth loss has wherever it has one; None if it may be anything."""
        return None

    @property
    def most_curvature(self) -> float:
        """Return the largest second derivative of a smooth loss, or a large one; it damps steps with an l1 penalty."""
        return 2.0

    def at(self, scores: Array, targets: Array, theta: float) -> tuple[Array, Array, Array]:
        """Return `values`, `slopes` and `curvatures`."""
        arguments = scores, targets, theta
        return self.values(*arguments), self.slopes(*arguments), self.curvatures(*arguments)

    def clipped(self, duals: Array, targets: Array) -> Array:
        """Return feasible duals near these, of a loss with corners or a scale."""
        return np.minimum(np.maximum(duals, -1.0), 1.0)

    @abstractmethod
    def values(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return f; with corners and theta > 0 that of round ones."""

    @abstractmethod
    def slopes(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return a = -df/dz, which is a feasible dual of the sharp loss, too."""

    @abstractmethod
    def curvatures(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return d2f/dz2, >= 0."""

    def curvatures_beside(self, duals: Array, scores: Array, targets: Array, theta: float) -> Array:
        """Return what stands for d2f/dz2 where a step is meant to bring these duals nearer to the slopes."""
        return self.curvatures(scores, targets, theta)

    @abstractmethod
    def dual_values(self, duals: Array, scores: Array, targets: Array) -> Array:
        """Return dual(a; y) - a z."""

    def by_scale(self, scores: Array, targets: Array, theta: float) -> tuple[Array, Array, Array]:
        """Return df/dtheta, d2f/dtheta2 and d2f/dz dtheta, where theta is a scale."""
        raise NotImplementedError(f"{type(self).__name__} has no scale")

    def start(self, mean: float) -> float:
        """Return the score that all rows have at first beside a free intercept, from the mean of the targets."""
        return mean

    def require(self, targets: Array) -> None:  # noqa: B027 - most losses have all
        """Refuse targets that the loss does not have, with a DataError."""


@dataclass(frozen=True, slots=True)
class EpsilonInsensitive(RegressionLoss):
    """max(0, |y - z| - epsilon), as LinearSVR has it.

    The corner of max(0, t) is rounded off over a width: h(t) = (t + sqrt(t^2 + width^2)) / 2, and the round loss is
    h(r - epsilon) + h(-r - epsilon) - width of r = y - z (Chen and Mangasarian 1996, "A class of smoothing functions
    for nonlinear and mixed complementarity problems"). It is curved everywhere, so that a Newton step also knows of the
    rows that are not in the corner: with parabolas in it, steps lead nowhere once few rows are there.
    """

    epsilon: float = 0.0  # residuals up to this cost nothing, >= 0
    has_corners: ClassVar[bool] = True
    is_of_residuals: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_epsilon(self.epsilon, 0.0)

    def values(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return f, round with theta > 0."""
        residuals = targets - scores
        if theta == 0.0:
            return np.maximum(np.abs(residuals) - self.epsilon, 0.0)
        (t, above), (u, below) = self._corners(residuals, theta)
        if self.epsilon == 0.0:
            return np.asarray(t * t / (above + theta))
        return np.asarray(0.5 * (t * t / (above + theta) + u * u / (below + theta)) - self.epsilon)

    def slopes(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return numbers within [-1, 1]."""
        (t, above), (u, below) = self._corners(targets - scores, theta)
        return np.asarray(t / above if self.epsilon == 0.0 else 0.5 * (t / above + u / below))

    def curvatures(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return those of the round loss, which is curved everywhere."""
        return self.curvatures_beside(self.slopes(scores, targets, theta), scores, targets, theta)

    def curvatures_beside(self, duals: Array, scores: Array, targets: Array, theta: float) -> Array:
        """Return those of Newton's method for the equations root(t) a = t, of the residuals and the duals a together.

        Duals of 0 have the curvatures of a parabola that touches the loss and is nowhere below it, slopes have those
        of the loss: far from the optimum the former lead on where the latter are next to nothing (Chan, Golub and
        Mulet 1999, "A nonlinear primal-dual method for total variation-based image restoration").
        """
        residuals = targets - scores
        (t, above), (u, below) = self._corners(residuals, theta)
        if self.epsilon == 0.0:
            return np.asarray((1.0 - duals * t / above) / above)
        at = t / above, u / below
        is_above = residuals > 0  # the corner that is nearer has what the other one leaves of the dual
        of_above = np.where(is_above, np.clip(2.0 * duals - at[1], -1.0, 1.0), at[0])
        of_below = np.where(is_above, at[1], np.clip(2.0 * duals - at[0], -1.0, 1.0))
        return np.asarray(0.5 * ((1.0 - of_above * at[0]) / above + (1.0 - of_below * at[1]) / below))

    def dual_values(self, duals: Array, scores: Array, targets: Array) -> Array:
        """Return a (y - z) - epsilon |a|."""
        values = duals * (targets - scores)
        return values if self.epsilon == 0.0 else values - self.epsilon * np.abs(duals)

    def _corners(self, residuals: Array, width: float) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return t and sqrt(t^2 + width^2) of t = r - epsilon and of t = r + epsilon; without a tube they are one."""
        ts = (residuals,) if self.epsilon == 0.0 else (residuals - self.epsilon, residuals + self.epsilon)
        pairs = [(t, np.sqrt(t * t + width * width)) for t in ts]
        return pairs[0], pairs[-1]


@dataclass(frozen=True, slots=True)
class SquaredEpsilonInsensitive(RegressionLoss):
    """max(0, |y - z| - epsilon)^2, as LinearSVR has it; with epsilon = 0 the squared error."""

    epsilon: float = 0.0  # residuals up to this cost nothing, >= 0
    is_of_residuals: ClassVar[bool] = True
    is_quadratic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_epsilon(self.epsilon, 0.0)

    @property
    def is_parabola(self) -> bool:
        """Say whether there is no tube."""
        return self.epsilon == 0.0

    @property
    def full_curvature(self) -> float | None:
        """See `RegressionLoss`."""
        return None if self.is_parabola else 2.0

    def at(self, scores: Array, targets: Array, theta: float) -> tuple[Array, Array, Array]:
        """Return f and its derivatives; those of a parabola take a third of the work."""
        if not self.is_parabola:
            return RegressionLoss.at(self, scores, targets, theta)
        residuals = targets - scores
        return residuals * residuals, 2.0 * residuals, np.full(len(residuals), 2.0)

    def values(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return f."""
        excess = np.maximum(np.abs(targets - scores) - self.epsilon, 0.0)
        return np.asarray(excess * excess)

    def slopes(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return twice the excess, with the sign of the residual."""
        residuals = targets - scores
        return np.asarray(np.sign(residuals) * 2.0 * np.maximum(np.abs(residuals) - self.epsilon, 0.0))

    def curvatures(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return 2 outside of the tube, else 0."""
        return np.where(np.abs(targets - scores) >= self.epsilon, 2.0, 0.0)

    def dual_values(self, duals: Array, scores: Array, targets: Array) -> Array:
        """Return a (y - z) - epsilon |a| - a^2 / 4."""
        return np.asarray(duals * (targets - scores) - self.epsilon * np.abs(duals) - 0.25 * duals * duals)


@dataclass(frozen=True, slots=True)
class Huber(RegressionLoss):
    """sigma + sigma h((y - z) / sigma), h(t) = t^2 where |t| < epsilon, else 2 epsilon |t| - epsilon^2.

    It is convex in z and the scale sigma > 0 together (Owen 2007, "A robust hybrid of lasso and ridge regression";
    Huber and Ronchetti 2009, "Robust Statistics"), as scikit-learn's HuberRegressor has it. With sigma h(r / sigma) =
    max over |a| <= 2 epsilon of a r - sigma a^2 / 4 the dual is a y, where the least over sigma is finite:
    sum_i c_i a_i^2 <= 4 sum_i c_i.
    """

    epsilon: float = 1.35  # residuals beyond so many sigma count linearly, >= 1
    has_scale: ClassVar[bool] = True
    is_of_residuals: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_epsilon(self.epsilon, 1.0)

    def values(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return f."""
        residuals = targets - scores
        slopes = self.slopes(scores, targets, theta)
        return np.asarray(theta + slopes * residuals - 0.25 * theta * slopes * slopes)

    def slopes(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return numbers within [-2 epsilon, 2 epsilon]."""
        return np.asarray(2.0 * np.clip((targets - scores) / theta, -self.epsilon, self.epsilon))

    def curvatures(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return 2 / sigma of rows that count as squares, else 0."""
        return np.where(np.abs(targets - scores) < self.epsilon * theta, 2.0 / theta, 0.0)

    def curvatures_beside(self, duals: Array, scores: Array, targets: Array, theta: float) -> Array:
        """See `EpsilonInsensitive`: of the equation a max(sigma, |r| / epsilon) = 2 r."""
        residuals = targets - scores
        width = np.maximum(np.abs(residuals) / self.epsilon, theta)
        of_width = np.where(width > theta, np.clip(duals * np.sign(residuals) / self.epsilon, -2.0, 2.0), 0.0)
        return np.asarray((2.0 - of_width) / width)

    def dual_values(self, duals: Array, scores: Array, targets: Array) -> Array:
        """Return a (y - z)."""
        return np.asarray(duals * (targets - scores))

    def clipped(self, duals: Array, targets: Array) -> Array:
        """Return duals within [-2 epsilon, 2 epsilon]."""
        return np.clip(duals, -2.0 * self.epsilon, 2.0 * self.epsilon)

    def by_scale(self, scores: Array, targets: Array, theta: float) -> tuple[Array, Array, Array]:
        """Return 1 - a^2 / 4, and of rows that count as squares 2 r^2 / sigma^3 and 2 r / sigma^2."""
        slopes = self.slopes(scores, targets, theta)
        mixed = np.where(np.abs(slopes) < 2.0 * self.epsilon, slopes / theta, 0.0)
        return 1.0 - 0.25 * slopes * slopes, 0.5 * theta * mixed * mixed, mixed


@dataclass(frozen=True, slots=True)
class Poisson(RegressionLoss):
    """Half the Poisson deviance with log link: exp(z) - y z - y + y log y, as PoissonRegressor has it."""

    def values(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return f; infinite where exp is."""
        return _above_tangent(targets, scores)

    def slopes(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return y - exp(z); duals are at most y."""
        return np.asarray(targets - np.exp(scores))

    def curvatures(self, scores: Array, targets: Array, theta: float) -> Array:
        """Return exp(z)."""
        return np.exp(scores)

    def dual_values(self, duals: Array, scores: Array, targets: Array) -> Array:
        """Return f less what it would be with the mean y - a in place of y."""
        return np.asarray(_above_tangent(targets, scores) - _above_tangent(np.maximum(targets - duals, 0.0), scores))

    def start(self, mean: float) -> float:
        """Return the logarithm of the mean, or of next to nothing."""
        return float(np.log(max(mean, ROUNDING)))

    def require(self, targets: Array) -> None:
        """Refuse what is no count or rate, with a DataError."""
        if len(targets) and targets.min() < 0:
            raise DataError(
                f"the Poisson loss takes targets y >= 0, and the data has {targets.min():g}; choose another loss, or "
                "leave these rows out"
            )


def _above_tangent(means: Array, scores: Array) -> Array:
    """Return exp(z) - m - m (z - log m), by what exp(z) is above its tangent where exp is m, with its small digits."""
    steps = scores - np.log(np.where(means > 0, means, 1.0))
    return np.where(means > 0, means * (np.expm1(steps) - steps), np.exp(scores))


def _require_epsilon(epsilon: float, least: float) -> None:
    if not least <= epsilon < np.inf:
        raise UsageError(f"this loss takes epsilon >= {least:g}, got epsilon={epsilon}")


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
        losses, slopes, curvatures = each_loss_and_slope(self.loss, targets * scores, np.ones(()))
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
        values = dual_values(self.loss, self.clipped(duals, targets) * targets, np.ones(()))
        return np.asarray(values - duals * scores)

    def clipped(self, duals: Array, targets: Array) -> Array:
        """Return duals between 0 and the target, times the largest slope."""
        return np.asarray(targets * np.clip(targets * duals, 0.0, self.loss.most_slope))


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


def margin_loss(loss: Loss) -> RegressionLoss:
    """Return the loss of a classifier."""
    return HingeLoss() if loss is Loss.HINGE else SmoothLoss(loss)
