"""The bytes of a chunk: the same in an arena, on the wire and in a chunk file. Nothing is serialised.

Little-endian; every section begins at a multiple of 64 bytes, gaps are zeros. First the IMMUTABLE part:

    offset size type   meaning
         0    8 bytes  magic 89 43 48 49 43 4c 45 0a ("\\x89CHICLE\\n")
         8    4 u32    format version, 1; readers take older versions and refuse newer ones
        12    4 u32    bytes of this header, 256
        16    8 u64    chunk id
        24    1 u8     kind: 1 dense, 2 CSR, 3 outside: only this header and the state are here, in slots of a job whose
                       tasks have the rows in their memory anyway; all offsets are 0, immutable_bytes is 256
        25    1 u8     dtype of values: 1 float32, 2 float64; dense only: 3 uint8, 6 int8, 7 float16, 8 bfloat16
        26    1 u8     dtype of indptr and indices: 0 absent (dense), 4 int32, 5 int64
        27    1 u8     dtype of targets: 1 float32, 2 float64, 4 int32
        28    1 u8     dtype of weights: 0 absent, 1 float32, 2 float64
        29    3        zero
        32    8 u64    num_rows, >= 1
        40    8 u64    num_features, >= 1
        48    8 u64    num_nonzeros; 0 for dense rows
        56   48 6 u64  offsets of values, indptr, indices, targets, weights, row ids; 0 where absent
       104    8 u64    immutable_bytes: size of the immutable part, where the state header begins
       112    4 u32    CRC-32 of the bytes 256 .. immutable_bytes - 1
       116  136        zero
       252    4 u32    CRC-32 of the bytes 0 .. 251; it covers the CRC above and so stands for the immutable part
       256             sections, in the order of their offsets, without further gaps:
                         values   dense: num_rows * num_features, row by row; CSR: num_nonzeros
                         indptr   num_rows + 1, from 0 to num_nonzeros
                         indices  num_nonzeros, < num_features, strictly ascending within a row
                         targets  num_rows class codes (int32) or real values
                         weights  num_rows
                         row ids  num_rows int64, the rows' numbers in the data set

Then the MUTABLE part, at offset immutable_bytes = 0 of this table. Its shape is the trainer's: the same immutable bytes
serve any trainer, and a chunk file has no state (outputs and width 0).

    offset size type   meaning
         0    8 bytes  magic 89 53 54 41 54 45 0d 0a ("\\x89STATE\\r\\n")
         8    8 u64    chunk id
        16    4 u32    outputs
        20    4 u32    width
        24    1 u8     dtype of the state: 1 float32, 2 float64, 3 uint8, 4 int32
        25    3        zero
        28    4 u32    bytes of notes per sample and output
        32    8 i64    version: committed round
        40    8 i64    version: last merged iteration
        48    8        zero
        56    4 u32    CRC-32 of all behind this header, as of the last `seal_state`
        60    4 u32    CRC-32 of the bytes 0 .. 59
        64             state, shape (num_rows, outputs, width), then the notes, which their solver arranges, then
                       zeros up to a multiple of 64

Rules. Figures are checked before a view is made of them (`decode`); contents are checked where bytes arrive, once
(`verify_immutable`, `verify_state`). During an iteration the task writes the state in place, so its CRC is stale until
the owner seals it at the boundary. A change of this table that chunk files can show raises `headers.VERSION` and adds
golden files to the tests.
"""

import dataclasses
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from chicle_elastic.chunks.header_reading import (
    Buffer,
    bytes_of,
    read_header,
    read_state_header,
    require_bytes,
    require_crc,
)
from chicle_elastic.chunks.headers import (
    ALIGNMENT,
    HEADER_BYTES,
    STATE_HEADER_BYTES,
    Header,
    StateHeader,
    aligned,
    crc_of,
    outside_bytes,
    spec_of,
)
from chicle_elastic.chunks.rows import csr_fault
from chicle_elastic.chunks.views import NO_STATE, Array, Chunk, CsrRows, Rows, StateSpec, dtype_of
from chicle_elastic.errors import CapacityError, ChunkCorruptError, UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.values import StateVersion

__all__ = [
    "Buffer",
    "RowsInPlace",
    "attach_state",
    "decode",
    "decode_with_state_header",
    "empty_buffer",
    "encode",
    "encoded_bytes",
    "find_rows",
    "outside_bytes",
    "parts",
    "read_header",
    "read_state_header",
    "require_sound_content",
    "seal_state",
    "verify",
    "verify_immutable",
    "verify_state",
]

