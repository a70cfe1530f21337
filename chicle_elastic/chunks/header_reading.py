"""Reads the headers of a chunk from bytes that may be anything; every figure is checked before anybody relies on it."""

import functools
from typing import Any, TypeAlias

import numpy as np

from chicle_elastic.chunks.headers import (
    CRC_BYTES,
    CSR_VALUE_DTYPES,
    DTYPES,
    HEADER,
    HEADER_BYTES,
    KINDS,
    MAGIC,
    READABLE_VERSIONS,
    STATE_HEADER,
    STATE_HEADER_BYTES,
    STATE_MAGIC,
    Header,
    StateHeader,
    crc_of,
)
from chicle_elastic.chunks.views import (
    INDEX_DTYPES,
    STATE_DTYPES,
    TARGET_DTYPES,
    VALUE_DTYPES,
    WEIGHT_DTYPES,
    Array,
    StateSpec,
)
from chicle_elastic.errors import ChunkCorruptError
from chicle_elastic.ids import ChunkId
from chicle_elastic.values import StateVersion

Buffer: TypeAlias = bytes | bytearray | memoryview | Array
"""Contiguous bytes: what `np.frombuffer` takes, or a uint8 ndarray such as a slot of an arena."""
KEPT_HEADERS = 512
"""Headers that are not parsed again: at a boundary that moves a chunk, each node reads its header several times."""


def bytes_of(buffer: Buffer) -> Array:
    """The buffer as ndarray of shape (num_bytes,), uint8, without a copy; writable if the buffer is."""
    if isinstance(buffer, np.ndarray):
        return buffer.reshape(-1).view(np.uint8)
    return np.frombuffer(buffer, dtype=np.uint8)


def read_header(buffer: Buffer, *, where: str) -> Header:
    """Parse and check the first 256 bytes; the rest of the chunk need not be there. Raises ChunkCorruptError when these
    are not the first bytes of a chunk, or they are those of an unknown version."""
    packed = _part(bytes_of(buffer), 0, HEADER_BYTES, "the header of the chunk", where)
    try:
        return _parsed(packed)
    except ChunkCorruptError:
        return _parse(packed, where)  # raises it again, with the place


def crc_of_header(buffer: Buffer) -> int:
    """The checksum that a header carries; it covers the CRC of the content, and so stands for the immutable part."""
    return int.from_bytes(bytes_of(buffer)[HEADER_BYTES - CRC_BYTES : HEADER_BYTES].tobytes(), "little")


def read_state_header(buffer: Buffer, header: Header, *, where: str) -> StateHeader:
    """Parse and check the 64 bytes behind the immutable part. Raises ChunkCorruptError when the bytes are no state
    header, or that of another chunk, or the state would end behind them."""
    where = f"{where}: chunk {header.chunk_id}"
    content = bytes_of(buffer)
    packed = _part(content, header.immutable_bytes, STATE_HEADER_BYTES, "the state header", where)
    _require_magic(packed, STATE_MAGIC, "a state header", where)
    _require_crc(packed, "the state header", where)
    _, chunk_id, outputs, width, dtype_code, note_bytes, round_, iteration, state_crc, _ = STATE_HEADER.unpack(packed)
    _require(chunk_id == header.chunk_id, where, "chunk id of the state", chunk_id, header.chunk_id)
    spec = _spec(outputs, width, _dtype(dtype_code, STATE_DTYPES, "state dtype", where), note_bytes)
    require_bytes(content, header.encoded_bytes(spec), "the state", where)
    return StateHeader(
        chunk_id=header.chunk_id, spec=spec, version=StateVersion(round_, iteration), state_crc=state_crc
    )


def require_bytes(content: Array, end: int, what: str, where: str) -> None:
    """Raise ChunkCorruptError where `what`, which ends at byte `end`, is cut off."""
    if len(content) < end:
        raise ChunkCorruptError(
            f"{where}: truncated: {what} ends at byte {end}, but there are {len(content)} bytes; copy or convert the "
            "data again"
        )


def require_crc(found: int, stored: int, what: str, where: str) -> None:
    """Raise ChunkCorruptError where a checksum says that `what` is damaged."""
    if found != stored:
        raise ChunkCorruptError(
            f"{where}: {what} is damaged: its CRC is {found:08x} and should be {stored:08x}; copy or convert the data "
            "again"
        )


