"""Reading a chunk folder: what was written, or a refusal that names file and chunk."""

import copy
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.headers import crc_of
from chicle_elastic.chunks.views import NO_STATE, StateSpec
from chicle_elastic.errors import CapacityError, ChunkCorruptError, DataError, UsageError
from chicle_elastic.ids import ChunkId
from tests.chunks.folders import edit_manifest, write_folder
from tests.chunks.samples import assert_same_chunk

DUALS = StateSpec(outputs=3, width=1, dtype="float64")


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_chunk_is_loaded_with_fresh_state_of_any_shape(tmp_path: Path, is_sparse: bool) -> None:
    """In exactly the bytes that `infos` announced, the same each time."""
    folder = write_folder(tmp_path / "data", is_sparse=is_sparse)
    for state in (NO_STATE, DUALS, StateSpec(outputs=1, width=4, dtype="uint8")):
        for info in folder.infos(state):
            chunk = folder.load(info.id, state)
            assert chunk.state.shape == (info.num_rows, state.outputs, state.width)
            assert not chunk.state.any()
            assert info.size_bytes == layout.encoded_bytes(chunk)
            chunk.state[...] = 1
            chunk.state[...] = 0
            assert_same_chunk(folder.load(info.id, state), chunk)


def test_a_chunk_is_read_straight_into_a_slot(tmp_path: Path) -> None:
    """The bytes there are those of the file, then the state; a slot that is too small is refused with both figures."""
    folder = write_folder(tmp_path / "data")
    info = folder.infos(DUALS)[2]
    slot = layout.empty_buffer(4096)
    slot[:] = 0xAA
    assert folder.load_into(info.id, slot, DUALS) == info.size_bytes
    assert_same_chunk(layout.decode(slot, where="slot"), folder.load(info.id, DUALS))
    layout.verify(slot, where="slot")
    assert (slot[info.size_bytes :] == 0xAA).all()
    content = folder.file(info.id).read_bytes()
    immutable_bytes = folder.header(info.id).immutable_bytes
    assert slot[:immutable_bytes].tobytes() == content[:immutable_bytes]
    with pytest.raises(CapacityError, match=rf"chunk 2 takes {info.size_bytes} bytes .* has 100"):
        folder.load_into(info.id, slot[:100], DUALS)


def test_a_folder_is_a_value(tmp_path: Path) -> None:
    """It can be pickled; its fingerprint tells its content, wherever it lies."""
    folder = write_folder(tmp_path / "data")
    assert pickle.loads(pickle.dumps(folder)).fingerprint() == folder.fingerprint()
    assert ChunkFolder(shutil.copytree(folder.path, tmp_path / "copy")).fingerprint() == folder.fingerprint()
    assert write_folder(tmp_path / "other", shuffle_seed=1).fingerprint() != folder.fingerprint()
    assert "100 x 6 dense float32" in repr(folder)


@pytest.mark.parametrize("number", [-1, 1000])
def test_a_chunk_that_is_not_there_is_refused(tmp_path: Path, number: int) -> None:
    """The message has the number of chunks."""
    folder = write_folder(tmp_path / "data")
    with pytest.raises(UsageError, match=rf"no chunk {number}; .* has {len(folder)} chunks"):
        folder.load(ChunkId(number), NO_STATE)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_flipped_bit_in_a_file_names_the_chunk(tmp_path: Path, is_sparse: bool) -> None:
    """In each byte of a file; the other chunks are still good."""
    folder = write_folder(tmp_path / "data", is_sparse=is_sparse)
    path = folder.file(ChunkId(2))
    content = path.read_bytes()
    for position in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        # A damaged header does not tell its chunk, but the file's name does.
        number = "" if position < 256 else "chunk 2: "
        with pytest.raises(ChunkCorruptError, match=f"chunk-000002.bin: {number}"):
            folder.load(ChunkId(2), DUALS)
    with pytest.raises(ChunkCorruptError, match=r"chunk-000002\.bin: "):
        folder.verify()
    folder.load(ChunkId(1), DUALS)


def test_a_damaged_chunk_does_not_stay_in_the_slot(tmp_path: Path) -> None:
    """Nobody decodes what was just refused."""
    folder = write_folder(tmp_path / "data")
    path = folder.file(ChunkId(1))
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)
    slot = layout.empty_buffer(4096)
    with pytest.raises(ChunkCorruptError, match="the immutable part is damaged"):
        folder.load_into(ChunkId(1), slot, DUALS)
    with pytest.raises(ChunkCorruptError):
        layout.decode(slot, where="slot")


