"""Where a chunk can be loaded from, at the start of a job and again after a loss.

A source gives the same chunk, bit for bit, however often it is asked; only the state is fresh.
"""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from chicle_elastic.chunks.split import (
    as_rows,
    choose_chunk_bytes,
    choose_rows_per_chunk,
    cut,
    num_bytes,
)
from chicle_elastic.chunks.views import TARGET_DTYPES, VALUE_DTYPES, Array, Chunk, CsrRows, DataSchema, StateSpec
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.values import ChunkInfo

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


class ChunkSource(Protocol):
    """What every source offers."""

    @property
    def schema(self) -> DataSchema:
        """What all its chunks have in common."""
        ...

    def infos(self, state: StateSpec) -> tuple[ChunkInfo, ...]:
        """All chunks, by id from 0, with their sizes when they carry `state`."""
        ...

    def load(self, chunk_id: ChunkId, state: StateSpec) -> Chunk:
        """The chunk, with fresh state."""
        ...


class ArraySource:
    """Chunks of arrays in memory.

    Args:
        X: ndarray of shape (num_rows, num_features), C-contiguous, one of `views.VALUE_DTYPES`; or a CSR matrix
            (sorted indices, no duplicates) of float32 or float64.
        y: ndarray of shape (num_rows,), one of `views.TARGET_DTYPES`.
        weights: ndarray of shape (num_rows,), float32 or float64, or None.
        num_classes: Where `y` holds class codes, how many there are; else 0.
        max_tasks: Largest number of tasks the job will have; chunks are cut so that each has some.
        chunk_bytes: Size of a chunk; None chooses it (`split.choose_chunk_bytes`).
        shuffle: Whether rows are dealt to chunks at random and copied; by default with more than one task. Without,
            chunks are consecutive rows, views over `X`, `y` and `weights`.
        seed: Of the shuffle.
        sample_shape: Shape of one sample where it is not flat.

    Raises:
        UsageError: Shapes or dtypes do not fit.
    """

    def __init__(
        self,
        X: "Array | csr_matrix",
        y: Array,
        *,
        weights: Array | None = None,
        num_classes: int = 0,
        max_tasks: int = 1,
        chunk_bytes: int | None = None,
        shuffle: bool | None = None,
        seed: int = 0,
        sample_shape: tuple[int, ...] = (),
    ) -> None:
        self._rows = as_rows(X)
        self._targets = y
        self._weights = weights
        num_rows = self._rows.shape[0]
        _require_fit(self._rows.shape, self._rows.dtype, y, weights)
        total_bytes = num_bytes(self._rows) + y.nbytes
        is_image = self._rows.dtype == np.uint8
        size = choose_chunk_bytes(total_bytes, max_tasks, is_image=is_image) if chunk_bytes is None else chunk_bytes
        self._rows_per_chunk = choose_rows_per_chunk(num_rows, total_bytes, size)
        self._shuffle = max_tasks > 1 if shuffle is None else shuffle
        self._row_ids: Array = np.arange(num_rows, dtype=np.int64)
        if self._shuffle:
            self._row_ids = np.random.default_rng(seed).permutation(num_rows)
        self.schema = DataSchema(
            kind="csr" if isinstance(self._rows, CsrRows) else "dense",
            dtype=str(self._rows.dtype),
            num_rows=num_rows,
            num_features=self._rows.shape[1],
            target_dtype=str(y.dtype),
            num_classes=num_classes,
            has_weights=weights is not None,
            sample_shape=sample_shape,
        )

    @property
    def num_chunks(self) -> int:
        """Chunks that the arrays are cut into."""
        return -(-self.schema.num_rows // self._rows_per_chunk)

    def infos(self, state: StateSpec) -> tuple[ChunkInfo, ...]:
        """All chunks with their sizes; nothing is copied to find them."""
        if not isinstance(self._rows, CsrRows):
            row_bytes = self._rows.itemsize * self._rows.shape[1]
            sizes = [row_bytes * len(self._ids(number)) for number in range(self.num_chunks)]
        else:
            entry_bytes = self._rows.indices.itemsize + self._rows.values.itemsize
            lengths = np.diff(self._rows.indptr)
            sizes = [
                int(lengths[ids].sum()) * entry_bytes + (len(ids) + 1) * self._rows.indptr.itemsize
                for ids in map(self._ids, range(self.num_chunks))
            ]
        row_bytes = self._targets.itemsize + (0 if self._weights is None else self._weights.itemsize) + 8
        infos = []
        for number, size in enumerate(sizes):
            num_rows = len(self._ids(number))
            size_bytes = size + num_rows * row_bytes + state.size_bytes(num_rows)
            infos.append(ChunkInfo(id=ChunkId(number), num_rows=num_rows, size_bytes=size_bytes))
        return tuple(infos)

    def load(self, chunk_id: ChunkId, state: StateSpec) -> Chunk:
        """The chunk, with fresh state.

        Raises:
            UsageError: There is no such chunk.
        """
        if not 0 <= chunk_id < self.num_chunks:
            raise UsageError(f"there is no chunk {chunk_id}; these arrays are cut into {self.num_chunks} chunks")
        return cut(chunk_id, self._rows, self._targets, self._weights, self._ids(chunk_id), state, copy=self._shuffle)

    def _ids(self, number: int) -> Array:
        """Global row ids of a chunk."""
        start = number * self._rows_per_chunk
        return self._row_ids[start : start + self._rows_per_chunk]


def _require_fit(shape: tuple[int, int], dtype: np.dtype[Any], y: Array, weights: Array | None) -> None:
    if str(dtype) not in VALUE_DTYPES:
        raise UsageError(f"features of dtype {dtype} cannot be chunked; use one of {VALUE_DTYPES}")
    if shape[0] == 0:
        raise UsageError("there are no rows to cut into chunks")
    if y.shape != (shape[0],) or str(y.dtype) not in TARGET_DTYPES:
        raise UsageError(
            f"targets must have shape ({shape[0]},) and one of the dtypes {TARGET_DTYPES}, got {y.shape} and {y.dtype}"
        )
    if weights is not None and weights.shape != (shape[0],):
        raise UsageError(f"weights must have shape ({shape[0]},), got {weights.shape}")
