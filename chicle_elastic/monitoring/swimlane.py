"""Chunks moving between tasks, as a picture: one lane per task, as high as the task has chunks.

Above, the lanes over the iterations; below them, what each task computed in an iteration, so that a slow node and its
relief show; then one figure of the model (the duality gap, where there is one) on a log axis. Numbered marks show what
happened between iterations, and the list at the bottom says what, in the words of the decision. `draw` makes a
matplotlib figure, `draw_into` the same panels in axes of the caller, `chicle_elastic.monitoring.swimlane_text` the same
in a terminal.
"""

import functools
import io
import itertools
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.errors import MissingExtraError, UsageError
from chicle_elastic.monitoring.records import CHUNKS_PREFIX, SECONDS_PREFIX, Column, IterationRecord, RecordTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart.
LANE_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
INK = "#333333"
FAINT = "#BBBBBB"

LANE_FILL = 0.86  # of the distance between two lanes
MAX_LISTED = 10
ESTIMATE = "_estimate"  # at the end of the name of a figure that is certified now and then
SMOOTHED = 60  # points of the lines of medians
FEW = 5  # iterations, of which the first one counts as much as the others
MAX_NAME_CHARS = 20  # of "duality_gap_estimate"
WRAP_CHARS = 116

WIDTH_IN = 9.0
LANE_IN = 0.45
FIGURE_IN = 1.7
SECONDS_IN = 1.1
LINE_IN = 0.127
BELOW_IN = 0.6  # axis label and a gap before the list
ABOVE_IN = 0.22
TITLE_IN = 0.28


