"""Pictures of the figures, drawn from the rows of their tables."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.bars import Row

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
    panels = _panels(name, rows)
    if not panels:
        return None
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
        axis.set_xlabel("tasks" if name == "fig1" else "units between two changes", fontsize=8)
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
    axes[0][0].legend(fontsize=7, title="" if name == "fig1" else "tasks", title_fontsize=7)
    for axis in axes[:, 0]:
        axis.set_ylabel("epochs" if name == "fig1" else "projected units", fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _panels(name: str, rows: Sequence[Row]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Points of each line of each panel."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if name == "fig1":
            lines = panels.setdefault(row.what.split(",")[0], {})
            lines[f"gap {row.tol:g}"] = [(float(count), epochs) for count, epochs in row.details["epochs"].items()]
        elif name == "fig4" and row.details:
            lines = panels.setdefault(
                f"{row.what.split(',')[0]}, scale-{row.details['direction']}, gap {row.tol:g}", {}
            )
            for label, time in (("uni", row.details["uni"]), *row.details["micro"].items()):
                lines.setdefault(str(label), []).append((row.details["every"], time))
    return panels
