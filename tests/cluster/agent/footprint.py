"""What a process has at one instant, and what of it has grown.

A count alone does not tell a leak from a pool that fills: agents keep up to `MAX_IDLE` connections to each other, each
with a thread at one end and the arena of the other end, and make them when several fetches happen to run at once, be
it an hour after the start. So an agent is asked what its descriptors lead to (a thread of the tests in its process
answers), and the judge knows three kinds of things:

    foreign   leads to a node that is not here any more                none may be left
    pooled    made when needed, kept, with a limit in the code         no more than the limit
    others    files, pipes, TCP connections, ports, threads, children  no more than before
"""

import json
import os
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chicle_elastic.cluster.net.worker_lanes import NUM_WORKERS
from chicle_elastic.transports.pool import MAX_IDLE
from tests.harness.forked import children_of
from tests.timeouts import comes

POLL_S = 0.02
_VARYING = re.compile(r"#[0-9a-f]{8}\b|[_-]?[0-9]+$")
"""In names of threads: the life of a node (one that is taken for lost begins another), and numbers at the end."""
FOREIGN = "of a node that has gone"
PEERCRED = struct.Struct("3i")  # pid, uid, gid
SPARE_THREADS = 4
"""Of a task, whose threads cannot be told apart from outside: libraries start some when they are needed."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process has."""

    things: Counter[str]  # how many of each kind: descriptors by what they lead to, threads by name
    num_descriptors: int  # all of them
    num_threads: int  # all of them, Python's and others
    num_ports: int  # TCP sockets that listen; -1 where nobody was asked
    children: frozenset[int]  # processes
    private_kib: int  # memory that is not shared

    def __str__(self) -> str:
        """One line of figures."""
        ports = f"{self.num_ports} ports, " * (self.num_ports >= 0)
        return (
            f"{len(self.children)} children, {ports}{self.num_threads} threads, {self.num_descriptors} descriptors, "
            f"{self.private_kib} KiB"
        )

    @classmethod
    def of_task(cls, pid: int) -> "Footprint":
        """What can be seen from outside."""
        kinds: Counter[str] = Counter()
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                kinds[_without_numbers(os.readlink(fd))] += 1
            except FileNotFoundError:
                continue  # closed meanwhile
        num_threads = _figure(pid, "Threads")
        kinds["thread"] = num_threads
        return cls(kinds, kinds.total() - num_threads, num_threads, -1, children_of(pid), _figure(pid, "RssAnon"))

    @classmethod
    def of_agent(cls, pid: int, answer: Mapping[str, Any], names: Mapping[int, str]) -> "Footprint":
        """What the agent has said, in words.

        Args:
            pid: Of the agent.
            answer: See `_look_around`.
            names: Of the processes that stay, by pid, this one among them.
        """
        owners = {inode: names[owner] for owner in names for inode in _mapped_arenas(owner)}
        kinds: Counter[str] = Counter(answer["threads"])
        num_threads = _figure(pid, "Threads")
        kinds["thread outside of Python"] = num_threads - len(answer["threads"])
        for kind, of in answer["descriptors"]:
            if kind == "arena":
                kinds[f"arena of the {owners[of]}" if of in owners else f"arena {FOREIGN}"] += 1
            elif kind == "unix socket":
                kinds[f"unix socket to the {names[of]}" if of in names else f"unix socket {FOREIGN}"] += 1
            else:
                kinds[kind] += 1
        num_ports = kinds["tcp socket that listens"]
        num_descriptors = len(answer["descriptors"])
        return cls(kinds, num_descriptors, num_threads, num_ports, children_of(pid), _figure(pid, "RssAnon"))


