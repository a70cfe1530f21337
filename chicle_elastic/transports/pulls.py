"""Several fetches at the same time, each checked by the thread that made it.

While one thread looks at the bytes that it has (`zlib.crc32` runs without the interpreter's lock), the others keep the
wire busy: this is how the CRC of a chunk is verified beside the transfers and before its commit.
"""

from concurrent.futures import Future, ThreadPoolExecutor

from chicle_elastic.transports.base import FETCH_TIMEOUT_S, Check, Region
from chicle_elastic.transports.carrier import Route

NUM_THREADS = 2
"""Two keep a wire busy: one transfers while the other checks. More are for several slow peers."""


class Pulls:
    """Threads that fetch. A context manager that waits for what is under way.

    Args:
        num_threads: Fetches at the same time, >= 1.
        name: Of the node, for the names of the threads.
    """

    def __init__(self, *, num_threads: int = NUM_THREADS, name: str) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=f"pull-{name}")

    def pull(
        self,
        route: Route,
        region: Region,
        into: memoryview,
        *,
        check: Check | None = None,
        timeout_s: float = FETCH_TIMEOUT_S,
    ) -> "Future[None]":
        """Fetch and check in the background.

        Args:
            route: To the peer.
            region: What to fetch.
            into: Slot, as long as the region; nobody else may touch it until the future is done.
            check: Looks at the bytes when they are there, e.g. `lambda view: store.commit(chunk_id)`.
            timeout_s: For connection and transfer, counted from its beginning.

        Returns:
            Done when the bytes are there and checked; fails as `Transport.fetch` does, or as `check` does. Its
            callbacks run in the thread that fetched.
        """
        return self._threads.submit(
            route.transport.fetch, route.address, region, into, check=check, timeout_s=timeout_s
        )

    def close(self) -> None:
        """Give up what has not begun, and wait for the rest. May be called again."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> "Pulls":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
