"""The linear algebra of a Newton step: a block of second derivatives, factored, and the diagonal for the rest.

All of it is scaled by the diagonal first, so that a feature of scale 1e8 costs no digits of the others. What is found
here may differ between processors in its last digits, so nothing is decided by it (see `agreement`).
"""

import numpy as np
from scipy.linalg.lapack import dpptrs

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dots
from chicle_elastic.solvers.linear.products import MOST_LISTED, cholesky_factor, diagonal_places, pack, triangle, unpack

HEAVIER = 1e-10
"""Added to a scaled diagonal, times its length, where columns are equal but for rounding and no factor is found."""


class PreconditionerBlock:
    """The second derivatives in some columns, I included, scaled to a diagonal of ones and factored.

    Args:
        factor: Its Cholesky factor, packed; empty for the diagonal alone.
        scale: One over the square root of the diagonal, shape (D,).
        columns: Columns of the block, int64; empty for all.

    Attributes:
        factor, scale: As above.
    """

    def __init__(self, factor: Array, scale: Array, columns: Array) -> None:
        self.factor = factor
        self.scale = scale
        self._columns = columns

    def solve(self, r: Array) -> Array:
        """The block's inverse, and that of the diagonal elsewhere, times `r`; shape (D,)."""
        scaled = self.scale * r
        if len(self.factor):
            # The lower triangle by rows is the upper one by columns.
            if len(self._columns):
                scaled[self._columns] = dpptrs(len(self._columns), self.factor, scaled[self._columns], lower=0)[0]
            else:
                scaled = dpptrs(len(scaled), self.factor, scaled, lower=0)[0]
        return np.asarray(self.scale * scaled)


def factorise(packed: Array, diagonal: Array, columns: Array, ridge: Array | float = 1.0) -> PreconditionerBlock:
    """Scale and factor, the second derivatives of the penalty included.

    Args:
        packed: Those of the losses in the columns of the block; empty for none.
        diagonal: Those of all columns, shape (D,).
        columns: Columns of the block, int64; empty for all.
        ridge: Those of the penalty, shape (D,), or the same for all.
    """
    total = ridge + np.maximum(diagonal, 0.0)
    scale = 1.0 / np.sqrt(np.where(total > 0, total, 1.0))
    if not len(packed):
        return PreconditionerBlock(np.zeros(0), scale, columns)
    inner = scale[columns] if len(columns) else scale
    size = len(inner)
    matrix = unpack(packed, size)
    with np.errstate(over="ignore", invalid="ignore"):  # no factor is found then
        matrix *= inner
        matrix *= inner[:, None]
    of_penalty = scale * scale * ridge
    matrix.reshape(-1)[:: size + 1] += of_penalty[columns] if len(columns) else of_penalty
    lower = cholesky_factor(matrix, HEAVIER * size)
    if lower is None:
        return PreconditionerBlock(np.zeros(0), scale, columns)
    factor = np.zeros(len(packed))
    pack(lower, factor)
    return PreconditionerBlock(factor, scale, columns)


def curvatures_along(vectors: Array, blocks: Array) -> Array:
    """v_k^T (H_k - I) v_k of blocks of all columns, shape (n,).

    Other than what is factored here, it comes out the same on every processor, if the sums do.

    Args:
        vectors: Shape (n, D).
        blocks: Packed, shape (n, D (D + 1) / 2).
    """
    size = vectors.shape[1]
    diagonals = blocks.take(diagonal_places(size), axis=1)
    once = dots(diagonals, vectors * vectors)
    if size <= MOST_LISTED:
        rows, others = triangle(size)
        return 2.0 * dots(blocks, vectors.take(rows, axis=1) * vectors.take(others, axis=1)) - once
    # Rows are added up one after the other.
    products = [
        np.add.reduce(unpack(block, size) * v[:, None], axis=0) for v, block in zip(vectors, blocks, strict=True)
    ]
    return 2.0 * dots(np.array(products), vectors) - once
