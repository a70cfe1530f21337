"""The public face: its names can be had, editors see the same ones, and pages and examples need nothing deeper."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import chicle_elastic
import estimators
from tests.house.floors import PRODUCT, imports_of
from tests.house.sources import ROOT
from tests.house.test_start import import_afresh

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
COMMANDS = {"chicle_elastic", "chicle_elastic.launch"}
"""What `python -m` may be told; anything else is inside."""
FACES = ("chicle_elastic.torch", "chicle_elastic.testing.solver_contract")
"""Modules that are imported from where they are: the first needs torch, and none but a user's tests need the second."""


def code_blocks(page: Path) -> list[str]:
    """The blocks of a page that are Python."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def deeper_imports(source: str) -> Iterator[str]:
    """Imports of the product that are no names of its public face."""
    for imported in imports_of("example.py", ast.parse(source)):
        if imported.root not in PRODUCT or imported.module in FACES:
            continue
        public = getattr(importlib.import_module(imported.root), "__all__", []) if "." not in imported.module else []
        yield from (f"{imported.module}.{name}" for name in imported.names if name not in public)
        if not imported.names and imported.module not in PRODUCT:
            yield imported.module


def test_pages_and_examples_import_from_the_public_face() -> None:
    """What a reader copies names no module inside, neither in Python nor behind `python -m`."""
    for path in (*PAGES, *EXAMPLES):
        text = path.read_text(encoding="utf-8")
        sources = code_blocks(path) if path.suffix == ".md" else [text]
        assert [name for source in sources for name in deeper_imports(source)] == [], path
        assert set(re.findall(r"python -m (chicle_elastic[\w.]*)", text)) <= COMMANDS, path


def test_a_deeper_import_is_found() -> None:
    """It is found in each of the ways to write it, and no other import is."""
    for source in (
        "from chicle_elastic.runtime.in_process import InProcess",
        "import chicle_elastic.solvers.base",
        "from chicle_elastic import solvers",
        "def f():\n    from estimators.svm import ChicleSVM",
        "import importlib\nimportlib.import_module('chicle_elastic.launch')",
    ):
        assert list(deeper_imports(source)), source
    source = "import numpy\nimport chicle_elastic\nfrom chicle_elastic import Job\nfrom estimators import ChicleSVM"
    assert list(deeper_imports(source)) == []


@pytest.mark.parametrize("package", [chicle_elastic, estimators], ids=lambda package: package.__name__)
def test_every_public_name_is_loaded_when_asked_for(package: object) -> None:
    """`__all__`, `__dir__`, the table of modules and the imports for editors and mypy have the same names."""
    names = [name for name in package.__all__ if name != "__version__"]
    assert sorted(package._MODULES) == sorted(names)
    assert set(package.__all__) <= set(dir(package))
    source = Path(package.__file__).read_text(encoding="utf-8")
    imports = [imported for imported in imports_of("example.py", ast.parse(source)) if imported.is_lazy]
    shown = {name: imported.module for imported in imports for name in imported.names if name in names}
    assert shown == package._MODULES
    for name in names:
        assert getattr(package, name) is getattr(importlib.import_module(package._MODULES[name]), name)


def test_a_name_that_is_not_there_is_refused_with_those_that_are() -> None:
    """So that a slip of the pen is seen at once."""
    with pytest.raises(AttributeError, match=r"no attribute 'Trainr'; it has .*Trainer"):
        _ = chicle_elastic.Trainr
    assert not hasattr(chicle_elastic, "Trainr")


def test_a_public_name_loads_no_more_than_it_needs() -> None:
    """The pair, the data and the policies do without torch and without compiled kernels."""
    statement = "from chicle_elastic import Job, Trainer, Rebalance, ArraySource, ChicleError"
    assert not {"torch", "numba", "matplotlib", "torchx"} & set(import_afresh(statement)["loaded"])
