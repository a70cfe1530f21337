"""What a process may lack at its start: standard streams, characters for what it prints, a working directory."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from chicle_elastic.surroundings import encodable, in_some_folder, is_folder_gone, write
from estimators import ChicleRidge
from tests.programs import run

ROOT = Path(__file__).parents[1]
IN_A_FOLDER_THAT_IS_GONE = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
FIT = """
import os
from estimators import ChicleSVM
from sklearn.datasets import load_breast_cancer
X, y = load_breast_cancer(return_X_y=True)
quality = ChicleSVM(n_workers={n_workers}).fit(X / X.max(0), y).duality_gap_
with open({out!r}, "w") as file:
    file.write(str(quality <= 1e-3))
"""


def shell(folder: Path, script: str, command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; the script ends with its start, "$@"."""
    return run("sh", "-c", script, "sh", *command, code=None, cwd=folder, **environment)


def chicle(*arguments: str) -> list[str]:
    """The command line of `chicle`."""
    return [sys.executable, "-m", "chicle_elastic", *arguments]


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 2>&-", "0<&- 1>&- 2>&-"])
def test_no_socket_takes_the_place_of_a_standard_stream(tmp_path: Path, closed: str) -> None:
    """A child process would lose it, and what a library prints would go into it."""
    program = (
        "import json, os, socket\nfrom chicle_elastic.surroundings import prepare_command\nprepare_command()\n"
        "import sys\nprint('to nowhere', file=sys.stdout)\nprint('to nowhere', file=sys.stderr)\n"
        "places = [os.path.exists(f'/proc/self/fd/{fd}') and os.get_inheritable(fd) for fd in range(3)]\n"
        "with socket.socket() as sock, open('found', 'w') as file:\n"
        "    json.dump([sock.fileno(), *places], file)"
    )
    run = shell(tmp_path, f'exec "$@" {closed}', [sys.executable, "-c", program])
    number, *places = json.loads((tmp_path / "found").read_text())
    assert run.returncode == 0
    assert number > 2
    assert places == [True, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["0<&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_fit_on_nodes_needs_no_standard_streams(tmp_path: Path, closed: str) -> None:
    """As a supervisor may start it."""
    program = FIT.format(n_workers=2, out=str(tmp_path / "out"))
    run = shell(tmp_path, f'exec "$@" {closed}', [sys.executable, "-c", program])
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "out").read_text() == "True"


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", r"caf\xe9 \u652f"), ("latin-1", r"café \u652f"), ("utf-8", "café 支"), (None, "café 支")],
)
def test_characters_that_a_stream_lacks_are_escaped(encoding: str | None, shown: str) -> None:
    """Those that it has stay."""
    stream = io.StringIO() if encoding is None else io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    write("café 支", stream)
    stream.seek(0)
    assert stream.read() == shown == encodable("café 支", stream)
    assert encodable("a\udcff", stream) == r"a\udcff"  # half of a character, as a byte that is no UTF-8 is read


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:strict"])
def test_commands_print_names_that_stdout_cannot_encode(tmp_path: Path, encoding: str) -> None:
    """A traceback at the last line would say that a whole conversion has failed."""
    (tmp_path / "données.csv").write_text("".join(f"{('café', '支')[i % 2]},{i}\n" for i in range(20)))
    converted = shell(
        tmp_path, 'exec "$@"', chicle("convert", "--quiet", "données.csv", "支"), PYTHONIOENCODING=encoding
    )
    assert converted.returncode == 0, converted.stderr
    assert r"\u652f" in converted.stdout
    inspected = shell(tmp_path, 'exec "$@"', chicle("inspect", "支"), PYTHONIOENCODING=encoding)
    assert inspected.returncode == 0, inspected.stderr
    assert inspected.stdout.count(r"\u652f") == 2
    failed = shell(tmp_path, 'exec "$@"', chicle("inspect", "é"), PYTHONIOENCODING=encoding)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize("verbose", [1, 2])
def test_a_verbose_fit_prints_what_stdout_can_show(monkeypatch: pytest.MonkeyPatch, verbose: int) -> None:
    """Its fit is worth more than the line; a program without a console has no stdout at all."""
    kind = type("Modèle", (ChicleRidge,), {})
    for is_terminal in (False, True):
        stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(stdout, "isatty", lambda is_terminal=is_terminal: is_terminal, raising=False)
        monkeypatch.setattr(sys, "stdout", stdout)
        kind(verbose=verbose).fit([[1.0], [2.0], [3.0]], [1.0, 2.0, 4.0])
        stdout.seek(0)
        assert is_terminal or r"Mod\xe8le" in stdout.read()
    monkeypatch.setattr(sys, "stdout", None)
    kind(verbose=verbose).fit([[1.0], [2.0], [3.0]], [1.0, 2.0, 4.0])


