"""Figures that are the last expression of a block of an example: `history_.plot()` belongs to no window of pyplot.

A notebook shows such a figure by itself, and sphinx-gallery looks at windows alone.
"""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst


def scrape(block: Any, variables: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Save the figure of a block, if it ends with one, and return the markup that shows it."""
    figure = variables["example_globals"].get("___")  # where sphinx-gallery keeps the value of the last expression
    if not isinstance(figure, Figure) or getattr(figure, "is_shown", False):
        return ""
    path = next(variables["image_path_iterator"])
    figure.savefig(path)
    figure.is_shown = True  # type: ignore[attr-defined]  # the value stays until another block has one
    return str(figure_rst([path], config["src_dir"]))
