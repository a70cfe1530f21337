"""Several tasks in one process: how many passes they take, for tasks that take turns say nothing in seconds."""

import argparse

from benchmarks.bars import Row
from benchmarks.glm_bars import reached, tasks_bar
from benchmarks.glm_speed import verified
from benchmarks.ours import OurFit, fit_ours
from benchmarks.problems import Problem
from benchmarks.references import Reference


def compare_tasks(
    problem: Problem, tol: float, num_tasks: int, arguments: argparse.Namespace, one_task: OurFit, best: Reference
) -> Row:
    """Iterations of several tasks against those of one."""
    fit = fit_ours(problem, tol, num_tasks=num_tasks, max_iter=arguments.max_iter_several, limit_s=arguments.our_cap)
    suboptimality = verified(fit, problem, tol, best)
    bar, is_ratio = tasks_bar(problem, tol)
    num_iterations, of_one = int(fit.model.n_iter_), int(one_task.model.n_iter_)
    value = num_iterations / of_one if is_ratio else float(num_iterations)
    return Row(
        part="several tasks",
        what=f"{problem.title}: {'passes over those of one task' if is_ratio else 'iterations'}, {num_tasks} tasks",
        tol=tol,
        measured=fit.text(),
        against=f"one task: {one_task.text()}",
        value=reached(value, fit.has_converged),
        bar=bar,
        details={
            "data": problem.data.key,
            "loss": problem.loss,
            "C": problem.C,
            "tasks": num_tasks,
            "ours": {**fit.details(), "suboptimality": suboptimality},
            "one_task": one_task.details(),
        },
    )
