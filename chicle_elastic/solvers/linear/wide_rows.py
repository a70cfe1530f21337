"""The rows of sparse data with more columns than second derivatives can be made of, for the Newton finish.

A copy in float64 without the columns that no local row has: on hashed data most are empty, and vectors of all columns
would cost more than the rows. The Newton equations are solved where there are few unknowns, over the rows with
curvature (Woodbury): (diag(1 / c_i) + X X^T) u = X g, by conjugate gradients. What makes these slow are columns that
many rows share; so X X^T is split in three:

    columns that one row has         a number per row
    the heaviest `HEAVY` columns     a dense block, which the preconditioner solves with exactly
    all others                       sparse; the preconditioner knows their diagonal
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.solvers.linear.tables import LocalTables

HEAVY = 64
"""Columns of the dense block."""
DEFLATED = 16
"""Columns of which nothing is left in the residual."""
RESIDUAL = 1e-4
"""Share of the right-hand side that is left of it. With ten times as much, steps are shorter, and there are more."""
MOST_PRODUCTS, USUAL_PRODUCTS = 400, 50
DENSE_ADVANTAGE = 4
"""Values of a dense block in the time of one of a sparse row."""


def product_values(row_values: float) -> float:
    """What conjugate gradients cost per row with curvature, as a number of values, where rows have so many."""
    return USUAL_PRODUCTS * (2 * row_values + 4 * HEAVY / DENSE_ADVANTAGE)


def whole_matrix(tables: LocalTables) -> Any:
    """All local rows, which are sparse, as a CSR array of float64 without intercept column."""
    parts = [block.rows.to_scipy() for block in tables.keep_alive if isinstance(block.rows, CsrRows)]
    return scipy.sparse.vstack(parts, format="csr", dtype=np.float64)


def without_empty_columns(whole: Any, intercept: float) -> tuple[Any, Array]:
    """A CSR array with an intercept column of this value, unless it is 0, and without the columns that no row has.

    Returns:
        The array, and the numbers that its columns had, ascending, int64; that of the intercept is num_features.
    """
    if intercept:
        column = scipy.sparse.csr_array(np.full((whole.shape[0], 1), intercept))
        whole = scipy.sparse.hstack([whole, column], format="csr")
    is_there = np.zeros(whole.shape[1], dtype=bool)
    is_there[whole.indices] = True
    columns = np.flatnonzero(is_there)
    # Renumbering keeps the order, and takes less time than what SciPy does to choose columns.
    places = np.cumsum(is_there, dtype=whole.indices.dtype) - 1
    shape = (whole.shape[0], len(columns))
    return scipy.sparse.csr_array((whole.data, places[whole.indices], whole.indptr), shape=shape), columns


class WideRows:
    """A matrix of shape (num_rows, number of columns that are not empty).

    Args:
        matrix: CSR, float64.
        light: The columns that several rows have but for the heaviest, CSR.
        heavy: The heaviest columns, dense, shape (num_rows, at most `HEAVY`).
        single: Squares of all other values, added up per row, shape (num_rows,).
        light_squares: The same of `light`.
    """

    def __init__(self, matrix: Any, light: Any, heavy: Array, single: Array, light_squares: Array) -> None:
        self._matrix = matrix
        self._light = light
        self._heavy = heavy
        self._single = single
        self._light_squares = light_squares
        self.num_columns = int(matrix.shape[1])

    @classmethod
    def of(cls, tables: LocalTables, intercept: float) -> tuple["WideRows", Array]:
        """Of all local rows, and which columns it has, ascending, int64; num_features is the intercept column."""
        return cls.of_matrix(whole_matrix(tables), intercept)

    @classmethod
    def of_matrix(cls, whole: Any, intercept: float) -> tuple["WideRows", Array]:
        """Of a CSR matrix of float64, without intercept column; as `of`."""
        matrix, columns = without_empty_columns(whole, intercept)
        num_entries = np.bincount(matrix.indices, minlength=len(columns))
        squares = matrix.data * matrix.data
        weights = np.bincount(matrix.indices, weights=squares, minlength=len(columns))
        heaviest = np.argsort(-weights, kind="stable")[:HEAVY]
        is_light, is_single = num_entries > 1, num_entries == 1
        is_light[heaviest] = is_single[heaviest] = False
        row_of = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))

        def squares_in(wanted: Array) -> Array:
            entries = wanted[matrix.indices]
            return np.bincount(row_of[entries], weights=squares[entries], minlength=matrix.shape[0])

        light, heavy = matrix[:, np.flatnonzero(is_light)], matrix[:, heaviest].toarray()
        return cls(matrix, light, heavy, squares_in(is_single), squares_in(is_light)), columns

    def times(self, vector: Array) -> Array:
        """<x_i, vector> of every row, shape (num_rows,), float64."""
        return np.asarray(self._matrix @ vector)

    def weighted_sum(self, weights: Array) -> Array:
        """sum_i weights_i x_i, shape (num_columns,), float64."""
        return np.asarray(self._matrix.T @ weights)

    def solve(self, which: Array, inverse: Array, gradient: Array, is_spent: Callable[[], bool]) -> Array:
        """u of the Newton direction X^T u - gradient, where X has the rows `which`: (diag(inverse) + X X^T) u = X g.

        Args:
            which: Row numbers, ascending.
            inverse: 1 / c_i of these, > 0, shape (len(which),).
            gradient: Shape (num_columns,).
            is_spent: Whether to end with what there is.

        Returns:
            Shape (len(which),). However few the steps were, the direction leads downwards.
        """
        light = self._light[which]
        own = inverse + self._single[which]
        rhs = self.times(gradient)[which]
        return _solve(light, self._heavy[which], own, own + self._light_squares[which], rhs, is_spent)


def _solve(light: Any, heavy: Array, own: Array, diagonal: Array, rhs: Array, is_spent: Callable[[], bool]) -> Array:
    """Conjugate gradients for (diag(own) + light light^T + heavy heavy^T) u = rhs, shape (n,).

    What is left of the right-hand side has no part in the heaviest columns (deflation: Saad et al. 2000, "A deflated
    version of the conjugate gradient algorithm"): values of thousands there would make much of it.
    """
    transposed = light.T.tocsr()
    scaled = heavy / diagonal[:, None]
    inner = scaled.T @ heavy
    inner.ravel()[:: len(inner) + 1] += 1.0
    deflated = heavy[:, :DEFLATED]
    W = deflated / np.maximum(np.linalg.norm(deflated, axis=0), 1e-300)

    def multiply(p: Array) -> Array:
        return own * p + light @ (transposed @ p) + heavy @ (p @ heavy)

    KW = own[:, None] * W + light @ (transposed @ W) + heavy @ (heavy.T @ W)
    E = W.T @ KW
    E = 0.5 * (E + E.T)
    scale = 1.0 / np.sqrt(np.maximum(np.diag(E), 1e-300))
    E *= scale[:, None] * scale
    E.ravel()[:: len(E) + 1] += 1e-12
    try:
        factor = cho_factor(inner, overwrite_a=True, check_finite=False)
        coarse = cho_factor(E, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return rhs / diagonal

    def precondition(r: Array) -> Array:
        return r / diagonal - scaled @ cho_solve(factor, r @ scaled, check_finite=False)

    def coefficients(v: Array) -> Array:
        return scale * cho_solve(coarse, scale * v, check_finite=False)

    u = W @ coefficients(rhs @ W)
    r = rhs - multiply(u)
    more = coefficients(r @ W)
    u += W @ more
    r -= KW @ more
    z = precondition(r)
    p = z - W @ coefficients(z @ KW)
    rz = float(r @ z)
    goal = RESIDUAL * RESIDUAL * rz
    for _ in range(MOST_PRODUCTS):
        product = multiply(p)
        curvature = float(p @ product)
        if not (curvature > 0 and rz > 0):
            break
        length = rz / curvature
        u += length * p
        r -= length * product
        z = precondition(r)
        rz, before = float(r @ z), rz
        if rz <= goal or is_spent():
            break
        p = z + (rz / before) * p - W @ coefficients(z @ KW)
    more = coefficients(r @ W)
    u += W @ more
    return u
