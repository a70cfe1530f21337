"""Pictures of the figures, drawn from the rows of their tables."""

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bars import Row
from benchmarks.paper.lanes import draw_lanes, tables_of
from chicle_elastic.monitoring import swimlane

COLOURS = {"uni": "#d1495b", "16": "#00798c", "24": "#30638e", "32": "#7d98a1", "64": "#b8c4bb"}

MOST_COLUMNS = 4


def draw(name: str, rows: Sequence[Row], folder: Path) -> Path | None:
    """Draw a figure as `NAME.png`.

    Args:
        name: Of the figure.
        rows: Its table.
        folder: Where to; made if it is not there.

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
    for axis, (title, lines) in zip(axes.flat, panels.items(), strict=False):
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
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


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
