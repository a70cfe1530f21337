"""The event file of a node: one JSON object a line, for tests, the demo, and the user who analyses a job.

Every line has `time` (seconds since 1970), `node` and `kind`; the other fields are named where they are written. A
thread writes the file (`line_writer`), so a disk that hangs or is full does not hold the agent up. Where lines have to
be dropped, a line `lines_dropped` says how many (`count`). Every line is whole, except the last one of a process that
was killed. A file of 64 MB is rotated: `n1.events.jsonl.1` is older than `n1.events.jsonl`.
"""

import functools
import json
import numbers
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from chicle_elastic.closing import Closing
from chicle_elastic.disk_watch import asking
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.line_writer import LineWriter, newest_first

SUFFIX = ".events.jsonl"
PLENTIFUL = frozenset({"ledger", "iteration", "log", "slow_handler"})
"""Kinds of which there are many: dropped first. All others are essential."""
DROPPED = "lines_dropped"


class EventFile(Closing):
    """Writes the events of one node; a context manager that closes it. Raises UsageError when there can be no folder.

    Args:
        folder: Folder of the file, made when it is missing; None writes nothing.
        tell: Called with each line, too, by the caller of `write`; also where there is no file.
    """

    def __init__(
        self, folder: Path | None, node: NodeId, *, tell: Callable[[Mapping[str, Any]], object] | None = None
    ) -> None:
        self._node = node
        self._on_line = tell
        self._writer: LineWriter | None = None
        if folder is not None:
            try:
                with asking(folder):
                    folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"--log-dir {folder}: {error.strerror}; name a folder that can be made") from error
            told_of_drops = functools.partial(_dropped, node)
            self._writer = LineWriter(folder / f"{node}{SUFFIX}", told_of_drops=told_of_drops)

    @property
    def is_kept(self) -> bool:
        """Whether there is a file to write to."""
        return self._writer is not None

    def write(self, kind: str, **fields: Any) -> None:
        """Write one line, soon; numbers that JSON does not have (nan, inf) become null. Never waits."""
        if self._writer is None and self._on_line is None:
            return
        line = {"time": time.time(), "node": self._node, "kind": kind, **fields}
        if self._writer is not None:
            self._writer.write(_text(line), is_essential=kind not in PLENTIFUL)
        if self._on_line is not None:
            self._on_line(line)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all lines are with the system, but no longer than `timeout_s`; returns whether they are."""
        return self._writer is None or self._writer.flush(timeout_s)

    def close(self) -> None:
        """Write what waits and close the file; gives up on a disk that hangs. May be called again."""
        if self._writer is not None:
            self._writer.close()


def read_events(folder: Path, node: str | None = None) -> Iterator[dict[str, Any]]:
    """The whole lines of one node's files, or of all files of a folder, node by node, in the order of each node."""
    nodes = {path.name.partition(SUFFIX)[0] for path in folder.glob(f"{node or '*'}{SUFFIX}*")}
    for name in sorted(nodes):
        yield from EventTail(folder, name).read()


class EventTail:
    """Reads one node's file as it grows, and goes on behind a rotation where it was before."""

    def __init__(self, folder: Path, node: str) -> None:
        self._path = folder / f"{node}{SUFFIX}"
        self._inode: int | None = None
        self._position = 0

    def read(self) -> list[dict[str, Any]]:
        """The whole lines that have come since the last time."""
        events: list[dict[str, Any]] = []
        # The newest first: what is rotated meanwhile is met again under its next name, and is not missed.
        news: dict[int, bytes] = {}
        for path in newest_first(self._path):
            try:
                with path.open("rb") as file:
                    inode = os.fstat(file.fileno()).st_ino
                    if inode in news:
                        continue
                    if inode == self._inode:
                        file.seek(self._position)
                    news[inode] = file.read()
            except FileNotFoundError:
                continue
            if inode == self._inode:
                break
        for inode, content in reversed(news.items()):
            whole, line_feed, _ = content.rpartition(b"\n")
            if inode != self._inode:
                self._inode, self._position = inode, 0
            self._position += len(whole + line_feed)
            events += [json.loads(line) for line in whole.splitlines()]
        return events


def _dropped(node: NodeId, count: int) -> bytes:
    return _text({"time": time.time(), "node": node, "kind": DROPPED, "count": count})


def _text(line: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(line) + b"\n"


def _plain(value: Any) -> Any:
    """What msgspec does not know by itself."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return dict(value) if isinstance(value, Mapping) else str(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)  # it writes nan and inf as null
