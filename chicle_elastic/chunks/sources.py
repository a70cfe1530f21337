"""Where a chunk can be loaded from, at the start of a job and again after a loss.

A source gives the same chunk, bit for bit, however often it is asked; only the state is fresh. `ArraySource` cuts
arrays that are in memory, `chunks.folder.ChunkFolder` reads files.
"""

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from chicle_elastic.chunks.blocks import zeros_per_chunk
from chicle_elastic.chunks.headers import Header
from chicle_elastic.chunks.rows import RowRange, bytes_per_row, rows_of, slice_rows, take_rows
from chicle_elastic.chunks.split import choose_chunk_bytes, cut_rows
from chicle_elastic.chunks.views import NO_STATE, Array, Chunk, CsrRows, DataSchema, Rows, StateSpec, name_of
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.values import ChunkInfo

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

ROW_ID_BYTES = 8
UNMOVED_BYTES = 8 << 20
"""Size of a chunk where one task has them all, at most, but for the rows that a cut would leave over."""
MARGIN_ROWS = 8


class ChunkSource(Protocol):
    """Something that every chunk of a data set can be built from at any time."""

    @property
    def schema(self) -> DataSchema:
        """What all chunks have in common."""
        ...

    @property
    def copies_rows(self) -> bool:
        """Whether `load` takes memory for the rows; False where it gives views of memory that is there anyway."""
        ...

    def infos(self, state: StateSpec) -> tuple[ChunkInfo, ...]:
        """All chunks, by id from 0, with the bytes that each takes together with `state` (see `layout`)."""
        ...

    def load(self, chunk_id: ChunkId, state: StateSpec) -> Chunk:
        """The chunk, with fresh state (zeros)."""
        ...


def is_shared(source: ChunkSource) -> bool:
    """Say whether every task of a job reads the very same memory, as of data that a driver has staged."""
    return bool(getattr(source, "is_shared", False))


