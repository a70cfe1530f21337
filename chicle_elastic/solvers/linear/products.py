"""Sums of c_i x_i x_i^T over rows, packed: of dense rows in blocks that stay in the cache; and when not to go that way.

Packed means the lower triangle by rows, shape (h (h + 1) / 2,) for h columns.
"""

import math
import threading
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack
from scipy.linalg.blas import dsyrk, ssyrk

from chicle_elastic.chunks.rows import as_floats
from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.objectives import ROWS_IN_CACHE

CACHED_VALUES = 16 * ROWS_IN_CACHE  # of a block, as float64, that stay in the cache until they are multiplied
MOST_EXACT = 256  # unknowns up to which equations are solved exactly whatever they are good for
LEAST_ROWS = math.isqrt(CACHED_VALUES)
"""Rows of a block, which has no more columns then: a product of fewer rows takes longer per row, one of more leaves the
cache."""
FEW_COLUMNS = 96
"""Columns up to which their products take little longer than reading the rows, and NumPy's BLAS is faster than scipy's,
which adds to a sum without another array."""


ALL: Array = np.zeros(0, dtype=np.int64)  # all columns


def pack(matrix: Array, out: Array) -> None:
    """Add the lower triangle of a square matrix (C-contiguous) to `out`, which is packed."""
    # The lower triangle by rows is the upper one by columns.
    out += (lapack.strttp if matrix.dtype == np.float32 else lapack.dtrttp)(matrix.T)[0]


def unpack(packed: Array, size: int) -> Array:
    """Return the matrix of shape (size, size) whose lower triangle is `packed`, and which is 0 above."""
    return np.asarray((lapack.stpttr if packed.dtype == np.float32 else lapack.dtpttr)(size, packed)[0].T)


def symmetric(packed: Array, size: int) -> Array:
    """Return the symmetric matrix of shape (size, size) whose lower triangle is `packed`."""
    matrix = unpack(packed, size)
    matrix += np.tril(matrix, -1).T
    return matrix


def triangle_ends(size: int) -> Array:
    """Return where each row of a packed triangle ends, shape (size,), int64."""
    return np.cumsum(np.arange(1, size + 1))


def packed_diagonal(packed: Array, size: int) -> Array:
    """Return the diagonal of a packed triangle, shape (size,)."""
    return packed[triangle_ends(size) - 1]


def cholesky_factor(matrix: Array, *jitters: float) -> Array | None:
    """Find L with L L^T = matrix (C-contiguous, whose lower triangle is read), shape (n, n).

    The jitters are added to the diagonal, one after the other, while no factor is found without. None if there is none,
    or a NaN (LAPACK finds a fault then, OpenBLAS a factor of NaN).
    """
    for added in (0.0, *jitters):
        matrix.reshape(-1)[:: len(matrix) + 1] += added
        # The lower triangle by rows is the upper one by columns.
        upper, fault = lapack.dpotrf(matrix.T, lower=0, clean=0)
        if not fault and np.isfinite(upper.diagonal()).all():
            return np.asarray(upper.T)
    return None


def cholesky_solve(factor: Array, right: Array) -> Array:
    """Solve L L^T x = right, for a factor that `cholesky_factor` found and a vector of shape (n,)."""
    return np.asarray(lapack.dpotrs(factor.T, right, lower=0)[0])


def packed_factor(packed: Array, size: int, *jitters: float) -> Array:
    """Find the factor of `cholesky_factor` in LAPACK's rectangular full packed format, shape (n (n + 1) / 2,).

    It is empty where there is none, has the dtype of the packed triangle, float32 or float64, takes half of the memory
    of a square, and solves for several right-hand sides at once as fast. Jitters are added to `packed`.
    """
    to_full, find = (lapack.stpttf, lapack.spftrf) if packed.dtype == np.float32 else (lapack.dtpttf, lapack.dpftrf)
    for added in (0.0, *jitters):
        packed[triangle_ends(size) - 1] += added
        factor, fault = find(size, to_full(size, packed)[0], overwrite_a=1)
        if not fault and np.isfinite(factor).all():
            return np.asarray(factor)
    return np.zeros(0)


def packed_solve(factor: Array, right: Array) -> Array:
    """Solve L L^T x = right, for a factor that `packed_factor` found; shape (n,), or (n, m) for m right-hand sides."""
    if factor.dtype == np.float64:
        return np.asarray(lapack.dpftrs(len(right), factor, right)[0])
    size = float(np.abs(right).max(initial=0.0)) or 1.0  # float32 may have no room for it
    return np.multiply(lapack.spftrs(len(right), factor, (right / size).astype(np.float32))[0], size, dtype=np.float64)


def is_sparse_cheaper(mean_entries: float, size: int) -> bool:
    """Say whether products of entries (0.5 ns each) take less than those of dense rows (BLAS 1/30 ns, 3 ns to make)."""
    return mean_entries * mean_entries <= size * (size / 8 + 12)


