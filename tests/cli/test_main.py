"""`chicle`: finds its commands, imports only what it runs, and turns errors into messages and exit codes."""

import argparse
from types import SimpleNamespace

import pytest

import chicle_elastic
from chicle_elastic.cli import main as main_module
from chicle_elastic.cli.main import COMMANDS, main
from chicle_elastic.errors import DataError, MissingExtraError, UsageError
from tests.programs import run_python


def run_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """The exit code of a command that raises `error`."""

    def run(arguments: argparse.Namespace) -> int:
        raise error

    command = SimpleNamespace(__doc__="Fails.", add_arguments=lambda parser: None, run=run)
    monkeypatch.setattr(main_module.importlib, "import_module", lambda name: command)
    return main(["convert"])


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Names with their summaries, exit code 0."""
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    output = capsys.readouterr().out
    assert all(name in output and command.summary in output for name, command in COMMANDS.items())


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """One place has the version."""
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"chicle {chicle_elastic.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["--frobnicate"], ["convert"], ["convert", "--frobnicate"]])
def test_wrong_usage_exits_with_2_and_says_how(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """argparse's own message, on stderr."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: chicle" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (DataError("a.csv:3: bad"), 1, "chicle: a.csv:3: bad\n"),
        (UsageError("no such column"), 2, "chicle: no such column\n"),
        (MissingExtraError.for_package("p", extra="x", purpose="it"), 1, "chicle: it needs the package 'p'"),
        (FileNotFoundError(2, "No such file or directory", "a.csv"), 1, "chicle: a.csv: No such file or directory\n"),
        (OSError("odd"), 1, "chicle: odd\n"),
        (MemoryError(), 1, "chicle: out of memory\n"),
        (KeyboardInterrupt(), 130, "chicle: interrupted\n"),
    ],
)
def test_an_error_becomes_a_message_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    """One line on stderr, no traceback."""
    assert run_with(monkeypatch, error) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug is not dressed up as a message."""
    with pytest.raises(ZeroDivisionError):
        run_with(monkeypatch, ZeroDivisionError())


def test_help_imports_no_command_and_no_numpy() -> None:
    """`python -m chicle_elastic --help` is quick because it loads nothing."""
    script = (
        "import sys\n"
        "from chicle_elastic.cli.main import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'numpy', 'scipy', 'sklearn', 'numba'}))\n"
        "print([name for name in sys.modules if name.startswith('chicle_elastic.cli.') and name[-4:] != 'main'])\n"
    )
    done = run_python("-c", script)
    assert done.stdout.splitlines()[1:] == ["[]", "[]"]


def test_the_package_runs_as_a_module() -> None:
    """`python -m chicle_elastic` is `chicle`."""
    done = run_python("-m", "chicle_elastic", "--version")
    assert done.stdout == f"chicle {chicle_elastic.__version__}\n"
