"""Examples of the gallery as notebooks, in a real kernel: what a reader gets who downloads one and runs all its cells.

`make docs` runs all examples as scripts. The classes of one of these go from the notebook to nodes of a cluster.
"""

import re
from pathlib import Path

import pytest

from tests.house.sources import ROOT
from tests.notebooks import run_cells

GALLERY = ROOT / "examples" / "gallery"


def cells_of(script: str) -> list[str]:
    """The cells of a script, which begin with `# %%` and lines of comment; its docstring is text."""
    code = re.sub(r'\A""".*?"""', "", script, flags=re.DOTALL)
    cells = (re.sub(r"\A(?: *#.*\n)+", "", cell.strip() + "\n").strip() for cell in code.split("# %%\n"))
    return [cell for cell in cells if cell]


@pytest.mark.parametrize(
    ("name", "says", "num_pictures"),
    [
        pytest.param("plot_6_own_algorithm", "largest difference from the exact solution: ", 1, marks=pytest.mark.slow),
        ("plot_8_own_policy", "Proportion moves ", 1),
    ],
)
def test_an_example_runs_as_a_notebook(tmp_path: Path, name: str, says: str, num_pictures: int) -> None:
    """Every cell ends well, prints what the page shows, and its figures show by themselves."""
    cells = cells_of((GALLERY / f"{name}.py").read_text(encoding="utf-8"))
    assert len(cells) > 1
    outputs = [output for cell in run_cells(tmp_path, *cells, CHICLE_WAITS="off") for output in cell]
    assert says in "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    assert sum("image/png" in output.get("data", {}) for output in outputs) == num_pictures
