"""Real agents on this machine while nodes come and go: 2 > 4 > 3 (notice) > 2 (SIGKILL), and the stall of each change.

Run it with `make demo`, or with a folder to write to: `python -m examples.cluster_demo FOLDER`, which makes
FOLDER/cluster anew. Every node is an agent and a task, two processes, started by the launcher as on a cluster;
`examples/cluster_svm.py` is what they train with.
"""

import contextlib
import importlib.util
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from chicle_elastic import ChicleError

ROOT = Path(__file__).parents[1]
SCRIPT = Path(__file__).with_name("cluster_svm.py")
TOL = 1e-3
PAUSE_ITERATIONS = 30
"""Iterations in peace before each change."""
TIMEOUT_S = 60.0
POLL_S = 0.01
LIMIT_MS = 3000.0
"""A change that holds the others up for longer is a fault, however slow the machine."""

LAUNCH = (sys.executable, "-m", "chicle_elastic.launch")

Line = dict[str, Any]


class DemoError(ChicleError):
    """Something did not happen in time, or a node has ended that should not."""


class Node:
    """One node: the process of its agent, and the event file that it writes."""

    def __init__(self, name: str, folder: Path, endpoint: str) -> None:
        self.name = name
        self.lines: list[Line] = []
        self._output = folder / f"{name}.out"
        self._events = folder / f"{name}.events.jsonl"
        self._position = 0
        command = [
            *(*LAUNCH, "--nnodes", "2:4", "--name", name, "--grace", "10"),
            *("--rdzv-endpoint", endpoint, "--secret-file", str(folder / "job.secret"), "--log-dir", str(folder)),
            *(str(SCRIPT), str(folder)),
        ]
        with self._output.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environment(), cwd=ROOT)

    def read(self, kind: str) -> list[Line]:
        """Lines of a kind, up to now."""
        if self._events.exists():
            with self._events.open("rb") as file:
                file.seek(self._position)
                whole, line_feed, _ = file.read().rpartition(b"\n")
            self._position += len(whole) + len(line_feed)
            # A ledger line per iteration says what was read; the demo does not need them.
            self.lines += [json.loads(line) for line in whole.splitlines() if b'"kind":"ledger"' not in line]
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def pids(self) -> set[int]:
        """Of the agent and of all its tasks."""
        return {self.process.pid, *(line["pid"] for line in self.read("hot"))}

    def wait_for(self, what: str, found: Callable[[], object]) -> None:
        """Wait until `found` is true.

        Raises:
            DemoError: The node has ended first, or time was up.
        """
        end_s = time.monotonic() + TIMEOUT_S
        while not found():
            if self.process.poll() is not None or time.monotonic() > end_s:
                last = self._output.read_text()[-2000:]
                state = "is still running" if self.process.poll() is None else f"ended with {self.process.returncode}"
                raise DemoError(f"{self.name} was waited for ({what}) and {state}; the last it said:\n{last}")
            time.sleep(POLL_S)

    def wait_for_tasks(self, count: int) -> None:
        """Wait for some iterations of so many tasks that have all chunks between them."""
        num_before = len(self.read("iteration"))
        num_chunks = max((sum(line["chunks"].values()) for line in self.read("iteration")), default=0)

        def found() -> bool:
            last = self.read("iteration")[num_before:][-PAUSE_ITERATIONS:]
            return len(last) == PAUSE_ITERATIONS and all(
                len(line["seconds"]) == count and sum(line["chunks"].values()) >= num_chunks for line in last
            )

        self.wait_for(f"iterations of {count} tasks", found)

    def wait_for_end(self) -> int:
        """Its exit code."""
        try:
            return self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise DemoError(f"{self.name} did not end within {TIMEOUT_S:g} s") from None


