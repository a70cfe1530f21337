"""The server of a local cluster: a process with one thread that forks agents, tasks and the rendezvous store.

    python -c "... serve(...)" is started by `local.LocalCluster` when a cluster is first used (`local_start`)

It imports everything once, so that a node is there in tens of milliseconds; torch when the first network comes. Clients
(any process of the same user that has the address) come with jobs, which run one after the other. It ends when it is
told to, when its owner (the process that started it) has ended, or when no client has wanted anything for a while; its
children end with it.

Theory of operation: one loop over the listener, clients, agents and the ends of children; everything else is in
`local_run`. It must stay single-threaded: a child of fork has no other threads, but has the locks that they held.
"""

import contextlib
import functools
import gc
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from chicle_elastic.cluster.agent.task_end import exit_words
from chicle_elastic.cluster.local.forking import ForkedProcess, Forker
from chicle_elastic.cluster.local.job_run import MAX_NODES, JobRun
from chicle_elastic.cluster.local.messages import Connection, Received, accept, fields_of, pair
from chicle_elastic.cluster.local.process_pool import ProcessPool
from chicle_elastic.cluster.net.event_loop import is_registered
from chicle_elastic.errors import ProtocolError
from chicle_elastic.solvers import kernel_cache
from chicle_elastic.waits import tell_through

TURN_S = 0.5  # how often to look whether the owner still lives
END_S = 10.0  # how long agents may take to end by themselves once the client has its outcome


def serve(listener_fd: int, owner: int, idle_s: float) -> None:
    """Serve until the end; the body of the process. `owner`: process that started this one."""
    with tell_through(None):  # the driver explains this wait; here it would take a thread
        preload()
    server = ForkServer(socket.socket(fileno=listener_fd), owner, idle_s)
    gc.enable()
    try:
        server.run()
    finally:
        server.close()


def preload() -> None:
    """Import what agents and tasks need, and have the kernels in memory; no thread is started by any of it."""
    import numpy as np

    from chicle_elastic.chunks.sources import ArraySource
    from chicle_elastic.clock import MonotonicClock
    from chicle_elastic.cluster.agent import node_agent
    from chicle_elastic.cluster.consensus.messages import Message as LogMessage
    from chicle_elastic.cluster.local import agent as local_agent
    from chicle_elastic.cluster.local import task as local_task
    from chicle_elastic.cluster.local import user_code
    from chicle_elastic.cluster.transfer.protocol import Places
    from chicle_elastic.runtime.cluster_task import task as cluster_task
    from chicle_elastic.runtime.cluster_task.warmup import warm_up
    from chicle_elastic.runtime.control import messages as control
    from chicle_elastic.runtime.training.job import Job
    from chicle_elastic.scheduling import codec
    from chicle_elastic.scheduling.events import Event
    from chicle_elastic.solvers.linear import solver
    from chicle_elastic.solvers.linear.trainer import LinearTrainer
    from chicle_elastic.transports.checksum import fastest_crc32

    fastest_crc32()
    codec.prepare([Event, LogMessage, Places, control.TaskMessage, control.AgentMessage])
    "127.0.0.1".encode("idna")  # the first one imports tables
    assert all((node_agent, local_agent, local_task, cluster_task, solver))
    X, y = np.eye(4), np.array([0, 1, 0, 1], dtype=np.int32)
    [trainer] = user_code.load(user_code.dump({"trainer": LinearTrainer()})[0], 1)  # imports cloudpickle, too
    job = Job(trainer=trainer, source=ArraySource(X, y, max_tasks=2), max_iterations=1)
    warm_up(job, trainer.state(job.source.schema), MonotonicClock())


def preload_torch() -> None:
    """Import torch for all tasks at once: each of them would take a second or more, and memory of its own."""
    gc.disable()
    import torch.distributed  # noqa: F401

    gc.freeze()
    gc.enable()


