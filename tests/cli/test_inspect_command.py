"""`chicle inspect`: a table for people, JSON for programs, and damaged chunks by name."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks.convert import ConvertOptions, convert
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.cli.main import main
from chicle_elastic.ids import ChunkId
from tests.convert.inputs import write_text
from tests.timeouts import timeout_s


@pytest.fixture
def folder(tmp_path: Path) -> ChunkFolder:
    """300 sparse rows of three classes with a third, a third and a third; two features in each row."""
    text = "".join(f"{row % 3 - 1} {1 + row % 5}:1 9:0.5\n" for row in range(300))
    path = write_text(tmp_path, text, "a.svm")
    return convert([path], tmp_path / "a.chunks", ConvertOptions(chunk_bytes=1500))


def flip_a_bit(path: Path, position: int) -> None:
    """Damage one byte of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


def test_the_table_shows_schema_sizes_and_classes(folder: ChunkFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything a user asks first."""
    assert main(["inspect", str(folder.path), "--verify"]) == 0
    captured = capsys.readouterr()
    lines = [" ".join(line.split()) for line in captured.out.splitlines()]
    for expected in (
        "rows 300",
        "features 9",
        "kind sparse (CSR) float32",
        "targets 3 classes (int32 codes)",
        "weights none",
        f"chunks {folder.num_chunks}",
        "non-zeros 600, 2.0 a row, 22.22% of all",
        f"CRC all {folder.num_chunks} chunks are sound",
        "code class rows share",
        "0 -1 100 33.3%",
        "2 1 100 33.3%",
    ):
        assert expected in lines
    assert captured.err == ""


def test_json_has_the_same_facts(folder: ChunkFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """One object, for programs."""
    assert main(["inspect", str(folder.path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["schema"]["num_rows"] == 300
    assert facts["num_nonzeros"] == 600
    assert facts["num_chunks"] == folder.num_chunks > 3
    assert facts["classes"] == [{"label": label, "num_rows": 100} for label in (-1, 0, 1)]
    assert facts["is_verified"] is False
    assert facts["damaged"] == []
    assert facts["rows_per_chunk"]["min"] <= facts["rows_per_chunk"]["max"] < 300


def test_real_targets_are_shown_by_their_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They have no counts."""
    np.savez(tmp_path / "a.npz", X=np.eye(4, dtype=np.uint8).reshape(4, 2, 2), y=[0.5, -1, 2, 3])
    convert([tmp_path / "a.npz"], tmp_path / "out")
    assert main(["inspect", str(tmp_path / "out")]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "targets real values (float64)" in output
    assert "targets from -1 to 3" in output
    assert "features 4, samples of shape (2, 2)" in output
    assert "CRC not read (--verify)" in output


def test_many_classes_are_cut_short_in_the_table_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """20 lines, and where to find the others."""
    np.savez(tmp_path / "a.npz", X=np.ones((50, 1)), y=np.arange(50))
    convert([tmp_path / "a.npz"], tmp_path / "out", ConvertOptions(max_tasks=1))
    assert main(["inspect", str(tmp_path / "out")]) == 0
    assert "and 30 more (--json lists all)" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "out"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["classes"]) == 50


def test_verify_names_every_damaged_chunk(folder: ChunkFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Two of them are damaged, each message names chunk and file, the exit code is 1."""
    for number in (1, 3):
        flip_a_bit(folder.file(ChunkId(number)), 700)
    assert main(["inspect", str(folder.path), "--verify"]) == 1
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 2
    for number, line in zip((1, 3), lines, strict=True):
        assert line.startswith("chicle: ")
        assert f"chunk {number}" in line
        assert folder.file(ChunkId(number)).name in line

    assert main(["inspect", str(folder.path), "--verify", "--json"]) == 1
    damaged = json.loads(capsys.readouterr().out)["damaged"]
    assert [entry["chunk"] for entry in damaged] == [1, 3]


def test_damage_in_labels_is_noticed_without_verify_where_they_are_no_codes(
    folder: ChunkFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """The counts would be wrong, so there are none."""
    path = folder.file(ChunkId(2))
    (section,) = (section for section in folder.header(ChunkId(2)).sections if section.name == "targets")
    flip_a_bit(path, section.offset)
    assert main(["inspect", str(folder.path)]) == 1
    assert "run chicle inspect --verify" in capsys.readouterr().err


def test_what_is_no_chunk_folder_is_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty folder, and none at all."""
    for path in (tmp_path, tmp_path / "absent"):
        assert main(["inspect", str(path)]) == 1
        error = capsys.readouterr().err
        assert error.startswith("chicle: ")
        assert error.count("\n") == 1


def test_a_reader_that_leaves_early_is_no_error_message(folder: ChunkFolder) -> None:
    """`chicle inspect F | head -0` must not end in a traceback."""
    process = subprocess.Popen(
        [sys.executable, "-m", "chicle_elastic", "inspect", str(folder.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout_s(60)) == 1
    assert error == ""
