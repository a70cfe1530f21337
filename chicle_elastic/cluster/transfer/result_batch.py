"""What a worker thread hands to the loop: several items at a time."""

from collections.abc import Callable
from typing import Generic, TypeVar

from chicle_elastic.cluster.net.event_loop import EventLoop

WAIT_S = 0.005  # with an item that comes so long after the first that waits, all of them go

_Item = TypeVar("_Item")


class ResultBatch(Generic[_Item]):
    """Collects items for the loop. Each call into the loop takes a turn of it, and Python's lock from the worker. Used
    by one worker thread, which calls `flush` when it is done."""

    def __init__(self, loop: EventLoop, take: Callable[[list[_Item]], object]) -> None:
        self._loop, self._take = loop, take
        self._items: list[_Item] = []
        self._first_s = 0.0

    def add(self, item: _Item) -> None:
        """Hand it over soon."""
        now = self._loop.now()
        if not self._items:
            self._first_s = now
        self._items.append(item)
        if now - self._first_s >= WAIT_S:
            self.flush()

    def flush(self) -> None:
        """Hand everything over now."""
        items, self._items = self._items, []
        if items:
            self._loop.soon(lambda: self._take(items))
