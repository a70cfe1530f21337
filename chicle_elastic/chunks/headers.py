"""The two headers of a chunk, as values and packed into bytes; change this together with the byte table in `layout`."""

import dataclasses
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from chicle_elastic.chunks.views import (
    INDEX_DTYPES,
    STATE_DTYPES,
    TARGET_DTYPES,
    VALUE_DTYPES,
    WEIGHT_DTYPES,
    Array,
    Chunk,
    CsrRows,
    StateSpec,
    dtype_of,
    name_of,
)
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.values import StateVersion

Kind: TypeAlias = Literal["dense", "csr", "outside"]

VERSION = 1
READABLE_VERSIONS = range(1, VERSION + 1)
ALIGNMENT = 64
HEADER_BYTES = 256
STATE_HEADER_BYTES = 64
CRC_BYTES = 4

# Like PNG's: the high bit shows a 7-bit channel, the newlines a transfer as text.
MAGIC = b"\x89CHICLE\n"
STATE_MAGIC = b"\x89STATE\r\n"
FILE_KINDS: tuple[Kind, ...] = ("dense", "csr")
KINDS: tuple[Kind, ...] = (*FILE_KINDS, "outside")  # a kind's code is its position + 1
DTYPES = ("", "float32", "float64", "uint8", "int32", "int64", "int8", "float16", "bfloat16")
"""A dtype's code is its position; "" means that the section is absent."""
CSR_VALUE_DTYPES = VALUE_DTYPES[:2]

HEADER = struct.Struct("<8sIIQ5B3xQQQ6QQI136xI")
STATE_HEADER = struct.Struct("<8sQIIB3xIqq8xII")


def aligned(num_bytes: int) -> int:
    """`num_bytes` rounded up to a multiple of `ALIGNMENT`."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def crc_of(content: bytes | Array) -> int:
    """CRC-32, as in zip and PNG."""
    return zlib.crc32(content if isinstance(content, bytes) else content.data)


class Section(NamedTuple):
    """One array within the immutable part."""

    name: str  # "values", "indptr", "indices", "targets", "weights" or "row_ids"
    offset: int  # first byte, from the start of the chunk; 0 where the section is absent
    dtype: str  # name of its dtype; "" where it is absent
    length: int  # number of elements

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements, without padding."""
        return self.length * dtype_of(self.dtype).itemsize if self.dtype else 0

    def view(self, content: Array) -> Array:
        """The elements, over the bytes of a chunk; shape (length,)."""
        return content[self.offset : self.offset + self.size_bytes].view(dtype_of(self.dtype).newbyteorder("<"))


@dataclass(frozen=True, kw_only=True)  # no slots, because of cached_property
class Header:
    """Holds what the first 256 bytes say; everything else about the immutable part follows from it."""

    chunk_id: ChunkId  # number of the chunk in its data set
    kind: Kind  # dense or CSR rows; or all sections are outside of these bytes, in the source of each task
    value_dtype: str  # one of `VALUE_DTYPES`
    target_dtype: str  # one of `TARGET_DTYPES`
    num_rows: int  # samples, >= 1
    num_features: int  # columns, >= 1
    index_dtype: str = ""  # one of `INDEX_DTYPES`, for indptr and indices; "" for dense rows
    weight_dtype: str = ""  # one of `WEIGHT_DTYPES`, or "" where there are no weights
    num_nonzeros: int = 0  # stored entries of CSR rows; 0 for dense rows
    content_crc: int = 0  # CRC-32 of the immutable part behind the header

    @classmethod
    def of(cls, chunk: Chunk) -> "Header":
        """The header of a chunk, but for the CRC of its content. Raises UsageError when the views do not belong
        together, or have dtypes that a chunk cannot hold."""
        rows, weights = chunk.rows, chunk.weights
        check_shapes(chunk)
        check_dtypes(chunk)
        is_csr = isinstance(rows, CsrRows)
        return cls(
            chunk_id=chunk.id,
            kind="csr" if is_csr else "dense",
            value_dtype=name_of(rows.dtype),
            index_dtype=name_of(rows.indices.dtype) if isinstance(rows, CsrRows) else "",
            target_dtype=name_of(chunk.targets.dtype),
            weight_dtype="" if weights is None else name_of(weights.dtype),
            num_rows=chunk.num_rows,
            num_features=chunk.num_features,
            num_nonzeros=rows.num_nonzeros if isinstance(rows, CsrRows) else 0,
        )

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The six sections in the order in which they lie."""
        num_values = self.num_nonzeros if self.kind == "csr" else self.num_rows * self.num_features
        arrays = (
            ("values", self.value_dtype, num_values),
            ("indptr", self.index_dtype, self.num_rows + 1),
            ("indices", self.index_dtype, self.num_nonzeros),
            ("targets", self.target_dtype, self.num_rows),
            ("weights", self.weight_dtype, self.num_rows),
            ("row_ids", "int64", self.num_rows),
        )
        return _lay_out(*(((name, "", 0) for name, _, _ in arrays) if self.kind == "outside" else arrays))

    @cached_property
    def immutable_bytes(self) -> int:
        """Size of the immutable part, header and padding included; the state header begins there."""
        row_ids = self.sections[-1]  # absent only where all are
        return max(HEADER_BYTES, row_ids.offset + aligned(row_ids.size_bytes))

    def outside(self) -> "Header":
        """Return the header of the same chunk where its rows stay outside."""
        return dataclasses.replace(self, kind="outside", index_dtype="", num_nonzeros=0, content_crc=0)

    def encoded_bytes(self, state: StateSpec) -> int:
        """Size of the whole chunk together with a state of this shape."""
        return self.immutable_bytes + STATE_HEADER_BYTES + aligned(state.size_bytes(self.num_rows))

    def pack(self) -> bytes:
        """The 256 bytes."""
        dtypes = (self.value_dtype, self.index_dtype, self.target_dtype, self.weight_dtype)
        packed = HEADER.pack(
            *(MAGIC, VERSION, HEADER_BYTES, self.chunk_id, KINDS.index(self.kind) + 1),
            *(DTYPES.index(dtype) for dtype in dtypes),
            *(self.num_rows, self.num_features, self.num_nonzeros),
            *(section.offset for section in self.sections),
            *(self.immutable_bytes, self.content_crc, 0),
        )
        return _with_crc(packed)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateHeader:
    """Holds what the 64 bytes before the state say."""

    chunk_id: ChunkId  # the chunk whose state this is
    spec: StateSpec  # shape and dtype
    version: StateVersion  # set when the state was sealed; it orders copies
    # CRC-32 of the state (padding included) when it was sealed; stale while an iteration writes to it
    state_crc: int = 0

    def pack(self) -> bytes:
        """The 64 bytes."""
        packed = STATE_HEADER.pack(
            *(STATE_MAGIC, self.chunk_id, self.spec.outputs, self.spec.width, DTYPES.index(self.spec.dtype)),
            *(self.spec.note_bytes, self.version.round, self.version.iteration, self.state_crc, 0),
        )
        return _with_crc(packed)


def outside_bytes(num_rows: int, state: StateSpec) -> int:
    """Return the size of a chunk with its state, but without its rows, which stay outside."""
    return HEADER_BYTES + STATE_HEADER_BYTES + aligned(state.size_bytes(num_rows))


def spec_of(chunk: Chunk) -> StateSpec:
    """Shape and dtype of a chunk's state, and the size of its notes."""
    num_rows, outputs, width = chunk.state.shape
    dtype: Any = name_of(chunk.state.dtype)
    note_bytes = len(chunk.notes) // (num_rows * outputs) if len(chunk.notes) else 0
    return StateSpec(outputs=outputs, width=width, dtype=dtype, note_bytes=note_bytes)


