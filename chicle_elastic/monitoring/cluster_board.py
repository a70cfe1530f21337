"""A cluster's job on TensorBoard, made of the lines of an agent's event file; the tags are those of `board_pages`, and

    job/members                   members of the round
    bytes/moved, bytes/hidden     chunks that changed nodes since the iteration before; of these, what was copied ahead

All agents see the same numbers, so one of them writes: the first member of the round. When it is gone, the next member
continues, in a file of its own in the same folder, which TensorBoard shows as one run. Nodes without a common folder
have a part each.

A thread takes the lines from a queue and writes them: the agent never waits for a disk, and the thread imports the
package before the node has joined. Lines wait for a disk that hangs or is full, up to a limit; what comes then is not
on TensorBoard. Pictures are drawn by a process of their own, for which the thread waits and the agent does not.
"""

import contextlib
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from queue import Full, Queue
from typing import Any

from chicle_elastic.closing import Closing
from chicle_elastic.errors import ChicleError
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.board_pages import Page, RunPages
from chicle_elastic.monitoring.pictures import draw_in_child
from chicle_elastic.monitoring.records import record_of, transition_of
from chicle_elastic.monitoring.tensorboard import TensorBoardWriter, require_tensorboard

BOARD_FOLDER = "tensorboard"  # folder below the log folder
MAX_LINES = 20_000
CLOSE_S = 60.0
"""How long the end of an agent waits for the disk, and for the import of tensorboard if the job was short."""
DRAWS_FROM_S = 10.0  # a shorter job has no picture at its end: it would wait for it a tenth of its time and more

logger = logging.getLogger(__name__)

Line = Mapping[str, Any]


class ClusterBoard(Closing):
    """Takes the lines of one agent; a context manager that writes the remaining lines and closes.

    Args:
        log_dir: Folder of the job's logs; None writes nothing.
        command: Arguments of the task; its options are shown as hyper-parameters.
    """

    def __init__(self, log_dir: Path | None, node: NodeId, *, command: Sequence[str] = ()) -> None:
        self._lines: Queue[Line | None] = Queue(MAX_LINES)
        self._num_dropped = 0
        self._thread: threading.Thread | None = None
        if log_dir is not None:
            pages = _Pages(log_dir / BOARD_FOLDER, node, options_of(command))
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
    """Turns lines into pages, and writes them while this node is the first member."""

    def __init__(self, folder: Path, node: NodeId, options: Mapping[str, bool | float | str]) -> None:
        self._folder, self._node, self._options = folder, node, options
        self._writer: TensorBoardWriter | None = None
        self._pages = RunPages()
        self._iteration = 0
        self._first_s: float | None = None
        self._last_s = 0.0
        self._num_members = 0
        self._texts: list[str] = []

    def take(self, line: Line) -> None:
        """Handle a line. Every agent keeps the state that it needs to become the writer."""
        if line["kind"] in ("round", "log", "iteration", "transition", "whole"):
            self._last_s = line["time"]
        if line["kind"] == "round":
            self._enter_round(line["members"])
        elif line["kind"] == "log":
            self._texts.append(line["text"])
        elif line["kind"] == "iteration":
            self._take_iteration(line)
        elif line["kind"] in ("transition", "whole"):
            self._put(self._pages.transition(transition_of(line), step=self._iteration, unix_s=line["time"]))

    def finish(self) -> None:
        """There are no more lines: write the texts after the last iteration, and what the end of a run has."""
        texts, self._texts = self._texts, []
        if self._writer is not None:
            self._put(self._pages.texts(self._iteration, texts, unix_s=self._last_s))
            self._writer.finish()

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
            self._writer = TensorBoardWriter(
                self._folder,
                started_unix_s=self._last_s,
                hyper_parameters=self._options,
                pages=self._pages,
                draw=draw_in_child,
                draws_from_s=DRAWS_FROM_S,
            )

    def _take_iteration(self, line: Line) -> None:
        self._iteration = line["iteration"]
        self._first_s = line["time"] if self._first_s is None else self._first_s
        texts, self._texts = self._texts, []
        record = record_of(line, began_s=self._first_s, events=texts)
        besides: dict[str, float] = {"job/members": self._num_members}
        besides |= {f"bytes/{name}": line[f"{name}_bytes"] for name in ("moved", "hidden") if f"{name}_bytes" in line}
        self._put(self._pages.iteration(record, unix_s=line["time"], besides=besides))

    def _put(self, page: Page) -> None:
        if self._writer is not None:
            self._writer.put(page)


def options_of(command: Sequence[str]) -> dict[str, bool | float | str]:
    """The options of a command, "--C 0.1" or "--C=0.1", as hyper-parameters; an option without a value is True."""
    found: dict[str, bool | float | str] = {}
    name = None
    for word in command:
        if word.startswith("--"):
            name, has_value, value = word.removeprefix("--").partition("=")
            found[name] = _value_of(value) if has_value else True
            name = None if has_value else name
        elif name is not None:
            found[name] = _value_of(word)
            name = None
    return found


def _value_of(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
