"""Small chunks of every kind, made by formula: the same arrays on every machine and with every version of NumPy."""

import numpy as np

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.views import Array, Chunk, CsrRows, StateSpec
from chicle_elastic.ids import ChunkId
from chicle_elastic.values import StateVersion

VERSION = StateVersion(round=3, iteration=17)
CHUNKS = {
    # name: kind, value dtype, index dtype, target dtype, weight dtype or "", state
    "dense-float32": ("dense", "float32", "", "int32", "", StateSpec(outputs=1, width=1, dtype="float64")),
    "dense-float64-weights": ("dense", "float64", "", "float64", "float32", StateSpec()),
    "dense-uint8": ("dense", "uint8", "", "int32", "", StateSpec(outputs=1, width=2, dtype="uint8")),
    "csr-float32-int32": (
        "csr",
        "float32",
        "int32",
        "int32",
        "float64",
        StateSpec(outputs=3, width=1, dtype="float32"),
    ),
    "csr-float64-int64": ("csr", "float64", "int64", "float32", "", StateSpec(outputs=2, width=2, dtype="int32")),
}


def sample_chunk(name: str, *, num_rows: int = 11, num_features: int = 5) -> Chunk:
    """The chunk of this name; its number is the position in `CHUNKS`."""
    kind, value_dtype, index_dtype, target_dtype, weight_dtype, spec = CHUNKS[name]
    numbers = np.arange(num_rows * num_features)
    values = (numbers * 7 % 31 / 4).astype(value_dtype).reshape(num_rows, num_features)
    rows = values if kind == "dense" else _csr(values, index_dtype)
    state_size = num_rows * spec.outputs * spec.width
    return Chunk(
        id=ChunkId(list(CHUNKS).index(name)),
        rows=rows,
        targets=(np.arange(num_rows) % 3).astype(target_dtype),
        weights=(np.arange(num_rows) / 2 + 0.25).astype(weight_dtype) if weight_dtype else None,
        row_ids=np.arange(num_rows, dtype=np.int64) * 3 + 1,
        state=(np.arange(state_size) * 5 % 17).astype(spec.dtype).reshape(spec.shape(num_rows)),
    )


def encoded(chunk: Chunk) -> Array:
    """The bytes of a chunk, sealed with `VERSION`; ndarray of shape (size_bytes,), uint8."""
    content = layout.empty_buffer(layout.encoded_bytes(chunk))
    layout.encode(chunk, content, version=VERSION)
    return content


def assert_same_chunk(found: Chunk, expected: Chunk) -> None:
    """Same numbers, dtypes and shapes everywhere; CSR rows may start elsewhere."""
    assert found.id == expected.id
    assert found.num_features == expected.num_features
    for name in ("targets", "weights", "row_ids", "state"):
        assert_same_array(getattr(found, name), getattr(expected, name))
    assert_same_array(dense(found), dense(expected))
    assert found.is_sparse == expected.is_sparse


def assert_same_array(found: Array | None, expected: Array | None) -> None:
    """Same bits."""
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()


def dense(chunk: Chunk) -> Array:
    """The rows as a dense matrix."""
    return chunk.rows.to_scipy().toarray() if isinstance(chunk.rows, CsrRows) else chunk.rows


def _csr(values: Array, index_dtype: str) -> CsrRows:
    """The entries above 2 of a matrix, and no entry in its third row."""
    is_stored = values > 2
    is_stored[2:3] = False
    indptr = np.concatenate([[0], np.cumsum(is_stored.sum(axis=1))]).astype(index_dtype)
    return CsrRows(indptr, np.nonzero(is_stored)[1].astype(index_dtype), values[is_stored], values.shape[1])
