"""Random, seeded, overlapping churn on real agents of this host, and a verdict on what came of their job.

    python -m tests.harness.chaos --seed 1 --minutes 1

Nodes join, get notice, are killed, lose their task, stand still and go on, two at once; faults of all kinds strike
at named steps (`fault_schedule`); the store dies, alone or with the leader, and links fail (`outages`). At least one
healthy member is spared at any time: a job that no node survives begins afresh, and would prove nothing. A node is
healthy again when it has merged an iteration after what struck it last. A third of the time each goes to a solver that
counts, to CoCoA and to Newton's method (`chaos_app`). In the end the weather is calm, the job ends, and `cluster_truth`
judges the evidence. What struck over many seeds is added up by `chaos_table`.

The strikes are a function of the seed; what they hit depends on the machine.

Exit codes: 0 everything holds; 1 something does not, or hangs, and the folder with the evidence is kept; 2 usage.
"""

from chicle_elastic.settings import hide_stack_traces_of_torch

if __name__ == "__main__":  # before torch is imported
    hide_stack_traces_of_torch()

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chicle_elastic.errors import ProtocolError
from chicle_elastic.scheduling.replaying import Replay, difference_text
from tests.harness import chaos_table, cluster_truth, faults
from tests.harness.chaos_app import NUM_ROWS
from tests.harness.chaos_nodes import ChaosNode, ChaosNodes
from tests.harness.chaos_table import ANY_TIME, OF_THE_LEAD, TWO_AT_ONCE, Struck
from tests.harness.fault_schedule import Cause, ScheduledFault, Victim, schedule_of
from tests.harness.faults import Fault
from tests.harness.outages import MIN_MEMBERS, Outage, faults_of, outages_of, smaller_part
from tests.timeouts import comes

START_NODES, MAX_NODES = 3, 5
MIN_MS = 10.0
HANG_S = 30.0
CALM_S = 60.0
ARMED_S = 12.0
RETRY_S = 0.1
"""After a strike that found no node that can be spared."""
OUTAGE_EVERY_S = 15.0
"""The first outage is what a job begins with: all its nodes are well then."""
PREPARE_S, RECOVER_S = 8.0, 15.0
"""How long chaos waits for all nodes to be well, before an outage and after it; then it strikes whatever it finds."""
RELINK_S = 2.0
"""After a cut between two nodes: until then they have no link. Iterations may go on meanwhile, and prove nothing.

Should the leader die then, one of the two expels the other, and would be the last one of the job.
"""
WORKS = ("count", "svm", "newton")


@dataclass(slots=True)
class _Patient:
    """A node that was struck: until when it is not itself, and which iteration it has to surpass then to be well."""

    until_s: float
    proof: int | None = None


