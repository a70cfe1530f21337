"""Every kernel against the NumPy form in its own docstring, on random chunks of every kind and dtype."""

import inspect
import re
import textwrap

import numpy as np
import pytest
import scipy.sparse

from chicle_elastic.chunks.views import CsrRows
from chicle_elastic.solvers.kernels import descent, kinked, memory, products, tables
from chicle_elastic.solvers.kernels.losses import LOSSES
from chicle_elastic.solvers.linear.objectives import Loss, dual_values, primal_losses
from chicle_elastic.solvers.local_chunk import RowBlock
from tests.solvers.reference import coordinate_steps

KINDS = ["dense-float32", "dense-float64", "dense-uint8", "csr-float32-int32", "csr-float64-int64"]
INTERCEPT = 0.5


class Case:
    """Three random chunks of 11, 8 and 1 rows, their tables, and dense float64 copies for the reference."""

    def __init__(self, kind, outputs, loss, seed=0):
        rng = np.random.default_rng(seed)
        self.loss = loss
        self.positives = np.arange(outputs, dtype=np.int32) if outputs > 1 else np.ones(1, dtype=np.int32)
        self.blocks, dense, self.uppers = [], [], []
        for num_rows in (11, 8, 1):
            matrix = rng.integers(0, 4, size=(num_rows, 5)).astype(np.float64)
            matrix[rng.random(matrix.shape) < 0.4] = 0
            dense.append(matrix)
            state = rng.uniform(0, 0.5, size=(num_rows, outputs, 1))
            targets = rng.integers(0, max(outputs, 2), size=num_rows, dtype=np.int32)
            rows = make_rows(matrix, kind)
            self.blocks.append(RowBlock(rows=rows, targets=targets, weights=None, row_ids=None, state=state))
            self.uppers.append(rng.uniform(0.5, 2.0, size=num_rows))
        self.uppers[1] = None  # a chunk without weights: its samples share one C
        self.rows = tables.row_table(self.blocks)
        self.lengths = np.array([11, 8, 1])
        self.matrix = np.column_stack([np.vstack(dense), np.full(20, INTERCEPT)])
        self.norms = [np.einsum("ij,ij->i", part, part) + INTERCEPT**2 for part in dense]
        self.left_out = [np.zeros((length, outputs), dtype=np.uint8) for length in self.lengths]
        self.samples = descent.SampleTable(
            lengths=self.lengths,
            targets=memory.addresses([block.targets for block in self.blocks]),
            duals=memory.addresses([block.state for block in self.blocks]),
            left_out=memory.addresses(self.left_out),
            norms=memory.addresses(self.norms),
            upper=np.array([0 if upper is None else upper.ctypes.data for upper in self.uppers], dtype=np.uint64),
            uniform_upper=1.25,
        )
        self.vectors = rng.normal(scale=0.1, size=(outputs, 6))

    def reference(self, kernel, visited, **names):
        """Run the NumPy text of a kernel's docstring; returns its namespace."""
        targets = np.concatenate([block.targets for block in self.blocks])
        upper = np.concatenate([np.full(8, 1.25) if u is None else u for u in self.uppers])
        space = {
            "primal_losses": primal_losses,
            "dual_values": dual_values,
            "coordinate_steps": coordinate_steps,
            "loss": self.loss,
            "visited": visited,
            "outputs": len(self.positives),
            "x": lambda i: self.matrix[i],
            "y": np.where(targets[:, None] == self.positives, 1.0, -1.0),
            "a": np.concatenate([block.state for block in self.blocks])[:, :, 0].copy(),
            "norm": np.concatenate(self.norms),
            "upper": upper,
            "v": self.vectors.copy(),
            **names,
        }
        text = re.split(r"NumPy equivalent.*::", inspect.getdoc(kernel.py_func))[1]
        exec(textwrap.dedent(text), space)
        return space

    def descend(self, order, *, bounds=(np.inf, -np.inf, 2.0), sigma=2.0, stop=0):
        """Run the kernel over buckets of the three chunks; returns vectors, counts per chunk and stats."""
        vectors, processed = self.vectors.copy(), np.zeros(3, dtype=np.int64)
        outputs = len(self.positives)
        stats = np.tile([0.0, 0.0, 0.0, -np.inf, np.inf], (outputs, 1))
        descent.descend(
            LOSSES[self.loss], self.rows, self.samples, np.array([0, 0, 1, 2], np.int32),
            np.array([0, 8, 0, 0], np.int32), 8, self.positives, INTERCEPT, 4, np.array([order], np.int32),
            np.array([[0, len(order), 1]]), np.tile(bounds, (outputs, 1)), np.zeros(outputs),
            np.full(1, stop, np.uint8), descent.make_scratch(self.rows), np.zeros(1, bool), len(order), 99, sigma, 0.0,
            0, vectors, processed, stats,
        )  # fmt: skip
        return vectors, processed, stats

    def descend_apart(self, are_done):
        """Make many passes for each output that is not done, row by row; returns vectors and stats."""
        lengths, outputs = self.samples.lengths, len(self.positives)
        chunks = np.repeat(np.arange(3, dtype=np.int32), lengths)
        numbers = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        orders = np.tile(np.arange(len(chunks), dtype=np.int32), (outputs, 1))
        vectors, stats = np.zeros_like(self.vectors), np.zeros((outputs, 5))
        for block in self.blocks:
            block.state[:] = 0.0
        for left_out in self.left_out:
            left_out[:] = 0
        descent.descend(
            LOSSES[self.loss], self.rows, self.samples, chunks, numbers, 1, self.positives, INTERCEPT,
            descent.BLOCK_ROWS, orders, np.array([[0, len(chunks), k + 1] for k in range(outputs)]),
            np.tile([np.inf, -np.inf, 2.0], (outputs, 1)), np.zeros(outputs), np.zeros(1, np.uint8),
            descent.make_scratch(self.rows), np.asarray(are_done), 0, 0, 1.0, 1e-6, 100_000, vectors,
            np.zeros(0, np.int64), stats,
        )  # fmt: skip
        return vectors, stats

    def duals(self):
        """Duals as the kernels left them, shape (20, outputs)."""
        return np.concatenate([block.state for block in self.blocks])[:, :, 0]


