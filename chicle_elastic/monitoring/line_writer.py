"""A file of lines, written by a thread of its own: its user never waits for the disk.

Lines wait in a queue of at most `MAX_WAITING_BYTES`. Where a disk is so slow that more would wait, the oldest lines
that are not essential are dropped, and essential ones only when nothing else is left; the writer leaves a line with
their number in their place. The file is rotated: `name` becomes `name.1`, that one `name.2`, and so on; the oldest
goes.

A disk that is full is tried again at times, and lines wait meanwhile. A write that the disk accepted in part is taken
back, so the file has whole lines.

The writer of a stream (`stderr_queue`) drops what the stream refuses.

A user whose lines make sense together only (`recording_file`) offers them instead: a line that has no room is refused,
and it is the user who says before which line the file is rotated. The thread may also make the text of such a line.
"""

import contextlib
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from chicle_elastic.disk_watch import asking
from chicle_elastic.surroundings import absolute

MAX_WAITING_BYTES = 16 << 20
BATCH_BYTES = 1 << 20
MAX_FILE_BYTES = 64 << 20
NUM_KEPT = 4  # older files beside the one that is written
RETRY_S = 5.0  # how often a disk that refused lines is tried again
CLOSE_S = 5.0  # how long the end of a process waits for a disk that hangs

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Line:
    text: bytes | Callable[[], bytes]
    num_bytes: int
    is_essential: bool = True
    begins_file: bool = False


