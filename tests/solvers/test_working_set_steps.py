"""How the working set goes on: what follows from the sums of a pass, and from sums that are not all there."""

import queue

import numpy as np
import pytest
import scipy.sparse

from chicle_elastic import waits
from chicle_elastic.solvers.linear.local import LocalPart
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.linear.working_set import passes, steps
from chicle_elastic.solvers.linear.working_set.passes import gather
from chicle_elastic.solvers.linear.working_set.steps import Sums, WorkingSetPhase, WorkingSetState
from tests.solvers.linear_jobs import Tasks, recompute
from tests.solvers.test_newton_passes import tables_of
from tests.solvers.test_working_set import counts
from tests.timeouts import timeout_s

D = 5
PROBLEM = LinearTrainer(tol=1e-6).problem


def state_in(phase, *, num_outputs=2):
    """With rows 1 and 4 in the set, of 2 and 1 values, and 3 wanted, of 2; of 6 rows."""
    state = WorkingSetState(num_outputs=num_outputs, D=D, num_rows=6)
    state.phase, state.gap, state.num_passes = phase, 0.5, 9
    if phase in (WorkingSetPhase.SELECT, WorkingSetPhase.GATHER, WorkingSetPhase.SOLVE):
        state.rows, state.lengths = np.array([1.0, 4.0]), np.array([2.0, 1.0])
        state.targets, state.upper = np.array([0.0, 1.0]), np.array([0.5, 2.0])
        state.duals = np.linspace(0.1, 0.4, 2 * num_outputs)
        state.columns, state.values = np.array([0.0, 2.0, 3.0]), np.array([1.0, -2.0, 0.5])
    if phase is WorkingSetPhase.GATHER:
        state.wanted, state.wanted_lengths = np.array([3.0]), np.array([2.0])
    return state


def sums_of(state):
    """All zero, and the views of their parts."""
    sums = np.zeros(state.sums_size())
    return sums, Sums(state, sums)


def test_a_w_that_is_not_that_of_the_duals_is_replaced_and_looked_at_again():
    """Once: a w that still differs then differs by rounding."""
    state, model = state_in(WorkingSetPhase.SELECT), np.ones(2 * D)
    sums, parts = sums_of(state)
    parts.rebuilt[:], parts.losses[:] = 0.5, 1.0
    rebuilt = steps.advance(state, PROBLEM, model, sums, 1.0)
    assert (rebuilt == 0.5).all()
    assert state.phase is WorkingSetPhase.SELECT
    assert state.is_repeated
    parts.codes[2] = 2 + 1
    steps.advance(state, PROBLEM, rebuilt, sums, 1.0)
    assert not state.is_repeated
    assert state.phase is WorkingSetPhase.GATHER
    np.testing.assert_array_equal(state.wanted, [2.0])
    np.testing.assert_array_equal(state.wanted_lengths, [2.0])


def test_a_row_that_no_task_had_sends_it_back_to_select():
    """Or that two had; nothing is wanted any more, and the set stays as it was."""
    for found in (0.0, 2.0):
        state = state_in(WorkingSetPhase.GATHER)
        sums, parts = sums_of(state)
        parts.found[:] = found
        steps.advance(state, PROBLEM, np.zeros(2 * D), sums, 1.0)
        assert state.phase is WorkingSetPhase.SELECT
        assert not len(state.wanted)
        np.testing.assert_array_equal(state.rows, [1.0, 4.0])


def test_rows_that_come_are_put_between_those_that_are_there():
    """In the order of their numbers, with their duals and values."""
    state = state_in(WorkingSetPhase.GATHER)
    sums, parts = sums_of(state)
    parts.found[:], parts.targets[:], parts.upper[:], parts.duals[:] = 1.0, 1.0, 3.0, [[0.7, 0.8]]
    parts.columns[:], parts.values[:] = [1.0, 4.0], [7.0, 8.0]
    old = state.duals.reshape(2, 2).copy()
    steps.advance(state, PROBLEM, np.zeros(2 * D), sums, 1.0)
    assert state.phase is WorkingSetPhase.SOLVE
    np.testing.assert_array_equal(state.rows, [1.0, 3.0, 4.0])
    np.testing.assert_array_equal(state.lengths, [2.0, 2.0, 1.0])
    np.testing.assert_array_equal(state.upper, [0.5, 3.0, 2.0])
    np.testing.assert_array_equal(state.duals.reshape(3, 2), [old[0], [0.7, 0.8], old[1]])
    np.testing.assert_array_equal(state.columns, [0.0, 2.0, 1.0, 4.0, 3.0])
    np.testing.assert_array_equal(state.values, [1.0, -2.0, 7.0, 8.0, 0.5])


