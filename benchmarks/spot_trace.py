"""How many spot machines there are over time: generated, or read from a file of public traces.

The generator follows what the public traces of 16 machines show (availability/16-node of
github.com/skypilot-org/spot-traces, of the paper "Can't Be Late", NSDI 24; the files have no licence, so none is here):
machines come and go in bulk, 47 to 86 % of the decreases take half of the machines or more, none is there for 16 to
62 % of the time, and up to 16 come at once. `read` reads these files.
"""

import itertools
import json
from pathlib import Path

import numpy as np

GAP_S = 300.0
MOST = 16
LEVELS = (16, 16, 16, 16, 15, 14, 11, 8, 8)
"""Machines that there are after some came, equally likely."""


def generated(seed: int, *, num_ticks: int) -> list[int]:
    """Machines in each tick of `GAP_S` seconds; the first ticks and the last third have all.

    Args:
        seed: The same trace for the same seed.
        num_ticks: Length.
    """
    rng = np.random.default_rng(seed)
    counts = [MOST] * int(rng.integers(8, 16))
    while len(counts) < 2 * num_ticks // 3:
        if counts[-1] == 0:
            counts += [int(rng.choice(LEVELS))] * int(rng.integers(10, 32))
        elif rng.random() < 0.65:
            counts += [0] * int(rng.integers(4, 16))
        else:
            counts += [int(rng.choice(LEVELS))] * int(rng.integers(4, 16))
    return (counts + [MOST] * num_ticks)[:num_ticks]


def read(path: Path, first: int, last: int) -> list[int]:
    """Machines in the ticks [first, last) of a file {"metadata": {"gap_seconds": 300}, "data": [0, 16, ...]}."""
    return [int(count) for count in json.loads(path.read_text(encoding="utf-8"))["data"]][first:last]


def scaled(counts: list[int], nodes: int) -> list[int]:
    """The same for a cluster of `nodes`: each stands for so many of the machines, and is there if half of them are."""
    share = max(MOST, *counts) / nodes
    return [min(nodes, int(count / share + 0.5)) for count in counts]


def describe(counts: list[int]) -> str:
    """The statistics by which the public traces are told, of this one."""
    pairs = [(before, after) for before, after in itertools.pairwise(counts) if before != after]
    falls = [before - after for before, after in pairs if after < before]
    bulk = sum(fall >= MOST / 2 for fall in falls)
    return (
        f"{len(counts)} ticks; {len(falls)} decreases, {bulk} of them by {MOST // 2} machines or more; none there for "
        f"{100 * counts.count(0) / len(counts):.0f} % of the time; up to "
        f"{max((after - before for before, after in pairs), default=0)} come at once"
    )
