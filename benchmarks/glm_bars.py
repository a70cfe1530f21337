"""Gates and targets of the benchmark of linear models as data."""

import math

from benchmarks.bars import Bar
from benchmarks.glm_peers import is_smooth
from benchmarks.problems import Problem, strong

SLACK_S = 0.010
"""What a fit may take beyond its ratio to the best peer: validation and the like, which weigh on small data."""
AHEAD = Bar(gate=0.0, target=2 / 3)
"""Share of the cells with one task in which ours is ahead of all peers."""
MOST_ITERATIONS = 300
"""Of several tasks, where there is no closer bar."""
FEW_COLUMNS = 2000
"""Up to which several tasks take no more passes than one, with a smooth loss."""
SMOOTH_TASKS = Bar(gate=1.2, target=1.0, at_most=True)
HIGGS_TASKS = Bar(gate=3.0, target=1.5, at_most=True)
"""Passes of K tasks over those of one."""


def speed_bar(best_s: float) -> Bar:
    """Time of ours over that of the best peer."""
    return Bar(gate=1.5 + SLACK_S / best_s, target=1.25, at_most=True)


def tasks_bar(problem: Problem, tol: float) -> tuple[Bar, bool]:
    """The bar for several tasks, and whether it is about a ratio to one task (or else about iterations)."""
    data = problem.data
    if is_smooth(problem) and data.num_features <= FEW_COLUMNS:
        return SMOOTH_TASKS, True
    is_higgs_shaped = data.key.startswith("higgs-") and not data.key.startswith("higgs-real")
    if is_higgs_shaped and problem.loss == "hinge" and strong(data) == problem.C and tol == 1e-5:
        return HIGGS_TASKS, True
    return Bar(gate=MOST_ITERATIONS, at_most=True), False


def first_bar(one_task_iterations: int) -> Bar:
    """Iterations of K tasks with all defaults, given those of one."""
    return Bar(gate=max(30, 5 * one_task_iterations), target=max(1, 2 * one_task_iterations), at_most=True)


def reached(value: float, has_converged: bool) -> float:
    """A value, or infinity for a fit that has not converged: no bar lets that pass."""
    return value if has_converged else math.inf
