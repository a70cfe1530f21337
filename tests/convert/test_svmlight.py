"""svmlight: both parsers have one meaning, equal to scikit-learn's; every fault names its line and its token."""

import io
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_svmlight_file

from chicle_elastic.chunks.readers.base import ReadOptions
from chicle_elastic.chunks.readers.svmlight import IndexRange, parse, parse_lines, read_svmlight, without_extras
from chicle_elastic.chunks.readers.svmlight_fast import parse_block
from chicle_elastic.chunks.readers.text import LineBlock
from chicle_elastic.errors import DataError, UsageError
from tests.convert.inputs import joined, write_text

ONE_BASED = IndexRange.of(zero_based=False, num_features=None)
ALLOWED = {"first_line": 1, "first": ONE_BASED.first, "last": ONE_BASED.last}
PATH = Path("train.svm")


def write(folder: Path, text: str | bytes, name: str = "train.svm") -> Path:
    """The text as a file."""
    return write_text(folder, text, name)


def fault(folder: Path, text: str | bytes, **options: object) -> str:
    """The message with which `text` is refused, without the folder."""
    path = write(folder, text)
    with pytest.raises(DataError) as caught:
        list(read_svmlight(path, ReadOptions(**options)))  # type: ignore[arg-type]
    return str(caught.value).replace(f"{folder}/", "")


def test_values_are_bit_identical_to_those_of_scikit_learn(tmp_path: Path) -> None:
    """Random numbers in every notation, over many small blocks, equal load_svmlight_file exactly."""
    rng = np.random.default_rng(0)
    lines = []
    for row in range(300):
        columns = np.sort(rng.choice(50, rng.integers(0, 12), replace=False)) + 1
        numbers = rng.normal(size=len(columns)) * 10.0 ** rng.integers(-30, 30, len(columns))
        written = [f"{number:{rng.choice(['.17g', '.3f', '.5e', '+.0f'])}}" for number in numbers]
        lines.append(f"{row % 3 - 1} " + " ".join(f"{c}:{w}" for c, w in zip(columns, written, strict=True)))
    text = "\n".join(lines)
    expected_X, expected_y = load_svmlight_file(io.BytesIO(text.encode()))

    X, y = joined(list(read_svmlight(write(tmp_path, text), ReadOptions(block_bytes=500))))

    np.testing.assert_array_equal(X, expected_X.toarray())
    np.testing.assert_array_equal(y, expected_y)


@pytest.mark.parametrize(
    "text",
    [
        "1 1:2 3:4\n0 2:5",
        "1 1:2 3:4\r\n0 2:5\r\n",
        "\ufeff1 1:2 3:4\n0 2:5\n",
        "# header\n\n1 1:2 3:4 # a comment with 5:6\n   \n0\t2:5  \n#end",
        "1 qid:7 1:2 3:4\n0 qid:8 2:5\n",
        "+1.0 1:+2. 3:.4e1\n-0 2:50e-1\n",
    ],
)
def test_blanks_comments_query_ids_and_line_ends_do_not_matter(tmp_path: Path, text: str) -> None:
    """Six ways to write the same two samples."""
    X, y = joined(list(read_svmlight(write(tmp_path, text), ReadOptions())))
    np.testing.assert_array_equal(X, [[2, 0, 4], [0, 5, 0]])
    np.testing.assert_array_equal(y, [1, 0])


def test_rows_know_their_lines_across_blocks_blank_lines_and_comments(tmp_path: Path) -> None:
    """Line numbers count every line of the file, also those without a sample."""
    text = "# first\n1 1:1\n\n1 1:2\n# five\n" + "0 1:3\n" * 40
    blocks = list(read_svmlight(write(tmp_path, text), ReadOptions(block_bytes=16)))
    numbers = [int(number) for block in blocks for number in block.origin.numbers]
    assert len(blocks) > 3
    assert numbers == [2, 4, *range(6, 46)]
    assert blocks[0].origin.row(0) == f"{tmp_path}/train.svm:2"


@pytest.mark.parametrize(
    ("text", "zero_based", "first_row"),
    [
        ("1 0:5 2:6\n0 1:7\n", True, [5, 0, 6]),
        ("1 0:5 2:6\n0 1:7\n", None, [5, 0, 6]),
        ("1 1:5 3:6\n0 2:7\n", False, [5, 0, 6]),
        ("1 1:5 3:6\n0 2:7\n", None, [5, 0, 6]),
        ("1 1:5 3:6\n0 2:7\n", True, [0, 5, 0, 6]),
        ("1 1:5 3:6\n0 2:7 # 0:1\n", None, [5, 0, 6]),
        ("1 1:5 3:6\n0 00:7\n", None, [0, 5, 0, 6]),
    ],
)
def test_the_first_index_is_one_unless_told_or_found_otherwise(
    tmp_path: Path, text: str, zero_based: bool | None, first_row: list[float]
) -> None:
    """--zero-based yes, no and auto; auto looks through the whole file but not into comments."""
    X, _ = joined(list(read_svmlight(write(tmp_path, text), ReadOptions(zero_based=zero_based))))
    np.testing.assert_array_equal(X[0], first_row)


