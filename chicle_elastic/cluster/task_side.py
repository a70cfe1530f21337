"""The agent's end of the control channel: a task process, from its start to its end, and the next after a crash."""

import contextlib
import logging
import signal
from collections.abc import Callable
from typing import Protocol

from chicle_elastic.cluster.event_loop import EventLoop
from chicle_elastic.cluster.steps import reach
from chicle_elastic.errors import ProtocolError
from chicle_elastic.runtime import control
from chicle_elastic.runtime.channel import Channel, Listener

logger = logging.getLogger(__name__)

POLL_S = 0.2
"""How often to look whether a task has died that never said hello; one that has is seen at once, by its channel."""


class Processes(Protocol):
    """What starts tasks: torch's agent."""

    def start_task(self, *, is_restart: bool = False) -> int:
        """Start a task; returns its process id."""
        ...

    def task_exit(self, timeout_s: float = 0.0) -> object | None:
        """How the task ended, or None when it runs."""
        ...

    def stop_task(self, *, number: signal.Signals = signal.SIGTERM, grace_s: float = 5.0) -> None:
        """End the task."""
        ...


class TaskSide:
    """One task at a time. Everything is called in the loop.

    Args:
        loop: Watches the channel.
        address: Where the task finds this agent.
        processes: Starts tasks.
        welcome: What a task is told first.
        on_message: Takes what the task says; the first message is `Declare`.
        on_gone: Called when the task is gone, with whether it had said that it would go.

    Attributes:
        pid: Of the task; 0 while none runs.
        has_failed: The traceback of a task whose code raised.
    """

    def __init__(
        self,
        loop: EventLoop,
        address: str,
        processes: Processes,
        *,
        welcome: control.Welcome,
        on_message: Callable[[control.Message], object],
        on_gone: Callable[[bool], object],
    ) -> None:
        self.pid = 0
        self.has_failed: str | None = None
        self._loop, self._processes, self._welcome = loop, processes, welcome
        self._on_message, self._on_gone = on_message, on_gone
        self._listener = Listener(address)
        self._loop.watch(self._listener, self._accept)
        self._channel: Channel | None = None
        self._has_said_goodbye = False
        self._is_closed = False

    def start(self, *, is_restart: bool = False) -> None:
        """Start a task."""
        self._has_said_goodbye = False
        self.pid = self._processes.start_task(is_restart=is_restart)
        reach("task.spawned", pid=self.pid)
        self._loop.later(POLL_S, self._look_for_early_end)

    def replace(self) -> None:
        """End the task, which is of no use any more, and start another one."""
        self._hang_up()
        self._processes.stop_task(number=signal.SIGKILL, grace_s=1.0)
        self.start()

    def tell(self, message: control.AgentMessage, fd: int | None = None) -> None:
        """Say something to the task, if there is one."""
        if self._channel is not None:
            with contextlib.suppress(ConnectionError):  # its end will be seen in a moment
                self._channel.send(message, fd=fd)

    def close(self) -> None:
        """Hang up and listen no more: a task that is still there ends."""
        self._is_closed = True
        self._loop.forget(self._listener)
        self._listener.close()
        self._hang_up()

    def _accept(self) -> None:
        try:
            channel = self._listener.accept()
        except ProtocolError as error:  # of a stranger; the task is still to come
            logger.warning("somebody who is not the task has come to its control socket: %s", error)
            return
        if self._channel is not None:
            logger.warning("a second process has come to the control socket of the task; it is hung up on")
            channel.close()
            return
        self._channel = channel
        self._loop.watch(channel, self._read)

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
            logger.error("the task breaks the protocol of the control channel: %s", error)
            is_at_end = True
        if is_at_end:
            self._end()

    def _handle(self, message: control.Message) -> None:
        if isinstance(message, control.Hello):
            self.tell(self._welcome)
            return
        if isinstance(message, control.Left | control.Failed):
            self._has_said_goodbye = True
        if isinstance(message, control.Failed):
            self.has_failed = message.traceback
        self._on_message(message)

    def _look_for_early_end(self) -> None:
        if self._is_closed or self._channel is not None or not self.pid:
            return
        if self._processes.task_exit() is not None:
            self._end()
        else:
            self._loop.later(POLL_S, self._look_for_early_end)

    def _end(self) -> None:
        self._hang_up()
        self.pid = 0
        self._on_gone(self._has_said_goodbye)

    def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self._loop.forget(channel)
            channel.close()
