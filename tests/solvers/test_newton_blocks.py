"""Blocks of second derivatives: updated, sampled, and what kept ones learn from products."""

import numpy as np
import pytest
import scipy.linalg

from chicle_elastic.solvers.linear.newton import blocks as blocks_module
from chicle_elastic.solvers.linear.newton import conjugate
from chicle_elastic.solvers.linear.newton.blocks import Blocks
from chicle_elastic.solvers.linear.newton.directions import curvature_along
from chicle_elastic.solvers.linear.newton.state import Block
from chicle_elastic.solvers.linear.rows import ALL
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from tests.solvers.linear_jobs import problem, recompute
from tests.solvers.test_newton_passes import augmented, matrix_of, packed, rows_of


class CountedRows:
    """Rows that count how many of them were multiplied."""

    def __init__(self, inner):
        self.inner, self.num_read, self.num_columns = inner, 0, inner.num_columns

    def add_products(self, weights, columns, out, *, is_rough=False):
        """Of the rows inside."""
        self.num_read += np.count_nonzero(weights)
        self.inner.add_products(weights, columns, out, is_rough=is_rough)

    def dense(self, which, columns=ALL, *, is_rough=False):
        """The same."""
        self.num_read += len(which)
        return self.inner.dense(which, columns, is_rough=is_rough)


def blocks_of(rows, *, full=None, row_step=1, row_ids=None):
    """Of rows with these numbers."""
    return Blocks(rows, lambda: np.arange(300) if row_ids is None else row_ids, row_step, full)


@pytest.mark.parametrize("kind", [Block.ROUGH, Block.EXACT])
@pytest.mark.parametrize("is_copied", [True, False])
def test_sums_are_updated_by_the_rows_that_changed_sides(is_copied, kind, monkeypatch):
    """Right after every update, and from few rows."""
    monkeypatch.setattr(blocks_module, "MOST_BLOCK_VALUES", 1 << 20 if is_copied else 0)
    rng = np.random.default_rng(3)
    X, upper = matrix_of(), rng.uniform(0, 2, size=300)
    upper[3] = 0.0
    counted = CountedRows(rows_of(X, "dense"))
    blocks = blocks_of(counted, full=2.0 * upper)
    is_curved = rng.random(300) < 0.8
    reads = []
    for _ in range(20):
        curvatures, out, before = 2.0 * upper * is_curved, np.zeros(55), counted.num_read
        blocks.add(0, kind, curvatures, ALL, out)
        reads.append(counted.num_read - before)
        rounding = 1e-10 if kind is Block.EXACT else 1e-4
        expected = packed((augmented(X).T * curvatures) @ augmented(X))
        np.testing.assert_allclose(out, expected, rtol=rounding, atol=rounding)
        is_curved = is_curved ^ (rng.random(300) < 0.03)
    assert max(reads[1:]) < 40 < reads[0]


@pytest.mark.parametrize("kind", [Block.ROUGH, Block.EXACT])
def test_sums_stay_known_when_all_bounds_grow(kind):
    """As many times as large, they are updated by the rows that changed sides since."""
    rng = np.random.default_rng(3)
    X, upper = matrix_of(), rng.uniform(0, 2, size=300)
    counted = CountedRows(rows_of(X, "dense"))
    blocks = blocks_of(counted, full=2.0 * upper)
    is_curved = rng.random(300) < 0.8
    blocks.add(0, kind, 2.0 * upper * is_curved, ALL, np.zeros(55))
    blocks.scale(3.7)
    is_curved = is_curved ^ (rng.random(300) < 0.03)
    curvatures, out, before = 3.7 * 2.0 * upper * is_curved, np.zeros(55), counted.num_read
    blocks.add(0, kind, curvatures, ALL, out)
    assert counted.num_read - before < 40
    rounding = 1e-10 if kind is Block.EXACT else 1e-4
    expected = packed((augmented(X).T * curvatures) @ augmented(X))
    np.testing.assert_allclose(out, expected, rtol=rounding, atol=rounding)


