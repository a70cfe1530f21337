"""Rebalancing on real agents: two nodes of this host, whose solvers cost so much per sample, against a perfect split.

    2:1       n0 takes twice as long for a sample; by the tenth iteration the split has to be nearly perfect
    noise     equal nodes, 5 % noise in the time of each iteration: nothing may move
    change    equal nodes; then n1 becomes 1.5x slower

64 chunks, 32 a node at the start. Solvers sleep, so that two nodes of one host do not hinder each other. What a perfect
split would give is measured, too: on two equal nodes that are as fast together as these two, evenly split, without
policies. All figures are times of whole iterations by the history of the job, so agents and sums are in both. It is a
part of `benchmarks.policies`.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agents import run_agents
from tests.harness.paced_app import ROWS_PER_CHUNK, SUFFIX

NUM_CHUNKS = 64
NUM_ROWS = NUM_CHUNKS * ROWS_PER_CHUNK
COST_US = 60.0
"""Of a sample on the fast node: iterations of about 40 ms at 2:1."""
MIN_SHARE = 0.95
WITHIN = 10
"""Iterations until the split has to be that good."""
QUIET = 100
CHANGE_AT = 40

Told = list[dict[str, Any]]


def run(*options: str) -> Told:
    """Run a job on two agents; what a task wrote down."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = ("-m", "tests.harness.paced_app", "--out", name, "--chunks", str(NUM_CHUNKS))
        run_agents(2, folder, *program, *options)
        told: Told = json.loads(next(folder.glob(f"*{SUFFIX}")).read_text(encoding="utf-8"))
        return told


def costs(slow_us: float, fast_us: float) -> tuple[str, ...]:
    """Options for the costs of a sample on n0 and n1."""
    return ("--cost", f"n0={slow_us}", "--cost", f"n1={fast_us}")


def iteration_s(told: Told) -> list[float]:
    """Seconds of each iteration but the first."""
    return [float(seconds) for seconds in np.diff([record["time_s"] for record in told])]


def perfect_s(*costs_us: float) -> float:
    """Seconds of an iteration on nodes that are together as fast as these, split perfectly."""
    even_us = len(costs_us) / sum(1 / cost for cost in costs_us)
    told = run(*costs(even_us, even_us), "--iterations", str(3 * WITHIN), "--no-policy")
    return statistics.median(iteration_s(told)[WITHIN - 1 :])


def num_moves(told: Told) -> int:
    """Boundaries at which chunks were moved."""
    return sum(" moves " in line for record in told for line in record["lines"])


def measure() -> dict[str, float]:
    """One run of each kind."""
    goal_s = perfect_s(2 * COST_US, COST_US)
    told = run(*costs(2 * COST_US, COST_US), "--iterations", str(3 * WITHIN))
    uneven = [goal_s / seconds for seconds in iteration_s(told)]
    quiet = run(*costs(COST_US / 2, COST_US / 2), "--iterations", str(QUIET), "--noise", "0.05")
    goal_s = perfect_s(COST_US, 1.5 * COST_US)
    drift = run(
        *(*costs(COST_US, COST_US), "--change", f"n1={1.5 * COST_US}@{CHANGE_AT}"),
        *("--iterations", str(CHANGE_AT + 40)),
    )
    after = [goal_s / seconds for seconds in iteration_s(drift)[CHANGE_AT - 2 :]]
    # The first of three whose median is good: the one before the change is in the list, and single ones scatter.
    windows = (statistics.median(after[number : number + 3]) for number in range(len(after) - 2))
    relieved = next((number for number, share in enumerate(windows) if share >= MIN_SHARE), len(after))
    return {
        "start_share": statistics.median(uneven[:2]),
        "share": statistics.median(uneven[WITHIN - 1 :]),
        "moves": num_moves(told),
        "chunks_of_slow": told[-1]["chunks"]["n0"],
        "moves_in_noise": num_moves(quiet),
        "share_when_changed": statistics.median(after[:3]),
        "iterations_to_follow": relieved,
        "share_followed": statistics.median(after[20:]),
    }
