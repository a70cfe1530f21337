"""`chicle convert`: every option reaches the conversion, and whatever ends it leaves no half of a folder."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.cli.main import main
from tests.convert.inputs import read_back, write_text
from tests.programs import run_python
from tests.timeouts import timeout_s

CHICLE = [sys.executable, "-m", "chicle_elastic"]
SAMPLES = "1,0.5,2\n0,1.5,3\n1,2.5,4\n0,3.5,5\n"


def test_a_file_becomes_a_folder_and_a_summary_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first line has what a user wants to check at once; nothing on stderr for what takes no time."""
    path = write_text(tmp_path, SAMPLES, "a.csv")
    assert main(["convert", str(path), str(tmp_path / "out"), "--max-tasks", "1"]) == 0
    captured = capsys.readouterr()
    assert re.match(
        r".*/out: 4 rows x 2 features \(dense float32\), 2 classes, \d chunks, [\d.]+ KiB, in [\d.]+ s\n", captured.out
    )
    assert captured.err == ""
    np.testing.assert_array_equal(read_back(ChunkFolder(tmp_path / "out")).X, [[0.5, 2], [1.5, 3], [2.5, 4], [3.5, 5]])


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (SAMPLES, ["--dtype", "float64"], {"dtype": "float64"}),
        (SAMPLES, ["--regression"], {"num_classes": 0, "target_dtype": "float64"}),
        ("1;2\n0;3\n", ["--format", "csv", "--delimiter", ";"], {"num_features": 1}),
        ("y,1,2\n0,3,4\n", ["--format", "csv", "--header"], {"num_rows": 1}),
        ("1 1:1\n0 2:1\n", ["--num-features", "7"], {"num_features": 7}),
        ("1 0:1\n0 2:1\n", ["--zero-based", "yes"], {"num_features": 3}),
        ("1 0:1\n0 2:1\n", ["--zero-based", "auto"], {"num_features": 3}),
        ("1 1:1\n0 2:1\n", ["--zero-based", "auto", "--quiet", "--memory", "1MiB"], {"num_features": 2}),
    ],
)
def test_options_reach_the_conversion(
    tmp_path: Path, text: str, options: list[str], expected: dict[str, object]
) -> None:
    """One after the other, seen in the schema."""
    path = write_text(tmp_path, text, "input")
    assert main(["convert", str(path), str(tmp_path / "out"), *options]) == 0
    schema = ChunkFolder(tmp_path / "out").schema
    assert {name: getattr(schema, name) for name in expected} == expected


def test_chunk_size_seed_targets_and_weights_reach_the_conversion(tmp_path: Path) -> None:
    """Options that the schema does not show."""
    np.save(tmp_path / "X.npy", np.arange(8000, dtype=np.float32).reshape(1000, 8))
    np.save(tmp_path / "y.npy", np.arange(1000) % 4)
    np.save(tmp_path / "w.npy", np.full(1000, 0.5))
    sides = ["--targets", str(tmp_path / "y.npy"), "--weights", str(tmp_path / "w.npy"), "--chunk-bytes", "4K"]
    for name, seed in (("first", "1"), ("again", "1"), ("other", "2")):
        assert main(["convert", str(tmp_path / "X.npy"), str(tmp_path / name), *sides, "--seed", seed]) == 0
    folders = [ChunkFolder(tmp_path / name) for name in ("first", "again", "other")]
    assert folders[0].num_chunks >= 8
    first, again, other = map(read_back, folders)
    np.testing.assert_array_equal(first.order, again.order)
    assert (first.order != other.order).any()
    np.testing.assert_array_equal(first.y, np.arange(1000) % 4)
    np.testing.assert_array_equal(first.weights, np.full(1000, 0.5))


def test_columns_of_parquet_can_be_named(tmp_path: Path) -> None:
    """--label-column and --weight-column."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    pq.write_table(pa.table({"a": [1.0, 2], "kind": ["x", "y"], "w": [0.5, 1]}), tmp_path / "a.parquet")
    arguments = [str(tmp_path / "a.parquet"), str(tmp_path / "out"), "--label-column", "kind", "--weight-column", "w"]
    assert main(["convert", *arguments]) == 0
    folder = ChunkFolder(tmp_path / "out")
    assert folder.classes == ("x", "y")
    np.testing.assert_array_equal(read_back(folder).weights, [0.5, 1])
    np.testing.assert_array_equal(read_back(folder).X, [[1.0], [2.0]])


@pytest.mark.parametrize(
    ("name", "text", "code", "message"),
    [
        ("a.csv", "1,2\n1\n", 1, "a.csv:2: 1 fields, but line 1 has 2"),
        ("a.csv", "", 1, "a.csv: the file is empty"),
        ("absent.csv", None, 1, "absent.csv: No such file or directory"),
        ("a.txt", "prose\n", 2, "a.txt: its first lines are neither svmlight nor comma separated; pass --format"),
        ("a.npy", "\x93NUMPY", 2, "pass --format"),
    ],
)
def test_a_failure_is_one_line_and_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None, code: int, message: str
) -> None:
    """On stderr, no traceback, nothing left behind."""
    if text is not None:
        write_text(tmp_path, text, name)
    before = sorted(tmp_path.iterdir())
    assert main(["convert", str(tmp_path / name), str(tmp_path / "out")]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("chicle: ")
    assert error.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "options",
    [
        ["--chunk-bytes", "0"],
        ["--chunk-bytes", "1 TiB"],
        ["--seed", "-1"],
        ["--num-features", "0"],
        ["--dtype", "int16"],
    ],
)
def test_a_value_that_cannot_be_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """Before anything is read."""
    with pytest.raises(SystemExit) as caught:
        main(["convert", "a.csv", str(tmp_path / "out"), *options])
    assert caught.value.code == 2
    assert options[0] in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """A real process and a real signal, sent when temporary files exist: the input is a pipe that does not end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "chicle_elastic",
            "convert",
            "--format",
            "csv",
            "--memory",
            "64K",
            pipe,
            tmp_path / "out",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with pipe.open("wb", buffering=0) as feed:
            # Writing blocks until the converter reads, so the loop keeps step with it.
            while not any(path.is_file() for path in tmp_path.rglob("*")):
                feed.write(b"1,0.5,2\n0,1.5,3\n" * 4096)
            process.send_signal(number)
            with contextlib.suppress(BrokenPipeError):
                feed.write(b"1,")  # wakes a converter that went to sleep just before the signal
            output, error = process.communicate(timeout=timeout_s(60))
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == code
    assert output == ""
    assert error == ("chicle: interrupted\n" if number == signal.SIGINT else "")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_full_disk_is_a_message_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for a disk without space: a real error of the system while writing."""
    path = write_text(tmp_path, SAMPLES * 20_000, "a.csv")
    script = (
        "import resource, signal, sys\n"
        "from chicle_elastic.cli.main import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = run_python("-c", script, "convert", str(path), str(tmp_path / "out"), code=1)
    assert done.stderr.startswith("chicle: ")
    assert "Traceback" not in done.stderr
    assert [left.name for left in tmp_path.iterdir()] == ["a.csv"]