def test_what_a_huge_row_leaves_behind_is_found_anew():
    """Taken away again, values of 1e16 would leave the rounding of 1e16 behind."""
    X = matrix_of()
    X[5] = 1e9
    blocks = blocks_of(rows_of(X, "dense"), full=np.ones(300))
    curvatures = np.ones(300)
    blocks.add(0, Block.EXACT, curvatures, ALL, np.zeros(55))
    curvatures, out = curvatures.copy(), np.zeros(55)
    curvatures[5] = 0.0
    blocks.add(0, Block.EXACT, curvatures, ALL, out)
    np.testing.assert_allclose(out, packed((augmented(X).T * curvatures) @ augmented(X)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["dense", "float32", "csr", "merged dense", "merged csr"])
def test_a_sample_is_the_same_for_any_number_of_tasks(kind):
    """Which rows are in it follows from their numbers; it stands for about all of them."""
    X, ids = np.tile(matrix_of(), (4, 1)), np.random.default_rng(2).permutation(1200)
    curvatures = np.random.default_rng(3).uniform(0.5, 1.0, size=1200)

    def sampled(part):
        out = np.zeros(55)
        rows = rows_of(X[part], kind, cuts=(0, 100, len(X[part])))
        blocks_of(rows, row_step=4, row_ids=ids[part]).add(0, Block.SAMPLED, curvatures[part], ALL, out)
        return out

    whole = sampled(slice(None))
    np.testing.assert_allclose(sampled(slice(0, 500)) + sampled(slice(500, 1200)), whole, rtol=1e-5, atol=1e-4)
    everything = packed((augmented(X).T * curvatures) @ augmented(X))
    assert np.abs(whole - everything).max() <= 0.3 * np.abs(everything).max()


def test_pairs_satisfy_the_last_secant_equation():
    """Whatever the block is; more pairs than are kept leave the oldest out. Whole numbers are the same in float32."""
    rng = np.random.default_rng(0)
    A = rng.integers(-3, 4, size=(12, 5)).astype(float)
    H = np.eye(5) + A.T @ A
    known = np.zeros(0)
    for _ in range(conjugate.KEPT_PRODUCTS + 3):
        step = rng.integers(-9, 10, size=5) + 0.5
        known = conjugate.appended(known, step, H @ step)
        np.testing.assert_allclose(conjugate.solve(known, H @ step, lambda vector: 0.1 * vector), step, rtol=1e-9)
    assert len(known) == 5 * conjugate.KEPT_PRODUCTS
    # Along steps that do not disturb each other, all that there is to learn is learnt.
    known, steps = np.zeros(0), scipy.linalg.hadamard(4).astype(float)
    H = steps @ np.diag([1.0, 2.0, 5.0, 9.0]) @ steps
    for step in steps:
        known = conjugate.appended(known, step, H @ step)
    vector = rng.normal(size=4)
    found = conjugate.solve(known, vector, lambda v: v / np.diag(H))
    np.testing.assert_allclose(found, np.linalg.solve(H, vector), rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_a_pair_that_float32_does_not_hold_is_left_out(scale):
    """Its product is 0 or infinite there; those of before stay."""
    before = conjugate.appended(np.zeros(0), np.ones(2), np.ones(2))
    with np.errstate(over="ignore"):  # as in `advance`
        assert conjugate.appended(before, np.full(2, scale), np.full(2, scale * scale)) is before


@pytest.mark.parametrize("size", [1, 7, 520])
def test_the_curvature_along_a_vector_is_that_of_numpy(size):
    """Of few columns by a list of places, of many row by row."""
    rng = np.random.default_rng(size)
    Z, v = rng.normal(size=(size + 2, size)), rng.normal(size=size)
    assert curvature_along(v, packed(Z.T @ Z)) == pytest.approx(v @ Z.T @ Z @ v, rel=1e-12)


@pytest.mark.parametrize("scale", [1e16, 1e19, 1e25, 1e30])
def test_features_beyond_float32_are_summed_up_in_float64(scale):
    """Squares of 1e25 are; a block of infinities would be no block. The fit is as good as one on a smaller scale.

    Its gap need not be small: w of the duals is the last digits of a sum of duals times the scale, which no certificate
    survives. A kernel of BLAS that makes them 0 has a certificate for w = 0 instead, within tol of the optimum. So the
    objective is compared, with what tol promises.
    """
    data, tol = problem(rows=300, features=4), 1e-3
    trainer = LinearTrainer(loss="logistic", tol=tol, C=1e-3)

    def fit(factor):
        X = data.X.copy()
        X[:, 2] *= factor
        scaled = type(data)(X=X, y=data.y)
        outcome = scaled.run(trainer, 2, max_iterations=20)
        return outcome, recompute(scaled, trainer, outcome.model, outcome.state).primal[0]

    outcome, best = fit(1e12)
    assert outcome.history[-1].figures["duality_gap"] < 1e-9
    assert fit(scale)[1] <= best / (1 - tol)
