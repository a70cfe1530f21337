"""Arrays as a source of chunks: views with one task, shuffled copies for more, the same chunk each time."""

import pickle

import numpy as np
import pytest
from scipy import sparse

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import NO_STATE, Array, Chunk, CsrRows, StateSpec
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.ids import ChunkId
from tests.chunks.samples import assert_same_chunk, dense

DUALS = StateSpec(outputs=2, width=1, dtype="float64")


def samples(num_rows: int = 203, num_features: int = 7) -> tuple[Array, Array, Array]:
    """X (float64, a third not 0), y (0, 1, 2) and weights."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_rows, num_features)) * (rng.random((num_rows, num_features)) < 0.3)
    return X, rng.integers(3, size=num_rows), rng.random(num_rows)


def load_all(source: ArraySource, state: StateSpec = NO_STATE) -> list[Chunk]:
    """All chunks."""
    return [source.load(info.id, state) for info in source.infos(state)]


def is_view_of(chunk: Chunk, X: Array, y: Array, weights: Array) -> bool:
    """Whether no array of the chunk has memory of its own."""
    assert isinstance(chunk.rows, np.ndarray)
    assert chunk.weights is not None
    return (
        np.shares_memory(chunk.rows, X)
        and np.shares_memory(chunk.targets, y)
        and np.shares_memory(chunk.weights, weights)
    )


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("max_tasks", [1, 4])
def test_the_chunks_hold_every_row_once_with_all_that_belongs_to_it(max_tasks: int, is_sparse: bool) -> None:
    """Row ids are those of the caller's arrays; chunks are numbered from 0."""
    X, y, weights = samples()
    source = ArraySource(sparse.csr_matrix(X) if is_sparse else X, y, weights=weights, max_tasks=max_tasks)
    chunks = load_all(source, DUALS)
    assert [chunk.id for chunk in chunks] == list(range(source.num_chunks))
    assert len(chunks) == 1 if max_tasks == 1 else len(chunks) >= 16 * max_tasks  # one task has nothing to move
    assert sorted(np.concatenate([chunk.row_ids for chunk in chunks])) == list(range(len(X)))
    for chunk in chunks:
        assert chunk.row_ids.dtype == np.int64
        assert np.array_equal(dense(chunk), X[chunk.row_ids])
        assert np.array_equal(chunk.targets, y[chunk.row_ids])
        assert chunk.weights is not None
        assert np.array_equal(chunk.weights, weights[chunk.row_ids])
        assert chunk.state.shape == (chunk.num_rows, 2, 1)
        assert not chunk.state.any()


def test_with_one_task_chunks_are_views_in_the_order_of_the_caller() -> None:
    """Nothing of X is copied."""
    X, y, weights = samples()
    y = y.astype(np.int32)
    chunks = load_all(ArraySource(X, y, weights=weights))
    assert all(is_view_of(chunk, X, y, weights) for chunk in chunks)
    assert np.array_equal(np.concatenate([chunk.row_ids for chunk in chunks]), np.arange(len(X)))
    matrix = sparse.csr_matrix(X)
    for chunk in load_all(ArraySource(matrix, y)):
        assert isinstance(chunk.rows, CsrRows)
        assert np.shares_memory(chunk.rows.values, matrix.data)
        assert np.shares_memory(chunk.rows.indices, matrix.indices)


@pytest.mark.parametrize("max_tasks", [1, 4])
def test_a_chunk_is_the_same_bit_for_bit_whenever_it_is_loaded(max_tasks: int) -> None:
    """In any order, after a state was written, from another source with the same seed, and from a pickle."""
    X, y, weights = samples()
    source = ArraySource(X, y, weights=weights, max_tasks=max_tasks, seed=5)
    first = load_all(source, DUALS)
    for chunk in first:
        chunk.state[...] = 1
    for other in (source, ArraySource(X, y, weights=weights, max_tasks=max_tasks, seed=5)):
        for chunk in reversed(first):
            chunk.state[...] = 0
            assert_same_chunk(other.load(chunk.id, DUALS), chunk)
    copy = pickle.loads(pickle.dumps(source))
    last = first[-1].id
    assert_same_chunk(copy.load(last, DUALS), source.load(last, DUALS))


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("has_weights", [False, True])
def test_infos_say_what_a_chunk_takes_in_an_arena(is_sparse: bool, shuffle: bool, has_weights: bool) -> None:
    """To the byte, state included, before any chunk is loaded."""
    X, y, weights = samples()
    source = ArraySource(
        sparse.csr_matrix(X) if is_sparse else X,
        y,
        weights=weights if has_weights else None,
        shuffle=shuffle,
        chunk_bytes=1000,
    )
    for state in (NO_STATE, DUALS):
        for info in source.infos(state):
            chunk = source.load(info.id, state)
            assert (info.num_rows, info.size_bytes) == (chunk.num_rows, layout.encoded_bytes(chunk))


