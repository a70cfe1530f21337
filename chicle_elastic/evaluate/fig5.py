"""Figures 5 and 10 of the paper: 8 slow and 8 fast nodes; uni-tasks begin with an even split, and `Rebalance` works.

Figure 5 is over projected time, figure 10 over epochs.
"""

from itertools import accumulate
from statistics import fmean, median
from typing import Any

from chicle_elastic.evaluate.bars import Bar, Row
from chicle_elastic.evaluate.images import fits, image_sets, reached_of
from chicle_elastic.evaluate.micro import TASKS, uni_row
from chicle_elastic.evaluate.projection import micro_units_of_mixed_nodes, time_to, uni_units_of_mixed_nodes
from chicle_elastic.evaluate.runs import Settings, gaps, mixed_gaps, problems
from chicle_elastic.policies.rebalance import Rebalance

SLOWDOWN = 1.5
EACH, UNITS = 1.0, 1.03
SETTLED = 8  # iterations after which `Rebalance` has moved what there is to move


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """CoCoA: time to each gap, and the units of an iteration once the split is settled."""
    found = []
    for problem in problems(settings, notes):
        uni = mixed_gaps(settings, problem, slowdown=SLOWDOWN, policies=(Rebalance(),))
        found += _settled(f"CoCoA, {problem.data.title}", [units for _, units in uni], is_image=False)
        curves = {"uni": [list(zip(range(1, len(run) + 1), accumulate(units), run, strict=True)) for run, units in uni]}
        for count in TASKS:
            unit = micro_units_of_mixed_nodes(count, SLOWDOWN)
            micro = gaps(settings, problem, num_tasks=count)
            curves[str(count)] = [[(n, unit * n, value) for n, value in enumerate(run, 1)] for run in micro]
        for gap in problem.gaps:
            reached = {
                side: fmean(time_to(gap, (x[2] for x in curve), (x[1] for x in curve)) for curve in of)
                for side, of in curves.items()
            }
            what = f"CoCoA, {problem.data.title}, 8 nodes {SLOWDOWN:g}x slower: time"
            details: dict[str, Any] = {"panel": f"CoCoA, {problem.data.title}", "curves": curves}
            found.append(uni_row("fig5", what, "units", reached, gap=gap, gate=EACH, **details))
    return found


def image_rows(settings: Settings, notes: list[str]) -> list[Row]:
    """Local SGD, by test accuracy. Micro-tasks take the units of CoCoA's for an epoch of 16 nodes."""
    found = []
    for images in image_sets(settings, notes):
        mixed = fits(settings, images, slowdown=SLOWDOWN)
        found += _settled(f"local SGD, {images.title}", [fit.whole_units() for fit in mixed], is_image=True)
        curves = {"uni": [fit.curve([end / images.epoch_units for end in accumulate(fit.seconds)]) for fit in mixed]}
        for count in TASKS:
            unit = micro_units_of_mixed_nodes(count, SLOWDOWN)
            micro = fits(settings, images, num_tasks=count)
            curves[str(count)] = [[(n, unit * n, score) for n, score in enumerate(fit.scores, 1)] for fit in micro]
        for goal in images.goals:
            reached = {side: fmean(reached_of(goal, curve) for curve in of) for side, of in curves.items()}
            what = f"local SGD, {images.title} to {goal:.2f}, 8 nodes {SLOWDOWN:g}x slower: time"
            details: dict[str, Any] = {"panel": f"local SGD, {images.title}", "curves": curves, "is_image": True}
            found.append(uni_row("fig5", what, "epochs of 16 nodes", reached, gate=EACH, **details))
    return found


def _settled(title: str, units: list[list[float]], *, is_image: bool) -> list[Row]:
    """Return the row with the units of a whole iteration once the split is settled; none where runs end before."""
    ideal = uni_units_of_mixed_nodes(SLOWDOWN)
    each = [median(of[SETTLED:]) for of in units if len(of) > SETTLED]
    if not each:
        return []
    what, bar = f"{title}: units of an iteration after the eighth", Bar(gate=UNITS, at_most=True)
    details = {"units": each, "is_image": is_image}
    return [Row("fig5", what, None, f"{fmean(each):.4f}", f"{ideal:.4g}, ideal", fmean(each) / ideal, bar, details)]
