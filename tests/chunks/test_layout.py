"""The bytes of a chunk: what is written is what is read, where the byte table says it is."""

import dataclasses

import numpy as np
import pytest

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.headers import Header, spec_of
from chicle_elastic.chunks.rows import slice_chunk
from chicle_elastic.chunks.views import NO_STATE, CsrRows, StateSpec
from chicle_elastic.errors import CapacityError, ChunkCorruptError, UsageError
from chicle_elastic.values import StateVersion
from tests.chunks.samples import CHUNKS, VERSION, assert_same_chunk, encoded, sample_chunk

each_kind = pytest.mark.parametrize("name", CHUNKS)


@each_kind
@pytest.mark.parametrize("num_rows", [1, 7, 64])
def test_a_chunk_of_any_size_comes_back_as_it_was(name: str, num_rows: int) -> None:
    """Also one row, sections that end exactly at a multiple of 64 bytes, and CSR rows without an entry."""
    chunk = sample_chunk(name, num_rows=num_rows, num_features=1 if num_rows == 1 else 16)
    assert_same_chunk(layout.decode(encoded(chunk), where="here"), chunk)


def test_rows_that_start_within_a_larger_matrix_are_stored_from_zero() -> None:
    """A slice of CSR rows brings only its own entries."""
    part = slice_chunk(sample_chunk("csr-float32-int32"), 4, 9)
    found = layout.decode(encoded(part), where="here")
    assert_same_chunk(found, part)
    assert isinstance(found.rows, CsrRows)
    assert found.rows.indptr[0] == 0
    assert len(found.rows.values) == found.rows.num_nonzeros


def test_figures_lie_where_the_byte_table_says() -> None:
    """A reader in another language finds them by offset."""
    chunk = sample_chunk("csr-float32-int32")
    content = encoded(chunk).tobytes()
    assert isinstance(chunk.rows, CsrRows)

    def number(offset: int, size: int, start: int = 0) -> int:
        return int.from_bytes(content[start + offset : start + offset + size], "little")

    assert content[:8] == b"\x89CHICLE\n"
    assert (number(8, 4), number(12, 4), number(16, 8)) == (1, 256, chunk.id)
    assert tuple(content[24:29]) == (2, 1, 4, 4, 2)
    assert (number(32, 8), number(40, 8), number(48, 8)) == (11, 5, chunk.rows.num_nonzeros)
    for position, array in enumerate(
        (chunk.rows.values, chunk.rows.indptr, chunk.rows.indices, chunk.targets, chunk.weights, chunk.row_ids)
    ):
        assert array is not None
        offset = number(56 + 8 * position, 8)
        assert offset % 64 == 0
        assert content[offset : offset + array.nbytes] == array.tobytes()
    state_start = number(104, 8)
    assert content[state_start : state_start + 8] == b"\x89STATE\r\n"
    assert (number(8, 8, state_start), number(16, 4, state_start), number(20, 4, state_start)) == (chunk.id, 3, 1)
    assert (content[state_start + 24], number(32, 8, state_start), number(40, 8, state_start)) == (1, 3, 17)
    assert content[state_start + 64 : state_start + 64 + chunk.state.nbytes] == chunk.state.tobytes()


@each_kind
def test_notes_come_back_behind_the_state(name: str) -> None:
    """A chunk without a state has none, and one whose notes do not fit its rows is refused."""
    plain = sample_chunk(name)
    spec = dataclasses.replace(spec_of(plain), note_bytes=5)
    notes = (np.arange(len(spec.fresh_notes(plain.num_rows))) * 3 % 251).astype(np.uint8)
    chunk = dataclasses.replace(plain, notes=notes)
    content = encoded(chunk)
    found = layout.decode(content, where="here")
    assert_same_chunk(found, plain)
    assert found.notes.tobytes() == notes.tobytes()
    assert spec_of(found) == (spec if notes.size else spec.without_notes())
    assert len(content) == layout.read_header(content, where="here").encoded_bytes(spec_of(found))
    with pytest.raises(UsageError, match="notes of shape"):
        layout.encoded_bytes(dataclasses.replace(plain, notes=np.zeros(3, dtype=np.uint8)))


def test_notes_are_sealed_and_begin_anew_with_the_state() -> None:
    """Damage to them is found; a fresh state has empty ones, whatever was there before."""
    spec = StateSpec(outputs=2, width=1, note_bytes=5)
    chunk = sample_chunk("dense-float32")
    chunk = dataclasses.replace(chunk, state=spec.zeros(11), notes=np.full(110, 7, dtype=np.uint8))
    content = encoded(chunk)
    layout.decode(content, where="here").notes[109] ^= 1
    with pytest.raises(ChunkCorruptError, match="the state is damaged"):
        layout.verify_state(content, where="here")
    layout.seal_state(content, VERSION, where="here")
    assert layout.verify_state(content, where="here") == VERSION
    layout.attach_state(content, spec, where="here")
    assert not layout.decode(content, where="here").notes.any()


