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
from chicle_elastic.solvers.linear.losses import margin_loss
from chicle_elastic.solvers.linear.newton.passes import NewtonPasses
from chicle_elastic.solvers.linear.newton.state import Block, Evaluation, NewtonPhase, NewtonState, OutputState, Problem
from chicle_elastic.solvers.linear.objectives import Loss, primal_losses
from chicle_elastic.solvers.linear.rows import ALL, NewtonRows, in_place
from chicle_elastic.solvers.linear.tables import Bounds, build_tables
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.local_chunk import Gate, LocalChunk

OPEN = Gate("the test")
OPEN.open(1)
SMOOTH = [Loss.SQUARED_HINGE, Loss.LOGISTIC]
KINDS = ["dense", "float32", "csr", "merged dense", "merged csr"]
NARROWER_TYPES = ["float32", "float16", "uint8"]


def matrix_of(num_rows=300, num_features=9, density=0.4, seed=0):
    """Rows with zeros in them, some of them all zeros."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, num_features)) * (rng.random((num_rows, num_features)) < density)
    X[7] = 0.0
    return X.astype(np.float32).astype(np.float64)


def tables_of(X, kind, cuts=(0, 40, 41, 130, 300)):
    """The rows of X in chunks."""
    chunks = {}
    for start, stop in itertools.pairwise(cuts):
        part = np.ascontiguousarray(X[start:stop].astype(kind if kind in NARROWER_TYPES else np.float64))
        csr = scipy.sparse.csr_matrix(part.astype(np.float64))
        chunk = Chunk(
            id=ChunkId(start),
            rows=CsrRows(csr.indptr, csr.indices, csr.data, X.shape[1]) if kind.endswith("csr") else part,
            targets=np.zeros(stop - start, np.int32),
            row_ids=np.arange(start, stop),
            state=np.zeros((stop - start, 1, 1)),
        )
        chunks[chunk.id] = LocalChunk(chunk, OPEN)
    return build_tables(chunks, {}, Bounds(C=1.0, class_weights=None))


def rows_of(X, kind, intercept=0.5, cuts=(0, 40, 41, 130, 300)):
    """The rows of X as a matrix."""
    tables = tables_of(X, kind, cuts)
    return NewtonRows.of(tables.keep_alive, intercept) if kind.startswith("merged") else in_place(tables, intercept)


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
    monkeypatch.setattr(products, "CACHED_VALUES", 512)
    X, weights, columns = matrix_of(), weights_of(), np.array(columns, dtype=np.int64)
    Z = augmented(X, intercept)[:, columns if len(columns) else slice(None)]
    out = np.ones(Z.shape[1] * (Z.shape[1] + 1) // 2)
    rows_of(X, kind, intercept).add_products(weights, columns, out)
    np.testing.assert_allclose(out, 1.0 + packed((Z.T * weights) @ Z), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("is_rough", [True, False])
@pytest.mark.parametrize("has_all", [True, False])
@pytest.mark.parametrize("kind", [*KINDS, "float16", "uint8"])
def test_sums_at_scores_are_those_of_numpy(kind, has_all, is_rough, monkeypatch):
    """Of several vectors in one pass, over chunks, blocks of rows and a fold; in float32 to its digits."""
    monkeypatch.setattr(rows, "MOST_ROWS", 7)
    X = matrix_of()
    X = np.abs(10 * X).round() if kind == "uint8" else X.astype(np.float16).astype(np.float64)
    which = None if has_all else np.flatnonzero(np.arange(300) % 3)
    rng, chosen, Z = np.random.default_rng(1), slice(None) if has_all else which, augmented(X)
    vectors, weights, seen = rng.normal(size=(3, 10)), rng.normal(size=(3, 300)), []

    def curve(part, scores):
        seen.extend(np.arange(300)[part])
        return weights[:, part] * scores

    found = rows_of(X, kind).curved(vectors, curve, which, is_rough=is_rough)
    expected = (weights * (vectors @ Z.T))[:, chosen] @ Z[chosen]
    np.testing.assert_allclose(found, expected, rtol=1e-4 if is_rough else 1e-12, atol=1e-2 if is_rough else 1e-10)
    assert seen == list(np.arange(300)[chosen])


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_parts_of_tables_have_the_rows_of_their_chunks(kind):
    """Cut between chunks, nearest to where the rows are halved; every chunk is in one part."""
    X, vector = matrix_of(), np.arange(10.0)
    tables = tables_of(X, kind)
    assert [tables.even_cuts(most) for most in (1, 2, 3, 9)] == [[0, 4], [0, 3, 4], [0, 3, 4], [0, 1, 2, 3, 4]]
    parts = [in_place(tables.part(begin, end), 0.5) for begin, end in ((0, 2), (2, 4))]
    assert [part.num_rows for part in parts] == [41, 259]
    found = np.concatenate([part.times(vector) for part in parts])
    np.testing.assert_allclose(found, augmented(X) @ vector, rtol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e25])
def test_rough_products_are_finite_and_nearly_right(scale):
    """Float32 sums for a preconditioner, and float64 ones where squares are beyond float32."""
    X, weights = (matrix_of() * scale).astype(np.float32).astype(np.float64), weights_of()
    out = np.zeros(55)
    rows_of(X, "float32").add_products(weights, ALL, out, is_rough=True)
    np.testing.assert_allclose(out, packed((augmented(X).T * weights) @ augmented(X)), rtol=1e-3, atol=1e-5 * scale**2)


@pytest.mark.parametrize("columns", [[], [0, 2, 9], [1, 4], [9]])
@pytest.mark.parametrize("is_copied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_rough_rows_are_those_of_numpy_with_and_without_a_copy_of_all(kind, is_copied, columns, monkeypatch):
    """The first rough product of sparse rows makes one where that is cheaper."""
    monkeypatch.setattr(rows, "is_rough_copy_cheaper", lambda mean, size: is_copied)
    X, weights, columns = matrix_of(), weights_of(), np.array(columns, dtype=np.int64)
    Z, which, out = augmented(X), np.array([0, 7, 40, 129, 299]), np.zeros(55)
    found = rows_of(X, kind)
    found.add_products(weights, ALL, out, is_rough=True)
    np.testing.assert_allclose(out, packed((Z.T * weights) @ Z), rtol=1e-4, atol=1e-5)
    dense = found.dense(which, columns, is_rough=True)
    assert dense.dtype == np.float32
    np.testing.assert_allclose(dense, Z[which][:, columns if len(columns) else slice(None)], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_curved_product_is_that_of_numpy(kind):
    """One look at the rows, or two."""
    X, weights, vector = matrix_of(), weights_of(), np.arange(10.0)
    Z, rtol = augmented(X), 1e-5 if kind == "float32" else 1e-12
    found = rows_of(X, kind).curved_product(weights, vector)
    np.testing.assert_allclose(found, Z.T @ (weights * (Z @ vector)), rtol=rtol)


@pytest.mark.parametrize("size", [1, 5, 600])
def test_packed_triangles_come_back(size):
    """By rows, and nothing is above the diagonal."""
    H = np.random.default_rng(0).normal(size=(size, size))
    out = np.zeros(size * (size + 1) // 2)
    products.pack(H, out)
    np.testing.assert_array_equal(out, packed(H))
    np.testing.assert_array_equal(products.unpack(out, size), np.tril(H))
    np.testing.assert_array_equal(products.packed_diagonal(out, size), np.diag(H))


def sums_of(loss, X, signs, upper, cuts, kind, w, outputs):
    """What a task adds up over these rows after a step of each output; signs and w have a row per output."""
    D = X.shape[1] + 1
    problem = Problem(loss=margin_loss(loss), tol=1e-3, has_duals=True)
    state = NewtonState(D=D, block_columns=D, outputs=outputs)
    sums = np.zeros(state.sums_size(problem))
    passes = NewtonPasses(problem, rows_of(X, kind, cuts=cuts), upper, signs, 0.5)
    parts = state.parts(sums, problem)
    for k, part in enumerate(parts):
        if len(part):
            passes.run(state, k, w[k], part)
    return sums, [Evaluation.of(state, output, problem, part) for output, part in zip(outputs, parts, strict=True)]


def stepping(direction, block=Block.EXACT):
    """An output after some steps, on its way."""
    return OutputState(phase=NewtonPhase.EVALUATE, is_first=False, block=block, direction=direction)


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("loss", [*SMOOTH, Loss.HINGE])
def test_sums_of_two_tasks_are_those_of_one(loss, kind):
    """Losses, gradient and second derivatives, C_i = 0 and huge margins included, and they are what they should be."""
    rng = np.random.default_rng(1)
    X, signs, upper = matrix_of(), rng.choice([-1.0, 1.0], size=300), rng.uniform(0, 3, size=300)
    upper[::7] = 0.0
    X[11] *= 1e8
    w, direction = rng.normal(size=10), rng.normal(size=10)
    outputs = [stepping(direction)]
    whole, (found,) = sums_of(loss, X, signs[None], upper, (0, 40, 41, 130, 300), kind, w[None], outputs)
    halves = [
        sums_of(loss, X[s], signs[None, s], upper[s], cuts, kind, w[None], outputs)[0]
        for s, cuts in ((slice(0, 41), (0, 40, 41)), (slice(41, 300), (0, 89, 259)))
    ]
    np.testing.assert_allclose(sum(halves)[: -len(found.step)], whole[: -len(found.step)], rtol=1e-9, atol=1e-9)
    margins = signs * (augmented(X) @ (w + direction))
    assert found.scalars[1] == pytest.approx(primal_losses(loss, margins, upper).sum(), rel=1e-12)
    assert np.isfinite(whole).all()


@pytest.mark.parametrize("num_tasks", [1, 3])
def test_a_kept_preconditioner_leads_to_a_certificate(num_tasks, monkeypatch):
    """Blocks of some of the rows: as many passes with any number of tasks, and most without a block."""
    monkeypatch.setattr(methods, "CHEAP_PRODUCTS", 0)
    monkeypatch.setattr(methods, "FEW_COLUMNS", 0)
    rng = np.random.default_rng(2)
    X = rng.normal(size=(1500, 20)) @ rng.normal(size=(20, 20))
    y = (X[:, 0] + rng.normal(size=1500) > 0).astype(np.int32)
    phases = []
    find = NewtonPasses.run

    def noted(self, state, k, *arguments, **more):
        phases.append((state.outputs[k].phase, state.outputs[k].block is Block.KEPT))
        find(self, state, k, *arguments, **more)

    monkeypatch.setattr(NewtonPasses, "run", noted)
    passes = []
    for tasks in (1, num_tasks):
        trainer = LinearTrainer(loss="logistic", C=1.0, tol=1e-6)
        outcome = InProcess(num_tasks=tasks).run(Job(trainer=trainer, source=ArraySource(X, y), max_iterations=200))
        assert trainer.relative_gap(outcome.model, outcome.certificate) <= 1e-6
        passes.append(outcome.certificate.iteration)
    assert passes[0] == passes[1]
    assert phases.count((NewtonPhase.EVALUATE, True)) > phases.count((NewtonPhase.EVALUATE, False))
    assert any(phase is NewtonPhase.MULTIPLY for phase, _ in phases)
