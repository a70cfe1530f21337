"""Heartbeats while a handler holds the event loop.

The loop itself sends heartbeats, between handlers. Where one runs long (a hundred thousand chunks are planned, a
snapshot is made), a thread sends them in its place: the agent is busy and not gone. But not for ever: a loop that is
stuck for `STUCK_S` will not come back, and the others have to go on without this agent.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.errors import PeerLostError
from chicle_elastic.transports.links import Link

STUCK_S = 20.0


class BusyBeats:
    """The thread. Made and closed in the loop. `links`: the links that are up; called in the thread."""

    def __init__(self, loop: EventLoop, links: Callable[[], Sequence[Link]], *, beat: bytes, every_s: float) -> None:
        self._loop, self._links, self._beat, self._every_s = loop, links, beat, every_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="chicle-agent-beats", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. May be called again."""
        self._is_over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._is_over.wait(self._every_s):
            busy_since_s = self._loop.busy_since_s
            if busy_since_s is None or not self._every_s <= self._loop.now() - busy_since_s <= STUCK_S:
                continue
            for link in self._links():
                with contextlib.suppress(PeerLostError):  # the loop will notice by itself
                    link.send_frame(self._beat)