class ArraySource:
    """Chunks of arrays in memory.

    With `shuffle` every order of the rows is equally likely, so that each chunk is a random sample of the data whatever
    order it came in (label-sorted input costs CoCoA many times the iterations), and `load` copies the rows of a chunk.
    Without it, chunks are consecutive rows, as views of the arrays: no byte of X is copied.

    The arrays must not change while a job runs, and features have to be finite: no later step checks.

    Args:
        X: ndarray of shape (num_rows, num_features), one of `VALUE_DTYPES` or bool; more axes are flattened; copied
            only where it is not C-contiguous. Or a sparse matrix, or `CsrRows`, of float32 or float64; copied only
            where it is not CSR with indices sorted and without duplicates.
        y: ndarray of shape (num_rows,): class codes from 0 (any integers, kept as int32) or real values (float32 or
            float64).
        weights: ndarray of shape (num_rows,), float32 or float64, finite and >= 0; or None.
        num_classes: How many class codes there are; None means the largest code + 1 for integers and 0 for real values.
            Integers with 0 are no codes, but values.
        max_tasks: Largest number of tasks the job will have; chunks are cut so that each has some.
        chunk_bytes: Bytes of a chunk at most, header and state not counted; None chooses by `choose_chunk_bytes`, or
            8 MiB with one task.
        shuffle: Whether to shuffle the rows; by default with more than one task.
        seed: Of the shuffle.

    Raises:
        UsageError: Shapes or dtypes do not fit.
        DataError: A target, weight or column index cannot be used; the message names the row.
    """

    schema: DataSchema

    def __init__(
        self,
        X: "Array | csr_matrix | CsrRows",
        y: Array,
        *,
        weights: Array | None = None,
        num_classes: int | None = None,
        max_tasks: int = 1,
        chunk_bytes: int | None = None,
        shuffle: bool | None = None,
        seed: int = 0,
    ) -> None:
        rows = rows_of(X)
        num_rows = int(rows.shape[0])
        self._rows: Rows = rows
        self._targets, num_classes = _checked_targets(y, num_rows, num_classes)
        self._weights = None if weights is None else _checked_weights(weights, num_rows)
        is_shuffled = max_tasks > 1 if shuffle is None else shuffle
        self._order: Array | None = None
        if is_shuffled:  # kept as long as the rows are
            self._order = np.random.default_rng(seed).permutation(num_rows).astype(np.min_scalar_type(num_rows))
        self._state_spec: StateSpec | None = None
        self._states: dict[ChunkId, Array] = {}
        sizes = bytes_per_row(rows) + self._targets.itemsize + ROW_ID_BYTES
        if self._weights is not None:
            sizes = sizes + self._weights.itemsize
        total_bytes = int(sizes.sum()) if isinstance(sizes, np.ndarray) else sizes * num_rows
        is_image = rows.dtype == np.uint8
        # With one task there is nothing to move, and every chunk costs some time. Chunks of one size are shared evenly
        # by the threads; the margin is for rows that a cut would leave over.
        num_chunks = -(-total_bytes // UNMOVED_BYTES)
        default_bytes = -(-total_bytes // num_chunks) + MARGIN_ROWS * total_bytes // num_rows
        if max_tasks != 1 or is_image:
            default_bytes = choose_chunk_bytes(total_bytes, max_tasks, is_image=is_image)
        if isinstance(sizes, np.ndarray) and self._order is not None:
            sizes = sizes[self._order]
        self._cuts = cut_rows(sizes, num_rows, default_bytes if chunk_bytes is None else chunk_bytes)
        self.schema = DataSchema(
            kind="csr" if isinstance(rows, CsrRows) else "dense",
            dtype=name_of(rows.dtype),
            num_rows=num_rows,
            num_features=int(rows.shape[1]),
            target_dtype=name_of(self._targets.dtype),
            num_classes=num_classes,
            has_weights=weights is not None,
            sample_shape=tuple(X.shape[1:]) if isinstance(X, np.ndarray) and X.ndim > 2 else (),
        )

    @property
    def copies_rows(self) -> bool:
        """Whether the rows are shuffled, and `load` therefore copies them."""
        return self._order is not None

    @property
    def num_chunks(self) -> int:
        """Chunks that the arrays are cut into."""
        return len(self._cuts) - 1

    @property
    def num_values(self) -> int:
        """Feature values that are stored."""
        return self._rows.num_nonzeros if isinstance(self._rows, CsrRows) else int(self._rows.size)

    @property
    def chunk_rows(self) -> list[int]:
        """Rows of each chunk."""
        return [stop - start for start, stop in itertools.pairwise(self._cuts)]

    def infos(self, state: StateSpec) -> tuple[ChunkInfo, ...]:
        """All chunks, by id from 0, with the bytes that each takes together with `state`; no row is copied for it."""
        return tuple(self._info(ChunkId(number), state) for number in range(self.num_chunks))

    def loader(self) -> Callable[[ChunkId], Chunk]:
        """Return what gives chunks without state, for one thread: a chunk may use the memory of the one before it, so
        that shuffled rows are copied within a cache."""
        buffer: Array | None = None
        if self._order is not None and not isinstance(self._rows, CsrRows):
            buffer = np.empty((max(self.chunk_rows), self._rows.shape[1]), self._rows.dtype)
        return lambda chunk_id: self._load(chunk_id, NO_STATE, buffer)

    def load(self, chunk_id: ChunkId, state: StateSpec) -> Chunk:
        """The chunk, with fresh state. Raises UsageError when there is no such chunk."""
        return self._load(chunk_id, state, None)

    def _load(self, chunk_id: ChunkId, state: StateSpec, buffer: Array | None) -> Chunk:
        if not 0 <= chunk_id < self.num_chunks:
            raise UsageError(f"there is no chunk {chunk_id}; these arrays are cut into {self.num_chunks} chunks")
        start, stop = self._span(chunk_id)
        if self._order is None:
            row_ids: Any = RowRange(start, stop)
            selected: Any = slice(start, stop)
            rows = slice_rows(self._rows, start, stop)
        else:
            row_ids = selected = self._order[start:stop].astype(np.int64)
            rows = take_rows(self._rows, row_ids, None if buffer is None else buffer[: stop - start])
        return Chunk(
            id=chunk_id,
            rows=rows,
            targets=self._targets[selected],
            weights=None if self._weights is None else self._weights[selected],
            row_ids=row_ids,
            state=self._fresh_state(chunk_id, state),
        )

    def __getstate__(self) -> dict[str, Any]:
        # Fresh state is made where it is loaded.
        return {**self.__dict__, "_state_spec": None, "_states": {}}

    def __repr__(self) -> str:
        schema = self.schema
        return (
            f"ArraySource({schema.num_rows} x {schema.num_features} {schema.kind} {schema.dtype}, "
            f"{self.num_chunks} chunks)"
        )

    def _fresh_state(self, chunk_id: ChunkId, state: StateSpec) -> Array:
        """Zeros: for the first load of every chunk in one block for all, later ones apart."""
        start, stop = self._span(chunk_id)
        if self._state_spec is None and self._order is None:
            self._state_spec = state
            blocks = zeros_per_chunk(self.chunk_rows, state.shape(0)[1:], state.dtype)
            self._states = dict(zip(map(ChunkId, range(self.num_chunks)), blocks, strict=True))
        if state == self._state_spec and chunk_id in self._states:
            return self._states.pop(chunk_id)
        return state.zeros(stop - start)

    def _span(self, chunk_id: int) -> tuple[int, int]:
        return self._cuts[chunk_id], self._cuts[chunk_id + 1]

    def _info(self, chunk_id: ChunkId, state: StateSpec) -> ChunkInfo:
        start, stop = self._span(chunk_id)
        rows = self._rows
        index_dtype, num_nonzeros = "", 0
        if isinstance(rows, CsrRows):
            index_dtype = name_of(rows.indices.dtype)
            if self._order is None:
                num_nonzeros = int(rows.indptr[stop]) - int(rows.indptr[start])
            else:
                positions = self._order[start:stop]
                num_nonzeros = int((rows.indptr[positions + 1] - rows.indptr[positions]).sum())
        header = Header(
            chunk_id=chunk_id,
            kind=self.schema.kind,
            value_dtype=self.schema.dtype,
            index_dtype=index_dtype,
            target_dtype=self.schema.target_dtype,
            weight_dtype="" if self._weights is None else name_of(self._weights.dtype),
            num_rows=stop - start,
            num_features=self.schema.num_features,
            num_nonzeros=num_nonzeros,
        )
        return ChunkInfo(id=chunk_id, num_rows=stop - start, size_bytes=header.encoded_bytes(state))


def _checked_targets(y: Array, num_rows: int, num_classes: int | None) -> tuple[Array, int]:
    """The targets in a dtype that chunks hold, without gaps, and the number of classes."""
    targets = np.ascontiguousarray(y)
    if np.shape(y) != (num_rows,):
        raise UsageError(f"X has {num_rows} rows, so y needs the shape ({num_rows},), not {np.shape(y)}")
    if targets.dtype.kind in "iu":
        return _checked_codes(targets, num_classes)
    if targets.dtype not in (np.float32, np.float64):
        raise UsageError(
            f"y has dtype {targets.dtype}; pass class codes (integers from 0, as np.unique(y, return_inverse=True) "
            "makes them) or real values (float32 or float64)"
        )
    if num_classes:
        raise UsageError(f"y has dtype {targets.dtype}, but num_classes={num_classes} needs class codes: pass integers")
    _refuse_rows(~np.isfinite(targets), targets, "the target", "is not finite")
    return targets, 0


def _checked_codes(targets: Array, num_classes: int | None) -> tuple[Array, int]:
    limits = np.iinfo(np.int32)
    if num_classes == 0:
        least, most, complaint = int(limits.min), int(limits.max), "does not fit int32"
    else:
        least, most = 0, int(limits.max) if num_classes is None else num_classes - 1
        complaint = f"is no class code; codes go from 0 to {most}"
    lowest, highest = int(targets.min()), int(targets.max())
    if lowest < least or highest > most:
        _refuse_rows((targets < least) | (targets > most), targets, "the target", complaint)
    return targets.astype(np.int32, copy=False), highest + 1 if num_classes is None else num_classes


def _checked_weights(weights: Array, num_rows: int) -> Array:
    contiguous = np.ascontiguousarray(weights)
    if np.shape(weights) != (num_rows,) or contiguous.dtype not in (np.float32, np.float64):
        raise UsageError(
            f"weights need the shape ({num_rows},) and the dtype float32 or float64, not {np.shape(weights)} and "
            f"{contiguous.dtype}"
        )
    is_good = np.isfinite(contiguous) & (contiguous >= 0)
    _refuse_rows(~is_good, contiguous, "the weight", "is not a finite number >= 0")
    return contiguous


def _refuse_rows(is_bad: Array, values: Array, what: str, complaint: str) -> None:
    if is_bad.any():
        row = int(np.argmax(is_bad))
        raise DataError(f"row {row}: {what} {values[row].item()!r} {complaint}; correct it, or leave the row out")
