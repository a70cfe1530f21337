"""What a notebook shows of a history, in a real kernel."""

import base64
import struct
from typing import Any

import pytest

from tests.notebooks import run_cells

CELLS = {
    "make": "from tests.monitoring.test_swimlane import make_history\nhistory = make_history()",
    "plot": "history.plot(title='forty iterations')",
    "save": "history.plot().savefig('/dev/null', format='png')",
    "ax": "import matplotlib.pyplot as plt\n_, ax = plt.subplots()\nhistory.plot(ax=ax)",
    "plot after pyplot": "history.plot()",
    "wait": "from chicle_elastic.waits import tell\ntell('it takes long')",
    "bar": (
        "import sys\nfrom chicle_elastic.clock import MonotonicClock\n"
        "from chicle_elastic.monitoring.progress import NotebookBar\n"
        "from chicle_elastic.monitoring.progress import FitProgress\n"
        "bar = FitProgress(sys.stdout, MonotonicClock(), label='<b>', max_iterations=80, place=NotebookBar())\n"
        "for record in history: bar.update(record)\n"
        "bar.end('interrupted', is_interrupted=True)\n"
        "bar.finish()"
    ),
    "transitions": (
        "from tests.monitoring.test_records import make_transition\n"
        "history.note(make_transition())\nhistory.transitions"
    ),
}
PNG = b"\x89PNG\r\n\x1a\n"

Outputs = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """What each cell shows; one kernel for all, because it takes seconds to start."""
    outputs = run_cells(tmp_path_factory.mktemp("jupyter"), *CELLS.values())
    return dict(zip(CELLS, outputs, strict=True))


@pytest.mark.parametrize("cell", ["plot", "plot after pyplot"])
def test_a_plot_shows_itself_at_the_end_of_a_cell(shown: Outputs, cell: str) -> None:
    """Once, as an image of the whole figure, also in a notebook that knows nothing of pyplot."""
    [output] = shown[cell]
    png = base64.b64decode(output["data"]["image/png"])
    assert png.startswith(PNG)
    width, height = struct.unpack(">II", png[16:24])
    assert width == pytest.approx(1350, rel=0.05)  # pyplot's backend for notebooks cuts the margins off
    assert height > 500


def test_a_plot_into_axes_of_a_notebook_is_shown_once(shown: Outputs) -> None:
    """By pyplot, which owns the figure: the value of the cell is the axes and no second image."""
    images = [output["output_type"] for output in shown["ax"] if "image/png" in output["data"]]
    assert images == ["display_data"]


def test_a_plot_that_is_saved_is_not_shown(shown: Outputs) -> None:
    """The figure belongs to no window, so nothing else shows it."""
    assert shown["save"] == []


def test_a_line_about_a_wait_is_not_shown_as_an_error(shown: Outputs) -> None:
    """stderr is red in a notebook."""
    assert [(output["name"], output["text"]) for output in shown["wait"]] == [("stdout", "chicle: it takes long\n")]


def test_a_bar_stays_below_the_cell_as_it_was_at_the_end(shown: Outputs) -> None:
    """One output, updated in place; text of the user's is no markup."""
    [output] = shown["bar"]
    assert 'progress value="0.500"' in output["data"]["text/html"]
    assert "&lt;b&gt; <progress" in output["data"]["text/html"]
    assert output["data"]["text/plain"].startswith("<b>  50%  iteration 40")
    assert "interrupted" in output["data"]["text/plain"]


def test_changes_of_the_membership_are_a_table(shown: Outputs) -> None:
    """With the tuple beside it, for frontends without HTML."""
    [output] = shown["transitions"]
    assert "<caption>1 changes of the membership</caption>" in output["data"]["text/html"]
    assert output["data"]["text/plain"].startswith("(Transition(")
