"""What users can import and call is listed in surface.txt, so that a name comes or goes only on purpose."""

import argparse
import ast
import difflib
import importlib
import subprocess
import sys

import pytest

from tests.house.floors import module_of
from tests.house.sources import product_files
from tests.house.surface import SURFACE, components_of, count_names, listed_names, options_of, surface_lines
from tests.timeouts import timeout_s

MOST_NAMES = 76
"""Five are commands for jobs of a cluster, which the components brought; five are regressors;
one is the estimator around a trainer of the user's, which no other name can be; one is the search that shares data;
two are regressors of other losses, three what a loss of the user's is made with, and two
are ridge regression as scikit-learn's users type it: with a penalty that is found, and of labels."""
MOST_OPTIONS = 76
"""Four of them are addresses and ports of a node, three are certificates (of the doctor as well), which no default can
know;
three let `chicle status` ask agents; five are what a simulation compares and shows;
one is the cloud that is asked for notices;
one leaves columns out of a data file; twenty-two are those of the five components, counted once."""


def surface_of_file() -> list[str]:
    """The list."""
    return SURFACE.read_text(encoding="utf-8").splitlines()


def test_the_surface_is_the_listed_one() -> None:
    """Names, components, commands and options equal surface.txt; when that is meant to change: `make surface`."""
    difference = "\n".join(
        difflib.unified_diff(surface_of_file(), surface_lines(), "surface.txt", "found", lineterm="", n=0)
    )
    assert not difference, f"run `make surface` when this is what you want:\n{difference}"


def test_the_surface_is_small() -> None:
    """At most 76 names and commands: what is promised has to be kept, so little is."""
    num_names, num_options = count_names(surface_of_file())
    assert num_names <= MOST_NAMES
    assert num_options <= MOST_OPTIONS


@pytest.mark.parametrize(
    "module",
    [module_of(path) for path, text in product_files().items() if listed_names(ast.parse(text)) is not None],
)
def test_every_name_in_all_exists(module: str) -> None:
    """What `__all__` promises can be had, through a lazy `__getattr__` too."""
    imported = importlib.import_module(module)
    missing = [name for name in imported.__all__ if not hasattr(imported, name)]
    assert not missing


def test_names_are_read_from_all() -> None:
    """A name that `__all__` leaves out is not public."""
    assert listed_names(ast.parse("__all__ = ['b', 'a']\ndef c(): ...")) == ["b", "a"]
    assert listed_names(ast.parse("def c(): ...")) is None


def test_a_component_is_what_returns_an_app() -> None:
    """Helpers beside it are none; one letter makes a short option."""
    source = "def a(train: str, *rest: str, j: str = '1') -> specs.AppDef: ...\ndef b(x) -> tuple[int, int]: ..."
    assert components_of(source) == {"a": ["--train", "-j"]}


def test_options_of_groups_count() -> None:
    """Positional arguments and --help do not."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument_group("more").add_argument("--json", "-J", action="store_true")
    assert options_of(parser) == ["--json"]


def test_names_and_options_are_counted_apart() -> None:
    """Commands are names."""
    assert count_names(["estimators: A B", "chicle: inspect --version", "chicle inspect: --json"]) == (3, 2)


HELP = """
import contextlib, io, runpy, sys

for line in sys.stdin.read().splitlines():
    command, _, words = line.partition(": ")
    program, *arguments = command.removeprefix("python -m ").split()
    sys.argv = [program, *arguments, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        runpy.run_module("chicle_elastic" if program == "chicle" else program, run_name="__main__", alter_sys=True)
    print(command, [word for word in words.split() if word not in said.getvalue()])
"""


def test_every_command_and_option_is_in_its_help() -> None:
    """Asked as a user asks: the list is of the command lines that run and not of parsers beside them."""
    lines = [line for line in surface_of_file() if line.startswith(("chicle:", "chicle ", "python -m"))]
    program = [sys.executable, "-c", HELP]
    run = subprocess.run(program, input="\n".join(lines), capture_output=True, text=True, timeout=timeout_s(60))
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [f"{line.partition(': ')[0]} []" for line in lines]
