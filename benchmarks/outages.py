"""How long outages that last keep a job of four nodes from its iterations, measured on the hosts of the lab.

    python -m benchmarks.outages --seconds 60 --only "leader alone" --only "pair cut"

Prints a line for each outage: the longest time between two iterations of the nodes that go on, from the cut to the
healing, and the time from the healing to the first iteration of all nodes. It asserts nothing of times; it needs root,
as the tests of this folder do. The job is judged in the end.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.forked import start_fork_server
from tests.hosts.job import Job, Node
from tests.hosts.lab import Lab

NAMES = ("n1", "n2", "n3", "n4")


@dataclass(frozen=True, slots=True)
class Measured:
    """What an outage costs, in seconds.

    Attributes:
        stall_s: The longest time between two iterations of the nodes that went on.
        rejoin_s: From the healing to the first iteration of all nodes.
        who: The nodes that went on.
    """

    stall_s: float
    rejoin_s: float
    who: list[str]

    def __str__(self) -> str:
        return f"stall {self.stall_s:6.2f} s   rejoin {self.rejoin_s:6.2f} s   {', '.join(self.who)} went on"


def measure(job: Job, members: Sequence[Node], cut: Callable[[], object], *, seconds: float) -> Measured:
    """Let links fail for so long, and heal them.

    Args:
        job: It runs with these members.
        members: All its nodes.
        cut: Makes the links fail.
        seconds: How long.
    """
    cut_s = time.time()
    cut()
    time.sleep(seconds)
    healed_s = time.time()
    job.lab.network.heal()
    job.wait_for_members(members)
    last_s = {
        node.name: max(event["time"] for event in node.events("iteration") if event["time"] <= healed_s)
        for node in members
    }
    who = [node for node in members if last_s[node.name] > max(last_s.values()) - 1.0]
    stall_s = max(_longest_gap(node, cut_s, healed_s) for node in who)
    together = [
        event["time"]
        for event in members[0].events("iteration")
        if event["time"] > healed_s and len(event["samples"]) == len(members)
    ]
    return Measured(stall_s, together[0] - healed_s, [node.name for node in who])


def _longest_gap(node: Node, begin_s: float, end_s: float) -> float:
    times = [event["time"] for event in node.events("iteration")]
    inside = [begin_s, *(stamp for stamp in times if begin_s < stamp < end_s), end_s]
    return max(b - a for a, b in itertools.pairwise(inside))


def cuts(job: Job, members: Sequence[Node]) -> dict[str, Callable[[], object]]:
    """All outages of links, by name; `members` begins with the leader."""
    leader, one, other, last = members
    network = job.lab.network
    return {
        "leader alone": lambda: job.part([leader], [one, other, last], has_store=(True, True)),
        "leader alone, store there": lambda: job.part([leader], [one, other, last], has_store=(True, False)),
        "two and two, store with the leader": lambda: job.part([leader, one], [other, last], has_store=(True, False)),
        "two and two, store elsewhere": lambda: job.part([leader, one], [other, last], has_store=(False, True)),
        "follower alone": lambda: job.part([last], [leader, one, other], has_store=(True, True)),
        "pair cut": lambda: network.cut((one.name, other.name)),
        "half-open pair": lambda: network.cut_one_way((one.name, other.name)),
    }


def leader_and_store(job: Job, members: Sequence[Node]) -> float:
    """Kill the leader and the store at once; returns how long the survivors had no iteration, in seconds."""
    leader, *survivors = members
    killed_s = time.time()
    job.kill_store()
    leader.kill()
    job.wait_for_progress(survivors)
    return max(_longest_gap(node, killed_s, time.time()) for node in survivors)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.outages", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long links are down; default: %(default)s")
    parser.add_argument("--only", action="append", help="an outage; by default all of them")
    options = parser.parse_args()
    start_fork_server()
    with tempfile.TemporaryDirectory() as folder, Lab(Path(folder) / "hosts") as lab:
        job = Job(lab)
        members = job.start_members(*NAMES)
        for name in cuts(job, members):
            if options.only and name not in options.only:
                continue
            leader = job.leader()  # it may be another one after each outage
            members = sorted(members, key=lambda node: node.name != leader)
            print(f"{name:<36}{measure(job, members, cuts(job, members)[name], seconds=options.seconds)}", flush=True)
        leader = job.leader()
        members = sorted(members, key=lambda node: node.name != leader)
        print(f"{'leader and store killed':<36}stall {leader_and_store(job, members):6.2f} s", flush=True)
        job.start_store()
        job.end(members[1:])


if __name__ == "__main__":
    main()
