"""The chunks of one node: their memory, and their ways in and out.

    load    LoadChunks                 reserve a slot -> the task fills it from the source -> commit   -> ChunksLoaded
    copy    PrecopyChunks, CopyChunks  between two nodes, rows first or all at once (`protocol`)
    free    FreeChunks                 give the slot back                                              -> ChunksFreed

What takes time (memory, seals, fetches, checks) is done by worker threads; chunks of one node are asked for ahead, over
one connection. Every order gets its answer, also when the source or the task is lost on the way.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.fault_points import hit
from chicle_elastic.cluster.net.peers import Peer
from chicle_elastic.cluster.transfer.acknowledgements import Acknowledgements
from chicle_elastic.cluster.transfer.allocation import AllocationQueue
from chicle_elastic.cluster.transfer.protocol import Order
from chicle_elastic.cluster.transfer.source import TransferSource
from chicle_elastic.cluster.transfer.target import TransferTarget
from chicle_elastic.errors import ChicleError, ProtocolError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.events import Event
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.store.slot_table import SlotAddress
from chicle_elastic.transports.selector import TransportSelector
from chicle_elastic.values import StateVersion

Say = Callable[[Event], None]


class ChunkManager:
    """See the top of the module. Everything is called in the loop.

    Args:
        sizes: Bytes of each chunk, header and state included.
    """

    def __init__(
        self,
        loop: EventLoop,
        *,
        node: NodeId,
        store: ChunkStore,
        transports: TransportSelector,
        sizes: tuple[int, ...],
        say: Say,
        tell_task: Callable[[control.AgentMessage, int | None], None],
        tell_peer: Callable[[NodeId, str, dict[str, Any]], bool],
    ) -> None:
        self.store = store
        self._loop, self._node, self._transports, self._sizes = loop, node, transports, sizes
        self._tell_task = tell_task
        self._answers = Acknowledgements(loop, say)
        self._say = self._answers.say
        self._num_arenas = 0
        self._num_arenas_of_task = 0
        self._loads: dict[ChunkId, int] = {}
        self._committing: set[ChunkId] = set()
        self._attached: dict[ChunkId, SlotAddress] = {}
        self._to_commit: dict[ChunkId, int] = {}
        self._has_task = True
        self._is_preparing = False
        self._room = AllocationQueue(loop, store)
        self.serving = TransferSource(loop, store, tell_peer)
        self._arriving = TransferTarget(
            loop,
            node=node,
            store=store,
            transports=transports,
            reserve=self._reserve,
            answers=self._answers,
            rows_are_here=self._tell_precopied,
        )

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way that was ordered earlier."""
        is_told = self._answers.are_said and self._arriving.is_quiet
        is_begun = not (self._is_preparing or self._room)
        return is_told and is_begun and not (self._loads or self._to_commit or self._committing)

    @property
    def under_way(self) -> dict[str, int]:
        """How many orders of each kind have not been answered."""
        return {
            "loads": len(self._loads) + len(self._to_commit) + len(self._committing),
            "wait for memory": len(self._room),
            **self._arriving.under_way,
            "places said": self.serving.num_said,
        }

    def prepare(self, num_bytes: int, *, ready: Callable[[], None], failed: Callable[[ChicleError], None]) -> None:
        """Take memory before this node joins; it is not quiet until then."""
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

    def load(self, order: effects.LoadChunks, *, merged: int, began: int = 0) -> None:
        """Have the task load chunks into slots; `merged` and `began` as in `control.Load`."""
        # Without a task this node has said that it is lost: no process could load, and the scheduler awaits no answer.
        if self._has_task:
            for chunk in order.chunks:
                self._room.put(functools.partial(self._load, chunk, order.round, merged, began), num_slots=1)

    def fetch(self, order: Order) -> None:
        """Fetch a chunk from its source, or its rows ahead of it; what has come ahead is not fetched again."""
        self._room.put(lambda: self._arriving.fetch(order), num_slots=order.chunk not in self._arriving)

    def _load(self, chunk: ChunkId, round: int, merged: int, began: int) -> None:
        try:
            self._reserve(chunk)
        except ChicleError as error:
            self._say(events.LoadFailed(chunk=chunk, node=self._node, reason=str(error), round=round))
            return
        self._loads[chunk] = round
        self.offer_arenas()
        place = self.store.address(chunk)
        load = control.Load(chunk=chunk, arena=place.arena, slot=place.slot, round=round, merged=merged, began=began)
        self._tell_task(load, None)

    def free(self, order: effects.FreeChunks) -> None:
        """Give slots back."""
        for chunk in order.chunks:
            self._room.put(functools.partial(self._free, chunk, order.round))

    def _free(self, chunk: ChunkId, round: int) -> None:
        hit("free.before", chunk=chunk)
        self._arriving.give_back(chunk, functools.partial(self._freed, chunk, round))

    def _freed(self, chunk: ChunkId, round: int) -> None:
        if chunk in self.store:
            self.store.free(chunk)
        hit("free.done", chunk=chunk)
        self._say(events.ChunksFreed(chunks=(chunk,), node=self._node, round=round))

    def attach(self, added: Iterable[ChunkId], removed: Iterable[ChunkId]) -> None:
        """Tell the task what is local now."""
        self.offer_arenas()
        for chunk in removed:
            self._attached.pop(chunk, None)
        places = {chunk: self.store.address(chunk) for chunk in added}
        self._attached |= places
        self._tell_task(control.Attach(added=_placements(places), removed=tuple(removed)), None)

    def _tell_precopied(self, chunks: Iterable[ChunkId]) -> None:
        """Let the task look at rows that have come while it has time to."""
        places = {chunk: self.store.address(chunk) for chunk in chunks}
        if places and self._has_task:
            self._tell_task(control.Precopied(chunks=_placements(places)), None)

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
        hit("load.before_commit", chunk=message.chunk)
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
        """A source says where chunks lie, or their rows. Raises ProtocolError when what it says makes no sense."""
        self._arriving.places(peer, message)

    def peer_up(self, node: NodeId) -> None:
        """There is a link to another agent: tell it where chunks lie that it waits for."""
        self.serving.peer_up(node)

    def peer_down(self, peer: Peer) -> None:
        """An agent is gone: what was to come from it does not come any more."""
        if peer.endpoints is not None:
            self._transports.disconnect(peer.endpoints)  # a fetch that is under way ends with an error
        self.lose_source(peer.node)

    def lose_source(self, node: NodeId) -> None:
        """A node is gone or lost: it says no more where chunks lie. Orders to copy may come after its link broke."""
        self._arriving.lose_source(node)
        if self._room:  # and orders that wait for memory; not those that come later, when the node may be back
            self._room.put(lambda: self._arriving.fail_from(node))

    # The task, and lives.

    def register_arenas(self) -> None:
        """Let peers read those that are new. RDMA locks their pages, and this process stands still meanwhile."""
        for arena in self.store.arenas[self._num_arenas :]:
            self._transports.register(arena)
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
        self._arriving.forget_rows()
        for chunk in self._loads:
            self.store.free(chunk)
        self._loads.clear()
        self._attached.clear()
        self._num_arenas_of_task = 0

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
        self.serving.forget()
        self._room.clear()
        self._arriving.forget()
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
                    self._say(events.ChunksLoaded(chunks=(chunk,), node=self._node, round=round))

        self._loop.work(commit, then)

    def _reserve(self, chunk: ChunkId) -> memoryview:
        if not 0 <= chunk < len(self._sizes):
            raise ProtocolError(f"there is no chunk {chunk}; the data set of this job has {len(self._sizes)}")
        view = self.store.reserve(chunk, self._sizes[chunk])
        self.offer_arenas()
        return view


def _placements(places: Mapping[ChunkId, SlotAddress]) -> tuple[control.Placement, ...]:
    return tuple(control.Placement(chunk=chunk, arena=place.arena, slot=place.slot) for chunk, place in places.items())
