"""Writing a chunk folder: from a stream, in bounded memory, all or nothing."""

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.folder_writer import ChunkFolderWriter
from chicle_elastic.chunks.rows import rows_of, slice_rows
from chicle_elastic.chunks.views import NO_STATE, Array, CsrRows, Rows, StateSpec
from chicle_elastic.errors import CapacityError, DataError, UsageError
from chicle_elastic.ids import ChunkId
from tests.chunks.folders import LABELS, samples, write_blocks, write_folder
from tests.chunks.samples import dense

MIB = 1 << 20


def blocks(num_rows: int, block_rows: int) -> Iterator[slice]:
    """Consecutive blocks of rows."""
    return (slice(start, min(start + block_rows, num_rows)) for start in range(0, num_rows, block_rows))


def names_in(folder: Path) -> list[str]:
    """All names, hidden ones too."""
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("has_weights", [False, True])
@pytest.mark.parametrize("memory_bytes", [3_000, MIB], ids=["through files", "in memory"])
def test_blocks_become_a_folder_with_every_row_once(
    tmp_path: Path, is_sparse: bool, has_weights: bool, memory_bytes: int
) -> None:
    """In a random order, with the number in which they came; the classes are known at the end only."""
    X, codes, weights = samples()
    kept = np.array([7.0, -3.0, 5.0])[codes]
    rows = rows_of(sparse.csr_matrix(X) if is_sparse else X)
    with ChunkFolderWriter(
        tmp_path / "data",
        kind="csr" if is_sparse else "dense",
        dtype="float32",
        has_weights=has_weights,
        memory_bytes=memory_bytes,
        chunk_bytes=500,
    ) as writer:
        for block in blocks(100, 13):
            part = slice_rows(rows, block.start, block.stop)
            writer.add(part, kept[block], weights[block] if has_weights else None)
        assert names_in(tmp_path) != ["data"]
        folder = writer.finish(
            classes=np.array([-3, 5, 7]), recode=lambda kept: np.searchsorted([-3, 5, 7], kept).astype(np.int32)
        )
    assert names_in(tmp_path) == ["data"]
    assert names_in(folder.path) == [*(folder.file(ChunkId(i)).name for i in range(len(folder))), "manifest.json"]
    folder.verify()
    chunks, schema = list(folder), folder.schema
    ids = np.concatenate([chunk.row_ids for chunk in chunks])
    assert sorted(ids) == list(range(100)) != ids.tolist()
    assert (len(folder), folder.num_rows, folder.classes) == (len(chunks), 100, (-3, 5, 7))
    assert (schema.kind, schema.dtype) == ("csr" if is_sparse else "dense", "float32")
    assert (schema.num_features, schema.num_classes, schema.target_dtype) == (6, 3, "int32")
    for chunk in chunks:
        assert np.array_equal(dense(chunk), X[chunk.row_ids])
        assert np.array_equal(np.array(folder.classes)[chunk.targets], kept[chunk.row_ids])
        assert (chunk.weights is not None) == has_weights
        assert chunk.weights is None or np.array_equal(chunk.weights, weights[chunk.row_ids])


@pytest.mark.parametrize("memory_bytes", [3_000, MIB])
def test_same_rows_and_seed_make_the_same_bytes(tmp_path: Path, memory_bytes: int) -> None:
    """To the last one; another seed makes others."""
    paths = [
        write_folder(tmp_path / name, shuffle_seed=seed, memory_bytes=memory_bytes).path
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    first, second, third = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in paths)
    assert first == second != third


def test_a_chunk_may_be_larger_than_the_memory_for_the_shuffle(tmp_path: Path) -> None:
    """Its parts are gathered until it is full."""
    folder = write_folder(tmp_path / "data", chunk_bytes=3_000, memory_bytes=2_000)
    assert [info.num_rows for info in folder.infos(NO_STATE)] == [72, 28]
    folder.verify()


