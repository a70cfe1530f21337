"""A conversion is complete and exact, or it leaves nothing behind."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from chicle_elastic.chunks import convert_labels
from chicle_elastic.chunks.convert import ConvertOptions, Step, convert
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.readers.base import Block, Origin, ReadOptions
from chicle_elastic.chunks.readers.checks import checked_rows
from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.errors import ChicleError, DataError, UsageError
from tests.convert.inputs import read_back, write_text

X = np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, 400) * 2 - 1


def write_csv(path: Path, X: Array, y: Array) -> Path:
    """Label first, every digit kept."""
    lines = [",".join([str(label), *(repr(float(value)) for value in row)]) for label, row in zip(y, X, strict=True)]
    return write_text(path.parent, "\n".join(lines) + "\n", path.name)


def make_csv(folder: Path) -> tuple[list[Path], ReadOptions]:
    """X and Y as CSV."""
    return [write_csv(folder / "a.csv", X, Y)], ReadOptions()


def make_svmlight(folder: Path) -> tuple[list[Path], ReadOptions]:
    """X and Y as svmlight."""
    dump_svmlight_file(X, Y, str(folder / "a.svm"), zero_based=False)
    return [folder / "a.svm"], ReadOptions()


def make_npy(folder: Path) -> tuple[list[Path], ReadOptions]:
    """X and Y as two npy files."""
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", Y)
    return [folder / "X.npy"], ReadOptions(targets=folder / "y.npy")


def make_npz(folder: Path) -> tuple[list[Path], ReadOptions]:
    """X and Y as one npz."""
    np.savez_compressed(folder / "a.npz", X=X, y=Y)
    return [folder / "a.npz"], ReadOptions()


def make_csr_npz(folder: Path) -> tuple[list[Path], ReadOptions]:
    """X and Y as an npz of CSR arrays."""
    matrix = sparse.csr_matrix(X)
    np.savez(folder / "a.npz", data=matrix.data, indices=matrix.indices, indptr=matrix.indptr, shape=matrix.shape, y=Y)
    return [folder / "a.npz"], ReadOptions(block_bytes=2000)


def make_parquet(folder: Path) -> tuple[list[Path], ReadOptions]:
    """X and Y as Parquet."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    pq.write_table(pa.table({"y": Y, **{f"x{column}": X[:, column] for column in range(5)}}), folder / "a.parquet")
    return [folder / "a.parquet"], ReadOptions()


def converted(paths: Sequence[Path], out: Path, **options: object) -> ChunkFolder:
    """`convert` with few chunks, each of which costs an fsync."""
    return convert(paths, out, ConvertOptions(max_tasks=1, **options))  # type: ignore[arg-type]


MAKERS = [make_csv, make_svmlight, make_npy, make_npz, make_csr_npz, make_parquet]


