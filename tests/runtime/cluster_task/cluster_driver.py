"""Plays the agents of a small cluster: the other end of the control channel, for tests of the task.

Nothing of the task is replaced: it is a real process, started like by an agent, over a real channel, with arenas of a
real chunk store. What agents decide together is here simply told by the test, in order.
"""

import faulthandler
import json
import multiprocessing
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing import forkserver
from pathlib import Path
from select import select
from typing import Any, TypeVar

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.runtime.control.channel import Channel, Listener, new_address
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.values import StateVersion
from tests.chunk_slots import bytes_in_slot
from tests.runtime.cluster_task import cluster_apps
from tests.timeouts import timeout_s

MESSAGE_TIMEOUT_S = 60

M = TypeVar("M", bound=control.Message)

# Tasks (and agents: tests/cluster) are forked from a process that has everything imported: seconds per task otherwise.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "tests.runtime.cluster_task.cluster_apps",
        "chicle_elastic.cluster.launcher",
        "chicle_elastic.launch",
        "torch.distributed.run",
        "chicle_elastic.runtime.cluster_task.task",
        "chicle_elastic.solvers.linear.solver",
    ]
)


def start_fork_server() -> None:
    """Start the process that tasks are forked from; it stays until the tests are over."""
    forkserver.ensure_running()


