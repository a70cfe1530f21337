"""How many threads BLAS has while jobs compute, and afterwards."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.blas_threads import blas_threads_of
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import Trainer
from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer
from chicle_elastic.solvers.linear.path import PathTrainer
from chicle_elastic.solvers.linear.trainer import LinearTrainer

OUTSIDE = 3
"""More than one on every machine: BLAS takes what it is told."""


def threads_now() -> set[int]:
    """Threads of each BLAS of this process."""
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def several_threads() -> Iterator[None]:
    """BLAS has several threads outside of jobs."""
    with threadpool_limits(OUTSIDE, "blas"):
        yield
        assert threads_now() == {OUTSIDE}


def linear_job(**arguments: object) -> Job:
    """A job of a linear classifier."""
    rows = np.random.default_rng(0).normal(size=(200, 5))
    codes = (rows[:, 0] > 0).astype(np.int32)
    return Job(trainer=LinearTrainer(), source=ArraySource(rows, codes), max_iterations=3, **arguments)


def test_a_linear_job_has_one_thread_of_blas_and_gives_the_others_back():
    """Its calls are many and small."""
    seen: list[set[int]] = []
    InProcess().run(linear_job(on_iteration=lambda record: seen.append(threads_now())))
    assert seen
    assert all(threads == {1} for threads in seen)
    assert threads_now() == {OUTSIDE}


def test_threads_come_back_after_an_error():
    """Of the caller, say."""

    def fail(record: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        InProcess().run(linear_job(on_iteration=fail))
    assert threads_now() == {OUTSIDE}


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_jobs_of_two_threads_have_one_until_both_have_ended(first_to_end):
    """Whichever ends first: BLAS has one number for the whole process."""
    are_running = threading.Barrier(3)
    may_end = [threading.Event(), threading.Event()]

    def run(number: int) -> None:
        with blas_threads_of(RegressionTrainer()):
            are_running.wait()
            may_end[number].wait()

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    are_running.wait()
    try:
        assert threads_now() == {1}
        may_end[first_to_end].set()
        threads[first_to_end].join()
        assert threads_now() == {1}
    finally:
        for number, thread in enumerate(threads):
            may_end[number].set()
            thread.join()
    assert threads_now() == {OUTSIDE}


def test_a_trainer_of_the_users_keeps_the_threads():
    """Nothing is known of its calls."""

    class Own(Trainer):
        init = solver = merge = None  # type: ignore[assignment]

    with blas_threads_of(Own()):
        assert threads_now() == {OUTSIDE}


def test_a_path_of_linear_fits_has_one_thread():
    """As each of its stages."""
    with blas_threads_of(PathTrainer(stages=(LinearTrainer(),), max_iterations=(1,))):
        assert threads_now() == {1}