class LineWriter:
    """Writes lines. Any thread may `write`; nothing is written after `close`. Raises OSError when the file cannot be
    opened.

    Args:
        max_file_bytes: The file is rotated before it grows beyond this; None leaves it to who offers lines.
        max_waiting_bytes: Most bytes of lines that wait.
        stream: Descriptor of an open file, a pipe or a terminal to write to; `path` is what it is called then.
    """

    def __init__(
        self,
        path: Path,
        *,
        told_of_drops: Callable[[int], bytes],
        max_file_bytes: int | None = MAX_FILE_BYTES,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        thread_name: str = "chicle-event-file",
        stream: int | None = None,
    ) -> None:
        self._path, self._told_of_drops = absolute(path), told_of_drops
        self._max_file_bytes, self._max_waiting_bytes = max_file_bytes, max_waiting_bytes
        self._thread_name, self._is_stream = thread_name, stream is not None
        with self._asking():
            self._file = path.open("ab", buffering=0) if stream is None else FileIO(stream, "wb", closefd=False)
            self.num_file_bytes = os.fstat(self._file.fileno()).st_size  # size of the file; to be read only
        self.num_rotations = 0  # how often it was rotated; to be read only
        self._change = threading.Condition()
        self._waiting: deque[_Line] = deque()
        self._num_waiting_bytes = 0
        self._num_spare_bytes = 0  # of lines that are not essential, among these
        self._num_dropped = 0
        self._is_writing = False
        self._is_closing = self._has_failed = False
        self._thread: threading.Thread | None = None

    def write(self, text: bytes, *, is_essential: bool) -> None:
        """Write a line, soon; never waits."""
        with self._change:
            if self._is_closing:
                return
            if self._num_waiting_bytes + len(text) > self._max_waiting_bytes:
                self._make_room(len(text), is_essential)
            if self._num_waiting_bytes + len(text) > self._max_waiting_bytes:
                self._num_dropped += 1
            else:
                self._append(_Line(text, len(text), is_essential))
            self._wake()

    def offer(self, make: Callable[[], bytes], *, num_bytes: int, begins_file: bool = False) -> bool:
        """Write a line, soon, unless too many wait; never waits. Returns whether it was accepted; an accepted line is
        not dropped. True also after `close`.

        Args:
            make: Called in the thread; returns the text, with its line feed, and raises nothing.
            num_bytes: About its size, while it waits.
            begins_file: Rotate the file before it.
        """
        with self._change:
            if self._is_closing:
                return True
            if self._waiting and self._num_waiting_bytes + num_bytes > self._max_waiting_bytes:
                return False
            self._append(_Line(make, num_bytes, begins_file=begins_file))
            self._wake()
            return True

    @property
    def is_idle(self) -> bool:
        """Whether all lines are with the system."""
        return not (self._waiting or self._is_writing or self._num_dropped)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all lines are with the system, or the disk refuses them, but no longer than `timeout_s`. Returns
        whether all lines are with the system."""
        with self._change:
            self._change.wait_for(lambda: self._has_failed or self.is_idle, timeout_s)
            return self.is_idle

    def close(self) -> None:
        """Write what waits and close the file; gives up on a disk that hangs or is full. May be called again."""
        hangs = not self.flush(CLOSE_S) and not self._has_failed
        with self._change:
            if self._is_closing:
                return
            self._is_closing = True
            num_left = len(self._waiting)
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(0 if hangs else CLOSE_S)
            if self._thread.is_alive():
                if self._is_stream:
                    return  # a line about it would hang as well
                logger.warning("%s does not take the last %d lines: the disk hangs", self._path, num_left)
                return  # the thread, a daemon, is inside the system
        self._file.close()

    def _asking(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._is_stream else asking(self._path)

    def _append(self, line: _Line) -> None:
        self._waiting.append(line)
        self._num_waiting_bytes += line.num_bytes
        self._num_spare_bytes += 0 if line.is_essential else line.num_bytes

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._thread_name, daemon=True)
            self._thread.start()
        self._change.notify_all()

    def _make_room(self, num_bytes: int, is_essential: bool) -> None:
        """Drop the oldest lines that are not essential; for an essential one then the oldest of all."""
        spare = max(num_bytes, self._max_waiting_bytes // 4)  # much at once: each time all lines are looked at
        if self._num_spare_bytes >= spare or (is_essential and self._num_spare_bytes):
            kept: deque[_Line] = deque()
            for line in self._waiting:
                if self._num_waiting_bytes + spare > self._max_waiting_bytes and not line.is_essential:
                    self._drop(line)
                else:
                    kept.append(line)
            self._waiting = kept
        while is_essential and self._waiting and self._num_waiting_bytes + num_bytes > self._max_waiting_bytes:
            self._drop(self._waiting.popleft())

    def _drop(self, line: _Line) -> None:
        self._forget(line)
        self._num_dropped += 1

    def _forget(self, line: _Line) -> None:
        self._num_waiting_bytes -= line.num_bytes
        self._num_spare_bytes -= 0 if line.is_essential else line.num_bytes

    # In the thread.

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            text = b"".join(line.text if isinstance(line.text, bytes) else line.text() for line in batch)
            while True:
                with self._asking():
                    if self._is_written(text, begins_file=batch[0].begins_file):
                        break
                with self._change:
                    if self._is_closing:
                        return
                    self._change.wait_for(lambda: self._is_closing, RETRY_S)

    def _next_batch(self) -> list[_Line] | None:
        with self._change:
            self._is_writing = False
            self._change.notify_all()
            self._change.wait_for(lambda: self._waiting or self._num_dropped or self._is_closing)
            if not (self._waiting or self._num_dropped):
                return None
            self._is_writing = True
            batch: list[_Line] = []
            num_bytes = 0
            if self._num_dropped:
                text = self._told_of_drops(self._num_dropped)
                batch.append(_Line(text, len(text)))
                self._num_dropped = 0
            while self._waiting and num_bytes < BATCH_BYTES and not (batch and self._waiting[0].begins_file):
                line = self._waiting.popleft()
                batch.append(line)
                num_bytes += line.num_bytes
                self._forget(line)
            return batch

    def _is_written(self, text: bytes, *, begins_file: bool) -> bool:
        """Write lines completely or not at all; returns whether they are written."""
        rest = memoryview(text)
        try:
            is_full = self._max_file_bytes is not None and self.num_file_bytes + len(text) > self._max_file_bytes
            if self.num_file_bytes and (begins_file or is_full):
                self._rotate()
            while rest:
                rest = rest[_write_some(self._file, rest) :]
        except OSError as error:  # a full disk must not end a node that trains
            if self._is_stream:
                return True  # nobody reads it any more, and others write to it, too
            if num_written := len(text) - len(rest):
                with contextlib.suppress(OSError):
                    self._file.truncate(os.fstat(self._file.fileno()).st_size - num_written)
            if not self._has_failed:
                logger.warning(
                    "cannot write to %s: %s; lines wait for room there, and what waits at the end of the process, or "
                    "beyond %d MiB, is lost",
                    self._path,
                    error,
                    self._max_waiting_bytes >> 20,
                )
            with self._change:
                self._has_failed = True
                self._change.notify_all()
            return False
        self.num_file_bytes += len(text)
        self._has_failed = False
        return True

    def _rotate(self) -> None:
        self._file.close()
        # Without a file, an earlier attempt has rotated and the disk had no room for the new file.
        for number in range(NUM_KEPT, 0, -1) if self._path.exists() else ():
            older = rotated(self._path, number - 1) if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                older.replace(rotated(self._path, number))
        self._file = self._path.open("ab", buffering=0)
        self.num_file_bytes = 0
        self.num_rotations += 1


def _write_some(file: FileIO, data: memoryview) -> int:
    """Write once; waits for a pipe or terminal that another program has made one that does not block."""
    while (num_bytes := file.write(data)) is None:
        select.select((), (file,), ())
    return num_bytes


def rotated(path: Path, number: int) -> Path:
    """The file that was current `number` rotations ago."""
    return path.with_name(f"{path.name}.{number}")


def newest_first(path: Path) -> list[Path]:
    """The paths that a file and its rotated predecessors may have, whether they exist or not."""
    return [path, *(rotated(path, number) for number in range(1, NUM_KEPT + 1))]
