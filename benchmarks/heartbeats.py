"""How late heartbeats are while an agent has something to wait for: two agents, and what each of them hears when.

    nothing    the two train, with 10,000 chunks in all
    task       the task of a joiner stands still for five seconds when 5,000 chunks are to be attached
    disk       the file system with the log folder of an agent hangs for ten seconds (a frozen loop device; root only)
    plan       the loop of an agent plans the first placement of 100,000 chunks on 256 nodes

Each agent runs with a hook that writes down when its loop heard the other one. An agent says something at least every
0.4 s; the bar is 0.2 s more, and that no agent takes another one for lost.

    python -m benchmarks.heartbeats [--only nothing,task,disk,plan] [--json FILE]

Exit code 1 when a bar is missed.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import Bar, Row
from benchmarks.report import Report, names_of, parser
from chicle_elastic.cluster import launcher
from chicle_elastic.cluster.net import fault_points
from chicle_elastic.cluster.net.peers import BEAT_S
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.plan import NodeCapacity, plan_first
from chicle_elastic.settings import THREAD_LIMITS
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.values import ChunkInfo

ROOT = Path(__file__).parents[1]
NUM_CHUNKS = 10_000
NUM_PLANNED, NUM_NODES = 100_000, 256
LATE_S = 0.2
STOPPED_S, FROZEN_S, QUIET_S = 5.0, 10.0, 3.0
TIMEOUT_S = 90.0
PLAN_FILE = "plan-now"


def heard(folder: Path, node: str) -> list[float]:
    """When the agent heard the other one, in seconds of the monotonic clock, ascending."""
    path = folder / f"{node}.heard"
    return [float(line) for line in path.read_text().split()] if path.exists() else []


def longest_gap_s(times_s: Sequence[float], since_s: float, until_s: float) -> float:
    """The longest silence between two instants."""
    inside = [time_s for time_s in times_s if since_s <= time_s <= until_s]
    return max(
        (after - before for before, after in zip([since_s, *inside], [*inside, until_s], strict=True)), default=0
    )


class Agents:
    """Two agents on this host. A context manager that ends them.

    Args:
        folder: For all that they write.
        logs: Folder for the event file, by node; the folder by default.
    """

    def __init__(self, folder: Path, logs: Mapping[str, Path] | None = None) -> None:
        self.folder = folder
        self.logs = logs or {}
        self._store = StoreServer()
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        JobSecret.load_or_create(folder / "job.secret")

    def start(self, node: str) -> None:
        """Start an agent."""
        command = [
            *(sys.executable, "-m", "benchmarks.heartbeats", "--agent", str(self.folder), node),
            *("--nnodes", "1:2", "--name", node, "--rdzv-endpoint", self._store.endpoint),
            *("--secret-file", str(self.folder / "job.secret"), "--log-dir", str(self._log(node))),
            *("-m", "tests.harness.paced_app", "--out", str(self.folder), "--chunks", str(NUM_CHUNKS)),
            *("--iterations", "1000000", "--no-policy", "--cost", f"{node}=0.3"),
        ]
        output = (self.folder / f"{node}.out").open("wb")
        environ = {**os.environ, **dict.fromkeys(THREAD_LIMITS, "1"), "PYTHONPATH": str(ROOT)}
        self._agents[node] = subprocess.Popen(command, stdout=output, stderr=output, env=environ, cwd=ROOT)

    def _log(self, node: str) -> Path:
        return self.logs.get(node, self.folder)

    def events(self, node: str, kind: str) -> list[dict[str, Any]]:
        """What the agent wrote down so far."""
        path = self._log(node) / f"{node}.events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for line in lines if (event := json.loads(line))["kind"] == kind]

    def wait_for(self, what: str, is_it: Callable[[], object]) -> None:
        """Wait until something is true.

        Raises:
            RuntimeError: It does not become true, or an agent has ended.
        """
        end_s = time.monotonic() + TIMEOUT_S
        while not is_it():
            ended = [node for node, agent in self._agents.items() if agent.poll() is not None]
            if ended or time.monotonic() > end_s:
                text = (self.folder / f"{(ended or [*self._agents])[0]}.out").read_text(errors="replace")
                raise RuntimeError(f"waited for {what}; an agent said last:\n{text[-2000:]}")
            time.sleep(0.01)

    def train(self) -> None:
        """Start both, one after the other, and wait until both take part."""
        self.start("n0")
        self.wait_for("the first iteration", lambda: self.events("n0", "iteration"))
        self.start("n1")
        self.wait_for("an iteration of both", lambda: self.events("n1", "iteration"))

    def __enter__(self) -> "Agents":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for node, agent in self._agents.items():
            pids = [event["pid"] for event in self.events(node, "hot")] if agent.poll() is None else []
            agent.kill()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            agent.wait()
        self._store.close()


def nothing(agents: Agents) -> float:
    """The two train."""
    agents.train()
    since_s = time.monotonic()
    time.sleep(STOPPED_S)
    return since_s


def task(agents: Agents) -> float:
    """The task of n1 stands still as soon as it is hot: what it is to attach comes after that."""
    agents.start("n0")
    agents.wait_for("the first iteration", lambda: agents.events("n0", "iteration"))
    agents.start("n1")
    agents.wait_for("the task of n1", lambda: agents.events("n1", "hot"))
    pid = agents.events("n1", "hot")[-1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    agents.wait_for("a link", lambda: heard(agents.folder, "n0"))
    since_s = time.monotonic()
    time.sleep(STOPPED_S)
    os.kill(pid, signal.SIGCONT)
    agents.wait_for("an iteration of n1", lambda: agents.events("n1", "iteration"))
    time.sleep(QUIET_S)
    return since_s


def disk(agents: Agents) -> float:
    """The log folder of n1 is on a device of its own, which hangs."""
    agents.train()
    since_s = time.monotonic()
    folder = agents.logs["n1"]
    subprocess.run(("fsfreeze", "--freeze", str(folder)), check=True)
    try:
        time.sleep(FROZEN_S)
    finally:
        subprocess.run(("fsfreeze", "--unfreeze", str(folder)), check=True)
    time.sleep(QUIET_S)
    return since_s


def plan(agents: Agents) -> float:
    """The loop of n1 has to plan, once."""
    agents.train()
    since_s = time.monotonic()
    (agents.folder / PLAN_FILE).touch()
    agents.wait_for("the plan", lambda: (agents.folder / "planned").exists())
    time.sleep(QUIET_S)
    return since_s


CASES: dict[str, tuple[str, Callable[[Agents], float]]] = {
    "nothing": (f"nothing happens for {STOPPED_S:.0f} s", nothing),
    "task": (f"a joiner's task is stopped for {STOPPED_S:.0f} s, with {NUM_CHUNKS // 2} chunks to attach", task),
    "disk": (f"the log folder hangs for {FROZEN_S:.0f} s", disk),
    "plan": (f"the loop plans {NUM_PLANNED} chunks on {NUM_NODES} nodes", plan),
}


def measure(key: str) -> Row:
    """Run a case; it returns since when heartbeats count."""
    title, run = CASES[key]
    took = ""
    with _folder() as folder, Agents(folder, {"n1": _device(folder)} if key == "disk" else {}) as agents:
        since_s = run(agents)
        until_s = time.monotonic()
        gaps = {node: longest_gap_s(heard(folder, node), since_s, until_s) for node in ("n0", "n1")}
        lost = [event for node in ("n0", "n1") for event in agents.events(node, "lost")]
        if (folder / "planned").exists():
            took = f"; {(folder / 'planned').read_text()} s of planning"
    shown = f"n0 hears n1 after {gaps['n0']:.2f} s at most, n1 hears n0 after {gaps['n1']:.2f} s{took}"
    against, value = f"{BEAT_S:g} s; {len(lost)} agents lost", float("inf") if lost else max(gaps.values()) - BEAT_S
    return Row(key, title, None, shown, against, value, Bar(LATE_S, at_most=True), {"gaps_s": gaps, "lost": lost})


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        if (folder / "mnt").is_mount():
            subprocess.run(("umount", str(folder / "mnt")), check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _device(folder: Path) -> Path:
    """A file system in a file, mounted."""
    image, mount = folder / "disk", folder / "mnt"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    for command in (("mkfs.ext4", "-q", str(image)), ("mount", "-o", "loop", str(image), str(mount))):
        subprocess.run(command, check=True, capture_output=True)
    return mount


def run_agent(folder: Path, node: str, options: Sequence[str]) -> int:
    """An agent that writes down when it hears another one, and plans when it is told to."""
    file = (folder / f"{node}.heard").open("a", buffering=1)
    chunks = [ChunkInfo(id=ChunkId(number), num_rows=100, size_bytes=1000) for number in range(NUM_PLANNED)]
    nodes = [NodeCapacity(node=NodeId(f"node{number}")) for number in range(NUM_NODES)]

    def hook(step: str, where: dict[str, Any]) -> None:
        if step != "link.heard":
            return
        file.write(f"{time.monotonic()}\n")
        if node == "n1" and (folder / PLAN_FILE).exists() and not (folder / "planned").exists():
            begin_s = time.monotonic()
            plan_first(chunks, nodes, np.random.default_rng(0))
            (folder / "planned").write_text(f"{time.monotonic() - begin_s:.2f}")

    fault_points.enable(hook)
    return launcher.main(options)


def main() -> int:
    """Measure, print a table and one line of JSON, compare with the bars."""
    if sys.argv[1:2] == ["--agent"]:
        return run_agent(Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
    options = parser("How late heartbeats are.")
    options.add_argument("--only", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    arguments = options.parse_args()
    report = Report(arguments)
    for key in names_of(arguments.only, CASES, "--only"):
        report.add([measure(key)])
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
