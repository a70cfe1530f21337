"""Random, seeded, overlapping churn on real agents of this host, and a verdict on what came of their job.

    python -m chicle_elastic.testing.chaos --seed 1 --minutes 1

Nodes join, get notice, are killed, lose their task, stand still and go on, die at a named step, two at once. At least
one healthy member is spared at any time: a job that nobody survives begins afresh, and would prove nothing. Half of the
time goes to CoCoA and half to a solver that counts (`chaos_app`). In the end the weather is calm, the job ends, and
`cluster_truth` judges the evidence. The strikes are a function of the seed; what they hit depends on the machine.

Exit codes: 0 everything holds; 1 something does not, or hangs, and the folder with the evidence is kept; 2 usage.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chicle_elastic.testing import cluster_truth, faults
from chicle_elastic.testing.chaos_app import NUM_ROWS
from chicle_elastic.testing.chaos_nodes import ChaosNode, ChaosNodes
from chicle_elastic.testing.faults import Fault

START_NODES, MAX_NODES = 3, 5
MIN_MS = 10.0
HANG_S = 30.0
CALM_S = 60.0
ARMED_S = 6.0
RETRY_S = 0.1
"""After a strike that found nobody who can be spared."""
ANY_TIME = "any time"

KILL_STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("copy.before_fetch", {}),
    ("copy.before_commit", {}),
    ("copy.committed", {}),  # the target, between copy and commit
    ("log.appended", {"event": "ChunkCopied"}),  # anybody, the source too, between copy and commit
    ("commit.done", {}),  # between commit and free
    ("free.before", {}),
    ("free.done", {}),
    ("load.before_commit", {}),
    ("log.appended", {"event": "NodeJoined"}),
    ("log.appended", {"event": "LeaveNoticed"}),
    ("log.appended", {"event": "NodeLost"}),
    ("log.appended", {"event": "RoundFormed"}),
    ("lead.claimed", {}),
    ("lead.before_claim", {}),
    ("round.before_inventory", {}),
    ("round.before_rendezvous", {}),
    ("round.formed", {}),
    ("iteration.before_start", {}),
    ("iteration.ended", {}),
    ("notice.received", {}),
    ("leave.before_exit", {}),
)
STEP_ACTIONS = ("kill", "kill", "kill", "kill_task", "stop", "delay", "cut")


class Chaos:
    """Strikes the nodes of one job.

    Args:
        nodes: Of the job.
        rng: Decides everything.
        say: Takes a line for every strike.

    Attributes:
        struck: How often each kind struck at which step, for strikes that come from here and not from a script.
    """

    def __init__(self, nodes: ChaosNodes, rng: random.Random, say: Callable[[str], object]) -> None:
        self.struck: Counter[tuple[str, str]] = Counter()
        self._nodes, self._rng, self._say = nodes, rng, say
        self._armed: dict[str, tuple[Fault, float]] = {}
        self._num_armed = 0
        self._seen_fired = 0
        self._progress = (0, time.monotonic())
        self._strikes: dict[str, tuple[int, Callable[[], bool]]] = {
            "join": (5, self._join),
            "notice": (3, self._notice),
            "kill": (2, lambda: self._kill(self._pick())),
            "kill lead": (2, lambda: self._kill(self._pick_lead())),
            "kill_task": (2, lambda: self._kill_task(self._pick())),
            "stop": (2, lambda: self._stop(self._pick())),
            "two at once": (2, self._two_at_once),
            "at a step": (8, self._arm),
            "drop": (1, self._arm_drop),
        }

    def rage(self, seconds: float) -> str | None:
        """Strike for so long; returns what hung, or None."""
        end_s = time.monotonic() + seconds
        next_s = time.monotonic()
        while time.monotonic() < end_s:
            if fault := self._look():
                return fault
            if time.monotonic() >= next_s:
                names = list(self._strikes)
                weights = [self._strikes[name][0] for name in names]
                has_struck = self._strikes[self._rng.choices(names, weights)[0]][1]()
                next_s = time.monotonic() + (self._rng.uniform(0.1, 1.2) if has_struck else RETRY_S)
            time.sleep(0.01)
        return None

    def calm(self) -> str | None:
        """Let everybody recover, then end the job; returns what did not happen, or None."""
        self._armed.clear()
        self._nodes.arm(())
        self._spot_fired()
        for node in self._nodes.nodes:
            self._wake(node)
        expected = [node for node in self._nodes.running() if not node.is_doomed]
        if not expected:
            expected = [self._nodes.start()]
        start = self._nodes.iteration()

        def is_calm() -> bool:
            self._spot_fired()
            wanted = {node.name for node in expected if not node.was_killed}
            lasts = [node.last("iteration") for node in expected if not node.was_killed]
            return all(
                last is not None
                and last["iteration"] > start
                and wanted == last["samples"].keys()
                and sum(last["samples"].values()) == NUM_ROWS
                for last in lasts
            ) and all(not node.is_running for node in self._nodes.nodes if node.is_doomed)

        if not self._nodes.wait_until(is_calm, CALM_S):
            return f"not all of {[node.name for node in expected]} take part {CALM_S:.0f} s after the last strike"
        self._nodes.end_job()
        if not self._nodes.wait_until(lambda: not self._nodes.running(), CALM_S):
            return f"{[node.name for node in self._nodes.running()]} do not end"
        failed = [node for node in self._nodes.nodes if node.exit_code and not node.was_killed]
        return (
            "\n".join(f"{node.name} ended with exit code {node.exit_code}:\n{node.output()}" for node in failed) or None
        )

    def notice(self, node: ChaosNode) -> None:
        """Tell a node that it will be taken away."""
        self._note("notice", [node])
        node.is_doomed = True
        node.send(self._rng.choice((signal.SIGTERM, signal.SIGUSR1)))

    # Who is struck.

    def _healthy(self) -> list[ChaosNode]:
        """Members that nothing is armed against."""
        armed = {fault.node for fault, _ in self._armed.values()}
        return [node for node in self._nodes.members() if node.name not in armed]

    def _pick(self, count: int = 1) -> list[ChaosNode]:
        """Healthy members to strike, such that one is left over; none if that cannot be."""
        healthy = self._healthy()
        return self._rng.sample(healthy, count) if len(healthy) > count else []

    def _pick_lead(self) -> list[ChaosNode]:
        healthy, lead = self._healthy(), self._nodes.lead()
        return [lead] if lead in healthy and len(healthy) > 1 else []

    # Strikes. Each returns whether it struck.

    def _join(self) -> bool:
        if len(self._nodes.running()) >= MAX_NODES:
            return False
        self._note("join", [self._nodes.start()])
        return True

    def _notice(self) -> bool:
        nodes = self._pick()
        for node in nodes:
            self.notice(node)
        return bool(nodes)

    def _kill(self, nodes: list[ChaosNode]) -> bool:
        for node in nodes:
            self._note("kill", [node])
            node.kill()
        return bool(nodes)

    def _kill_task(self, nodes: list[ChaosNode]) -> bool:
        for node in nodes:
            self._note("kill_task", [node])
            node.send(signal.SIGKILL, to_task=True, to_agent=False)
        return bool(nodes)

    def _stop(self, nodes: list[ChaosNode]) -> bool:
        for node in nodes:
            self._note("stop", [node])
            node.wakes_s = time.monotonic() + self._rng.uniform(0.3, 4.0)
            node.send(signal.SIGSTOP, to_task=True)
        return bool(nodes)

    def _two_at_once(self) -> bool:
        nodes = self._pick(2)
        for node in nodes:
            strike = self._rng.choice((self._kill, self._kill, self._kill_task, self._stop))
            strike([node])
        return bool(nodes)

    def _arm(self) -> bool:
        step, where = self._rng.choice(KILL_STEPS)
        return self._arm_one(step, self._rng.choice(STEP_ACTIONS), where)

    def _arm_drop(self) -> bool:
        return self._arm_one("copy.before_fetch", "drop", {})

    def _arm_one(self, step: str, action: str, where: dict[str, Any]) -> bool:
        occurrence, seconds = self._rng.randint(1, 3), self._rng.uniform(0.1, 3.0)
        candidates = self._pick()
        if step.startswith("lead.") or self._rng.random() < 0.3:
            candidates = self._pick_lead() or candidates
        for node in candidates:
            self._num_armed += 1
            fault = Fault(
                name=f"{self._num_armed}",
                node=node.name,
                step=step,
                action=action,
                occurrence=occurrence,
                where=where,
                seconds=seconds,
            )
            self._armed[fault.name] = fault, time.monotonic() + ARMED_S
            self._arm_all()
        return bool(candidates)

    # Looking after it.

    def _look(self) -> str | None:
        """Wake who has slept enough, disarm what did not strike, and see whether the job goes on."""
        now = time.monotonic()
        for node in self._nodes.nodes:
            if node.wakes_s is not None and now >= node.wakes_s:
                self._wake(node)
        self._spot_fired()
        late = [name for name, (_, until_s) in self._armed.items() if now >= until_s]
        for name in late:
            del self._armed[name]
        if late:
            self._arm_all()
        iteration = self._nodes.iteration()
        if iteration > self._progress[0] or not self._nodes.members():
            self._progress = (iteration, now)
        if now - self._progress[1] > HANG_S:
            return f"no iteration was merged for {HANG_S:.0f} s after iteration {iteration}"
        return None

    def _spot_fired(self) -> None:
        fired = faults.read_fired(self._nodes.fired)
        for entry in fired[self._seen_fired :]:
            self._armed.pop(entry["name"], None)
            [node] = [node for node in self._nodes.nodes if node.name == entry["node"]]
            self._say(f"{entry['action']} {node.name} at {entry['step']} {entry['at']}")
            if entry["action"] == "kill":
                node.is_doomed = node.was_killed = True
        self._seen_fired = len(fired)

    def _arm_all(self) -> None:
        self._nodes.arm([fault for fault, _ in self._armed.values()])

    def _wake(self, node: ChaosNode) -> None:
        if node.wakes_s is not None:
            node.send(signal.SIGCONT, to_task=True)
            node.wakes_s = None

    def _note(self, kind: str, nodes: list[ChaosNode]) -> None:
        for node in nodes:
            is_lead = kind != "join" and node is self._nodes.lead()
            self._say(f"{kind} {node.name}{', which leads' if is_lead else ''}")
            self.struck[f"{kind} of the lead" if is_lead else kind, ANY_TIME] += 1


def run_job(
    folder: Path, *, work: str, seed: int, seconds: float, say: Callable[[str], object]
) -> tuple[Counter[tuple[str, str]], list[str]]:
    """One job in chaos.

    Args:
        folder: New; gets the evidence.
        work: "svm" or "count".
        seed: Of the strikes.
        seconds: How long to strike.
        say: Takes a line for every strike.

    Returns:
        How often each kind of fault struck at which step, and everything that is wrong.
    """
    with ChaosNodes(folder, work=work, min_ms=MIN_MS, max_nodes=2 * MAX_NODES) as nodes:
        chaos = Chaos(nodes, random.Random(f"{seed} {work}"), say)
        for _ in range(START_NODES):
            nodes.start()
        if not nodes.wait_until(lambda: len(nodes.members()) == START_NODES, CALM_S):
            return chaos.struck, [f"{START_NODES} nodes do not come together"]
        fault = chaos.rage(seconds) or chaos.calm()
        struck = chaos.struck + Counter((entry["action"], _title(entry)) for entry in faults.read_fired(nodes.fired))
        if fault is not None:
            nodes.ask_standing()
            return struck, [fault]
    return struck, cluster_truth.judge(cluster_truth.Evidence.read(nodes.log), work)


def table(struck: Counter[tuple[str, str]]) -> str:
    """How often each kind of fault struck at which step."""
    lines = [f"{'fault':<22}{'at':<42}{'times':>5}"]
    lines += [f"{kind:<22}{step:<42}{count:>5}" for (kind, step), count in sorted(struck.items())]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chicle_elastic.testing.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to strike; default: %(default)s")
    parser.add_argument("--work", choices=("both", "svm", "count"), default="both")
    parser.add_argument("--quiet", action="store_true", help="print no line for each strike")
    options = parser.parse_args(argv)
    works = ("count", "svm") if options.work == "both" else (options.work,)
    start_s = time.monotonic()

    def say(line: str) -> None:
        if not options.quiet:
            print(f"{time.monotonic() - start_s:7.2f} s  {line}", flush=True)

    struck: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="chicle-chaos-"))
    for work in works:
        say(f"the job is {work}")
        seconds = 60 * options.minutes / len(works)
        new, faults_found = run_job(folder / work, work=work, seed=options.seed, seconds=seconds, say=say)
        struck += new
        wrong += [f"{work}: {fault}" for fault in faults_found]
    print(table(struck))
    print("\n".join(wrong[:50]))
    if wrong:
        print(f"seed {options.seed}: {len(wrong)} FAULTS; the evidence is in {folder}")
        return 1
    shutil.rmtree(folder)
    print(f"seed {options.seed}: every check holds after {sum(struck.values())} strikes")
    return 0


def _title(entry: dict[str, Any]) -> str:
    where = ", ".join(f"{value}" for value in entry["where"].values())
    return f"{entry['step']} {where}".strip()


if __name__ == "__main__":
    sys.exit(main())