def environment() -> dict[str, str]:
    """Of all processes. They share this machine: one thread each."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def main(folder: Path) -> int:
    """Run the demo; 0 when everything was as it should be."""
    started_s = time.monotonic()
    if importlib.util.find_spec("torch") is None:
        print("cluster demo: it needs torch; install it with: pip install 'chicle-elastic[cluster]'", file=sys.stderr)
        return 1
    print(
        "Real nodes on this machine, an agent and a task each: 2 begin, 2 join, 1 is told to leave, 1 is killed",
        flush=True,
    )
    folder = folder / "cluster"
    shutil.rmtree(folder, ignore_errors=True)  # an event file of another run would be gone on with
    folder.mkdir(parents=True)
    nodes: list[Node] = []
    try:
        with run_store(folder) as endpoint:
            exits = change_members(nodes, lambda name: Node(name, folder, endpoint), folder)
    except DemoError as error:
        print(f"cluster demo: {error}", file=sys.stderr)
        return 1
    finally:
        end_processes(nodes)
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.result.json"))]
    print()
    report(nodes[0], results)
    checks = check_all(nodes, exits, results)
    for text, is_true in checks:
        print(f"{'ok    ' if is_true else 'FAILED'}  {text}")
    print(f"\n{time.monotonic() - started_s:.1f} s; to look at it again: tensorboard --logdir {folder}")
    return 0 if all(is_true for _, is_true in checks) else 1


@contextlib.contextmanager
def run_store(folder: Path) -> Iterator[str]:
    """The rendezvous store, which makes the job secret and outlives all nodes; gives its address.

    Raises:
        DemoError: It does not listen.
    """
    options = ("--store-only", "--rdzv-endpoint", "127.0.0.1:0", "--secret-file", str(folder / "job.secret"))
    with subprocess.Popen([*LAUNCH, *options], stdout=subprocess.PIPE, env=environment(), cwd=ROOT, text=True) as store:
        try:
            line = store.stdout.readline().strip() if store.stdout else ""
            if not line:
                raise DemoError(f"the rendezvous store did not start; it ended with {store.wait(TIMEOUT_S)}")
            yield line.rpartition(" ")[2]
        finally:
            store.kill()


def change_members(nodes: list[Node], start: Callable[[str], Node], folder: Path) -> dict[str, int]:
    """The story of the demo; `nodes` gets each node as soon as it is started.

    Returns:
        Exit codes by node.
    """
    started_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started_s:5.1f} s  {text}", flush=True)

    say("n0 and n1 start; they compile kernels, the first time")
    nodes += [start("n0"), start("n1")]
    first, second = nodes
    first.wait_for_tasks(2)
    say("2 nodes train; n2 and n3 start beside them")
    nodes += [start("n2"), start("n3")]
    victim, leaver = nodes[2:]
    first.wait_for_tasks(4)
    say("4 nodes train; n3 is told to leave (SIGTERM) and hands its chunks over")
    leaver.process.send_signal(signal.SIGTERM)
    first.wait_for_tasks(3)
    say("3 nodes train; n2 is killed (SIGKILL), and its chunks are loaded again")
    for pid in victim.pids:
        os.kill(pid, signal.SIGKILL)
    first.wait_for_tasks(2)
    say("2 nodes train on all chunks; the job ends")
    (folder / "end").touch()
    return {node.name: node.wait_for_end() for node in (first, second, leaver, victim)}


def end_processes(nodes: Iterable[Node]) -> None:
    """Whatever has happened: nothing goes on. Tasks end with their agent."""
    for node in nodes:
        node.process.kill()
        node.process.wait()


def report(first: Node, results: list[Line]) -> None:
    """Print what each change took, and what came of the model."""
    print(
        "What each change took, in ms (the phases overlap): the stall is from the last iteration before it to the first"
    )
    print(
        "one after it; the others pause, meet (rendezvous), move chunks, connect (group), and the first iteration ends."
    )
    rows = [["change", "nodes", "stall", "pause", "rendezvous", "move", "group", "first iteration"]]
    names = ("stall_ms", "pause_ms", "rendezvous_ms", "move_ms", "group_ms", "first_ms")
    transitions = first.read("transition")
    for before, line in itertools.pairwise(transitions):
        counts = f"{len(before['members'])} > {len(line['members'])}"
        rows.append([", ".join(line["reasons"]), counts, *(f"{line[name]:.0f}" for name in names)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print("\n".join(lines))
    iteration_ms = statistics.median(line["duration_ms"] for line in first.read("iteration"))
    print(f"\nThe median iteration took {iteration_ms:.1f} ms.")
    for result in results[:1]:
        print(
            f"After {result['iterations']} iterations: certified gap {result['gap']:.1e}, "
            f"the same recomputed in NumPy {result['gap_in_numpy']:.1e}, training accuracy {result['accuracy']:.3f}.\n"
        )


def check_all(nodes: list[Node], exits: dict[str, int], results: list[Line]) -> list[tuple[str, bool]]:
    """What should be, and whether it is."""
    first, second, victim, leaver = nodes
    lines = first.read("iteration")
    num_chunks = sum(lines[0]["chunks"].values())
    [lost_unix_s] = [line["time"] for line in first.read("lost")] or [0.0]
    steps = [count for count, _ in itertools.groupby(len(line["seconds"]) for line in lines)]
    stalls_ms = [line["stall_ms"] for line in first.read("transition")[1:]]
    survivors = (first, second)
    return [
        ("2 tasks, then 4 (at once or one by one), then 3, then 2", steps in ([2, 4, 3, 2], [2, 3, 4, 3, 2])),
        ("the survivors kept their process", all(len(node.read("hot")) == 1 for node in survivors)),
        (
            "the survivors kept their model where it was in memory",
            all(len({line["model_address"] for line in node.read("iteration")}) == 1 for node in survivors),
        ),
        (f"{leaver.name} left with exit code 0, {victim.name} was killed", (exits["n3"], exits["n2"]) == (0, -9)),
        (f"{first.name} and {second.name} ended with exit code 0", exits["n0"] == exits["n1"] == 0),
        (
            f"all {num_chunks} chunks took part in every iteration before the kill, and again at the end",
            all(sum(line["chunks"].values()) == num_chunks for line in lines if line["time"] < lost_unix_s)
            and sum(lines[-1]["chunks"].values()) == num_chunks,
        ),
        (f"no change took longer than {LIMIT_MS:.0f} ms", len(stalls_ms) >= 3 and max(stalls_ms) <= LIMIT_MS),
        ("the survivors have the same result", len(results) == 2 and results[0] == results[1]),
        (
            f"the gap is certified, below {TOL:g}, and the one that NumPy finds",
            bool(results)
            and all(
                result["gap"] is not None
                and result["gap"] <= TOL
                and abs(result["gap"] - result["gap_in_numpy"]) <= 1e-6 + 1e-3 * result["gap"]
                for result in results
            ),
        ),
        ("no process is left", not any(is_running(pid) for node in nodes for pid in node.pids)),
    ]


def is_running(pid: int) -> bool:
    """Whether a process exists; its end may take a moment."""
    end_s = time.monotonic() + 5.0
    while time.monotonic() < end_s:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False  # it has ended, and its parent has not asked how
        except FileNotFoundError:
            return False
        time.sleep(POLL_S)
    return True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output")))