class Chaos:
    """Strikes the nodes of one job.

    One class because all strikes share who is struck, armed and spared at the moment.

    Args:
        nodes: Of the job.
        rng: Decides everything but the cards.
        scheduled_faults: Faults at named steps.
        outages: Of the store and of links.
        say: Takes a line for every strike.
    """

    def __init__(
        self,
        nodes: ChaosNodes,
        rng: random.Random,
        scheduled_faults: Iterator[ScheduledFault],
        outages: Iterator[Outage],
        say: Callable[[str], object],
    ) -> None:
        # how often each kind struck at which step, for strikes that come from here and not from a script
        self.struck: Struck = Counter()
        self._nodes, self._rng, self._say = nodes, rng, say
        self._armed: dict[str, tuple[Fault, float]] = {}
        self._patients: dict[str, _Patient] = {}
        self._faults = scheduled_faults
        self._fault = next(scheduled_faults)
        self._outages = outages
        self._outage_due_s = time.monotonic()
        self._store_back_s: float | None = None
        self._quiet_until_s: float | None = None
        self._num_armed = 0
        self._seen_fired = 0
        self._progress = (0, time.monotonic())
        self._strikes: dict[str, tuple[int, Callable[[], bool]]] = {
            "join": (8, self._join),
            "notice": (2, self._notice),
            "kill": (1, lambda: self._kill(self._pick())),
            "kill lead": (1, lambda: self._kill(self._pick_lead())),
            "kill_task": (1, lambda: self._kill_task(self._pick())),
            "stop": (1, lambda: self._stop(self._pick())),
            "two at once": (2, self._two_at_once),
            "card": (40, self._play),
        }

    def rage(self, seconds: float) -> str | None:
        """Strike for so long; returns what hung, or None."""
        end_s = time.monotonic() + seconds
        next_s = time.monotonic()
        self._outage_due_s = next_s
        while time.monotonic() < end_s:
            if fault := self._look():
                return fault
            now = time.monotonic()
            if self._outage_due_s <= now < self._outage_due_s + PREPARE_S:
                self._begin_outage(next(self._outages) if self._is_outage_possible() else None)
            elif now >= self._outage_due_s:
                self._outage_due_s = now + PREPARE_S
            elif now >= next_s and not self._is_quiet():
                names = list(self._strikes)
                weights = [self._strikes[name][0] for name in names]
                has_struck = self._strikes[self._rng.choices(names, weights)[0]][1]()
                next_s = time.monotonic() + (self._rng.uniform(0.1, 1.2) if has_struck else RETRY_S)
            time.sleep(0.01)
        return None

    def calm(self) -> str | None:
        """Let everybody recover, then end the job; returns what did not happen, or None."""
        self._disarm()
        self._nodes.start_store()
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

        if not comes(is_calm, CALM_S):
            return f"not all of {[node.name for node in expected]} take part {CALM_S:.0f} s after the last strike"
        self._nodes.end_job()
        if not comes(lambda: not self._nodes.running(), CALM_S):
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

    # Outages.

    def _is_outage_possible(self) -> bool:
        """Whether all nodes are well, and there are enough; otherwise brings that about."""
        self._disarm()
        running = self._nodes.running()
        if len([node for node in running if not node.is_doomed]) < MIN_MEMBERS:
            self._join()
            return False
        lead = self._nodes.lead()
        return self._nodes.has_store and lead in running and len(self._healthy()) == len(running)

    def _begin_outage(self, outage: Outage | None) -> None:
        """Let something fail; everything has been prepared for it."""
        lead = self._nodes.lead()
        if outage is None or lead is None:
            return
        now = time.monotonic()
        seconds = self._rng.uniform(*outage.seconds)
        self._say(f"{outage.value} for {seconds:.1f} s")
        self.struck[outage.value, ANY_TIME] += 1
        self._outage_due_s = now + OUTAGE_EVERY_S
        if outage.needs_quiet:
            self._quiet_until_s = now + seconds
        if outage.ends_store:
            self._nodes.kill_store()
            self._store_back_s = now + seconds
            if outage is Outage.STORE_AND_LEAD:
                self._kill([lead])
            return
        part, others = smaller_part(outage, self._nodes.running(), lead, self._rng)
        for node in part + others if outage is Outage.PAIR_CUT else part:
            self._hurt(node, seconds + RELINK_S)
        for fault in faults_of(outage, part, others, number=self._num_armed + 1, seconds=seconds):
            self._num_armed += 1
            self._armed[fault.name] = fault, now + ARMED_S
        self._arm_all()

    def _is_quiet(self) -> bool:
        """Whether an outage lasts, or has left nodes that are not well yet."""
        if self._quiet_until_s is None:
            return False
        now = time.monotonic()
        alive = [node for node in self._nodes.running() if not node.is_doomed]
        is_over = now >= self._quiet_until_s and len(self._healthy()) == len(alive) and self._nodes.has_store
        if is_over or now >= self._quiet_until_s + RECOVER_S:
            self._quiet_until_s = None
        return self._quiet_until_s is not None

    def _disarm(self) -> None:
        """No fault strikes from now on."""
        if self._armed:
            self._armed.clear()
            self._arm_all()
        self._spot_fired()

    # Who is struck.

    def _healthy(self) -> list[ChaosNode]:
        """Members that nothing is armed against, and that have merged an iteration since they were struck last."""
        armed = {fault.node for fault, _ in self._armed.values()}
        return [node for node in self._nodes.members() if node.name not in armed and self._is_well(node)]

    def _is_well(self, node: ChaosNode) -> bool:
        patient = self._patients.get(node.name)
        if patient is None:
            return True
        if patient.proof is None and time.monotonic() >= patient.until_s:
            patient.proof = self._nodes.iteration()
        last = node.last("iteration")
        if patient.proof is None or last is None or last["iteration"] <= patient.proof:
            return False
        del self._patients[node.name]
        return True

    def _hurt(self, node: ChaosNode, seconds: float = 0.0) -> None:
        """A node was struck, and is not itself for so long at least."""
        self._patients[node.name] = _Patient(time.monotonic() + seconds)

    def _pick(self, count: int = 1) -> list[ChaosNode]:
        """Healthy members to strike, such that one is left over; none if that cannot be."""
        healthy = self._healthy()
        return self._rng.sample(healthy, count) if len(healthy) > count else []

    def _pick_lead(self) -> list[ChaosNode]:
        healthy, lead = self._healthy(), self._nodes.lead()
        return [lead] if lead in healthy and len(healthy) > 1 else []

    def _has_room(self) -> bool:
        return len(self._nodes.running()) < MAX_NODES and self._nodes.has_store

    # Strikes. Each returns whether it struck.

    def _join(self) -> bool:
        if not self._has_room():
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
            self._hurt(node)
            node.send(signal.SIGKILL, to_task=True, to_agent=False)
        return bool(nodes)

    def _stop(self, nodes: list[ChaosNode]) -> bool:
        for node in nodes:
            self._note("stop", [node])
            node.wakes_s = time.monotonic() + self._rng.uniform(0.3, 4.0)
            self._hurt(node, node.wakes_s - time.monotonic())
            node.send(signal.SIGSTOP, to_task=True)
        return bool(nodes)

    def _two_at_once(self) -> bool:
        nodes = self._pick(2)
        self.struck[TWO_AT_ONCE, ANY_TIME] += bool(nodes)
        for node in nodes:
            strike = self._rng.choice((self._kill, self._kill, self._kill_task, self._stop))
            strike([node])
        return bool(nodes)

    def _play(self) -> bool:
        """Play the next card, if its victim and the node that has to go for it can be spared."""
        scheduled_fault, healthy = self._fault, self._healthy()
        victims = self._victims(scheduled_fault, healthy)
        to_go = self._to_go(scheduled_fault, [node for node in healthy if node not in (victims or ())])
        if victims is None or to_go is None or len(healthy) <= len(victims) + len(to_go):
            return False
        self._arm(scheduled_fault, victims[0].name if victims else self._nodes.next_name)
        if scheduled_fault.cause is Cause.JOIN:
            self._join()
        elif scheduled_fault.cause is Cause.LOSS:
            self._kill(to_go)
        elif scheduled_fault.cause is Cause.NOTICE:
            self.notice((to_go or victims)[0])
        self._fault = next(self._faults)
        return True

    def _victims(self, scheduled_fault: ScheduledFault, healthy: Sequence[ChaosNode]) -> list[ChaosNode] | None:
        """Who is struck by a card, if it is there already; None when no node can be."""
        if scheduled_fault.cause is Cause.JOIN and not self._has_room():
            return None
        if scheduled_fault.victim is Victim.NEWCOMER:
            return []
        lead = self._nodes.lead()
        others = [node for node in healthy if node is not lead]
        if scheduled_fault.victim is Victim.LEAD:
            return [node for node in healthy if node is lead] or None
        if scheduled_fault.victim is Victim.SUCCESSOR:
            others = [node for node in self._nodes.successor() if node in others]
        return [self._rng.choice(others)] if others else None

    def _to_go(self, scheduled_fault: ScheduledFault, others: Sequence[ChaosNode]) -> list[ChaosNode] | None:
        """Who is killed or noticed so that the victim of a card comes to its step; None when no node can be."""
        if scheduled_fault.victim is Victim.LEAVER or scheduled_fault.cause not in (Cause.LOSS, Cause.NOTICE):
            return []
        if scheduled_fault.victim is Victim.SUCCESSOR:
            others = [node for node in others if node is self._nodes.lead()]
        return [self._rng.choice(others)] if others else None

    def _arm(self, scheduled_fault: ScheduledFault, node: str) -> None:
        self._num_armed += 1
        fault = Fault(
            name=f"{self._num_armed} {scheduled_fault.victim.value}",
            node=node,
            step=scheduled_fault.step,
            action=scheduled_fault.action,
            occurrence=scheduled_fault.occurrence,
            where=scheduled_fault.where,
            seconds=self._rng.uniform(0.1, 3.0),
        )
        self._armed[fault.name] = fault, time.monotonic() + ARMED_S
        self._arm_all()

    # Looking after it.

    def _look(self) -> str | None:
        """Wake who has slept enough, disarm what did not strike, and see whether the job goes on."""
        now = time.monotonic()
        for node in self._nodes.nodes:
            if node.wakes_s is not None and now >= node.wakes_s:
                self._wake(node)
        if self._store_back_s is not None and now >= self._store_back_s:
            self._store_back_s = None
            self._nodes.start_store()
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
            elif entry["action"] == "part":
                is_pair = Outage.PAIR_CUT.value in entry["name"]
                for hurt in self._nodes.nodes:
                    if hurt is node or (is_pair and hurt.name == entry["at"]["peer"]):
                        self._hurt(hurt, entry["seconds"] + RELINK_S)
            elif entry["action"] != "drop":
                self._hurt(node, entry["seconds"])
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
            self.struck[kind + OF_THE_LEAD if is_lead else kind, ANY_TIME] += 1