def is_rough_copy_cheaper(mean_entries: float, size: int) -> bool:
    """Say the same of a dense copy in float32 that is there: 0.6 ns an entry's product, 0.3 ns a value to scale."""
    return mean_entries * mean_entries > size * (size / 18 + 1)


def add_dense_products(
    parts: Iterable[Array],  # Dense rows in order, each of shape (n, num_features), any dtype
    weights: Array,  # of all rows, >= 0, shape (num_rows,), float64
    columns: Array,  # which features, ascending, int64; empty for all
    intercept: float | None,  # Value of one more column at the end; None for no such column
    out: Array,  # OUT: Packed; added to
    *,
    is_rough: bool = False,  # whether float32 will do, in half the time: for a preconditioner
    shift: Array | None = None,  # Subtracted from each row first, one value for each of `columns`, float64
    # `kernels.products.scale_rows`, which scales all columns in a third of the time; None for NumPy. The parts are
    # C-contiguous then
    scale_rows: Callable[..., None] | None = None,
) -> bool:
    """Add sum_i weights_i x_i x_i^T; returns False, and adds nothing, where a rough sum is beyond float32."""
    dtype = np.float32 if is_rough else np.float64
    scales = np.sqrt(weights).astype(dtype, copy=False)
    # A last column of zeros adds a last row of zeros, and the triangle without it comes first in `out`.
    last = intercept or 0.0
    has_column = last != 0.0
    total: Array | None = None
    buffer = np.empty((0, 0))
    position = num_filled = 0
    for part in parts:
        if total is None:
            width = len(columns) or part.shape[1]
            size = width + has_column
            total = np.zeros((size, size), dtype, order="F")
            buffer = _scratch.matrix(min(max(CACHED_VALUES // max(size, 1), LEAST_ROWS), ROWS_IN_CACHE), size, dtype)
        for begin in range(0, len(part), len(buffer)):
            rows = part[begin : begin + len(buffer)]
            scale = scales[position : position + len(rows)]
            position += len(rows)
            num_curved = np.count_nonzero(scale)
            if num_curved == 0:
                continue
            curved = np.flatnonzero(scale) if num_curved < len(rows) else None
            num_chosen = len(rows) if curved is None else len(curved)
            if num_filled + num_chosen > len(buffer):
                _add_square(total, buffer[:num_filled])
                num_filled = 0
            end = num_filled + num_chosen
            into = buffer[num_filled:end, :width]
            chosen = rows
            if curved is not None:
                scale = scale[curved]
                # In place where that is possible: memory that is new costs as much as what is done with it.
                is_alike = rows.dtype == dtype and not len(columns) and not has_column
                chosen = rows.take(curved, axis=0, out=into if is_alike else None, mode="clip")
            if scale_rows is not None and not len(columns) and shift is None:
                scale_rows(chosen, scale, last, num_filled, buffer)
                num_filled = end
                continue
            chosen = as_floats(chosen[:, columns] if len(columns) else chosen)
            if shift is None:
                np.multiply(chosen, scale[:, None], out=into)
            else:
                np.subtract(chosen, shift.astype(dtype, copy=False), out=into, casting="same_kind")
                np.multiply(into, scale[:, None], out=into)
            if has_column:
                np.multiply(scale, last, out=buffer[num_filled:end, width])
            num_filled = end
    if total is None:
        return True
    if num_filled:
        _add_square(total, buffer[:num_filled])
    size = len(total)
    # No product of two columns is beyond both of their squares.
    if is_rough and not np.isfinite(total.diagonal()).all():
        return False
    if size <= FEW_COLUMNS:
        pack(total.T, out[: size * (size + 1) // 2])
        return True
    for row, end in enumerate(triangle_ends(size).tolist()):  # without another triangle, which LAPACK would return
        out[end - row - 1 : end] += total[: row + 1, row]
    return True


class _Scratch(threading.local):
    """Memory of a thread that is used again and again."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def matrix(self, num_rows: int, num_columns: int, dtype: npt.DTypeLike) -> Array:
        """With any content; valid until the next call in the same thread."""
        size = num_rows * num_columns * np.dtype(dtype).itemsize
        if len(self._bytes) < size:
            self._bytes = np.empty(size, np.uint8)
        return self._bytes[:size].view(dtype).reshape(num_rows, num_columns)


_scratch = _Scratch()


def _add_square(total: Array, rows: Array) -> None:
    """Add rows^T rows to `total` of F order; to its upper triangle at least."""
    if len(total) <= FEW_COLUMNS:
        with np.errstate(over="ignore", invalid="ignore"):  # as with scipy's BLAS: who needs finite sums looks
            total += (rows.T @ rows).T
        return
    (ssyrk if total.dtype == np.float32 else dsyrk)(1.0, rows.T, beta=1.0, c=total, overwrite_c=1)
