"""What users can import is listed in surface.txt, so that a name comes or goes only on purpose."""

import ast
import difflib
import importlib

import pytest

from tests.house.floors import module_of
from tests.house.sources import product_files
from tests.house.surface import SURFACE, listed_names, public_names, surface_lines


def test_public_names_are_the_listed_ones() -> None:
    """The public names of all public modules equal surface.txt; when that is meant to change: `make surface`."""
    listed = SURFACE.read_text(encoding="utf-8").splitlines()
    found = surface_lines(product_files())
    difference = "\n".join(difflib.unified_diff(listed, found, "surface.txt", "sources", lineterm="", n=0))
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


def test_all_wins_over_what_is_defined() -> None:
    """A name that `__all__` leaves out is not public."""
    assert public_names("__all__ = ['b', 'a']\ndef c(): ...") == ["a", "b"]


def test_without_all_the_own_names_are_public() -> None:
    """Classes, functions and constants count; imports, private names and names inside functions do not."""
    source = (
        "import os\nfrom a import B\nC = 1\nD: int = 2\n_e = 3\nclass F: ...\ndef g():\n    h = 1\nasync def i(): ..."
    )
    assert public_names(source) == ["C", "D", "F", "g", "i"]


def test_a_new_name_shows_as_a_difference() -> None:
    """One more function in a public module is one changed line; in a private module it is none."""
    files = {"chicle_elastic/ids.py": "a = 1", "chicle_elastic/_private.py": "b = 1"}
    assert surface_lines(files) == ["chicle_elastic.ids: a"]
    assert surface_lines(files | {"chicle_elastic/ids.py": "a = c = 1"}) == ["chicle_elastic.ids: a c"]