def test_a_stated_number_of_features_is_the_width_of_every_block(tmp_path: Path) -> None:
    """A test file that lacks the last features gets the width of its training file."""
    path = write(tmp_path, "1 1:5\n0 2:7\n")
    assert [block.rows.shape for block in read_svmlight(path, ReadOptions(num_features=9))] == [(2, 9)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:1\n1 2:1 1:3\n", "train.svm:2: index 1 follows index 2; indices must ascend"),
        ("1 1:1\n\n1 2:1 2:3\n", "train.svm:3: index 2 appears twice"),
        ("1 1:1\n1 0:1\n", "train.svm:2: index 0 in '0:1', but features are numbered from 1; pass --zero-based yes"),
        ("1 1:1\n1 4000000000:1\n", "train.svm:2: index '4000000000' is out of range"),
        ("1 1:1\n1 " + "9" * 30 + ":1\n", "is out of range, the last one allowed is 2147483647"),
        ("1 1:1\n1 1:1 abc\n", "train.svm:2: 'abc' is not index:value"),
        ("1 1:1\n1 1:\n", "train.svm:2: '1:' is not index:value"),
        ("1 1: 1\n", "train.svm:1: '1:' is not index:value"),
        ("1 :1\n", "train.svm:1: ':1' is not index:value"),
        ("1 1:2:3\n", "train.svm:1: '1:2:3' is not index:value"),
        ("1 1:2:3 4\n", "train.svm:1: '1:2:3' is not index:value"),
        ("1 1.0:2\n", "train.svm:1: '1.0:2' is not index:value"),
        ("1 -1:2\n", "train.svm:1: '-1:2' is not index:value"),
        ("1 1:0x10\n", "train.svm:1: '1:0x10' is not index:value"),
        ("1 1:1_0\n", "train.svm:1: '1:1_0' is not index:value"),
        ("1 1:٣\n", "is not index:value"),
        ("1:1 2:1\n", "train.svm:1: the label '1:1' is not a number; the line has no label"),
        ("1,2 2:1\n", "train.svm:1: the label '1,2' is not a number; data of several labels"),
        ("1 1:1\n qid:3 2:1\n", "train.svm:2: the label 'qid:3' is not a number; the line has no label"),
        ("1 1:1\nqid:3 2 2:1\n", "train.svm:2: the label 'qid:3' is not a number"),
        ("spam 2:1\n", "train.svm:1: the label 'spam' is not a number"),
        (b"1 1:1\n\x00\x01\x02\n", "train.svm:2: the label '\\x00\\x01\\x02' is not a number"),
        (b"1 1:1\x002:2\n", "train.svm:1: "),
        (b"\xff\xfe1\x00 \x00", "train.svm: the text is UTF-16"),
    ],
)
def test_a_fault_names_file_line_token_and_what_to_do(tmp_path: Path, text: str | bytes, message: str) -> None:
    """Each way to break a line."""
    assert message in fault(tmp_path, text)


def test_an_index_beyond_the_stated_number_of_features_is_refused(tmp_path: Path) -> None:
    """The last allowed index is in the words of the file, which counts from 1 or from 0."""
    assert "index '4' is out of range, the last one allowed is 3" in fault(tmp_path, "1 4:1\n", num_features=3)
    message = fault(tmp_path, "1 3:1\n", num_features=3, zero_based=True)
    assert "index '3' is out of range, the last one allowed is 2" in message


def test_finding_the_first_index_of_a_pipe_is_a_usage_error() -> None:
    """A pipe cannot be read twice; the message says which option helps."""
    with pytest.raises(UsageError, match="--zero-based"):
        list(read_svmlight(Path("/dev/null"), ReadOptions(zero_based=None)))


def test_the_fast_parser_agrees_with_the_careful_one_on_mutated_text() -> None:
    """Both read the same samples or refuse together, comments and query ids included; seeded random damage."""
    rng = np.random.default_rng(1)
    sound = "1 1:2 3:4.5\n-1 qid:2 2:1e-3 7:8\n+2.5 1:1 # x\n0\n\n3 10:1 11:0 12:33\n" * 3
    alphabet = [*list("0123456789:::. \n\t-+e#\r\x0b\x00x"), " 1:", "nan", "1:1 2:2", "\xa0", "qid:1 "]
    num_fast = num_refused = 0
    for _ in range(3000):
        text = list(sound)
        for _ in range(rng.integers(0, 4)):
            text[rng.integers(len(text))] = str(rng.choice(alphabet))
        lines = LineBlock("".join(text).encode("latin-1"), 1, 0)
        try:
            careful = parse_lines(lines, ONE_BASED, PATH)
        except DataError:
            num_refused += 1
            with pytest.raises(DataError):
                parse(lines, ONE_BASED, PATH)
            continue
        num_fast += parse_block(without_extras(lines.data), **ALLOWED) is not None
        found = parse(lines, ONE_BASED, PATH)
        for field in ("labels", "indptr", "indices", "values", "line_numbers"):
            np.testing.assert_array_equal(getattr(found, field), getattr(careful, field))
    assert num_fast > 500
    assert num_refused > 500


def test_ordinary_text_takes_the_fast_parser() -> None:
    """What real files look like does not fall back to the parser that loops over tokens."""
    assert parse_block(b"-1 3:1 11:1 14:1 \n+1 5:1\n", **ALLOWED) is not None
    assert parse_block(b"0\t1:-0.25 7:1.5e-3\r\n1 2:123456\n\n", **ALLOWED) is not None
