"""The chunks of one node: their memory, and their ways in and out.

    load    LoadChunk   reserve a slot -> the task fills it from the source -> commit          -> ChunkLoaded
    copy    CopyChunk   at the source (`serving`): seal the state, tell the target where the chunk lies
                        at the target: reserve a slot -> fetch, verified on arrival -> commit  -> ChunkCopied
                        where rows have travelled ahead (`rows_ahead`), only the state is fetched
    free    FreeChunk   give the slot back                                                     -> ChunkFreed

The order to copy and the word of the source where the chunk lies reach the target in any order. What takes time
(memory, seals, fetches, checks) is done by worker threads; chunks of one node are asked for ahead, over one connection.
Every order gets its answer, also when the source or the task is lost on the way.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from chicle_elastic.cluster.answers import Answers
from chicle_elastic.cluster.copies import Arrival, Copy, Fetcher
from chicle_elastic.cluster.event_loop import EventLoop
from chicle_elastic.cluster.handover import Handover
from chicle_elastic.cluster.mesh import Peer
from chicle_elastic.cluster.portions import portions
from chicle_elastic.cluster.room import RoomQueue
from chicle_elastic.cluster.rows_ahead import RowsAhead
from chicle_elastic.cluster.serving import Serving
from chicle_elastic.cluster.steps import reach
from chicle_elastic.errors import ChicleError, ProtocolError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime import control
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.events import Event
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.store.slots import SlotAddress
from chicle_elastic.transports.base import Region
from chicle_elastic.transports.carrier import Carrier, Offer
from chicle_elastic.transports.checksum import fastest_crc32
from chicle_elastic.values import StateVersion

Say = Callable[[Event], None]


class NodeMemory:
    """See the top of the module. Everything is called in the loop.

    Args:
        loop: For worker threads.
        node: This node.
        store: Its chunks.
        carrier: Its transports.
        sizes: Bytes of each chunk, header and state included.
        say: Takes answers to the scheduler's orders.
        tell_task: Sends a message to the task, a descriptor with it.
        tell_peer: Sends (node, kind, fields) to an agent; returns whether there is a link to it.

    Attributes:
        store: As given.
        rows: What travels ahead.
        serving: What it does as a source.
    """

    def __init__(
        self,
        loop: EventLoop,
        *,
        node: NodeId,
        store: ChunkStore,
        carrier: Carrier,
        sizes: tuple[int, ...],
        say: Say,
        tell_task: Callable[[control.AgentMessage, int | None], None],
        tell_peer: Callable[[NodeId, str, dict[str, Any]], bool],
    ) -> None:
        self.store = store
        self._loop, self._node, self._carrier, self._sizes = loop, node, carrier, sizes
        self._tell_task, self._tell_peer = tell_task, tell_peer
        self._answers = Answers(loop, say)
        self._say = self._answers.say
        self._crc32, _ = fastest_crc32()
        self._num_arenas = 0
        self._num_arenas_of_task = 0
        self._loads: dict[ChunkId, int] = {}
        self._committing: set[ChunkId] = set()
        self._copies: dict[ChunkId, Copy] = {}
        self._deferred: dict[ChunkId, effects.CopyChunk] = {}
        self._regions: dict[tuple[ChunkId, int], tuple[NodeId, Region | str, Offer]] = {}
        self._attached: dict[ChunkId, SlotAddress] = {}
        self._to_commit: dict[ChunkId, int] = {}
        self._is_about_to_fetch = False
        self._has_task = True
        self._is_preparing = False
        self._room = RoomQueue(loop, store)
        self.serving = Serving(loop, store, tell_peer)
        self.rows = RowsAhead(
            loop,
            node=node,
            store=store,
            carrier=carrier,
            reserve=self._reserve,
            say=self._say,
            tell_peer=tell_peer,
            are_here=self._tell_ahead,
        )

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way that was ordered earlier."""
        is_told = self._answers.are_said and self.rows.is_quiet
        is_begun = not (self._is_preparing or self._room)
        return is_told and is_begun and not (self._loads or self._to_commit or self._committing or self._copies)

    @property
    def under_way(self) -> dict[str, int]:
        """How many orders of each kind have not been answered."""
        return {
            "loads": len(self._loads) + len(self._to_commit) + len(self._committing),
            "copies": len(self._copies),
            "wait for memory": len(self._room),
            "fetches": sum(copy.is_fetching for copy in self._copies.values()),
            "known places": len(self._regions),
            "places said": self.serving.num_said,
        }

    def prepare(self, num_bytes: int, *, ready: Callable[[], None], failed: Callable[[ChicleError], None]) -> None:
        """Take memory before this node joins; it is not quiet until then.

        Args:
            num_bytes: How much.
            ready: Called when it is there.
            failed: Called when there is not so much.
        """
        self._is_preparing = True

        def then(future: "Future[None]") -> None:
            self._is_preparing = False
            try:
                future.result()
            except ChicleError as error:
                failed(error)
            else:
                self.register_arenas()
                ready()

        self._loop.work(lambda: self.store.prepare(num_bytes), then)

    # Orders of the scheduler.

    def load(self, order: effects.LoadChunk, *, merged: int, began: int = 0) -> None:
        """Have the task load a chunk into a slot; `merged` and `began` as in `control.Load`."""
        if self._has_task:  # or this node has said that it is lost: nobody waits for an answer, and nobody could load
            self._room.put(lambda: self._load(order, merged, began), num_slots=1)

    def fetch_ahead(self, order: effects.PrecopyChunk) -> None:
        """Fetch the rows of a chunk that will come."""
        self._room.put(lambda: self.rows.fetch(order), num_slots=1)

    def copy(self, order: effects.CopyChunk) -> None:
        """Fetch a chunk from its source, once that has said where it lies; what has come ahead is not fetched again."""
        self._room.put(lambda: self._copy(order), num_slots=not self.rows.has(order.chunk))

    def _load(self, order: effects.LoadChunk, merged: int, began: int) -> None:
        try:
            self._reserve(order.chunk)
        except ChicleError as error:
            self._say(events.LoadFailed(chunk=order.chunk, node=self._node, reason=str(error), round=order.round))
            return
        self._loads[order.chunk] = order.round
        self.offer_arenas()
        place = self.store.address(order.chunk)
        load = control.Load(
            chunk=order.chunk, arena=place.arena, slot=place.slot, round=order.round, merged=merged, began=began
        )
        self._tell_task(load, None)

    def _copy(self, order: effects.CopyChunk) -> None:
        ahead = self.rows.take(order.chunk, lambda: self._resume(order))
        if ahead is None and self.rows.is_arriving(order.chunk):
            self._deferred[order.chunk] = order
            return
        try:
            into, num_ahead = ahead or (self._reserve(order.chunk), 0)
        except ChicleError as error:
            self._fail_copy(order, str(error))
            return
        self._copies[order.chunk] = Copy(order, into, num_ahead)
        self._fetch_soon()

    def _resume(self, order: effects.CopyChunk) -> None:
        """Rows do not arrive any more: go on with the copy that waited for them."""
        if self._deferred.pop(order.chunk, None) is order:
            self._copy(order)
        else:
            self.rows.give_back(order.chunk, lambda: self._fail_copy(order, f"{order.source} is gone"))

    def free(self, order: effects.FreeChunk) -> None:
        """Give a slot back."""
        self._room.put(lambda: self._free(order))

    def _free(self, order: effects.FreeChunk) -> None:
        reach("free.before", chunk=order.chunk)
        if self.rows.give_back(order.chunk, lambda: self._freed(order)):
            return
        if order.chunk in self.store:
            self.store.free(order.chunk)
        self._freed(order)

    def _freed(self, order: effects.FreeChunk) -> None:
        reach("free.done", chunk=order.chunk)
        self._say(events.ChunkFreed(chunk=order.chunk, node=self._node, round=order.round))

    def attach(self, added: Iterable[ChunkId], removed: Iterable[ChunkId]) -> None:
        """Tell the task what is local now."""
        self.offer_arenas()
        for chunk in removed:
            self._attached.pop(chunk, None)
        places = {chunk: self.store.address(chunk) for chunk in added}
        self._attached |= places
        self._tell_task(control.Attach(added=_placements(places), removed=tuple(removed)), None)

    def _tell_ahead(self, chunks: Iterable[ChunkId]) -> None:
        """Let the task look at rows that have come while it has time to."""
        places = {chunk: self.store.address(chunk) for chunk in chunks}
        if places and self._has_task:
            self._tell_task(control.Ahead(chunks=_placements(places)), None)

    def attach_for_end(self, owned: Iterable[ChunkId]) -> None:
        """The job is over, perhaps in the middle of moves: tell the task what it has in the end."""
        held = self.store.inventory()
        places = {chunk: self.store.address(chunk) for chunk in owned if chunk in held}
        removed = [chunk for chunk, place in self._attached.items() if places.get(chunk) != place]
        added = [chunk for chunk, place in places.items() if self._attached.get(chunk) != place]
        if added or removed:
            self.attach(added, removed)

    # What comes back.

    def loaded(self, message: control.Loaded) -> None:
        """The task has filled a slot; those that come together are checked together."""
        if self._loads.get(message.chunk) != message.round:
            return
        reach("load.before_commit", chunk=message.chunk)
        del self._loads[message.chunk]
        if not self._to_commit:
            self._loop.soon(self._commit_all)
        self._to_commit[message.chunk] = message.round

    def load_failed(self, message: control.LoadFailed) -> None:
        """The task could not fill a slot."""
        if self._loads.get(message.chunk) == message.round:
            del self._loads[message.chunk]
            self.store.free(message.chunk)
            self._say(
                events.LoadFailed(chunk=message.chunk, node=self._node, reason=message.reason, round=message.round)
            )

    def places(self, peer: Peer, message: Mapping[str, Any]) -> None:
        """A source says where chunks lie.

        Raises:
            ProtocolError: What it says makes no sense.
        """
        places = message.get("places")
        for item in places if isinstance(places, list) else [None]:
            place: dict[str, Any] = item if isinstance(item, dict) else {}
            chunk, round = place.get("chunk"), place.get("round")
            if type(chunk) is not int or type(round) is not int or peer.offer is None:
                raise ProtocolError(f"{peer.life} says {str(item)[:60]!r} of where a chunk lies")
            where = str(place["error"]) if "error" in place else Region.from_json(place.get("region"), peer=peer.life)
            self._regions[ChunkId(chunk), round] = (peer.node, where, peer.offer)
        self._fetch_soon()

    def peer_up(self, node: NodeId) -> None:
        """There is a link to another agent: tell it where chunks lie that it waits for."""
        self.rows.peer_up(node)
        self.serving.peer_up(node)

    def peer_down(self, peer: Peer) -> None:
        """An agent is gone: what was to come from it does not come any more."""
        if peer.offer is not None:
            self._carrier.disconnect(peer.offer)  # a fetch that is under way ends with an error
        self.rows.peer_down(peer.node)
        self.lose_source(peer.node)

    def lose_source(self, node: NodeId) -> None:
        """A node is gone or lost: it says no more where chunks lie. Orders to copy may come after its link broke."""
        self._regions = {key: known for key, known in self._regions.items() if known[0] != node}
        self._fail_from(node)
        if self._room:  # and orders that wait for memory; not those that come later, when the node may be back
            self._room.put(lambda: self._fail_from(node))
            self._room.put(lambda: self.rows.fail_from(node))

    def _fail_from(self, node: NodeId) -> None:
        self._deferred = {chunk: order for chunk, order in self._deferred.items() if order.source != node}
        for copy in list(self._copies.values()):
            if copy.order.source == node and not copy.is_fetching:
                self._end_copy(copy, f"{node} is gone")
        self._say_copied()

    # The task, and lives.

    def register_arenas(self) -> None:
        """Let peers read those that are new. RDMA locks their pages, and this process stands still meanwhile."""
        for arena in self.store.arenas[self._num_arenas :]:
            self._carrier.register(arena)
            self._num_arenas += 1

    def offer_arenas(self) -> None:
        """Register arenas that are new, and send the task those that it does not have."""
        self.register_arenas()
        for index, arena in enumerate(self.store.arenas):
            if self._has_task and index >= self._num_arenas_of_task:
                order = control.Arena(index=index, num_slots=arena.num_slots, slot_bytes=arena.slot_bytes)
                self._tell_task(order, arena.fileno())
                self._num_arenas_of_task += 1

    def forget_task(self) -> None:
        """The task is gone, and with it what it was loading; a new one knows nothing, and nothing is loaded before."""
        self._has_task = False
        self._room.clear()
        self._deferred.clear()
        self.rows.forget()
        for chunk in self._loads:
            self.store.free(chunk)
        self._loads.clear()
        self._attached.clear()
        self._num_arenas_of_task = 0
        self._say_copied()

    def task_is_there(self) -> None:
        """A task can load chunks again."""
        self._has_task = True

    def end_life(self, versions: Mapping[ChunkId, StateVersion]) -> None:
        """This life of the node is over. Copies end with an error; the task is told to give everything back.

        Args:
            versions: Of the chunks that this life owned, as its log knows them.
        """
        held = self.store.inventory()
        for chunk, version in versions.items():
            if chunk in held and held[chunk] < version:
                self.store.advance(version, [chunk])
        self._regions.clear()
        self.serving.forget()
        self._room.clear()
        self._deferred.clear()
        self.rows.forget()
        for copy in list(self._copies.values()):
            if not copy.is_fetching:
                self._end_copy(copy, "this agent was taken for lost")
        self._say_copied()
        if self._attached:
            self.attach([], sorted(self._attached))

    def clear(self) -> None:
        """Give up everything; nothing may be under way."""
        for chunk in self.store.inventory():
            self.store.free(chunk)

    # How.

    def _commit_all(self) -> None:
        rounds, self._to_commit = self._to_commit, {}
        self._committing |= rounds.keys()

        def commit() -> dict[ChunkId, str]:
            errors = {}
            for chunk in rounds:
                try:
                    self.store.commit(chunk, where=f"the task of {self._node}")
                except ChicleError as error:
                    errors[chunk] = str(error)
            return errors

        def then(future: "Future[dict[ChunkId, str]]") -> None:
            errors = future.result()
            for chunk, round in rounds.items():
                self._committing.discard(chunk)
                if chunk in errors:
                    self.store.free(chunk)
                    self._say(events.LoadFailed(chunk=chunk, node=self._node, reason=errors[chunk], round=round))
                else:
                    self._say(events.ChunkLoaded(chunk=chunk, node=self._node, round=round))

        self._loop.work(commit, then)

    def _reserve(self, chunk: ChunkId) -> memoryview:
        if not 0 <= chunk < len(self._sizes):
            raise ProtocolError(f"there is no chunk {chunk}; the data set of this job has {len(self._sizes)}")
        view = self.store.reserve(chunk, self._sizes[chunk])
        self.offer_arenas()
        return view

    def _fetch_soon(self) -> None:
        if not self._is_about_to_fetch:
            self._is_about_to_fetch = True
            self._loop.soon(self._fetch_what_is_known)

    def _fetch_what_is_known(self) -> None:
        """Begin to fetch every copy whose place is known, those of one node together."""
        self._is_about_to_fetch = False
        together: dict[NodeId, list[tuple[Copy, Region]]] = {}
        offers: dict[NodeId, Offer] = {}
        for copy in list(self._copies.values()):
            key = copy.order.chunk, copy.order.round
            if copy.is_fetching or key not in self._regions:
                continue
            node, region, offer = self._regions.pop(key)
            if node != copy.order.source:
                continue
            if isinstance(region, str):
                self._end_copy(copy, f"{node} cannot give it: {region}")
                continue
            copy.is_fetching = True
            offers[node] = offer
            together.setdefault(node, []).append((copy, region))
        for node, pairs in together.items():
            for portion in portions(pairs, lambda pair: len(pair[0].into) - pair[0].num_ahead):
                arrived = Handover(self._loop, self._end_copies)
                fetcher = Fetcher(self._carrier, node, offers[node], crc32=self._crc32, arrived=arrived)
                self._loop.work(functools.partial(fetcher.fetch, portion), lambda future: future.result())

    def _end_copies(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self._end_copy(*arrival)
        self._say_copied()

    def _say_copied(self) -> None:
        """The boundary waits for the last copy: those that came before it are told of together with it."""
        if not (self._copies or self._deferred):
            self._answers.release()

    def _end_copy(self, copy: Copy, error: str | None, version: StateVersion | None = None) -> None:
        order = copy.order
        if self._copies.get(order.chunk) is not copy:
            return
        del self._copies[order.chunk]
        if version is None:
            self.store.free(order.chunk)
            self._fail_copy(order, error or "nothing came")
            return
        reach("copy.before_commit", chunk=order.chunk)
        self.store.commit_verified(order.chunk, len(copy.into), version)
        reach("copy.committed", chunk=order.chunk)
        self._answers.keep(
            events.ChunkCopied(chunk=order.chunk, source=order.source, target=order.target, round=order.round)
        )

    def _fail_copy(self, order: effects.CopyChunk, reason: str) -> None:
        self._say(
            events.CopyFailed(
                chunk=order.chunk, source=order.source, target=order.target, round=order.round, reason=reason
            )
        )
        self._say_copied()


def _placements(places: Mapping[ChunkId, SlotAddress]) -> tuple[control.Placement, ...]:
    return tuple(control.Placement(chunk=chunk, arena=place.arena, slot=place.slot) for chunk, place in places.items())
