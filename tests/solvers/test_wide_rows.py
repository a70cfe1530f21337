"""The rows of wide sparse data: copied, split, and where they are."""

import numpy as np
import pytest
import scipy.sparse as sp

from chicle_elastic.solvers.linear.rows import ChunkedRows
from chicle_elastic.solvers.linear.wide.rows import CopiedRows, Directions, RowsInChunks, SplitRows
from tests.solvers.click_rows import INTERCEPT, click_like, tables_of, whole_of


@pytest.fixture(params=["copied", "in-chunks"])
def rows(request):
    """The rows of `click_like`, which columns they have, and the whole matrix."""
    X, _ = click_like()
    tables = tables_of(X)
    if request.param == "copied":
        return *CopiedRows.of(tables, INTERCEPT), whole_of(X)
    in_chunks = RowsInChunks(ChunkedRows(tables, INTERCEPT), tables, INTERCEPT)
    return in_chunks, np.arange(in_chunks.num_columns), whole_of(X)


def exact(whole, curvatures, gradient):
    """The direction by the singular values of the rows, which are fewer than the columns."""
    is_curved = curvatures > 0
    Q, R = np.linalg.qr((whole[is_curved] * np.sqrt(curvatures[is_curved])[:, None]).T)
    U, sizes, _ = np.linalg.svd(R)
    return Q @ (U @ (sizes**2 / (1.0 + sizes**2) * (U.T @ (Q.T @ gradient)))) - gradient


def test_products_from_either_side_are_those_of_the_whole_matrix(rows):
    """And a copy has no column that is empty."""
    found, columns, whole = rows
    rng = np.random.default_rng(1)
    w, a = rng.normal(size=whole.shape[1]), rng.normal(size=len(whole))
    if isinstance(found, CopiedRows):
        np.testing.assert_array_equal(columns, np.flatnonzero(whole.any(axis=0)))
    np.testing.assert_allclose(found.times(w[columns]), whole[:, columns] @ w[columns])
    np.testing.assert_allclose(found.weighted_sum(a), (whole.T @ a)[columns], atol=1e-9)


def test_heavy_columns_are_those_of_the_counts(rows):
    """The block has their values, and its products are those of the whole matrix."""
    found, columns, whole = rows
    heavy = found.heavy
    chosen = whole[:, columns[heavy.columns]]
    assert {0, 1, 2} <= set(columns[heavy.columns].tolist())
    rng = np.random.default_rng(2)
    coefficients, weights = rng.normal(size=len(heavy.columns)), rng.random(len(whole))
    scale = np.abs(chosen).max()
    np.testing.assert_allclose(heavy.times(coefficients), chosen @ coefficients, rtol=1e-5, atol=1e-5 * scale)
    np.testing.assert_allclose(heavy.weighted_sum(weights), chosen.T @ weights, rtol=1e-5)
    which = np.array([0, 3, 151, 399])
    expected = (chosen[which].T * weights[which]) @ chosen[which]
    np.testing.assert_allclose(heavy.products_of(which, weights[which]), expected, rtol=1e-5)


@pytest.mark.parametrize(("share", "curvature"), [(0.0, 0.1), (0.1, 1e4), (0.4, 0.1), (1.0, 1e4)])
def test_directions_solve_the_newton_equations(rows, share, curvature, monkeypatch):
    """To the residual that is asked for, however many rows have curvature; downwards with time for one product only.

    By conjugate gradients, and exactly where rows with curvature are few: 10 and 40 % of 400 rows are.
    """
    found, columns, whole = rows
    rng = np.random.default_rng(1)
    curvatures = np.where(rng.random(len(whole)) < share, curvature * rng.uniform(0.5, 1, size=len(whole)), 0.0)
    gradient = rng.normal(size=len(columns))
    expected = exact(whole[:, columns], curvatures, gradient)
    for most_exact in (0, 256):
        monkeypatch.setattr("chicle_elastic.solvers.linear.wide.rows.MOST_EXACT", most_exact)
        direction = found.direction(curvatures, gradient, 1e-9, lambda: False)
        np.testing.assert_allclose(direction, expected, atol=1e-5 * np.abs(expected).max())
    assert found.direction(curvatures, gradient, 1e-9, lambda: True) @ gradient < 0


def test_columns_that_one_row_has_take_no_products(monkeypatch):
    """Where rows share one column, which is heavy, one product comes to the solution, whatever the curvature."""
    monkeypatch.setattr("chicle_elastic.solvers.linear.wide.rows.MOST_EXACT", 0)
    rng = np.random.default_rng(3)
    whole = np.zeros((6, 14))
    for row in range(6):
        whole[row, [2 * row, 2 * row + 1]] = rng.normal(size=2)
    whole[:, 12] = rng.normal(size=6)
    split = SplitRows(sp.csr_array(whole), Directions())
    curvatures, gradient = 10.0 ** np.arange(-2, 10, 2), rng.normal(size=14)
    direction = split.direction(curvatures, gradient, 1e-12, lambda: True)
    np.testing.assert_allclose(direction, exact(whole, curvatures, gradient), rtol=1e-4)


def test_rows_that_have_no_column_in_common_are_solved_one_by_one():
    """Their equations are diagonal, however many there are."""
    values, gradient = np.arange(1.0, 301.0), np.random.default_rng(5).normal(size=300)
    split = SplitRows(sp.csr_array(sp.diags_array(values)), Directions())
    direction = split.direction(np.full(300, 2.0), gradient, 1e-9, lambda: False)
    np.testing.assert_allclose(direction, -gradient / (1.0 + 2.0 * values**2), rtol=1e-9)


def test_large_curvatures_take_few_products():
    """Rows that have little in common: without the elimination there are 337, and later blocks are larger."""
    X, _ = click_like(scale=1.0)
    rows, columns = CopiedRows.of(tables_of(X), INTERCEPT)
    products = []
    curvatures, gradient = np.full(400, 1e5), np.random.default_rng(4).normal(size=len(columns))
    rows.direction(curvatures, gradient, 1e-2, lambda: products.append(1))
    first = len(products)
    rows.direction(curvatures, gradient, 1e-2, lambda: products.append(1))
    assert first <= 80
    assert len(products) <= 1.6 * first


def test_values_beyond_float32_are_kept_in_float64():
    """A block of infinities would be no use."""
    X, _ = click_like()
    X.data[X.data > 1000] = 1e60
    tables = tables_of(X)
    values = ChunkedRows(tables, INTERCEPT).column_values(np.arange(3))
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, X[:, :3].toarray())
