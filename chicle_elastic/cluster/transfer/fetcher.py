"""Parts of chunks on their way to a node, and how a worker thread fetches them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from chicle_elastic.chunks.arrival import ArrivingChunk
from chicle_elastic.cluster.net.fault_points import hit
from chicle_elastic.cluster.transfer.protocol import Order, Part
from chicle_elastic.cluster.transfer.result_batch import ResultBatch
from chicle_elastic.errors import ChicleError
from chicle_elastic.ids import NodeId
from chicle_elastic.transports.base import Pull, Region
from chicle_elastic.transports.selector import Endpoints, Route, TransportSelector
from chicle_elastic.values import StateVersion

# Portions are equal in bytes and not in chunks. Rows are worth a thread of their own; states without rows are not, and
# threads that do little but run Python wait for each other.
PORTION_BYTES = 16 << 20

_Item = TypeVar("_Item")


def portions(items: Sequence[_Item], size_bytes: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """The items in their order, cut so that a portion ends with the item that makes it `PORTION_BYTES` or more."""
    portion: list[_Item] = []
    so_far = 0
    for item in items:
        portion.append(item)
        so_far += size_bytes(item)
        if so_far >= PORTION_BYTES:
            yield portion
            portion, so_far = [], 0
    if portion:
        yield portion


@dataclass(slots=True, eq=False)
class Fetch:
    """A part of a chunk that a worker thread fetches."""

    order: Order
    into: memoryview
    region: Region  # where the source has what was ordered
    num_ahead: int = 0  # bytes that are there and right: its rows, once they have come
    error: str | None = None  # why it cannot come
    version: StateVersion | None = None

    @property
    def part(self) -> Part:
        """What comes."""
        part = self.order.part
        return Part.STATE if part is Part.ALL and self.num_ahead else part

    @property
    def size_bytes(self) -> int:
        """Bytes that come."""
        return self.region.size_bytes - self.num_ahead

    def pull(self, check: ArrivingChunk) -> Pull:
        """What a transport is asked for; `check` is called with the bytes that are there then, rows included."""
        ahead, region = self.num_ahead, self.region
        if not ahead:
            return Pull(region, self.into[: region.size_bytes], check)
        state = Region(region.arena, region.offset + ahead, self.size_bytes)
        return Pull(state, self.into[ahead : region.size_bytes], lambda num_bytes: check(ahead + num_bytes))

    def finish(self, check: ArrivingChunk) -> None:
        """All bytes are there: `num_ahead` or `version` are set, or what is wrong with them."""
        try:
            if self.part is Part.ROWS:
                self.num_ahead = check.finish_rows()
            else:
                self.version = check.finish()
        except ChicleError as error:
            self.error = str(error)


class Fetcher:
    """Fetches from one node; used by one worker thread, once.

    Args:
        crc32: Sums up what arrives.
        arrived: Takes every fetch, once it is here or cannot come.
    """

    def __init__(
        self,
        transports: TransportSelector,
        node: NodeId,
        endpoints: Endpoints,
        *,
        crc32: Callable[[Any, int], int],
        arrived: ResultBatch[Fetch],
    ) -> None:
        self._transports, self._node, self._endpoints = transports, node, endpoints
        self._crc32, self._arrived = crc32, arrived
        self._left: dict[Fetch, None] = {}

    def fetch(self, fetches: Iterable[Fetch]) -> None:
        """Fetch all of them, by the best route and then by its fallback."""
        self._left = dict.fromkeys(fetches)
        try:
            route = self._transports.route(self._endpoints)
            while self._left:
                self._fetch_by(route)
                route = route.fallback or route
        except Exception as error:
            for fetch in list(self._left):
                self._fail(fetch, error)
        self._arrived.flush()

    def _fetch_by(self, route: Route) -> None:
        """Fetch by one route; what its fallback may still bring is left."""
        pulls: dict[Pull, tuple[Fetch, ArrivingChunk]] = {}
        for fetch in self._left:
            chunk = fetch.order.chunk
            if fetch.part is Part.ROWS:
                hit("rows.before_fetch", chunk=chunk)
            else:
                hit("copy.before_fetch", chunk=chunk)
            check = ArrivingChunk(
                fetch.into,
                chunk_id=chunk,
                where=f"{self._node} by {route.reason}",
                crc32=self._crc32,
                has_rows=fetch.part is Part.STATE,
            )
            pulls[fetch.pull(check)] = fetch, check
        has_failed = False
        for pull, error in route.transport.fetch_each(route.address, list(pulls), timeout_s=route.timeout_s):
            fetch, check = pulls.pop(pull)
            if error is None:
                fetch.finish(check)
                self._hand_over(fetch)
            elif not route.has_failed(error):
                self._fail(fetch, error)
                self._arrived.flush()  # it is to be asked for again, whenever the next one comes
            elif not has_failed:
                has_failed = True
                self._transports.avoid(route, error)

    def _fail(self, fetch: Fetch, error: Exception) -> None:
        fetch.error = str(error)
        self._hand_over(fetch)

    def _hand_over(self, fetch: Fetch) -> None:
        del self._left[fetch]
        self._arrived.add(fetch)