def run_job(
    folder: Path, *, work: str, seed: int, seconds: float, say: Callable[[str], object]
) -> tuple[Struck, list[str]]:
    """One job in chaos.

    Args:
        folder: New; gets the evidence.
        work: "svm", "newton" or "count".
        seed: Of the strikes.
        seconds: How long to strike.
        say: Takes a line for every strike.

    Returns:
        How often each kind of fault struck at which step, and everything that is wrong.
    """
    with ChaosNodes(folder, work=work, min_ms=MIN_MS, max_nodes=2 * MAX_NODES) as nodes:
        job = len(WORKS) * (seed - 1) + WORKS.index(work)
        chaos = Chaos(nodes, random.Random(f"{seed} {work}"), schedule_of(job), outages_of(job), say)
        for _ in range(START_NODES):
            nodes.start()
        if not comes(lambda: len(nodes.members()) == START_NODES, CALM_S):
            return chaos.struck, [f"{START_NODES} nodes do not come together"]
        fault = chaos.rage(seconds) or chaos.calm()
        struck = chaos.struck + Counter(map(_key, faults.read_fired(nodes.fired)))
        if fault is not None:
            nodes.ask_standing()
            return struck, [fault]
    wrong = cluster_truth.judge(cluster_truth.Evidence.read(nodes.log), work)
    return struck, [*wrong, *differences(nodes.log)]


