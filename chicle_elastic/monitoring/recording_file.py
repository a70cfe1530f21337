"""The recording of a job in a file: what `chicle replay` folds again.

Every agent with a log folder writes one of its own, `n1.recording.jsonl`, and so does a job in one process,
`job.recording.jsonl`; where that file exists already, `n1-2`, `n1-3` and so on. A thread encodes the lines and writes
the file (`line_writer`), so neither a disk that hangs or is full nor a large event holds the job up. A file of 64 MB is
rotated; the new one begins with a snapshot of the scheduler, so it can be replayed without the older ones. Where a disk
is so slow, or full for so long, that entries have to be left out, a snapshot follows them, too.
"""

import contextlib
import functools
import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chicle_elastic.closing import Closing
from chicle_elastic.errors import UsageError
from chicle_elastic.monitoring.line_writer import MAX_FILE_BYTES, MAX_WAITING_BYTES, LineWriter
from chicle_elastic.scheduling import recording
from chicle_elastic.scheduling.recording import Line
from chicle_elastic.scheduling.scheduler import Scheduler
from chicle_elastic.surroundings import absolute

SUFFIX = ".recording.jsonl"
LINE_BYTES = 300
ITEM_BYTES = 80  # about what an entry takes, and each effect and each chunk of its event: how much of them may wait

logger = logging.getLogger(__name__)


class RecordingFile(Closing):
    """Writes a recording (`recording.RecordingSink`). A context manager that closes it. Raises OSError when the file
    cannot be opened."""

    def __init__(
        self, path: Path, *, max_file_bytes: int = MAX_FILE_BYTES, max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        recording.prepare()
        self._path, self._max_file_bytes = path, max_file_bytes
        self._writer = LineWriter(
            path,
            told_of_drops=lambda _: b"",  # lines that are offered are not dropped
            max_file_bytes=None,
            max_waiting_bytes=max_waiting_bytes,
            thread_name="chicle-recording",
        )
        self._has_lines = self._writer.num_file_bytes > 0
        self._length = 0
        self._num_left_out = 0
        self._has_warned = False
        self._num_rotations = 0

    def begin(self, scheduler: Scheduler, *, length: int, state: Mapping[str, Any] | None) -> None:
        """Of `RecordingSink`."""
        self._length, self._num_left_out = length, 0
        why = "the scheduler begins" if state is None else "the node got a snapshot"
        if not self._offer_header(scheduler, state, why):
            self._leave_out()

    def add(self, scheduler: Scheduler, line: Line) -> None:
        """Of `RecordingSink`."""
        self._length += 1
        if self._num_left_out:
            self._leave_out()
        else:
            num_bytes = LINE_BYTES + ITEM_BYTES * (len(line.effects) + len(getattr(line.event, "chunks", ())))
            if not self._writer.offer(functools.partial(_text, line), num_bytes=num_bytes):
                self._leave_out()
        if self._num_left_out:
            if self._writer.is_idle:
                why = f"{self._num_left_out} entries before this were left out: the disk was too slow"
                if self._offer_header(scheduler, recording.state_of(scheduler), why):
                    self._num_left_out = 0
        elif self._writer.num_file_bytes > self._max_file_bytes and self._writer.num_rotations == self._num_rotations:
            state = recording.state_of(scheduler)
            if self._offer_header(scheduler, state, "the file was rotated", begins_file=True):
                self._num_rotations += 1

    def flush(self, timeout_s: float) -> bool:
        """Wait until all lines are with the system, but no longer than `timeout_s`; returns whether they are."""
        return self._writer.flush(timeout_s)

    def close(self) -> None:
        """Write what waits and close the file; gives up on a disk that hangs. May be called again. A file in which
        nothing was to be written is removed: no job had begun."""
        self._writer.close()
        if not self._has_lines:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _leave_out(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s does not keep up: entries of the recording are left out", self._path)
        self._num_left_out += 1

    def _offer_header(
        self, scheduler: Scheduler, state: Mapping[str, Any] | None, why: str, *, begins_file: bool = False
    ) -> bool:
        # A process before this one may have been killed in the middle of a line.
        start = b"\n" if self._has_lines and not begins_file else b""
        self._has_lines = True
        length = self._length

        def make() -> bytes:
            return start + recording.header_text(scheduler, length=length, state=state, why=why)

        num_bytes = LINE_BYTES + (0 if state is None else ITEM_BYTES * scheduler.ledger.num_chunks)
        return self._writer.offer(make, num_bytes=num_bytes, begins_file=begins_file)


def new_recording(folder: Path, name: str) -> RecordingFile:
    """A file that no other process writes. Raises UsageError when no file can be made there.

    Args:
        name: Of the node, for example; the file has it, or the next number behind it that is free.
    """
    folder = absolute(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = folder / (f"{name}{SUFFIX}" if number == 1 else f"{name}-{number}{SUFFIX}")
            with contextlib.suppress(FileExistsError):
                path.open("xb").close()  # an agent of the same name may run, and be the one that is let in
                return RecordingFile(path)
    except OSError as error:
        raise UsageError(f"no recording can be written to the log folder {folder}: {error}; name another") from error
    raise AssertionError("unreachable: numbers do not end")


def _text(line: Line) -> bytes:
    """In the thread of the writer, which must not end by a line."""
    try:
        return recording.line_text(line)
    except (TypeError, ValueError) as error:
        logger.warning("an entry of the recording cannot be written: %s", error)
        return b'"an entry that cannot be written"\n'
