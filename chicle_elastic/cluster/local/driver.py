"""What the driver does while a local cluster runs its job: told of each iteration, asked, and given the outcome.

One loop over the line to the server and a line to each task (`local_task` has the words). Ctrl-C ends the job at its
next boundary, so that its outcome is certified as ever. Where that takes longer than a moment, the outcome is the last
merged model, which the tasks send while they compute, without a certificate. Before the first merge there is none. A
second Ctrl-C gives up at once.
"""

import contextlib
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from chicle_elastic import errors
from chicle_elastic.chunks.views import Array
from chicle_elastic.cluster.agent.task_end import exit_words
from chicle_elastic.cluster.local.messages import Connection, Received
from chicle_elastic.cluster.net.event_loop import is_registered
from chicle_elastic.errors import ChicleError, JobFailedError, PeerLostError
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.job_ledger import JobLedger
from chicle_elastic.monitoring.records import IterationRecord, Member, Transition
from chicle_elastic.runtime.training.job import Job, Outcome
from chicle_elastic.solvers.base import Report
from chicle_elastic.solvers.kernel_cache import tell_not_kept
from chicle_elastic.values import ChunkAccount
from chicle_elastic.waits import Wait, tell

STOP_TIMEOUT_S = 0.6  # how long a job that was interrupted may take to give its outcome
GAP_S = 0.5  # how long records of later iterations wait for those before them
BY_CALLER = "ended by a callback"
INTERRUPTED = "interrupted"


