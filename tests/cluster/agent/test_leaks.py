"""Nothing accumulates at nodes that stay while others come and go: real agents, real tasks, real kills.

`make test-chaos` sees the first changes of the membership, `make test-leaks` two hundred; `footprint` knows what is no
leak. Memory is allowed to grow with iterations at a task, whose history has a record for each, and with nothing at an
agent.
"""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chicle_elastic.transports.selector import Endpoints, TransportSelector
from tests.cluster.agent.footprint import FOREIGN, Footprint, Probe, grown, pooled
from tests.cluster.cluster_harness import AgentProcess, LocalAgents, svm_script
from tests.harness.forked import children_of
from tests.timeouts import comes

CHANGES = int(os.environ.get("CHICLE_TEST_CHANGES", "12"))
WARM_UP = 4
SHOWN_EVERY = 20
NUM_EVENTS_SHOWN = 10
TAIL_CHARACTERS = 1500
KIB_PER_CHANGE = 16
KIB_PER_ITERATION = 2
SPARE_KIB = 6 << 10
"""What allocators keep; a leak of two hundred changes is far above it."""
LEAK_BYTES = 8 << 20
# A script that is no job: it says that it runs, and waits.
WAITING_SCRIPT = """
import os, sys, time
with open(sys.argv[1] + ".partial", "w") as file:
    file.write(str(os.getpid()))
os.rename(file.name, sys.argv[1])
time.sleep(600)
"""

Footprints = dict[str, Footprint]


class Stayers:
    """Two nodes that stay, and what they have.

    Args:
        cluster: Where they run.
        folder: For questions to them.
        plant: Plants a leak in the agent of the second one.
    """

    def __init__(self, cluster: LocalAgents, folder: Path, plant: Callable[[], object] | None = None) -> None:
        self._cluster = cluster
        self._probes = {"n0": Probe(folder / "n0.ask"), "n1": Probe(folder / "n1.ask", plant)}
        self.first = cluster.start("n0", before=self._probes["n0"].before)
        self.first.wait_for("iteration")
        self.agents = [self.first, cluster.start("n1", before=self._probes["n1"].before)]
        self.first.wait_for_members(2)

    def look(self) -> Footprints:
        """Agents and tasks, by name, while no agent has pictures drawn, which takes a process and a pipe."""
        prints: Footprints = {}

        def has_looked() -> bool:
            if not self._draws_pictures():
                prints.update(self._look())
            return bool(prints) and not self._draws_pictures()

        assert comes(has_looked), "an agent has pictures drawn for ever"
        return prints

    def _draws_pictures(self) -> bool:
        return any(draws_pictures(agent.process.pid) for agent in self.agents)

    def _look(self) -> Footprints:
        names = {agent.process.pid: f"agent of {agent.name}" for agent in self.agents}
        names |= {agent.task_pid: f"task of {agent.name}" for agent in self.agents}
        prints = {}
        for agent in self.agents:
            pid = agent.process.pid
            prints[names[pid]] = Footprint.of_agent(pid, self._probes[agent.name].ask(), names)
            prints[names[agent.task_pid]] = Footprint.of_task(agent.task_pid)
        return prints

    def grown_since(self, before: Footprints) -> list[str]:
        """What there is more of than there should be, after a moment in which connections are closed."""
        comes(lambda: not self._grown_now(before), 5)
        return self._grown_now(before)

    def iterations(self) -> int:
        """How many there were."""
        return int(self.first.events("iteration")[-1]["iteration"])

    def receive(self, change: int) -> None:
        """A visitor joins, and leaves or is killed by turns."""
        visitor = self._cluster.start(f"v{change}")
        self.first.wait_for_members(3)
        if change % 4:
            visitor.kill_all()
        else:
            visitor.signal(signal.SIGTERM)
        visitor.wait_for_end()
        self.first.wait_for_members(2)

    def _grown_now(self, before: Footprints) -> list[str]:
        now = self.look()
        return [
            f"{name}: {line}"
            for name, was in before.items()
            for line in grown(was, now[name], pooled(name.rpartition(" ")[2], others=len(self.agents) - 1))
        ]


def draws_pictures(pid: int) -> bool:
    """Whether a child of this agent is at it, or ends just now."""
    for child in children_of(pid):
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            return True
        if not command or b"chicle_elastic.monitoring.pictures" in command:  # a zombie has no command line
            return True
    return False


def show(change: int, iterations: int, prints: Footprints) -> None:
    """Print figures, for `pytest -s` and for whoever reads of a failure."""
    for name, footprint in prints.items():
        print(f"{change:4} changes, {iterations:6} iterations, {name}: {footprint}", flush=True)