def test_a_file_that_was_cut_off_is_found_when_opening_and_when_loading(tmp_path: Path) -> None:
    """At many lengths; also when it happens after the folder was opened."""
    folder = write_folder(tmp_path / "data")
    path = folder.file(ChunkId(3))
    content = path.read_bytes()
    for length in range(0, len(content), 17):
        path.write_bytes(content[:length])
        with pytest.raises(ChunkCorruptError, match=rf"chunk-000003.bin: .* chunk 3 has {length} bytes, but .* says"):
            ChunkFolder(folder.path)
        with pytest.raises(ChunkCorruptError, match=r"chunk-000003.bin: .*truncated"):
            folder.load(ChunkId(3), DUALS)
    path.write_bytes(content + b"more")
    with pytest.raises(ChunkCorruptError, match=r"chunk-000003.bin: .* but manifest.json says"):
        ChunkFolder(folder.path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A chunk, the manifest, the folder."""
    folder = write_folder(tmp_path / "data")
    folder.file(ChunkId(3)).unlink()
    with pytest.raises(ChunkCorruptError, match=r"chunk-000003.bin: the file of chunk 3 is missing"):
        ChunkFolder(folder.path)
    (folder.path / "manifest.json").unlink()
    with pytest.raises(
        DataError, match=r"data is no chunk folder: it has no manifest.json; make one with: chicle convert"
    ):
        ChunkFolder(folder.path)
    with pytest.raises(DataError, match="nothing is no chunk folder: there is no such folder"):
        ChunkFolder(tmp_path / "nothing")
    with pytest.raises(DataError, match="there is no such folder"):
        ChunkFolder(Path(__file__))


@pytest.mark.parametrize("form", [str, Path])
def test_a_folder_is_found_after_a_change_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: type[str] | type[Path]
) -> None:
    """A relative path means the place that it named when the folder was opened, in copies and in other processes."""
    chunk = write_folder(tmp_path / "data").load(ChunkId(1), DUALS)
    monkeypatch.chdir(tmp_path)
    folder = ChunkFolder(form("data"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for each in (folder, copy.deepcopy(folder), pickle.loads(pickle.dumps(folder)), ChunkFolder(folder.path)):
        assert_same_chunk(each.load(ChunkId(1), DUALS), chunk)


@pytest.mark.parametrize("moved", ["chunk-000003.bin", "."], ids=["a chunk", "the folder"])
def test_a_file_that_goes_after_the_folder_was_opened_is_named(tmp_path: Path, moved: str) -> None:
    """Whichever reader misses it, with an error of this package."""
    folder = write_folder(tmp_path / "data")
    (folder.path / moved).rename(tmp_path / "moved")
    for read in (folder.header, folder.targets, lambda chunk: folder.load(chunk, DUALS)):
        with pytest.raises(DataError, match=r"data/chunk-000003.bin: "):
            read(ChunkId(3))


@pytest.mark.parametrize("name", ["manifest.json", "chunk-000003.bin"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    """A folder in its place: an OSError that root gets, too."""
    folder = write_folder(tmp_path / "data")
    (folder.path / name).unlink()
    (folder.path / name).mkdir()
    with pytest.raises(DataError, match=name):
        ChunkFolder(folder.path).load(ChunkId(3), NO_STATE)
    if name != "manifest.json":
        with pytest.raises(DataError, match=name):
            folder.load(ChunkId(3), NO_STATE)


def test_a_file_of_another_data_set_is_found(tmp_path: Path) -> None:
    """Same number, same shape, other rows: its CRC is not that of the manifest."""
    folder = write_folder(tmp_path / "data")
    other = write_folder(tmp_path / "other", shuffle_seed=1)
    shutil.copy(other.file(ChunkId(1)), folder.file(ChunkId(1)))
    with pytest.raises(ChunkCorruptError, match=r"chunk-000001.bin: chunk 1: the CRC is"):
        folder.load(ChunkId(1), NO_STATE)


@pytest.mark.skipif(os.name != "posix", reason="symbolic links and pipes of POSIX")
def test_a_chunk_file_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    """A link to elsewhere, a link to nothing, a pipe that would block; a link within the folder is fine."""
    folder = write_folder(tmp_path / "data")
    path = folder.file(ChunkId(1))
    elsewhere = path.rename(tmp_path / "elsewhere.bin")
    for make in (
        lambda: path.symlink_to(elsewhere),
        lambda: path.symlink_to("../elsewhere.bin"),
        lambda: path.symlink_to("nothing"),
        lambda: os.mkfifo(path),
        path.mkdir,
    ):
        make()
        with pytest.raises(ChunkCorruptError, match=r"chunk-000001.bin: the file of chunk 1 is no regular file within"):
            ChunkFolder(folder.path)
        path.rmdir() if path.is_dir() else path.unlink()
    shutil.copy(elsewhere, folder.path / "copy.bin")
    path.symlink_to("copy.bin")
    assert ChunkFolder(folder.path).load(ChunkId(1), NO_STATE).id == 1


LIES = {"num_features": 7, "dtype": "float64", "kind": "csr", "target_dtype": "float32", "has_weights": True}


@pytest.mark.parametrize(("field", "value"), LIES.items())
def test_a_schema_that_lies_is_found_when_opening(tmp_path: Path, field: str, value: object) -> None:
    """Before a model of the wrong size is made, although all checksums are right."""
    folder = write_folder(tmp_path / "data", is_sparse=False)

    def edit(manifest: dict) -> None:
        manifest["schema"][field] = value
        manifest["index_dtype"] = "int32" if value == "csr" else ""
        manifest["weight_dtype"] = "float64" if field == "has_weights" else ""
        if field == "target_dtype":
            manifest["schema"]["num_classes"] = 0
            manifest["classes"] = []

    edit_manifest(folder.path, edit)
    with pytest.raises(DataError, match=r"chunk-000000.bin|chunks\[0\]"):
        ChunkFolder(folder.path)


def test_a_csr_schema_that_lies_about_columns_is_found_when_opening(tmp_path: Path) -> None:
    """The size of CSR files does not give it away, the first header does."""
    folder = write_folder(tmp_path / "data", is_sparse=True)
    edit_manifest(folder.path, lambda manifest: manifest["schema"].update(num_features=10**12))
    with pytest.raises(ChunkCorruptError, match=r"chunk 0: the number of features is 6, but .* 1000000000000"):
        ChunkFolder(folder.path)


def forge_chunk(folder: ChunkFolder, number: int, section: str, row: int, value: int) -> None:
    """Change one number of a chunk, and make all checksums right, those of the manifest too."""
    path = folder.file(ChunkId(number))
    content = layout.empty_buffer(path.stat().st_size)
    content[:] = np.frombuffer(path.read_bytes(), np.uint8)
    header = layout.read_header(content, where="here")
    views = {part.name: part.view(content) for part in header.sections if part.dtype}
    views[section][row] = value
    chunk = layout.decode(content, where="here")
    layout.encode(chunk, content)
    path.write_bytes(content.tobytes())
    crc = crc_of(content[:252])
    edit_manifest(folder.path, lambda manifest: manifest["chunks"][number].update(crc32=f"{crc:08x}"))


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("targets", 3, "class code 3, but manifest.json allows 0 to 2"),
        ("targets", -1, "class code -1"),
        ("row_ids", 100, "row id 100, but manifest.json allows 0 to 99"),
        ("row_ids", -5, "row id -5"),
    ],
)
def test_numbers_that_index_arrays_have_to_be_in_range(tmp_path: Path, section: str, value: int, message: str) -> None:
    """Although all checksums are right: somebody else's program may have written them."""
    folder = write_folder(tmp_path / "data")
    forge_chunk(folder, 2, section, 3, value)
    with pytest.raises(ChunkCorruptError, match=f"chunk-000002.bin: chunk 2 holds the {message}"):
        ChunkFolder(folder.path).load(ChunkId(2), DUALS)


def test_a_row_that_is_there_twice_is_found_by_verify(tmp_path: Path) -> None:
    """Within a chunk and between two; each chunk for itself looks good."""
    for name, source_chunk in (("one", 2), ("two", 0)):
        folder = write_folder(tmp_path / name)
        row_id = int(folder.load(ChunkId(source_chunk), NO_STATE).row_ids[0])
        forge_chunk(folder, 2, "row_ids", 3, row_id)
        with pytest.raises(
            ChunkCorruptError, match=rf"chunk-000002.bin: chunk 2 holds row {row_id}, which is there twice"
        ):
            ChunkFolder(folder.path).verify()


def test_verify_tells_how_far_it_is(tmp_path: Path) -> None:
    """Once per chunk."""
    folder = write_folder(tmp_path / "data")
    steps: list[tuple[int, int]] = []
    folder.verify(lambda done, total: steps.append((done, total)))
    assert steps == [(done, len(folder)) for done in range(1, len(folder) + 1)]


def test_it_is_no_array_and_says_what_to_do(tmp_path: Path) -> None:
    """Cross-validation would pick rows."""
    folder = write_folder(tmp_path / "data")
    with pytest.raises(UsageError, match="cross-validation and grid search"):
        np.asarray(folder)
