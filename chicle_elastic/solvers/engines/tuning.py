"""Finding the kernels and threads by which steps are fastest: successive halving of what there is."""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

TURNS = 3
"""Steps by each candidate in turn before the slower half of them leaves. The fastest of a candidate's steps counts,
because the first one plans kernels and a machine is shared."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """How a step is computed on a CPU; the results differ by rounding.

    Attributes:
        has_onednn: Whether oneDNN's kernels are used.
        is_channels_last: Whether images are laid out channels last.
        num_threads: Intra-op threads.
    """

    has_onednn: bool = True
    is_channels_last: bool = False
    num_threads: int = 1

    def __str__(self) -> str:
        layout = ", channels last" if self.is_channels_last else ""
        threads = f", {self.num_threads} threads" if self.num_threads > 1 else ""
        return f"{'onednn' if self.has_onednn else 'native'}{layout}{threads}"


def candidates_for(may_be_channels_last: bool, num_threads: int) -> list[Kernels]:
    """Return what may be fastest on at most so many threads."""
    layouts = (True, False) if may_be_channels_last else (False,)
    return [Kernels(*choice) for choice in itertools.product((True, False), layouts, sorted({1, num_threads}))]


def steps_to_find(candidates: list[Kernels]) -> int:
    """Return about how many steps `fastest` takes."""
    return 2 * TURNS * len(candidates)


def fastest(candidates: list[Kernels], step: Callable[[Kernels], None]) -> Kernels:
    """Return the candidate whose steps take the least wall time; half of them leave after each round."""
    best = dict.fromkeys(candidates, math.inf)
    while len(candidates) > 1:
        for _, kernels in itertools.product(range(TURNS), candidates):
            start_s = time.perf_counter()
            step(kernels)
            best[kernels] = min(best[kernels], time.perf_counter() - start_s)
        candidates = sorted(candidates, key=best.__getitem__)[: len(candidates) // 2]
    return candidates[0]
