"""Figures 5 and 10 of the paper: 8 slow and 8 fast nodes; uni-tasks begin with an even split, and `Rebalance` works."""

from itertools import accumulate
from statistics import fmean, median

from chicle_elastic.evaluate.bars import Bar, Row
from chicle_elastic.evaluate.micro import TASKS, uni_row
from chicle_elastic.evaluate.projection import micro_units_of_mixed_nodes, time_to, uni_units_of_mixed_nodes
from chicle_elastic.evaluate.runs import Settings, gaps, mixed_gaps, problems
from chicle_elastic.policies.rebalance import Rebalance

SLOWDOWN = 1.5
EACH, UNITS = 1.0, 1.03


def rows(settings: Settings, notes: list[str]) -> list[Row]:
    """Time to each gap, and the units of an iteration once the split is settled."""
    found = []
    ideal = uni_units_of_mixed_nodes(SLOWDOWN)
    for problem in problems(settings, notes):
        policies = (Rebalance(),)
        runs = [
            mixed_gaps(settings, problem, slowdown=SLOWDOWN, policies=policies, seed=seed) for seed in settings.seeds
        ]
        settled = fmean(median(units[8:]) for _, units in runs)
        what, bar = f"{problem.data.title}: units of an iteration after the eighth", Bar(gate=UNITS, at_most=True)
        details = {"units": [units for _, units in runs]}
        shown = (f"{settled:.4f}", f"{ideal:.4g}, ideal")
        found.append(Row("fig5", what, None, *shown, settled / ideal, bar, details))
        for gap in problem.gaps:
            uni = fmean(time_to(gap, run, list(accumulate(units))) for run, units in runs)
            micro = {}
            for count in TASKS:
                unit = micro_units_of_mixed_nodes(count, SLOWDOWN)
                runs_of = [gaps(settings, problem, num_tasks=count, seed=seed) for seed in settings.seeds]
                micro[count] = fmean(time_to(gap, run, [unit * n for n in range(1, len(run) + 1)]) for run in runs_of)
            what = f"{problem.data.title}, 8 nodes {SLOWDOWN:g}x slower: time"
            found.append(uni_row("fig5", what, "units", uni, micro, gap=gap, gate=EACH))
    return found
