"""Tells of a disk that does not answer. Who uses a file waits inside the system then, and cannot tell anything.

    with asking(folder):
        path.read_bytes()

A thread looks at times, and only while a file is being used. It writes one line for each use that lasts for `HANGS_S`.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator

HANGS_S = 10.0
LOOK_S = 1.0

logger = logging.getLogger(__name__)

_used: dict[object, tuple[float, object]] = {}
_change = threading.Lock()
_threads: list[threading.Thread] = []


@contextlib.contextmanager
def asking(path: object) -> Iterator[None]:
    """Within this, a file or folder is used; what hangs is told of."""
    use = object()
    with _change:
        _used[use] = (time.monotonic(), path)
        if not any(thread.is_alive() for thread in _threads):
            _threads[:] = [threading.Thread(target=_watch, name="chicle-disks", daemon=True)]
            with contextlib.suppress(RuntimeError):  # no thread can be had
                _threads[0].start()
    try:
        yield
    finally:
        with _change:
            _used.pop(use, None)


def _forget() -> None:
    """Forget what the process of before a fork used, whose lock may be held in this one for ever."""
    global _change
    _change = threading.Lock()
    _used.clear()
    _threads.clear()


os.register_at_fork(after_in_child=_forget)


def _watch() -> None:
    told = set[object]()
    while True:
        time.sleep(LOOK_S)
        with _change:
            if not _used:
                _threads.clear()
                return
            now_s = time.monotonic()
            late = [(use, path, now_s - since_s) for use, (since_s, path) in _used.items() if use not in told]
        for use, path, lasts_s in late:
            if lasts_s >= HANGS_S:
                told.add(use)
                said = os.uname().nodename, path, lasts_s
                logger.warning("%s: the disk of %s hangs or is slow: what was begun there goes on for %.0f s", *said)
