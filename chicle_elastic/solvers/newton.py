"""A Newton finish for problems on which coordinate descent crawls (weak regularisation, nearly collinear features).

Coordinate descent needs few passes while the duals are far from their bounds and very many when margins of many samples
are close to 1 at once. There w has few coordinates compared with the duals, so the whole problem is solved in w. For
the smooth losses that is Newton's method on P. The hinge is made smooth by the proximal point method on the dual
(Rockafellar 1976; for SVMs: Yin and Li 2019, "A semismooth Newton method for support vector classification"): a step
maximises D(a) - |a - alpha|^2 / (2 tau) over the box, whose optimum is a(w) for the w that minimises

    phi(w) = 1/2 |w|^2 + sum_i max_{0 <= a <= C_i} a (1 - m_i) - (a - alpha_i)^2 / (2 tau)

with gradient w - sum_i a_i(w) y_i x_i and second derivative I + sum_i c_i(w) x_i x_i^T, where c_i = tau while a_i is
strictly between its bounds, else 0. tau grows, and the steps become exact.

Plain NumPy, chunk by chunk: BLAS does the work. Legend: D is num_features + 1, the intercept column included.

It needs all samples in one task. When it pays is decided by `Pace`, from counts of values and never from times, so that
the same seed gives the same model.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse

from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.solvers.local_chunk import RowBlock
from chicle_elastic.solvers.objectives import Loss, dual_values, primal_losses

MAX_NEWTON_STEPS = 30
RELATIVE_GRADIENT = 1e-6
SUFFICIENT_DECREASE = 1e-4
MAX_FEATURES = 2047
"""Features up to which a matrix of second derivatives is made."""
WINDOW = 5
"""Passes over which the pace is measured."""
NEWTON_STEPS = 25
"""Newton steps that a finish takes, typically."""
BLAS_ADVANTAGE = 8
"""Multiplications of a matrix product in the time of one value of a pass, which waits for the value before it."""
CALL_VALUES = 1 << 17
"""What it costs to begin a pass or a step at all, as a number of values."""
FAST_STEPS = 6
"""After so few Newton steps the proximal step was easy, and the next one may be longer."""


class Pace:
    """How fast coordinate descent gets on, and whether a Newton finish would be cheaper."""

    def __init__(self) -> None:
        self._gaps: list[float] = []

    def add(self, relative_gap: float) -> None:
        """Learn the relative gap that a pass estimated."""
        self._gaps.append(relative_gap)

    def passes_to(self, tol: float) -> float:
        """Passes still needed at the present pace; 0 while there were too few to tell, infinity without progress."""
        if len(self._gaps) <= WINDOW or self._gaps[-1] <= tol:
            return 0.0
        before, now = self._gaps[-1 - WINDOW], self._gaps[-1]
        return WINDOW * math.log(now / max(tol, 1e-16)) / math.log(before / now) if now < before else math.inf

    def is_slow(self, tol: float, *, visited_values: float, read_values: int, hessian_values: int) -> bool:
        """Whether the passes to come cost more than `NEWTON_STEPS` Newton steps.

        Args:
            tol: Relative gap to reach.
            visited_values: Feature values that a pass visits, over all outputs.
            read_values: Feature values that a Newton step reads, over all outputs.
            hessian_values: Multiplications of its second derivatives.
        """
        step = 3.0 * read_values + hessian_values / BLAS_ADVANTAGE + CALL_VALUES
        return self.passes_to(tol) * (visited_values + CALL_VALUES) > NEWTON_STEPS * step


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """phi and what follows from it at one w.

    Attributes:
        value: phi(w).
        gradient: Shape (D,).
        hessian: Shape (D, D).
        gap: Sum of gap contributions of the samples, with a(w) as their duals.
    """

    value: float
    gradient: Array
    hessian: Array
    gap: float


class NewtonFinish:
    """Proximal Newton steps over the local chunks of the only task.

    Args:
        loss: The loss.
        intercept: Value of the intercept column; 0 for none.
        taus: First tau per output, shape (outputs,).
    """

    def __init__(self, loss: Loss, intercept: float, taus: Array) -> None:
        self.loss = loss
        self.intercept = intercept
        self.taus = taus

    def step(
        self,
        blocks: Sequence[RowBlock],
        signs: Sequence[Array],
        uppers: Sequence[Array],
        w: Array,
        k: int,
        is_spent: Callable[[], bool],
    ) -> tuple[Array, float]:
        """One proximal step of output `k`; its duals in the chunk state are written.

        Args:
            blocks: All local rows.
            signs: +1 or -1 per block, each of shape (num_rows,).
            uppers: C_i per block, each of shape (num_rows,).
            w: Present w of this output, shape (D,).
            k: The output.
            is_spent: Whether to end with what there is.

        Returns:
            w(alpha) of the new duals, shape (D,), and the sum of gap contributions.
        """
        num_steps = 0
        point = self._point(blocks, signs, uppers, w, k)
        # The gradient is w - w(alpha): the new w is w(alpha), so the two must be one for practical purposes.
        while (
            np.linalg.norm(point.gradient) > RELATIVE_GRADIENT * np.linalg.norm(w)
            and num_steps < MAX_NEWTON_STEPS
            and not is_spent()
        ):
            direction = -scipy.linalg.solve(point.hessian, point.gradient, assume_a="pos")
            length, slope = 1.0, float(point.gradient @ direction)
            while True:
                following = self._point(blocks, signs, uppers, w + length * direction, k)
                if following.value <= point.value + SUFFICIENT_DECREASE * length * slope or length < 1e-6:
                    break
                length *= 0.5
            w, point = w + length * direction, following
            num_steps += 1
        for block, sign, upper in zip(blocks, signs, uppers, strict=True):
            margins = sign * _decision(block, w, self.intercept)
            block.state[:, k, 0] = self._duals(margins, block.state[:, k, 0], upper, k)[0]
        self.taus[k] *= 5.0 if num_steps <= FAST_STEPS else 2.0
        return w - point.gradient, point.gap

    def _point(
        self, blocks: Sequence[RowBlock], signs: Sequence[Array], uppers: Sequence[Array], w: Array, k: int
    ) -> Point:
        value, gap = 0.5 * float(w @ w), 0.0
        gradient, hessian = w.copy(), np.eye(len(w))
        for block, sign, upper in zip(blocks, signs, uppers, strict=True):
            margins = sign * _decision(block, w, self.intercept)
            old = block.state[:, k, 0]
            duals, curvatures = self._duals(margins, old, upper, k)
            losses = primal_losses(self.loss, margins, upper)
            if self.loss is Loss.HINGE:
                value += float(np.sum(duals * (1.0 - margins) - (duals - old) ** 2 / (2.0 * self.taus[k])))
            else:
                value += float(losses.sum())
            gap += float(np.sum(losses - dual_values(self.loss, duals, upper) + duals * margins))
            weights = sign * duals
            gradient[:-1] -= _transposed_product(block, weights)
            gradient[-1] -= self.intercept * weights.sum()
            curved = np.flatnonzero(curvatures)
            x_FD = _dense_rows(block, curved, self.intercept)
            hessian += (x_FD * curvatures[curved, None]).T @ x_FD
        return Point(value=value, gradient=gradient, hessian=hessian, gap=gap)

    def _duals(self, margins: Array, old: Array, upper: Array, k: int) -> tuple[Array, Array]:
        """a(w) and c(w) of samples with these margins, each of shape (n,)."""
        if self.loss is Loss.HINGE:
            free = old + self.taus[k] * (1.0 - margins)
            return np.clip(free, 0.0, upper), np.where((free > 0) & (free < upper), self.taus[k], 0.0)
        if self.loss is Loss.SQUARED_HINGE:
            return 2.0 * upper * np.maximum(0.0, 1.0 - margins), np.where(margins < 1, 2.0 * upper, 0.0)
        share = np.exp(-np.logaddexp(0.0, margins))
        return upper * share, upper * share * (1.0 - share)


def merged(blocks: Sequence[RowBlock]) -> RowBlock:
    """The rows and states of `blocks` as one block in memory of its own: fewer calls, for small data.

    Targets, weights and row ids are left out.
    """
    sparse = [block.rows.to_scipy() for block in blocks if isinstance(block.rows, CsrRows)]
    rows: Array | CsrRows
    if sparse:
        stacked = scipy.sparse.vstack(sparse, format="csr")
        rows = CsrRows(stacked.indptr, stacked.indices, stacked.data, int(stacked.shape[1]))
    else:
        rows = np.concatenate([np.asarray(block.rows) for block in blocks])
    state = np.concatenate([block.state for block in blocks])
    nothing = np.empty(0)
    return RowBlock(rows=rows, targets=nothing, weights=None, row_ids=nothing, state=state)


def _decision(block: RowBlock, w: Array, intercept: float) -> Array:
    """<x_i, w> with the intercept column, shape (n,), float64."""
    rows = block.rows.to_scipy() if isinstance(block.rows, CsrRows) else block.rows
    return np.asarray(rows @ w[:-1]) + intercept * w[-1]


def _transposed_product(block: RowBlock, weights: Array) -> Array:
    """sum_i weights_i x_i without the intercept column, shape (num_features,), float64."""
    rows = block.rows.to_scipy() if isinstance(block.rows, CsrRows) else block.rows
    return np.asarray(rows.T @ weights)


def _dense_rows(block: RowBlock, which: Array, intercept: float) -> Array:
    """The rows `which` with the intercept column, shape (len(which), D), float64."""
    rows = block.rows.to_scipy()[which].toarray() if isinstance(block.rows, CsrRows) else block.rows[which]
    dense = np.empty((len(which), rows.shape[1] + 1))
    dense[:, :-1] = rows
    dense[:, -1] = intercept
    return dense
