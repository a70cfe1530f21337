"""A map of the chunks for any number of nodes: a row per node, a column per iteration.

Left: how many chunks each node held; right: how long it computed, relative to the median of its iteration. A node that
was slow is a dark row, its name is red and written below; a node that was not there is grey. `swimlane` shows the same
of a few nodes with more detail.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.errors import MissingExtraError
from chicle_elastic.monitoring.records import CHUNKS_PREFIX, SECONDS_PREFIX, RecordTable
from chicle_elastic.monitoring.swimlane import INK, clip, require_records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH_IN = 6.6
ROW_IN = 0.14
LEAST_IN = 1.2
BESIDES_IN = 1.05
ABSENT = "#DDDDDD"
SLOW = "#B2182B"
IS_SLOW = 1.3  # times the median of an iteration; a node that is so slow in half of its iterations has a red name
MOST_SHOWN = 2.0
MAX_NAME_CHARS = 14
MOST_NAMED = 4


def draw_map(history: RecordTable, *, title: str = "") -> "Figure":
    """Draw a history. Returns a matplotlib figure that belongs to no window. Raises MissingExtraError when matplotlib
    is not installed, UsageError when the history is empty."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError.for_package("matplotlib", extra="plot", purpose="drawing a history") from error

    require_records(history)
    tasks = history.tasks
    chunks = np.array([history.column(CHUNKS_PREFIX + task) for task in tasks], dtype=np.float64)
    seconds = np.array([history.column(SECONDS_PREFIX + task) for task in tasks], dtype=np.float64)
    chunks, seconds = (values.reshape(len(tasks), len(history)) for values in (chunks, seconds))
    chunks[(chunks == 0) & ~np.isfinite(seconds)] = np.nan
    medians = np.array([np.median(known) if (known := one[np.isfinite(one)]).size else np.nan for one in seconds.T])
    relative = seconds / np.where(medians > 0, medians, np.nan)
    slow = {task for task, row in zip(tasks, relative, strict=True) if _is_slow(row)}

    rows_in = max(LEAST_IN, ROW_IN * len(tasks))
    height_in = rows_in + BESIDES_IN
    drawing = Figure(figsize=(WIDTH_IN, height_in), dpi=100)
    grid: dict[str, Any] = {
        "left": 0.14,
        "right": 0.95,
        "top": 1 - 0.32 / height_in,
        "bottom": (BESIDES_IN - 0.32) / height_in,
        "wspace": 0.12,
    }
    left, right = drawing.subplots(1, 2, sharey=True, gridspec_kw=grid)
    iterations = history.column("iteration").astype(np.float64)
    edges = np.append(iterations - 0.5, iterations[-1] + 0.5)
    floors = np.arange(len(tasks) + 1) - 0.5
    for axes, values, name, scale in (
        (left, chunks, "chunks of each node", {"cmap": "Blues", "vmin": 0}),
        (right, relative, "seconds / median of all nodes", {"cmap": "Reds", "vmin": 1.0, "vmax": MOST_SHOWN}),
    ):
        axes.set_facecolor(ABSENT)
        mesh = axes.pcolormesh(edges, floors, np.ma.masked_invalid(values), rasterized=True, **scale)
        axes.set_title(name, fontsize=10, color=INK)
        axes.set_xlabel("iteration", fontsize=9, color=INK)
        axes.tick_params(colors=INK, labelsize=8)
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        bar = drawing.colorbar(mesh, ax=axes, pad=0.015, fraction=0.04)
        bar.ax.tick_params(labelsize=7, colors=INK)
    left.invert_yaxis()
    left.set_yticks(range(len(tasks)), labels=[clip(task, MAX_NAME_CHARS) for task in tasks])
    right.tick_params(axis="y", length=0)
    for label, task in zip(left.get_yticklabels(), tasks, strict=True):
        if task in slow:
            label.set_color(SLOW)
            label.set_fontweight("bold")
    if slow:
        named = [task for task in tasks if task in slow]
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        text = f"slow: {', '.join(named[:MOST_NAMED])}{more}"
        drawing.text(0.95, 0.06 / height_in, text, fontsize=9, color=SLOW, ha="right", fontweight="bold")
    if title:
        drawing.suptitle(title, fontsize=10, color=INK, x=0.01, ha="left", y=0.995)
    return drawing


def _is_slow(row: Any) -> bool:
    known = row[np.isfinite(row)]
    return bool(known.size) and float(np.median(known)) >= IS_SLOW
