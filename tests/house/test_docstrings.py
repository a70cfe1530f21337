"""Examples are run: those in docstrings, and the code on the pages as far as it needs no cluster.

The example of the README has a test of its own (`test_readme`), in an interpreter of its own.
"""

import doctest
import importlib
from pathlib import Path

import pytest

from tests.house.floors import module_of
from tests.house.sources import ROOT, product_files
from tests.house.test_face import code_blocks

MODULES = [module_of(path) for path, text in product_files().items() if ">>> " in text]
BLOCKS = [(page, block) for page in sorted((ROOT / "docs").rglob("*.md")) for block in code_blocks(page)]
ON_A_CLUSTER = ("TorchXRuntime", "LocalCluster", "n_workers", "cluster_runtime")
"""What starts processes is run by the tests of the cluster; here its code is compiled only."""


def examples_of(module: str) -> list[doctest.DocTest]:
    """Examples of a module. They see nothing of it: what they use they import, as a reader has to."""
    found = doctest.DocTestFinder().find(importlib.import_module(module), globs={})
    return [test for test in found if test.examples]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_say_what_happens(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each prints what stands below it."""
    tests = examples_of(module)
    assert tests, f"{module} has >>> outside of the docstrings of what it defines"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0, capsys.readouterr().out


def test_a_wrong_example_would_be_noticed() -> None:
    """The runner compares, and sees no names that an example has not made itself."""
    finder = doctest.DocTestParser()
    for source in (">>> 1 + 1\n3\n", ">>> Job\n<class 'chicle_elastic.runtime.training.job.Job'>\n"):
        runner = doctest.DocTestRunner(verbose=False)
        results = runner.run(finder.get_doctest(source, {}, "wrong", None, None), out=lambda _: None)
        assert results.failed == 1


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{page.stem}-{block[:40]!r}" for page, block in BLOCKS])
def test_code_on_a_page_runs(
    page: Path, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copied as it stands, in an empty folder."""
    code = compile(block, str(page), "exec")
    if not any(word in block for word in ON_A_CLUSTER):
        monkeypatch.chdir(tmp_path)
        exec(code, {"__name__": page.stem})