def differences(log_dir: Path) -> list[str]:
    """Recordings of a job whose replay has other effects, with the first one of each."""
    found = []
    for path in sorted(log_dir.glob("*.recording.jsonl")):
        if not path.stat().st_size:  # its agent was killed before it joined
            continue
        try:
            step = next((step for step in Replay(path) if step.difference is not None), None)
        except ProtocolError as error:
            found.append(f"a recording cannot be replayed: {error}")
        else:
            found += [] if step is None else [difference_text(step)]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to strike; default: %(default)s")
    parser.add_argument("--work", choices=("all", *WORKS), default="all")
    parser.add_argument("--tally", type=Path, help="add a line of what struck to this file; see chaos_table")
    parser.add_argument("--keep", type=Path, help="new folder for the evidence, which stays; default: only of faults")
    parser.add_argument("--quiet", action="store_true", help="print no line for each strike")
    options = parser.parse_args(argv)
    works = WORKS if options.work == "all" else (options.work,)
    start_s = time.monotonic()

    def say(line: str) -> None:
        if not options.quiet:
            print(f"{time.monotonic() - start_s:7.2f} s  {line}", flush=True)

    struck: Struck = Counter()
    wrong: list[str] = []
    folder = options.keep or Path(tempfile.mkdtemp(prefix="chicle-chaos-"))
    for work in works:
        say(f"the job is {work}")
        seconds = 60 * options.minutes / len(works)
        new, faults_found = run_job(folder / work, work=work, seed=options.seed, seconds=seconds, say=say)
        struck += new
        wrong += [f"{work}: {fault}" for fault in faults_found]
    print(chaos_table.table(struck))
    if options.tally:
        chaos_table.write(options.tally, seed=options.seed, struck=struck, num_faults=len(wrong))
    print("\n".join(wrong[:50]))
    if wrong:
        print(f"seed {options.seed}: {len(wrong)} FAULTS; the evidence is in {folder}")
        return 1
    if options.keep is None:
        shutil.rmtree(folder)
    print(f"seed {options.seed}: every check holds after {sum(struck.values())} strikes")
    return 0


def _key(entry: dict[str, Any]) -> tuple[str, str]:
    _, _, victim = entry["name"].partition(" ")
    where = {} if entry["action"] == "part" else entry["where"]  # the peer, of which there are many
    return entry["action"], chaos_table.place(entry["step"], where, victim)


if __name__ == "__main__":
    sys.exit(main())
