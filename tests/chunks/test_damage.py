"""Bytes that are not what they claim to be are always refused by a message that names place, chunk and part."""

import dataclasses

import numpy as np
import pytest

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.headers import HEADER, STATE_HEADER, Header, crc_of
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import ChunkCorruptError
from tests.chunks.samples import CHUNKS, encoded, sample_chunk

each_kind = pytest.mark.parametrize("name", CHUNKS)


def read(content: Array) -> None:
    """All that a receiver does with bytes from outside."""
    layout.verify(content, where="disk:x")
    layout.decode(content, where="disk:x")


@each_kind
def test_a_flipped_bit_is_found_wherever_it_is(name: str) -> None:
    """Every bit is hit: header, each section, the gaps, state header, state."""
    content = encoded(sample_chunk(name))
    read(content)
    for position in range(len(content) * 8):
        content[position // 8] ^= 1 << position % 8
        with pytest.raises(ChunkCorruptError, match="disk:x"):
            read(content)
        content[position // 8] ^= 1 << position % 8
    read(content)


@each_kind
def test_a_damaged_part_is_named(name: str) -> None:
    """The message says which chunk and whether rows or state are damaged."""
    chunk = sample_chunk(name)
    start = Header.of(chunk).immutable_bytes
    for position, part in ((300, "the immutable part"), (start + 20, "the state header")):
        content = encoded(chunk)
        content[position] ^= 1
        with pytest.raises(ChunkCorruptError, match=f"disk:x: chunk {chunk.id}: {part} is damaged"):
            read(content)


@each_kind
def test_a_missing_end_is_found_at_every_length(name: str) -> None:
    """Also a length of zero."""
    chunk = sample_chunk(name)
    content = encoded(chunk)
    lengths = [*range(0, len(content), 7), len(content) - 1]
    for length in lengths:
        with pytest.raises(ChunkCorruptError, match=r"disk:x.* truncated: .* there are \d+ bytes"):
            read(content[:length])
        with pytest.raises(ChunkCorruptError, match="truncated"):
            layout.decode(content[:length], where="disk:x")


@each_kind
def test_a_flipped_bit_in_a_header_is_found_without_reading_the_content(name: str) -> None:
    """`decode` alone, which does not look at the content, never trusts a wrong figure."""
    content = encoded(sample_chunk(name))
    for position in range(256 * 8):
        content[position // 8] ^= 1 << position % 8
        with pytest.raises(ChunkCorruptError):
            layout.decode(content, where="disk:x")
        content[position // 8] ^= 1 << position % 8


def test_noise_is_no_chunk() -> None:
    """Random bytes, zeros, text, and a good header before noise."""
    rng = np.random.default_rng(0)
    good = encoded(sample_chunk("csr-float32-int32"))
    for _ in range(200):
        noise = layout.empty_buffer(2048)
        noise[:] = rng.integers(256, size=2048)
        with pytest.raises(ChunkCorruptError):
            read(noise)
        noise[:256] = good[:256]
        with pytest.raises(ChunkCorruptError):
            read(noise)
    for text in (bytes(1000), b'{"json": 1}' * 100):
        with pytest.raises(ChunkCorruptError, match="something else, or it is damaged"):
            layout.decode(text, where="disk:x")


def test_the_state_of_another_chunk_is_refused() -> None:
    """Two chunks of the same shape: their states are not exchangeable."""
    mine, other = sample_chunk("dense-float32"), dataclasses.replace(sample_chunk("dense-float32"), id=7)
    content, foreign = encoded(mine), encoded(other)
    start = Header.of(mine).immutable_bytes
    content[start:] = foreign[start:]
    with pytest.raises(ChunkCorruptError, match="chunk 0: the field chunk id of the state is 7, and has to be 0"):
        read(content)


# What follows has right checksums: a faulty or hostile program wrote it.

FIELDS = {
    "header_bytes": (2, 128),
    "num_rows": (9, 0),
    "num_rows, too many": (9, 2**63),
    "num_features": (10, 0),
    "num_features, too many": (10, 2**40),
    "num_nonzeros": (11, 1),
    "kind": (4, 3),
    "value dtype": (5, 4),
    "value dtype, unknown": (5, 77),
    "index dtype": (6, 4),
    "target dtype": (7, 3),
    "weight dtype": (8, 5),
    "offset of values": (12, 64),
    "offset of row_ids": (17, 2**62),
    "immutable_bytes": (18, 2**60),
}


def forged(content: Array, position: int, value: int) -> Array:
    """A header with one field replaced and a right checksum."""
    fields = list(HEADER.unpack(content[:256].tobytes()))
    fields[position] = value
    packed = HEADER.pack(*fields)
    content[:256] = np.frombuffer(packed[:-4] + crc_of(packed[:-4]).to_bytes(4, "little"), np.uint8)
    return content


@pytest.mark.parametrize("field", FIELDS)
def test_a_figure_that_cannot_be_is_refused_although_its_checksum_is_right(field: str) -> None:
    """No view is made of it, so nothing outside the buffer can be read."""
    content = forged(encoded(sample_chunk("dense-float32")), *FIELDS[field])
    with pytest.raises(ChunkCorruptError, match="disk:x: chunk 0"):
        layout.decode(content, where="disk:x")


@pytest.mark.parametrize(("outputs", "width", "dtype_code"), [(2**32 - 1, 2**32 - 1, 2), (1, 1, 5), (1, 1, 99)])
def test_a_state_that_cannot_be_is_refused(outputs: int, width: int, dtype_code: int) -> None:
    """A state larger than the buffer, or of an unknown dtype."""
    chunk = sample_chunk("dense-float32")
    content, start = encoded(chunk), Header.of(chunk).immutable_bytes
    fields = list(STATE_HEADER.unpack(content[start : start + 64].tobytes()))
    fields[2:5] = outputs, width, dtype_code
    packed = STATE_HEADER.pack(*fields)
    content[start : start + 64] = np.frombuffer(packed[:-4] + crc_of(packed[:-4]).to_bytes(4, "little"), np.uint8)
    with pytest.raises(ChunkCorruptError, match="chunk 0: "):
        layout.decode(content, where="disk:x")


@pytest.mark.parametrize(
    ("version", "advice"),
    [(2, "upgrade chicle-elastic"), (999, "upgrade chicle-elastic"), (0, "the bytes are damaged")],
)
def test_an_unknown_version_is_refused_with_what_to_do(version: int, advice: str) -> None:
    """The message has the version found and those that can be read."""
    content = forged(encoded(sample_chunk("dense-float32")), 1, version)
    with pytest.raises(
        ChunkCorruptError, match=f"version {version}, and this Chicle reads versions 1 to 1; .*{advice}"
    ):
        layout.decode(content, where="disk:x")


@pytest.mark.parametrize(
    ("name", "position", "value", "message"),
    [
        ("indptr", 4, 15, "indptr descends at row 4"),
        ("indices", -1, 5, "the index 5, but 5 columns"),
        ("indices", 0, -1, "the index -1"),
        ("indices", 1, 2, "row 0 are not strictly ascending"),
    ],
)
def test_csr_rows_that_would_lead_a_kernel_astray_are_refused(
    name: str, position: int, value: int, message: str
) -> None:
    """Kernels read by these indices without a check."""
    content = encoded(sample_chunk("csr-float32-int32"))
    header = layout.read_header(content, where="here")
    views = {section.name: section.view(content) for section in header.sections}
    views[name][position] = value
    content = forged(content, 19, crc_of(content[256 : header.immutable_bytes]))
    with pytest.raises(ChunkCorruptError, match=f"disk:x: chunk 3: .*{message}"):
        layout.verify_immutable(content, where="disk:x")


@pytest.mark.parametrize("ends", [(1, 0), (0, 1)])
def test_an_indptr_that_leads_out_of_its_section_is_refused_by_decode_alone(ends: tuple[int, int]) -> None:
    """Its two ends are looked at each time."""
    content = encoded(sample_chunk("csr-float64-int64"))
    header = layout.read_header(content, where="here")
    indptr = header.sections[1].view(content)
    indptr[0] += ends[0]
    indptr[-1] += ends[1]
    with pytest.raises(ChunkCorruptError, match="indptr goes from"):
        layout.decode(content, where="disk:x")