class Driver:
    """Drives one job.

    Args:
        server: To the server; "run" was said already, and the data is staged.
        start: Explains the wait for the first task; stopped when that is there.
        how_server_ended: Says how the server has ended, "ended with exit code 1" and its last words, as far as known.
    """

    def __init__(self, server: Connection, job: Job, start: Wait, how_server_ended: Callable[[], str]) -> None:
        self._server, self._job, self._start = server, job, start
        self._how_server_ended = how_server_ended
        self._selector = selectors.DefaultSelector()
        self._tasks: dict[Connection, str] = {}
        self._done: list[Connection] = []
        self._sender: Connection | None = None
        self._outcome: Outcome | None = None
        self._members: dict[str, Member] = {}
        self._noted = History()
        self._told: set[tuple[int, bool]] = set()
        self._last_told = 0
        self._early: dict[int, IterationRecord] = {}
        self._early_s = 0.0
        self._answers: dict[int, bool] = {}
        self._failure: Exception | None = None
        self._waits: set[str] = set()
        self._ends: list[str] = []
        self._stop_by_s: float | None = None
        self._is_interrupted = False
        self._kept: Outcome | None = None
        self._watch(server, self._hear_server)

    def run(self) -> Outcome:
        """Until the outcome is here. Raises JobFailedError with node and traceback when a task has failed, ChicleError
        as a task raised it, with its node, PeerLostError when the cluster is gone, KeyboardInterrupt for Ctrl-C before
        the first iteration has ended, or twice."""
        with _ctrl_c_calls(self._interrupt) as wakes:
            self._selector.register(wakes, selectors.EVENT_READ, lambda: self._end_early(wakes))
            try:
                while self._outcome is None:
                    left_s = None if self._stop_by_s is None else max(0.0, self._stop_by_s - time.monotonic())
                    for key, _ in self._selector.select(left_s):
                        if is_registered(self._selector, key):
                            key.data()
                    if self._stop_by_s is not None and time.monotonic() > self._stop_by_s:
                        if self._kept is None:
                            raise KeyboardInterrupt
                        return self._kept  # the server ends the processes of a job whose client hangs up
            finally:
                for line in (*self._tasks, *self._done):
                    line.close()
                self._selector.close()
        self._server.send("over")
        if self._is_interrupted and not self._outcome.history:
            raise KeyboardInterrupt
        for record in self._outcome.history:
            self._tell(record)
        return self._outcome

    # The server.

    def _hear_server(self) -> None:
        for said in self._server.read():
            if said.kind == "agent":
                self._members[said.fields["node"]] = Member(
                    node=said.fields["node"], agent_pid=said.fields["pid"], pid=0
                )
            elif said.kind == "queued":
                self._start.text = "waiting for another fit on this local cluster"
            elif said.kind == "not_kept":
                tell_not_kept(said.fields["error"])
            elif said.kind == "task":
                self._start.stop()
                self._add_task(said)
            elif said.kind == "ended" and said.fields["code"]:
                fields = said.fields
                end = f"the {fields['what']} of node {fields['node']} ended with {exit_words(fields['code'])}"
                self._ends.append(f"{end}{fields['why']}\n{fields['printed']}".rstrip())
            elif said.kind == "over":
                self._give_up(said.fields["reason"])
        if self._server.is_at_end:
            self._give_up(f"its server {self._how_server_ended() or 'is gone'}")

    def _add_task(self, said: Received) -> None:
        node = said.fields["node"]
        member = self._members[node]
        # A task that was started again counts as the member's: it is the one that can be looked at, or killed.
        self._members[node] = Member(node=node, agent_pid=member.agent_pid, pid=said.fields["pid"])
        line = Connection(socket.socket(fileno=said.fds[0]))
        self._tasks[line] = node
        self._watch(line, lambda: self._hear_task(line))
        with contextlib.suppress(ConnectionError):  # its end will be seen
            line.send("staged")

    def _give_up(self, reason: str) -> None:
        """There will be no outcome."""
        for line in list(self._tasks):  # what was said last may still be unread
            self._hear_task(line)
        if self._outcome is not None:
            return
        if self._failure is not None:
            raise self._failure
        if self._is_interrupted:
            self._stop_by_s = 0.0
            return
        how = "".join(f"\n- {end}" for end in self._ends[-4:])
        raise PeerLostError(f"the local cluster has ended without an outcome: {reason}{how}")

    # Tasks.

    def _hear_task(self, line: Connection) -> None:
        for said in line.read():
            if said.kind == "records":
                for fields in said.fields["records"]:
                    self._hear_record(_record(fields))
                for fields in said.fields["transitions"]:
                    self._note(Transition.of(fields))
            elif said.kind == "ask":
                self._answer(line, said)
            elif said.kind == "wait":
                self._tell_wait(said.fields["text"])
            elif said.kind == "done":
                self._done.append(line)
                self._ask_for_outcome()
            elif said.kind == "outcome":
                self._outcome = self._read_outcome(said)
            elif said.kind == "kept":
                self._keep(said)
            elif said.kind == "raised":
                self._fail(self._tasks[line], said.fields)
        if line.is_at_end and line in self._tasks:
            self._selector.unregister(line)
            del self._tasks[line]
            if line in self._done:
                self._done.remove(line)
            if line is self._sender:
                self._sender = None
                self._ask_for_outcome()
            line.close()

    def _fail(self, node: str, fields: Mapping[str, Any]) -> None:
        """A task has failed: the job with it, at once; what fails because another one has is no news."""
        error = _error_of(node, fields)
        if fields["error"] != JobFailedError.__name__:
            raise error
        self._failure = self._failure or error

    def _ask_for_outcome(self) -> None:
        """Have one of the tasks that are done send it; another one if that dies."""
        while self._outcome is None and self._sender is None and self._done:
            self._sender = self._done[0]
            try:
                self._sender.send("send")
            except ConnectionError:
                self._done.remove(self._sender)
                self._sender = None

    def _hear_record(self, record: IterationRecord) -> None:
        """Tell the caller of an iteration, in order: tasks report in batches, and a newcomer may be the first. What is
        missing can be lost with the task that had it, so the caller waits for `GAP_S` at most."""
        if record.iteration <= self._last_told:
            return
        now = time.monotonic()
        if not self._early:
            self._early_s = now
        self._early.setdefault(record.iteration, record)
        is_late = now - self._early_s > GAP_S
        while self._early and (is_late or self._last_told in (0, min(self._early) - 1)):
            self._tell(self._early.pop(min(self._early)))

    def _tell(self, record: IterationRecord) -> None:
        """Tell the caller of an iteration, once, whichever task told it first."""
        if record.iteration <= self._last_told:
            return
        self._last_told = record.iteration
        if self._job.tell is not None:
            self._job.tell(record)
        if self._job.on_iteration is not None and self._job.on_iteration(record) and self._outcome is None:
            self._stop(BY_CALLER)

    def _tell_wait(self, text: str) -> None:
        """Explain a wait, once for all tasks that have the same."""
        if text not in self._waits:
            self._waits.add(text)
            tell(text)

    def _note(self, transition: Transition) -> None:
        """Keep a change of the membership as one task saw it; tell the caller as soon as the first one does."""
        self._noted.note(transition)
        news = transition.round, transition.whole_ms is not None
        if self._job.on_transition is not None and news not in self._told:
            self._told.add(news)
            self._job.on_transition(transition)

    def _answer(self, line: Connection, said: Received) -> None:
        """Ask the caller, once per iteration, and answer all tasks the same."""
        record = _record(said.fields["record"])
        if record.iteration not in self._answers:
            for iteration in sorted(self._early):
                self._tell(self._early.pop(iteration))
            self._tell(record)
            model: Array = np.frombuffer(said.payload, dtype=np.dtype(said.fields["dtype"]))
            assert self._job.on_model is not None
            self._answers[record.iteration] = bool(self._job.on_model(record, model))
        with contextlib.suppress(ConnectionError):  # its end will be seen
            line.send("answer", iteration=record.iteration, is_ended=self._answers[record.iteration])

    def _keep(self, said: Received) -> None:
        """The last merged model of a task; that of the task that has been there longest counts."""
        history = self._whole(map(_record, said.fields["records"]))
        if self._kept is None or len(history) > len(self._kept.history):
            model: Array = np.frombuffer(said.payload, dtype=np.dtype(said.fields["dtype"]))
            self._kept = Outcome(
                model=model, certificate=None, history=history, reason=INTERRUPTED, is_interrupted=True
            )

    def _whole(self, records: Iterable[IterationRecord]) -> History:
        """These records, with the members and the changes of the membership as far as they were told."""
        history = History(records)
        history.members.update(self._members)
        for transition in self._noted.transitions:
            history.note(transition)
        return history

    def _read_outcome(self, said: Received) -> Outcome:
        arrays = {
            name: np.frombuffer(
                said.payload,
                dtype=np.dtype(place["dtype"]),
                count=int(np.prod(place["shape"])),
                offset=place["start"],
            ).reshape(place["shape"])
            for name, place in said.fields["arrays"].items()
        }
        certificate = said.fields["certificate"]
        found = {name: arrays[name] for name in ("rebuilt", "progress") if name in arrays}
        report = None if certificate is None else Report(**{**certificate, **found})
        return Outcome(
            model=arrays["model"],
            certificate=report,
            history=self._whole(map(_record, said.fields["history"])),
            reason=said.fields["reason"],
            is_interrupted=self._is_interrupted,
            state=arrays.get("state"),
            ledger=JobLedger(ChunkAccount(**fields) for fields in said.fields["ledger"]),
        )

    # Ends.

    def _interrupt(self) -> None:
        """Ctrl-C, at any moment: nothing is sent here, because a message may be half sent."""
        if self._is_interrupted or not self._tasks:
            raise KeyboardInterrupt
        self._is_interrupted = True
        self._stop_by_s = time.monotonic() + STOP_TIMEOUT_S

    def _end_early(self, wakes: socket.socket) -> None:
        """After Ctrl-C."""
        wakes.recv(64)
        self._stop(INTERRUPTED)
        for line in list(self._tasks):
            with contextlib.suppress(ConnectionError):  # its end will be seen
                line.send("interrupted")

    def _stop(self, reason: str) -> None:
        with contextlib.suppress(ConnectionError):  # its end will be seen
            self._server.send("stop", reason=reason)

    def _watch(self, line: Connection, call: Callable[[], None]) -> None:
        self._selector.register(line, selectors.EVENT_READ, call)