def tails(agents: dict[str, AgentProcess]) -> str:
    """The end of what the nodes that stay and the last visitors have written and printed."""
    parts = []
    for name in {**dict.fromkeys(list(agents)[:2]), **dict.fromkeys(list(agents)[-2:])}:
        agent = agents[name]
        events = [event for event in agent.events() if event["kind"] not in ("iteration", "ledger")][-NUM_EVENTS_SHOWN:]
        written = [f"{event['kind']} {str(event.get('text') or event.get('reason') or '')[:100]}" for event in events]
        printed = agent.output()[-TAIL_CHARACTERS:].strip()
        parts.append("\n  ".join([f"-- {name}, exit code {agent.process.poll()}", *written, f"printed: {printed!r}"]))
    return "\n".join(parts)


@contextlib.contextmanager
def telling(agents: dict[str, AgentProcess]) -> Iterator[None]:
    """An error is told together with what the agents have said."""
    try:
        yield
    except BaseException as error:
        error.add_note(tails(agents))
        raise


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where agents and tasks put temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def come_and_go(folder: Path, temporary: Path, changes: int, plant: Callable[[], object] | None = None) -> list[str]:
    """Visitors join, and leave or are killed by turns, while two nodes stay; what has grown."""
    script = svm_script(folder, "--min-ms", "20", "--tol", "0")
    with (
        LocalAgents(folder, script=script, options=("--grace", "5"), temporary=temporary) as cluster,
        telling(cluster.agents),
    ):
        stayers = Stayers(cluster, folder, plant)
        before, before_iterations = stayers.look(), 0
        for change in range(0, changes, 2):
            if change == WARM_UP:
                stayers.grown_since(before)  # connections to who has gone do not count as there before
                before, before_iterations = stayers.look(), stayers.iterations()
                show(change, before_iterations, before)
            elif change % SHOWN_EVERY == 0:
                show(change, stayers.iterations(), stayers.look())
            stayers.receive(change)
        lines = stayers.grown_since(before)
        now, iterations = stayers.look(), stayers.iterations()
        show(changes, iterations, now)
        cluster.end()
        assert [agent.wait_for_end() for agent in stayers.agents] == [0, 0]
        lines += [f"{path.name} is left" for path in temporary.iterdir()]
        for name, was in before.items():
            allowed_kib = SPARE_KIB + (changes - WARM_UP) * KIB_PER_CHANGE
            allowed_kib += (iterations - before_iterations) * KIB_PER_ITERATION * name.startswith("task")
            if (more_kib := now[name].private_kib - was.private_kib) > allowed_kib:
                lines.append(f"{name}: {more_kib} KiB more than the {was.private_kib} before, {allowed_kib} allowed")
        if lines:
            print(tails(cluster.agents))  # pytest shows it when the test fails
    return lines


@pytest.mark.chaos
def test_nothing_is_left_of_nodes_that_came_and_went(tmp_path: Path, temporary: Path) -> None:
    """Processes, ports, threads, descriptors, memory, files."""
    lines = come_and_go(tmp_path, temporary, CHANGES)
    assert not lines, "\n".join(lines)


def plant_leaks() -> None:
    """In the process of an agent: for each node that goes it keeps one of everything, and connections to that node."""
    kept: list[object] = []

    def disconnect(transports: TransportSelector, theirs: Endpoints) -> None:
        kept.append(os.open("/dev/null", os.O_RDONLY))
        kept.append(socket.create_server(("127.0.0.1", 0)))
        kept.append(bytearray(b"1") * LEAK_BYTES)
        kept.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))  # ends with the agent
        threading.Thread(target=time.sleep, args=(600,), name=f"kept-{len(kept)}", daemon=True).start()

    TransportSelector.disconnect = disconnect  # type: ignore[method-assign]


@pytest.mark.chaos
def test_leaks_that_were_planted_are_seen(tmp_path: Path, temporary: Path) -> None:
    """Each of them, after two nodes have gone, at the node that has them and at no other."""
    lines = come_and_go(tmp_path, temporary, WARM_UP + 4, plant_leaks)
    print("\n".join(lines))
    agent = [line for line in lines if line.startswith("agent of n1: ")]
    assert len(agent) == len(lines)
    for kind in ("/dev/null", "tcp socket that listens", "KiB more", "children", "thread kept", FOREIGN):
        assert any(kind in line for line in agent), kind


def test_an_agent_that_is_killed_leaves_no_file(tmp_path: Path, temporary: Path) -> None:
    """No folder for a socket, and none of torch's for logs that nobody asked for."""
    script, begun = tmp_path / "waits.py", tmp_path / "begun"
    script.write_text(WAITING_SCRIPT)
    with LocalAgents(tmp_path, script=(str(script), str(begun)), has_log_dir=False, temporary=temporary) as cluster:
        agent = cluster.start("n0")
        assert comes(begun.exists, 40), agent.output()
        agent.signal(signal.SIGKILL)
        agent.wait_for_end()
        os.kill(int(begun.read_text()), signal.SIGKILL)
        assert not list(temporary.iterdir())
