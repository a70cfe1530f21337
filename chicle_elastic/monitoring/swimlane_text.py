"""Chunks moving between tasks, in a terminal: one row of block characters per task, one for the model's figure.

      iteration 1                                     40
         task-0 ███████▄▄▄▄▄▄▂▂▂▂▂▂▃▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▄▄▄▄ 8
         task-1        ▄▄▄▄▄▄▂▂▂▂▂▂▃▃▃▃▃▃▃▃▃             0
    duality_gap   ███▇▇▇▇▇▇▆▆▆▆▆▆▅▅▅▄▄▄▄▄▄▃▃▃▃▃▃▂▂▂▁▁▁▁▁ 1.9e-05
         events        1
     1  iteration 8: task-1 joined: 8 of 16 chunks move to it

The number behind a row is its latest value.
"""

import bisect
import itertools

import numpy as np

from chicle_elastic.errors import UsageError
from chicle_elastic.monitoring.records import Column, RecordTable
from chicle_elastic.monitoring.swimlane import (
    MAX_LISTED,
    MAX_NAME_CHARS,
    clip,
    count_chunks,
    find_marked,
    list_events,
    pick_figure,
    require_records,
)

BLOCKS = " ▁▂▃▄▅▆▇█"
MAX_WIDTH = 100
MIN_WIDTH = 40
VALUE_CHARS = 9


def render(history: RecordTable, *, width: int = MAX_WIDTH) -> str:
    """Draw a history with block characters. Raises UsageError when the history is empty, or the terminal is too narrow.
    Returns lines, none longer than `width`, joined by newlines.

    The last row is the model's figure that `pick_figure` picks, on a log scale where it is positive.

    Args:
        width: Columns of the terminal, >= 40; more than 100 are not used.
    """
    require_records(history)
    if width < MIN_WIDTH:
        raise UsageError(f"width={width} columns are too few for a picture; give at least {MIN_WIDTH}")
    figure_name = pick_figure(history)
    labels = [*history.tasks, figure_name or "", "iteration"]
    label_chars = min(MAX_NAME_CHARS, max(map(len, labels)))
    columns = _columns(len(history), min(width, MAX_WIDTH) - label_chars - VALUE_CHARS - 2)

    first, last = str(history[0].iteration), str(history[-1].iteration)
    room = len(columns) - len(first) - len(last)
    axis = f"{first}{' ' * room}{last}" if room > 0 and len(history) > 1 else first
    rows = [("iteration", axis, "")]
    counts = count_chunks(history)
    most = max((int(column.max()) for column in counts.values()), default=1)
    for task, column in counts.items():
        means = np.array([column[start:stop].mean() for start, stop in columns])
        rows.append((task, _blocks(means / max(1, most)), str(column[-1])))
    if figure_name:
        rows.append((figure_name, *_figure_row(history.column(figure_name), columns)))
    if find_marked(history):
        rows.append(("events", _marks(history, columns), ""))

    lines = [f"{clip(label, label_chars):>{label_chars}} {cells} {value}".rstrip() for label, cells, value in rows]
    lines += list_events(history, min(width, MAX_WIDTH))
    return "\n".join(lines)


def _columns(num_records: int, num_chars: int) -> list[tuple[int, int]]:
    """Records (start, stop) behind each character: several records share one, or one record fills several."""
    if num_records <= num_chars:
        repeat = num_chars // num_records
        return [(record, record + 1) for record in range(num_records) for _ in range(repeat)]
    edges = np.linspace(0, num_records, num_chars + 1).astype(int).tolist()
    return list(itertools.pairwise(edges))


def _blocks(shares: Column) -> str:
    """One character per share in 0 .. 1; only a share of 0 is blank."""
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[int(np.clip(np.ceil(share * top), 0, top))] for share in shares)


def _figure_row(values: Column, columns: list[tuple[int, int]]) -> tuple[str, str]:
    """Cells and last value; each cell shows the latest value known by then."""
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        return " " * len(columns), ""
    last_value = float(values[known[-1]])
    scaled = np.full_like(values, np.nan)
    scaled[known] = np.log10(values[known]) if (values[known] > 0).all() else values[known]
    low, high = np.nanmin(scaled), np.nanmax(scaled)
    cells = []
    for _, stop in columns:
        so_far = known[known < stop]
        if not len(so_far):
            cells.append(" ")
            continue
        share = (scaled[so_far[-1]] - low) / (high - low) if high > low else 1.0
        cells.append(BLOCKS[1 + round(share * (len(BLOCKS) - 2))])
    return "".join(cells), f"{last_value:.2g}"


def _marks(history: RecordTable, columns: list[tuple[int, int]]) -> str:
    """The last digit of each listed event below the first character of its iteration; a dot for the others."""
    cells = [" "] * len(columns)
    stops = [stop for _, stop in columns]
    marked = [index for index, record in enumerate(history) if record.news]
    for number, index in enumerate(marked, start=1):
        cell = bisect.bisect_right(stops, index)
        if cells[cell] == " ":  # of events that share a character, the first
            cells[cell] = str(number % 10) if number <= MAX_LISTED else "·"
    return "".join(cells)
