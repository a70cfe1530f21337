"""Swimlanes of real agents: a bar per task and iteration, as long as the task computed; what is left is waiting."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from chicle_elastic.monitoring.records import IterationRecord, RecordTable
from chicle_elastic.monitoring.swimlane import FAINT, INK, LANE_COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def starts(table: RecordTable) -> list[float]:
    """When the tasks of each iteration began, in seconds since those of the first one did.

    A record has the time at which the task of rank 0, the first one in it, was ready for the sum, and what each task
    computed. All begin together, so they began by what the first one computed before that time.
    """
    found = [record.time_s - next(iter(record.seconds.values())) for record in table]
    return [start - found[0] for start in found]


def draw_lanes(tables: Mapping[str, RecordTable]) -> "Figure":
    """One panel per job, one lane per task, on one axis of time; numbers are chunks, where they have changed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.0 + 1.9 * len(tables)), constrained_layout=True)
    panels = figure.subplots(len(tables), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, table) in zip(panels, tables.items(), strict=True):
        tasks = sorted(table.tasks)
        for lane, task in enumerate(tasks):
            spans = [(start, record.seconds[task]) for start, record in zip(starts(table), table, strict=True)]
            colour = LANE_COLORS[lane % len(LANE_COLORS)]
            axes.broken_barh(spans, (lane - 0.4, 0.8), facecolors=colour, edgecolors="white", linewidth=0.6)
            before = None
            for (start, _), record in zip(spans, table, strict=True):
                if (count := record.num_chunks[task]) != before:
                    axes.text(start + 0.02, lane, str(count), color="white", fontsize=6.5, va="center", clip_on=True)
                before = count
        axes.set_yticks(range(len(tasks)), tasks)
        axes.invert_yaxis()
        axes.set_title(f"{name}: {len(table)} iterations", loc="left", fontsize=9, color=INK)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.grid(axis="x", color=FAINT, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(colors=INK, labelsize=8)
    panels[-1].set_xlabel("seconds; a gap in a lane is a task that waits", fontsize=9, color=INK)
    return figure


def tables_of(records: Mapping[str, list[dict[str, object]]]) -> dict[str, RecordTable]:
    """Tables of the records of `balance`, by job."""
    return {name: RecordTable(IterationRecord(**record) for record in of) for name, of in records.items()}  # type: ignore[arg-type]
