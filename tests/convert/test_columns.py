"""Columns of several files: matched by name, or by place with a note, or refused; an index is no feature."""

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chicle_elastic.chunks.convert import ConvertOptions, convert
from chicle_elastic.chunks.convert_inputs import Report
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.readers.base import ReadOptions
from chicle_elastic.errors import ChicleError, DataError, UsageError
from tests.convert.inputs import read_back, write_text

TABLE = {
    "y": [number % 2 for number in range(12)],
    "age": [20.0 + number for number in range(12)],
    "income": [1000.0 + number for number in range(12)],
}
ORDERS = (["y", "age", "income"], ["y", "income", "age"], ["income", "age", "y"])


def csv_text(columns: Sequence[str], names: Sequence[str] | None = None, *, has_names: bool = True) -> str:
    """The columns of `TABLE` in that order, called `names`."""
    lines = [",".join(names or columns)] if has_names else []
    return "\n".join([*lines, *(",".join(map(str, row)) for row in zip(*map(TABLE.get, columns), strict=True))]) + "\n"


def write_csv(path: Path, columns: Sequence[str], names: Sequence[str] | None = None) -> Path:
    """A CSV file with a line of names, compressed as its name says."""
    content = csv_text(columns, names).encode()
    compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zip": zipped}
    path.write_bytes(compress.get(path.suffix, bytes)(content))
    return path


def write_parquet(path: Path, columns: Sequence[str], names: Sequence[str] | None = None) -> Path:
    """A Parquet file."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    pq.write_table(pa.table([pa.array(TABLE[name]) for name in columns], names=list(names or columns)), path)
    return path


def write(path: Path, columns: Sequence[str], names: Sequence[str] | None = None) -> Path:
    """A file of the format that its name says."""
    return (write_parquet if path.suffix == ".parquet" else write_csv)(path, columns, names)


def zipped(*contents: bytes) -> bytes:
    """A zip archive of these files, the same bytes at any time: they are part of the names of tests."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, content in enumerate(contents):
            entry = zipfile.ZipInfo(f"part-{number}.csv")
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def converted(folder: Path, paths: Sequence[Path], **options: Any) -> tuple[ChunkFolder, list[str]]:
    """The chunk folder of the files, and the notes."""
    notes: list[str] = []
    out = convert(
        paths,
        folder / "out",
        ConvertOptions(dtype="float64", max_tasks=1, overwrite=True, read=ReadOptions(**options)),
        report=Report(on_note=notes.append),
    )
    return out, notes


def assert_is_table(folder: ChunkFolder, times: int = 1) -> None:
    """The rows are those of `TABLE`, each value below its name."""
    data = read_back(folder)
    np.testing.assert_array_equal(data.X, np.tile(np.stack([TABLE["age"], TABLE["income"]], axis=1), (times, 1)))
    np.testing.assert_array_equal(data.y, TABLE["y"] * times)


@pytest.mark.parametrize(
    "endings", [(".csv", ".csv"), (".csv.gz", ".csv"), (".parquet", ".parquet"), (".csv", ".parquet")]
)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("asked", [None, "y", "1"])
def test_parts_in_another_order_are_matched_by_name(
    tmp_path: Path, endings: tuple[str, str], order: list[str], asked: str | None
) -> None:
    """The label too, wherever it stands in a later part, and however the first part's label was chosen."""
    parts = [write(tmp_path / f"a{endings[0]}", ORDERS[0]), write(tmp_path / f"b{endings[1]}", order)]
    folder, notes = converted(tmp_path, parts, label_column=asked)
    assert_is_table(folder, times=2)
    assert notes == []


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_other_or_repeated_names_are_refused_with_both_lists(tmp_path: Path, ending: str) -> None:
    """Not joined by place: an income is no debt."""
    first = write(tmp_path / f"a{ending}", ORDERS[0])
    for names in (["y", "age", "debt"], ["y", "Age", "income"]):
        second = write(tmp_path / f"b{ending}", ORDERS[0], names)
        with pytest.raises(DataError) as caught:
            converted(tmp_path, [first, second])
        assert str(names) in str(caught.value)
        assert str(ORDERS[0]) in str(caught.value)
    with pytest.raises(DataError, match="names repeat"):
        converted(tmp_path, [write(tmp_path / f"c{ending}", ORDERS[0], ["y", "age", "age"])])
    assert not (tmp_path / "out").exists()


