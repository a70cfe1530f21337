"""What a node does as the target of chunks: it fetches what is ordered, once the source has said where that lies.

    PrecopyChunks  ordered -> fetching -> whole: the rows wait in their slot for a copy, or are given back
    CopyChunks     takes over the slot of its rows, whole or not -> fetching -> committed, or given back

A slot is taken over or given back as soon as no worker thread writes there any more. An answer to a pre-copy is an
event for all agents, so there is one for all orders of a node, when the last of them has ended; and a boundary waits
for the last copy, so those that came before it are told of together with it. Every order to copy gets its answer, also
when the source is lost on the way. Rows that do not come ahead come with their chunk.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.fault_points import hit
from chicle_elastic.cluster.net.peers import Peer
from chicle_elastic.cluster.transfer.acknowledgements import Acknowledgements
from chicle_elastic.cluster.transfer.fetcher import Fetch, Fetcher, portions
from chicle_elastic.cluster.transfer.protocol import PLACES, Order, Part, Place, Places
from chicle_elastic.cluster.transfer.result_batch import ResultBatch
from chicle_elastic.errors import ChicleError, ProtocolError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import codec, events
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.transports.checksum import fastest_crc32
from chicle_elastic.transports.selector import Endpoints, TransportSelector
from chicle_elastic.values import StateVersion


@dataclass(slots=True, eq=False)
class _Arriving:
    """A slot that a chunk arrives in."""

    order: Order
    into: memoryview
    num_ahead: int = 0  # bytes that are there and right: its rows, once they have come
    # what a worker thread writes there; perhaps still the rows, when their copy has been ordered
    fetch: Fetch | None = None
    then: Callable[[], None] | None = None  # called in place of going on, once nothing is written there

    @property
    def is_copy(self) -> bool:
        """Whether the whole chunk was ordered."""
        return self.order.part is Part.ALL

    @property
    def is_pending(self) -> bool:
        """Whether what was ordered has neither come nor begun to."""
        is_begun = self.fetch is not None and self.fetch.order is self.order
        return not is_begun and (self.is_copy or not self.num_ahead)


class TransferTarget:
    """See the top of the module. Everything is called in the loop."""

    def __init__(
        self,
        loop: EventLoop,
        *,
        node: NodeId,
        store: ChunkStore,
        transports: TransportSelector,
        reserve: Callable[[ChunkId], memoryview],
        answers: Acknowledgements,
        rows_are_here: Callable[[Iterable[ChunkId]], None],
    ) -> None:
        self._loop, self._node, self._store, self._transports = loop, node, store, transports
        self._reserve, self._answers, self._rows_are_here = reserve, answers, rows_are_here
        self._crc32, _ = fastest_crc32()
        self._arriving: dict[ChunkId, _Arriving] = {}
        self._places: dict[tuple[NodeId, ChunkId, Part], tuple[Place, Endpoints]] = {}
        self._precopied: list[int] = []
        self._not_precopied: list[int] = []
        self._is_about_to_fetch = False
        self._is_about_to_answer = False

    @property
    def is_quiet(self) -> bool:
        """Whether no copy is under way, and nothing is being written."""
        return not any(arriving.is_copy or arriving.fetch is not None for arriving in self._arriving.values())

    @property
    def under_way(self) -> dict[str, int]:
        """How many orders of each kind have not been answered."""
        return {
            "copies": sum(arriving.is_copy for arriving in self._arriving.values()),
            "fetches": sum(arriving.fetch is not None for arriving in self._arriving.values()),
            "known places": len(self._places),
        }

    def __contains__(self, chunk: ChunkId) -> bool:
        """Whether the chunk has a slot that it arrives in."""
        return chunk in self._arriving

    # Orders.

    def fetch(self, order: Order) -> None:
        """Fetch a chunk or its rows, once the source has said where they lie; rows that are here are not fetched."""
        arriving = self._arriving.get(order.chunk)
        if arriving is not None and not arriving.is_copy and order.part is Part.ALL:
            arriving.order, arriving.then = order, None
            self._answer_soon()  # the rows are not waited for any more
        else:
            try:
                self._arriving[order.chunk] = _Arriving(order, self._reserve(order.chunk))
            except ChicleError as error:  # or this node has more than the others know of; its inventory says so
                self._fail(order, str(error))
                return
        self._fetch_soon()

    def give_back(self, chunk: ChunkId, then: Callable[[], None]) -> None:
        """Give the slot back that a chunk arrives in, if there is one, and then call `then`."""
        arriving = self._arriving.get(chunk)
        if arriving is None:
            then()
            return

        def give_back() -> None:
            self._discard(arriving)
            then()

        _once_idle(arriving, give_back)

    # What others say and do.

    def places(self, peer: Peer, message: Mapping[str, Any]) -> None:
        """A source says where chunks lie. Raises ProtocolError when what it says makes no sense."""
        if peer.endpoints is None:
            raise ProtocolError(f"{peer.life} says where chunks lie before it has said how to reach them")
        for place in codec.from_values(message.get(PLACES), Places):
            self._places[peer.node, place.chunk, place.part] = place, peer.endpoints
        self._fetch_soon()

    def lose_source(self, node: NodeId) -> None:
        """A node is gone or lost, and what it said is void; orders that name it may still come."""
        self._places = {key: known for key, known in self._places.items() if key[0] != node}
        self.fail_from(node)

    def fail_from(self, node: NodeId) -> None:
        """What was ordered from there, and has not begun to come, does not come."""
        for arriving in list(self._arriving.values()):
            if arriving.order.source == node and arriving.is_pending:
                self._refuse(arriving, f"{node} is gone")

    def forget_rows(self) -> None:
        """This incarnation is over, or the node leaves the round: no ledger lists these rows any more."""
        self._precopied.clear()
        self._not_precopied.clear()
        for arriving in list(self._arriving.values()):
            if not arriving.is_copy:
                _once_idle(arriving, functools.partial(self._discard, arriving))

    def forget(self) -> None:
        """This incarnation is over. Copies that have begun end by themselves."""
        self._places.clear()
        self.forget_rows()
        for arriving in list(self._arriving.values()):
            if arriving.is_copy and arriving.is_pending:
                self._refuse(arriving, "this agent was taken for lost")

    # How.

    def _fetch_soon(self) -> None:
        if not self._is_about_to_fetch:
            self._is_about_to_fetch = True
            self._loop.soon(self._fetch_what_is_known)

    def _fetch_what_is_known(self) -> None:
        """Begin to fetch everything whose place is known; what comes from one node, and is alike, together."""
        self._is_about_to_fetch = False
        together: dict[tuple[NodeId, Part], list[Fetch]] = {}
        endpoints_of: dict[NodeId, Endpoints] = {}
        for arriving in list(self._arriving.values()):
            order = arriving.order
            key = order.source, order.chunk, order.part
            if arriving.fetch is not None or not arriving.is_pending or key not in self._places:
                continue
            place, endpoints = self._places[key]
            if place.number != order.number:
                continue
            del self._places[key]
            if place.region is None:
                self._refuse(arriving, f"{order.source} cannot give it: {place.error}")
                continue
            arriving.fetch = fetch = Fetch(order, arriving.into, place.region, arriving.num_ahead)
            endpoints_of[order.source] = endpoints
            together.setdefault((order.source, fetch.part), []).append(fetch)
        for (node, _), fetches in together.items():
            for portion in portions(fetches, lambda fetch: fetch.size_bytes):
                arrived = ResultBatch(self._loop, self._end_fetches)
                fetcher = Fetcher(self._transports, node, endpoints_of[node], crc32=self._crc32, arrived=arrived)
                self._loop.work(functools.partial(fetcher.fetch, portion), lambda future: future.result(), peer=node)

    def _end_fetches(self, fetches: list[Fetch]) -> None:
        for fetch in fetches:
            arriving = self._arriving[fetch.order.chunk]
            arriving.fetch = None
            if fetch.order.part is Part.ROWS:
                hit("rows.arrived", chunk=fetch.order.chunk)
                arriving.num_ahead = fetch.num_ahead
            if arriving.then is not None:
                arriving.then()
            elif arriving.order is not fetch.order:
                self._fetch_soon()
            elif fetch.error is not None:
                self._refuse(arriving, fetch.error)
            elif fetch.version is not None:
                self._commit(arriving, fetch.version)
            else:
                self._precopied.append(fetch.order.number)
                self._answer_soon()

    def _commit(self, arriving: _Arriving, version: StateVersion) -> None:
        order = arriving.order
        del self._arriving[order.chunk]
        hit("copy.before_commit", chunk=order.chunk)
        self._store.commit_verified(order.chunk, len(arriving.into), version)
        hit("copy.committed", chunk=order.chunk)
        self._answers.keep(
            events.ChunksCopied(chunks=(order.chunk,), source=order.source, target=order.target, round=order.round)
        )
        self._answer_soon()

    def _refuse(self, arriving: _Arriving, reason: str) -> None:
        """What was ordered does not come: the slot is given back once it is idle, and the order has failed then."""

        def refuse() -> None:
            self._discard(arriving)
            self._fail(arriving.order, reason)

        _once_idle(arriving, refuse)

    def _discard(self, arriving: _Arriving) -> None:
        del self._arriving[arriving.order.chunk]
        self._store.free(arriving.order.chunk)
        self._answer_soon()

    def _fail(self, order: Order, reason: str) -> None:
        if order.part is Part.ALL:
            self._answers.say(
                events.CopyFailed(
                    chunk=order.chunk, source=order.source, target=order.target, round=order.round, reason=reason
                )
            )
        else:
            self._not_precopied.append(order.number)
        self._answer_soon()

    def _answer_soon(self) -> None:
        if not self._is_about_to_answer:
            self._is_about_to_answer = True
            self._loop.soon(self._answer)

    def _answer(self) -> None:
        """Say what is kept, of copies when the last copy has ended, of rows when the last rows have."""
        self._is_about_to_answer = False
        rows = [arriving for arriving in self._arriving.values() if not arriving.is_copy]
        if len(rows) == len(self._arriving):
            self._answers.release()
        whole, failed = tuple(self._precopied), tuple(self._not_precopied)
        if (whole or failed) and all(arriving.num_ahead for arriving in rows):
            self._precopied.clear()
            self._not_precopied.clear()
            came = set(whole)
            self._rows_are_here([one.order.chunk for one in rows if one.order.number in came])
            self._answers.say(events.PrecopiesEnded(node=self._node, whole=whole, failed=failed))


def _once_idle(arriving: _Arriving, do: Callable[[], None]) -> None:
    """Call `do` as soon as nothing is written into the slot."""
    if arriving.fetch is None:
        do()
    else:
        arriving.then = do