def make_rows(matrix, kind):
    """`matrix` as the rows of a chunk; CSR starts at an offset, as in a slice of a caller's matrix."""
    layout, dtype, *index = kind.split("-")
    if layout == "dense":
        return np.ascontiguousarray(matrix, dtype=dtype)
    csr = scipy.sparse.csr_matrix(matrix)
    pad = 3
    return CsrRows(
        (csr.indptr + pad).astype(index[0]),
        np.concatenate([np.zeros(pad), csr.indices]).astype(index[0]),
        np.concatenate([np.full(pad, np.nan), csr.data]).astype(dtype),
        matrix.shape[1],
    )


KINDS_AND_LOSSES = pytest.mark.parametrize(
    ("kind", "loss"),
    [*((kind, Loss.HINGE) for kind in KINDS), *((kind, loss) for kind in KINDS[1::2] for loss in list(Loss)[1:])],
    indirect=["kind"],
)
"""Each kind of rows and each loss: a kernel takes the functions of either from the other's hands."""


@pytest.fixture(params=KINDS)
def kind(request):
    """Kind and dtypes of the chunks."""
    return request.param


@KINDS_AND_LOSSES
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_pass_equals_its_numpy_form(kind, outputs, loss):
    """Duals, vectors, sums and counts after two passes in a random order of buckets."""
    case = Case(kind, outputs, loss)
    order = [2, 0, 3, 1, 1, 3, 0, 2]
    before = case.duals()
    expected = case.reference(descent.descend, rows_of(order), stats=np.zeros((outputs, 5)), sigma=2.0)
    vectors, processed, stats = case.descend(order)
    tolerance = (
        {"rtol": 1e-4, "atol": 1e-5} if "float64" not in kind and "dense" in kind else {"rtol": 1e-6, "atol": 1e-8}
    )
    np.testing.assert_allclose(case.duals(), expected["a"], **tolerance)
    np.testing.assert_allclose(vectors, expected["v"], **tolerance)
    np.testing.assert_allclose(stats[:, :2], expected["stats"][:, :2], **tolerance)
    assert stats[:, 2].tolist() == expected["stats"][:, 2].tolist()
    assert processed.tolist() == [22, 16, 2]
    assert not np.allclose(case.duals(), before), "the case must make steps, or it proves nothing"


@KINDS_AND_LOSSES
def test_many_passes_of_an_output_end_near_its_optimum_whatever_the_others_do(kind, loss):
    """The gap is that of the vector, which is the sum of the duals' rows; an output that is done stays as it was."""
    case = Case(kind, 3, loss)
    vectors, stats = case.descend_apart([False, False, False])
    duals = case.duals().copy()
    targets = np.concatenate([block.targets for block in case.blocks])
    signs = np.where(targets[:, None] == case.positives, 1.0, -1.0)
    upper = np.concatenate([np.full(8, 1.25) if u is None else u for u in case.uppers])[:, None]
    tolerance = 1e-4 if "float64" not in kind and "dense" in kind else 1e-9
    np.testing.assert_allclose(vectors, (signs * duals).T @ case.matrix, rtol=tolerance, atol=tolerance)
    margins = signs * (case.matrix @ vectors.T)
    losses = primal_losses(loss, margins, upper).sum(axis=0)
    gaps = losses - dual_values(loss, duals, upper).sum(axis=0) + (vectors * vectors).sum(axis=1)
    np.testing.assert_allclose(stats[:, 0], gaps, rtol=1e-3, atol=tolerance * losses.max())
    assert (stats[:, 0] <= 1e-4 * losses).all()
    for k in range(3):
        alone, _ = case.descend_apart(np.arange(3) != k)
        np.testing.assert_array_equal(alone[k], vectors[k])
        np.testing.assert_array_equal(case.duals()[:, k], duals[:, k])
        assert not np.delete(alone, k, axis=0).any()


