"""Faults that strike a node at a named step of the protocol: exactly there, and never by chance elsewhere.

    python -m tests.harness.faults SCRIPT FIRED [options of the launcher] train.py ...

runs a node like `python -m chicle_elastic.launch`, and lets the faults of SCRIPT strike it. SCRIPT is a JSON list:

    [{"name": "a", "node": "n1", "step": "copy.committed", "action": "kill", "where": {"chunk": 3}}]

A fault strikes once, when its node reaches the step for the `occurrence`-th time with these values; steps and what
they come with are listed in `cluster.steps`. SCRIPT may be replaced (by renaming a file) while the node runs: what it
says is looked at again at every step, so faults can be armed at any time. Before a fault strikes, a line of JSON that
says so is appended to FIRED, and a test that relies on the fault looks for it there. Nothing in a script is executed.

    kill        the node is gone: SIGKILL for its task, then for the agent
    kill_task   SIGKILL for the task only
    stop        the whole node stands still for `seconds`: a silent host
    delay       the thread that is at the step waits for `seconds`
    drop        the work that begins at the step is lost, with a ConnectionError; only at steps in `DROPPABLE`
    cut         every TCP connection of the agent, but not to the rendezvous store, is closed on both sides
    part        for `seconds`, the agent loses every link to the peer that it hears at the step, so neither hears the
                other; their tasks and transports keep their connections. Only at the step `link.heard`
"""

import contextlib
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from chicle_elastic.cluster import launcher
from chicle_elastic.cluster.agent.node_agent import EXIT_USAGE
from chicle_elastic.cluster.net import fault_points
from chicle_elastic.cluster.options import AgentCommand, parse
from chicle_elastic.cluster.rendezvous.store import parse_endpoint
from chicle_elastic.errors import PeerLostError, UsageError
from tests.harness.forked import children_of

PROGRAM = "python -m tests.harness.faults"
ACTIONS = ("kill", "kill_task", "stop", "delay", "drop", "cut", "part")
DROPPABLE = frozenset({"copy.before_fetch", "rows.before_fetch"})
"""Steps at which work begins whose failure the agent has to expect."""
HEARD = "link.heard"
"""The step that `part` strikes at; it comes with the name of the peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What strikes, and when."""

    name: str  # unique among all faults of a node
    node: str  # which node
    step: str  # one of `steps.FAULT_POINTS`
    action: str  # one of `ACTIONS`
    occurrence: int = 1  # how often the step is reached until it strikes, from 1 on
    # values that the step has to come with, e.g. {"event": "ChunksCopied"}.
    where: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 1.0  # how long `stop`, `delay` and `part` take

    def __post_init__(self) -> None:
        if self.step not in fault_points.FAULT_POINTS:
            known = ", ".join(sorted(fault_points.FAULT_POINTS))
            raise UsageError(f"there is no fault point {self.step!r}; the fault points are {known}")
        if self.action not in ACTIONS:
            raise UsageError(f"fault {self.name!r}: there is no action {self.action!r}, only {', '.join(ACTIONS)}")
        if self.action == "drop" and self.step not in DROPPABLE:
            raise UsageError(
                f"fault {self.name!r}: nothing can be dropped at {self.step!r}, only at {', '.join(DROPPABLE)}"
            )
        if self.action == "part" and self.step != HEARD:
            raise UsageError(f"fault {self.name!r}: a link can be lost at {HEARD!r}, and not at {self.step!r}")
        if self.occurrence < 1 or not 0 <= self.seconds <= 600:
            raise UsageError(
                f"fault {self.name!r} needs occurrence >= 1 and seconds from 0 to 600, got {self.occurrence} and "
                f"{self.seconds}"
            )

    def matches(self, step: str, where: Mapping[str, Any]) -> bool:
        """Whether this is its step, with its values."""
        return step == self.step and all(where.get(name) == value for name, value in self.where.items())


def write_script(path: Path, faults: Sequence[Fault]) -> None:
    """Write a script, whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(json.dumps([asdict(fault) for fault in faults]))
    draft.rename(path)


def read_script(path: Path) -> list[Fault]:
    """The faults of a script. Raises UsageError when it is no list of faults; the text says which one is wrong."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no script of faults: {error}") from error
    if not isinstance(content, list):
        raise UsageError(f"{path} holds {type(content).__name__} and no list of faults")
    names = {item.name for item in fields(Fault)}
    faults = []
    for item in content:
        if not isinstance(item, dict) or not {"name", "node", "step", "action"} <= item.keys() <= names:
            raise UsageError(f"{path}: {str(item)[:80]} is no fault; it has the fields {', '.join(sorted(names))}")
        faults.append(Fault(**item))
    return faults