def draw(history: RecordTable, *, title: str = "") -> "Figure":
    """Draw a history. Raises MissingExtraError when matplotlib is not installed, UsageError when the history is empty.

    Returns:
        A matplotlib figure that belongs to no window: `draw(history).savefig("chunks.png")`. A notebook shows it
        where it is the last expression of a cell.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError.for_package("matplotlib", extra="plot", purpose="drawing a history") from error

    require_records(history)
    contents = _panels(history)
    lines = list_events(history, WRAP_CHARS)
    name_chars = max((len(clip(task, MAX_NAME_CHARS)) for task in history.tasks), default=0)
    notes_in = LINE_IN * len(lines)
    above_in = ABOVE_IN + (TITLE_IN if title else 0.0)
    panels_in = [panel.height_in for panel in contents]
    height_in = above_in + sum(panels_in) + BELOW_IN + notes_in
    drawing = Figure(figsize=(WIDTH_IN, height_in), dpi=150)
    # IPython shows figures of pyplot alone, and pyplot would keep this one in memory: so the figure shows itself. By
    # an attribute and not by a subclass, because a class that is made in a function would not pickle.
    drawing._repr_png_ = functools.partial(_png_of, drawing)  # type: ignore[attr-defined]
    grid: dict[str, Any] = {
        "left": (0.72 + 0.065 * name_chars) / WIDTH_IN,
        "right": 0.985,
        "top": 1 - above_in / height_in,
        "bottom": (BELOW_IN + notes_in) / height_in,
    }
    gridspec = grid | {"hspace": 0.1, "height_ratios": panels_in}
    panels = list(drawing.subplots(len(contents), 1, sharex=True, squeeze=False, gridspec_kw=gridspec)[:, 0])
    _fill(panels, contents, history)
    _draw_marks(panels, history)
    drawing.align_ylabels()
    if title:
        panels[0].set_title(title, loc="left", fontsize=11, color=INK, pad=14 if lines else 6)
    if lines:
        drawing.text(0.02, 0.1 / height_in, "\n".join(lines), fontsize=7.5, color=INK, va="bottom", family="monospace")
    return drawing


def draw_into(history: RecordTable, ax: "Axes | Sequence[Axes]", *, title: str = "") -> None:
    """Draw a history into axes of a figure of the caller's; what happened is marked there, and listed nowhere. Raises
    UsageError when the history is empty or has no figure, or it has more or fewer panels than `ax` has axes.

    Args:
        ax: One axes gets the model's figure alone, in the next colour of that axes and with the title as its label, so
            that several fits can be compared. A sequence gets the panels of `draw`, one each, from top to bottom.
    """
    require_records(history)
    if not isinstance(ax, Sequence | np.ndarray):
        figure_name = pick_figure(history)
        if figure_name is None:
            raise UsageError("the history has no figure of the model to draw into one axes; leave ax out")
        _draw_figure(ax, history, figure_name, color=None, label=title)
        ax.set_xlabel("iteration", color=INK, fontsize=9)
        return
    panels, contents = list(np.ravel(np.asarray(ax, dtype=object))), _panels(history)
    if len(panels) != len(contents):
        names = ", ".join(panel.name for panel in contents)
        raise UsageError(
            f"ax has {len(panels)} axes and this history has {len(contents)} panels ({names}); make them by "
            f"plt.subplots({len(contents)}, sharex=True)"
        )
    _fill(panels, contents, history)
    _draw_marks(panels, history, has_numbers=False)
    if title:
        panels[0].set_title(title, loc="left", fontsize=11, color=INK)


@dataclass(frozen=True, slots=True)
class _Panel:
    name: str
    height_in: float
    draw: Callable[["Axes"], None]


def _panels(history: RecordTable) -> list[_Panel]:
    figure_name = pick_figure(history)
    lanes_in = max(1.2, LANE_IN * len(history.tasks))
    panels = [_Panel("chunks per task", lanes_in, lambda axes: _draw_lanes(axes, history))]
    if len(history.tasks) > 1 and any(record.seconds for record in history):
        panels.append(_Panel("ms per task", SECONDS_IN, lambda axes: _draw_seconds(axes, history)))
    if figure_name:
        panels.append(_Panel(_words(figure_name), FIGURE_IN, lambda axes: _draw_figure(axes, history, figure_name)))
    return panels


def _fill(panels: "Sequence[Axes]", contents: Sequence[_Panel], history: RecordTable) -> None:
    """Draw each panel, above one axis of iterations."""
    for axes, panel in zip(panels, contents, strict=True):
        panel.draw(axes)
    lowest = panels[-1]
    lowest.set_xlabel("iteration", color=INK, fontsize=9)
    for axes in panels:  # those of a caller may share no axis
        axes.set_xlim(*_edges(history)[[0, -1]])
    locator: Any = lowest.xaxis.get_major_locator()
    locator.set_params(integer=True, min_n_ticks=1)


def _png_of(drawing: "Figure") -> bytes:
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png")
    return buffer.getvalue()


def pick_figure(history: RecordTable) -> str | None:
    """The figure that says best how far a job is: a gap, else a loss or objective, else the first; None without any."""
    names = history.figure_names
    for part in ("gap", "loss", "objective"):
        for name in names:
            if part in name:
                return name
    return names[0] if names else None


def find_marked(history: RecordTable) -> list[IterationRecord]:
    """Records with something to say; the first `MAX_LISTED` of them are listed by number."""
    return [record for record in history if record.news]


def list_events(history: RecordTable, width: int) -> list[str]:
    """What happened, numbered like the marks: at most two lines of `width` characters each, then how many more."""
    marked = find_marked(history)
    lines = []
    for number, record in enumerate(marked[:MAX_LISTED], start=1):
        note = f"{number:>2}  iteration {record.iteration}: {'; '.join(record.news)}"
        lines += textwrap.wrap(note, width, subsequent_indent="    ", max_lines=2, placeholder=" …")
    if len(marked) > MAX_LISTED:
        lines.append(f"    {len(marked) - MAX_LISTED} more in history.column('events')")
    return lines


def count_chunks(history: RecordTable) -> dict[str, Column]:
    """Chunks of every task in every record: task to ndarray of shape (len(history),), int64."""
    return {task: history.column(CHUNKS_PREFIX + task) for task in history.tasks}


def clip(text: str, num_chars: int) -> str:
    """`text`, shortened in the middle where it is longer: names of nodes differ at their ends."""
    kept = (num_chars - 1) // 2
    return text if len(text) <= num_chars else f"{text[: num_chars - 1 - kept]}…{text[len(text) - kept :]}"


def require_records(history: RecordTable) -> None:
    """Refuse a history that has nothing to draw."""
    if not len(history):
        raise UsageError("the history has no iterations to draw; draw it after the first one")


def _draw_lanes(axes: "Axes", history: RecordTable) -> None:
    edges = _edges(history)
    placement = count_chunks(history)
    most = max((int(counts.max()) for counts in placement.values()), default=1) or 1
    floors = range(len(placement) - 1, -1, -1)  # the first task on top
    for floor, counts, color in zip(floors, placement.values(), itertools.cycle(LANE_COLORS), strict=False):
        axes.axhline(floor, color=FAINT, linewidth=0.6, zorder=1)
        axes.stairs(floor + LANE_FILL * counts / most, edges, baseline=floor, fill=True, color=color, zorder=2)
        _label_counts(axes, edges, counts, floor, most)
    axes.set_ylim(-0.08, max(1, len(placement)))
    names = [clip(task, MAX_NAME_CHARS) for task in placement]
    axes.set_yticks([floor + LANE_FILL / 3 for floor in floors], labels=names)
    axes.set_ylabel("chunks per task", color=INK, fontsize=9)
    _clean(axes)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _label_counts(axes: "Axes", edges: Column, counts: Column, floor: float, most: int) -> None:
    """Write the number of chunks wherever it changes and there is room: inside a high bar, on top of a low one."""
    starts = np.flatnonzero(np.diff(counts, prepend=-1))
    stops = np.append(starts[1:], len(counts))
    wide_enough = 0.02 * (edges[-1] - edges[0])
    for start, stop in zip(starts, stops, strict=True):
        count, width = int(counts[start]), edges[stop] - edges[start]
        if not count or width < wide_enough:
            continue
        is_inside = count > most / 2
        axes.annotate(
            str(count),
            (edges[start] + width / 2, floor + LANE_FILL * count / most),
            xytext=(0, -2 if is_inside else 1.5),
            textcoords="offset points",
            ha="center",
            va="top" if is_inside else "bottom",
            fontsize=7,
            color="white" if is_inside else INK,
            zorder=4,
        )


def _draw_seconds(axes: "Axes", history: RecordTable) -> None:
    """Draw what tasks computed, in the colours of the lanes; a smooth line of medians over the dots of iterations."""
    iterations = history.column("iteration")
    smooth = max(1, len(history) // SMOOTHED) | 1
    highest_ms = 0.0
    for task, color in zip(history.tasks, itertools.cycle(LANE_COLORS), strict=False):
        values_ms = 1e3 * history.column(SECONDS_PREFIX + task)
        medians_ms = _running_median(values_ms, smooth)
        axes.plot(iterations, values_ms, color=color, linestyle="", marker=".", markersize=1.5, alpha=0.35)
        axes.plot(iterations, medians_ms, color=color, linewidth=1.3)
        # The first iteration of a process also loads or compiles kernels: in scale, it would flatten all others.
        scaled_ms = medians_ms[1:] if len(history) >= FEW else medians_ms
        if np.isfinite(scaled_ms).any():
            highest_ms = max(highest_ms, float(np.nanmax(scaled_ms)))
    axes.set_ylim(0, 1.25 * highest_ms or 1.0)
    axes.set_ylabel("ms per task", color=INK, fontsize=9)
    axes.grid(axis="y", color=FAINT, linewidth=0.4, alpha=0.6)
    _clean(axes)


def _running_median(values: Column, width: int) -> Column:
    """Median of `width` neighbours each, NaN where the value is; an outlier of a busy moment is no trend."""
    padded = np.pad(values, width // 2, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    medians = np.full(len(values), np.nan)
    known = np.isfinite(values)
    medians[known] = np.nanmedian(windows[known], axis=1)
    return medians


def _draw_figure(axes: "Axes", history: RecordTable, name: str, *, color: str | None = INK, label: str = "") -> None:
    """A figure of the model where it is known; without a colour in the next one of the axes. Of one that is estimated
    in most iterations and certified in some, the estimate is a line and the truth are rings."""
    values = history.column(name)
    known = np.isfinite(values)
    is_log = bool(known.any() and (values[known] > 0).all())
    if is_log:
        axes.set_yscale("log")
        axes.minorticks_off()
    iterations = history.column("iteration")
    sparse = known.sum() <= 40
    [line] = axes.plot(
        iterations[known],
        values[known],
        color=color,
        label=label or None,
        linewidth=1.2,
        marker="o" if sparse else "",
        markersize=3,
    )
    certified_name = name.removesuffix(ESTIMATE)
    if certified_name != name and certified_name in history.figure_names:
        certified = history.column(certified_name)
        rings = np.isfinite(certified) & ((certified > 0) | (not is_log))
        axes.plot(
            iterations[rings],
            certified[rings],
            color=line.get_color(),
            linestyle="",
            marker="o",
            markersize=6,
            fillstyle="none",
            clip_on=False,
        )
        axes.set_ylabel(f"{_words(certified_name)}\n(ring: certified)", color=INK, fontsize=9)
    else:
        axes.set_ylabel(_words(name), color=INK, fontsize=9)
    axes.grid(axis="y", color=FAINT, linewidth=0.4, alpha=0.6)
    _clean(axes)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _draw_marks(panels: "Sequence[Axes]", history: RecordTable, *, has_numbers: bool = True) -> None:
    """A dotted line at each boundary where something happened, numbered where a list at the bottom says what."""
    for number, record in enumerate(find_marked(history), start=1):
        is_listed = number <= MAX_LISTED
        boundary = record.iteration - 0.5
        for axes in panels:
            axes.axvline(
                boundary,
                color=INK if is_listed else FAINT,
                linewidth=0.7,
                linestyle=(0, (1, 2)),
                zorder=3,
                clip_on=False,
            )
        if is_listed and has_numbers:
            panels[0].annotate(
                str(number),
                (boundary, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 1),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=7,
                color=INK,
            )


def _edges(history: RecordTable) -> Column:
    """Boundaries around the iterations: ndarray of shape (len(history) + 1,)."""
    iterations = history.column("iteration").astype(np.float64)
    return np.append(iterations - 0.5, iterations[-1] + 0.5)


def _clean(axes: "Axes") -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=8)
