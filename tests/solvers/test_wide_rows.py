"""The rows of wide sparse data: copied, split, and where they are."""

import numpy as np
import pytest
import scipy.sparse as sp

from chicle_elastic.solvers.linear.rows import in_place
from chicle_elastic.solvers.linear.wide.rows import WideRows, with_columns
from tests.solvers.click_rows import INTERCEPT, click_like, copied, whole_of
from tests.solvers.test_newton_passes import tables_of


@pytest.fixture(params=["copied", "in-chunks"])
def rows(request, monkeypatch):
    """The rows of `click_like`, which columns they have, and the whole matrix."""
    X, _ = click_like()
    if request.param == "copied":
        return *copied(whole_of(X)), whole_of(X)
    tables = tables_of(X.toarray(), "csr", (0, 150, X.shape[0]))
    monkeypatch.setattr("chicle_elastic.solvers.linear.wide.rows.MOST_COPIED_VALUES", tables.num_values - 1)
    in_chunks = WideRows(in_place(tables, INTERCEPT), tables.num_values, is_exact=False)
    return in_chunks, np.arange(in_chunks.num_columns), whole_of(X)


def exact(whole, curvatures, gradient):
    """The direction by the singular values of the rows, which are fewer than the columns."""
    is_curved = curvatures > 0
    Q, R = np.linalg.qr((whole[is_curved] * np.sqrt(curvatures[is_curved])[:, None]).T)
    U, sizes, _ = np.linalg.svd(R)
    return Q @ (U @ (sizes**2 / (1.0 + sizes**2) * (U.T @ (Q.T @ gradient)))) - gradient


def test_columns_that_are_told_are_copied():
    """With their numbers; here those that any row has."""
    whole = whole_of(click_like()[0])
    found, columns = with_columns(sp.csr_array(whole), whole.any(axis=0))
    np.testing.assert_array_equal(columns, np.flatnonzero(whole.any(axis=0)))
    np.testing.assert_array_equal(found.toarray(), whole[:, columns])


def test_heavy_columns_are_those_of_the_counts(rows):
    """The block has their values."""
    found, columns, whole = rows
    heavy, values = found.heavy
    chosen = whole[:, columns[heavy]]
    assert {0, 1, 2} <= set(columns[heavy].tolist())
    np.testing.assert_array_equal(values, chosen)


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
    monkeypatch.setattr("chicle_elastic.solvers.linear.wide.rows.LEAST_ETA", 1e-9)
    for most_exact in (-1, 256):
        monkeypatch.setattr("chicle_elastic.solvers.linear.wide.rows.MOST_EXACT", most_exact)
        direction = found.direction(curvatures, gradient, lambda: False)
        np.testing.assert_allclose(direction, expected, atol=1e-5 * np.abs(expected).max())
    assert found.direction(curvatures, gradient, lambda: True) @ gradient < 0


def test_columns_that_one_row_has_take_no_products(monkeypatch):
    """Where rows share one column, which is heavy, one product comes to the solution, whatever the curvature."""
    monkeypatch.setattr("chicle_elastic.solvers.linear.wide.rows.MOST_EXACT", -1)
    rng = np.random.default_rng(3)
    whole = np.zeros((6, 14))
    for row in range(6):
        whole[row, [2 * row, 2 * row + 1]] = rng.normal(size=2)
    whole[:, 12] = rng.normal(size=6)
    split, _ = copied(whole)
    curvatures, gradient = 10.0 ** np.arange(-2, 10, 2), rng.normal(size=14)
    direction = split.direction(curvatures, gradient, lambda: True)
    np.testing.assert_allclose(direction, exact(whole, curvatures, gradient), rtol=1e-4)


def test_rows_that_have_no_column_in_common_are_solved_one_by_one():
    """Their equations are diagonal, however many there are."""
    values, gradient = np.arange(1.0, 301.0), np.random.default_rng(5).normal(size=300)
    split, _ = copied(np.diag(values))
    direction = split.direction(np.full(300, 2.0), gradient, lambda: False)
    np.testing.assert_allclose(direction, -gradient / (1.0 + 2.0 * values**2), rtol=1e-9)


def test_large_curvatures_take_few_products():
    """Rows that have little in common: without the elimination there are 337, and later blocks are larger."""
    X, _ = click_like(scale=1.0)
    rows, columns = copied(whole_of(X))
    products = []
    curvatures, gradient = np.full(400, 1e5), np.random.default_rng(4).normal(size=len(columns))
    rows.direction(curvatures, gradient, lambda: products.append(1))
    first = len(products)
    rows.direction(curvatures, gradient, lambda: products.append(1))
    assert first <= 80
    assert len(products) <= 1.6 * first
