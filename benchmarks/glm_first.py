"""A first meeting: what a newcomer sees who changes nothing but the number of tasks, on data that comes to mind first.

All defaults: C = 1, tol 1e-3, max_iter 1000, with an intercept and all threads.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import scale

from benchmarks.bars import Row
from benchmarks.datasets import DataSet
from benchmarks.glm_bars import first_bar, reached
from benchmarks.glm_real import load_real, missing
from benchmarks.ours import OurFit, fit_ours
from benchmarks.problems import Problem

TASKS, QUICK_TASKS = (1, 2, 4, 16), (1, 4)
TOL, MAX_ITER = 1e-3, 1000


def first_problems(arguments: argparse.Namespace) -> Iterator[Problem]:
    """Small data as they come, and a9a where it is there."""
    cancer, is_benign = load_breast_cancer(return_X_y=True)
    digits, digit = load_digits(return_X_y=True)
    raw = DataSet("cancer-raw", "breast_cancer as it is", cancer, is_benign)
    yield Problem(raw, "hinge", 1.0)
    yield Problem(raw, "logistic", 1.0)
    yield Problem(DataSet("cancer", "breast_cancer, scaled", scale(cancer), is_benign), "hinge", 1.0)
    yield Problem(DataSet("digits", "digits / 16, ten classes", digits / 16, digit), "hinge", 1.0)
    if missing("a9a", arguments.real):
        print(f"a9a is left out: it is not in {arguments.real} (say --real DIR)")
    else:
        yield Problem(load_real("a9a", arguments.real, quick=arguments.quick), "hinge", 1.0)
    yield Problem(DataSet("two-rows", "two rows, [[0], [1]]", np.array([[0.0], [1.0]]), np.array([0, 1])), "hinge", 1.0)


def meet(problem: Problem, num_tasks: int, limit_s: float) -> OurFit:
    """A fit with nothing set but the number of tasks (and the seed, so that it is the same again)."""
    return fit_ours(
        problem,
        TOL,
        num_tasks=num_tasks,
        max_iter=MAX_ITER,
        limit_s=limit_s,
        fit_intercept=True,
        n_threads=None,
    )


def compare_first(arguments: argparse.Namespace) -> Iterator[Row]:
    """Rows of all problems and numbers of tasks."""
    for problem in first_problems(arguments):
        one_task: OurFit | None = None
        for num_tasks in QUICK_TASKS if arguments.quick else TASKS:
            fit = meet(problem, num_tasks, arguments.our_cap)
            one_task = one_task or fit
            accuracy = float(fit.model.score(problem.data.X, problem.data.y))
            gap = f", gap {fit.model.duality_gap_:.0e}" if fit.has_converged else ""  # the text has it already
            yield Row(
                part="first meeting",
                what=f"first meeting: {problem.data.title}, {problem.loss}: iterations, {num_tasks} tasks",
                tol=TOL,
                measured=f"{fit.text()}{gap}, accuracy {accuracy:.4f}",
                against=f"one task: {one_task.text()}",
                value=reached(float(fit.model.n_iter_), fit.has_converged),
                bar=first_bar(int(one_task.model.n_iter_)),
                details={
                    "data": problem.data.key,
                    "loss": problem.loss,
                    "tasks": num_tasks,
                    "accuracy": accuracy,
                    "ours": fit.details(),
                },
            )