def test_real_targets_stay_what_they_are(tmp_path: Path) -> None:
    """float64 by default; a folder without classes."""
    X, _, weights = samples()
    for target_dtype in (None, "float32"):
        with ChunkFolderWriter(tmp_path / str(target_dtype), kind="dense", dtype="float32") as writer:
            writer.add(X, weights)
            folder = writer.finish(target_dtype=target_dtype)
        assert (folder.classes, folder.schema.num_classes) == ((), 0)
        assert folder.schema.target_dtype == (target_dtype or "float64")
        for chunk in folder:
            assert np.array_equal(chunk.targets, weights[chunk.row_ids].astype(target_dtype or "float64"))


def test_the_columns_of_csr_rows_are_known_at_the_end(tmp_path: Path) -> None:
    """The widest block decides, or the end of the data; all chunks say the same."""
    narrow = CsrRows(np.array([0, 1]), np.array([0]), np.ones(1), 1)
    wide = CsrRows(np.array([0, 1]), np.array([8]), np.ones(1), 9)
    for name, at_end, expected in (("widest", None, 9), ("end", 12, 12)):
        with ChunkFolderWriter(tmp_path / name, kind="csr", dtype="float64") as writer:
            writer.add(narrow, np.zeros(1))
            writer.add(wide, np.zeros(1))
            folder = writer.finish(num_features=at_end)
        assert folder.schema.num_features == expected
        assert {chunk.num_features for chunk in folder} == {expected}
        assert {chunk.rows.indices.dtype for chunk in folder if isinstance(chunk.rows, CsrRows)} == {np.dtype("int32")}


def test_indices_beyond_32_bits_are_kept(tmp_path: Path) -> None:
    """Hashed features; the chunks then have int64 indices, all of them: kernels take one dtype for all."""
    narrow = CsrRows(np.arange(31), np.full(30, 3, np.int32), np.ones(30), 4)
    wide = CsrRows(np.array([0, 1, 2]), np.array([5, 2**40]), np.ones(2), 2**40 + 1)
    blocks_of_rows = [(narrow, np.zeros(30)), (wide, np.zeros(2))]
    options = {"kind": "csr", "dtype": "float64", "memory_bytes": 1, "chunk_bytes": 1}
    folder = write_blocks(tmp_path / "data", blocks_of_rows, finish={}, **options)
    indices = [chunk.rows.indices for chunk in folder if isinstance(chunk.rows, CsrRows)]
    assert {array.dtype for array in indices} == {np.dtype("int64")}
    assert sorted(np.concatenate(indices)) == [3] * 30 + [5, 2**40]


@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_caller_may_use_its_memory_again(tmp_path: Path, is_sparse: bool) -> None:
    """Readers fill one block after the other into the same arrays."""
    X, codes, weights = (array.copy() for array in samples())
    rows = rows_of(sparse.csr_matrix(X) if is_sparse else X.copy())
    kept = codes.astype(np.float64)

    def blocks_of_rows() -> Iterator[tuple[Rows, Array, Array]]:
        yield rows, kept, weights
        for array in (rows.values if isinstance(rows, CsrRows) else rows, kept, weights):
            array[...] = -1

    folder = write_blocks(tmp_path / "data", blocks_of_rows(), kind="csr" if is_sparse else "dense", has_weights=True)
    for chunk in folder:
        assert np.array_equal(dense(chunk), X[chunk.row_ids])
        assert np.array_equal(chunk.targets, codes[chunk.row_ids])
        assert chunk.weights is not None
        assert (chunk.weights >= 0).all()


def test_memory_stays_bounded_whatever_comes(tmp_path: Path) -> None:
    """4 MiB of rows through 1 MiB of memory, measured by tracemalloc, which NumPy reports to."""
    block = np.random.default_rng(0).normal(size=(128, 64))
    with ChunkFolderWriter(tmp_path / "data", kind="dense", dtype="float64", memory_bytes=MIB) as writer:
        tracemalloc.start()
        try:
            for _ in range(64):
                writer.add(block, np.zeros(128))
            folder = writer.finish(classes=("all",))
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert folder.num_rows == 64 * 128
    assert folder.size_bytes > 4 * MIB
    assert peak_bytes < MIB + block.nbytes


