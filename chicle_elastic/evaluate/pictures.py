"""Pictures of the figures, drawn from the rows of their tables: each under the number that it has in the paper."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from chicle_elastic.evaluate.bars import Row
from chicle_elastic.evaluate.lanes import draw_lanes, tables_of
from chicle_elastic.monitoring import swimlane

COLOURS = {"uni": "#d1495b", "16": "#00798c", "24": "#30638e", "32": "#7d98a1", "64": "#b8c4bb"}
MOST_COLUMNS = 4
BALANCING = ("fig6", "fig11")
AXES = {"epochs": "epochs", "time": "projected time (1: all data once on 16 nodes)"}
CURVES = {
    "fig1": {"fig1-curves": "epochs"},
    "fig4": {"fig4-curves": "time", "fig9": "epochs"},
    "fig5": {"fig5": "time", "fig10": "epochs"},
    "fig7": {"fig7": "epochs"},
    "fig8": {"fig8": "epochs"},
}
"""Files with the curves of a figure, and their axis."""
TITLES = {
    "fig1": "Figure 1: more tasks, or larger batches, need more epochs",
    "fig1-curves": "Figure 1, the runs behind it, by number of tasks or size of batches",
    "fig4": "Figure 4: nodes come or go; time until the goal by uni-tasks and by fixed numbers of micro-tasks",
    "fig4-curves": "Figure 4, the runs behind it, over projected time",
    "fig9": "Figure 9: the runs of figure 4 over epochs",
    "fig5": "Figure 5: 8 of 16 nodes are 1.5x slower; uni-tasks with Rebalance, and fixed numbers of micro-tasks",
    "fig10": "Figure 10: the runs of figure 5 over epochs",
    "fig6": "Figure 6: four real agents run CoCoA on generated rows; n1 takes twice as long until iteration 20",
    "fig11": "Figure 11: four real agents run local SGD on generated images; n1 takes twice as long until iteration 20",
    "fig7": "Figure 7: rows in the order of their labels, 16 tasks",
    "fig8": "Figure 8: local SGD by Chicle, mini-batch SGD by torch",
}


def draw(name: str, rows: Sequence[Row], folder: Path, source: str) -> list[Path]:
    """Draw the pictures of a figure.

    Args:
        name: Of the figure.
        rows: Its table.
        folder: Where to; made if it is not there.
        source: Of the data, in words.

    Returns:
        The files; none where the figure has no picture, or matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    drawn: dict[str, Figure] = {}
    if name in BALANCING:
        tables = tables_of(rows[0].details["records"])
        drawn = {name: draw_lanes(tables), f"{name}-chunks": swimlane.draw(tables["Rebalance"], title="Rebalance")}
    if any("goal" in row.details for row in rows):
        drawn[name] = _draw_goals(name, rows)
    for file, axis in CURVES.get(name, {}).items():
        if panels := {_panel(row): row for row in reversed(rows) if "curves" in row.details}:
            drawn[file] = _draw_curves(file, dict(reversed(panels.items())), axis)
    folder.mkdir(parents=True, exist_ok=True)
    for file, figure in drawn.items():
        if file in TITLES:
            figure.suptitle(TITLES[file] + ("" if name in BALANCING else f" ({source})"), fontsize=10)
        figure.savefig(folder / f"{file}.png", dpi=110)
    return [folder / f"{file}.png" for file in drawn]


def _panel(row: Row) -> str:
    direction = {"in": ", 16 to 2 nodes", "out": ", 2 to 16 nodes"}.get(row.details.get("direction", ""), "")
    return f"{row.details['panel']}{direction}"


def _unit(row: Row) -> str:
    return "epochs of 16 nodes" if row.details.get("is_image") else "units"


def _wrapped(title: str) -> str:
    return "\n".join(part for line in title.split("\n") for part in textwrap.wrap(line, 50))


