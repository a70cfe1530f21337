"""The task's side of the control channel: a thread that receives, so that the main thread can compute.

The thread executes what has to take effect at once: votes, interrupts, breaks, arenas, orders to load, user messages;
and it parses pre-copied rows before the main thread needs them. All other messages wait in the inbox, in order. The end
of the channel ends the process, whatever it is doing: without its agent a task is an orphan.
"""

import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Protocol

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.headers import StateHeader
from chicle_elastic.chunks.layout import Outside
from chicle_elastic.chunks.views import Chunk
from chicle_elastic.errors import ChicleError, ProtocolError
from chicle_elastic.monitoring.records import Transition
from chicle_elastic.runtime.cluster_task.message_router import MessageRouter
from chicle_elastic.runtime.cluster_task.send_queue import SendQueue
from chicle_elastic.runtime.collectives.process_group import ProcessGroup
from chicle_elastic.runtime.collectives.socket_group import GroupNetwork
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.runtime.control.channel import Channel
from chicle_elastic.runtime.control.messages import AgentMessage, TaskMessage
from chicle_elastic.solvers.base import StopFlag
from chicle_elastic.store.arena import SLOT_ALIGNMENT, Arena
from chicle_elastic.values import ChunkInfo

ORPHAN_EXIT_CODE = 70  # EX_SOFTWARE


class Loader(Protocol):
    """Loads chunks into slots (`chunk_loader`)."""

    @property
    def outside(self) -> Outside | None:
        """Return what gives a chunk for its rows; None where a chunk has to bring its rows along."""

    def order(self, load: control.Load, arena: Arena | None) -> None:
        """Load a chunk into its slot, soon; the arena is None where the agent has not sent it."""

    def close(self) -> None:
        """Take no more orders."""


