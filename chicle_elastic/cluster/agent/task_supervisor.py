"""The agent's end of the control channel: a task process from its start to its end, and its successor after a crash.

The agent never waits for its task. A task that is stopped for a while finds its messages when it goes on; one that has
not read for so long that the channel's limit is reached is ended, because it would miss messages.
"""

import contextlib
import dataclasses
import functools
import logging
import signal
from collections.abc import Callable

from chicle_elastic.cluster.agent.node_protocols import Launcher
from chicle_elastic.cluster.net.event_loop import EventLoop, Timer
from chicle_elastic.cluster.net.fault_points import hit
from chicle_elastic.errors import ProtocolError
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.runtime.control.channel import Channel, Listener
from chicle_elastic.transports.unix_frames import NotReadingError

logger = logging.getLogger(__name__)

LAST_S = 1.0  # how long a task whose channel is gone may take to end before it is killed, and the next one starts


class TaskSupervisor:
    """One task at a time. Everything is called in the loop.

    Args:
        on_gone: Called when the task is gone, with whether it had announced its end.
    """

    def __init__(
        self,
        loop: EventLoop,
        address: str,
        processes: Launcher,
        *,
        welcome: control.Welcome,
        on_message: Callable[[control.Message], object],
        on_gone: Callable[[bool], object],
    ) -> None:
        self.pid = 0  # of the task; 0 while none runs
        self.has_failed: str | None = None  # the traceback of a task whose code raised
        self._loop, self._processes, self._welcome = loop, processes, welcome
        self._on_message, self._on_gone = on_message, on_gone
        self._listener = Listener(address)
        self._loop.watch(self._listener, self._accept)
        self._channel: Channel | None = None
        self._is_greeted = self._has_said_goodbye = False
        self._is_closed = False
        self._is_alive = False  # from the order to start a process until it has ended, also without a channel
        self._next: Callable[[], object] | None = None  # starts the next task when this process has ended
        self._kill: Timer | None = None

    def start(self, *, is_restart: bool = False) -> None:
        """Start a task as soon as the one before, which may take `LAST_S`, has ended. Never waits."""
        self._next = functools.partial(self._start, is_restart)
        if not self._is_alive:
            self._start_next()
        elif self._kill is None:
            end = functools.partial(self._processes.signal_task, signal.SIGKILL)
            self._kill = self._loop.later(LAST_S, end)

    def replace(self) -> None:
        """Kill the task, which works for a job that is over, and start another one."""
        self._hang_up()
        self.pid = 0
        self._processes.signal_task(signal.SIGKILL)
        self.start()

    @property
    def is_connected(self) -> bool:
        """Whether the task has come far enough to be told something."""
        return self._channel is not None and self._is_greeted

    def send(self, message: control.AgentMessage, fd: int | None = None) -> None:
        """Send a message to the task, if there is one that has been welcomed. Never waits."""
        channel = self._channel
        if channel is None or not self._is_greeted:
            return
        try:
            channel.post(message, fd=fd)
        except NotReadingError as error:
            logger.error("the task is ended: %s", error)
            self._hang_up()
            self._loop.soon(functools.partial(self._end_deaf, self.pid))  # not inside the caller, who folds an entry
        except ConnectionError:
            pass  # the loop will notice the end of the task in a moment
        else:
            if channel.wants_to_write:
                self._loop.watch(channel, self._on_ready, writing=True)

    def close(self) -> None:
        """Close the channel and the listener: a task that still runs ends by that."""
        self._is_closed = True
        self._loop.forget(self._listener)
        self._listener.close()
        self._hang_up()

    def _accept(self) -> None:
        try:
            channel = self._listener.accept()
        except ProtocolError as error:  # from another process; the task is still to connect
            logger.warning("a process that is not the task has connected to its control socket: %s", error)
            return
        if self._channel is not None:
            logger.warning("a second process has connected to the control socket of the task; closing its connection")
            channel.close()
            return
        self._channel, self._is_greeted = channel, False
        self._loop.watch(channel, self._on_ready)

    def _on_ready(self) -> None:
        channel = self._channel
        if channel is not None and channel.wants_to_write:
            with contextlib.suppress(ConnectionError):  # to be read in a moment: the end of the task
                channel.flush()
            self._loop.watch(channel, self._on_ready, writing=channel.wants_to_write)
        self._read()

    def _read(self) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            for message in channel.read():
                self._handle(message)
                if self._channel is not channel:
                    return
            is_at_end = channel.is_at_end
        except ProtocolError as error:
            logger.error("the task has broken the protocol of the control channel: %s", error)
            is_at_end = True
        if is_at_end:
            self._end()

    def _handle(self, message: control.Message) -> None:
        if isinstance(message, control.Hello):
            self._is_greeted = True
            self.send(self._welcome)
            return
        if isinstance(message, control.Left | control.Failed):
            self._has_said_goodbye = True
        if isinstance(message, control.Failed):
            self.has_failed = message.traceback
        self._on_message(message)

    def _start_next(self) -> None:
        start, self._next = self._next, None
        if start is not None and not self._is_closed:
            start()

    def _start(self, is_restart: bool) -> None:
        self._has_said_goodbye = False
        self._welcome = dataclasses.replace(self._welcome, is_restart=is_restart)
        self._is_alive = True
        self._loop.forget(self._listener)  # nobody is accepted before the process id is known
        # At the end of the turn: in the same one, the last connection of the process is accepted.
        ended = functools.partial(self._loop.soon, self._has_ended)
        self._processes.start_task(started=self._has_started, ended=ended, is_restart=is_restart)

    def _has_started(self, pid: int) -> None:
        if self._is_closed:
            return
        hit("task.spawned", pid=pid)
        if self._next is None:
            self.pid = pid
            self._loop.watch(self._listener, self._accept)
        else:  # it was to be replaced before it was there
            self._processes.signal_task(signal.SIGKILL)

    def _has_ended(self) -> None:
        """The process is gone: its channel, which a process of its own may hold open, says nothing any more."""
        self._is_alive = False
        if self._kill is not None:
            self._kill.cancel()
            self._kill = None
        if self._is_closed:
            return
        self._read()
        if self.pid and not self._is_alive:
            self._end()
        elif not self._is_alive:
            self._start_next()

    def _end_deaf(self, pid: int) -> None:
        """End the task that does not read, unless it has ended, or another one runs by now."""
        if self._channel is None and self.pid == pid and not self._is_closed:
            self._processes.signal_task(signal.SIGKILL)
            self._end()

    def _end(self) -> None:
        self._hang_up()
        self.pid = 0
        self._on_gone(self._has_said_goodbye)

    def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self._loop.forget(channel)
            channel.close()