@each_kind
def test_rows_that_were_found_before_their_state_came_are_the_same(name: str) -> None:
    """They count for the same header at the same place only."""
    chunk, other = sample_chunk(name), sample_chunk("dense-float64-weights" if name == "dense-uint8" else "dense-uint8")
    content = layout.empty_buffer(max(layout.encoded_bytes(chunk), layout.encoded_bytes(other)))
    layout.encode(chunk, content)
    header = layout.read_header(content, where="here")
    ahead = layout.find_rows(content[: header.immutable_bytes], where="here")
    found, _ = layout.decode_with_state_header(content, where="here", ahead=ahead)
    assert found.targets is ahead.targets
    assert_same_chunk(found, chunk)
    elsewhere, _ = layout.decode_with_state_header(content.copy(), where="here", ahead=ahead)
    assert elsewhere.targets is not ahead.targets
    layout.encode(other, content)
    found, _ = layout.decode_with_state_header(content, where="here", ahead=ahead)
    assert_same_chunk(found, other)


@each_kind
def test_equal_chunks_have_equal_bytes(name: str) -> None:
    """What lay in the buffer before does not show in the gaps."""
    chunk = sample_chunk(name)
    size_bytes = layout.encoded_bytes(chunk)
    dirty = layout.empty_buffer(size_bytes)
    dirty[:] = 0xAA
    layout.encode(chunk, dirty, version=VERSION)
    assert dirty.tobytes() == encoded(chunk).tobytes()


@each_kind
def test_the_size_is_known_beforehand_and_nothing_behind_it_is_touched(name: str) -> None:
    """A slot may be larger than its chunk."""
    chunk = sample_chunk(name)
    size_bytes = layout.encoded_bytes(chunk)
    slot = layout.empty_buffer(size_bytes + 100)
    slot[:] = 0xAA
    assert layout.encode(chunk, slot) == size_bytes
    assert size_bytes % 64 == 0
    assert (slot[size_bytes:] == 0xAA).all()
    assert_same_chunk(layout.decode(slot, where="slot 5"), chunk)


@each_kind
def test_decoding_copies_nothing(name: str) -> None:
    """Every view lies in the buffer, at its alignment; writing the state writes the buffer."""
    content = encoded(sample_chunk(name))
    chunk = layout.decode(content, where="here")
    rows = chunk.rows
    arrays = [rows.values, rows.indices, rows.indptr] if isinstance(rows, CsrRows) else [rows]
    for array in (*arrays, chunk.targets, chunk.row_ids):
        assert np.shares_memory(array, content)
        assert (array.ctypes.data - content.ctypes.data) % 64 == 0
        assert array.flags.c_contiguous
    if chunk.state.size:
        chunk.state[...] = 1
        assert (layout.decode(content, where="here").state == 1).all()


def test_a_chunk_over_read_only_bytes_cannot_be_written() -> None:
    """A mapped file stays what it is."""
    chunk = layout.decode(encoded(sample_chunk("dense-float32")).tobytes(), where="here")
    with pytest.raises(ValueError, match="read-only"):
        chunk.state[0] = 1


def test_a_sealed_state_carries_its_version() -> None:
    """The owner writes, seals, and the next one verifies."""
    content = encoded(sample_chunk("dense-float32"))
    layout.decode(content, where="here").state[...] = 0.5
    layout.seal_state(content, StateVersion(round=4, iteration=18), where="here")
    assert layout.verify(content, where="here") == StateVersion(round=4, iteration=18)
    assert (layout.decode(content, where="here").state == 0.5).all()


def test_any_state_can_be_attached_to_the_same_immutable_bytes() -> None:
    """The immutable part and its checksum stay, whatever the trainer keeps."""
    chunk = sample_chunk("dense-float32")
    spec = StateSpec(outputs=10, width=2, dtype="float32")
    header = Header.of(chunk)
    content = layout.empty_buffer(header.encoded_bytes(spec))
    content[: layout.encoded_bytes(chunk)] = encoded(chunk)
    before = content[: header.immutable_bytes].tobytes()
    assert layout.attach_state(content, spec, where="here") == len(content)
    found = layout.decode(content, where="here")
    assert spec_of(found) == spec
    assert not found.state.any()
    assert layout.verify(content, where="here") == StateVersion()
    assert content[: header.immutable_bytes].tobytes() == before
    assert layout.attach_state(content, NO_STATE, where="here") == header.immutable_bytes + 64
    assert layout.decode(content, where="here").state.shape == (11, 0, 0)


