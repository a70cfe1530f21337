"""A chunk that is verified while it arrives gets the verdict of `layout.verify`, wherever the pieces are cut."""

import zlib

import numpy as np
import pytest

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.arrival import ArrivingChunk
from chicle_elastic.errors import ChunkCorruptError, ProtocolError
from chicle_elastic.ids import ChunkId
from chicle_elastic.values import StateVersion
from tests.chunks.samples import CHUNKS, VERSION, encoded, sample_chunk

NAMES = list(CHUNKS)


def arrive(content, *, chunk_id, piece_bytes, crc32=zlib.crc32):
    """Let the bytes come in pieces, as a transport does; returns the version of the state."""
    buffer = layout.empty_buffer(len(content))
    buffer[:] = 0xAA
    check = ArrivingChunk(buffer, chunk_id=ChunkId(chunk_id), where="from n2", crc32=crc32)
    for start in range(0, len(content), piece_bytes):
        end = min(start + piece_bytes, len(content))
        buffer[start:end] = content[start:end]
        check(end)
    return check.finish()


@pytest.mark.parametrize("piece_bytes", [1, 63, 64, 256, 257, 1 << 18])
@pytest.mark.parametrize("name", NAMES)
def test_a_chunk_is_right_however_it_is_cut(name, piece_bytes):
    """Headers may come in pieces, too."""
    content = encoded(sample_chunk(name))
    assert arrive(content, chunk_id=NAMES.index(name), piece_bytes=piece_bytes) == VERSION


@pytest.mark.parametrize("piece_bytes", [100, 1 << 18])
@pytest.mark.parametrize("name", NAMES)
def test_every_damage_gets_the_verdict_of_a_check_afterwards(name, piece_bytes):
    """One bit in any byte: the same error class; the message names the place and the chunk."""
    good = encoded(sample_chunk(name))
    for position in range(len(good)):
        damaged = good.copy()
        damaged[position] ^= 1 << position % 8
        with pytest.raises(ChunkCorruptError) as afterwards:
            layout.verify(damaged, where="from n2")
        with pytest.raises(ChunkCorruptError) as meanwhile:
            arrive(damaged, chunk_id=NAMES.index(name), piece_bytes=piece_bytes)
        assert str(meanwhile.value) == str(afterwards.value)


def test_damage_is_known_before_the_rest_has_come():
    """Nobody waits for the end of a chunk whose header is wrong."""
    content = encoded(sample_chunk(NAMES[0]))
    content[30] ^= 1
    check = ArrivingChunk(content, chunk_id=ChunkId(0), where="from n2")
    check(255)
    with pytest.raises(ChunkCorruptError, match="the header of the chunk is damaged"):
        check(256)


def test_another_chunk_is_refused():
    """A slot was given to another chunk since the owner was asked."""
    with pytest.raises(ProtocolError, match="expected the bytes of chunk 7, got those of chunk 0"):
        arrive(encoded(sample_chunk(NAMES[0])), chunk_id=7, piece_bytes=512)


@pytest.mark.parametrize("missing", [1, 64, 300])
def test_a_chunk_that_ends_early_is_not_finished(missing):
    """Bytes that never came are not taken for zeros."""
    content = encoded(sample_chunk(NAMES[0]))
    check = ArrivingChunk(content, chunk_id=ChunkId(0), where="from n2")
    check(len(content) - missing)
    with pytest.raises(ChunkCorruptError, match="truncated"):
        check.finish()


def test_any_crc32_will_do():
    """Faster ones than zlib's are given as a function; it sums up every byte of content and state once."""
    content, summed = encoded(sample_chunk(NAMES[0])), []

    def crc32(piece, so_far):
        summed.append(len(piece))
        return zlib.crc32(piece, so_far)

    assert arrive(content, chunk_id=0, piece_bytes=100, crc32=crc32) == VERSION
    assert sum(summed) == len(content) - 256 - 64


def test_a_stateless_chunk_has_nothing_more_to_sum():
    """Chunk files have no state: the header of it is the end."""
    chunk = sample_chunk("dense-float64-weights")
    assert chunk.state.size == 0
    assert arrive(encoded(chunk), chunk_id=1, piece_bytes=np.iinfo(np.int32).max) == VERSION


def arrive_in_two(content, *, chunk_id, piece_bytes, later=None):
    """The rows come first, the state later, out of what the chunk is by then; returns the version of the state."""
    later = content if later is None else later
    rows_bytes = layout.read_header(content, where="there").immutable_bytes
    buffer = layout.empty_buffer(len(content))
    buffer[:] = 0xAA
    check = ArrivingChunk(buffer, chunk_id=ChunkId(chunk_id), where="from n2")
    for end in (*range(piece_bytes, rows_bytes, piece_bytes), rows_bytes):
        buffer[:end] = content[:end]
        check(end)
    assert check.finish_rows() == rows_bytes
    check = ArrivingChunk(buffer, chunk_id=ChunkId(chunk_id), where="from n2", has_rows=True)
    for end in (*range(rows_bytes + piece_bytes, len(content), piece_bytes), len(content)):
        buffer[rows_bytes:end] = later[rows_bytes:end]
        check(end)
    return check.finish()


@pytest.mark.parametrize("piece_bytes", [1, 64, 1 << 18])
@pytest.mark.parametrize("name", NAMES)
def test_rows_may_come_long_before_the_state(name, piece_bytes):
    """The owner has trained on and sealed the state again meanwhile; the rows are the same."""
    content = encoded(sample_chunk(name))
    later = content.copy()
    newer = StateVersion(VERSION.round + 1, VERSION.iteration + 1)
    layout.seal_state(later, newer, where="there")
    number = NAMES.index(name)
    assert arrive_in_two(content, chunk_id=number, piece_bytes=piece_bytes, later=later) == newer


@pytest.mark.parametrize("name", NAMES)
def test_every_damage_is_found_where_rows_come_before_the_state(name):
    """In the rows, or in the state, one bit in any byte."""
    good = encoded(sample_chunk(name))
    for position in range(0, len(good), 7):
        damaged = good.copy()
        damaged[position] ^= 1 << position % 8
        with pytest.raises(ChunkCorruptError):
            arrive_in_two(damaged, chunk_id=NAMES.index(name), piece_bytes=1 << 18)


def test_rows_that_end_early_are_not_finished():
    """A slot that was given to another chunk ends somewhere else, too."""
    content = encoded(sample_chunk(NAMES[0]))
    check = ArrivingChunk(content, chunk_id=ChunkId(0), where="from n2")
    check(300)
    with pytest.raises(ChunkCorruptError, match="truncated: 300 bytes of its rows came"):
        check.finish_rows()