@pytest.mark.parametrize("outputs", [1, 3])
def test_rows_of_weight_0_are_not_visited(kind, outputs):
    """The others are, as if these were not there."""
    case = Case(kind, outputs, Loss.LOGISTIC)
    case.uppers[0][2:5] = 0.0
    for block in case.blocks[:1]:
        block.state[2:5] = 0.0
    visited = [row for row in rows_of([2, 0, 3, 1]) if row not in (2, 3, 4)]
    expected = case.reference(descent.descend, visited, stats=np.zeros((outputs, 5)), sigma=2.0)
    vectors, processed, counts = case.descend([2, 0, 3, 1])
    assert counts[:, 2].tolist() == expected["stats"][:, 2].tolist() == [17.0] * outputs
    assert processed.tolist() == [11, 8, 1], "they are rows of the pass all the same"
    np.testing.assert_allclose(vectors, expected["v"], rtol=1e-4, atol=1e-5)
    assert not case.duals()[2:5].any()


def rows_of(order):
    """Row numbers in the reference of the rows in buckets."""
    starts, sizes = [0, 8, 11, 19], [8, 3, 8, 1]
    return [row for bucket in order for row in range(starts[bucket], starts[bucket] + sizes[bucket])]


@pytest.mark.parametrize("outputs", [1, 3])
def test_settled_duals_are_left_out_whose_derivatives_are_beyond_all_of_the_pass_before(kind, outputs):
    """With every hinge dual at the bound where its margin wants it nothing moves, and the next pass visits the rest."""
    case = Case(kind, outputs, Loss.HINGE)
    targets = np.concatenate([block.targets for block in case.blocks])
    signs = np.where(targets[:, None] == case.positives, 1.0, -1.0)
    slopes = signs * (case.matrix @ case.vectors.T) - 1.0
    upper = np.concatenate([np.full(8, 1.25) if u is None else u for u in case.uppers])
    duals = np.where(slopes < 0, upper[:, None], 0.0)
    for block, part in zip(case.blocks, np.split(duals, [11, 19]), strict=True):
        block.state[:, :, 0] = part
    vectors, _, stats = case.descend([2, 0, 3, 1], bounds=(np.inf, -1.0, 2.0))
    np.testing.assert_array_equal(vectors, case.vectors)
    is_left_out = np.concatenate(case.left_out) != 0
    np.testing.assert_array_equal(is_left_out, slopes < -1.0)
    assert stats[:, 2].tolist() == [20.0] * outputs
    assert case.descend([2, 0, 3, 1])[2][:, 2].tolist() == (~is_left_out).sum(axis=0).tolist()