def check_shapes(chunk: Chunk) -> None:
    """Raise UsageError unless all views have one entry per row, and there is a row and a column."""
    if chunk.num_rows < 1 or chunk.num_features < 1:
        raise UsageError(f"chunk {chunk.id} has rows of shape {chunk.rows.shape}; it needs at least a row and a column")
    expected = (chunk.num_rows,)
    shapes = [("targets", chunk.targets.shape), ("row_ids", chunk.row_ids.shape)]
    if chunk.weights is not None:
        shapes.append(("weights", chunk.weights.shape))
    for name, shape in shapes:
        if shape != expected:
            raise UsageError(f"chunk {chunk.id} has {chunk.num_rows} rows, but {name} of shape {shape}, not {expected}")
    if chunk.state.ndim != 3 or chunk.state.shape[:1] != expected:
        raise UsageError(
            f"chunk {chunk.id} has {chunk.num_rows} rows, but a state of shape {chunk.state.shape}; make it with "
            "StateSpec.zeros"
        )
    notes, outputs = chunk.notes, chunk.state.shape[1]
    is_even = len(notes) % (chunk.num_rows * outputs) == 0 if outputs else len(notes) == 0
    if notes.dtype != np.uint8 or notes.ndim != 1 or not is_even:
        raise UsageError(
            f"chunk {chunk.id} has {chunk.num_rows} rows and {outputs} outputs, but notes of shape {notes.shape} and "
            f"dtype {notes.dtype}; make them with StateSpec.fresh_notes"
        )


def check_dtypes(chunk: Chunk) -> None:
    """Raise UsageError for a dtype that a chunk cannot hold, and for more entries than the indices can count."""
    rows, weights = chunk.rows, chunk.weights
    dtypes: list[tuple[str, np.dtype[Any], tuple[str, ...]]] = [
        ("values", rows.dtype, CSR_VALUE_DTYPES if isinstance(rows, CsrRows) else VALUE_DTYPES),
        ("targets", chunk.targets.dtype, TARGET_DTYPES),
        ("row_ids", chunk.row_ids.dtype, ("int64",)),
        ("state", chunk.state.dtype, STATE_DTYPES),
    ]
    if isinstance(rows, CsrRows):
        dtypes.append(("indices", rows.indices.dtype, INDEX_DTYPES))
    if weights is not None:
        dtypes.append(("weights", weights.dtype, WEIGHT_DTYPES))
    for name, dtype, allowed in dtypes:
        if name_of(dtype) not in allowed:
            raise UsageError(f"chunk {chunk.id} has {name} of dtype {dtype}; a chunk holds {', '.join(allowed)} there")
    if isinstance(rows, CsrRows) and rows.num_nonzeros > np.iinfo(rows.indices.dtype).max:
        raise UsageError(
            f"chunk {chunk.id} has {rows.num_nonzeros} stored entries, more than {rows.indices.dtype} can count; use "
            "smaller chunks or int64 indices"
        )


@lru_cache
def _lay_out(*arrays: tuple[str, str, int]) -> tuple[Section, ...]:
    """Sections from (name, dtype, length); dense chunks of a data set mostly share theirs."""
    sections = []
    offset = HEADER_BYTES
    for name, dtype, length in arrays:
        section = Section(name, offset, dtype, length) if dtype else Section(name, 0, "", 0)
        offset += aligned(section.size_bytes)
        sections.append(section)
    return tuple(sections)


def _with_crc(packed: bytes) -> bytes:
    """The bytes with the CRC of all before it in the last four."""
    return packed[:-CRC_BYTES] + crc_of(packed[:-CRC_BYTES]).to_bytes(CRC_BYTES, "little")
