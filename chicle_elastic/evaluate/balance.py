"""The balancing process (the paper's figures 6 and 11: CoCoA, local SGD) on four real agents; n1 takes twice as long.

Passes of CoCoA and steps of local SGD are real and take as long as they are told (`ThrottledCocoa`,
`ThrottledLocalSGD`), so agents that share the cores of one machine do not hinder each other. After some iterations n1
becomes as fast as the others, and its chunks come back.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from statistics import median

import numpy as np

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.evaluate.bars import Bar, Row
from chicle_elastic.evaluate.lanes import starts, tables_of
from chicle_elastic.evaluate.runs import Settings, cached
from chicle_elastic.evaluate.shapes import higgs_shaped
from chicle_elastic.evaluate.throttled import Pace, ThrottledCocoa, ThrottledLocalSGD
from chicle_elastic.monitoring.records import IterationRecord, RecordTable
from chicle_elastic.policies.base import Policy
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import Trainer
from chicle_elastic.solvers.network import PAPER_CNN, Network

NODES, SLOW, FACTOR = 4, "n1", 2.0
ITERATION_S = 0.2
"""Of nodes that are all fast, with an even split."""
SLOW_UNTIL, ITERATIONS = 21, 40
"""First iteration in which n1 is fast again, and the last one."""
SETTLED = 8
"""Iterations until the split has to be good: at the start, and once n1 is fast again."""
BACK = SLOW_UNTIL - 1 + SETTLED
EQUAL, SLOWER = (1.0,) * NODES, (*(1.0,) * (NODES - 1), FACTOR)
NUM_ROWS, CHUNK_BYTES = 8_000, 4_096
"""Of CoCoA: some 250 chunks."""
STEP_ROWS, NUM_IMAGES, IMAGE_CHUNK_BYTES = 8 * 16, 16 * NODES * 8 * 16, 26_000
"""Of local SGD: samples of a task in an iteration, and 16 iterations of an epoch, none of which has fewer samples."""
ALGORITHMS = {"fig6": "CoCoA", "fig11": "local SGD"}
SIDES: dict[str, tuple[Policy, ...]] = {"no policy": (), "Rebalance": (Rebalance(),)}
WITHIN = 1.05


def rows(figure: str, settings: Settings, notes: list[str]) -> list[Row]:
    """The time of an iteration with and without the policy, while n1 is slow and after."""
    found = []
    tables = histories(settings, ALGORITHMS[figure])
    slow, fast = (
        f"{SETTLED + 1} to {SLOW_UNTIL - 1}, {SLOW} {FACTOR:g}x slower",
        f"{BACK + 1} to {ITERATIONS}, all fast",
    )
    for title, first, last, costs in ((slow, SETTLED, SLOW_UNTIL - 1, SLOWER), (fast, BACK, ITERATIONS, EQUAL)):
        ideal = ideal_units(costs)
        units = {side: median(units_of(table)[first:last]) for side, table in tables.items()}
        walls = {side: median(wall_units(table)[first:last]) for side, table in tables.items()}
        what = f"{ALGORITHMS[figure]} on four agents, iterations {title}: units of the slowest task"
        shown = f"{units['Rebalance']:.3f} (with its boundary {walls['Rebalance']:.3f})"
        against = f"ideal: {ideal:.3f}; no policy: {units['no policy']:.3f} ({walls['no policy']:.3f})"
        records = {side: [to_json(record) for record in table] for side, table in tables.items()}
        details, bar = {"records": records}, Bar(gate=WITHIN, at_most=True)
        found.append(Row(figure, what, None, shown, against, units["Rebalance"] / ideal, bar, details))
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


def histories(settings: Settings, algorithm: str) -> dict[str, RecordTable]:
    """Of the job without and with the policy; from the cache if they were made before."""
    key = f"balance_{algorithm.replace(' ', '_')}_{ITERATION_S:g}_{ITERATIONS}"
    return tables_of(cached(settings.cache / f"{key}.json", partial(_run, algorithm)))


def _run(algorithm: str) -> dict[str, list[dict[str, object]]]:
    trainer, source = _cocoa() if algorithm == "CoCoA" else _local_sgd()
    found = {}
    with LocalCluster(NODES) as cluster:
        for side, policies in (("warm", ()), *SIDES.items()):  # the first one compiles kernels
            last = 3 if side == "warm" else ITERATIONS
            job = Job(
                trainer=trainer,
                source=source,
                max_iterations=10**6,
                seed=1,
                policies=policies,
                on_iteration=partial(_is_over, last),
            )
            found[side] = [to_json(record) for record in cluster.run(job).history[:ITERATIONS]]
    del found["warm"]
    return found


def _is_over(last: int, record: IterationRecord) -> bool:
    return record.iteration >= last


def _cocoa() -> tuple[Trainer, ArraySource]:
    X, y = higgs_shaped(NUM_ROWS)
    pace = Pace(row_s=NODES * ITERATION_S / NUM_ROWS, slow=(SLOW,), factor=FACTOR, since=1, until=SLOW_UNTIL)
    trainer = ThrottledCocoa(C=100.0 / NUM_ROWS, tol=0.0, pace=pace)
    return trainer, ArraySource(X, y.astype(np.int32), max_tasks=NODES, chunk_bytes=CHUNK_BYTES, seed=1)


def _local_sgd() -> tuple[Trainer, ArraySource]:
    """Steps on noise: what is looked at is when they are done, and not what they learn."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (NUM_IMAGES, 28, 28), dtype=np.uint8)
    y = rng.integers(0, 10, NUM_IMAGES).astype(np.int32)
    settings = {"channels": 1, "height": 28, "width": 28, "num_classes": 10}
    trainer = ThrottledLocalSGD(
        network=Network(module=PAPER_CNN, settings=settings, input_shape=(1, 28, 28), num_classes=10),
        max_epochs=10**3,
        pace=Pace(row_s=ITERATION_S / STEP_ROWS, slow=(SLOW,), factor=FACTOR, until=SLOW_UNTIL),
    )
    return trainer, ArraySource(X, y, max_tasks=NODES, chunk_bytes=IMAGE_CHUNK_BYTES, seed=1)
