"""The linear algebra of a Newton step: exact directions, and the preconditioner of conjugate gradients.

All is scaled by the diagonal first, so that a feature of scale 1e8 costs no digits of the others. What is found may
differ between processors in its last digits, so nothing is decided by it (see `agreement`).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
from scipy.linalg import eigh, qr

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot
from chicle_elastic.solvers.linear.objectives import EPSILON, TINY
from chicle_elastic.solvers.linear.products import (
    cholesky_factor,
    cholesky_solve,
    is_sparse_cheaper,
    packed_diagonal,
    packed_factor,
    packed_solve,
    triangle_ends,
    unpack,
)
from chicle_elastic.solvers.linear.progress import NOTHING
from chicle_elastic.solvers.linear.race import MULTIPLICATION

JITTERS = EPSILON**0.75, EPSILON**0.6, EPSILON**0.4, EPSILON**0.25
"""Added to a diagonal of ones, one after the other, where rounding has made a matrix indefinite, of float64 or of
float32, which has half of the digits."""

REFINED = 3  # times that equations of rows are solved, for what the times before have left


def exact_solver(matrix: Array, ridge: Array, *, is_rough: bool) -> tuple[Callable[[Array], Array], Array]:
    """Find what solves for a Newton step, and the null space of the second derivatives, shape (D, m).

    Where columns are dependent these are singular but for rounding, and there is no curvature but that of the penalty
    in their null space: there a step leads to the least |w| (see `to_least`). The lower triangle of `matrix` counts,
    and is overwritten. A rough one says nothing of a null space, and without a factor its diagonal is taken.
    """
    size, diagonal = len(ridge), ridge + np.maximum(np.diagonal(matrix), 0.0)
    scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    with np.errstate(over="ignore", invalid="ignore"):  # no factor is found then
        matrix *= scale
        matrix *= scale[:, None]
    matrix.ravel()[:: size + 1] = 1.0
    least, nothing = 4.0 * size * EPSILON, np.zeros((size, 0))
    factor = cholesky_factor(matrix, *(JITTERS if is_rough else ()))
    if factor is not None and (is_rough or factor.diagonal().min() ** 2 > least):
        return lambda g: scale * cholesky_solve(factor, scale * g), nothing
    if is_rough or not np.isfinite(matrix).all():
        return lambda g: scale * scale * g, nothing
    curvatures, vectors = eigh(matrix, check_finite=False)
    is_null = curvatures <= least * curvatures[-1]
    steep = vectors[:, ~is_null]
    null, _ = qr(scale[:, None] * vectors[:, is_null], mode="economic", check_finite=False)
    return lambda g: scale * (steep @ (steep.T @ (scale * g) / curvatures[~is_null])), np.asarray(null)


class RowProducts:
    """Few rows, dense or CSR, whose products make Newton steps exact: as many equations as rows (Woodbury).

    The products, divided by the ridge column by column, are kept as long as the ridge stays. A last column without
    ridge is eliminated by itself.
    """

    def __init__(self, rows: Any) -> None:
        is_sparse = scipy.sparse.issparse(rows)
        if is_sparse and not is_sparse_cheaper(rows.nnz / max(rows.shape[1], 1), rows.shape[0]):
            rows = rows.toarray()
        self.rows = rows
        self.work = 0.0  # multiplications so far, see `race`; of sparse rows but those of factors
        self._inverse, self._products = NOTHING, NOTHING

    def _divided(self, inverse: Array) -> Array:
        """Return the products of all rows, shape (n, n)."""
        if not np.array_equal(inverse, self._inverse):
            rows, is_sparse = self.rows, scipy.sparse.issparse(self.rows)
            with np.errstate(over="ignore", invalid="ignore"):  # no factor is found then
                products = (rows.multiply(inverse).tocsr() if is_sparse else rows * inverse) @ rows.T
            self._inverse, self._products = inverse, products.toarray() if is_sparse else products
            self.work += 0.0 if is_sparse else MULTIPLICATION * rows.shape[0] * rows.size
        return self._products

    def solver(self, curvatures: Array, ridge: Array) -> Callable[..., tuple[Array, Array]]:
        """Find what solves (ridge + X^T c X) x = g + X^T q, where rows have these curvatures c, shape (n,).

        It returns x, and the p of x = (g + X^T p) / ridge: with g = 0 neither has rounding of a w in it. A last weight
        without ridge starts from `last_weight`, and stays there where no row is curved.
        """
        inverse = np.divide(1.0, ridge, out=np.zeros(len(ridge)), where=ridge > 0)
        products, rows, which = self._divided(inverse), self.rows, np.flatnonzero(curvatures)
        roots = np.sqrt(curvatures[which])
        last = np.zeros(len(curvatures)) if ridge[-1] else rows @ np.eye(1, len(ridge), len(ridge) - 1)[0]
        with np.errstate(over="ignore", invalid="ignore"):  # no factor is found then, and the penalty is all there is
            scale = 1.0 / np.sqrt(1.0 + roots * roots * products.diagonal()[which])
            matrix = products[np.ix_(which, which)] * (roots * scale)
            matrix *= (roots * scale)[:, None]
        matrix.reshape(-1)[:: len(roots) + 1] += scale * scale
        factor = cholesky_factor(matrix, *JITTERS) if len(which) else None
        self.work += MULTIPLICATION * len(which) ** 3 / 3

        def of_rows(right: Array) -> Array:
            return np.zeros(len(right)) if factor is None else roots * scale * cholesky_solve(factor, scale * right)

        coupled = of_rows(roots * last[which])
        bend = float(last[which] @ coupled)

        def solve(g: Array, q: Array, last_weight: float = 0.0) -> tuple[Array, Array]:
            p, share, scores = np.where(curvatures, 0.0, q), last_weight, rows @ (g * inverse)
            for _ in range(REFINED):
                with np.errstate(over="ignore", invalid="ignore"):
                    left = scores + share * last + products @ p
                p[which] += of_rows((q - p)[which] / roots - roots * left[which])
                more = (float(last @ p) + float(g[-1])) / bend if bend > 0 else 0.0
                share, p[which] = share + more, p[which] - more * coupled
            x = (g + rows.T @ p) * inverse
            if not ridge[-1]:
                x[-1] = share
            return np.asarray(x), p

        return solve


def to_least(there: Array, null: Array, ridge: Array) -> Array:
    """Return the step within a null space that leads from `there` to the least |w|."""
    counts = ridge > 0  # a free intercept has no part in |w|
    shares, *_ = np.linalg.lstsq(null[counts], there[counts], rcond=None)
    return np.asarray(-(null @ shares))


class Preconditioner:
    """The diagonal of second derivatives, and a factored block of those in some columns (empty for all), scaled by it.

    Where there is no block, a free intercept may be eliminated first, with the second derivatives `beside` it: the
    diagonal is that of columns less their means (by curvature).
    """

    def __init__(self, diagonal: Array, factor: Array, columns: Array, beside: Array) -> None:
        self.diagonal, self.factor = diagonal, factor
        self._columns, self._beside = columns, beside
        self._scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))

    @classmethod
    def of(
        cls, packed: Array, diagonal: Array, columns: Array, beside: Array, ridge: Array, *, is_rough: bool = False
    ) -> "Preconditioner":
        """Find the factor, of packed second derivatives in the columns of the block and the diagonal of all, without
        penalty; that of rough ones in float32, if that holds them.
        """
        if len(beside):
            means = beside / max(float(beside[-1]), TINY)
            diagonal = np.append((diagonal - means * beside)[:-1], diagonal[-1])
        found = cls(ridge + np.maximum(diagonal, 0.0), np.zeros(0), columns, beside)
        if len(packed):
            which = columns if len(columns) else np.arange(len(diagonal))
            inner, ends = found._scale[which], triangle_ends(len(which))
            with np.errstate(over="ignore", invalid="ignore"):  # no factor is found then
                matrix: Any = packed.astype(np.float32 if is_rough else np.float64)
                if is_rough and not np.isfinite(matrix).all():
                    matrix = packed.copy()
                for row, end in enumerate(ends.tolist()):
                    values = matrix[end - row - 1 : end]
                    values *= inner[: row + 1]
                    values *= inner[row]
            matrix[ends - 1] += (inner * inner) * ridge[which]
            found.factor = packed_factor(matrix, len(which), *JITTERS)
        return found

    def solve(self, residual: Array) -> Array:
        """Return an estimate of the solution for this right-hand side, shape (D,)."""
        if not len(self._beside):
            return self._solve(residual)
        top = max(float(self._beside[-1]), TINY)
        means = self._beside / top
        inner = self._solve(np.append((residual - means * residual[-1])[:-1], 0.0))
        inner[-1] = residual[-1] / top - dot(means[:-1], inner[:-1])
        return inner

    def _solve(self, r: Array) -> Array:
        z = self._scale * r
        if len(self.factor):
            which = self._columns if len(self._columns) else slice(None)
            z[which] = packed_solve(self.factor, z[which])
        return np.asarray(self._scale * z)


def curvature_along(vector: Array, packed: Array) -> float:
    """Return v^T H v of second derivatives in all columns: the same on every processor, if the sums are."""
    size = len(vector)
    once = dot(packed_diagonal(packed, size), vector * vector)
    # Rows are added up one after the other.
    return 2.0 * dot(np.add.reduce(unpack(packed, size) * vector[:, None], axis=0), vector) - once


def heaviest_columns(diagonal: Array, number: int) -> Array:
    """Return the columns with the largest second derivatives, ascending, int64; equal ones by their number."""
    order = np.argsort(-diagonal, kind="stable")[:number]
    return np.sort(order[diagonal[order] > 0])