def _grid(num_panels: int) -> tuple[Any, list[Any]]:
    """A figure with so many axes."""
    from matplotlib.figure import Figure

    columns = min(MOST_COLUMNS, num_panels)
    num_rows = -(-num_panels // columns)
    figure = Figure(figsize=(4.2 * max(columns, 2), 0.6 + 3.3 * num_rows), constrained_layout=True)
    axes = list(figure.subplots(num_rows, columns, squeeze=False).flat)
    for axis in axes[num_panels:]:
        axis.set_axis_off()
    return figure, axes[:num_panels]


def _name_ticks(axis: Any) -> None:
    """Numbers as people write them on a logarithmic axis, without those between them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _draw_goals(name: str, rows: Sequence[Row]) -> Any:
    """When goals were reached: a line for each goal over tasks (figure 1), for each side over speeds (figure 4)."""
    panels: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if "goal" not in row.details:
            continue
        if name == "fig1":
            lines = panels.setdefault((_panel(row), row.details["by"]), {})
            lines[row.details["goal"]] = [(float(count), epochs) for count, epochs in row.details["epochs"].items()]
            continue
        title = f"{_panel(row)}\nto {row.details['goal']}"
        lines = panels.setdefault((title, f"{_unit(row)} between two changes of 2 nodes"), {})
        for side, time in row.details["reached"].items():
            lines.setdefault(side, []).append((row.details["every"], time))
    figure, axes = _grid(len(panels))
    for axis, ((title, label), found) in zip(axes, panels.items(), strict=True):
        finite = {side: [point for point in points if math.isfinite(point[1])] for side, points in found.items()}
        axis.set_title(_wrapped(title), fontsize=9)
        axis.set_xlabel(label, fontsize=8)
        axis.set_ylabel("epochs" if name == "fig1" else AXES["time"], fontsize=8)
        if not any(finite.values()):  # a logarithmic axis needs a point
            axis.text(0.5, 0.5, "never reached", ha="center")
            continue
        for side, points in finite.items():
            style = {"color": COLOURS.get(side), "linewidth": 3.5 if side == "uni" else 1.2, "marker": "o"}
            missing = "" if len(points) == len(found[side]) else " (not everywhere)" if points else " (never)"
            axis.plot(*(zip(*sorted(points), strict=True) if points else ((), ())), label=f"{side}{missing}", **style)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        ticks = sorted({x for points in found.values() for x, _ in points})
        axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
        _name_ticks(axis.yaxis)
        axis.legend(fontsize=7, title="" if name == "fig1" else "tasks", title_fontsize=7)
    return figure


def _draw_curves(name: str, panels: dict[str, Row], axis_name: str) -> Any:
    """The gap, or the accuracy: a line for each side, the mean of the seeds that are as far, with their range."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = _grid(len(panels))
    for axis, (title, row) in zip(axes, panels.items(), strict=True):
        is_image = row.details.get("is_image", False)
        for side, runs in row.details["curves"].items():
            seeds = [[run[place] for run in runs if place < len(run)] for place in range(max(map(len, runs)))]
            at = [fmean(point[0 if axis_name == "epochs" else 1] for point in points) for points in seeds]
            values = [[point[2] for point in points] for points in seeds]
            means, lows, highs = (list(map(pick, values)) for pick in (fmean, min, max))
            colour = COLOURS.get(side) if "uni" in row.details["curves"] else None
            style = {"color": colour, "linewidth": 3.5 if side == "uni" else 1.2}
            [line] = axis.plot(at, means, label=side, marker="o" if len(at) == 1 else "", **style)
            axis.fill_between(at, lows, highs, alpha=0.2, color=line.get_color())
        if not is_image:
            axis.set_xscale("log")
            axis.set_yscale("log")
            _name_ticks(axis.xaxis)
        elif axis_name == "epochs":
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        speed = f"\n2 every {row.details['every']:g} {_unit(row)}" if "every" in row.details else ""
        axis.set_title(_wrapped(f"{title}{speed}"), fontsize=9)
        axis.set_xlabel(AXES[axis_name], fontsize=8)
        axis.set_ylabel("test accuracy" if is_image else "relative duality gap", fontsize=8)
        is_named = name in ("fig7", "fig8")
        axis.legend(fontsize=7, title="" if is_named else row.details.get("by", "tasks"), title_fontsize=7)
    return figure
