"""What users can import and call is listed in surface.txt, so that a name comes or goes only on purpose."""

import ast
import difflib
import importlib

import pytest

from tests.house.floors import module_of
from tests.house.sources import product_files
from tests.house.surface import SURFACE, listed_names, surface_lines
from tests.programs import run_python


def surface_of_file() -> list[str]:
    """The list."""
    return SURFACE.read_text(encoding="utf-8").splitlines()


def test_the_surface_is_the_listed_one() -> None:
    """Names, components, commands and options equal surface.txt; when that is meant to change: `make surface`."""
    difference = "\n".join(
        difflib.unified_diff(surface_of_file(), surface_lines(), "surface.txt", "found", lineterm="", n=0)
    )
    assert not difference, f"run `make surface` when this is what you want:\n{difference}"


@pytest.mark.parametrize(
    "module",
    [module_of(path) for path, text in product_files().items() if listed_names(ast.parse(text)) is not None],
)
def test_every_name_in_all_exists(module: str) -> None:
    """What `__all__` promises can be had, through a lazy `__getattr__` too."""
    imported = importlib.import_module(module)
    missing = [name for name in imported.__all__ if not hasattr(imported, name)]
    assert not missing


HELP = """
import contextlib, io, runpy, sys

import torch  # or a child process parses the launcher's options, and prints them

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
    run = run_python("-c", HELP, text="\n".join(lines))
    assert run.stdout.splitlines() == [f"{line.partition(': ')[0]} []" for line in lines]