def test_a_part_without_names_is_taken_by_place_and_a_note_says_so(tmp_path: Path) -> None:
    """As `split` leaves it: whichever piece comes first, and only where the number of columns is equal."""
    named = write(tmp_path / "a.csv", ORDERS[0])
    bare = write_text(tmp_path, csv_text(ORDERS[0], has_names=False), "b.csv")
    other = write(tmp_path / "c.csv", ORDERS[2])
    for parts in ([named, bare, other], [bare, named, other]):
        folder, notes = converted(tmp_path, parts)
        assert_is_table(folder, times=3)
        assert [f"{bare}: has no names" in note for note in notes] == [True]
    with pytest.raises(DataError, match=r"b\.csv has 2 columns, and .*a\.csv has 3"):
        converted(tmp_path, [named, write_text(tmp_path, "1,2\n0,3\n", "b.csv")])


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_columns_are_named_numbered_and_left_out(tmp_path: Path, ending: str) -> None:
    """By name, by number from 1, and by number from the end; a later part has its own order."""
    first, second = write(tmp_path / f"a{ending}", ORDERS[2]), write(tmp_path / f"b{ending}", ORDERS[0])
    for label, dropped in (("y", "income"), ("3", "1"), ("-1", "income"), ("-1", "-3")):
        folder, _ = converted(tmp_path, [first, second], label_column=label, drop_columns=(dropped,))
        np.testing.assert_array_equal(read_back(folder).X[:, 0], TABLE["age"] * 2)
        np.testing.assert_array_equal(read_back(folder).y, TABLE["y"] * 2)
    folder, _ = converted(tmp_path, [first, second], label_column="y", weight_column="age")
    np.testing.assert_array_equal(read_back(folder).weights, TABLE["age"] * 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_column": "incme"}, "did you mean 'income'"),
        ({"label_column": "Y"}, "did you mean 'y'"),
        ({"drop_columns": ("4",)}, r"no column '4', which --drop-columns .*\['y', 'age', 'income'\]"),
        ({"weight_column": "0"}, "no column '0', which --weight-column"),
        ({"label_column": "y", "drop_columns": ("1",)}, "both used and in --drop-columns"),
        ({"weight_column": "y"}, "both label and weight"),
    ],
)
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_column_that_does_not_exist_is_refused_with_those_that_do(
    tmp_path: Path, ending: str, options: dict[str, Any], message: str
) -> None:
    """And with the nearest one."""
    with pytest.raises(UsageError, match=message):
        converted(tmp_path, [write(tmp_path / f"a{ending}", ORDERS[0])], **options)


def frame(pd: Any, index: Sequence[object]) -> Any:
    """`TABLE` as a data frame of pandas."""
    return pd.DataFrame(TABLE, index=index)


@pytest.mark.parametrize("index", [range(12), range(500, 512)])
def test_an_index_of_pandas_that_counts_is_left_out_with_a_note(tmp_path: Path, index: range) -> None:
    """`to_csv`, `to_csv` of what `read_csv` had read, and `to_parquet`, whatever the index there is."""
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    frame(pd, index).to_csv(tmp_path / "a.csv")
    pd.read_csv(tmp_path / "a.csv").to_csv(tmp_path / "b.csv", index=False)
    frame(pd, [f"row {number}" for number in index]).to_parquet(tmp_path / "c.parquet")
    frame(pd, index).rename_axis("id").to_parquet(tmp_path / "d.parquet", index=True)
    for name in ("a.csv", "b.csv", "c.parquet", "d.parquet"):
        folder, notes = converted(tmp_path, [tmp_path / name])
        assert_is_table(folder)
        if name != "d.parquet" or notes:  # pandas writes no column for some ranges
            assert "index of a data frame and is left out" in notes[0]


def test_row_names_of_r_are_left_out_or_asked_about(tmp_path: Path) -> None:
    """`write.csv` counts from 1, in quotes, below a name of no character; `write.table` writes no name at all."""
    rows = csv_text(ORDERS[0], has_names=False).splitlines()
    counted = "\n".join(f'"{number}",{row}' for number, row in enumerate(rows, start=1)) + "\n"
    folder, notes = converted(tmp_path, [write_text(tmp_path, '"","y","age","income"\n' + counted, "a.csv")])
    assert_is_table(folder)
    assert len(notes) == 1
    named = "\n".join(f'"row {number}",{row}' for number, row in enumerate(rows)) + "\n"
    with pytest.raises(DataError, match="first column has no name"):
        converted(tmp_path, [write_text(tmp_path, '"","y","age","income"\n' + named, "a.csv")])
    with pytest.raises(DataError, match="4 fields, but the line of names has 3"):
        converted(tmp_path, [write_text(tmp_path, '"y","age","income"\n' + counted, "a.csv")])


