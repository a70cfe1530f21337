"""Passes of Newton's method: sums of second derivatives however they are found, from any number of tasks."""

import itertools

import numpy as np
import pytest
import scipy.sparse

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Chunk, CsrRows
from chicle_elastic.ids import ChunkId
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear import methods, products, rows
from chicle_elastic.solvers.linear.newton.blocks import MOST_UPDATES, Blocks
from chicle_elastic.solvers.linear.newton.passes import NewtonPasses
from chicle_elastic.solvers.linear.newton.plan import NewtonPlan
from chicle_elastic.solvers.linear.newton.state import NewtonPhase, NewtonState, OutputState
from chicle_elastic.solvers.linear.objectives import Loss, primal_losses
from chicle_elastic.solvers.linear.rows import ALL, ChunkedRows, MergedRows
from chicle_elastic.solvers.linear.tables import Bounds, build_tables
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.local_chunk import Gate, LocalChunk

OPEN = Gate("the test")
OPEN.open(1)
SMOOTH = [Loss.SQUARED_HINGE, Loss.LOGISTIC]
KINDS = ["dense", "float32", "csr", "merged dense", "merged csr"]


def matrix_of(num_rows=300, num_features=9, density=0.4, seed=0):
    """Rows with zeros in them, some of them all zeros."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, num_features)) * (rng.random((num_rows, num_features)) < density)
    X[7] = 0.0
    return X.astype(np.float32).astype(np.float64)


def rows_of(X, kind, intercept=0.5, cuts=(0, 40, 41, 130, 300)):
    """The rows of X in chunks."""
    chunks = {}
    for start, stop in itertools.pairwise(cuts):
        part = np.ascontiguousarray(X[start:stop].astype(np.float32) if kind == "float32" else X[start:stop])
        csr = scipy.sparse.csr_matrix(part)
        chunk = Chunk(
            id=ChunkId(start),
            rows=CsrRows(csr.indptr, csr.indices, csr.data, X.shape[1]) if kind.endswith("csr") else part,
            targets=np.zeros(stop - start, np.int32),
            row_ids=np.arange(start, stop),
            state=np.zeros((stop - start, 1, 1)),
        )
        chunks[chunk.id] = LocalChunk(chunk, OPEN)
    tables = build_tables(chunks, {}, Bounds(C=1.0, class_weights=None))
    return MergedRows.of(tables, intercept) if kind.startswith("merged") else ChunkedRows(tables, intercept)


def augmented(X, intercept=0.5):
    """X with the intercept column."""
    return np.column_stack([X, np.full(len(X), intercept)])


def weights_of(num_rows=300, share=0.7):
    """Some rows do not count, and they are whole chunks as well as single rows."""
    rng = np.random.default_rng(5)
    weights = rng.random(num_rows) * (rng.random(num_rows) < share)
    weights[41:130] = 0.0
    return weights


def packed(H):
    """The lower triangle by rows."""
    return H[np.tril_indices(len(H))]


@pytest.mark.parametrize("columns", [[], [0, 2, 9], [1, 4], [9]])
@pytest.mark.parametrize("intercept", [0.5, 0.0])
@pytest.mark.parametrize("is_sparse_cheap", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_numpy(kind, is_sparse_cheap, intercept, columns, monkeypatch):
    """Dense and sparse rows, few columns or all, with and without an intercept, rows of weight 0 and of zeros."""
    monkeypatch.setattr(rows, "is_sparse_cheaper", lambda mean, size: is_sparse_cheap)
    monkeypatch.setattr(rows, "CHEAP_PRODUCTS", 0)
    monkeypatch.setattr(products, "VALUES_PER_PRODUCT", 512)
    X, weights, columns = matrix_of(), weights_of(), np.array(columns, dtype=np.int64)
    Z = augmented(X, intercept)[:, columns if len(columns) else slice(None)]
    out = np.ones(Z.shape[1] * (Z.shape[1] + 1) // 2)
    rows_of(X, kind, intercept).add_products(weights, columns, out)
    np.testing.assert_allclose(out, 1.0 + packed((Z.T * weights) @ Z), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_no_row_at_all_add_nothing(kind):
    """Every weight is 0."""
    out = np.zeros(55)
    rows_of(matrix_of(), kind).add_products(np.zeros(300), ALL, out)
    np.testing.assert_array_equal(out, 0.0)


def test_products_without_any_part_add_nothing():
    """A task whose chunks are all gone."""
    out = np.zeros(3)
    products.add_dense_products([], np.zeros(0), ALL, 1.0, out)
    np.testing.assert_array_equal(out, 0.0)


@pytest.mark.parametrize("scale", [1.0, 1e25])
def test_rough_products_are_finite_and_nearly_right(scale):
    """Float32 sums for a preconditioner, and float64 ones where squares are beyond float32."""
    X, weights = (matrix_of() * scale).astype(np.float32).astype(np.float64), weights_of()
    out = np.zeros(55)
    rows_of(X, "float32").add_products(weights, ALL, out, is_rough=True)
    np.testing.assert_allclose(out, packed((augmented(X).T * weights) @ augmented(X)), rtol=1e-3, atol=1e-5 * scale**2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_curved_product_is_that_of_numpy(kind):
    """One look at the rows, or two."""
    X, weights, vector = matrix_of(), weights_of(), np.arange(10.0)
    Z = augmented(X)
    found = rows_of(X, kind).curved_product(weights, vector)
    np.testing.assert_allclose(found, Z.T @ (weights * (Z @ vector)), rtol=1e-5 if kind == "float32" else 1e-12)


@pytest.mark.parametrize("size", [1, 5, products.MOST_LISTED + 1])
def test_packed_triangles_come_back(size):
    """Small ones by a list of places, large ones row by row."""
    H = np.random.default_rng(0).normal(size=(size, size))
    out = np.zeros(size * (size + 1) // 2)
    products.pack(H, out)
    np.testing.assert_array_equal(out, packed(H))
    np.testing.assert_array_equal(products.unpack(out, size), np.tril(H))
    np.testing.assert_array_equal(products.packed_diagonal(out, size), np.diag(H))


class CountedRows:
    """Rows that count how many of them were multiplied."""

    def __init__(self, inner):
        self.inner, self.num_read = inner, 0

    def add_products(self, weights, columns, out, *, is_rough=False):
        """Of the rows inside."""
        self.num_read += np.count_nonzero(weights)
        self.inner.add_products(weights, columns, out, is_rough=is_rough)


def test_sums_are_updated_by_the_rows_that_changed_sides():
    """Right after every update, from few rows, and found anew now and then."""
    rng = np.random.default_rng(3)
    X, upper = matrix_of(), rng.uniform(0, 2, size=300)
    upper[3] = 0.0
    counted = CountedRows(rows_of(X, "dense"))
    blocks = Blocks(counted, 2.0 * upper, is_rough=False)
    is_curved = rng.random(300) < 0.8
    reads = []
    for _ in range(MOST_UPDATES + 3):
        curvatures, out, before = 2.0 * upper * is_curved, np.zeros(55), counted.num_read
        blocks.add(0, curvatures, ALL, out)
        blocks.end_pass()
        reads.append(counted.num_read - before)
        np.testing.assert_allclose(out, packed((augmented(X).T * curvatures) @ augmented(X)), rtol=1e-10, atol=1e-10)
        is_curved = is_curved ^ (rng.random(300) < 0.03)
    assert max(reads[1 : MOST_UPDATES + 1]) < 40
    assert sum(read > 150 for read in reads) == 2


def test_sums_stay_known_when_all_bounds_grow():
    """As many times as large, they are updated by the rows that changed sides since."""
    rng = np.random.default_rng(3)
    X, upper = matrix_of(), rng.uniform(0, 2, size=300)
    counted = CountedRows(rows_of(X, "dense"))
    blocks = Blocks(counted, 2.0 * upper, is_rough=False)
    is_curved = rng.random(300) < 0.8
    blocks.add(0, 2.0 * upper * is_curved, ALL, np.zeros(55))
    blocks.end_pass()
    blocks.scale(3.7)
    is_curved = is_curved ^ (rng.random(300) < 0.03)
    curvatures, out, before = 3.7 * 2.0 * upper * is_curved, np.zeros(55), counted.num_read
    blocks.add(0, curvatures, ALL, out)
    assert counted.num_read - before < 40
    np.testing.assert_allclose(out, packed((augmented(X).T * curvatures) @ augmented(X)), rtol=1e-10, atol=1e-10)


def test_what_a_huge_row_leaves_behind_is_found_anew():
    """Taken away again, values of 1e16 would leave the rounding of 1e16 behind."""
    X = matrix_of()
    X[5] = 1e9
    blocks = Blocks(rows_of(X, "dense"), np.ones(300), is_rough=False)
    curvatures = np.ones(300)
    blocks.add(0, curvatures, ALL, np.zeros(55))
    blocks.end_pass()
    curvatures, out = curvatures.copy(), np.zeros(55)
    curvatures[5] = 0.0
    blocks.add(0, curvatures, ALL, out)
    np.testing.assert_allclose(out, packed((augmented(X).T * curvatures) @ augmented(X)), rtol=1e-12, atol=1e-12)


def test_outputs_with_the_same_second_derivatives_share_their_sum():
    """As all of them at w = 0; but not across passes."""
    counted = CountedRows(rows_of(matrix_of(), "dense"))
    blocks = Blocks(counted, None, is_rough=False)
    sums = [np.zeros(55) for _ in range(3)]
    for k, out in enumerate(sums):
        blocks.add(k, np.full(300, 0.25), ALL, out)
    assert counted.num_read == 300
    for out in sums[1:]:
        np.testing.assert_array_equal(out, sums[0])
    blocks.end_pass()
    blocks.add(0, np.full(300, 0.25), ALL, np.zeros(55))
    assert counted.num_read == 600


def sums_of(loss, X, signs, upper, cuts, kind, w, direction):
    """What a task adds up over these rows after a step along `direction`."""
    plan = NewtonPlan(loss=loss, tol=1e-3, num_outputs=1, D=X.shape[1] + 1, block_columns=X.shape[1] + 1)
    output = OutputState(direction=direction, gradient=np.zeros(plan.D), serial=1)
    state = NewtonState(block_columns=plan.block_columns, row_step=1, has_many_rows=False, share=0.9, outputs=[output])
    sums = np.zeros(plan.sums_size(state))
    (part,) = plan.sums(state, sums)
    NewtonPasses(plan, rows_of(X, kind, cuts=cuts), upper).run(0, output, w, signs, np.zeros(0), part)
    return sums, part


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("loss", SMOOTH)
def test_sums_of_two_tasks_are_those_of_one(loss, kind):
    """Losses, gradient and second derivatives, C_i = 0 and huge margins included, and they are what they should be."""
    rng = np.random.default_rng(1)
    X, signs, upper = matrix_of(), rng.choice([-1.0, 1.0], size=300), rng.uniform(0, 3, size=300)
    upper[::7] = 0.0
    X[11] *= 1e8
    w, direction = rng.normal(size=10), rng.normal(size=10)
    whole, part = sums_of(loss, X, signs, upper, (0, 40, 41, 130, 300), kind, w, direction)
    halves = [
        sums_of(loss, X[s], signs[s], upper[s], cuts, kind, w, direction)[0]
        for s, cuts in ((slice(0, 41), (0, 40, 41)), (slice(41, 300), (0, 89, 259)))
    ]
    both = halves[0] + halves[1]
    both[1:11] /= 2  # the direction of each
    np.testing.assert_allclose(both, whole, rtol=1e-9, atol=1e-9)
    margins = signs * (augmented(X) @ (w + direction))
    assert part.values[0, 0] == pytest.approx(primal_losses(loss, margins, upper).sum(), rel=1e-12)
    assert np.isfinite(whole).all()


@pytest.mark.parametrize("phase", list(NewtonPhase))
@pytest.mark.parametrize("keeps_block", [True, False])
def test_a_state_comes_back_from_its_vector(phase, keeps_block):
    """Every scalar with its type, and the vectors of its phase."""
    rng = np.random.default_rng(0)
    D, outputs = 4, []
    for serial in range(3):
        output = OutputState(phase=phase, gap=0.5, serial=serial, keeps_block=keeps_block, is_checked=True)
        for name in ("direction", "gradient", "p", "x", "r", "scale", "point"):
            setattr(output, name, rng.normal(size=D))
        output.factor, output.columns = rng.normal(size=3), np.array([1, 3])
        outputs.append(output)
    state = NewtonState(block_columns=2, row_step=5, has_many_rows=False, share=0.25, outputs=outputs)
    found = NewtonState.decode(state.encode(), 3 * D)
    assert (found.block_columns, found.row_step, found.share) == (2, 5, 0.25)
    for before, after in zip(outputs, found.outputs, strict=True):
        assert after.phase is phase
        assert after.serial == before.serial
        assert isinstance(after.serial, int)
        assert after.keeps_block is keeps_block
        assert after.is_checked is True
        if phase is not NewtonPhase.REST:
            np.testing.assert_array_equal(after.gradient, before.gradient)
            np.testing.assert_array_equal(after.columns, before.columns)
        if phase is NewtonPhase.MULTIPLY or (keeps_block and phase is NewtonPhase.EVALUATE):
            np.testing.assert_array_equal(after.factor, before.factor)
            np.testing.assert_array_equal(after.scale, before.scale)


@pytest.mark.parametrize("num_tasks", [1, 3])
@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
def test_a_kept_preconditioner_leads_to_a_certificate(loss, num_tasks, monkeypatch):
    """Blocks of some of the rows: as many passes with any number of tasks, and most without a block."""
    monkeypatch.setattr(methods, "CHEAP_PRODUCTS", 0)
    monkeypatch.setattr(methods, "CHEAP_COLUMNS", 0)
    rng = np.random.default_rng(2)
    X = rng.normal(size=(1500, 20)) @ rng.normal(size=(20, 20))
    y = (X[:, 0] + rng.normal(size=1500) > 0).astype(np.int32)
    phases = []
    find = NewtonPasses.run

    def noted(self, k, output, *arguments):
        phases.append((output.phase, output.keeps_block))
        find(self, k, output, *arguments)

    monkeypatch.setattr(NewtonPasses, "run", noted)
    passes = []
    for tasks in (1, num_tasks):
        trainer = LinearTrainer(loss=loss, C=1.0, tol=1e-6)
        outcome = InProcess(num_tasks=tasks).run(Job(trainer=trainer, source=ArraySource(X, y), max_iterations=200))
        assert trainer.relative_gap(outcome.model, outcome.certificate) <= 1e-6
        passes.append(outcome.certificate.iteration)
    assert abs(passes[0] - passes[1]) <= 2
    assert phases.count((NewtonPhase.EVALUATE, True)) > phases.count((NewtonPhase.EVALUATE, False))
    assert phases.count((NewtonPhase.MULTIPLY, False)) > 0
