"""A chunk in memory: three regions (rows; targets and weights; state) seen through NumPy views.

The views may lie over one contiguous byte range (an arena slot, a chunk file: see `layout`) or over memory of the
caller (in-process `fit` with one task wraps it without a copy). Solvers cannot tell the difference.
"""

import dataclasses
import functools
import mmap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from chicle_elastic.errors import UsageError
from chicle_elastic.ids import ChunkId

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Array: TypeAlias = npt.NDArray[Any]

READ_BYTES = 1 << 17  # asked for at once: of more than its read-ahead, 128 KiB, Linux may leave out some
VALUE_DTYPES = ("float32", "float64", "uint8", "int8", "float16", "bfloat16")
"""dtypes of features; CSR rows have the first two. Others stay what they are until a kernel reads a row as float32."""
BFLOAT16 = np.dtype("V2")
"""dtype of bfloat16 in memory. NumPy has none, and makes this of an array that ml_dtypes has saved; it does not compute
with it, so that nobody takes the bits for numbers (`rows.as_floats`)."""
INDEX_DTYPES = ("int32", "int64")
TARGET_DTYPES = ("int32", "float32", "float64")
WEIGHT_DTYPES = ("float32", "float64")
STATE_DTYPES = ("float32", "float64", "int32", "uint8")
_VALUE_BYTES = {name: np.dtype(name).itemsize for name in STATE_DTYPES}


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype in memory of one of `VALUE_DTYPES`."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


@functools.cache
def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name that chunks have for a dtype in memory; NumPy spells its own name anew at each call."""
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


@dataclass(frozen=True, slots=True)
class CsrRows:
    """Rows of a CSR matrix that need not start at 0, so that a slice of the caller's matrix is a view.

    Row `i` has the columns `indices[indptr[i]:indptr[i + 1]]` and the same range of `values`.

    Attributes:
        indptr: ndarray of shape (num_rows + 1,), int32 or int64; `indptr[0]` may be > 0.
        indices: ndarray of shape (>= indptr[-1],), int32 or int64; strictly ascending within a row.
        values: ndarray of the shape of `indices`, float32 or float64.
        num_features: Number of columns.
    """

    indptr: Array
    indices: Array
    values: Array
    num_features: int

    @property
    def shape(self) -> tuple[int, int]:
        """(num_rows, num_features)."""
        return len(self.indptr) - 1, self.num_features

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of `values`."""
        return self.values.dtype

    @property
    def num_nonzeros(self) -> int:
        """Stored entries of these rows (not of the arrays behind them)."""
        return int(self.indptr[-1]) - int(self.indptr[0])

    def to_scipy(self) -> "csr_matrix":
        """These rows as a `scipy.sparse.csr_matrix`; indices and values are shared where they start at 0."""
        from scipy.sparse import csr_matrix

        start, stop = int(self.indptr[0]), int(self.indptr[-1])
        return csr_matrix(
            (self.values[start:stop], self.indices[start:stop], self.indptr - self.indptr[0]), shape=self.shape
        )


Rows: TypeAlias = "Array | CsrRows"  # dense rows (ndarray of shape (num_rows, num_features), C-contiguous) or CSR rows


def lie_in_file(rows: Rows) -> bool:
    """Say whether rows are mapped from a file, so that their order of reading matters."""
    return _mapping_of(rows, np.memmap) is not None


class MappedFile(np.memmap):
    """The bytes of a mapped chunk file. A memmap of the user is another thing: it may hold what its file does not."""


def lie_in_chunk_file(rows: Rows) -> bool:
    """Say whether rows stay in the file of their chunk."""
    return _mapping_of(rows, MappedFile) is not None


def ask_for(rows: Rows) -> None:
    """Let the system read the chunk file that rows lie in while the caller goes on, where a system can be asked."""
    mapping: Any = _mapping_of(rows, MappedFile) if hasattr(mmap, "MADV_WILLNEED") else None
    for begin in range(0, 0 if mapping is None else mapping.size, READ_BYTES):
        mapping._mmap.madvise(mmap.MADV_WILLNEED, begin, min(READ_BYTES, mapping.size - begin))


def let_go(rows: Rows) -> None:
    """Let the system take the pages of the chunk file that rows lie in, where a system can be asked."""
    mapping: Any = _mapping_of(rows, MappedFile) if hasattr(mmap, "MADV_DONTNEED") else None
    if mapping is not None:
        mapping._mmap.madvise(mmap.MADV_DONTNEED)