@pytest.mark.parametrize("make", MAKERS)
def test_every_format_gives_the_same_rows_and_classes(
    tmp_path: Path, make: Callable[[Path], tuple[list[Path], ReadOptions]]
) -> None:
    """All rows, by their row ids in the order of the file; labels -1, 1, 3 became the codes 0, 1, 2."""
    paths, read = make(tmp_path)
    folder = converted(paths, tmp_path / "out", read=read)
    data = read_back(folder)
    np.testing.assert_array_equal(data.X, X)
    np.testing.assert_array_equal(data.y, (Y + 1) // 2)
    assert data.weights is None
    assert tuple(folder.classes) == (-1, 1, 3)
    assert (folder.schema.num_rows, folder.schema.num_features, folder.schema.num_classes) == (400, 5, 3)
    assert (folder.schema.dtype, folder.schema.target_dtype) == ("float32", "int32")
    assert folder.schema.kind == ("csr" if make in (make_svmlight, make_csr_npz) else "dense")


def test_sample_weights_and_image_shapes_are_kept(tmp_path: Path) -> None:
    """uint8 images stay bytes."""
    images = np.random.default_rng(2).integers(0, 256, (60, 4, 4), dtype=np.uint8)
    weights = np.linspace(0, 2, 60)
    np.savez(tmp_path / "a.npz", X=images, y=np.arange(60) % 10, sample_weight=weights)
    folder = converted([tmp_path / "a.npz"], tmp_path / "out")
    data = read_back(folder)
    assert folder.schema.dtype == "uint8"
    assert folder.schema.sample_shape == (4, 4)
    np.testing.assert_array_equal(data.X, images.reshape(60, 16))
    np.testing.assert_array_equal(data.weights, weights)


@pytest.mark.parametrize(
    ("targets", "is_real", "classes", "expected"),
    [
        (["cat", "ant", "cat"], False, ("ant", "cat"), [1, 0, 1]),
        ([2.0, 7.0, 2.0], False, (2, 7), [0, 1, 0]),
        ([2.0, 7.0, 2.0], True, (), [2, 7, 2]),
        ([2.0, 7.5, 2.0], False, (), [2, 7.5, 2]),
        ([2.0, 1e300, 2.0], False, (), [2, 1e300, 2]),  # whole, because float64 has no fractions there
        (["été", "Z", "10", "9"] * 20, False, ("10", "9", "Z", "été"), [3, 2, 0, 1] * 20),
    ],
)
def test_targets_are_classes_or_real_values(
    tmp_path: Path, targets: list[object], is_real: bool, classes: tuple[object, ...], expected: list[float]
) -> None:
    """Whole numbers and text are classes, unless real values are asked for or found."""
    np.savez(tmp_path / "a.npz", X=np.eye(len(targets)), y=np.array(targets))
    read = ReadOptions(block_bytes=16)
    folder = converted([tmp_path / "a.npz"], tmp_path / "out", are_targets_real=is_real, read=read)
    assert tuple(folder.classes) == classes
    assert folder.schema.target_dtype == ("int32" if classes else "float64")
    np.testing.assert_array_equal(read_back(folder).y, expected)


def test_text_is_no_real_value_and_labels_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row numbers taken for labels would fill the memory; the bound is lowered here."""
    np.savez(tmp_path / "a.npz", X=np.eye(3), y=np.array(["x", "y", "x"]))
    with pytest.raises(DataError, match="row 0: the label 'x' is text, but --regression asks for real"):
        converted([tmp_path / "a.npz"], tmp_path / "out", are_targets_real=True)
    monkeypatch.setattr(convert_labels, "MAX_CLASSES", 10)
    for labels in (np.arange(10), np.arange(12), np.arange(12).astype(str)):
        np.savez(tmp_path / "a.npz", X=np.eye(len(labels)), y=labels)
        if len(labels) == 10:
            converted([tmp_path / "a.npz"], tmp_path / "ten")
            continue
        with pytest.raises(DataError, match=r"a\.npz, row \d+: more than 10 different labels so far; .*--regression"):
            converted([tmp_path / "a.npz"], tmp_path / "out")


def test_several_files_are_one_data_set(tmp_path: Path) -> None:
    """Rows are numbered through; a class or a feature may appear in the last file only."""
    first = write_text(tmp_path, "1 1:1\n1 2:2\n", "a.svm")
    second = write_text(tmp_path, "2 5:3\n", "b.svm")
    folder = converted([first, second], tmp_path / "out")
    data = read_back(folder)
    np.testing.assert_array_equal(data.X, [[1, 0, 0, 0, 0], [0, 2, 0, 0, 0], [0, 0, 0, 0, 3]])
    np.testing.assert_array_equal(data.y, [0, 0, 1])
    assert tuple(folder.classes) == (1, 2)


def test_the_first_index_is_found_over_all_files_together(tmp_path: Path) -> None:
    """An index 0 in the last file numbers the first file from 0 as well."""
    paths = [write_text(tmp_path, "1 1:1\n", "a.svm"), write_text(tmp_path, "2 0:3\n", "b.svm")]
    folder = converted(paths, tmp_path / "out", read=ReadOptions(zero_based=None))
    np.testing.assert_array_equal(read_back(folder).X, [[0, 1], [3, 0]])


def test_rows_are_shuffled_by_the_seed(tmp_path: Path) -> None:
    """Equal seeds give equal folders, other seeds another order; sorted input does not stay sorted."""
    path = write_csv(tmp_path / "a.csv", X, np.sort(Y))
    options = ConvertOptions(chunk_bytes=2000, seed=5)
    first = convert([path], tmp_path / "first", options)
    again = convert([path], tmp_path / "again", options)
    other = converted([path], tmp_path / "other", chunk_bytes=2000, seed=6)
    orders = [read_back(folder).order for folder in (first, again, other)]
    np.testing.assert_array_equal(orders[0], orders[1])
    assert (orders[0] != orders[2]).any()
    assert sorted(orders[0]) == list(range(400))
    assert np.abs(np.diff(orders[0])).mean() > 50


def test_progress_tells_bytes_then_rows_up_to_the_end(tmp_path: Path) -> None:
    """Never backwards within a phase, and complete at its end."""
    steps: list[Step] = []
    paths, _ = make_csv(tmp_path)
    second = write_csv(tmp_path / "b.csv", X, Y)
    convert(
        [*paths, second],
        tmp_path / "out",
        ConvertOptions(read=ReadOptions(block_bytes=2000)),
        on_progress=steps.append,
    )
    reading = [step for step in steps if step.phase == "reading"]
    total = paths[0].stat().st_size + second.stat().st_size
    assert len(reading) > 10
    assert (reading[-1].num_rows, reading[-1].done, reading[-1].total) == (800, total, total)
    assert [step.done for step in reading] == sorted(step.done for step in reading)
    writing = [step for step in steps if step.phase == "writing"]
    assert (writing[-1].done, writing[-1].total) == (800, 800)
    assert [step.done for step in writing] == sorted({step.done for step in writing})


NAN = np.array([[1.0, 2], [np.nan, 3]])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.csv", b"", "empty.csv: the file is empty"),
        ("blank.csv", b"\n\n", "blank.csv: the file has no samples"),
        ("names.csv", b"label,a\n", "names.csv: the file has no samples"),
        ("a.csv", b"1,2\n1\n", "a.csv:2: 1 fields, but line 1 has 2"),
        ("a.csv", b"1,2\n0,nan\n", "a.csv:2: column 2: value nan is not finite"),
        ("a.csv", b"1,2\n0,-inf\n", "a.csv:2: column 2: value -inf is not finite"),
        ("a.csv", b"1,2\nnan,3\n", "a.csv:2: the label nan is not finite"),
        ("a.csv", b"1,2\n0,1e39\n", "a.csv:2: column 2: value 1e+39 does not fit float32; pass --dtype float64"),
        ("a.svm", b"1 1:1\n1 2:nan\n", "a.svm:2: index 2: value nan is not finite"),
        ("a.svm", b"1 1:1\n1 2:1 1:1\n", "a.svm:2: index 1 follows index 2"),
        ("a.svm", b"1\n0\n", "a.svm: no sample has a feature"),
        ("a.svm.gz", b"\x1f\x8b\x08\x00garbage", "a.svm.gz: the compressed data is damaged"),
        ("X.npz", {"X": NAN, "y": np.array([0, 1])}, "X.npz, row 1: column 0: value nan is not finite"),
        ("X.npz", {"X": np.eye(2), "y": np.array([0, np.inf])}, "X.npz, row 1: the label inf is not finite"),
        ("X.npz", {"X": np.eye(2), "y": np.array(["a", ""])}, "X.npz, row 1: the label '' is empty"),
        ("X.npz", {"X": np.eye(2), "y": np.array([1, 2**53 + 1])}, "row 1: the label 9007199254740993 is too large"),
        (
            "X.npz",
            {"X": np.eye(2), "y": np.zeros(2), "sample_weight": np.array([np.nan, 1])},
            "X.npz, row 0: the weight nan is not a finite number >= 0",
        ),
        (
            "X.npz",
            {"X": np.eye(2), "y": np.zeros(2), "sample_weight": np.array([1, -1])},
            "X.npz, row 1: the weight -1.0 is not a finite number >= 0",
        ),
        ("X.npz", {"X": np.zeros((0, 3)), "y": np.zeros(0)}, "X.npz: the file has no samples"),
        ("X.npz", {"X": np.zeros((3, 0)), "y": np.zeros(3)}, "X.npz: no sample has a feature"),
        ("X.npz", {"X": np.eye(3), "y": np.zeros(2)}, "X.npz[y]: shape (2,), but "),
        ("a.tar", b"\x00\x01\x02", "a.tar: its first lines are neither"),
    ],
)
def test_bad_input_is_refused_by_name_and_leaves_nothing(
    tmp_path: Path, name: str, content: bytes | dict[str, Array], message: str
) -> None:
    """Whatever is wrong: the file, the line or row, and afterwards the folder is as it was before."""
    if isinstance(content, bytes):
        path = write_text(tmp_path, content, name)
    else:
        path = tmp_path / name
        np.savez(path, **content)
    with pytest.raises(ChicleError) as caught:
        converted([path], tmp_path / "out")
    assert message in str(caught.value)
    assert [left.name for left in tmp_path.iterdir()] == [name]


def test_a_fault_in_the_last_line_of_a_long_file_leaves_nothing(tmp_path: Path) -> None:
    """When megabytes are already in temporary files."""
    path = write_text(tmp_path, "1,2.5,3.5,4.5\n" * 200_000 + "1,2,3\n", "a.csv")
    with pytest.raises(DataError, match=r"a\.csv:200001: 3 fields"):
        converted([path], tmp_path / "out")
    assert [left.name for left in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"X": np.ones((2, 6), np.float32), "y": [1, 1]}, r"b.npz has 6 features, but .*a.npz has 5 features"),
        (
            {"X": np.ones((2, 5), np.float64), "y": [1, 1]},
            r"b.npz has float64 values, but .* float32 values; pass --dtype",
        ),
        ({"X": np.ones((2, 5), np.float32), "y": ["a", "b"]}, r"b.npz, row 0: labels are text here, but were numbers"),
        (
            {"X": np.ones((2, 5), np.float32), "y": [1, 1], "sample_weight": [1, 1]},
            r"b.npz has sample weights, but .*a.npz has no sample weights",
        ),
        (
            {"X": np.ones((2, 5, 1), np.float32), "y": [1, 1]},
            r"b.npz has samples of shape \(5, 1\), but .* flat samples",
        ),
        (
            {"data": [1.0], "indices": [0], "indptr": [0, 1], "shape": [1, 5], "y": [1]},
            r"b.npz has sparse rows, but .* dense rows",
        ),
    ],
)
def test_files_that_are_no_one_data_set_are_refused(tmp_path: Path, second: dict[str, Array], message: str) -> None:
    """Both files are named, and what differs."""
    np.savez(tmp_path / "a.npz", X=X, y=Y)
    np.savez(tmp_path / "b.npz", **second)
    with pytest.raises(DataError, match=message):
        converted([tmp_path / "a.npz", tmp_path / "b.npz"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ConvertOptions(read=ReadOptions(num_features=9)), r"--num-features is for svmlight, but this file is csv"),
        (ConvertOptions(read=ReadOptions(targets=Path("y.npy"))), r"--targets is for idx and npy and npz"),
        (ConvertOptions(read=ReadOptions(weights=Path("w.npy"))), r"--weights is for npy and npz"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(tmp_path: Path, options: ConvertOptions, message: str) -> None:
    """Better now than after an hour."""
    paths, _ = make_csv(tmp_path)
    with pytest.raises(UsageError, match=message):
        convert(paths, tmp_path / "out", options)


@pytest.mark.parametrize("value", [256, -1, 0.5, 1e9])
def test_a_value_that_is_no_byte_is_refused_for_uint8(tmp_path: Path, value: float) -> None:
    """NumPy would wrap it round silently."""
    path = write_csv(tmp_path / "a.csv", np.array([[255.0, 0.0], [1.0, value]]), np.arange(2))
    with pytest.raises(DataError, match=r"a.csv:2: column 3: value .* does not fit uint8 \(0 to 255\)"):
        converted([path], tmp_path / "out", dtype="uint8")
    path = write_csv(tmp_path / "a.csv", np.array([[255.0, 0.0]]), np.arange(1))
    np.testing.assert_array_equal(read_back(converted([path], tmp_path / "out", dtype="uint8")).X, [[255, 0]])


def test_rows_of_a_slice_start_at_entry_0(tmp_path: Path) -> None:
    """What is handed to the writer does not depend on how the reader sliced it."""
    rows = CsrRows(np.array([1, 2, 2, 4]), np.array([0, 3, 4, 7], dtype=np.int32), np.array([np.nan, 1, 2, 5]), 8)
    origin = Origin(path=tmp_path, unit="line", numbers=[11, 12, 15], first_column=2)
    csr = checked_rows(Block(rows=rows, targets=np.zeros(3), weights=None, origin=origin, bytes_read=0), "float32")
    assert isinstance(csr, CsrRows)
    np.testing.assert_array_equal(csr.indptr, [0, 1, 1, 3])
    np.testing.assert_array_equal(
        csr.to_scipy().toarray(), [[0, 0, 0, 1, 0, 0, 0, 0], [0] * 8, [0, 0, 0, 0, 2, 0, 0, 5]]
    )


def test_sparse_rows_cannot_be_bytes(tmp_path: Path) -> None:
    """uint8 is for images."""
    paths, _ = make_svmlight(tmp_path)
    with pytest.raises(UsageError, match="sparse rows cannot be uint8"):
        converted(paths, tmp_path / "out", dtype="uint8")


def test_an_existing_target_is_kept_unless_it_is_to_be_overwritten(tmp_path: Path) -> None:
    """And it is kept, too, when the conversion that was to replace it fails."""
    paths, _ = make_csv(tmp_path)
    converted(paths, tmp_path / "out")
    with pytest.raises(UsageError, match="out"):
        converted(paths, tmp_path / "out")
    bad = write_text(tmp_path, "1,2\n1\n", "bad.csv")
    with pytest.raises(DataError):
        converted([bad], tmp_path / "out", overwrite=True)
    assert ChunkFolder(tmp_path / "out").schema.num_rows == 400
    good = write_text(tmp_path, "1,2\n0,3\n", "good.csv")
    converted([good], tmp_path / "out", overwrite=True)
    assert ChunkFolder(tmp_path / "out").schema.num_rows == 2
    assert sorted(left.name for left in tmp_path.iterdir()) == ["a.csv", "bad.csv", "good.csv", "out"]


def test_an_output_that_would_replace_its_input_is_refused(tmp_path: Path) -> None:
    """`chicle convert data/train.csv data --overwrite` must not remove data/train.csv."""
    paths, _ = make_csv(tmp_path)
    for out in (paths[0], tmp_path):
        with pytest.raises(UsageError, match="the output would replace the input"):
            converted(paths, out, overwrite=True)
    assert paths[0].exists()