WORD_BYTES = 8
"""Size of the largest element; a chunk in memory begins at a multiple of it, in an arena at a multiple of 64."""
FRESH = StateVersion()
Outside: TypeAlias = Callable[[ChunkId], Chunk]
"""Gives the rows of a chunk that lie in memory of the task; its state is not looked at."""


@dataclass(frozen=True, slots=True)
class RowsInPlace:
    """Views of the immutable part of a chunk in memory.

    Attributes:
        rows, targets, weights, row_ids: As in `Chunk`.
    """

    packed: bytes  # its first `HEADER_BYTES` bytes
    address: int  # of its first byte
    header: Header  # what they say
    rows: Rows
    targets: Array
    weights: Array | None
    row_ids: Array

    def lie_in(self, content: Array) -> bool:
        """Whether the same header is still, or again, in this memory, so that all of it holds for what is there now."""
        return content.ctypes.data == self.address and content[:HEADER_BYTES].tobytes() == self.packed


def empty_buffer(size_bytes: int) -> Array:
    """Uninitialised memory that begins at a multiple of 64 bytes: ndarray of shape (size_bytes,), uint8."""
    memory = np.empty(size_bytes + ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size_bytes]


def encoded_bytes(chunk: Chunk) -> int:
    """Bytes that `encode` will write."""
    return Header.of(chunk).encoded_bytes(spec_of(chunk))


def encode(chunk: Chunk, buffer: Buffer, *, version: StateVersion = FRESH, outside: bool = False) -> int:
    """Write a chunk and its state, sealed. Equal chunks give equal bytes. Raises CapacityError when the buffer is too
    small, UsageError when the chunk cannot be encoded, or the buffer cannot be written. Returns bytes used, a multiple
    of 64; what lies behind them is untouched.

    Args:
        chunk: What to write; indptr is stored with the dtype of the indices.
        buffer: Writable; begins at a multiple of 8 bytes.
        outside: Whether the rows stay where they are: only the header and the state are written.
    """
    header, spec = Header.of(chunk), spec_of(chunk)
    if outside:
        header = header.outside()
    size_bytes = header.encoded_bytes(spec)
    content = _writable(buffer, size_bytes, chunk.id)
    arrays = _arrays_of(chunk)
    for section in header.sections:
        if section.dtype:
            array = arrays[section.name]
            section.view(content).reshape(array.shape)[...] = array
            end = section.offset + section.size_bytes
            content[end : aligned(end)] = 0
    content_crc = crc_of(content[HEADER_BYTES : header.immutable_bytes])
    content[:HEADER_BYTES] = _as_bytes(dataclasses.replace(header, content_crc=content_crc).pack())
    _write_state(content, header, spec, chunk.state, chunk.notes, version)
    return size_bytes


def parts(chunk: Chunk) -> Iterator[tuple[int, Array]]:
    """Yield the bytes of a chunk without state, each part with its offset, to be written over zeros. `decode` can read
    them; they have no checksum of the content, so no other process should be able to change them."""
    header, arrays = Header.of(chunk), _arrays_of(chunk)
    yield 0, _as_bytes(header.pack())
    for section in header.sections:
        if section.dtype:
            yield (
                section.offset,
                np.ascontiguousarray(arrays[section.name], dtype_of(section.dtype)).reshape(-1).view(np.uint8),
            )
    yield header.immutable_bytes, _as_bytes(StateHeader(chunk_id=chunk.id, spec=NO_STATE, version=FRESH).pack())


def decode(buffer: Buffer, *, where: str) -> Chunk:
    """The chunk as views over the buffer, without a copy and without reading its content. Raises ChunkCorruptError when
    the bytes are not those of a chunk; the message has `where`, the chunk and the field.

    Every figure is checked against the buffer before a view is made of it. Whether the content is what was written is
    a question for `verify`, asked once where bytes arrive.

    Args:
        buffer: Begins with a chunk, at a multiple of 8 bytes; may go on behind it. The views keep it alive, and can be
            written if it can.
        where: Place of the bytes, for messages: a file, or an arena and a slot.
    """
    return decode_with_state_header(buffer, where=where)[0]


