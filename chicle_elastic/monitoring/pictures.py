"""Pictures of a run for TensorBoard: which ones, and when.

    pictures/swimlanes    the chunks of each task, what it computed, the gap (`swimlane`); up to 16 tasks
    pictures/chunk_map    the same of any number of tasks as a map (`chunk_map`); from two tasks on

An agent has a process of its own draw (`draw_in_child`), `python -m chicle_elastic.monitoring.pictures`: records go in
and pictures come out as JSON. matplotlib would hold Python's lock for a second, which the agent's loop needs.
"""

import base64
import dataclasses
import importlib.util
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from chicle_elastic.monitoring.chunk_map import draw_map
from chicle_elastic.monitoring.node_curves import MAX_CURVES
from chicle_elastic.monitoring.records import IterationRecord, RecordTable
from chicle_elastic.monitoring.swimlane import draw

FIRST_S = 30.0  # a run has its first picture after this long, and the next ones after this long at least
GROWTH = 0.1  # and not before the run has become so much longer: a day has some 80 pictures
SHARE = 0.02  # most of the time that may go into pictures
MAX_RECORDS = 400  # that are drawn: two and more per pixel would show nothing more
DPI = 88
CHILD_S = 30.0  # how long the process may draw: shorter than the end of an agent waits for its board
NICE = 5  # training goes first; with the lowest priority a node whose cores are all busy would not draw at all
TAG = "pictures"

Pictures: TypeAlias = dict[str, bytes]
Draw: TypeAlias = Callable[[Sequence[IterationRecord]], Pictures]


class PictureBook:
    """What the next picture would show, and when it is due."""

    def __init__(self) -> None:
        self._records: list[IterationRecord] = []
        self._began_s: float | None = None
        self._due_s = float("inf")

    def add(self, record: IterationRecord, unix_s: float) -> None:
        """Add an iteration, and when it ended."""
        if self._began_s is None:
            self._began_s = unix_s
            self._due_s = unix_s + FIRST_S
        self._records.append(record)
        if len(self._records) > MAX_RECORDS:
            self._records = _thinned(self._records)

    @property
    def records(self) -> Sequence[IterationRecord]:
        """What there is to draw."""
        return self._records

    def is_due(self, unix_s: float) -> bool:
        """Whether a picture has to be drawn now."""
        return unix_s >= self._due_s

    def drawn(self, unix_s: float, *, duration_s: float) -> None:
        """A picture was drawn, and that took so long."""
        began_s = unix_s if self._began_s is None else self._began_s
        self._due_s = unix_s + max(FIRST_S, GROWTH * (unix_s - began_s), duration_s / SHARE)

    @property
    def last_s(self) -> float:
        """Seconds that are drawn: of the run, as far as it is known."""
        return self._records[-1].time_s - self._records[0].time_s if self._records else 0.0


def can_draw() -> bool:
    """Whether matplotlib is installed; without it there are no pictures, and everything else is there."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_pictures(records: Sequence[IterationRecord]) -> Pictures:
    """Draw them here. Returns PNG files by tag."""
    table = RecordTable(records)
    drawings = {}
    if len(table.tasks) <= MAX_CURVES:
        drawings["swimlanes"] = draw(table)
    if len(table.tasks) > 1:
        drawings["chunk_map"] = draw_map(table)
    found: Pictures = {}
    for name, drawing in drawings.items():
        buffer = io.BytesIO()
        drawing.savefig(buffer, format="png", dpi=DPI)
        found[f"{TAG}/{name}"] = buffer.getvalue()
    return found


def draw_in_child(records: Sequence[IterationRecord]) -> Pictures:
    """Draw them in another process; there are none where it fails or hangs."""
    try:
        child = subprocess.run(
            [sys.executable, "-m", "chicle_elastic.monitoring.pictures"],
            input=json.dumps([dataclasses.asdict(record) for record in records]).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=CHILD_S,
            check=True,
        )
        return {tag: base64.b64decode(text) for tag, text in json.loads(child.stdout).items()}
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}


def _thinned(records: list[IterationRecord]) -> list[IterationRecord]:
    """Half as many, of which the last one stays; what happened and was certified in the others goes to their next."""
    found = []
    for first, second in zip(records[0::2], records[1::2], strict=False):
        figures: Mapping[str, float] = {**first.figures, **second.figures}
        found.append(dataclasses.replace(second, events=(*first.events, *second.events), figures=figures))
    return found if len(records) % 2 == 0 else [*found, records[-1]]


def main() -> None:
    """Draw what comes in."""
    os.nice(NICE)
    records = [IterationRecord(**fields) for fields in json.load(sys.stdin)]
    json.dump({tag: base64.b64encode(png).decode() for tag, png in draw_pictures(records).items()}, sys.stdout)


if __name__ == "__main__":
    main()