def test_parts_of_one_frame_go_on_counting(tmp_path: Path) -> None:
    """As a loop of `to_csv` over slices leaves them, the last one a single row: one note for all."""
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    slices = [slice(0, 7), slice(7, 11), slice(11, 12)]
    for number, rows in enumerate(slices):
        frame(pd, range(12))[rows].to_csv(tmp_path / f"{number}.csv")
    folder, notes = converted(tmp_path, [tmp_path / f"{number}.csv" for number in range(3)])
    assert_is_table(folder)
    assert len(notes) == 1


def test_an_index_that_does_not_count_is_asked_about(tmp_path: Path) -> None:
    """It may be the label or a feature: an unnamed column, and a label by default that counts the rows."""
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    frame(pd, [number * 7 for number in range(12)]).to_csv(tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"first column has no name .* index .*--drop-columns 1"):
        converted(tmp_path, [tmp_path / "a.csv"])
    folder, _ = converted(tmp_path, [tmp_path / "a.csv"], drop_columns=("1",))
    assert_is_table(folder)
    frame(pd, range(12)).rename_axis("id").to_csv(tmp_path / "b.csv")
    frame(pd, range(12)).to_csv(tmp_path / "c.csv", header=False)
    frame(pd, range(12)).reset_index().to_parquet(tmp_path / "d.parquet")
    for name, dropped in (("b.csv", "id"), ("c.csv", "1"), ("d.parquet", "index")):
        with pytest.raises(DataError, match=f"counts the rows.*--drop-columns {dropped}"):
            converted(tmp_path, [tmp_path / name])
        folder, _ = converted(tmp_path, [tmp_path / name], drop_columns=(dropped,))
        assert_is_table(folder)


@pytest.mark.parametrize(
    ("text", "is_header"),
    [
        ("y,a,b\n1,2,3\n", True),
        ("kind,a,b\ncat,2,3\n", True),
        ("1,2,3\n0,5,6\n", False),
        ("cat,2,3\ndog,5,6\n", False),
        ("y,2020,2021\n1,5,6\n", None),
        ("0,1,2,3\n1,5,6,7\n", None),
        ("label,0,1,2\ncat,5,6,7\n", None),
    ],
)
def test_a_line_of_names_is_told_or_asked_about_and_always_said(
    tmp_path: Path, text: str, is_header: bool | None
) -> None:
    """Numbers may be names; the summary says what was decided, and the options decide."""
    path = write_text(tmp_path, text, "a.csv")
    for header in (True, False) if is_header is None else ():
        folder, _ = converted(tmp_path, [path], header=header)
        assert folder.num_rows == 2 - header
    if is_header is None:
        with pytest.raises(UsageError, match="--header or --no-header"):
            converted(tmp_path, [path])
        return
    report = Report()
    folder = convert([path], tmp_path / "out", ConvertOptions(max_tasks=1), report=report)
    assert folder.num_rows == 2 - is_header
    assert report.files == [(path, folder.num_rows, "names in line 1" if is_header else "no names, line 1 is a sample")]


EMPTY = {
    "no bytes": b"",
    "blank lines": b"\n\n",
    "names only": b"y,age,income\n",
    "no bytes, compressed": gzip.compress(b""),
}


@pytest.mark.parametrize("content", EMPTY.values(), ids=list(EMPTY))
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_empty_part_among_full_ones_is_left_out_with_a_note(tmp_path: Path, content: bytes, place: int) -> None:
    """First, in the middle and last; all of them empty is an error."""
    parts = [write(tmp_path / f"{name}.csv", ORDERS[0]) for name in "ab"]
    empty = write_text(tmp_path, content, "empty.csv")
    parts.insert(place, empty)
    folder, notes = converted(tmp_path, parts)
    assert_is_table(folder, times=2)
    assert [f"{empty}: " in note and "left out" in note for note in notes] == [True]
    with pytest.raises(DataError, match="have no samples"):
        converted(tmp_path, [empty, empty])


def test_a_comma_at_the_end_of_each_line_makes_a_column_to_leave_out(tmp_path: Path) -> None:
    """Below names and without them: refused with the option that leaves it out."""
    for has_names in (True, False):
        path = write_text(tmp_path, csv_text(ORDERS[0], has_names=has_names).replace("\n", ",\n"), "a.csv")
        with pytest.raises(DataError, match="--drop-columns 4"):
            converted(tmp_path, [path])
        folder, _ = converted(tmp_path, [path], drop_columns=("4",))
        assert_is_table(folder)