def pooled(name: str, others: int) -> dict[str, int]:
    """What a node's agent makes when it needs it and then keeps, by a pattern of its kind, and how many at most.

    Args:
        name: Of the node.
        others: How many nodes stay, but for this one.
    """
    another = rf"agent of (?!{re.escape(name)}$).*"
    return {
        f"unix socket to the {another}": 2 * MAX_IDLE,
        f"arena of the {another.replace('agent', '(agent|task)')}": MAX_IDLE,  # the task maps its agent's, too
        f"thread shm-{re.escape(name)}-.*": MAX_IDLE * others,
    } | {f"thread chicle-agent-{lane.value}": num_workers for lane, num_workers in NUM_WORKERS.items()}


def grown(before: Footprint, now: Footprint, limits: Mapping[str, int]) -> list[str]:
    """One line per kind of thing that there is more of than there may be; memory is not judged here."""
    lines = []
    for kind, count in sorted(now.things.items()):
        [limit] = [limits[pattern] for pattern in limits if re.fullmatch(pattern, kind)] or [0]
        if FOREIGN not in kind:
            limit = max(limit, before.things[kind] + SPARE_THREADS * (kind == "thread"))
        if count > limit:
            lines.append(f"{count} of {kind!r}, {before.things[kind]} before, at most {limit} expected")
    if now.children != before.children:
        lines.append(f"children {sorted(now.children)}, {sorted(before.children)} before")
    return lines


@dataclass(frozen=True, slots=True)
class Probe:
    """Lets an agent be asked: `before` is called in its process, `ask` anywhere."""

    question: Path  # a file that is made to ask
    plant: Callable[[], object] | None = field(default=None)

    def before(self) -> None:
        """Begin to answer; plant a leak, if this is a test of the test."""
        threading.Thread(target=self._answer_all, name="probe", daemon=True).start()
        if self.plant is not None:
            self.plant()

    def ask(self) -> dict[str, Any]:
        """What the process has now."""
        answer = self.question.with_suffix(".answer")
        answer.unlink(missing_ok=True)
        self.question.touch()
        assert comes(answer.exists, 20), f"no answer to {self.question}"
        said: dict[str, Any] = json.loads(answer.read_text())
        return said

    def _answer_all(self) -> None:
        partial, answer = self.question.with_suffix(".partial"), self.question.with_suffix(".answer")
        while True:
            if self.question.exists():
                self.question.unlink()
                partial.write_text(json.dumps(look_around()))
                partial.rename(answer)
            time.sleep(POLL_S)


def look_around() -> dict[str, Any]:
    """The threads of this process by name, and pairs (kind, of whom or what) of its descriptors."""
    threads = [f"thread {_VARYING.sub('', thread.name)}" for thread in threading.enumerate()]
    descriptors = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            descriptors.append(_describe(fd, os.readlink(f"/proc/self/fd/{fd}")))
        except OSError:
            continue  # closed meanwhile, like that of the listing
    return {"threads": threads, "descriptors": descriptors}


def _describe(fd: int, target: str) -> tuple[str, int]:
    if target.startswith("/memfd:"):
        return "arena", os.fstat(fd).st_ino
    if not target.startswith("socket:"):
        return _without_numbers(target), 0
    with socket.socket(fileno=os.dup(fd)) as sock:
        family = "unix socket" if sock.family is socket.AF_UNIX else "tcp socket"
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return f"{family} that listens", 0
        try:
            is_over = sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            is_over = False
        except OSError:
            return f"{family} without a connection", 0
        if is_over:
            return f"{family} {FOREIGN}", 0
        if sock.family is not socket.AF_UNIX:
            return family, 0
        return family, PEERCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEERCRED.size))[0]


def _without_numbers(target: str) -> str:
    return re.sub(r"\[\d+\]", "", target)


def _figure(pid: int, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), flags=re.MULTILINE)
    assert found is not None
    return int(found[1])


def _mapped_arenas(pid: int) -> set[int]:
    """Inodes of the arenas that an agent maps, which are its own: of others it has descriptors only."""
    return {
        int(line.split()[4])
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if "/memfd:chicle-arena" in line
    }
