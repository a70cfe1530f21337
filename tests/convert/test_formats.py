"""The format of a file is told by its bytes; where it cannot be told, the message says how to say it."""

import bz2
import gzip
import os
from pathlib import Path

import pytest

from chicle_elastic.chunks.readers.formats import detect_format
from chicle_elastic.errors import DataError, UsageError
from tests.convert.inputs import write_text
from tests.real_data import real_data


@pytest.mark.parametrize(
    ("text", "format_"),
    [
        ("1 1:2 3:4\n", "svmlight"),
        ("# comment, with comma\n\n-1 qid:1 1:2\n+1\n", "svmlight"),
        ("1 1:2 # a, b\n", "svmlight"),
        ("1,2,3\n", "csv"),
        ("label,a:b\n1,2\n", "csv"),
    ],
)
@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress])
def test_text_is_told_by_its_first_lines(tmp_path: Path, text: str, format_: str, compress: object) -> None:
    """Under a name that says nothing, compressed or not."""
    path = write_text(tmp_path, compress(text.encode()), "data.gz")  # type: ignore[operator]
    assert detect_format(path) == format_


@pytest.mark.parametrize(
    ("name", "format_"),
    [("a.csv", "csv"), ("a.tsv.gz", "csv"), ("a.svm", "svmlight"), ("a.libsvm.bz2", "svmlight")],
)
def test_a_telling_name_decides_where_the_text_could_be_either(tmp_path: Path, name: str, format_: str) -> None:
    """A label alone is a sample of svmlight and one field of CSV."""
    assert detect_format(write_text(tmp_path, "1\n", name)) == format_


def test_what_cannot_be_told_or_read_is_refused(tmp_path: Path) -> None:
    """Empty files, files of comments, other text, folders and pipes, each in its own words."""
    with pytest.raises(DataError, match="the file is empty"):
        detect_format(write_text(tmp_path, "", "empty"))
    with pytest.raises(DataError, match="no samples"):
        detect_format(write_text(tmp_path, "# nothing\n\n", "comments"))
    with pytest.raises(UsageError, match="neither svmlight nor comma separated; pass --format"):
        detect_format(write_text(tmp_path, "Dear reader\n", "prose"))
    with pytest.raises(UsageError, match="is a folder"):
        detect_format(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pass --format"):
        detect_format(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        detect_format(tmp_path / "absent")


def test_the_real_files_are_told() -> None:
    """a9a.gz has no suffix that would help."""
    for name, format_ in (("a9a/a9a.t.gz", "svmlight"), ("higgs/HIGGS_lgb_test500.csv.gz", "csv")):
        assert detect_format(real_data(name)) == format_
