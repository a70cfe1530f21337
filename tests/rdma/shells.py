"""Nodes without torch around a scheduler: its orders are performed by the real memory of a node, over real RDMA.

What is missing of a cluster is what does not touch a chunk: rendezvous, links, and the task, in whose place the shell
fills slots and counts iterations in the state of each sample.
"""

import json
import time
from collections import deque
from typing import Any

import numpy as np

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.views import Chunk, StateSpec
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.peers import Peer
from chicle_elastic.cluster.transfer.chunk_manager import ChunkManager
from chicle_elastic.cluster.transfer.protocol import orders_of
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings, State
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import Endpoints, TransportSelector
from chicle_elastic.values import ChunkInfo, TaskReport

NUM_CHUNKS = 12
SPEC = StateSpec(outputs=1, width=1)
NUM_ROWS = 500


def chunk_from_source(number: int) -> Chunk:
    """The chunk as its source has it."""
    return Chunk(
        id=ChunkId(number),
        rows=np.random.default_rng(number).normal(size=(NUM_ROWS, 60)),
        targets=np.full(NUM_ROWS, float(number)),
        row_ids=np.arange(NUM_ROWS) + number * NUM_ROWS,
        state=SPEC.zeros(NUM_ROWS),
    )


SIZE_BYTES = layout.encoded_bytes(chunk_from_source(0))
SLOT_BYTES = -(-SIZE_BYTES // 4096) * 4096


class Node:
    """One of them.

    Args:
        cluster: What it belongs to.
        name: Its name.
        host: Address of its device.
    """

    def __init__(self, cluster: "Cluster", name: NodeId, host: str) -> None:
        self.name = name
        self._cluster = cluster
        self.store = ChunkStore(
            slot_bytes=SLOT_BYTES, capacity_bytes=NUM_CHUNKS * SLOT_BYTES, arena_bytes=8 * SLOT_BYTES
        )
        self.transports = TransportSelector(cluster.secret, name=name, tcp_address=f"tcp://{host}:0", has_shm=False)
        self.memory = ChunkManager(
            cluster.loop,
            node=name,
            store=self.store,
            transports=self.transports,
            sizes=(SIZE_BYTES,) * NUM_CHUNKS,
            say=cluster.events.append,
            tell_task=self._tell_task,
            tell_peer=self._tell_peer,
        )

    def chunk(self, number: ChunkId) -> Chunk:
        """The chunk in its slot, as views."""
        place = self.store.address(number)
        return layout.decode(self.store.arenas[place.arena].view(place.slot)[:SIZE_BYTES], where=self.name)

    def close(self) -> None:
        """Give everything up."""
        self.transports.close()
        self.store.close()

    def _tell_task(self, message: control.AgentMessage, fd: int | None) -> None:
        if isinstance(message, control.Load):
            view = self.store.arenas[message.arena].view(message.slot)
            layout.encode(chunk_from_source(message.chunk), view)
            loaded = control.Loaded(chunk=message.chunk, round=message.round)
            self._cluster.loop.soon(lambda: self.memory.loaded(loaded))

    def _tell_peer(self, node: NodeId, kind: str, fields: dict[str, Any]) -> bool:
        told = json.loads(json.dumps(fields))
        endpoints = Endpoints.from_json(json.loads(json.dumps(self.transports.endpoints.to_json())), peer=self.name)
        peer = Peer(life=f"{self.name}#1", link=None, heard_s=0.0, said_s=0.0, endpoints=endpoints)  # type: ignore[arg-type]
        target = self._cluster.nodes[node]
        self._cluster.loop.soon(lambda: target.memory.places(peer, told))
        return True


class Cluster:
    """All of them, and the scheduler. A context manager.

    Args:
        timeout_s: How long anything may take.
    """

    def __init__(self, timeout_s: float) -> None:
        self.secret = JobSecret.generate()
        self.loop = EventLoop()
        self.events: deque[events.Event] = deque()
        self.nodes: dict[NodeId, Node] = {}
        self.scheduler = Scheduler(SchedulerSettings(seed=3))
        self.num_iterations = 0
        self.copies: list[ChunkId] = []
        self.failures: list[events.CopyFailed] = []
        self.expected: dict[ChunkId, float] = {}
        self.loads: list[ChunkId] = []
        self._timeout_s = timeout_s
        self._to_start: effects.StartIteration | None = None
        infos = (
            ChunkInfo(id=ChunkId(number), num_rows=NUM_ROWS, size_bytes=SLOT_BYTES) for number in range(NUM_CHUNKS)
        )
        self.events.append(events.ChunksDeclared(chunks=tuple(infos)))

    def join(self, name: str, host: str) -> None:
        """A node comes."""
        node = self.nodes[NodeId(name)] = Node(self, NodeId(name), host)
        self.events.append(events.NodeJoined(node=node.name, capacity_bytes=node.store.capacity_bytes))

    def leave(self, name: str) -> None:
        """A node is told that it has to go."""
        self.events.append(events.LeaveNoticed(node=NodeId(name)))

    def crash(self, name: str) -> None:
        """A node is gone, and all that it held."""
        lost = self.nodes.pop(NodeId(name))
        lost.close()
        for node in self.nodes.values():
            node.transports.disconnect(lost.transports.endpoints)
            node.memory.lose_source(NodeId(name))
        self.events.append(events.NodeLost(node=NodeId(name)))

    def iterate(self, num_iterations: int = 1) -> None:
        """Let the job run until it has merged this many more iterations, and stands before the next one."""
        goal = self.num_iterations + num_iterations
        end_s = time.monotonic() + self._timeout_s
        while self.num_iterations < goal or self._to_start is None:
            self.loop.turn(0.05 if self._to_start is None and not self.events else 0.0)
            while self.events:
                self._handle(self.events.popleft())
            if self._to_start is not None and self.num_iterations < goal:
                self._iterate(self._to_start)
            assert time.monotonic() < end_s, f"stuck {self.scheduler.state}: {self.scheduler.pause_reason}"

    def iterate_until_complete(self) -> None:
        """Go on until every chunk has an owner again."""
        end_s = time.monotonic() + self._timeout_s
        while self.scheduler.ledger.num_missing:
            self.iterate()
            assert time.monotonic() < end_s, f"{self.scheduler.ledger.num_missing} chunks never came"

    def check(self) -> None:
        """Every chunk is at its owner, byte for byte; its state counts the iterations since it came from its source."""
        ledger = self.scheduler.ledger
        for number in map(ChunkId, range(NUM_CHUNKS)):
            owner = ledger.owner(number)
            assert owner is not None, f"chunk {number} has no owner"
            found, source = self.nodes[owner].chunk(number), chunk_from_source(number)
            np.testing.assert_array_equal(found.rows, source.rows)
            np.testing.assert_array_equal(found.targets, source.targets)
            np.testing.assert_array_equal(found.row_ids, source.row_ids)
            np.testing.assert_array_equal(found.state, np.full_like(source.state, self.expected[number]))

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.loop.close()  # its workers first: they fetch
        for node in self.nodes.values():
            node.close()

    def _handle(self, event: events.Event) -> None:
        if isinstance(event, events.ChunksLoaded):
            self.expected.update(dict.fromkeys(event.chunks, 0.0))
            self.loads += event.chunks
        if isinstance(event, events.ChunksCopied):
            self.copies += event.chunks
        if isinstance(event, events.CopyFailed):
            self.failures.append(event)
        for effect in self.scheduler.handle(event, now=self.loop.now()):
            self._perform(effect)

    def _perform(self, effect: effects.Effect) -> None:
        ledger = self.scheduler.ledger
        match effect:
            case effects.FormRound():
                self._to_start = None
                for name in effect.members:
                    held = self.nodes[name].store.inventory()
                    versions = {chunk: ledger.version(chunk) for chunk in ledger.owned_by(name) if chunk in held}
                    report = events.InventoryReported(node=name, chunks=held | versions, round=effect.round)
                    self.events.append(report)
                self.events.append(events.RoundFormed(round=effect.round, members=effect.members))
            case effects.LoadChunks():
                self.nodes[effect.node].memory.load(effect, merged=ledger.merged)
            case effects.CopyChunks():
                for order in orders_of(effect):
                    self.nodes[effect.target].memory.fetch(order)
                    self.nodes[effect.source].memory.serving.serve(order, version=ledger.version(order.chunk))
            case effects.FreeChunks():
                self.nodes[effect.node].memory.free(effect)
            case effects.AttachChunks():
                self.nodes[effect.node].memory.attach(effect.added, effect.removed)
            case effects.ReleaseNode():
                self.nodes.pop(effect.node).close()
            case effects.StartIteration():
                self._to_start = effect
            case effects.PauseJob():
                self._to_start = None

    def _iterate(self, effect: effects.StartIteration) -> None:
        """What all tasks do: one more in the state of every sample."""
        assert self.scheduler.state is State.RUNNING, self.scheduler.state
        self._to_start = None
        ledger, reports = self.scheduler.ledger, {}
        for name in list(self.nodes):
            owned = ledger.owned_by(name)
            for chunk in owned:
                found = self.nodes[name].chunk(chunk)
                found.state[...] += 1
                self.expected[chunk] += 1
            if owned:
                reports[name] = TaskReport(samples=len(owned) * NUM_ROWS, duration_s=1.0)
        self.num_iterations += 1
        self.events.append(events.IterationFinished(round=effect.round, iteration=effect.iteration, reports=reports))