def _record(fields: Mapping[str, Any]) -> IterationRecord:
    return IterationRecord(**{**fields, "events": tuple(fields["events"])})


def _error_of(node: str, fields: Mapping[str, Any]) -> Exception:
    """What a task raised, as something to raise here: Chicle's own errors as they are, others as a failed job."""
    kind = getattr(errors, fields["error"], None)
    if isinstance(kind, type) and issubclass(kind, ChicleError):
        error = kind(f"node {node}: {fields['message']}")
        error.add_note(f"The task of node {node} raised it:\n{fields['traceback']}")
        return error
    return JobFailedError(f"the task of node {node} failed\n{fields['traceback']}")


@contextlib.contextmanager
def _ctrl_c_calls(call: Callable[[], None]) -> Iterator[socket.socket]:
    """Within this, Ctrl-C calls `call`, and wakes a select.

    Only where Ctrl-C means KeyboardInterrupt anyway, and in the main thread; a program that handles it otherwise keeps
    its handler.

    Yields:
        A socket that wakes a select.
    """
    receiver, sender = socket.socketpair()
    is_ours = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    with receiver, sender:
        if not is_ours:
            yield receiver
            return

        def handle(*_: object) -> None:
            call()
            sender.send(b"!")

        signal.signal(signal.SIGINT, handle)
        try:
            yield receiver
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
