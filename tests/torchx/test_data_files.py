"""A data file goes into a run as `chicle convert` reads it: the same rows and columns, or the same refusal."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.cli.main import main
from chicle_elastic.errors import ChicleError
from tests.convert.inputs import read_back, write_text
from torchx_components.anchor import prepare

ROWS = "".join(f"{number % 2},{number * 0.5},{number * 7 % 40}\n" for number in range(40))
FILES = {
    "plain.csv": ROWS,
    "names.csv": "y,a,b\n" + ROWS,
    "index.csv": ",y,a,b\n" + "".join(f"{n},{line}\n" for n, line in enumerate(ROWS.splitlines())),
    "excel.csv": "sep=;\ny;a;b\n" + ROWS.replace(",", ";"),
    "packed.csv.gz": gzip.compress(ROWS.encode()),
    "rows.svm": "".join(f"{n % 2} 1:{n * 0.5} 3:{n}\n" for n in range(40)),
    "cut.csv.gz": gzip.compress(ROWS.encode())[:-20],
    "gap.csv": ROWS + "1,NA,3\n",
    "repeated.csv": "y,a,a\n" + ROWS,
    "numbers.csv": "0,1,2,3\n" + ROWS.replace("\n", ",1\n"),
    "empty.csv": "",
}


@pytest.mark.parametrize("name", FILES)
def test_a_run_reads_a_data_file_as_convert_does(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Rows, columns, notes and messages."""
    path = write_text(tmp_path, FILES[name], name)
    code = main(["convert", "--max-tasks", "1", str(path), str(tmp_path / "out")])
    said = capsys.readouterr()
    if code != 0:
        with pytest.raises(ChicleError) as caught:
            prepare(str(path), tmp_path, 1)
        assert str(caught.value).startswith(said.err.removeprefix("chicle: ").rstrip())
        return
    ours, theirs = read_back(ChunkFolder(tmp_path / "out")), read_back(ChunkFolder(prepare(str(path), tmp_path, 1)))
    np.testing.assert_array_equal(ours.X, theirs.X)
    np.testing.assert_array_equal(ours.y, theirs.y)
    assert capsys.readouterr().err == said.err.replace("chicle: ", "anchor: ")


def test_a_folder_of_data_files_is_refused_before_nodes_start(tmp_path: Path) -> None:
    """`--train` takes one file, or a folder that `chicle convert` made."""
    write_text(tmp_path, ROWS, "a.csv")
    with pytest.raises(ChicleError, match=r"is no chunk folder.*chicle convert"):
        prepare(str(tmp_path), tmp_path, 1)