@pytest.mark.parametrize("loss", [Loss.SQUARED_HINGE, Loss.MODIFIED_HUBER])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("most_steps", [1, 50])
def test_newton_steps_end_at_the_optimum(kind, loss, outputs, most_steps):
    """The gap is that of the duals and their w; steps go on where the call before has ended."""
    case = Case(kind, outputs, loss)
    vectors, points = np.zeros_like(case.vectors), case.vectors.copy()
    stats = np.zeros((outputs, kinked.NUM_STATS))
    stats[:, kinked.GAP] = np.inf
    room = np.empty((6, 6)), np.empty((kinked.NUM_VECTORS, 6)), np.empty((2, 20))
    targets = np.concatenate([block.targets for block in case.blocks])
    signs = np.where(targets[:, None] == case.positives, 1.0, -1.0)
    upper = np.concatenate([np.full(8, 1.25) if u is None else u for u in case.uppers])[:, None]
    duals = np.zeros((outputs, 20))
    for _ in range(50 // most_steps):
        kinked.newton_steps(
            case.rows, case.samples.lengths, INTERCEPT, signs.T.copy(), upper[:, 0].copy(), 0.5 * loss.most_slope, 1e-9,
            0.3, most_steps, np.zeros(1, np.uint8), *room, points, vectors, duals, stats,
        )  # fmt: skip
    duals = duals.T
    assert (duals >= 0).all()
    assert (duals <= loss.most_slope * upper * (1 + 1e-12)).all()
    np.testing.assert_allclose(vectors, (signs * duals).T @ case.matrix, rtol=1e-7, atol=1e-9)
    losses = primal_losses(loss, signs * (case.matrix @ vectors.T), upper).sum(axis=0)
    values, squares = dual_values(loss, duals, upper).sum(axis=0), (vectors * vectors).sum(axis=1)
    np.testing.assert_allclose(stats[:, kinked.PRIMAL], losses + 0.5 * squares, rtol=1e-9)
    np.testing.assert_allclose(stats[:, kinked.DUAL], values, rtol=1e-9)
    assert (losses + squares - values <= 1e-8 * losses).all()
    assert (stats[:, kinked.STEPS] < 50).all()


def test_newton_steps_stop_between_steps():
    """The duals are then those of the point that was reached."""
    case = Case("dense-float64", 3, Loss.SQUARED_HINGE)
    vectors, stats = np.zeros_like(case.vectors), np.zeros((3, kinked.NUM_STATS))
    stats[:, kinked.GAP] = np.inf
    room = np.empty((6, 6)), np.empty((kinked.NUM_VECTORS, 6)), np.empty((2, 20))
    upper, duals = np.concatenate([np.full(8, 1.25) if u is None else u for u in case.uppers]), np.zeros((3, 20))
    kinked.newton_steps(
        case.rows, case.samples.lengths, INTERCEPT, np.ones((3, 20)), upper, np.inf, 1e-9, 0.3, 50,
        np.ones(1, np.uint8), *room, np.zeros_like(vectors), vectors, duals, stats,
    )  # fmt: skip
    assert not stats[:, kinked.STEPS].any()
    np.testing.assert_allclose(duals, np.tile(2.0 * upper, (3, 1)), rtol=1e-12)


def test_the_largest_derivatives_are_those_of_duals_that_may_move(kind):
    """At w = 0 every margin is 0, so all derivatives are -1."""
    case = Case(kind, 1, Loss.HINGE)
    case.vectors[:] = 0.0
    assert case.descend([3])[2][0, 3:].tolist() == [-1.0, -1.0]


def test_buckets_without_a_row_to_visit_come_last_and_are_not_shuffled():
    """The others stay the same ones."""
    order, counts = np.array([4, ~1, 2, 0, ~3, 5], np.int32), np.array([7, 6, 12345])
    descent.shuffle(order, counts)
    assert counts[:2].tolist() == [0, 4]
    assert sorted(order[:4].tolist()) == [0, 2, 4, 5]
    assert sorted(order[4:].tolist()) == [~3, ~1]


def test_a_norm_is_found_when_its_row_is_first_visited(kind):
    """|x|^2 with the intercept column, where there was a 0; a visit to rows whose norms are known gives the same."""
    known, unknown = Case(kind, 2, Loss.HINGE), Case(kind, 2, Loss.HINGE)
    expected = np.concatenate(known.norms)
    for norms in unknown.norms:
        norms.fill(0)
    first, second = known.descend([2, 0, 1, 3]), unknown.descend([2, 0, 1, 3])
    np.testing.assert_allclose(np.concatenate(unknown.norms), expected, rtol=1e-6)
    np.testing.assert_allclose(first[0], second[0], rtol=1e-6)


def test_a_set_stop_flag_leaves_everything_as_it_was():
    """The flag is looked at before the first block."""
    case = Case("dense-float64", 1, Loss.HINGE)
    before = case.duals()
    vectors, processed, stats = case.descend([0], stop=1)
    assert processed.sum() == 0
    assert not stats[:, :3].any()
    np.testing.assert_array_equal(case.duals(), before)
    np.testing.assert_array_equal(vectors, case.vectors)


@pytest.mark.parametrize("are_squared", [False, True])
def test_products_equal_their_numpy_forms(kind, are_squared):
    """Both sides, over all chunks; a row of weight 0 counts for nothing."""
    case = Case(kind, 1, Loss.HINGE)
    rng = np.random.default_rng(3)
    vector, weights = rng.normal(size=6), rng.normal(size=20)
    weights[4] = 0.0
    result = np.zeros(20)
    expected = case.reference(products.row_products, range(20), vector=vector, result=result.copy())
    products.row_products(case.rows, case.lengths, INTERCEPT, vector, result)
    np.testing.assert_allclose(result, expected["result"], rtol=1e-12, atol=1e-14)
    total = np.ones(6)
    given = {"weights": weights, "are_squared": are_squared, "result": total.copy()}
    expected = case.reference(products.weighted_sum, range(20), **given)
    products.weighted_sum(case.rows, case.lengths, INTERCEPT, weights, are_squared, total)
    np.testing.assert_allclose(total, expected["result"], rtol=1e-12, atol=1e-14)
