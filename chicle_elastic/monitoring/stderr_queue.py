"""Keeps a process going whose stderr nobody reads: a terminal after Ctrl-S, or a full pipe whose reader is stopped."""

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chicle_elastic.monitoring.line_writer import LineWriter

MAX_BYTES = 1 << 20


class _Queue(io.FileIO):
    """A descriptor whose text a writer gets."""

    def __init__(self, fd: int, writer: LineWriter) -> None:
        super().__init__(fd, "wb", closefd=False)
        self._writer = writer

    def write(self, text: Any) -> int:
        """Queue it; never waits."""
        self._writer.write(bytes(text), is_essential=True)
        return len(text)


@contextlib.contextmanager
def stderr_queue() -> Iterator[None]:
    """Within this, a thread writes what Python prints on stderr: status lines, logging, warnings and tracebacks. What
    is beyond `MAX_BYTES` is dropped, the oldest first, and a line says later how much. The end waits for the reader,
    but not for ever."""
    before = sys.stderr
    try:
        fd = before.fileno()
        before.flush()
    except (AttributeError, OSError, ValueError):  # None, closed, or in memory
        yield
        return
    writer = LineWriter(
        Path("/dev/stderr"),
        told_of_drops=_dropped,
        max_file_bytes=None,
        max_waiting_bytes=MAX_BYTES,
        thread_name="chicle-stderr",
        stream=fd,
    )
    queue = io.TextIOWrapper(_Queue(fd, writer), before.encoding, before.errors, line_buffering=True)
    sys.stderr = queue
    try:
        yield
    finally:
        queue.flush()
        sys.stderr = before
        writer.close()


def _dropped(count: int) -> bytes:
    return b"chicle: %d lines were dropped here: nobody read stderr\n" % count