@pytest.mark.parametrize(("most", "is_wanted"), [(9, True), (8, False)])
def test_a_set_with_too_many_values_is_left_to_newtons_method(most, is_wanted, monkeypatch):
    """Rows 0, 1 and 2 of 3 values each are undecided."""
    monkeypatch.setattr(steps, "MOST_BLOCK_VALUES", most)
    state = WorkingSetState(num_outputs=1, D=D, num_rows=6)
    state.phase, state.num_passes = WorkingSetPhase.SELECT, 8
    sums, parts = sums_of(state)
    parts.losses[:] = 1.0
    parts.codes[:3] = 3 + 1
    steps.advance(state, PROBLEM, np.zeros(D), sums, 1.0)
    if is_wanted:
        assert state.phase is WorkingSetPhase.GATHER
        np.testing.assert_array_equal(state.wanted, [0, 1, 2])
    else:
        assert state.phase is WorkingSetPhase.GIVE_UP


def test_a_pass_that_one_task_did_not_finish_is_made_again():
    """SELECT and GATHER are; of SOLVE what there is by then is good, if not as good, and is looked at."""
    data, trainer = counts(), LinearTrainer(tol=1e-6)
    tasks, stopped, state = Tasks(data, trainer, 3), set(), WorkingSetState(num_outputs=1, D=3001, num_rows=400)
    while state.phase is not WorkingSetPhase.REST and tasks.iteration < 100:
        phase, before = state.phase, (tasks.model.copy(), np.array(tasks.progress))
        if tasks.iteration and phase not in stopped:
            stopped.add(phase)
            tasks.iterate(stopped={0} if phase is WorkingSetPhase.SOLVE else {1})
            if phase is not WorkingSetPhase.SOLVE:
                np.testing.assert_array_equal(tasks.model, before[0])
                np.testing.assert_array_equal(tasks.progress, before[1])
        else:
            tasks.iterate()
        state = WorkingSetState.look(tasks.progress)
    assert stopped == {WorkingSetPhase.SELECT, WorkingSetPhase.GATHER, WorkingSetPhase.SOLVE}
    found = recompute(data, trainer, tasks.model, tasks.duals())
    assert found.gap <= 1e-6
    assert state.gap == pytest.approx(found.gap, abs=1e-9)  # of counts, w has that many digits
    w = tasks.model.reshape(1, -1)
    np.testing.assert_allclose(w, found.w_of_duals, rtol=0, atol=1e-10 * np.abs(w).max())


def test_duals_that_are_lost_are_noticed_in_any_phase():
    """A third of the rows come back with duals of 0, in the middle: the end is the optimum of all, nevertheless."""
    data, trainer = counts(), LinearTrainer(tol=1e-6)
    for loss_before in (WorkingSetPhase.SELECT, WorkingSetPhase.GATHER, WorkingSetPhase.SOLVE):
        tasks, state, is_lost = Tasks(data, trainer, 3), WorkingSetState(num_outputs=1, D=3001, num_rows=400), False
        while state.phase is not WorkingSetPhase.REST and tasks.iteration < 100:
            if state.phase is loss_before and not is_lost:
                is_lost = True
                for chunk in tasks.tasks[1].held.values():
                    chunk.state[...] = 0.0
            tasks.iterate()
            state = WorkingSetState.look(tasks.progress)
        assert is_lost
        found = recompute(data, trainer, tasks.model, tasks.duals())
        assert found.gap <= 1e-6, loss_before
        w = tasks.model.reshape(1, -1)
        np.testing.assert_allclose(w, found.w_of_duals, rtol=0, atol=1e-9 * np.abs(w).max())


def test_a_solution_that_takes_long_says_so():
    """All other tasks wait for the one that solves, and no iteration ends meanwhile."""
    state = state_in(WorkingSetPhase.SOLVE)
    told = queue.SimpleQueue()
    with waits.tell_through(told.put), passes.tells_if_long(state):
        assert told.get(timeout=timeout_s(10)).startswith("one task solves for the 2 rows that are undecided")


@pytest.mark.parametrize("kind", ["csr", "dense"])
@pytest.mark.parametrize("small_values", [0, 1 << 18])
def test_a_task_sends_what_it_has_of_the_wanted_rows(kind, small_values, monkeypatch):
    """Values that are 0 too where rows are dense, no intercept, and nothing of rows that are elsewhere."""
    monkeypatch.setattr("chicle_elastic.solvers.linear.rows.SMALL_VALUES", small_values)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5)) * (rng.random((300, 5)) < 0.5)
    local = LocalPart(tables_of(X, kind), 0.5)
    for wanted in ([7, 40, 299, 350], [350, 360]):
        own = [row for row in wanted if row < 300]
        lengths = [5 if kind == "dense" or row >= 300 else np.count_nonzero(X[row]) for row in wanted]
        state = WorkingSetState(phase=WorkingSetPhase.GATHER, num_outputs=1, D=6, num_rows=400)
        state.wanted, state.wanted_lengths = np.array(wanted, dtype=float), np.array(lengths, dtype=float)
        sums = Sums(state, np.zeros(state.sums_size()))
        gather(local, state, sums)
        ends = np.cumsum([0, *lengths])
        sent = scipy.sparse.csr_array((sums.values, sums.columns.astype(int), ends), shape=(len(wanted), 5)).toarray()
        np.testing.assert_array_equal(sent[: len(own)], X[own])
        assert not sent[len(own) :].any()
        assert sums.found.tolist() == [float(row < 300) for row in wanted]
