"""Worker threads of an agent, in lanes: what is urgent never waits behind what is bulky.

One pool for everything would be a queue for everything: a claim of a term waits behind sixty portions of chunks, and
the job stands still for as long as these take. Each lane has threads of its own, started when they are needed first.
Within the bulk lane each peer has at most `BULK_PER_PEER` of the threads, so a peer that hangs holds no other one up.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from typing import Any, TypeVar

from chicle_elastic.errors import ChicleError
from chicle_elastic.ids import NodeId

T = TypeVar("T")


class Lane(Enum):
    """What a worker thread is needed for."""

    STORE = "store"
    """Questions to the rendezvous store: claims of a term, contacts. One connection answers one after the other."""
    MEET = "meet"
    """A rendezvous: it lasts until all members are there. The one before, which was abandoned, ends in a moment."""
    DIAL = "dial"  # connections to peers, each of which may take seconds to fail
    LOCAL = "local"  # work on the memory of this node: allocation, checksums, seals
    BULK = "bulk"  # bytes of chunks from peers
    DISK = "disk"  # files: a disk may hang for ever, so each work has a thread, which nobody waits for to the end


NUM_WORKERS: Mapping[Lane, int] = {Lane.STORE: 2, Lane.MEET: 2, Lane.DIAL: 8, Lane.LOCAL: 4, Lane.BULK: 8}
BULK_PER_PEER = 4

CLOSE_S = 5.0  # how long the end waits for a disk

logger = logging.getLogger(__name__)


class WorkerLanes:
    """See the top of the module. `submit` and `close` belong to one thread."""

    def __init__(self, name: str) -> None:
        self._pools = {
            lane: ThreadPoolExecutor(num_workers, thread_name_prefix=f"{name}-{lane.value}")
            for lane, num_workers in NUM_WORKERS.items()
        }
        self._lock = threading.Lock()
        self._waiting: dict[NodeId, deque[Callable[[], None]]] = {}
        self._num_running: dict[NodeId, int] = {}
        self._futures: set[Future[Any]] = set()
        self._is_closed = False
        self._at_disk: list[threading.Thread] = []

    def submit(self, do: Callable[[], T], *, lane: Lane = Lane.LOCAL, peer: NodeId | None = None) -> "Future[T]":
        """Run something in a worker thread.

        An exception that is no `ChicleError`, which no caller can expect, is written to the log with its traceback;
        the future has it in any case.

        Args:
            lane: Its lane, unless a peer is given.
            peer: The node whose bytes are fetched: the work goes to the bulk lane, in the order of this peer.
        """
        if peer is None and lane is not Lane.DISK:
            return self._pools[lane].submit(_logged, do, lane)
        future: Future[T] = Future()
        if peer is None:
            thread = threading.Thread(target=_carry_out, args=(do, future, lane), name="chicle-disk", daemon=True)
            self._at_disk = [*(other for other in self._at_disk if other.is_alive()), thread]
            thread.start()
            return future
        with self._lock:
            self._futures.add(future)
            self._waiting.setdefault(peer, deque()).append(lambda: self._run(do, future, peer))
        self._start_next(peer)
        return future

    def close(self) -> None:
        """Drop what waits, and wait for what runs, for a disk not for ever. May be called again."""
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            futures = list(self._futures)
        for future in futures:
            future.cancel()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in self._pools.values():
            pool.shutdown(wait=True)
        for thread in self._at_disk:
            thread.join(CLOSE_S)

    def _start_next(self, peer: NodeId) -> None:
        with self._lock:
            waiting, num_running = self._waiting.get(peer), self._num_running.get(peer, 0)
            if not waiting or self._is_closed or num_running >= BULK_PER_PEER:
                return
            run = waiting.popleft()
            if not waiting:
                del self._waiting[peer]
            self._num_running[peer] = num_running + 1
            self._pools[Lane.BULK].submit(run)

    def _run(self, do: Callable[[], T], future: "Future[T]", peer: NodeId) -> None:
        try:
            _carry_out(do, future, Lane.BULK)
        finally:
            with self._lock:
                self._futures.discard(future)
                self._num_running[peer] -= 1
                if not self._num_running[peer]:
                    del self._num_running[peer]
            self._start_next(peer)


def _carry_out(do: Callable[[], T], future: "Future[T]", lane: Lane) -> None:
    if future.set_running_or_notify_cancel():
        try:
            result = _logged(do, lane)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)


def _logged(do: Callable[[], T], lane: Lane) -> T:
    try:
        return do()
    except ChicleError:
        raise
    except BaseException:
        logger.exception("work in the lane %r of the agent failed, which is an error in Chicle", lane.value)
        raise
