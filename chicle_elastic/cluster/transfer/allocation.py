"""Orders that need memory, in their order: worker threads take it from the system before they are begun.

64 MB take 20 ms, and ten times as long on a virtual machine that gets them from its host. If the loop stood still
meanwhile, so would the iterations of all nodes, which its agent takes part in.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.store.chunk_store import ChunkStore


class AllocationQueue:
    """Everything is called in the loop."""

    def __init__(self, loop: EventLoop, store: ChunkStore) -> None:
        self._loop, self._store = loop, store
        self._orders: deque[tuple[Callable[[], None], int]] = deque()
        self._is_taking = False

    def __len__(self) -> int:
        return len(self._orders)

    def put(self, begin: Callable[[], None], *, num_slots: int = 0) -> None:
        """Begin something in its turn: at once when nothing waits and no slot is needed, otherwise soon.

        Args:
            begin: Called in the loop. Where there was no memory to be had, it finds no slot.
        """
        if not self._orders and not num_slots:
            begin()
            return
        if not self._orders:
            self._loop.soon(self._look)  # orders that come together take memory together
        self._orders.append((begin, num_slots))

    def clear(self) -> None:
        """Nothing that waits is wanted any more."""
        self._orders.clear()

    def _look(self) -> None:
        if self._is_taking or not self._orders:
            return
        num_orders, num_slots = len(self._orders), sum(num_slots for _, num_slots in self._orders)

        def then(_: "Future[None]") -> None:
            self._is_taking = False
            self._begin(num_orders)

        if num_slots <= self._store.slot_stats().free:
            self._begin(num_orders)
        else:
            self._is_taking = True
            self._loop.work(lambda: self._store.prepare(num_slots * self._store.slot_bytes), then)

    def _begin(self, num_orders: int) -> None:
        for _ in range(min(num_orders, len(self._orders))):
            self._orders.popleft()[0]()
        if self._orders:  # they came meanwhile
            self._loop.soon(self._look)