def read_fired(path: Path) -> list[dict[str, Any]]:
    """What has struck so far, oldest first: the fields of the fault, `time`, and as `at` what the step came with."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


class Striker:
    """The hook of `cluster.steps` in one agent; called in whatever thread reaches a step.

    Args:
        script: The script; it may be replaced, and may not be there yet.
        fired: File that takes a line per fault that strikes; shared by all nodes.
        node: Which node this is.
        store_port: Port of the rendezvous store, whose connections `cut` leaves alone.
    """

    def __init__(self, script: Path, fired: Path, *, node: str, store_port: int) -> None:
        self._script, self._fired, self._node, self._store_port = script, fired, node, store_port
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._faults: list[Fault] = []
        self._seen: Counter[str] = Counter()
        self._parted: dict[str, float] = {}
        self._actions: dict[str, Callable[[Fault], None]] = {
            "kill": lambda _: self._kill(),
            "kill_task": lambda _: _signal_all(children_of(os.getpid()), signal.SIGKILL),
            "stop": lambda fault: self._stop(fault.seconds),
            "delay": lambda fault: time.sleep(fault.seconds),
            "drop": self._drop,
            "cut": self._cut,
        }

    def __call__(self, step: str, where: dict[str, Any]) -> None:
        """A step is reached."""
        with self._lock:
            self._look()
            struck = []
            for fault in self._faults:
                if fault.node == self._node and fault.matches(step, where):
                    self._seen[fault.name] += 1
                    if self._seen[fault.name] == fault.occurrence:
                        struck.append(fault)
        for fault in struck:
            self._write(fault, where)
            if fault.action == "part":
                self._parted[where["peer"]] = time.monotonic() + fault.seconds
            else:
                self._actions[fault.action](fault)
        if step == HEARD and time.monotonic() < self._parted.get(where["peer"], 0.0):
            raise PeerLostError(f"a fault parts this node from {where['peer']}")

    def _look(self) -> None:
        """Read the script again if it is another one."""
        try:
            status = self._script.stat()
        except FileNotFoundError:
            return
        stamp = status.st_mtime_ns, status.st_ino
        if stamp != self._stamp:
            self._stamp = stamp
            self._faults = read_script(self._script)

    def _write(self, fault: Fault, where: Mapping[str, Any]) -> None:
        line = json.dumps({**asdict(fault), "time": time.time(), "at": dict(where)}, default=str) + "\n"
        descriptor = os.open(self._fired, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())  # one write: lines of several nodes do not mix
        finally:
            os.close(descriptor)

    def _kill(self) -> None:
        _signal_all([*children_of(os.getpid()), os.getpid()], signal.SIGKILL)

    def _stop(self, seconds: float) -> None:
        pids = [*children_of(os.getpid()), os.getpid()]
        # Another process has to wake this one up again.
        command = f"sleep {seconds:f}; kill -CONT {' '.join(map(str, pids))}"
        subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True)
        _signal_all(pids, signal.SIGSTOP)

    def _cut(self, _: Fault) -> None:
        cut_links(keep_port=self._store_port)

    def _drop(self, fault: Fault) -> None:
        raise ConnectionError(f"fault {fault.name!r} drops this")


def cut_links(*, keep_port: int) -> int:
    """Close every TCP connection of this process for both sides; returns how many.

    Args:
        keep_port: Connections to this port stay.
    """
    num_cut = 0
    for fd in _sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
            is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
            if is_tcp and connection.getpeername()[1] != keep_port:
                connection.shutdown(socket.SHUT_RDWR)
                num_cut += 1
    return num_cut


def _sockets() -> Iterator[int]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                yield int(name)


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a node that faults strike; returns the exit code of the launcher."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if len(arguments) < 2:
        print(f"usage: {PROGRAM} SCRIPT FIRED [options of the launcher] ...", file=sys.stderr)
        return EXIT_USAGE
    script, fired, rest = Path(arguments[0]).absolute(), Path(arguments[1]).absolute(), arguments[2:]
    try:
        command = parse(rest)
        if not isinstance(command, AgentCommand):
            raise UsageError("faults strike a node, and --store-only runs none")
        if script.exists():
            read_script(script)  # a wrong script is told before anything starts
        _, port = parse_endpoint(command.endpoint)
    except UsageError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_USAGE
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    fault_points.enable(Striker(script, fired, node=command.options.node, store_port=port))
    return launcher.main(rest)


if __name__ == "__main__":
    sys.exit(main())
