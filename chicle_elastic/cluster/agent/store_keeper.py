"""Watches the rendezvous store for an agent: says when it is away and when it is back, and fills it after a restart.

A job that runs does not need the store; nodes that want to join do. So an agent looks at it once per second, and when
the connection was made anew (the store may have been restarted, and is empty then) it stores again what it alone
knows: its address, and whether the job is over. The leader stores its term again by itself (`membership`).
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from chicle_elastic.cluster.net.event_file import EventFile
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.rendezvous.errors import StoreUnreachableError
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection

LOOK_S = 1.0

logger = logging.getLogger(__name__)


class StoreKeeper:
    """See the top of the module. Everything is called in the loop, but `restore`.

    Args:
        restore: Functions that store again what this process knows, in a worker thread; each leaves alone what is there
            and raises StoreUnreachableError.
    """

    def __init__(
        self,
        loop: EventLoop,
        connection: StoreConnection,
        *,
        restore: Sequence[Callable[[], object]],
        event_file: EventFile,
    ) -> None:
        self._loop, self._connection, self._restore, self._events = loop, connection, tuple(restore), event_file
        self._restored = connection.generation
        self._unreachable_since: str | None = None
        self._is_closed = False

    def start(self) -> None:
        """Begin to watch."""
        self._loop.later(LOOK_S, self._look)

    def close(self) -> None:
        """Stop watching."""
        self._is_closed = True

    @property
    def is_away(self) -> bool:
        """Whether the store did not answer the last time."""
        return self._unreachable_since is not None

    def describe(self) -> str:
        """Where the store is and whether it answers, in words."""
        if self._unreachable_since is None:
            return f"the store at {self._connection.endpoint} answers"
        return (
            f"the store at {self._connection.endpoint} is unreachable since {self._unreachable_since}; training goes "
            "on; joins wait"
        )

    def _look(self) -> None:
        if not self._is_closed:
            self._loop.work(self._visit, self._visited)

    def _visit(self) -> int:
        """In a worker thread: the number of the connection to which everything was restored."""
        self._connection.call(lambda store: store.get_all([]))
        generation = self._connection.generation
        if generation != self._restored:
            for restore in self._restore:
                restore()
        return generation

    def _visited(self, future: "Future[int]") -> None:
        if self._is_closed:
            return
        self._loop.later(LOOK_S, self._look)
        try:
            self._restored = future.result()
        except StoreUnreachableError as error:
            if self._unreachable_since is None:
                self._unreachable_since = time.strftime("%H:%M:%S")
                logger.warning("%s (%s)", self.describe(), error)
                self._events.write("store", is_reachable=False, reason=str(error))
            return
        if self._unreachable_since is not None:
            logger.warning(
                "the store at %s is back; it was unreachable since %s",
                self._connection.endpoint,
                self._unreachable_since,
            )
            self._unreachable_since = None
            self._events.write("store", is_reachable=True, reason="")
