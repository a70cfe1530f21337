"""The notebooks of examples/notebooks: executed in a fresh kernel as a reader does, and kept without outputs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.house.sources import ROOT
from tests.house.test_face import deeper_imports
from tests.notebooks import run_cells

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
FULL_BAR = re.compile(r'<progress value="1\.000"')


def code_cells(path: Path) -> list[str]:
    """Texts of the cells that are code."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_needs_the_public_face_only(path: Path) -> None:
    """So that a diff shows what was changed; it opens with any kernel of Python."""
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["metadata"]["kernelspec"]["name"] == "python3"
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert [name for source in code_cells(path) for name in deeper_imports(source)] == []
    links = re.findall(r"\]\(([^)#]+)\)", "".join("".join(cell["source"]) for cell in content["cells"]))
    assert [link for link in links if not (path.parent / link).exists()] == []


def executed(name: str, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Outputs of all cells, and what they print; a cell that raises fails the test."""
    [path] = [path for path in NOTEBOOKS if path.stem == name]
    outputs = [output for cell in run_cells(folder, *code_cells(path)) for output in cell]
    streams = [output for output in outputs if output["output_type"] == "stream"]
    assert [output["text"] for output in streams if output["name"] == "stderr"] == []  # no red wall
    return outputs, "".join(output["text"] for output in streams)


def html_of(outputs: list[dict[str, Any]]) -> str:
    """All HTML that is shown."""
    return "".join(output["data"].get("text/html", "") for output in outputs if "data" in output)


def test_the_first_fit(tmp_path: Path) -> None:
    """A bar that is full at the end, the history and the ledger as tables, two figures that show by themselves."""
    outputs, printed = executed("1_first_fit", tmp_path)
    assert "test accuracy 0.951 after " in printed
    shown = html_of(outputs)
    assert len(FULL_BAR.findall(shown)) == 1
    assert re.search(r"<caption>History\(\d iterations", shown)
    assert "<caption>JobLedger(71 chunks" in shown
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2


@pytest.mark.slow
def test_nodes_that_come_and_go(tmp_path: Path) -> None:
    """The policy of the notebook decides on the nodes, and the transitions are a table."""
    outputs, printed = executed("2_nodes_that_come_and_go", tmp_path)
    assert "Tide wants 4 nodes: high tide in epoch 5" in printed
    assert float(re.findall(r"test accuracy ([0-9.]+)", printed)[0]) > 0.95
    shown = html_of(outputs)
    assert "changes of the membership</caption>" in shown
    assert len(FULL_BAR.findall(shown)) == 1


@pytest.mark.slow
def test_an_own_algorithm(tmp_path: Path) -> None:
    """Trainer, module and augmentation of the notebook run on nodes; what cannot travel is named."""
    outputs, printed = executed("3_own_algorithm", tmp_path)
    assert "{'trainer__num_clusters': 20}" in printed
    assert "cannot be pickled: trainer.augment uses log (" in printed
    assert float(re.findall(r"test accuracy ([0-9.]+)", printed)[0]) > 0.9
    assert len(FULL_BAR.findall(html_of(outputs))) == 2