def _mapping_of(rows: Rows, kind: type[Any]) -> Any:
    array: Any = rows.values if isinstance(rows, CsrRows) else rows
    while array is not None and not (isinstance(array, kind) and array._mmap is not None):  # a copy of one has no map
        array = getattr(array, "base", None)
    return array


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """Shape of the per-sample state that a trainer keeps in its chunks.

    Attributes:
        outputs: Models trained at once over the same rows (one-vs-rest classes), >= 1; 0 together with `width` 0
            means that there is no state.
        width: Values per sample and output, e.g. 1 for CoCoA's dual.
        dtype: One of `STATE_DTYPES`.
        note_bytes: Bytes per sample and output for the notes of a solver. They move with the state, so that the
            task that gets the chunk need not find out again what the solver knows; no other code reads them, and only
            time is lost when they are zeros again, as they are in a chunk that was loaded again.
    """

    outputs: int = 0
    width: int = 0
    dtype: Literal["float32", "float64", "int32", "uint8"] = "float64"
    note_bytes: int = 0

    def __post_init__(self) -> None:
        if min(self.outputs, self.width, self.note_bytes) < 0 or self.dtype not in STATE_DTYPES:
            raise UsageError(
                f"a state of outputs={self.outputs}, width={self.width}, dtype={self.dtype!r}, "
                f"note_bytes={self.note_bytes} cannot be; counts must be >= 0 and the dtype one of {STATE_DTYPES}"
            )

    def shape(self, num_rows: int) -> tuple[int, int, int]:
        """Shape of the state array of a chunk of `num_rows` samples."""
        return num_rows, self.outputs, self.width

    def values_bytes(self, num_rows: int) -> int:
        """Bytes of the state array of a chunk of `num_rows` samples."""
        return num_rows * self.outputs * self.width * _VALUE_BYTES[self.dtype]

    def size_bytes(self, num_rows: int) -> int:
        """Bytes of the state array and of the notes behind it."""
        return self.values_bytes(num_rows) + num_rows * self.outputs * self.note_bytes

    def zeros(self, num_rows: int) -> Array:
        """Fresh state of `num_rows` samples."""
        return np.zeros(self.shape(num_rows), dtype=self.dtype)

    def fresh_notes(self, num_rows: int) -> Array:
        """Notes of `num_rows` samples of which nothing is known yet."""
        return np.zeros(num_rows * self.outputs * self.note_bytes, dtype=np.uint8)

    def without_notes(self) -> "StateSpec":
        """The same state where it stays: a solver can keep its notes by itself."""
        return dataclasses.replace(self, note_bytes=0) if self.note_bytes else self


NO_STATE = StateSpec()
NO_NOTES: Array = np.zeros(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSchema:
    """What all chunks of one data set have in common; trainers build their model from it.

    Attributes:
        kind: "dense" or "csr".
        dtype: dtype of the features, one of `VALUE_DTYPES`.
        num_rows: Samples in the whole data set.
        num_features: Columns.
        target_dtype: One of `TARGET_DTYPES`.
        num_classes: Number of class codes where targets are codes 0 .. num_classes - 1; 0 for real-valued targets.
        has_weights: Whether chunks hold a weight per sample.
        sample_shape: Shape of one sample where it is not flat, e.g. (3, 32, 32); its product is `num_features`.
    """

    kind: Literal["dense", "csr"]
    dtype: str
    num_rows: int
    num_features: int
    target_dtype: str
    num_classes: int = 0
    has_weights: bool = False
    sample_shape: tuple[int, ...] = ()
    are_rows_in_files: ClassVar[bool] = False  # because memory has no room for them


class SchemaOfFiles(DataSchema):
    """Describe a data set whose rows stay in their files."""

    are_rows_in_files: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """An indivisible, movable piece of training data together with its per-sample state."""

    id: ChunkId
    rows: Rows  # features: ndarray of shape (num_rows, num_features), or `CsrRows`
    targets: Array  # ndarray of shape (num_rows,), one of `TARGET_DTYPES`; class codes or real values
    # global row numbers, ndarray of shape (num_rows,), int64: row `i` of this chunk is row `row_ids[i]` of the data set
    # that it was cut from
    row_ids: Array
    state: Array  # Per-sample state, ndarray of shape (num_rows, outputs, width). Solvers write it in place
    weights: Array | None = None  # sample weights, ndarray of shape (num_rows,), or None
    # what its solver remembers of its samples, ndarray of shape (num_rows * outputs * note_bytes,), uint8, arranged as
    # the solver likes; empty where it keeps that by itself
    notes: Array = field(default_factory=lambda: NO_NOTES)

    @property
    def num_rows(self) -> int:
        """Samples in this chunk."""
        return int(self.rows.shape[0])

    @property
    def num_features(self) -> int:
        """Columns of this chunk."""
        return int(self.rows.shape[1])

    @property
    def is_sparse(self) -> bool:
        """Whether the rows are CSR."""
        return isinstance(self.rows, CsrRows)

    @property
    def size_bytes(self) -> int:
        """Bytes of the views (an encoded chunk is a little larger: header and padding)."""
        if isinstance(self.rows, CsrRows):
            entry_bytes = self.rows.indices.itemsize + self.rows.values.itemsize
            rows_bytes = self.rows.indptr.nbytes + self.rows.num_nonzeros * entry_bytes
        else:
            rows_bytes = self.rows.nbytes
        weights_bytes = 0 if self.weights is None else self.weights.nbytes
        state_bytes = self.state.nbytes + self.notes.nbytes
        return rows_bytes + self.targets.nbytes + weights_bytes + self.row_ids.nbytes + state_bytes
