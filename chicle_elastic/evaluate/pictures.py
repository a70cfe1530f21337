"""Pictures of the figures, drawn from the rows of their tables."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from chicle_elastic.evaluate.bars import Row
from chicle_elastic.evaluate.lanes import draw_lanes, tables_of
from chicle_elastic.evaluate.projection import NODES
from chicle_elastic.monitoring import swimlane

COLOURS = {"uni": "#d1495b", "16": "#00798c", "24": "#30638e", "32": "#7d98a1", "64": "#b8c4bb"}

MOST_COLUMNS = 4


def draw(name: str, rows: Sequence[Row], folder: Path, source: str) -> Path | None:
    """Draw a figure as `NAME.png`, and of figure 1 the curves behind it as `NAME-curves.png`.

    Args:
        name: Of the figure.
        rows: Its table.
        folder: Where to; made if it is not there.
        source: Of the data, in words.

    Returns:
        The file; None where the figure has no picture, or matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
        from matplotlib.ticker import LogLocator, NullFormatter
    except ImportError:
        return None
    path = folder / f"{name}.png"
    if name == "balance":
        tables = {
            f"{row.details['algorithm']}, {side}": table
            for row in rows
            for side, table in tables_of(row.details["records"]).items()
        }
        folder.mkdir(parents=True, exist_ok=True)
        draw_lanes(tables).savefig(path, dpi=110)
        for title, table in tables.items():
            if title == "CoCoA, Rebalance":
                swimlane.draw(table, title=title).savefig(folder / "balance-chunks.png", dpi=110)
        return path
    panels = _panels(name, rows)
    if not panels:
        return None
    unit = "epochs of 16 nodes" if name == "fig9" else "units"
    columns = min(MOST_COLUMNS, len(panels))
    num_rows = -(-len(panels) // columns)
    size = 3.9 * columns, 3.1 * num_rows
    figure, axes = pyplot.subplots(num_rows, columns, figsize=size, squeeze=False, constrained_layout=True)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, found) in zip(axes.flat, panels.items(), strict=False):
        finite = {label: [point for point in points if math.isfinite(point[1])] for label, points in found.items()}
        lines = {label: points for label, points in finite.items() if points}
        if not lines:  # a logarithmic axis needs a point
            axis.set_axis_off()
            axis.set_title(f"{title}: reached by none", fontsize=9)
            continue
        for label, points in lines.items():
            style = {"color": COLOURS.get(label), "linewidth": 2.5 if label == "uni" else 1.2, "marker": "o"}
            axis.plot(*zip(*sorted(points), strict=True), label=label, **style)
        axis.set_title(title, fontsize=9)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        ticks = sorted({x for points in lines.values() for x, _ in points})
        axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axis.set_xlabel("tasks" if name.startswith("fig1") else f"{unit} between two changes", fontsize=8)
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
    for axis in axes.flat[: len(panels)] if name == "fig1_images" else axes[0][:1]:  # accuracies differ by data set
        axis.legend(fontsize=7, title="" if name.startswith("fig1") else "tasks", title_fontsize=7)
    for axis in axes[:, 0]:
        axis.set_ylabel("epochs" if name.startswith("fig1") else f"projected time, {unit}", fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    figure.suptitle(source, fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    if any("curves" in row.details for row in rows):
        _draw_curves(rows, folder / f"{name}-curves.png", source)
    return path


def _draw_curves(rows: Sequence[Row], path: Path, source: str) -> None:
    """The gap, or the accuracy, over epochs and over projected time on as many nodes as tasks: one line for each number
    of tasks, the mean of the seeds that are as far, with their range."""
    from matplotlib import pyplot

    of_rows = {
        row.what.split(":")[0].split(" to ")[0]: row.details["curves"] for row in rows if "curves" in row.details
    }
    figure, axes = pyplot.subplots(
        len(of_rows), 2, figsize=(9, 3 * len(of_rows)), squeeze=False, constrained_layout=True
    )
    for (title, curves), (left, right) in zip(of_rows.items(), axes, strict=True):
        for count, runs in curves.items():
            seeds = [[run[place] for run in runs if place < len(run)] for place in range(max(map(len, runs)))]
            means, lows, highs = (list(map(pick, seeds)) for pick in (fmean, min, max))
            for axis, unit in ((left, 1.0), (right, NODES / count)):
                at = [unit * (place + 1) for place in range(len(means))]
                axis.plot(at, means, label=str(count), linewidth=1.2)
                axis.fill_between(at, lows, highs, alpha=0.2)
        is_gap = all(values[-1] <= values[0] for values in (run for runs in curves.values() for run in runs))
        for axis, label in ((left, "epochs"), (right, "projected time, units of a sixteenth of the data")):
            axis.set_xlabel(label, fontsize=8)
            axis.set_xscale("log")
            if is_gap:
                axis.set_yscale("log")
        left.set_title(title, fontsize=9, loc="left")
        left.set_ylabel("relative duality gap" if is_gap else "test accuracy", fontsize=8)
    axes[0][0].legend(fontsize=7, title="tasks", title_fontsize=7)
    figure.suptitle(source, fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panels(name: str, rows: Sequence[Row]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Points of each line of each panel."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if name.startswith("fig1"):
            is_images = name == "fig1_images"
            title = row.what.split(" to ")[0] if is_images else row.what.split(",")[0]
            lines = panels.setdefault(title, {})
            label = f"accuracy {row.details['goal']:.2f}" if is_images else f"gap {row.tol:g}"
            lines[label] = [
                (float(count), epochs) for count, epochs in row.details["epochs"].items() if math.isfinite(epochs)
            ]
        elif name in ("fig4", "fig9") and row.details:
            title = row.what.split(" to ")[0] if name == "fig9" else row.what.split(",")[0]
            goal = f"accuracy {row.details['goal']:.2f}" if name == "fig9" else f"gap {row.tol:g}"
            lines = panels.setdefault(f"{title}, scale-{row.details['direction']}, {goal}", {})
            for label, time in (("uni", row.details["uni"]), *row.details["micro"].items()):
                lines.setdefault(str(label), []).append((row.details["every"], time))
    return panels