@pytest.mark.parametrize("shuffle", [False, True])
def test_csr_rows_of_very_different_lengths_make_chunks_of_one_size(shuffle: bool) -> None:
    """A slot has to hold the largest: one long row does not drag its neighbours along."""
    lengths = np.where(np.arange(500) % 50 == 0, 400, 3)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.concatenate([np.arange(length) for length in lengths])
    rows = CsrRows(indptr, indices, np.ones(len(indices)), 400)
    source = ArraySource(rows, np.zeros(500), chunk_bytes=8000, shuffle=shuffle)
    sizes = [info.size_bytes for info in source.infos(NO_STATE)]
    assert max(sizes) < 8000 + 256 + 6 * 64
    assert source.num_chunks < 3 * sum(sizes) / 8000


def test_the_schema_says_what_all_chunks_have_in_common() -> None:
    """Classes are counted from integer targets, real targets have none."""
    X, y, weights = samples()
    schema = ArraySource(sparse.csr_matrix(X.astype(np.float32)), y, weights=weights).schema
    assert (schema.kind, schema.dtype, schema.num_rows, schema.num_features) == ("csr", "float32", 203, 7)
    assert (schema.target_dtype, schema.num_classes, schema.has_weights) == ("int32", 3, True)
    assert ArraySource(X, y, num_classes=5).schema.num_classes == 5
    real = ArraySource(X, y.astype(np.float32)).schema
    assert (real.target_dtype, real.num_classes, real.has_weights) == ("float32", 0, False)
    values = ArraySource(X, y - 5, num_classes=0).schema
    assert (values.target_dtype, values.num_classes) == ("int32", 0)


def test_images_stay_bytes_in_chunks_of_200_kib() -> None:
    """The schema remembers the shape of one."""
    images = np.zeros((4000, 3, 32, 32), np.uint8)
    source = ArraySource(images, np.zeros(4000, int))
    assert source.schema.sample_shape == (3, 32, 32)
    assert source.schema.dtype == "uint8"
    assert {info.num_rows for info in source.infos(NO_STATE)} == {64, 4000 % 64 or 64}


def test_targets_and_weights_with_gaps_are_copied() -> None:
    """Kernels reach them by address: a column of a table would be read wrongly."""
    X, _, _ = samples(num_rows=20)
    table = np.arange(40.0).reshape(20, 2)
    for chunk in load_all(ArraySource(X, table[:, 0], weights=table[:, 1], chunk_bytes=10_000)):
        assert chunk.num_rows > 1
        assert chunk.targets.flags.c_contiguous
        assert chunk.weights is not None
        assert chunk.weights.flags.c_contiguous
        assert np.array_equal(chunk.targets, table[chunk.row_ids, 0])


def with_value(array: Array, row: int, value: float) -> Array:
    """A copy of the array with one other value."""
    copy = array.copy()
    copy[row] = value
    return copy


X, Y, WEIGHTS = samples(num_rows=10)


@pytest.mark.parametrize(
    ("targets", "options", "error", "message"),
    [
        (Y[:9], {}, UsageError, r"10 rows, so y needs the shape \(10,\), not \(9,\)"),
        (Y.astype(str), {}, UsageError, "y has dtype <U21; pass class codes"),
        (Y.astype(">f8"), {}, UsageError, "y has dtype >f8"),
        (with_value(Y, 4, -1), {}, DataError, "row 4: the target -1 is no class code"),
        (with_value(Y, 4, 7), {"num_classes": 3}, DataError, "row 4: the target 7 .* from 0 to 2"),
        (with_value(Y, 4, 2**31), {}, DataError, "row 4: the target 2147483648"),
        (with_value(Y, 4, 2**31), {"num_classes": 0}, DataError, "row 4: .* does not fit int32"),
        (Y / 2, {"num_classes": 3}, UsageError, "num_classes=3 needs class codes"),
        (with_value(Y / 2, 4, np.nan), {}, DataError, "row 4: the target nan is not finite"),
        (Y, {"weights": WEIGHTS[:9]}, UsageError, r"weights need the shape \(10,\)"),
        (Y, {"weights": np.ones(10, int)}, UsageError, "float32 or float64, not .* int64"),
        (Y, {"weights": with_value(WEIGHTS, 4, -1)}, DataError, "row 4: the weight -1.0 is not a finite number >= 0"),
        (Y, {"weights": with_value(WEIGHTS, 4, np.inf)}, DataError, "row 4: the weight inf"),
        (Y, {"chunk_bytes": 0}, UsageError, "chunks of 0 bytes"),
        (Y, {"max_tasks": 0}, UsageError, "max_tasks=0"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(
    targets: Array, options: dict[str, object], error: type[Exception], message: str
) -> None:
    """The message names the argument, or the row and its value."""
    with pytest.raises(error, match=message):
        ArraySource(X, targets, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [-1, 10_000])
def test_a_chunk_that_is_not_there_is_refused(number: int) -> None:
    """The message says how many there are."""
    source = ArraySource(X, Y)
    with pytest.raises(UsageError, match=rf"no chunk {number}; .* cut into {source.num_chunks} chunks"):
        source.load(ChunkId(number), NO_STATE)