def test_a_buffer_that_is_too_small_is_refused_with_both_figures() -> None:
    """Encode and attach say what is needed and what is there, and write nothing."""
    chunk = sample_chunk("dense-float32")
    size_bytes = layout.encoded_bytes(chunk)
    buffer = layout.empty_buffer(size_bytes - 1)
    buffer[:] = 0xAA
    with pytest.raises(CapacityError, match=f"chunk 0 takes {size_bytes} bytes .* has {size_bytes - 1}"):
        layout.encode(chunk, buffer)
    assert (buffer == 0xAA).all()
    content = encoded(chunk)
    with pytest.raises(CapacityError, match="raise slot_bytes"):
        layout.attach_state(content, StateSpec(outputs=1000, width=1), where="here")


def test_a_buffer_that_cannot_be_used_is_refused() -> None:
    """Read-only memory, and addresses that kernels could not read."""
    chunk = sample_chunk("dense-float32")
    with pytest.raises(UsageError, match="read-only"):
        layout.encode(chunk, bytes(4096))
    with pytest.raises(UsageError, match="multiple of 8"):
        layout.encode(chunk, layout.empty_buffer(4096)[1:])
    shifted = layout.empty_buffer(4096)[1:]
    content = encoded(chunk)
    shifted[: len(content)] = content
    with pytest.raises(UsageError, match=r"arena 0: .* multiple of 8 bytes"):
        layout.decode(shifted, where="arena 0")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": np.zeros(10, np.int32)}, r"11 rows, but targets of shape \(10,\)"),
        ({"weights": np.zeros(12)}, r"11 rows, but weights of shape \(12,\)"),
        ({"row_ids": np.zeros((11, 1), np.int64)}, r"row_ids of shape \(11, 1\)"),
        ({"state": np.zeros(11)}, r"state of shape \(11,\)"),
        ({"targets": np.zeros(11, np.int64)}, "targets of dtype int64; a chunk holds int32, float32, float64"),
        ({"row_ids": np.zeros(11, np.int32)}, "row_ids of dtype int32"),
        ({"rows": np.zeros((11, 5), np.int16)}, "values of dtype int16"),
        ({"rows": np.zeros((11, 0), np.float32)}, "at least a row and a column"),
        ({"state": np.zeros((11, 1, 1), np.float16)}, "state of dtype float16"),
        ({"weights": np.zeros(11, np.int32)}, "weights of dtype int32"),
    ],
)
def test_views_that_do_not_make_a_chunk_are_refused(changes: dict[str, np.ndarray], message: str) -> None:
    """The message names the chunk, the array, and what would fit."""
    chunk = dataclasses.replace(sample_chunk("dense-float32"), **changes)
    with pytest.raises(UsageError, match=f"chunk 0 .*{message}"):
        layout.encoded_bytes(chunk)


def test_csr_rows_of_bytes_are_refused() -> None:
    """uint8 is for images, which are dense."""
    chunk = sample_chunk("csr-float32-int32")
    assert isinstance(chunk.rows, CsrRows)
    rows = dataclasses.replace(chunk.rows, values=chunk.rows.values.astype(np.uint8))
    with pytest.raises(UsageError, match="values of dtype uint8"):
        layout.encoded_bytes(dataclasses.replace(chunk, rows=rows))


@each_kind
def test_a_chunk_in_parts_over_zeros_is_decoded_as_it_was(name: str) -> None:
    """Its rows, without their state."""
    chunk = dataclasses.replace(sample_chunk(name), state=NO_STATE.zeros(11), notes=NO_STATE.fresh_notes(11))
    content = layout.empty_buffer(layout.encoded_bytes(chunk))
    content[:] = 0
    for offset, part in layout.parts(chunk):
        content[offset : offset + len(part)] = part
    assert_same_chunk(layout.decode(content, where="here"), chunk)


@each_kind
def test_a_chunk_with_its_rows_outside_has_only_its_state_in_the_slot(name: str) -> None:
    """It is sealed and verified like any other, and its rows are those of the source, not copies."""
    chunk = sample_chunk(name)
    content = layout.empty_buffer(layout.outside_bytes(chunk.num_rows, spec_of(chunk)))
    assert layout.encode(chunk, content, version=VERSION, outside=True) == len(content)
    assert layout.verify(content, where="here") == VERSION
    found, _ = layout.decode_with_state_header(content, where="here", outside=lambda _: chunk)
    assert_same_chunk(found, chunk)
    assert found.rows is chunk.rows
    assert np.shares_memory(found.state, content) == bool(chunk.state.size)


def test_rows_outside_that_are_others_or_not_there_are_refused() -> None:
    """No file has a chunk like that, and the tasks of a job have the same data."""
    chunk = sample_chunk("dense-float32")
    content = layout.empty_buffer(layout.encoded_bytes(chunk))
    layout.encode(chunk, content, outside=True)
    with pytest.raises(ChunkCorruptError, match="outside"):
        layout.decode(content, where="here")
    with pytest.raises(ChunkCorruptError, match="outside"):
        layout.find_rows(content, where="here", outside=lambda _: slice_chunk(chunk, 0, 5))
