"""The sum over rows that come and go, against one over the rows that are there."""

import numpy as np
import pytest
from scipy import sparse

from chicle_elastic.solvers.linear import curved_sum
from chicle_elastic.solvers.linear.curved_sum import CurvedSum
from chicle_elastic.solvers.linear.rows import MergedRows

NUM_ROWS, D = 200, 5


class CountedRows(MergedRows):
    """Rows that count how many of them were asked for."""

    num_asked = 0

    def dense(self, which, columns=np.zeros(0, dtype=np.int64)):  # noqa: B008
        """See `NewtonRows`."""
        self.num_asked += len(which)
        return super().dense(which, columns)


def rows_of(kind):
    """Random rows, and the same as a dense matrix."""
    matrix = np.random.default_rng(0).normal(size=(NUM_ROWS, D))
    return CountedRows(matrix if kind == "dense" else sparse.csr_matrix(matrix)), matrix


def expected(matrix, chosen):
    """Upper triangle of the sum, from first principles."""
    return np.triu(matrix[chosen].T @ matrix[chosen])


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_rows_that_come_and_go_are_added_and_taken_away(kind):
    """After each of many changes the sum is that of the chosen rows, and only those that changed were read."""
    rows, matrix = rows_of(kind)
    rng = np.random.default_rng(1)
    chosen = rng.random(NUM_ROWS) < 0.5
    kept = CurvedSum()
    np.testing.assert_allclose(np.triu(kept.over(rows, chosen)), expected(matrix, chosen), atol=1e-11)
    for _ in range(curved_sum.MOST_UPDATES // 2):
        changed = rng.random(NUM_ROWS) < 0.05
        before, chosen = rows.num_asked, chosen ^ changed
        np.testing.assert_allclose(np.triu(kept.over(rows, chosen)), expected(matrix, chosen), atol=1e-11)
        assert rows.num_asked - before == changed.sum()


def test_many_changes_are_a_new_sum():
    """More than half of the rows: all of them are read."""
    rows, matrix = rows_of("dense")
    chosen = np.arange(NUM_ROWS) < 80
    kept = CurvedSum()
    kept.over(rows, chosen)
    rows.num_asked = 0
    np.testing.assert_allclose(np.triu(kept.over(rows, ~chosen)), expected(matrix, ~chosen), atol=1e-11)
    assert rows.num_asked == NUM_ROWS - 80


def test_what_is_left_of_a_huge_row_is_not_believed():
    """A row of 1e9 that is taken away leaves rounding of 1e2 behind; the sum is found anew."""
    matrix = np.random.default_rng(0).normal(size=(NUM_ROWS, D))
    matrix[0] *= 1e9
    rows = CountedRows(matrix)
    chosen = np.ones(NUM_ROWS, dtype=bool)
    kept = CurvedSum()
    kept.over(rows, chosen)
    without = chosen.copy()
    without[0] = False
    np.testing.assert_allclose(np.triu(kept.over(rows, without)), expected(matrix, without), rtol=1e-9, atol=1e-9)
