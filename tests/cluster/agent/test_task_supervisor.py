"""The agent's end of the control channel, with a real process at the other end: it is stopped, and holds nothing up."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chicle_elastic.cluster.agent import process_agent, task_supervisor
from chicle_elastic.cluster.agent.process_agent import ProcessAgent
from chicle_elastic.cluster.agent.task_supervisor import TaskSupervisor
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.options import NodeOptions
from chicle_elastic.cluster.rendezvous.job_entry import JobEntry
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.cluster.task_options import TaskOptions
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.control import channel as control_channel
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.runtime.control.channel import Channel, new_address
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.unix_frames import Limits
from tests.cluster.loops import turn_until
from tests.timeouts import timeout_s

TASK = """
import json, os, sys
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.runtime.control.channel import Channel

with Channel.connect(sys.argv[1]) as channel:
    channel.send(control.Hello(pid=os.getpid()))
    seen = []
    while (message := channel.receive()) is not None:
        entry = [type(message).__name__]
        if isinstance(message, control.Arena):
            fd = channel.take_fd()
            entry += [message.index, os.pread(fd, 100, 0).decode()]
            os.close(fd)
        elif isinstance(message, control.Welcome):
            channel.send(control.Loaded(chunk=0, round=0))
        elif isinstance(message, control.Attach):
            entry += [len(message.added), message.added[0].chunk]
        seen.append(entry)
        if isinstance(message, control.Exit):
            break
    channel.send(control.Failed(traceback=json.dumps(seen)))
"""


class Processes:
    """Starts the task above; a launcher for tasks, as the supervisor knows it."""

    def __init__(self, address: str, loop: EventLoop) -> None:
        self.address, self.loop = address, loop
        self.all: list[subprocess.Popen[bytes]] = []

    def start_task(
        self, *, started: Callable[[int], object], ended: Callable[[], object], is_restart: bool = False
    ) -> None:
        self.all.append(subprocess.Popen([sys.executable, "-c", TASK, self.address]))
        started(self.all[-1].pid)
        self.loop.work(lambda: self.all[-1].wait(timeout_s(30)), lambda _: ended())

    def signal_task(self, number: signal.Signals) -> None:
        self.all[-1].send_signal(number)


class Stage:
    """A supervisor with its loop, and what it was told."""

    def __init__(self, loop: EventLoop) -> None:
        self.loop = loop
        self.gone: list[bool] = []
        self.said: list[control.Message] = []
        address = new_address()
        self.processes = Processes(address, loop)
        self.task = TaskSupervisor(
            loop,
            address,
            self.processes,
            welcome=control.Welcome(node=NodeId("n0")),
            on_message=self.said.append,
            on_gone=self.gone.append,
        )

    def turn_until(self, is_there: Callable[[], bool]) -> None:
        """Let the loop turn until something holds."""
        turn_until(is_there, self.loop)

    def stop(self) -> None:
        """Stop the task; it is stopped when this returns."""
        os.kill(self.task.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.task.pid, os.WSTOPPED)


@pytest.fixture
def stage() -> Iterator[Stage]:
    """With a task that was welcomed; no process is left at the end."""
    with EventLoop() as loop:
        stage = Stage(loop)
        stage.task.start()
        stage.turn_until(lambda: bool(stage.said))
        stage.said.clear()
        yield stage
        stage.task.close()
        for process in stage.processes.all:
            process.kill()


def attach(number: int) -> control.Attach:
    """10,000 chunks."""
    added = tuple(
        control.Placement(chunk=ChunkId(number + index), arena=index // 100, slot=index % 100)
        for index in range(10_000)
    )
    return control.Attach(added=added, removed=())


def test_a_stopped_task_holds_nothing_up_and_finds_everything_in_order(stage: Stage, tmp_path: Path) -> None:
    """10,000 chunks to attach, ten times, with a descriptor between each two; the loop turns, nothing is lost."""
    stage.stop()
    for number in range(10):
        stage.task.send(attach(number))
        path = tmp_path / str(number)
        path.write_text(f"arena {number}")
        with path.open() as file:  # closed before the task reads: a message that waits has a descriptor of its own
            stage.task.send(control.Arena(index=number, num_slots=1, slot_bytes=1), file.fileno())
    assert stage.task._channel is not None
    assert stage.task._channel.wants_to_write, "the kernel has taken all of it: nothing waits, and nothing is tested"
    turns: list[str] = []
    stage.loop.later(0.0, lambda: turns.append("timer"))
    stage.loop.work(lambda: "result", lambda future: turns.append(future.result()))
    stage.turn_until(lambda: len(turns) == 2)
    assert stage.task._channel.wants_to_write
    stage.task.send(control.Exit())
    os.kill(stage.task.pid, signal.SIGCONT)
    stage.turn_until(lambda: bool(stage.gone))
    [failed] = stage.said
    assert isinstance(failed, control.Failed)
    expected: list[list[object]] = [["Welcome"]]
    for number in range(10):
        expected += [["Attach", 10_000, number], ["Arena", number, f"arena {number}"]]
    assert json.loads(failed.traceback) == [*expected, ["Exit"]]


def test_the_first_message_to_a_task_is_its_welcome() -> None:
    """A task that was started again ended by an error where it got another message before it had said hello."""
    with EventLoop() as loop:
        stage = Stage(loop)
        with Channel.connect(stage.processes.address) as channel:
            stage.turn_until(lambda: stage.task._channel is not None)
            stage.task.send(control.Vote())
            assert not stage.task.is_connected
            channel.send(control.Hello(pid=os.getpid()))
            stage.turn_until(lambda: stage.task.is_connected)
            stage.task.send(control.Exit())
            assert [type(channel.receive()) for _ in range(2)] == [control.Welcome, control.Exit]
        stage.task.close()


def test_a_task_that_never_reads_is_ended(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it is bounded; the node is told that its task is gone, after the call that went too far."""
    assert stage.task._channel is not None
    limits = Limits(text_bytes=control_channel.MAX_FRAME_BYTES, fds=control_channel.MAX_FDS, unsent_bytes=2_000_000)
    monkeypatch.setattr(stage.task._channel._frames, "_limits", limits)
    stage.stop()
    pid = stage.task.pid
    for number in range(10):
        stage.task.send(attach(number))
    assert stage.gone == []
    stage.turn_until(lambda: bool(stage.gone))
    assert stage.gone == [False]
    assert stage.processes.all[-1].wait(timeout_s(10)) == -signal.SIGKILL
    assert stage.processes.all[-1].pid == pid
    stage.task.send(control.Exit())  # there is no task