class BoomError(Exception):
    """An error of the caller."""


@pytest.mark.parametrize("error", [BoomError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("moment", ["before a row", "between blocks", "in recode", "in progress"])
def test_nothing_is_left_when_it_is_interrupted(tmp_path: Path, error: type[BaseException], moment: str) -> None:
    """At any moment; a folder that was there before is untouched."""
    before = write_folder(tmp_path / "data")
    content = {path.name: path.read_bytes() for path in before.path.iterdir()}
    X, codes, _ = samples()

    def interrupt_in(here: str) -> None:
        if moment == here:
            raise error

    def blocks_of_rows() -> Iterator[tuple[Array, Array]]:
        interrupt_in("before a row")
        yield X, codes
        interrupt_in("between blocks")
        yield X, codes

    def recode(kept: Array) -> Array:
        interrupt_in("in recode")
        return kept

    def on_progress(done: int, total: int) -> None:
        if done > total // 2:
            interrupt_in("in progress")

    finish = {"classes": LABELS, "recode": recode, "on_progress": on_progress}
    options = {"overwrite": True, "memory_bytes": 2000, "chunk_bytes": 500}
    for name in ("data", "new"):
        with pytest.raises(error):
            write_blocks(tmp_path / name, blocks_of_rows(), finish=finish, **options)
    assert names_in(tmp_path) == ["data"]
    assert {path.name: path.read_bytes() for path in before.path.iterdir()} == content


def test_nothing_is_left_when_finish_is_forgotten(tmp_path: Path) -> None:
    """Leaving the block without it writes nothing."""
    X, codes, _ = samples()
    with ChunkFolderWriter(tmp_path / "data", kind="dense", dtype="float32", memory_bytes=2000) as writer:
        writer.add(X, codes)
        assert names_in(tmp_path) != []
    assert names_in(tmp_path) == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write")
def test_a_folder_that_may_not_be_written_is_the_systems_error(tmp_path: Path) -> None:
    """It names the path."""
    tmp_path.chmod(0o500)
    with (
        pytest.raises(PermissionError, match="data"),
        ChunkFolderWriter(tmp_path / "data", kind="dense", dtype="float32"),
    ):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_with_what_is_left(tmp_path: Path) -> None:
    """The second chunk file leads to the kernel's own device that is always full."""
    X, codes, _ = samples()

    def blocks_of_rows() -> Iterator[tuple[Array, Array]]:
        yield X, codes
        (temporary,) = tmp_path.iterdir()
        (temporary / "chunk-000001.bin").symlink_to("/dev/full")

    with pytest.raises(CapacityError, match=r"chunk-000001.bin could not be written .* bytes are free there"):
        write_blocks(tmp_path / "data", blocks_of_rows(), chunk_bytes=500)
    assert names_in(tmp_path) == []


def test_a_chunk_folder_is_replaced_when_asked(tmp_path: Path) -> None:
    """The new one is complete, the old one gone."""
    old = write_folder(tmp_path / "data")
    new = write_folder(tmp_path / "data", overwrite=True, chunk_bytes=2000, is_sparse=True)
    assert len(new) < len(old)
    assert names_in(tmp_path) == ["data"]
    assert len(names_in(new.path)) == len(new) + 1
    new.verify()


@pytest.mark.parametrize(("interrupted_rename", "survivor"), [(1, "old"), (2, "new")])
def test_ctrl_c_between_the_renames_costs_neither_the_old_nor_the_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted_rename: int, survivor: str
) -> None:
    """The old one is put back, or the new one is in place already; nothing lies beside it."""
    old, new = (write_folder(tmp_path / "data", overwrite=True, shuffle_seed=seed).fingerprint() for seed in (1, 2))
    write_folder(tmp_path / "data", overwrite=True, shuffle_seed=1)
    rename, num_renames = os.rename, 0

    def rename_and_interrupt(source: Path, target: Path) -> None:
        nonlocal num_renames
        rename(source, target)
        num_renames += 1
        if num_renames == interrupted_rename:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", rename_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "data", overwrite=True, shuffle_seed=2)
    assert names_in(tmp_path) == ["data"]
    assert ChunkFolder(tmp_path / "data").fingerprint() == {"old": old, "new": new}[survivor]


@pytest.mark.parametrize(
    ("has_chunks", "name", "content", "reason"),
    [
        (False, "data", "precious", "it is no folder"),
        (False, "data/thesis.tex", "precious", "it has no manifest.json"),
        (False, "data/manifest.json", '{"name": "my web page"}', "its manifest.json is not that of a chunk folder"),
        (True, "data/thesis.tex", "precious", "it holds 'thesis.tex'"),
    ],
)
def test_only_chunk_folders_are_ever_replaced(
    tmp_path: Path, has_chunks: bool, name: str, content: str, reason: str
) -> None:
    """`--overwrite ~` must not cost anybody a home."""
    if has_chunks:
        write_folder(tmp_path / "data")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=f"data is not replaced, because {reason}"):
        ChunkFolderWriter(tmp_path / "data", kind="dense", dtype="float32", overwrite=True)
    assert (tmp_path / name).read_text() == content
    assert names_in(tmp_path) == ["data"]


