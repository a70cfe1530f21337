"""A cluster's job on TensorBoard, made of the lines of an agent's event file.

    model/FIGURE                        what the trainer says of the model: objective, duality gap, loss
    job/epochs, samples, iteration_s    as in a job in process
    job/num_tasks, members              tasks that took part in the iteration; members of the round
    chunks/NODE, seconds/NODE           chunks that the node's task held, and what it computed; 0 after it has left
    transition/PHASE_ms                 each change of the membership: detect, ahead, pause, rendezvous, move, group,
                                        first, stall, and time to whole after a loss
    events                              why, in the words of the decision (the Text tab)

Steps are iterations. All agents see the same numbers, so one of them writes: the first member of the round. When it is
gone, the next one goes on, in a file of its own in the same folder, which TensorBoard shows as one run. Nodes without
a common folder have a part each.

Lines are taken in a queue and written by a thread: nobody waits for a disk, and the package is imported before the
node has joined.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from chicle_elastic.errors import ChicleError
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.records import Transition
from chicle_elastic.monitoring.tensorboard import TensorBoardWriter, require_tensorboard, scalars_of

__all__ = ["BOARD_FOLDER", "ClusterBoard"]

BOARD_FOLDER = "tensorboard"
"""Folder below the log folder."""
TRANSITION_FIELDS = tuple(field.name for field in fields(Transition))

logger = logging.getLogger(__name__)

Line = Mapping[str, Any]


class ClusterBoard:
    """Takes the lines of one agent; a context manager that writes what is left and closes.

    Args:
        log_dir: Folder of the job's logs; None writes nothing.
        node: Whose lines.
    """

    def __init__(self, log_dir: Path | None, node: NodeId) -> None:
        self._lines: SimpleQueue[Line | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        if log_dir is not None:
            pages = _Pages(log_dir / BOARD_FOLDER, node)
            self._thread = threading.Thread(target=_write_all, args=(pages, self._lines), name="chicle-board")
            self._thread.start()

    def write(self, line: Line) -> None:
        """Take a line, which must not be changed any more; a line that is not for TensorBoard is passed over."""
        if self._thread is not None:
            self._lines.put(line)

    def close(self) -> None:
        """Write what is left. May be called again."""
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join()
            self._thread = None

    def __enter__(self) -> "ClusterBoard":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _write_all(pages: "_Pages", lines: "SimpleQueue[Line | None]") -> None:
    """Write until None comes. What cannot be written is no reason to end a job: it is said once."""
    try:
        require_tensorboard()
        for line in iter(lines.get, None):
            pages.take(line)
    except (ChicleError, OSError) as error:
        logger.warning("nothing is written for TensorBoard: %s", error)
        for _ in iter(lines.get, None):
            pass
    finally:
        pages.close()


class _Pages:
    """Turns lines into scalars, and writes them while this node is the first member."""

    def __init__(self, folder: Path, node: NodeId) -> None:
        self._folder, self._node = folder, node
        self._writer: TensorBoardWriter | None = None
        self._iteration = 0
        self._ended_unix_s: float | None = None
        self._num_members = 0
        self._nodes: dict[str, None] = {}  # an ordered set
        self._texts: list[str] = []

    def take(self, line: Line) -> None:
        """Take a line. What a follower needs to go on as the writer is kept by all."""
        if line["kind"] == "round":
            self._enter_round(line["members"])
        elif line["kind"] == "log":
            self._texts.append(line["text"])
        elif line["kind"] == "iteration":
            self._take_iteration(line)
        elif line["kind"] in ("transition", "whole"):
            self._take_transition(line)

    def close(self) -> None:
        """Write everything to disk."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _enter_round(self, members: Iterable[str]) -> None:
        names = list(members)
        self._num_members = len(names)
        if names[0] != self._node:
            self.close()
        elif self._writer is None:
            self._writer = TensorBoardWriter(self._folder)

    def _take_iteration(self, line: Line) -> None:
        before_s, self._ended_unix_s = self._ended_unix_s, line["time"]
        self._iteration = line["iteration"]
        chunks, seconds = line["chunks"], line["seconds"]
        self._nodes |= dict.fromkeys([*chunks, *seconds])
        texts, self._texts = self._texts, []
        scalars = {f"model/{name}": figure for name, figure in line["figures"].items()}
        scalars |= {
            "job/epochs": line["epochs"],
            "job/samples": sum(line["samples"].values()),
            "job/num_tasks": len(seconds),
            "job/members": self._num_members,
        }
        if before_s is not None:
            scalars["job/iteration_s"] = line["time"] - before_s
        scalars |= {f"chunks/{node}": chunks.get(node, 0) for node in self._nodes}
        scalars |= {f"seconds/{node}": seconds.get(node, 0.0) for node in self._nodes}
        self._add(line, scalars, texts)

    def _take_transition(self, line: Line) -> None:
        transition = Transition.of({name: line[name] for name in TRANSITION_FIELDS})
        self._add(line, scalars_of(transition), [transition.words()])

    def _add(self, line: Line, scalars: Mapping[str, float], texts: list[str]) -> None:
        if self._writer is not None:
            self._writer.add(self._iteration, scalars, unix_s=line["time"], texts=texts)
