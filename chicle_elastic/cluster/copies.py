"""Copies on their way to a node, and how a worker thread fetches them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from chicle_elastic.chunks.arrival import ArrivingChunk
from chicle_elastic.cluster.handover import Handover
from chicle_elastic.cluster.steps import reach
from chicle_elastic.errors import ChicleError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import effects
from chicle_elastic.transports.base import Pull, Region
from chicle_elastic.transports.carrier import Carrier, Offer, Route
from chicle_elastic.values import StateVersion


@dataclass(slots=True, eq=False)
class Copy:
    """A chunk that is to come from another node.

    Attributes:
        order: To copy it.
        into: Its slot.
        num_ahead: Bytes that are there and right: its rows, if they came ahead.
        is_fetching: A worker thread has it.
    """

    order: effects.CopyChunk
    into: memoryview
    num_ahead: int = 0
    is_fetching: bool = False


Arrival: TypeAlias = tuple[Copy, str | None, StateVersion | None]
"""A copy that is here, with its version, or is not, with the reason."""


class Fetcher:
    """Fetches copies from one node; used by one worker thread.

    Args:
        carrier: The transports.
        node: The source.
        offer: How to fetch from it.
        crc32: Sums up what arrives.
        arrived: Takes every copy, once it is here or cannot come.
    """

    def __init__(
        self,
        carrier: Carrier,
        node: NodeId,
        offer: Offer,
        *,
        crc32: Callable[[Any, int], int],
        arrived: Handover[Arrival],
    ) -> None:
        self._carrier, self._node, self._offer, self._crc32, self._arrived = carrier, node, offer, crc32, arrived

    def fetch(self, pairs: Sequence[tuple[Copy, Region]]) -> None:
        """Fetch all of them, by the best route and then by its fallback."""
        try:
            left, route = list(pairs), self._carrier.route(self._offer)
            while left:
                left = self._fetch_by(route, left)
                route = route.fallback or route
        except Exception as error:
            for copy, _ in pairs:
                self._arrived.add((copy, str(error), None))
        self._arrived.flush()

    def _fetch_by(self, route: Route, pairs: list[tuple[Copy, Region]]) -> list[tuple[Copy, Region]]:
        """Fetch by one route; returns what its fallback may still bring."""
        pulls: dict[Pull, tuple[Copy, Region, ArrivingChunk]] = {}
        left: list[tuple[Copy, Region]] = []
        for copy, region in pairs:
            reach("copy.before_fetch", chunk=copy.order.chunk)
            check = ArrivingChunk(
                copy.into,
                chunk_id=copy.order.chunk,
                where=f"{self._node} by {route.reason}",
                crc32=self._crc32,
                has_rows=copy.num_ahead > 0,
            )
            pulls[_pull(copy, region, check)] = (copy, region, check)
        for pull, error in route.transport.fetch_each(route.address, list(pulls), timeout_s=route.timeout_s):
            copy, region, check = pulls.pop(pull)
            if error is not None and route.has_failed(error):
                if not left:
                    self._carrier.avoid(route, error)
                left.append((copy, region))
            elif error is not None:
                self._arrived.add((copy, str(error), None))
                self._arrived.flush()  # it is to be asked for again, whenever the next one comes
            else:
                self._arrived.add(_verdict(copy, check))
        return left


def _verdict(copy: Copy, check: ArrivingChunk) -> Arrival:
    try:
        return copy, None, check.finish()
    except ChicleError as error:
        return copy, str(error), None


def _pull(copy: Copy, region: Region, check: ArrivingChunk) -> Pull:
    """What is to be fetched of a chunk: all of it, or what is behind its rows."""
    ahead = copy.num_ahead
    if not ahead:
        return Pull(region, copy.into, check)
    state = Region(region.arena, region.offset + ahead, region.size_bytes - ahead)
    return Pull(state, copy.into[ahead:], lambda num_bytes: check(ahead + num_bytes))
