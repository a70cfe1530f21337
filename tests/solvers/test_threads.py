"""How many threads help, and where they run."""

import os
import threading
import time

import pytest

from chicle_elastic.solvers.base import StopFlag
from chicle_elastic.solvers.linear.local import PHASE, LocalData, ThreadChoice, kernel_threads
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.tables import Bounds


def run(choice, *, factor, passes=4 * PHASE):
    """Passes of 100 visits that divide the gap by `factor[threads]`; threads of each pass."""
    gap, used = 1.0, []
    for _ in range(passes):
        used.append(choice.num_threads)
        gap /= factor[choice.num_threads]
        choice.add(gap, 100.0 / choice.num_threads)
    return used


def test_all_threads_stay_where_they_cost_no_passes():
    """Both are tried for some passes, then the faster one is kept."""
    used = run(ThreadChoice(2), factor={1: 2.0, 2: 2.0})
    assert used == [2] * PHASE + [1] * PHASE + [2] * (2 * PHASE)


def test_one_thread_is_left_where_two_need_more_than_twice_the_passes():
    """Twice as fast, but three times as many: one wins."""
    used = run(ThreadChoice(2), factor={1: 2.0**3, 2: 2.0})
    assert used == [2] * PHASE + [1] * (3 * PHASE)


def test_threads_without_progress_lose():
    """A gap that grows says no."""
    assert run(ThreadChoice(4), factor={1: 1.1, 4: 0.9})[-1] == 1


def test_with_one_thread_there_is_nothing_to_choose():
    """Nothing is tried."""
    assert set(run(ThreadChoice(1), factor={1: 1.0})) == {1}


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
def test_each_thread_has_a_processor_of_its_own():
    """As many threads as processors: all different; the caller keeps all of them."""
    available = os.sched_getaffinity(0)
    pool = kernel_threads(len(available))
    try:
        placed = [pool.submit(os.sched_getaffinity, 0) for _ in range(1)]
        assert all(len(future.result()) == 1 for future in placed)
    finally:
        pool.shutdown()
    assert os.sched_getaffinity(0) == available


def data_of_two_threads():
    """Without chunks; to be closed."""
    bounds = Bounds(C=1.0, class_weights=None)
    return LocalData({}, loss=Loss.HINGE, bounds=bounds, intercept=1.0, num_threads=2)


def test_what_comes_of_many_parts_is_taken_in_their_order_before_the_next_ones_begin():
    """Two threads, and two more that were not taken yet."""
    local, begun, taken, most = data_of_two_threads(), [], [], 0

    def take(part):
        nonlocal most
        most = max(most, len(begun) - len(taken))
        taken.append(part)

    def run(part):
        begun.append(part)
        return part

    try:
        local.each_part(run, range(64), take)
    finally:
        local.close()
    assert taken == list(range(64))
    assert most <= 4


def test_an_interrupted_pass_leaves_no_thread_at_work():
    """The others are told to stop, and waited for."""
    local, stop, ended = data_of_two_threads(), StopFlag(), []
    is_at_work = threading.Event()

    def run(part):
        if part == 0:
            assert is_at_work.wait(60)
            raise KeyboardInterrupt
        is_at_work.set()
        while not stop.is_set():
            time.sleep(0.001)
        ended.append(part)

    try:
        with pytest.raises(KeyboardInterrupt):
            local.run_parts(run, [0, 1], stop)
        assert ended == [1]
    finally:
        stop.set()
        local.close()
