"""CSV: label first, header found or told, and every fault names its line and its field."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks.readers.base import Columns, ReadOptions
from chicle_elastic.chunks.readers.csv import Layout, _parse_fast, parse_lines, read_csv
from chicle_elastic.chunks.readers.text import LineBlock
from chicle_elastic.errors import DataError, UsageError
from tests.convert.inputs import joined, write_text

COLUMNS = Columns(path=Path("train.csv"), names=(), count=3, label=0, weight=None, features=(1, 2))
LAYOUTS = [
    COLUMNS,
    replace(COLUMNS, features=(2, 1)),
    replace(COLUMNS, features=(2,)),
    replace(COLUMNS, weight=2, features=(1,)),
]
"""In the file's order, in another one, with a column left out, with a column of weights."""


def write(folder: Path, text: str | bytes, name: str = "train.csv") -> Path:
    """The text as a file."""
    return write_text(folder, text, name)


def fault(folder: Path, text: str | bytes, **options: object) -> str:
    """The message with which `text` is refused, without the folder."""
    path = write(folder, text)
    with pytest.raises(DataError) as caught:
        list(read_csv(path, ReadOptions(**options)))  # type: ignore[arg-type]
    return str(caught.value).replace(f"{folder}/", "")


def test_numbers_are_bit_identical_to_those_of_python(tmp_path: Path) -> None:
    """Every notation, over many small blocks, is rounded as `float` rounds it."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(200, 7)) * 10.0 ** rng.integers(-200, 200, (200, 7))
    written = [[f"{number:{rng.choice(['.17g', '.3e', '.6f'])}}" for number in row] for row in numbers]
    text = "\n".join(",".join(row) for row in written)

    X, y = joined(list(read_csv(write(tmp_path, text), ReadOptions(block_bytes=900))))

    expected = np.array([[float(token) for token in row] for row in written])
    np.testing.assert_array_equal(y, expected[:, 0])
    np.testing.assert_array_equal(X, expected[:, 1:])


@pytest.mark.parametrize(
    "text",
    [
        "1,2,3\n0,5,6",
        "1,2,3\r\n0,5,6\r\n",
        "\ufeff1,2,3\n0,5,6\n",
        "\n1, 2 ,3\n   \n\n0 ,5,6\n\n",
        '"1","2",3\n0,"5","6"\n',
        "label,a,b\n1,2,3\n0,5,6\n",
        '\n"label","a, or b","c"\n1,2,3\n0,5,6\n',
        "1,+2.,.3e1\n0e5,50e-1,6\n",
    ],
)
def test_blanks_quotes_header_and_line_ends_do_not_matter(tmp_path: Path, text: str) -> None:
    """Eight ways to write the same two samples."""
    X, y = joined(list(read_csv(write(tmp_path, text), ReadOptions())))
    np.testing.assert_array_equal(X, [[2, 3], [5, 6]])
    np.testing.assert_array_equal(y, [1, 0])


def test_other_delimiters_are_taken_from_the_name_or_the_option(tmp_path: Path) -> None:
    """A tab for .tsv files, and whatever --delimiter says."""
    X, _ = joined(list(read_csv(write(tmp_path, "1\t2\t3\n", "a.tsv.x"), ReadOptions())))
    np.testing.assert_array_equal(X, [[2, 3]])
    X, _ = joined(list(read_csv(write(tmp_path, "1;2;3\n"), ReadOptions(delimiter=";"))))
    np.testing.assert_array_equal(X, [[2, 3]])
    with pytest.raises(UsageError, match="--delimiter"):
        list(read_csv(write(tmp_path, "1;;2\n"), ReadOptions(delimiter=";;")))


def test_rows_know_their_lines_across_blocks_header_and_blank_lines(tmp_path: Path) -> None:
    """Line numbers count every line of the file, also those without a sample."""
    text = "\nlabel,x\n1,2\n\n1,3\n" + "0,4\n" * 40
    blocks = list(read_csv(write(tmp_path, text), ReadOptions(block_bytes=16)))
    numbers = [int(number) for block in blocks for number in block.origin.numbers]
    assert len(blocks) > 3
    assert numbers == [3, 5, *range(6, 46)]
    assert blocks[0].origin.row(0) == f"{tmp_path}/train.csv:3"
    assert blocks[0].origin.column(0) == "column 'x'"


def test_a_header_longer_than_a_block_is_still_one_header(tmp_path: Path) -> None:
    """The header fills a block by itself, and the samples come in the next ones."""
    names = ",".join(f"name{column}" for column in range(100))
    sample = ",".join(["1"] * 100)
    blocks = list(read_csv(write(tmp_path, f"{names}\n{sample}\n{sample}\n"), ReadOptions(block_bytes=64)))
    assert sum(block.num_rows for block in blocks) == 2
    assert blocks[0].origin.column(98) == "column 'name99'"


def test_labels_are_text_where_the_first_one_is(tmp_path: Path) -> None:
    """Text labels keep their case, lose quotes and blanks, and may be of any script."""
    text = 'kind,a,b\nsetosa,1,2\n"Iris, wild",3,4\n été ,5,6\n7,7,8\n'
    X, y = joined(list(read_csv(write(tmp_path, text), ReadOptions(block_bytes=20))))
    assert list(y) == ["setosa", "Iris, wild", "été", "7"]
    np.testing.assert_array_equal(X, [[1, 2], [3, 4], [5, 6], [7, 8]])


def test_header_can_be_told_where_it_cannot_be_found(tmp_path: Path) -> None:
    """Names that are numbers need --header; --no-header makes a sample of any first line."""
    path = write(tmp_path, "y,2020,2021\n1,5,6\n")
    X, _ = joined(list(read_csv(path, ReadOptions(header=True))))
    np.testing.assert_array_equal(X, [[5, 6]])
    assert "train.csv:1: field 2 is 'a', not a number" in fault(tmp_path, "y,a,b\n1,5,6\n", header=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n1,2\n", "train.csv:2: 2 fields, but line 1 has 3; a field is missing"),
        ("h,a,b\n1,2,3\n\n1,2,3,4\n", "train.csv:4: 4 fields, but line 2 has 3; a field is too many"),
        ("1,2,3\n1,2,3,\n", "train.csv:2: 4 fields, but line 1 has 3"),
        ("1,2,3\n1,,3\n", "train.csv:2: field 2 is '', not a number; missing values are not supported"),
        ("h,a,b\n1,2,3\n1,NA,3\n", "train.csv:3: field 2 (a) is 'NA', not a number; missing values"),
        ("1,2,3\n1,2,abc\n", "train.csv:2: field 3 is 'abc', not a number; features must be numbers"),
        ("1,2,abc\n1,2,3\n", "train.csv:1: field 3 is 'abc', not a number; correct the field, or pass --header"),
        ("1,2,3\n1,2 2,3\n", "train.csv:2: field 2 is '2 2'"),
        ("1,2,3\n1,0x10,3\n", "train.csv:2: field 2 is '0x10'"),
        ("1,2,3\n1,1_0,3\n", "train.csv:2: field 2 is '1_0'"),
        ("1,2,3\n1,٣,3\n", "train.csv:2: field 2 is '٣'"),
        ("1,2,3\nspam,2,3\n", "train.csv:2: the label 'spam' (first field) is not a number, but that of line 1 is"),
        ("spam,2,3\n,2,3\n", "train.csv:2: the label (first field) is empty"),
        ("1 2 3\n", "train.csv:1: one field only, '1 2 3'"),
        ("spam,\n", "train.csv:1: field 2 is '', not a number; missing values"),
        ('1,2,3\n1,"2,3\n', "train.csv:2: "),
        ('1,2,3\n1,"2\n",3\n', "train.csv:2: "),
        ("1,2,3\n1,2\r1,2,3\n", "train.csv:2: "),
        (b"1,2,3\n1,\xff,3\n", "train.csv:2: not UTF-8 text"),
        (b"1,2,3\n1,\x00,3\n", "train.csv:2: "),
    ],
)
def test_a_fault_names_file_line_field_and_what_to_do(tmp_path: Path, text: str | bytes, message: str) -> None:
    """Each way to break a line."""
    assert message in fault(tmp_path, text)


@pytest.mark.parametrize("delimiter", [",", "\t", " "])
@pytest.mark.parametrize("has_text_labels", [False, True])
@pytest.mark.parametrize("label", [0, 2])
@pytest.mark.parametrize("columns", LAYOUTS)
def test_the_fast_parser_agrees_with_the_careful_one_on_mutated_text(
    has_text_labels: bool, delimiter: str, columns: Columns, label: int
) -> None:
    """Where the fast parser does not give up, the careful one reads the same samples; seeded random damage."""
    rng = np.random.default_rng(2)
    text = "cat" if has_text_labels else "1"
    samples = [[text, "2", "3.5"], [text, "-1e3", ".5"], [text, "7", "8"], [text, " 4 ", "5\r"]] * 2
    # Quotes are left to the careful parser where a column is left out.
    samples += [['"cat"', "1", "2"]] if has_text_labels and len(columns.used) == columns.count else []
    if label:  # the first column changes places with the last one
        columns = replace(columns, label=label, features=tuple(place % 2 for place in columns.features))
        columns = replace(columns, weight=None if columns.weight is None else 0)
        samples = [[sample[2].strip(), sample[1], sample[0]] for sample in samples]
    sound = "".join(",".join(sample) + "\n" for sample in samples)
    sound = sound.replace(" ", "").replace(",", delimiter) if delimiter == " " else sound.replace(",", delimiter)
    alphabet = [*list('0123456789,,,. \n\t-+e"\r\x0b\x00xé'), delimiter, "nan", "nan(1)", "_", "\n\n", "\xa0", "\x1c"]
    layout = Layout(delimiter=delimiter, columns=columns, has_text_labels=has_text_labels, line=1)
    num_accepted = 0
    for _ in range(500):
        damaged = list(sound)
        for _ in range(rng.integers(0, 3)):
            damaged[rng.integers(len(damaged))] = str(rng.choice(alphabet))
        lines = LineBlock("".join(damaged).encode(), 1, 0)
        fast = _parse_fast(lines, layout)
        if fast is None:
            continue
        num_accepted += 1
        careful = parse_lines(lines, layout, Path("train.csv"))  # raises where it refuses what the fast one took
        np.testing.assert_array_equal(fast.labels, careful.labels)
        np.testing.assert_array_equal(fast.features, careful.features)
        np.testing.assert_array_equal(fast.weights, careful.weights)  # type: ignore[arg-type]
        np.testing.assert_array_equal(np.asarray(fast.line_numbers), careful.line_numbers)
    assert num_accepted > 80


def test_ordinary_text_takes_the_fast_parser() -> None:
    """What real files look like does not fall back to the parser that loops over fields."""
    layout = Layout(delimiter=",", columns=COLUMNS, has_text_labels=False, line=1)
    assert _parse_fast(LineBlock(b"1,0.5,-2\r\n0,1e-3,4\r\n", 1, 0), layout) is not None
    layout = Layout(delimiter=",", columns=COLUMNS, has_text_labels=True, line=1)
    assert _parse_fast(LineBlock('"chat",0.5,-2\nété,1e-3,4\n'.encode(), 1, 0), layout) is not None


@pytest.mark.parametrize("label", ["1", "a"])
def test_text_with_every_field_quoted_is_read_over_many_blocks(tmp_path: Path, label: str) -> None:
    """What `csv.QUOTE_ALL` writes."""
    buffer = io.StringIO()
    csv.writer(buffer, quoting=csv.QUOTE_ALL).writerows([[label, 0.5, 2], [label, 3, 4]] * 50)
    X, y = joined(list(read_csv(write(tmp_path, buffer.getvalue()), ReadOptions(block_bytes=200))))
    np.testing.assert_array_equal(X, [[0.5, 2], [3, 4]] * 50)
    assert set(y) == {label if label == "a" else 1.0}