@functools.lru_cache
def _spec(outputs: int, width: int, dtype: Any, note_bytes: int) -> StateSpec:
    """Chunks of a job have the same one."""
    return StateSpec(outputs=outputs, width=width, dtype=dtype, note_bytes=note_bytes)


@functools.lru_cache(KEPT_HEADERS)
def _parsed(packed: bytes) -> Header:
    return _parse(packed, "")


def _parse(packed: bytes, where: str) -> Header:
    _require_magic(packed, MAGIC, "a chunk", where)
    _require_readable(int.from_bytes(packed[8:12], "little"), where)
    _require_crc(packed, "the header of the chunk", where)
    _, _, header_bytes, chunk_id, kind_code, *rest = HEADER.unpack(packed)
    where = f"{where}: chunk {chunk_id}"
    num_rows, num_features, num_nonzeros = rest[4:7]
    offsets, immutable_bytes, content_crc = rest[7:13], rest[13], rest[14]
    _require(header_bytes == HEADER_BYTES, where, "header_bytes", header_bytes, HEADER_BYTES)
    _require(1 <= kind_code <= len(KINDS), where, "kind", kind_code, "1 (dense), 2 (CSR) or 3 (outside)")
    kind = KINDS[kind_code - 1]
    is_csr = kind == "csr"
    _require(num_rows >= 1, where, "num_rows", num_rows, "at least 1")
    _require(num_features >= 1, where, "num_features", num_features, "at least 1")
    _require(is_csr or num_nonzeros == 0, where, "num_nonzeros", num_nonzeros, "0 for dense rows")
    header = Header(
        chunk_id=ChunkId(chunk_id),
        kind=kind,
        value_dtype=_dtype(rest[0], CSR_VALUE_DTYPES if is_csr else VALUE_DTYPES, "value dtype", where),
        index_dtype=_dtype(rest[1], INDEX_DTYPES if is_csr else ("",), "index dtype", where),
        target_dtype=_dtype(rest[2], TARGET_DTYPES, "target dtype", where),
        weight_dtype=_dtype(rest[3], ("", *WEIGHT_DTYPES), "weight dtype", where),
        num_rows=num_rows,
        num_features=num_features,
        num_nonzeros=num_nonzeros,
        content_crc=content_crc,
    )
    for section, offset in zip(header.sections, offsets, strict=True):
        _require(offset == section.offset, where, f"offset of {section.name}", offset, section.offset)
    _require(
        immutable_bytes == header.immutable_bytes, where, "immutable_bytes", immutable_bytes, header.immutable_bytes
    )
    return header


def _part(content: Array, offset: int, num_bytes: int, what: str, where: str) -> bytes:
    require_bytes(content, offset + num_bytes, what, where)
    return content[offset : offset + num_bytes].tobytes()


def _require_magic(packed: bytes, magic: bytes, what: str, where: str) -> None:
    found = packed[: len(magic)]
    if found != magic:
        raise ChunkCorruptError(
            f"{where}: {what} begins with the bytes {magic.hex(' ')}, found {found.hex(' ')}; this is something else, "
            "or it is damaged"
        )


def _require_readable(version: int, where: str) -> None:
    if version not in READABLE_VERSIONS:
        first, last = READABLE_VERSIONS[0], READABLE_VERSIONS[-1]
        raise ChunkCorruptError(
            f"{where}: the chunk has format version {version}, and this Chicle reads versions {first} to {last}; "
            "upgrade chicle-elastic if a newer one wrote it, else the bytes are damaged"
        )


def _require_crc(packed: bytes, what: str, where: str) -> None:
    require_crc(crc_of(packed[:-CRC_BYTES]), int.from_bytes(packed[-CRC_BYTES:], "little"), what, where)


def _dtype(code: int, allowed: tuple[str, ...], field: str, where: str) -> str:
    if code < len(DTYPES) and DTYPES[code] in allowed:
        return DTYPES[code]
    codes = " or ".join(f"{DTYPES.index(name)} ({name or 'absent'})" for name in allowed)
    raise _impossible(where, field, code, codes)


def _require(is_right: bool, where: str, field: str, found: int, expected: object) -> None:
    """For figures that a right CRC vouches for: no program that keeps to the byte table wrote them."""
    if not is_right:
        raise _impossible(where, field, found, str(expected))


def _impossible(where: str, field: str, found: int, expected: str) -> ChunkCorruptError:
    return ChunkCorruptError(
        f"{where}: the field {field} is {found}, and has to be {expected}; the program that wrote it is at fault"
    )