def test_libraries_find_a_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is there stays; where it is gone the user's relative paths go nowhere else than before."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    with in_some_folder():
        assert Path.cwd() == tmp_path / "gone"
    assert not is_folder_gone()
    (tmp_path / "gone").rmdir()
    with in_some_folder():
        assert os.getcwd() == "/"
    assert is_folder_gone()


# Of the standard library, `import socket` ends with a SystemError there.
needs_imports = pytest.mark.skipif(
    sys.version_info[:3] == (3, 13, 0), reason="Python 3.13.0 imports few modules in a folder that is gone"
)


@needs_imports
@pytest.mark.parametrize("n_workers", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_a_fit_needs_no_working_directory(tmp_path: Path, n_workers: int | None) -> None:
    """A clean-up has removed it."""
    program = FIT.format(n_workers=n_workers, out=str(tmp_path / "out"))
    run = shell(tmp_path, IN_A_FOLDER_THAT_IS_GONE, [sys.executable, "-c", program])
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "out").read_text() == "True"


@needs_imports
def test_kernels_are_compiled_without_a_working_directory(tmp_path: Path) -> None:
    """numba asks for it then, too; a relative path to the cache leads nowhere."""
    (tmp_path / "scale.py").write_text("def scale(x):\n    return 3 * x\n")
    program = "from chicle_elastic.solvers.kernels.jit import kernel\nfrom scale import scale\nprint(kernel(scale)(2))"
    run = shell(
        tmp_path,
        IN_A_FOLDER_THAT_IS_GONE,
        [sys.executable, "-c", program],
        CHICLE_CACHE_DIR="relative",
        TMPDIR=str(tmp_path),
        PYTHONPATH=f"{ROOT}:{tmp_path}",
    )
    assert (run.returncode, run.stdout) == (0, "6\n"), run.stderr


def test_commands_need_no_working_directory(tmp_path: Path) -> None:
    """With absolute paths."""
    (tmp_path / "rows.csv").write_text("0,1\n1,2\n")
    paths = str(tmp_path / "rows.csv"), str(tmp_path / "out")
    for arguments in (["--version"], ["convert", "--quiet", *paths], ["inspect", paths[1]]):
        run = shell(tmp_path, IN_A_FOLDER_THAT_IS_GONE, chicle(*arguments))
        assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    "command",
    [
        chicle("convert", "rows.csv", "out"),
        chicle("inspect", "out"),
        [sys.executable, "-m", "chicle_elastic.launch", "-j", "1", "-m", "no_module"],
        [sys.executable, "-m", "torchx_components.anchor", "-j", "1", "--train", "a", "--out", "b", "no_module"],
    ],
    ids=["convert", "inspect", "launch", "anchor"],
)
def test_a_command_that_needs_its_working_directory_says_so(tmp_path: Path, command: list[str]) -> None:
    """In one line, and not in the words of a library."""
    run = shell(tmp_path, IN_A_FOLDER_THAT_IS_GONE, command)
    assert run.returncode in (1, 2)
    assert "working directory is gone" in run.stderr
    assert run.stderr.count("\n") == 1


RELATIVE = """
import sys
import numpy as np
from chicle_elastic import ChunkFolder, LocalCluster
from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleSVM

X, y = np.eye(4), np.arange(4) % 2
assert ChicleSVM(logdir=sys.argv[1]).fit(X, y).n_iter_
for use in (
    lambda: ChunkFolder("relative"),
    lambda: ChicleSVM(logdir="relative").fit(X, y),
    lambda: ChicleSVM(runtime=InProcess(log_dir="relative")).fit(X, y),
    lambda: ChicleSVM(runtime=LocalCluster(2, log_dir="relative")).fit(X, y),
):
    try:
        use()
    except UsageError as error:
        assert str(error).startswith("relative") and "the working directory is gone" in str(error), error
    else:
        raise AssertionError
"""


@needs_imports
def test_a_relative_path_without_a_working_directory_is_named(tmp_path: Path) -> None:
    """Of rows, of what a fit writes in this process, and of what its nodes write; an absolute one is used."""
    run = shell(tmp_path, IN_A_FOLDER_THAT_IS_GONE, [sys.executable, "-c", RELATIVE, str(tmp_path / "logs")])
    assert run.returncode == 0, run.stderr
    assert list((tmp_path / "logs").glob("*/events*"))
