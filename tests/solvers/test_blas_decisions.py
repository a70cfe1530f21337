"""What solvers decide by a NaN, an infinity or a fault that BLAS and LAPACK report: each way of each decision.

Kernels round differently, so on one processor only one of the ways is met by chance (`python -m tests.processors`).
"""

import numpy as np
import pytest

from chicle_elastic.solvers.linear.l1.subproblem import minimise
from chicle_elastic.solvers.linear.newton.directions import Preconditioner
from chicle_elastic.solvers.linear.products import cholesky_factor, pack, packed_factor, packed_solve, unpack
from chicle_elastic.solvers.linear.rows import ALL, add_dense

NONE = np.zeros(0, dtype=np.int64)
EQUAL = np.full((3, 3), 2.0)
INDEFINITE = np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


def test_a_factor_is_found_or_is_not():
    """Of a definite matrix, of a singular one with a jitter, of an indefinite one not at all."""
    definite = EQUAL + np.eye(3)
    found = np.tril(cholesky_factor(definite.copy()))
    np.testing.assert_allclose(found @ found.T, definite)
    found = np.tril(cholesky_factor(EQUAL - 1e-9 * np.eye(3), 1e-6))
    np.testing.assert_allclose(found @ found.T, EQUAL, atol=1e-5)
    assert cholesky_factor(INDEFINITE.copy(), 1e-6) is None


def triangle(matrix):
    """Return the lower triangle, packed by rows."""
    return matrix[np.tril_indices(len(matrix))]


@pytest.mark.parametrize("size", [1, 4, 7])
def test_a_packed_factor_solves_as_the_square_does(size):
    """For one right-hand side and several; as for the jitters, and for no factor."""
    rng = np.random.default_rng(size)
    rows, right = rng.normal(size=(size + 2, size)), rng.normal(size=(size, 3))
    definite = rows.T @ rows
    factor = packed_factor(triangle(definite), size)
    assert factor.shape == (size * (size + 1) // 2,)
    np.testing.assert_allclose(definite @ packed_solve(factor, right), right, atol=1e-9)
    np.testing.assert_allclose(packed_solve(factor, right[:, 0]), packed_solve(factor, right)[:, 0], rtol=1e-12)
    assert len(packed_factor(triangle(EQUAL - 1e-9 * np.eye(3)), 3, 1e-6)) == 6
    assert not len(packed_factor(triangle(INDEFINITE), 3, 1e-6))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (2, 1), (2, 2)])
def test_a_matrix_with_values_beyond_all_bounds_has_no_factor(value, place):
    """OpenBLAS's own factorisation reports no fault for a NaN."""
    matrix = np.eye(3)
    matrix[place] = matrix[place[::-1]] = value
    assert cholesky_factor(matrix.copy()) is None
    assert not len(packed_factor(triangle(matrix), 3))


@pytest.mark.parametrize("matrix", [INDEFINITE * 1e9, np.full((3, 3), np.inf), np.where(np.eye(3) > 0, 1e200, np.nan)])
def test_without_a_factor_the_diagonal_leads_downhill(matrix):
    """The direction of a Newton step has no NaN, whatever the second derivatives were."""
    packed, diagonal = np.zeros(6), np.full(3, 1e9)
    pack(matrix, packed)
    direction = Preconditioner.of(packed, diagonal, NONE, np.zeros(0), np.ones(3)).solve(np.ones(3))
    np.testing.assert_allclose(direction, 1 / (1.0 + diagonal))


@pytest.mark.parametrize("factor", [1.0, 1e25])
def test_products_of_a_ridge_are_rough_only_where_float32_holds_them(factor):
    """Squares of 1e25 are beyond float32: they are summed up in float64, and no infinity is left."""
    X = np.random.default_rng(0).normal(size=(50, 3)) * factor
    packed, means = np.zeros(6), X.mean(axis=0)
    add_dense([X], np.ones(50), ALL, None, packed, rough=[X], shift=means)
    exact = np.tril((X - means).T @ (X - means))
    np.testing.assert_allclose(unpack(packed, 3), exact, rtol=1e-4, atol=1e-4 * exact.max())
    has_rounded = not np.allclose(unpack(packed, 3), exact, rtol=1e-12)
    assert has_rounded == (factor == 1.0)


@pytest.mark.parametrize("noise", [0.0, 1e-15, 1e-12, 1e-9, 1e-6])
def test_products_that_rounding_has_made_indefinite_end_with_a_descent(noise):
    """More columns than rows, one of zeros, two equal: w is finite, and its objective no larger than at the start."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X, l1 = rng.normal(size=(4, 9)), 1e-7
        X[:, 3], X[:, 5] = X[:, 4], 0.0
        change = noise * rng.normal(size=(9, 9))
        H, q = X.T @ X + change + change.T, X.T @ rng.normal(size=4)
        q[5] = l1 * (1 + noise)  # not quite what a column of zeros has
        w, _ = minimise(H, q, np.zeros(9), l1=l1, l2=0.0, enough=0.0, accuracy=1e-9)
        assert np.isfinite(w).all(), seed
        assert 0.5 * w @ H @ w - q @ w + l1 * np.abs(w).sum() <= 0.0, seed
