"""Random changes of a loop on real agents: joins, notices, kills of processes at points of a step, kills of nodes."""

import contextlib
import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster_harness import AgentProcess
from tests.loop.forked_tasks import TaskServer
from tests.loop.loop_agents import COUNT, add, assert_each_counts_once, end, loop_agents, start, strike, wait_until
from tests.loop.train_loop import POINTS

NUM_CHANGES = 10
EVERYDAY = 1  # seeds of make test; the others are for make test-chaos
MOST_NODES = 5


@pytest.mark.parametrize(
    "seed", [*range(EVERYDAY), *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(EVERYDAY, 30))]
)
def test_each_sample_counts_once(seed: int, tmp_path: Path, tasks: TaskServer) -> None:
    """After ten random changes every sample of every epoch is in exactly one step, in all nodes alike."""
    rng = random.Random(seed)
    with loop_agents(tmp_path, tasks, *COUNT, options=("--start-nodes", "3", "--nnodes", "1:8")) as cluster:
        here = {agent.name: agent for agent in start(cluster, "n0", "n1", "n2")}
        starts = dict.fromkeys(here, 1)
        holders = set(here)  # nodes that have the state for certain; one has to be left, as nothing is read from a disk
        for number in range(NUM_CHANGES):
            kinds = ["strike"] * 4 + ["join"] * (2 * (len(here) < MOST_NODES)) + ["notice", "kill"] * (len(here) > 2)
            kind, name = rng.choice(kinds), rng.choice(sorted(here))
            if kind != "join" and holders <= {name}:
                settle(list(here.values()), starts, f"before change {number}, {kind} {name}")
                holders = set(here)
            if kind != "join":
                holders.discard(name)
            if kind == "join":
                name = f"n{len(cluster.agents)}"
                here[name], starts[name] = add(cluster, name), 1
            elif kind == "strike":
                point = rng.choice(POINTS if len(here) > 2 else [point for point in POINTS if point != "half"])
                starts[name] = len(here[name].events("hot")) + 1
                strike(cluster, name, point)
            else:
                agent = here.pop(name)
                if kind == "notice":
                    agent.signal(signal.SIGTERM)
                else:
                    agent.signal(signal.SIGKILL)
                    for event in agent.events("hot")[-1:]:  # its task, if it has one; else that ends by itself
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(event["pid"], signal.SIGKILL)
            if rng.random() < 0.7:  # else the next change comes while this one is under way
                settle(list(here.values()), starts, f"change {number}, {kind} {name}")
                holders = set(here)
        settle(list(here.values()), starts, "the end")
        results = end(cluster, *here.values())
    assert_each_counts_once(results[0])


def settle(agents: list[AgentProcess], starts: Mapping[str, int], what: str) -> None:
    """Wait until exactly these nodes train, each with the process that was started last."""
    names = {agent.name for agent in agents}
    wait_until(lambda: all(len(agent.events("hot")) >= starts[agent.name] for agent in agents), what)

    def lasts() -> list[dict[str, Any]]:
        return [event for agent in agents for event in agent.events("iteration")[-1:]]

    before = max((event["iteration"] for event in lasts()), default=0)
    wait_until(
        lambda: (
            len(found := lasts()) == len(agents)
            and all(event["iteration"] > before and set(event["seconds"]) == names for event in found)
        ),
        what,
    )
