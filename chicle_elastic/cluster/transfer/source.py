"""What a node does as the source of chunks: it seals their states and tells their targets where they lie.

The word of the source is said again on each new link to the target: they may have none yet, and what is said on one
that breaks may be lost. The newest about a chunk replaces those before: a target that is to copy a chunk waits for its
rows no longer.

Rows are told of as they lie, without a lease: they never change, and when their slot is given to another chunk while
it is read, checksums find that. States whose rows were pre-copied are sealed as soon as a round is asked for
(`prepare`), while the nodes report what they hold and meet. Such a seal is good until the next iteration, or part of
one, may have written to the state.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.fault_points import hit
from chicle_elastic.cluster.transfer.protocol import PLACES, Order, Part, Place, Places
from chicle_elastic.errors import ChicleError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import codec
from chicle_elastic.scheduling.together import by_key
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.transports.base import Region
from chicle_elastic.transports.checksum import fastest_crc32
from chicle_elastic.values import StateVersion


class TransferSource:
    """Everything is called in the loop."""

    def __init__(
        self, loop: EventLoop, store: ChunkStore, tell_peer: Callable[[NodeId, str, dict[str, Any]], bool]
    ) -> None:
        self._loop, self._store, self._tell_peer = loop, store, tell_peer
        self._crc32, _ = fastest_crc32()
        self._orders: list[tuple[Order, StateVersion]] = []
        self._places: dict[NodeId, dict[ChunkId, Place]] = {}
        self._round = 0
        self._sealed: dict[ChunkId, StateVersion] = {}
        self.is_preparing = False
        self._num_iterations = 0

    @property
    def num_said(self) -> int:
        """Places that are said again on a new link."""
        return sum(map(len, self._places.values()))

    def prepare(self, versions: Mapping[ChunkId, StateVersion]) -> None:
        """Seal states that are likely to be asked for; no iteration runs."""
        if self.is_preparing or not versions:
            return
        self.is_preparing = True
        number = self._num_iterations

        def seal() -> dict[ChunkId, StateVersion]:
            sealed: dict[ChunkId, StateVersion] = {}
            for chunk, version in versions.items():
                if number != self._num_iterations:
                    break
                with contextlib.suppress(ChicleError):  # a target that asks for it is told
                    self._store.seal(chunk, at_least=version, crc32=self._crc32)
                    sealed[chunk] = version
            return sealed

        def then(future: "Future[dict[ChunkId, StateVersion]]") -> None:
            self.is_preparing = False
            if number == self._num_iterations:
                self._sealed = future.result()
            if self._orders:
                self._answer_all()

        self._loop.work(seal, then)

    def iteration_begins(self) -> None:
        """States are written from now on."""
        self._num_iterations += 1
        self._sealed = {}

    def serve(self, order: Order, *, version: StateVersion) -> None:
        """Tell the target where the chunk lies, or its rows; orders that come together are done together.

        Args:
            version: Of the state of the chunk, which is sealed where the state is asked for.
        """
        if not self._orders:
            self._loop.soon(self._answer_all)
        if order.round != self._round:  # no agent waits for copies of an earlier one; for rows one may
            self._round = order.round
            for node, places in self._places.items():
                self._places[node] = {chunk: place for chunk, place in places.items() if place.part is Part.ROWS}
        self._orders.append((order, version))

    def peer_up(self, node: NodeId) -> None:
        """There is a link to another agent: tell it where chunks lie that it waits for."""
        if places := self._places.get(node):
            self._tell(node, places.values())

    def forget(self) -> None:
        """No agent waits for what was said, and the next incarnation begins with new seals."""
        self._places.clear()
        self.iteration_begins()

    def _answer_all(self) -> None:
        if self.is_preparing:
            return  # it is called again
        orders, self._orders = self._orders, []
        # Each seal is used once: an order that comes again, because the copy was damaged, gets a new one.
        are_sealed = [
            order.part is Part.ROWS or self._sealed.pop(order.chunk, None) == version for order, version in orders
        ]

        def places() -> list[tuple[NodeId, Place]]:
            return [
                (order.target, self._place(order, version, is_sealed=is_sealed))
                for (order, version), is_sealed in zip(orders, are_sealed, strict=True)
            ]

        if all(are_sealed):
            self._say(places())
        else:
            self._loop.work(places, lambda future: self._say(future.result()))

    def _place(self, order: Order, version: StateVersion, *, is_sealed: bool) -> Place:
        """Where what was ordered lies, its state sealed, or why it cannot be given."""
        chunk, part = order.chunk, order.part
        place = Place(chunk=chunk, part=part, number=order.number)
        try:
            if part is Part.ROWS:
                hit("rows.before_told", chunk=chunk)
                address, size_bytes = self._store.immutable_extent(chunk)
            elif is_sealed:
                address, size_bytes = self._store.extent(chunk)
            else:
                address, size_bytes = self._store.seal(chunk, at_least=version, crc32=self._crc32)
        except ChicleError as error:
            return replace(place, error=str(error))
        return replace(place, region=Region(address.arena, address.slot * self._store.slot_bytes, size_bytes))

    def _say(self, places: Sequence[tuple[NodeId, Place]]) -> None:
        for node, news in by_key(places).items():
            self._places.setdefault(node, {}).update((place.chunk, place) for place in news)
            self._tell(node, news)

    def _tell(self, node: NodeId, places: Iterable[Place]) -> None:
        self._tell_peer(node, PLACES, {PLACES: codec.to_values(tuple(places), Places)})