def run_app(app: str, out: str, log: str, environment: Mapping[str, str]) -> None:
    """Body of a task process."""
    with open(log, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.dump_traceback_later(timeout_s(0.75 * MESSAGE_TIMEOUT_S))  # a task that hangs says where
    os.environ.update(environment)
    cluster_apps.main(app, out)


class Node:
    """One node: its chunk store, and its task."""

    # From `get_hot` on.
    channel: Channel
    declared: control.Declare
    store: ChunkStore

    def __init__(self, name: str, app: str, folder: Path, store_port: int, *, max_nodes: int = 4) -> None:
        self.name = NodeId(name)
        self.folder = folder / name
        self.folder.mkdir(mode=0o700)
        self.out = self.folder / "outcome.json"
        self.log = self.folder / "task.log"
        self.port = store_port
        self.addresses: set[int] = set()
        self.attached: set[ChunkId] = set()
        self._waiting: list[control.Message] = []
        self._num_arenas_sent = 0
        self._opened = ExitStack()
        self.listener = self._opened.enter_context(Listener(new_address()))
        environment = {"CHICLE_CONTROL": self.listener.address, "CHICLE_MAX_NODES": str(max_nodes)}
        arguments = (app, str(self.out), str(self.log), environment)
        self.process = CONTEXT.Process(target=run_app, args=arguments, name=name)
        self.process.start()

    def signal(self, number: int) -> None:
        """Send a signal to the task."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def exit_code(self) -> int | None:
        """Of the process, once it has ended."""
        self.process.join(timeout_s(30))
        return self.process.exitcode

    def get_hot(self, **welcome: Any) -> None:
        """Say welcome, and wait until the node could join."""
        assert select([self.listener], [], [], timeout_s(MESSAGE_TIMEOUT_S))[0], self.log.read_text()
        self.channel = self._opened.enter_context(self.listener.accept())
        assert self.expect(control.Hello).pid == self.process.pid
        self.say(control.Welcome(node=self.name, **welcome))
        expected = self.expect(control.Expect)
        self.declared = self.expect(control.Declare)
        assert (expected.num_chunks, expected.slot_bytes) == (len(self.declared.rows), self.declared.slot_bytes)
        num_slots = len(self.declared.rows) + 2
        slot_bytes = self.declared.slot_bytes
        store = ChunkStore(slot_bytes=slot_bytes, capacity_bytes=num_slots * slot_bytes)
        self.store = self._opened.enter_context(store)

    def say(self, message: control.Message, *, fd: int | None = None) -> None:
        """Tell the task."""
        self.channel.send(message, fd=fd)

    def expect(self, kind: type[M]) -> M:
        """The next message of the task, which has to be of this kind; posts are put aside."""
        message = self.next()
        assert isinstance(message, kind), f"{self.name} said {message}\n{self.log.read_text()}"
        if isinstance(message, control.GroupReady | control.IterationEnded):
            self.addresses.add(message.model_address)
        return message

    def next(self) -> control.Message:
        """The next message of the task."""
        while not self._waiting:
            assert select([self.channel], [], [], timeout_s(MESSAGE_TIMEOUT_S))[0], (
                f"{self.name} says nothing\n{self.log.read_text()}"
            )
            self._waiting += self.channel.read()
            assert self._waiting or not self.channel.is_at_end, f"{self.name} is gone\n{self.log.read_text()}"
        return self._waiting.pop(0)

    def load(self, chunks: Sequence[int], round: int = 1, merged: int = 0) -> None:
        """Let the task get chunks from their source."""
        for chunk in chunks:
            self.store.reserve(ChunkId(chunk), self.declared.size_bytes[chunk])
            self.say_arenas()
            address = self.store.address(ChunkId(chunk))
            self.say(
                control.Load(chunk=ChunkId(chunk), arena=address.arena, slot=address.slot, round=round, merged=merged)
            )
        for chunk in chunks:
            assert self.expect(control.Loaded) == control.Loaded(chunk=ChunkId(chunk), round=round)
            self.store.commit(ChunkId(chunk))

    def say_arenas(self) -> None:
        """Announce the arenas that the task does not know."""
        for index, arena in enumerate(self.store.arenas[self._num_arenas_sent :], start=self._num_arenas_sent):
            announced = control.Arena(index=index, num_slots=arena.num_slots, slot_bytes=arena.slot_bytes)
            self.say(announced, fd=arena.fileno())
        self._num_arenas_sent = len(self.store.arenas)

    def say_ahead(self, chunk: ChunkId) -> None:
        """Tell the task that the rows of a chunk have come."""
        self.say_arenas()
        address = self.store.address(chunk)
        self.say(control.Precopied(chunks=(control.Placement(chunk=chunk, arena=address.arena, slot=address.slot),)))

    def attach(self) -> None:
        """Tell the task what its node holds now."""
        held = set(self.store.inventory())
        added = [
            control.Placement(chunk=chunk, arena=address.arena, slot=address.slot)
            for chunk in sorted(held - self.attached)
            for address in [self.store.address(chunk)]
        ]
        self.say(control.Attach(added=tuple(added), removed=tuple(sorted(self.attached - held))))
        self.attached = held

    def outcome(self) -> dict[str, Any]:
        """What `run` returned, after the end of the process."""
        assert self.expect(control.Left) == control.Left()
        assert self.exit_code() == 0, self.log.read_text()
        return dict(json.loads(self.out.read_text()))

    def end(self) -> None:
        """End the process, and give everything back."""
        if self.process.is_alive():
            self.signal(signal.SIGKILL)
        self.process.join(timeout_s(30))
        self.process.close()
        self._opened.close()


class Driver:
    """Starts nodes and tells them what their agents would."""

    def __init__(self, folder: Path, store_port: int, run: str) -> None:
        self.folder = folder
        self.port = store_port
        self.run = run
        self.nodes: list[Node] = []
        self.members: list[Node] = []
        self.round = 0
        self.iteration = 0
        self.merged = 0

    def start(self, app: str, *names: str, **welcome: Any) -> list[Node]:
        """Start nodes, all at once, and wait until they are hot."""
        nodes = [Node(name, app, self.folder, self.port) for name in names]
        self.nodes += nodes
        for node in nodes:
            node.get_hot(**welcome)
        return nodes

    def begin(self, app: str, *names: str, **welcome: Any) -> list[Node]:
        """Start nodes, share the chunks among them, and form the first round."""
        nodes = self.start(app, *names, **welcome)
        self.share(nodes)
        self.form(nodes)
        return nodes

    def share(self, nodes: Sequence[Node]) -> None:
        """Load all chunks, round robin."""
        for index, node in enumerate(nodes):
            node.load(list(range(len(node.declared.rows)))[index :: len(nodes)])

    def move(self, chunk: ChunkId, source: Node, target: Node) -> None:
        """What agents do: copy the rows, tell the target's task of them, then seal, copy, commit, free."""
        content = bytes_in_slot(source.store, chunk)
        slot = target.store.reserve(chunk, len(content))
        _, num_ahead = source.store.immutable_extent(chunk)
        slot[:num_ahead] = content[:num_ahead]
        target.say_ahead(chunk)
        source.store.seal(chunk)
        slot[num_ahead:] = content[num_ahead:]
        target.store.commit(chunk)
        source.store.free(chunk)

    def announce_round(
        self,
        members: Sequence[Node],
        *,
        has_losses: bool = False,
        merged: int = 0,
        merged_round: int = 0,
        returned: Collection[Node] = (),
    ) -> None:
        """Tell the members of the next round, and do not wait."""
        self.call_round(members)
        for node in members:
            node.say(
                control.Round(
                    round=self.round,
                    members=tuple(member.name for member in members),
                    has_losses=has_losses,
                    merged=merged,
                    merged_round=merged_round,
                    is_return=node in returned,
                    capacity_bytes=(None,) * len(members),
                    chunk_bytes=1,
                )
            )

    def call_round(self, members: Sequence[Node]) -> None:
        """Tell the members of a round that they are to meet."""
        self.round += 1
        self.members = list(members)
        names = tuple(member.name for member in members)
        for rank, node in enumerate(members):
            node.say(
                control.Connect(
                    round=self.round,
                    rank=rank,
                    members=names,
                    host="127.0.0.1",
                    port=self.port,
                    prefix=f"{self.run}/{self.round}",
                    network=control.RoundNetwork(bind="127.0.0.1", advertise="127.0.0.1", key="ab" * 32),
                )
            )

    def form(self, members: Sequence[Node], *, has_losses: bool = False) -> None:
        """Form a round, and attach what the members hold."""
        self.announce_round(members, has_losses=has_losses)
        ready = [node.expect(control.GroupReady) for node in members]
        assert len({(message.round, message.merged) for message in ready}) == 1
        self.iteration = self.merged = ready[0].merged
        for node in members:
            node.attach()

    def order(
        self,
        *,
        is_complete: bool = True,
        lines: tuple[str, ...] = (),
        may_go_on: bool = False,
        must_rebuild: bool = False,
    ) -> None:
        """Start an iteration, and do not wait."""
        self.iteration += 1
        num_tasks = sum(bool(node.attached) for node in self.members)
        for node in self.members:
            node.say(
                control.Iterate(
                    round=self.round,
                    iteration=self.iteration,
                    is_complete=is_complete,
                    num_tasks=num_tasks,
                    lines=lines,
                    may_go_on=may_go_on,
                    must_rebuild=must_rebuild,
                )
            )

    def hear(self) -> list[control.IterationEnded]:
        """What the members say of an iteration: all the same."""
        ended = [node.expect(control.IterationEnded) for node in self.members]
        common = {
            (message.round, message.iteration, message.votes, message.stop_reason, str(message.figures))
            for message in ended
        }
        assert len(common) == 1
        assert all(message.reports == ended[0].reports for message in ended)
        for node in self.members:
            node.store.advance(StateVersion(self.round, self.iteration), node.store.inventory())
        self.merged = self.iteration
        return ended

    def iterate(self, number: int = 1, **options: Any) -> list[control.IterationEnded]:
        """Whole iterations; the messages of the last."""
        for _ in range(number):
            self.order(**options)
            ended = self.hear()
        return ended

    def train(self) -> str:
        """Iterate until the trainer stops; its reason."""
        while (reason := self.iterate()[0].stop_reason) is None:
            pass
        return reason

    def finish(self, reason: str = "done") -> list[dict[str, Any]]:
        """End the job, and give every outcome."""
        for node in self.members:
            node.attach()
            node.say(control.Finish(reason=reason, merged=self.merged))
        return [node.outcome() for node in self.members]