def decode_with_state_header(
    buffer: Buffer, *, where: str, ahead: RowsInPlace | None = None, outside: Outside | None = None
) -> tuple[Chunk, StateHeader]:
    """`decode`, and the header of the state.

    Args:
        ahead: What `find_rows` found; it counts if it was here, and for the same header.
    """
    content = bytes_of(buffer)
    if ahead is None or not ahead.lie_in(content):
        ahead = find_rows(content, where=where, outside=outside)
    header = ahead.header
    state_header = read_state_header(content, header, where=where)
    chunk = Chunk(
        id=header.chunk_id,
        rows=ahead.rows,
        targets=ahead.targets,
        weights=ahead.weights,
        row_ids=ahead.row_ids,
        state=_state_view(content, header, state_header.spec),
        notes=_notes_view(content, header, state_header.spec),
    )
    return chunk, state_header


def find_rows(buffer: Buffer, *, where: str, outside: Outside | None = None) -> RowsInPlace:
    """Return what `decode` makes of the immutable part, before there is a state behind it. Raises ChunkCorruptError as
    `decode` does, or when the rows are outside, and those are others or cannot be had."""
    content = bytes_of(buffer)
    address = content.ctypes.data
    if address % WORD_BYTES:
        raise UsageError(
            f"{where}: a chunk in memory begins at a multiple of {WORD_BYTES} bytes, and this address is "
            f"{address:#x}; copy the bytes into layout.empty_buffer(size_bytes)"
        )
    packed = content[:HEADER_BYTES].tobytes()
    header = read_header(packed, where=where)
    require_bytes(content, header.immutable_bytes, "the immutable part", f"{where}: chunk {header.chunk_id}")
    if header.kind == "outside":
        chunk = None if outside is None else outside(header.chunk_id)
        if chunk is None or Header.of(chunk).outside() != header:
            raise ChunkCorruptError(
                f"{where}: chunk {header.chunk_id} has its rows outside, and this job has others or none; have all "
                "tasks load the same data"
            )
        return RowsInPlace(packed, address, header, chunk.rows, chunk.targets, chunk.weights, chunk.row_ids)
    views = _views(content, header)
    rows: Array | CsrRows
    if header.kind == "csr":
        rows = _csr_rows(header, views)
        ends = int(rows.indptr[0]), int(rows.indptr[-1])
        if ends != (0, header.num_nonzeros):
            raise ChunkCorruptError(
                f"{where}: chunk {header.chunk_id}: indptr goes from {ends[0]} to {ends[1]}, and has to go from 0 to "
                f"{header.num_nonzeros}; the chunk is damaged"
            )
    else:
        rows = views["values"].reshape(header.num_rows, header.num_features)
    return RowsInPlace(packed, address, header, rows, views["targets"], views.get("weights"), views["row_ids"])


def verify(buffer: Buffer, *, where: str) -> StateVersion:
    """Check that a whole chunk is what its owner sealed. Returns the version of its state. Raises ChunkCorruptError
    when it is not; the message has `where`, the chunk and the damaged part."""
    verify_immutable(buffer, where=where)
    return verify_state(buffer, where=where)


def verify_immutable(buffer: Buffer, *, where: str) -> Header:
    """Check header, checksum and CSR structure of the immutable part; what follows it need not be there. Raises
    ChunkCorruptError when they are wrong; the message has `where`, the chunk and the damaged part."""
    content = bytes_of(buffer)
    header = read_header(content, where=where)
    where = f"{where}: chunk {header.chunk_id}"
    require_bytes(content, header.immutable_bytes, "the immutable part", where)
    require_sound_content(content, header, crc_of(content[HEADER_BYTES : header.immutable_bytes]), where=where)
    return header


def require_sound_content(content: Array, header: Header, crc: int, *, where: str) -> None:
    """Check what stands behind the header of the immutable part. Raises ChunkCorruptError when the checksum or the CSR
    structure is wrong."""
    require_crc(crc, header.content_crc, "the immutable part", where)
    if header.kind == "csr" and (fault := csr_fault(_csr_rows(header, _views(content, header)))) is not None:
        raise ChunkCorruptError(f"{where}: {fault}; the program that wrote the chunk is at fault")


def verify_state(buffer: Buffer, *, where: str) -> StateVersion:
    """Check the state against the checksum of its last seal. Returns its version. Raises ChunkCorruptError when the
    state is not the one that was sealed."""
    content = bytes_of(buffer)
    header = read_header(content, where=where)
    state_header = read_state_header(content, header, where=where)
    found = crc_of(_state_bytes(content, header, state_header.spec))
    require_crc(found, state_header.state_crc, "the state", f"{where}: chunk {header.chunk_id}")
    return state_header.version