class ForkServer:
    """See the top of the module."""

    def __init__(self, listener: socket.socket, owner: int, idle_s: float) -> None:
        self._listener, self._owner, self._idle_s = listener, owner, idle_s
        self._forker = Forker()
        self._processes = ProcessPool(self._forker)
        self._selector = selectors.DefaultSelector()
        self._clients: set[Connection] = set()
        self._waiting: deque[tuple[Connection, Received]] = deque()
        self._staged: set[Connection] = set()  # clients whose data was there before their jobs could start
        self._run: JobRun | None = None
        self._num_nodes: int | None = None  # when a client has scaled the cluster
        self._end_by_s: float | None = None
        self._busy_s = time.monotonic()
        self._is_ending = False
        self._store: tuple[ForkedProcess, Connection, str] | None = None
        receiver, sender = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(sender)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wakes = receiver
        self._selector.register(receiver, selectors.EVENT_READ, self._drain)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def run(self) -> None:
        """Serve until the end."""
        while not self._is_ending and os.getppid() == self._owner:
            for key, _ in self._selector.select(TURN_S if self._run is None else min(TURN_S, self._run.turn_s)):
                if is_registered(self._selector, key):  # a call before may have closed it
                    key.data()
            for child in self._forker.reap():
                self._processes.ended(child)
                if self._run is not None:
                    self._run.child_ended(child)
                self._forker.close(child)
            self._look_around()

    def close(self) -> None:
        """End all processes."""
        self._forker.end_all()
        self._listener.close()

    # Clients.

    def _accept(self) -> None:
        line = accept(self._listener)
        if line is not None:
            self._clients.add(line)
            self._selector.register(line, selectors.EVENT_READ, functools.partial(self._hear, line))

    def _hear(self, line: Connection) -> None:
        try:
            for said in line.read():
                self._handle(line, said)
        except (ProtocolError, ConnectionError) as error:
            print(f"a client is hung up on: {error}", file=sys.stderr)
            self._hang_up(line)
            return
        if line.is_at_end:
            self._hang_up(line)

    def _handle(self, line: Connection, said: Received) -> None:
        run = self._run if self._run is not None and self._run.client is line else None
        if said.kind == "run":
            fields_of(said, nodes=int)
            for error in kernel_cache.errors:  # which came when no client was here
                line.send("not_kept", error=error)
            self._waiting.append((line, said))
            if self._run is not None:
                line.send("queued", ahead=len(self._waiting))
        elif said.kind == "scale":
            num_nodes = fields_of(said, nodes=int)["nodes"]
            if not 1 <= num_nodes <= MAX_NODES:
                raise ProtocolError(f"a local cluster has 1 to {MAX_NODES} nodes, not {num_nodes}")
            self._num_nodes = num_nodes
            if self._run is not None:
                self._run.scale(num_nodes)
            line.send("scaled")
        elif said.kind == "members":
            line.send("members", members=[] if self._run is None else self._run.members())
        elif said.kind == "staged" and run is not None:
            run.staged()
        elif said.kind == "staged":
            self._staged.add(line)
        elif said.kind == "stop" and run is not None:
            run.stop(fields_of(said, reason=str)["reason"])
        elif said.kind == "over" and run is not None:
            run.ends()
            self._end_by_s = time.monotonic() + END_S
        elif said.kind == "close":
            self._is_ending = True

    def _hang_up(self, line: Connection) -> None:
        self._forget(line)
        self._clients.discard(line)
        self._staged.discard(line)
        for waiting in [waiting for waiting in self._waiting if waiting[0] is line]:
            self._waiting.remove(waiting)
            for fd in waiting[1].fds:
                os.close(fd)
        if self._run is not None and self._run.client is line and self._end_by_s is None:
            self._run.kill()  # its client, which alone wanted the outcome, is gone
        line.close()

    # Jobs.

    def _look_around(self) -> None:
        now = time.monotonic()
        run = self._run
        if run is not None:
            self._busy_s = now
            run.ask_manager()
            if run.is_over:
                self._finish(run)
            elif self._end_by_s is not None and now > self._end_by_s:
                run.kill()
        if self._run is None and self._waiting:
            self._start(*self._waiting.popleft())
        elif self._clients:
            self._busy_s = now
        elif now - self._busy_s > self._idle_s:
            self._is_ending = True

    def _start(self, client: Connection, said: Received) -> None:
        self._end_by_s = None
        job = said.fields.get("job")
        if isinstance(job, dict) and job.get("uses_torch") is True and "torch" not in sys.modules:
            preload_torch()
            self._processes.trim(0)  # those that are there have no torch
        try:
            run = JobRun(
                client,
                said,
                self._processes,
                endpoint=self._endpoint(),
                num_nodes=self._num_nodes or said.fields["nodes"],
                watch=lambda line, call: self._watch(line, call),
                forget=self._forget,
            )
        except (ProtocolError, OSError) as error:
            for fd in said.fds:  # or the memory of the data would stay until this process ends
                os.close(fd)
            _tell_over(client, str(error))
            return
        self._run = run
        if client in self._staged:
            run.staged()
        try:
            run.start()
        except OSError as error:  # no process or memory to be had
            _tell_over(client, f"the job cannot be started: {error}")
            run.kill()

    def _finish(self, run: JobRun) -> None:
        self._run = None
        if run.client in self._clients:
            _tell_over(run.client, "all its nodes have ended")
        run.close()
        self._processes.trim(run.num_nodes)
        if self._store is not None:
            with contextlib.suppress(ConnectionError):
                self._store[1].send("forget", run_id=run.run_id)

    def _endpoint(self) -> str:
        """Where the rendezvous store is; started when there is none, or none any more."""
        if self._store is not None and self._store[0].code is None:
            return self._store[2]
        line, sock = pair()
        child = self._forker.fork("store", functools.partial(_store_body, sock), keep=(sock.fileno(),))
        sock.close()
        said = line.receive(END_S)
        if said is None:
            line.close()
            end = f"ended at its start with {exit_words(self._forker.end(child))}\n{child.printed()}".rstrip()
            self._forker.close(child)
            raise ProtocolError(f"the rendezvous store of the cluster {end}")
        endpoint = str(said.fields["endpoint"])
        self._store = child, line, endpoint
        return endpoint

    # The loop.

    def _watch(self, line: Connection, call: Callable[[], Any]) -> None:
        self._selector.register(line, selectors.EVENT_READ, call)

    def _forget(self, line: Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(line)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakes, 4096)


def _tell_over(client: Connection, reason: str) -> None:
    with contextlib.suppress(ConnectionError):
        client.send("over", reason=reason)


def _store_body(sock: socket.socket) -> int:
    from chicle_elastic.cluster.local.agent import run_store

    return run_store(sock)