class ControlClient:
    """Connects to the agent and sends the hello. Raises ProtocolError when there is no agent, or one of another
    release."""

    def __init__(self, address: str) -> None:
        self._channel = Channel.connect(address)
        try:
            self._channel.send(control.Hello(pid=os.getpid()))
            welcome = self._channel.receive()
            if not isinstance(welcome, control.Welcome):
                raise ProtocolError(f"the agent answered Hello with {welcome or 'the end of the control channel'}")
        except BaseException:
            self._channel.close()
            raise
        self._send_queue = SendQueue(self._channel.send)
        self.welcome = welcome  # the agent's answer
        self.stop = StopFlag()  # set when the iteration that runs is to end early
        # orders for the main thread; it raises an exception that it finds there
        self.inbox: SimpleQueue[AgentMessage | tuple[control.Round, ProcessGroup] | Exception] = SimpleQueue()
        # the agent's reports on changes of the membership; no thread waits for them
        self.transitions: SimpleQueue[Transition] = SimpleQueue()
        self._arenas: dict[int, Arena] = {}
        self._precopied: dict[tuple[int, int], layout.RowsInPlace] = {}
        self._group: ProcessGroup | None = None
        self._next: ProcessGroup | None = None  # of a round that is foreseen or called
        self._rdma_failures: set[str] = set()
        self._has_vote = False
        self._is_closing = False
        self._loader: Loader | None = None
        self._message_router: MessageRouter | None = None
        self._thread = threading.Thread(target=self._listen, name="chicle-control", daemon=True)

    def start(self, loader: Loader, message_router: MessageRouter) -> None:
        """Begin to receive."""
        self._loader = loader
        self._message_router = message_router
        self._thread.start()

    def send(self, message: TaskMessage) -> None:
        """Send a message to the agent. From any thread. Raises ConnectionError when the agent is gone."""
        self._channel.send(message)

    def saved(
        self, iteration: int, size_bytes: int, duration_s: float, *, is_resumed: bool, has_policies: bool = False
    ) -> None:
        """Tell the agent, if it still runs, that a checkpoint is complete. From any thread."""
        with contextlib.suppress(ConnectionError):
            self.send(
                control.Saved(
                    iteration=iteration,
                    size_bytes=size_bytes,
                    duration_s=duration_s,
                    has_policies=has_policies,
                    is_resumed=is_resumed,
                )
            )

    def expect(self, infos: Sequence[ChunkInfo]) -> int:
        """Tell of chunks that are going to be declared; returns the bytes of a slot, which holds any of them."""
        slot_bytes = -(-max(info.size_bytes for info in infos) // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        self.send(control.Expect(num_chunks=len(infos), slot_bytes=slot_bytes))
        return slot_bytes

    def ended(self, message: control.IterationEnded) -> None:
        """Report an iteration. Where the task goes on by itself, the next one begins before that: an earlier interrupt
        meant the last iteration only, one in reply to the report means the next, and a break means both."""
        if message.goes_on:
            self.stop.clear()
            if self._group is not None and self._group.is_broken:
                self.stop.set()
        self.report(message, is_awaited=not message.goes_on)

    def report(self, message: TaskMessage, *, is_awaited: bool = True) -> None:
        """Send a message of the main thread, in the order of these; one that no process awaits while this thread
        computes."""
        if is_awaited:
            self._send_queue.flush()
            self._channel.send(message)
        else:
            self._send_queue.put(message)

    def arena(self, index: int) -> Arena:
        """An arena of the node. Raises ProtocolError when the agent has not sent it."""
        if index not in self._arenas:
            raise ProtocolError(f"the agent named arena {index}, but has sent {sorted(self._arenas)}")
        return self._arenas[index]

    def decode(self, placement: control.Placement, *, where: str) -> tuple[Chunk, StateHeader]:
        """Return a chunk in place in its slot, and the header of its state. Raises ProtocolError when the agent has not
        sent the arena, ChunkCorruptError when there is no such chunk."""
        assert self._loader is not None
        content = self.arena(placement.arena).view(placement.slot)
        ahead = self._precopied.pop((placement.arena, placement.slot), None)
        return layout.decode_with_state_header(content, where=where, ahead=ahead, outside=self._loader.outside)

    @property
    def has_vote(self) -> bool:
        """Whether to vote for a stop in the next all-reduce."""
        return self._has_vote

    def forget_vote(self) -> None:
        """The main thread has cast the vote."""
        self._has_vote = False

    def close(self, goodbye: TaskMessage) -> None:
        """Send a last message, if the agent still runs; then stop receiving, and close channel and arenas."""
        self._send_queue.close()
        self._is_closing = True  # from now on the end of the channel is expected
        with contextlib.suppress(ConnectionError):
            self._channel.send(goodbye)
        self._channel.shut_down()
        if self._thread.is_alive():
            self._thread.join()
        self._channel.close()
        if self._loader is not None:
            self._loader.close()
        if self._next is not None:
            self._next.close()
        self._precopied.clear()
        for arena in self._arenas.values():
            arena.close()

    def _listen(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                self._handle(message)  # type: ignore[arg-type]  # the channel lets no others through
        except Exception as error:  # the main thread raises it, and tells the agent
            self._interrupt()
            self.inbox.put(error)
            return
        if not self._is_closing:
            self._end_orphan()

    def _handle(self, message: AgentMessage) -> None:
        assert self._loader is not None
        assert self._message_router is not None
        match message:
            case control.Vote():
                self._has_vote = True
            case control.Interrupt():
                self.stop.set()
            case control.Break():
                if self._group is not None and self._group.round == message.round:
                    self._interrupt()
            case control.Deliver():
                self._message_router.deliver(message)
            case Transition():
                self.transitions.put(message)
            case control.Arena():
                fd = self._channel.take_fd()
                self._arenas[message.index] = Arena.attach(
                    fd, num_slots=message.num_slots, slot_bytes=message.slot_bytes
                )
            case control.Precopied():
                for placement in message.chunks:
                    self._parse_precopied(placement)
            case control.Load():
                self._loader.order(message, self._arenas.get(message.arena))
            case control.Connect():
                if self._next is not None:
                    self._next.close()  # another node has come, or one was lost, before all had met
                self._next = ProcessGroup(
                    round=message.round,
                    rank=message.rank,
                    size=len(message.members),
                    names=message.members,
                    rdma_failures=self._rdma_failures,
                )
                network = GroupNetwork.of(**dataclasses.asdict(message.network))
                self._next.begin((message.host, message.port), prefix=message.prefix, network=network)
            case control.Round():
                if self._group is not None:
                    self._group.break_()  # the old group is obsolete, and the main thread may still wait in it
                self._has_vote = False
                assert self._next is not None, "a round that was not called"
                self._group, self._next = self._next, None
                self.inbox.put((message, self._group))
            case control.Iterate():
                self.stop.clear()
                self.inbox.put(message)
            case control.Exit():
                self._interrupt()
                self.inbox.put(message)
            case _:
                self.inbox.put(message)

    def _parse_precopied(self, placement: control.Placement) -> None:
        # By now the agent may be writing another chunk into the slot.
        with contextlib.suppress(ChicleError):
            content = self.arena(placement.arena).view(placement.slot)
            assert self._loader is not None
            rows = layout.find_rows(content, where="pre-copied rows", outside=self._loader.outside)
            self._precopied[placement.arena, placement.slot] = rows

    def _interrupt(self) -> None:
        """Make the main thread return to its inbox soon, whether it computes or waits in the group."""
        if self._group is not None:
            self._group.break_()
        self.stop.set()  # last: `ended` clears it, and looks at the group then

    def _end_orphan(self) -> None:
        with contextlib.suppress(Exception):
            print(f"task of node {self.welcome.node}: the agent is gone; the task ends", file=sys.stderr, flush=True)
        os._exit(ORPHAN_EXIT_CODE)
