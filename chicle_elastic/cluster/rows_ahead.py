"""Rows that travel ahead of their chunks, while tasks compute: the agent's part of `scheduling.precopies`.

    PrecopyChunk   at the source: tell the target where the immutable part lies; nothing is sealed, nobody waits
                   at the target: reserve a slot -> fetch the immutable part, verified on arrival     -> PrecopiesEnded
    CopyChunk      takes the slot over (`take`): only the state is fetched then; while rows still arrive it waits
    FreeChunk      gives it back (`give_back`), as soon as nothing is written there any more

The rows of a chunk never change, but its slot at the source may be given to another chunk while it is read: checksums
find that, and the order has failed. An answer is an event for all agents, so there is one for all orders of a node,
when the last of them has ended.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.arrival import ArrivingChunk
from chicle_elastic.cluster.event_loop import EventLoop
from chicle_elastic.cluster.mesh import Peer
from chicle_elastic.cluster.portions import portions
from chicle_elastic.cluster.steps import reach
from chicle_elastic.errors import ChicleError, ProtocolError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.events import Event
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.transports.base import Pull, Region
from chicle_elastic.transports.carrier import Carrier, Offer
from chicle_elastic.transports.checksum import fastest_crc32


class Progress(Enum):
    """How far the rows of a chunk have come."""

    ORDERED = "ordered"
    FETCHING = "fetching"
    WHOLE = "whole"


@dataclass(slots=True, eq=False)
class _Rows:
    """The rows of one chunk at their target.

    Attributes:
        order: What was ordered.
        into: The slot.
        progress: How far they have come.
        num_bytes: Of the immutable part, once it is whole.
        then: What waits until nothing is written into the slot any more; the slot is its affair.
    """

    order: effects.PrecopyChunk
    into: memoryview
    progress: Progress = Progress.ORDERED
    num_bytes: int = 0
    then: Callable[[], None] | None = None


class RowsAhead:
    """See the top of the module. Everything is called in the loop.

    Args:
        loop: For worker threads.
        node: This node.
        store: Its chunks.
        carrier: Its transports.
        reserve: Reserves a slot for a chunk, and returns it.
        say: Takes answers.
        tell_peer: Sends (node, kind, fields) to an agent; returns whether there is a link to it.
        are_here: Takes chunks whose rows have come.
    """

    def __init__(
        self,
        loop: EventLoop,
        *,
        node: NodeId,
        store: ChunkStore,
        carrier: Carrier,
        reserve: Callable[[ChunkId], memoryview],
        say: Callable[[Event], None],
        tell_peer: Callable[[NodeId, str, dict[str, Any]], bool],
        are_here: Callable[[Iterable[ChunkId]], None],
    ) -> None:
        self._loop, self._node, self._store, self._carrier = loop, node, store, carrier
        self._reserve, self._say, self._tell_peer, self._are_here = reserve, say, tell_peer, are_here
        self._crc32, _ = fastest_crc32()
        self._rows: dict[ChunkId, _Rows] = {}
        self._regions: dict[int, tuple[NodeId, Region | str, Offer]] = {}
        self._to_serve: list[effects.PrecopyChunk] = []
        self._unsaid: dict[NodeId, list[dict[str, Any]]] = {}
        self._ended: tuple[list[int], list[int]] = [], []
        self._is_about_to_fetch = False
        self._is_about_to_say = False

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is being written."""
        return not any(rows.progress is Progress.FETCHING for rows in self._rows.values())

    # Orders.

    def fetch(self, order: effects.PrecopyChunk) -> None:
        """Fetch the rows of a chunk, once its source has said where they lie."""
        try:
            into = self._reserve(order.chunk)
        except ChicleError:  # this node came back with more than the others know of; its inventory will say so
            self._end(order.number, is_whole=False)
            return
        self._rows[order.chunk] = _Rows(order, into)
        self._fetch_soon()

    def serve(self, order: effects.PrecopyChunk) -> None:
        """Tell the target where the rows of a chunk lie; orders that come together are answered together."""
        if not self._to_serve:
            self._loop.soon(self._tell_places)
        self._to_serve.append(order)

    def take(self, chunk: ChunkId, then: Callable[[], None]) -> tuple[memoryview, int] | None:
        """A copy of the chunk is ordered, which goes on with what is here.

        Args:
            chunk: The chunk.
            then: Called later, if rows still arrive: then it is to be asked again.

        Returns:
            The slot and the bytes of the immutable part in it; no bytes for a slot in which there is nothing yet; no
            slot where nothing was ordered ahead, or `then` will be called.
        """
        rows = self._rows.get(chunk)
        if rows is None:
            return None
        if rows.progress is Progress.FETCHING:
            rows.then = then
            return None
        del self._rows[chunk]
        self._say_soon()
        return rows.into, rows.num_bytes

    def has(self, chunk: ChunkId) -> bool:
        """Whether there is a slot for the chunk."""
        return chunk in self._rows

    def is_arriving(self, chunk: ChunkId) -> bool:
        """Whether rows of the chunk are being written into its slot."""
        rows = self._rows.get(chunk)
        return rows is not None and rows.progress is Progress.FETCHING

    def give_back(self, chunk: ChunkId, then: Callable[[], None]) -> bool:
        """Give a slot back with whatever is in it; `then` is called when that is done. False where there is none."""
        rows = self._rows.get(chunk)
        if rows is None:
            return False

        def free() -> None:
            del self._rows[chunk]
            self._store.free(chunk)
            self._say_soon()
            then()

        if rows.progress is Progress.FETCHING:
            rows.then = free
        else:
            free()
        return True

    # What others say and do.

    def places(self, peer: Peer, message: Mapping[str, Any]) -> None:
        """A source says where rows lie.

        Raises:
            ProtocolError: What it says makes no sense.
        """
        places = message.get("rows")
        for item in places if isinstance(places, list) else [None]:
            place: dict[str, Any] = item if isinstance(item, dict) else {}
            number = place.get("number")
            if type(number) is not int or peer.offer is None:
                raise ProtocolError(f"{peer.life} says {str(item)[:60]!r} of where rows lie")
            where = str(place["error"]) if "error" in place else Region.from_json(place.get("region"), peer=peer.life)
            self._regions[number] = (peer.node, where, peer.offer)
        self._fetch_soon()

    def peer_up(self, node: NodeId) -> None:
        """There is a link to another agent: tell it what it waits for."""
        places = self._unsaid.pop(node, [])
        if places:
            self._tell_peer(node, "rows", {"rows": places})

    def peer_down(self, node: NodeId) -> None:
        """An agent is gone: what was to come from it does not come any more."""
        self._regions = {number: known for number, known in self._regions.items() if known[0] != node}
        self.fail_from(node)

    def fail_from(self, node: NodeId) -> None:
        """What was ordered from there, and has not begun to come, does not come."""
        for rows in list(self._rows.values()):
            if rows.order.source == node and rows.progress is Progress.ORDERED:
                self._fail(rows)

    def forget(self) -> None:
        """This life is over, or the node leaves the round: nobody knows of these rows any more."""
        self._regions.clear()
        self._unsaid.clear()
        self._ended = [], []
        for chunk in list(self._rows):
            self.give_back(chunk, lambda: None)

    # How.

    def _tell_places(self) -> None:
        orders, self._to_serve = self._to_serve, []
        said: dict[NodeId, list[dict[str, Any]]] = {}
        for order in orders:
            reach("rows.before_told", chunk=order.chunk)
            place: dict[str, Any] = {"number": order.number}
            try:
                place["region"] = self._region(order.chunk).to_json()
            except ChicleError as error:  # it has moved meanwhile
                place["error"] = str(error)
            said.setdefault(order.target, []).append(place)
        for node, places in said.items():
            if not self._tell_peer(node, "rows", {"rows": places}):
                self._unsaid.setdefault(node, []).extend(places)

    def _region(self, chunk: ChunkId) -> Region:
        place = self._store.address(chunk)
        with self._store.lease(chunk) as lease:
            header = layout.read_header(lease.view, where=str(place))
            return Region(place.arena, place.slot * self._store.slot_bytes, header.immutable_bytes)

    def _fetch_soon(self) -> None:
        if not self._is_about_to_fetch:
            self._is_about_to_fetch = True
            self._loop.soon(self._fetch_what_is_known)

    def _fetch_what_is_known(self) -> None:
        self._is_about_to_fetch = False
        together: dict[NodeId, list[tuple[_Rows, Region]]] = {}
        offers: dict[NodeId, Offer] = {}
        for rows in list(self._rows.values()):
            if rows.progress is not Progress.ORDERED or rows.order.number not in self._regions:
                continue
            node, where, offer = self._regions.pop(rows.order.number)
            if isinstance(where, str) or where.size_bytes > len(rows.into) or node != rows.order.source:
                self._fail(rows)
                continue
            rows.progress = Progress.FETCHING
            offers[node] = offer
            together.setdefault(node, []).append((rows, where))
        for node, pairs in together.items():
            for portion in portions(pairs, lambda pair: pair[1].size_bytes):
                self._pull(node, offers[node], portion)

    def _pull(self, node: NodeId, offer: Offer, pairs: Iterable[tuple[_Rows, Region]]) -> None:
        """Fetch rows that lie on one node; a worker thread does it."""

        def do() -> dict[_Rows, int]:
            come: dict[_Rows, int] = {}
            pulls: dict[Pull, tuple[_Rows, ArrivingChunk]] = {}
            route = self._carrier.route(offer)
            for rows, region in pairs:
                reach("rows.before_fetch", chunk=rows.order.chunk)
                check = ArrivingChunk(
                    rows.into, chunk_id=rows.order.chunk, where=f"{node} by {route.reason}", crc32=self._crc32
                )
                pulls[Pull(region, rows.into[: region.size_bytes], check)] = rows, check
            for pull, error in route.transport.fetch_each(route.address, list(pulls), timeout_s=route.timeout_s):
                rows, check = pulls[pull]
                if error is None:
                    with contextlib.suppress(ChicleError):
                        come[rows] = check.finish_rows()
            return come

        def then(future: "Future[dict[_Rows, int]]") -> None:
            # Whatever went wrong is no more than rows that will come with their chunk.
            come = {} if future.exception() is not None else future.result()
            for rows, _ in pairs:
                self._arrived(rows, come.get(rows, 0))

        self._loop.work(do, then)

    def _arrived(self, rows: _Rows, num_bytes: int) -> None:
        """Nothing is written any more; `num_bytes` of rows are there, or none."""
        reach("rows.arrived", chunk=rows.order.chunk)
        rows.progress, rows.num_bytes = (Progress.WHOLE, num_bytes) if num_bytes else (Progress.ORDERED, 0)
        if rows.then is not None:
            then, rows.then = rows.then, None
            then()
        elif num_bytes:
            self._end(rows.order.number, is_whole=True)
        else:
            self._fail(rows)

    def _fail(self, rows: _Rows) -> None:
        del self._rows[rows.order.chunk]
        self._store.free(rows.order.chunk)
        self._end(rows.order.number, is_whole=False)

    def _end(self, number: int, *, is_whole: bool) -> None:
        self._ended[0 if is_whole else 1].append(number)
        self._say_soon()

    def _say_soon(self) -> None:
        if not self._is_about_to_say:
            self._is_about_to_say = True
            self._loop.soon(self._say_ended)

    def _say_ended(self) -> None:
        """One answer for all: when the last has come."""
        self._is_about_to_say = False
        whole, failed = self._ended
        if not (whole or failed) or any(rows.progress is not Progress.WHOLE for rows in self._rows.values()):
            return
        self._ended = [], []
        came = set(whole)
        self._are_here([chunk for chunk, rows in self._rows.items() if rows.order.number in came])
        newest = max(whole + failed)
        self._regions = {number: known for number, known in self._regions.items() if number > newest}
        self._say(events.PrecopiesEnded(node=self._node, whole=tuple(whole), failed=tuple(failed)))