def test_names_that_are_numbers_are_asked_about_wherever_the_label_stands(tmp_path: Path) -> None:
    """The label's name is text above numbers; as a sample it would be a class of its own."""
    path = write_text(tmp_path, "2020,2021,y\n5,6,1\n7,8,0\n", "a.csv")
    with pytest.raises(UsageError, match="--header or --no-header"):
        converted(tmp_path, [path], label_column="-1")
    folder, _ = converted(tmp_path, [path], label_column="y")
    assert folder.classes == (0, 1)


def test_an_empty_part_of_parquet_is_left_out_with_a_note(tmp_path: Path) -> None:
    """0 rows, as Spark writes them."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    empty = tmp_path / "empty.parquet"
    pq.write_table(pa.table({"y": pa.array([], pa.int64()), "age": pa.array([], pa.float64())}), empty)
    with pytest.raises(DataError, match="no samples"):
        converted(tmp_path, [empty])
    full = write(tmp_path / "a.parquet", ORDERS[0])
    pq.write_table(pq.read_table(full).slice(0, 0), empty)
    folder, notes = converted(tmp_path, [full, empty])
    assert_is_table(folder)
    assert len(notes) == 1


def test_a_part_of_one_line_that_is_no_sample_is_not_taken_for_names(tmp_path: Path) -> None:
    """Where the other parts have no names."""
    parts = [
        write_text(tmp_path, "1,2\n0,3\n", "a.csv"),
        write_text(tmp_path, "1,x\n", "b.csv"),
    ]
    with pytest.raises(DataError, match=r"b\.csv:1: field 2 is 'x', not a number"):
        converted(tmp_path, parts)


@pytest.mark.parametrize("ending", [".csv.xz", ".csv.bz2", ".csv.zip"])
def test_other_compressed_files_are_read(tmp_path: Path, ending: str) -> None:
    """Told by their bytes, as .gz is."""
    folder, _ = converted(tmp_path, [write(tmp_path / f"a{ending}", ORDERS[0])])
    assert_is_table(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (zipped(b"1,2\n", b"1,2\n"), "zip archive of 2 files"),
        (zipped(b"1,2\n" * 50)[:60], "zip archive cannot be read"),
        (lzma.compress(b"1,2\n" * 50)[:-20], "cut short after line"),
        (b"\x28\xb5\x2f\xfd" + bytes(20), "zstd"),
        (b"\x80\x05\x95" + bytes(20), "pickle"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<!DOCTYPE html>\n", "web page"),
        (b"1,2\r0,3\r", "CR alone"),
    ],
)
def test_what_is_no_data_is_refused_by_its_name(tmp_path: Path, content: bytes, message: str) -> None:
    """The kind of the file, and what to do."""
    with pytest.raises(ChicleError, match=message):
        converted(tmp_path, [write_text(tmp_path, content, "a.csv")])


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_file_cut_short_names_its_last_whole_line(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    """As many lines as another program gets out of it, or some fewer: those of one block of the decompressor."""
    rng = np.random.default_rng(0)
    lines = [b"%d,%d,%d\n" % tuple(row) for row in rng.integers(0, 1000, (120_000, 3))]
    path = write_text(tmp_path, compress(b"".join(lines))[:-3000], "a.csv")
    with pytest.raises(DataError, match=r"after line (\d+) ") as caught:
        converted(tmp_path, [path])
    whole = int(str(caught.value).partition("after line ")[2].split()[0])
    assert len(lines) * (0.5 if compress is bz2.compress else 0.99) < whole < len(lines)


def test_a_damaged_page_of_parquet_is_refused_where_it_has_a_checksum(tmp_path: Path) -> None:
    """A flipped bit in the values, which nothing else would tell."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    path = tmp_path / "a.parquet"
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"y": [0, 1] * 500, "a": np.arange(1000.0) + 0.5}), path, **options)
    whole = path.read_bytes()
    place = whole.index(np.float64(700.5).tobytes())
    path.write_bytes(whole[: place + 6] + bytes([whole[place + 6] ^ 1]) + whole[place + 7 :])
    with pytest.raises(DataError, match=r"a\.parquet: the Parquet file cannot be read"):
        converted(tmp_path, [path])


def test_what_follows_an_array_of_numpy_is_not_dropped(tmp_path: Path) -> None:
    """Two arrays in one file, as two calls of `np.save` leave them."""
    with (tmp_path / "X.npy").open("wb") as file:
        np.save(file, np.eye(3))
        np.save(file, np.eye(3))
    np.save(tmp_path / "y.npy", [0, 1, 1])
    with pytest.raises(DataError, match="more bytes follow"):
        converted(tmp_path, [tmp_path / "X.npy"], targets=tmp_path / "y.npy")