def seal_state(
    buffer: Buffer, version: StateVersion, *, where: str, crc32: Callable[[Any, int], int] = zlib.crc32
) -> None:
    """Give the state a version and a checksum; the owner does so at a boundary, before the chunk moves. Raises
    ChunkCorruptError when the buffer does not hold a chunk."""
    content = bytes_of(buffer)
    header = read_header(content, where=where)
    _seal(content, header, read_state_header(content, header, where=where).spec, version, crc32)


def attach_state(buffer: Buffer, spec: StateSpec, *, where: str) -> int:
    """Put a fresh state (zeros, version 0) behind the immutable part, whatever was there before. Raises CapacityError
    when the buffer is too small, ChunkCorruptError when the buffer does not begin with a chunk. Returns bytes that the
    chunk takes now."""
    header = read_header(buffer, where=where)
    size_bytes = header.encoded_bytes(spec)
    content = _writable(buffer, size_bytes, header.chunk_id)
    _write_state(content, header, spec, spec.zeros(header.num_rows), spec.fresh_notes(header.num_rows), FRESH)
    return size_bytes


def _views(content: Array, header: Header) -> dict[str, Array]:
    return {section.name: section.view(content) for section in header.sections if section.dtype}


def _csr_rows(header: Header, views: dict[str, Array]) -> CsrRows:
    return CsrRows(views["indptr"], views["indices"], views["values"], header.num_features)


def _arrays_of(chunk: Chunk) -> dict[str, Array]:
    rows = chunk.rows
    arrays = {"targets": chunk.targets, "row_ids": chunk.row_ids}
    if chunk.weights is not None:
        arrays["weights"] = chunk.weights
    if isinstance(rows, CsrRows):
        start, stop = int(rows.indptr[0]), int(rows.indptr[-1])
        arrays |= {
            "values": rows.values[start:stop],
            "indptr": rows.indptr - rows.indptr[0],
            "indices": rows.indices[start:stop],
        }
    else:
        arrays["values"] = rows
    return arrays


def _writable(buffer: Buffer, size_bytes: int, chunk_id: int) -> Array:
    content = bytes_of(buffer)
    if not content.flags.writeable or content.ctypes.data % WORD_BYTES:
        raise UsageError(
            f"chunk {chunk_id} cannot be written to a buffer that is read-only or does not begin at a multiple of "
            f"{WORD_BYTES} bytes; use layout.empty_buffer(size_bytes) or a slot of an arena"
        )
    if len(content) < size_bytes:
        raise CapacityError(
            f"chunk {chunk_id} takes {size_bytes} bytes with its state, and the buffer has {len(content)}; raise "
            "slot_bytes, or cut the data into smaller chunks"
        )
    return content


def _state_bytes(content: Array, header: Header, spec: StateSpec) -> Array:
    """The state, the notes and the zeros behind them."""
    return content[header.immutable_bytes + STATE_HEADER_BYTES : header.encoded_bytes(spec)]


def _state_view(content: Array, header: Header, spec: StateSpec) -> Array:
    state = _state_bytes(content, header, spec)[: spec.values_bytes(header.num_rows)]
    return state.view(np.dtype(spec.dtype).newbyteorder("<")).reshape(spec.shape(header.num_rows))


def _notes_view(content: Array, header: Header, spec: StateSpec) -> Array:
    start = spec.values_bytes(header.num_rows)
    return _state_bytes(content, header, spec)[start : spec.size_bytes(header.num_rows)]


def _write_state(
    content: Array, header: Header, spec: StateSpec, state: Array, notes: Array, version: StateVersion
) -> None:
    _state_view(content, header, spec)[...] = state
    _notes_view(content, header, spec)[:] = notes
    _state_bytes(content, header, spec)[spec.size_bytes(header.num_rows) :] = 0
    _seal(content, header, spec, version, zlib.crc32)


def _seal(
    content: Array, header: Header, spec: StateSpec, version: StateVersion, crc32: Callable[[Any, int], int]
) -> None:
    state_crc = crc32(_state_bytes(content, header, spec).data, 0)
    state_header = StateHeader(chunk_id=header.chunk_id, spec=spec, version=version, state_crc=state_crc)
    start = header.immutable_bytes
    content[start : start + STATE_HEADER_BYTES] = _as_bytes(state_header.pack())


def _as_bytes(packed: bytes) -> Array:
    return np.frombuffer(packed, dtype=np.uint8)
