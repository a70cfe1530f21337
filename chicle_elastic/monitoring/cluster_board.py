"""A cluster's job on TensorBoard, made of the lines of an agent's event file.

    model/FIGURE                        the trainer's figures of the model: objective, duality gap, loss
    parameters/NAME                     what policies have set
    job/epochs, samples, iteration_s    as in a job in process
    job/num_tasks, members              tasks that took part in the iteration; members of the round
    chunks/NODE, seconds/NODE           chunks that the node's task held, and how long it computed; 0 after it has left
    transition/PHASE_ms                 each change of the membership: detect, ahead, pause, rendezvous, move, group,
                                        first, stall, and time to whole after a loss
    events                              the reasons of the decisions (the Text tab)

Steps are iterations. All agents see the same numbers, so one of them writes: the first member of the round. When it is
gone, the next member continues, in a file of its own in the same folder, which TensorBoard shows as one run. Nodes
without a common folder have a part each.

A thread takes the lines from a queue and writes them: the agent never waits for a disk, and the thread imports the
package before the node has joined. A disk that hangs fills the queue; what comes then is not on TensorBoard.
"""

import contextlib
import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from queue import Full, Queue
from typing import Any

from chicle_elastic.errors import ChicleError
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.records import Transition
from chicle_elastic.monitoring.tensorboard import StepTexts, TensorBoardWriter, require_tensorboard, scalars_of, tag_of

BOARD_FOLDER = "tensorboard"
"""Folder below the log folder."""
MAX_LINES = 20_000
CLOSE_S = 60.0
"""How long the end of an agent waits for the disk, and for the import of tensorboard if the job was short."""
TRANSITION_FIELDS = tuple(field.name for field in fields(Transition))

logger = logging.getLogger(__name__)

Line = Mapping[str, Any]


class ClusterBoard:
    """Takes the lines of one agent; a context manager that writes the remaining lines and closes.

    Args:
        log_dir: Folder of the job's logs; None writes nothing.
        node: The node of the agent.
    """

    def __init__(self, log_dir: Path | None, node: NodeId) -> None:
        self._lines: Queue[Line | None] = Queue(MAX_LINES)
        self._num_dropped = 0
        self._thread: threading.Thread | None = None
        if log_dir is not None:
            pages = _Pages(log_dir / BOARD_FOLDER, node)
            self._thread = threading.Thread(
                target=_write_all, args=(pages, self._lines), name="chicle-board", daemon=True
            )
            self._thread.start()

    def write(self, line: Line) -> None:
        """Queue a line, which the caller must not change afterwards; lines that are not for TensorBoard are ignored."""
        if self._thread is not None:
            try:
                self._lines.put_nowait(line)
            except Full:
                self._num_dropped += 1

    def close(self) -> None:
        """Write what is left; gives up on a disk that hangs. May be called again."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with contextlib.suppress(Full):
            self._lines.put(None, timeout=CLOSE_S)
            thread.join(CLOSE_S)
        if self._num_dropped or thread.is_alive():
            num_lost = self._num_dropped + self._lines.qsize()
            logger.warning("the disk was too slow for TensorBoard: %d lines of this agent are not there", num_lost)

    def __enter__(self) -> "ClusterBoard":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _write_all(pages: "_Pages", lines: "Queue[Line | None]") -> None:
    """Write until None comes. A failure to write must not end the job: the agent logs it once."""
    try:
        require_tensorboard()
        for line in iter(lines.get, None):
            pages.take(line)
        pages.finish()
    except (ChicleError, OSError) as error:
        logger.warning("this agent writes nothing for TensorBoard: %s", error)
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
        self._last_text_unix_s = 0.0
        self._written = StepTexts()

    def take(self, line: Line) -> None:
        """Handle a line. Every agent keeps the state that it needs to become the writer."""
        if line["kind"] == "round":
            self._enter_round(line["members"])
        elif line["kind"] == "log":
            self._texts.append(line["text"])
            self._last_text_unix_s = line["time"]
        elif line["kind"] == "iteration":
            self._take_iteration(line)
        elif line["kind"] in ("transition", "whole"):
            self._take_transition(line)

    def finish(self) -> None:
        """There are no more lines: write the texts after the last iteration."""
        texts, self._texts = self._texts, []
        if self._writer is not None and texts:
            self._writer.add(self._iteration, {}, unix_s=self._last_text_unix_s, texts=texts)

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
            self._writer = TensorBoardWriter(self._folder, texts=self._written)

    def _take_iteration(self, line: Line) -> None:
        before_s, self._ended_unix_s = self._ended_unix_s, line["time"]
        self._iteration = line["iteration"]
        chunks, seconds = line["chunks"], line["seconds"]
        self._nodes |= dict.fromkeys([*chunks, *seconds])
        texts, self._texts = self._texts, []
        scalars = {tag_of(name): figure for name, figure in line["figures"].items()}
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
        elif texts:  # the first member writes them; the next writer must not hide them
            self._written.add(self._iteration, texts)
