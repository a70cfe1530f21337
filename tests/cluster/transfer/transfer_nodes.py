"""Two nodes in this process, with transports between them: a source that holds a chunk, and a target."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chicle_elastic.chunks.layout import encoded_bytes
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import StateSpec
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.peers import Peer
from chicle_elastic.cluster.transfer.chunk_manager import ChunkManager
from chicle_elastic.cluster.transfer.protocol import PLACES, Order
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.scheduling import events
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import TransportSelector
from chicle_elastic.values import StateVersion
from tests.chunk_slots import put_chunk
from tests.cluster.loops import turn_until
from tests.harness import chaos_app

SOURCE, TARGET = NodeId("n0"), NodeId("n1")
CHUNK, OTHER = ChunkId(0), ChunkId(1)
VERSION = StateVersion(2, 7)


class Node:
    """The chunks of a node, what it answers, and its word to others, which get it when the test says so."""

    def __init__(self, name: NodeId, loop: EventLoop, store: ChunkStore, transports: TransportSelector) -> None:
        self.has_link = True
        self.tries: list[NodeId] = []
        self.told: list[control.AgentMessage] = []
        self.num_arenas_told = 0
        self.answers: list[events.Event] = []
        self.said: list[dict[str, Any]] = []
        self.store = store
        # As others see it.
        self.peer = Peer(life=f"{name}#1", link=None, heard_s=0.0, said_s=0.0, endpoints=transports.endpoints)  # type: ignore[arg-type]
        self.memory = ChunkManager(
            loop,
            node=name,
            store=store,
            transports=transports,
            sizes=(store.slot_bytes, store.slot_bytes),
            say=self.answers.append,
            tell_task=self._tell_task,
            tell_peer=self._tell_peer,
        )

    def _tell_task(self, message: control.AgentMessage, fd: int | None) -> None:
        self.told.append(message)
        self.num_arenas_told += fd is not None

    def _tell_peer(self, node: NodeId, kind: str, fields: dict[str, Any]) -> bool:
        assert kind == PLACES
        self.tries.append(node)
        if self.has_link:
            self.said.append(fields)
        return self.has_link


class Pair:
    """A source that holds chunk 0, and a target. Called as if the log had brought an order to both."""

    def __init__(self, loop: EventLoop, source: Node, target: Node) -> None:
        self.loop, self.source, self.target = loop, source, target

    def turn_until(self, is_there: Callable[[], object]) -> None:
        """Let the loop turn until something holds."""
        turn_until(is_there, self.loop)

    def serve(self, order: Order, version: StateVersion = VERSION) -> dict[str, Any]:
        """What the source says of an order."""
        self.source.said.clear()
        self.source.memory.serving.serve(order, version=version)
        self.turn_until(lambda: bool(self.source.said))
        return self.source.said[-1]

    def order(self, order: Order) -> None:
        """Both ends have the order, and the target the word of the source."""
        self.target.memory.fetch(order)
        self.target.memory.places(self.source.peer, self.serve(order))

    def answers(self) -> list[events.Event]:
        """Those of the target, once there are any."""
        self.turn_until(lambda: bool(self.target.answers))
        answers, self.target.answers[:] = list(self.target.answers), []
        return answers


@contextlib.contextmanager
def connected(loop: EventLoop, folder: Path) -> Iterator[Pair]:
    """Make the two; no view of a slot is left in the end."""
    X, y = chaos_app.data()
    chunk = ArraySource(X, y, max_tasks=1).load(CHUNK, StateSpec(outputs=1, width=1, dtype="float64"))
    secret = JobSecret.load_or_create(folder / "job.secret")
    sizes = {"slot_bytes": encoded_bytes(chunk), "capacity_bytes": 1 << 22, "arena_bytes": 1 << 20}
    with contextlib.ExitStack() as stack:
        nodes = []
        for name in (SOURCE, TARGET):
            transports = stack.enter_context(TransportSelector(secret, name=name))
            nodes.append(Node(name, loop, stack.enter_context(ChunkStore(**sizes)), transports))
            stack.callback(nodes[-1].memory.end_life, {})
        pair = Pair(loop, *nodes)
        put_chunk(pair.source.store, chunk)
        pair.source.memory.offer_arenas()
        yield pair
