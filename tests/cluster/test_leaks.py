"""Nothing accumulates at nodes that stay while others come and go: real agents, real tasks, real kills.

`make test` sees the first changes of the membership, `make test-leaks` two hundred. What is made once and kept (threads
of pools, connections to the store) is there after the warm-up; from then on, counts have to stay what they are. Memory
is allowed to grow with iterations at a task, whose history has a record for each, and with nothing at an agent.
"""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.cluster_harness import AgentProcess, LocalAgents, svm_script
from tests.timeouts import timeout_s

CHANGES = int(os.environ.get("CHICLE_TEST_CHANGES", "12"))
WARM_UP = 4
SPARE_THREADS = 4
"""An agent starts the threads of its pool when they are needed, the last ones late."""
KIB_PER_CHANGE = 48
KIB_PER_ITERATION = 4
SPARE_KIB = 6 << 10
"""What allocators keep; a leak of two hundred changes is far above it."""
POLL_S = 0.02

# A script that is no job: it says that it runs, and waits.
WAITING_SCRIPT = """
import os, sys, time
with open(sys.argv[1] + ".partial", "w") as file:
    file.write(str(os.getpid()))
os.rename(file.name, sys.argv[1])
time.sleep(600)
"""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process has at one instant.

    Attributes:
        descriptors: Open ones by kind; those of sockets, of pipes and of arenas are one kind each.
        threads: How many.
        children: Processes.
        private_kib: Memory that is not shared.
    """

    descriptors: Counter[str]
    threads: int
    children: frozenset[int]
    private_kib: int

    @classmethod
    def of(cls, pid: int) -> "Footprint":
        """Look now."""
        proc = Path(f"/proc/{pid}")
        status = (proc / "status").read_text()
        kinds: Counter[str] = Counter()
        for fd in (proc / "fd").iterdir():
            try:
                kinds[re.sub(r"\[\d+\]", "", os.readlink(fd))] += 1
            except FileNotFoundError:
                continue  # closed meanwhile
        children = " ".join(path.read_text() for path in proc.glob("task/*/children")).split()
        return cls(kinds, _figure(status, "Threads"), frozenset(map(int, children)), _figure(status, "RssAnon"))


def _figure(status: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", status, flags=re.MULTILINE)
    assert found is not None
    return int(found[1])


def look_at(agents: list[AgentProcess]) -> dict[str, Footprint]:
    """Agents and tasks, by name."""
    pids = {f"agent of {agent.name}": agent.process.pid for agent in agents}
    pids |= {f"task of {agent.name}": agent.task_pid for agent in agents}
    return {name: Footprint.of(pid) for name, pid in pids.items()}


def counts_that_grew(before: dict[str, Footprint], now: dict[str, Footprint]) -> list[str]:
    """One line per process and kind of thing that there is more of."""
    lines = []
    for name, was in before.items():
        more = now[name].descriptors - was.descriptors
        lines += [f"{name}: {count} more of {kind}" for kind, count in more.items()]
        if now[name].threads > was.threads + SPARE_THREADS:
            lines.append(f"{name}: {was.threads} threads, now {now[name].threads}")
        if now[name].children != was.children:
            lines.append(f"{name}: children {sorted(was.children)}, now {sorted(now[name].children)}")
    return lines


def settled(is_it: Callable[[], list[str]]) -> list[str]:
    """What is still wrong after a moment in which connections to who has gone are closed."""
    end_s = time.monotonic() + timeout_s(5)
    while (lines := is_it()) and time.monotonic() < end_s:
        time.sleep(POLL_S)
    return lines


def iterations(agent: AgentProcess) -> int:
    """How many it has seen."""
    return int(agent.events("iteration")[-1]["iteration"])


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where agents and tasks put temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def test_nothing_is_left_of_nodes_that_came_and_went(tmp_path: Path, temporary: Path) -> None:
    """A visitor joins, and leaves or is killed by turns, while two nodes stay."""
    script = svm_script(tmp_path, "--min-ms", "5", "--tol", "0")
    with LocalAgents(tmp_path, script=script, options=("--grace", "5"), temporary=temporary) as cluster:
        first = cluster.start("n0")
        first.wait_for("iteration")
        stay = [first, cluster.start("n1")]
        first.wait_for_members(2)
        before, before_iterations = look_at(stay), 0
        for change in range(0, CHANGES, 2):
            if change == WARM_UP:
                before, before_iterations = look_at(stay), iterations(first)
            visitor = cluster.start(f"v{change}")
            first.wait_for_members(3)
            if change % 4:
                visitor.kill_all()
            else:
                visitor.signal(signal.SIGTERM)
            visitor.wait_for_end()
            first.wait_for_members(2)
        grown = settled(lambda: counts_that_grew(before, look_at(stay)))
        now, num_iterations = look_at(stay), iterations(first) - before_iterations
        cluster.end()
        assert [agent.wait_for_end() for agent in stay] == [0, 0]
    assert not grown, "\n".join(grown)
    assert not list(temporary.iterdir())
    for name, was in before.items():
        allowed_kib = SPARE_KIB + (CHANGES - WARM_UP) * KIB_PER_CHANGE
        allowed_kib += num_iterations * KIB_PER_ITERATION * name.startswith("task")
        print(f"{name}: {was.private_kib} KiB, then {now[name].private_kib}, after {num_iterations} iterations")
        assert now[name].private_kib - was.private_kib <= allowed_kib, f"{name}, {num_iterations} iterations"


def test_an_agent_that_is_killed_leaves_no_file(tmp_path: Path, temporary: Path) -> None:
    """No folder for a socket, and none of torch's for logs that nobody asked for."""
    script, begun = tmp_path / "waits.py", tmp_path / "begun"
    script.write_text(WAITING_SCRIPT)
    with LocalAgents(tmp_path, script=(str(script), str(begun)), has_log_dir=False, temporary=temporary) as cluster:
        agent = cluster.start("n0")
        end_s = time.monotonic() + timeout_s(40)
        while not begun.exists() and time.monotonic() < end_s:
            time.sleep(POLL_S)
        assert begun.exists(), agent.output()
        agent.process.kill()
        agent.process.wait()
        os.kill(int(begun.read_text()), signal.SIGKILL)
        assert not list(temporary.iterdir())