def test_what_appears_at_the_target_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    """Two conversions to one name: the second to finish loses."""
    X, codes, _ = samples()

    def blocks_of_rows() -> Iterator[tuple[Array, Array]]:
        yield X, codes
        write_folder(tmp_path / "data", shuffle_seed=9)

    with pytest.raises(UsageError, match="data exists already"):
        write_blocks(tmp_path / "data", blocks_of_rows())
    assert ChunkFolder(tmp_path / "data").fingerprint() == write_folder(tmp_path / "x", shuffle_seed=9).fingerprint()
    assert names_in(tmp_path) == ["data", "x"]


def test_the_working_directory_may_change_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path means what it meant at the start."""
    X, codes, _ = samples()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with ChunkFolderWriter("data", kind="dense", dtype="float32") as writer:
        writer.add(X, codes)
        monkeypatch.chdir(tmp_path / "elsewhere")
        folder = writer.finish(classes=LABELS)
    assert names_in(tmp_path) == ["data", "elsewhere"]
    folder.verify()


GOOD = samples()


@pytest.mark.parametrize(
    ("rows", "targets", "weights", "message"),
    [
        (GOOD[0].astype(np.float64), GOOD[1], None, "dense float64, .* made for dense float32"),
        (rows_of(sparse.csr_matrix(GOOD[0])), GOOD[1], None, "csr float32, .* made for dense float32"),
        (GOOD[0][:, :5], GOOD[1], None, "these rows have 5 features, not 6"),
        (GOOD[0], GOOD[1][:7], None, r"targets of 100 rows have the shape \(7,\), not \(100,\)"),
        (GOOD[0], GOOD[1], GOOD[2], r"weights of 100 rows have the shape \(100,\), not None"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(
    tmp_path: Path, rows: Array, targets: Array, weights: Array | None, message: str
) -> None:
    """The message has what came and what was expected; nothing is left."""
    with pytest.raises(UsageError, match=f"data: .*{message}"):
        write_blocks(tmp_path / "data", [GOOD[:2], (rows, targets, weights)])
    assert names_in(tmp_path) == []


def test_csr_rows_beyond_the_stated_columns_are_refused(tmp_path: Path) -> None:
    """Kernels would read beyond the model; the message has the first row of the block."""
    good = CsrRows(np.zeros(7, int), np.zeros(0, int), np.zeros(0, np.float32), 5)
    rows = rows_of(sparse.csr_matrix(np.eye(6, dtype=np.float32)))
    blocks_of_rows = [(good, np.zeros(6)), (rows, np.zeros(6))]
    with pytest.raises(DataError, match=r"the rows from number 6 on cannot be used: .* index 5, but 5 columns"):
        write_blocks(tmp_path / "data", blocks_of_rows, kind="csr", num_features=5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"classes": ("a", "b")}, DataError, r"row \d+: the target 2.0 is not a class code from 0 to 1"),
        ({"classes": LABELS, "recode": lambda kept: kept - 1}, DataError, r"the target -1.0 is not a class code"),
        ({"classes": LABELS, "recode": lambda kept: kept + 0.5}, DataError, r"the target \d.5 is not a class code"),
        ({"recode": lambda kept: kept * np.nan}, DataError, r"the target nan is not float64"),
        ({"classes": LABELS, "recode": lambda kept: kept[:0]}, UsageError, r"recode made \(0,\)"),
        ({"classes": ("a", "b", "a")}, UsageError, "labels .* are not all different"),
        ({"classes": (1, 2, None)}, UsageError, "the label None is no number or string"),
        ({"classes": (True, False, 3)}, UsageError, "the label True is no number"),
        ({"classes": (1.0, 2.0, float("nan"))}, UsageError, "the label nan is no number"),
        ({"classes": LABELS, "num_features": 7}, UsageError, "num_features=7 cannot be; the rows have 6 columns"),
    ],
)
def test_an_end_that_does_not_fit_is_refused(
    tmp_path: Path, options: dict, error: type[Exception], message: str
) -> None:
    """The message names the row or the argument; nothing is left."""
    with pytest.raises(error, match=message):
        write_blocks(tmp_path / "data", [GOOD[:2]], finish=options)
    assert names_in(tmp_path) == []


def test_a_data_set_needs_rows_and_columns(tmp_path: Path) -> None:
    """Nothing at all, blocks without rows, rows without columns."""
    empty = CsrRows(np.zeros(1, int), np.zeros(0, int), np.zeros(0), 3)
    no_columns = CsrRows(np.zeros(4, int), np.zeros(0, int), np.zeros(0), 0)
    for rows, error, message in (
        (empty, DataError, "there are no rows"),
        (no_columns, UsageError, "no row has a column"),
    ):
        with pytest.raises(error, match=message):
            write_blocks(tmp_path / "data", [(rows, np.zeros(rows.shape[0]))], finish={}, kind="csr", dtype="float64")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int16"}, "dtype='int16' cannot be"),
        ({"kind": "csr", "dtype": "uint8"}, "kind='csr' and dtype='uint8' cannot be"),
        ({"kind": "coo"}, "kind='coo'"),
        ({"chunk_bytes": 0}, "chunk_bytes=0"),
        ({"max_tasks": 0}, "max_tasks=0"),
        ({"memory_bytes": -1}, "memory_bytes=-1"),
        ({"num_features": 0}, "num_features=0"),
        ({"path": "nowhere/data"}, "there is no folder .*nowhere; create it first"),
    ],
)
def test_arguments_that_cannot_work_are_refused_at_once(tmp_path: Path, options: dict, message: str) -> None:
    """Before a file is read for an hour."""
    options = {"path": "data", "kind": "dense", "dtype": "float32"} | options
    path = tmp_path / options.pop("path")
    with pytest.raises(UsageError, match=message):
        ChunkFolderWriter(path, **options)
    assert names_in(tmp_path) == []


def test_a_writer_is_used_once_and_in_a_with_block(tmp_path: Path) -> None:
    """Else nobody would clean up."""
    X, codes, _ = samples()
    writer = ChunkFolderWriter(tmp_path / "data", kind="dense", dtype="float32")
    with pytest.raises(UsageError, match="use a with block"):
        writer.add(X, codes)
    with writer:
        writer.add(X, codes)
        writer.finish(classes=LABELS)
        with pytest.raises(UsageError, match="finish once"):
            writer.finish(classes=LABELS)
    assert ChunkFolder(tmp_path / "data").load(ChunkId(0), StateSpec(outputs=1, width=1)).num_rows > 0
