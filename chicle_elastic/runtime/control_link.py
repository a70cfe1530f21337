"""The task's side of the control channel: a thread that listens, so that the main thread can compute.

What has to take effect at once is done in the thread: votes, interrupts, breaks, arenas, orders to load, messages
between solvers; and looks at rows that came ahead, while nobody waits for them. Everything else waits in the inbox, in
order. The end of the channel ends the process, wherever it is: without its agent a task is an orphan.
"""

import contextlib
import os
import sys
import threading
from queue import SimpleQueue

from chicle_elastic.chunks import layout
from chicle_elastic.errors import ChunkCorruptError, ProtocolError
from chicle_elastic.monitoring.records import Transition
from chicle_elastic.runtime import control
from chicle_elastic.runtime.channel import Channel
from chicle_elastic.runtime.control import AgentMessage, TaskMessage
from chicle_elastic.runtime.group import Group
from chicle_elastic.runtime.loader import ChunkLoader
from chicle_elastic.runtime.post_office import PostOffice
from chicle_elastic.solvers.base import StopFlag
from chicle_elastic.store.arena import Arena

ORPHAN_EXIT_CODE = 70  # EX_SOFTWARE


class ControlLink:
    """Connects to the agent and says hello.

    Args:
        address: Of the agent's socket.

    Attributes:
        welcome: What the agent answered.
        stop: Set when the iteration that runs is to end early.
        inbox: What the main thread has to do, in order; an exception is to be raised there.
        transitions: What the agent said of changes of the membership; nothing waits for it.

    Raises:
        ProtocolError: There is no agent, or one of another release.
    """

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
        self.welcome = welcome
        self.stop = StopFlag()
        self.inbox: SimpleQueue[AgentMessage | tuple[control.Round, Group] | Exception] = SimpleQueue()
        self.transitions: SimpleQueue[Transition] = SimpleQueue()
        self._arenas: dict[int, Arena] = {}
        self._ahead: dict[tuple[int, int], layout.RowsInPlace] = {}
        self._group: Group | None = None
        self._has_vote = False
        self._is_closing = False
        self._loader: ChunkLoader | None = None
        self._post_office: PostOffice | None = None
        self._thread = threading.Thread(target=self._listen, name="chicle-control", daemon=True)

    def start(self, loader: ChunkLoader, post_office: PostOffice) -> None:
        """Begin to listen."""
        self._loader = loader
        self._post_office = post_office
        self._thread.start()

    def send(self, message: TaskMessage) -> None:
        """Tell the agent. From any thread.

        Raises:
            ConnectionError: The agent is gone.
        """
        self._channel.send(message)

    def arena(self, index: int) -> Arena:
        """An arena of the node.

        Raises:
            ProtocolError: The agent has not sent it.
        """
        if index not in self._arenas:
            raise ProtocolError(f"the agent spoke of arena {index}, and has sent {sorted(self._arenas)}")
        return self._arenas[index]

    def take_ahead(self, placement: control.Placement) -> layout.RowsInPlace | None:
        """What was read of a chunk in this slot before it came, if anything."""
        return self._ahead.pop((placement.arena, placement.slot), None)

    @property
    def has_vote(self) -> bool:
        """Whether to vote for a stop in the next all-reduce."""
        return self._has_vote

    def forget_vote(self) -> None:
        """The vote was cast."""
        self._has_vote = False

    def begin_next(self) -> None:
        """The main thread goes on by itself: an interrupt meant the iteration before, a break means this one, too."""
        self.stop.clear()
        if self._group is not None and self._group.is_broken:
            self.stop.set()

    def close(self, last_word: TaskMessage) -> None:
        """Say a last word, if the agent still hears; then stop listening, and give channel and arenas back."""
        self._is_closing = True  # the end of the channel is no fault from now on
        with contextlib.suppress(ConnectionError):
            self._channel.send(last_word)
        self._channel.shut_down()
        if self._thread.is_alive():
            self._thread.join()
        self._channel.close()
        if self._loader is not None:
            self._loader.close()
        for arena in self._arenas.values():
            arena.close()

    def _listen(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                self._handle(message)  # type: ignore[arg-type]  # the channel lets no others through
        except Exception as error:  # the main thread raises it, and tells the agent
            self._cut_short()
            self.inbox.put(error)
            return
        if not self._is_closing:
            self._end_orphan()

    def _handle(self, message: AgentMessage) -> None:
        assert self._loader is not None
        assert self._post_office is not None
        match message:
            case control.Vote():
                self._has_vote = True
            case control.Interrupt():
                self.stop.set()
            case control.Break():
                if self._group is not None and self._group.round == message.round:
                    self._cut_short()
            case control.Deliver():
                self._post_office.deliver(message)
            case Transition():
                self.transitions.put(message)
            case control.Arena():
                fd = self._channel.take_fd()
                self._arenas[message.index] = Arena.attach(
                    fd, num_slots=message.num_slots, slot_bytes=message.slot_bytes
                )
            case control.Ahead():
                for placement in message.chunks:
                    self._look_ahead(placement)
            case control.Load():
                self._loader.order(message, self._arenas.get(message.arena))
            case control.Round():
                if self._group is not None:
                    self._group.break_()  # nobody needs it any more, and the main thread may still wait in it
                self._has_vote = False
                self._group = Group(round=message.round, rank=message.rank, size=len(message.members))
                self.inbox.put((message, self._group))
            case control.Iterate():
                self.stop.clear()
                self.inbox.put(message)
            case control.Exit():
                self._cut_short()
                self.inbox.put(message)
            case _:
                self.inbox.put(message)

    def _look_ahead(self, placement: control.Placement) -> None:
        # By now the slot may have been given to another chunk, which is just being written into it.
        with contextlib.suppress(ChunkCorruptError, ProtocolError):
            content = self.arena(placement.arena).view(placement.slot)
            self._ahead[placement.arena, placement.slot] = layout.find_rows(content, where="rows that came ahead")

    def _cut_short(self) -> None:
        """Let the main thread come to its inbox soon, wherever it is."""
        if self._group is not None:
            self._group.break_()
        self.stop.set()  # last: `begin_next` clears it, and looks at the group then

    def _end_orphan(self) -> None:
        with contextlib.suppress(Exception):
            print(f"task of node {self.welcome.node}: the agent is gone; the task ends", file=sys.stderr, flush=True)
        os._exit(ORPHAN_EXIT_CODE)