HANGS = """
import os, signal, socket, time
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.runtime.control.channel import Channel

signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("x" * 1_000_000, flush=True)
channel = Channel.connect(os.environ["CHICLE_CONTROL"])
channel.send(control.Hello(pid=os.getpid()))
if not os.fork():
    signal.sigwait([signal.SIGUSR1])  # a process of the task holds its output and its channel open
    os._exit(0)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    channel.shut_down()  # no message any more, though the descriptors are open
time.sleep(600)
"""


def test_the_loop_answers_while_a_task_does_not_end_and_nobody_reads_the_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task has lost its channel and ignores SIGTERM; a process of its own holds its channel and its output open; it
    has printed more than the console takes. The loop waited for the end of the task, then for the console."""
    monkeypatch.setattr(task_supervisor, "LAST_S", 1e6)
    node, gone, pids = NodeId("n0"), list[bool](), list[int]()
    store, secret = StoreConnection("127.0.0.1:1"), JobSecret(bytes(32))
    entry = JobEntry(store, run_id="job", node=node, secret=secret, min_nodes=1, max_nodes=1)
    options = TaskOptions(command=(sys.executable, "-c", HANGS), title="", log_dir=str(tmp_path), tee=1)
    console, full = os.pipe()
    ours, peer = socket.socketpair()
    with ours, peer, open(console, "rb") as reader, open(full, "w") as stdout, EventLoop() as loop:
        monkeypatch.setattr(sys, "stdout", stdout)
        agent = ProcessAgent(
            entry=entry, options=NodeOptions(node=node, secret_file=None), task_options=options, restarts=1
        )
        agent._loop = loop
        welcome = control.Welcome(node=node)
        task = TaskSupervisor(
            loop, agent._control, agent, welcome=welcome, on_message=lambda _: None, on_gone=gone.append
        )
        loop.watch(ours, lambda: ours.sendall(ours.recv(1)))
        try:
            task.start()
            turn_until(lambda: task.pid, loop)
            pids.append(task.pid)
            turn_until(lambda: gone, loop)
            task.start(is_restart=True)
            os.kill(pids[0], signal.SIGTERM)
            for _ in range(100):
                peer.sendall(b"?")
                turn_until(lambda: select.select([peer], [], [], 0)[0], loop)
                assert peer.recv(1) == b"?"
            assert agent.task_exit() is None
            os.kill(pids[0], signal.SIGKILL)
            turn_until(lambda: task.is_connected, loop)
            pids.append(task.pid)
            os.kill(pids[1], signal.SIGKILL)
            turn_until(lambda: len(gone) == 2, loop)
        finally:
            reading = threading.Thread(target=reader.read)  # or the end of the agent waits for it
            reading.start()
            task.close()
            for pid in pids:  # what is left of their sessions
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            agent.stop_task()
            stdout.close()
            reading.join()


def test_a_script_may_go_on_after_its_job_and_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent waits for it, and says how it ended: it may have lost the model that it was to save."""
    monkeypatch.setattr(process_agent, "TASK_END_S", 0.1)
    node, secret = NodeId("n0"), JobSecret(bytes(32))
    entry = JobEntry(StoreConnection("127.0.0.1:1"), run_id="job", node=node, secret=secret, min_nodes=1, max_nodes=1)
    command = (sys.executable, "-c", "import time; time.sleep(1); raise SystemExit(3)")
    options = TaskOptions(command=command, title="", log_dir=str(tmp_path))
    agent = ProcessAgent(
        entry=entry, options=NodeOptions(node=node, secret_file=None), task_options=options, restarts=1
    )
    agent.spawn_task()
    ended = agent.script_end()
    assert ended is not None
    assert ended.code == 3
    agent.stop_task()
