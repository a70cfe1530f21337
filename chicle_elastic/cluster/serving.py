"""What a node does as the source of chunks: it seals their states and tells their targets where they lie.

The word of the source is said again on each new link to the target: they may have none yet, and what is said on one
that breaks may be lost.

States whose rows have travelled ahead are sealed as soon as a round is asked for (`prepare`), while the nodes report
what they hold and meet. Such a seal is good until the next iteration, or part of one, may have written to the state.
"""

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from chicle_elastic.cluster.event_loop import EventLoop
from chicle_elastic.errors import ChicleError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import effects
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.store.slots import SlotAddress
from chicle_elastic.transports.base import Region
from chicle_elastic.transports.checksum import fastest_crc32
from chicle_elastic.values import StateVersion


class Serving:
    """Everything is called in the loop.

    Args:
        loop: For worker threads.
        store: The chunks.
        tell_peer: Sends (node, kind, fields) to an agent; returns whether there is a link to it.

    Attributes (to be read only):
        is_preparing: States are being sealed ahead.
    """

    def __init__(
        self, loop: EventLoop, store: ChunkStore, tell_peer: Callable[[NodeId, str, dict[str, Any]], bool]
    ) -> None:
        self._loop, self._store, self._tell_peer = loop, store, tell_peer
        self._crc32, _ = fastest_crc32()
        self._orders: list[tuple[effects.CopyChunk, StateVersion]] = []
        self._places: dict[NodeId, dict[ChunkId, dict[str, Any]]] = {}
        self._round = 0
        self._sealed: dict[ChunkId, StateVersion] = {}
        self.is_preparing = False
        self._num_iterations = 0

    @property
    def num_said(self) -> int:
        """Places that were said in this round."""
        return sum(map(len, self._places.values()))

    def prepare(self, versions: Mapping[ChunkId, StateVersion]) -> None:
        """Seal states that are likely to be asked for; no iteration runs.

        Args:
            versions: Of chunks of this node.
        """
        if self.is_preparing or not versions:
            return
        self.is_preparing = True
        number = self._num_iterations

        def seal() -> dict[ChunkId, StateVersion]:
            sealed: dict[ChunkId, StateVersion] = {}
            for chunk, version in versions.items():
                if number != self._num_iterations:
                    break
                with contextlib.suppress(ChicleError):  # who asks for it is told
                    self._seal(chunk, version)
                    sealed[chunk] = version
            return sealed

        def then(future: "Future[dict[ChunkId, StateVersion]]") -> None:
            self.is_preparing = False
            if number == self._num_iterations:
                self._sealed = future.result()
            if self._orders:
                self._seal_all()

        self._loop.work(seal, then)

    def iteration_begins(self) -> None:
        """States are written from now on."""
        self._num_iterations += 1
        self._sealed = {}

    def serve(self, order: effects.CopyChunk, *, version: StateVersion) -> None:
        """Seal the state of a chunk and tell the target where it lies; orders that come together are done together."""
        if not self._orders:
            self._loop.soon(self._seal_all)
        if order.round != self._round:  # nobody waits for what was said in an earlier one
            self._round = order.round
            self._places.clear()
        self._orders.append((order, version))

    def peer_up(self, node: NodeId) -> None:
        """There is a link to another agent: tell it where chunks lie that it waits for."""
        if places := self._places.get(node):
            self._tell_peer(node, "places", {"places": list(places.values())})

    def forget(self) -> None:
        """Nobody waits for what was said, and the next life begins with new seals."""
        self._places.clear()
        self.iteration_begins()

    def _seal_all(self) -> None:
        if self.is_preparing:
            return  # it is called again
        orders, self._orders = self._orders, []
        # Each seal is used once: an order that comes again, because the copy was damaged, gets a new one.
        sealed = {order.chunk: self._sealed.pop(order.chunk, None) for order, _ in orders}

        def seal() -> dict[NodeId, list[dict[str, Any]]]:
            said: dict[NodeId, list[dict[str, Any]]] = {}
            for order, version in orders:
                place: dict[str, Any] = {"chunk": order.chunk, "round": order.round}
                try:
                    place["region"] = self._region(order.chunk, version, is_sealed=sealed.get(order.chunk) == version)
                except ChicleError as error:
                    place["error"] = str(error)
                said.setdefault(order.target, []).append(place)
            return said

        if all(sealed.get(order.chunk) == version for order, version in orders):
            self._say(seal())
        else:
            self._loop.work(seal, lambda future: self._say(future.result()))

    def _say(self, said: Mapping[NodeId, list[dict[str, Any]]]) -> None:
        for node, places in said.items():
            self._places.setdefault(node, {}).update((place["chunk"], place) for place in places)
            self._tell_peer(node, "places", {"places": places})

    def _region(self, chunk: ChunkId, version: StateVersion, *, is_sealed: bool) -> Any:
        """Where a chunk lies, as JSON values; its state is sealed then."""
        place, size_bytes = (
            self._store.extent(chunk) if is_sealed else self._store.seal(chunk, at_least=version, crc32=self._crc32)
        )
        return Region(place.arena, place.slot * self._store.slot_bytes, size_bytes).to_json()

    def _seal(self, chunk: ChunkId, version: StateVersion) -> tuple[SlotAddress, int]:
        return self._store.seal(chunk, at_least=version, crc32=self._crc32)
