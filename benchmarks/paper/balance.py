"""The balancing process (the paper's figures 6 and 11) on four real agents, of which n1 takes twice as long per row.

Passes are real and take as long as they are told (`ThrottledCocoa`), so agents that share the cores of one machine do
not hinder each other. After some iterations n1 becomes as fast as the others, and its chunks come back.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import numpy as np

from benchmarks.bars import Bar, Row
from benchmarks.paper.lanes import starts, tables_of
from benchmarks.paper.runs import Settings, cached
from benchmarks.policy_jobs import ThrottledCocoa
from benchmarks.svm_data import higgs_shaped
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.monitoring.records import IterationRecord, RecordTable
from chicle_elastic.policies.base import Policy
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.runtime.training.job import Job

NODES, SLOW, FACTOR = 4, "n1", 2.0
ITERATION_S = 0.2
"""Of nodes that are all fast, with an even split."""
SLOW_UNTIL, ITERATIONS = 21, 40
"""First iteration in which n1 is fast again, and the last one."""
SETTLED = 8
NUM_ROWS, CHUNK_BYTES = 8_000, 4_096
SIDES: dict[str, tuple[Policy, ...]] = {"without": (), "rebalance": (Rebalance(),)}
WITHIN = 1.05


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """The time of an iteration with and without the policy, while n1 is slow and after."""
    tables = histories(settings)
    found = []
    for title, first, last, ideal in (
        (f"iterations {SETTLED + 1} to {SLOW_UNTIL - 1}, {SLOW} {FACTOR:g}x slower", SETTLED, SLOW_UNTIL - 1, None),
        (f"iterations {SLOW_UNTIL + SETTLED} to {ITERATIONS}, all fast", SLOW_UNTIL + SETTLED - 1, ITERATIONS, 1.0),
    ):
        ideal = ideal or ideal_units((1.0,) * (NODES - 1) + (FACTOR,))
        units = {side: median(units_of(table)[first:last]) for side, table in tables.items()}
        walls = {side: median(wall_units(table)[first:last]) for side, table in tables.items()}
        found.append(
            Row(
                part="balance",
                what=f"four agents, {title}: units of the slowest task",
                tol=None,
                measured=f"{units['rebalance']:.3f} (with its boundary {walls['rebalance']:.3f})",
                against=f"ideal: {ideal:.3f}; no policy: {units['without']:.3f} ({walls['without']:.3f})",
                value=units["rebalance"] / ideal,
                bar=Bar(gate=WITHIN, at_most=True),
                details={
                    "units": {side: units_of(table) for side, table in tables.items()},
                    "walls": {side: wall_units(table) for side, table in tables.items()},
                    "chunks": [dict(record.num_chunks) for record in tables["rebalance"]],
                    "records": {side: [to_json(record) for record in table] for side, table in tables.items()},
                },
            )
        )
    return found


def ideal_units(costs: Sequence[float]) -> float:
    """Units of an iteration on nodes that take so long per row, split perfectly; 1 where all take 1."""
    return len(costs) / sum(1.0 / cost for cost in costs)


def units_of(table: RecordTable) -> list[float]:
    """What the slowest task of each iteration took, in units of `ITERATION_S`."""
    return [max(record.seconds.values()) / ITERATION_S for record in table]


def wall_units(table: RecordTable) -> list[float]:
    """From the start of each iteration to that of the next, in the same units; of the last one what its tasks took."""
    steps = [(after - before) / ITERATION_S for before, after in pairwise(starts(table))]
    return [*steps, units_of(table)[-1]]


def to_json(record: IterationRecord) -> dict[str, object]:
    """What pictures need of a record."""
    return {
        "iteration": record.iteration,
        "epochs": record.epochs,
        "time_s": record.time_s,
        "num_tasks": record.num_tasks,
        "samples": record.samples,
        "num_chunks": dict(record.num_chunks),
        "seconds": dict(record.seconds),
        "events": list(record.news),
    }


def histories(settings: Settings) -> dict[str, RecordTable]:
    """Of the job without and with the policy; from the cache if they were made before."""
    kept = cached(settings, f"balance_{ITERATION_S:g}_{ITERATIONS}", _run)
    return tables_of(kept)


def _run() -> dict[str, list[dict[str, object]]]:
    X, y = higgs_shaped(NUM_ROWS)
    found = {}
    with LocalCluster(NODES) as cluster:
        for side, policies in (("warm", ()), *SIDES.items()):  # the first one compiles kernels
            trainer = ThrottledCocoa(
                C=100.0 / NUM_ROWS,
                tol=0.0,
                row_s=NODES * ITERATION_S / NUM_ROWS,
                slow=SLOW,
                factor=FACTOR,
                since=1,
                until=SLOW_UNTIL,
            )
            last = 3 if side == "warm" else ITERATIONS
            job = Job(
                trainer=trainer,
                source=ArraySource(X, y.astype(np.int32), max_tasks=NODES, chunk_bytes=CHUNK_BYTES, seed=1),
                max_iterations=10**6,
                seed=1,
                policies=policies,
                on_iteration=lambda record, last=last: record.iteration >= last,
            )
            found[side] = [to_json(record) for record in cluster.run(job).history[:ITERATIONS]]
    del found["warm"]
    return found
