"""Where and how a fit runs: tasks that come and go, threads, seeds, what is printed and recorded."""

import signal
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.linear import local, solver
from estimators import ChicleLogisticRegression, ChicleSVM
from tests.estimators import problems

LOSSES = ["hinge", "squared_hinge", "logistic"]


def make(loss, **params):
    """An estimator that keeps its duals."""
    params = {"C": 0.05, "random_state": 0, "store_duals": True, "max_iter": 5000} | params
    return ChicleLogisticRegression(**params) if loss == "logistic" else ChicleSVM(loss=loss, **params)


@pytest.mark.parametrize("num_tasks", [1, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_equal_seeds_give_bit_identical_models(loss, num_tasks):
    """One thread and fixed membership; another seed gives another model within the gap, or the same one: only the order
    of samples follows from it, and Newton's method has none, but for the chunks that each task gets."""
    X, y = problems.digits()

    def fit(seed):
        return make(loss, random_state=seed, n_threads=1, runtime=InProcess(num_tasks=num_tasks)).fit(X, y)

    first, again, other = fit(3), fit(3), fit(4)
    np.testing.assert_array_equal(first.coef_, again.coef_)
    np.testing.assert_array_equal(first.duals_, again.duals_)
    assert loss != "hinge" or not np.array_equal(first.coef_, other.coef_)
    np.testing.assert_allclose(first.objective_, other.objective_, rtol=2e-3)


def test_two_threads_reach_the_same_gap(monkeypatch):
    """Threads are used where the data is large enough; here it is told to be. The certificate agrees with NumPy."""
    monkeypatch.setattr(local, "MOST_CACHED_VALUES", 200)
    X, y = problems.digits()
    model = make("hinge", n_threads=2, C=0.01).fit(X, y)
    gap = problems.recomputed_gaps(model, X, y).max()
    assert gap <= 1e-3
    assert model.duality_gap_ == pytest.approx(gap, rel=1e-6)


def test_the_default_number_of_threads_is_that_of_the_available_cores(monkeypatch):
    """Affinity, control groups and joblib's limits included; an int is taken as it is."""
    monkeypatch.setattr("chicle_elastic.settings.available_cores", lambda: 7)
    X, y = problems.cancer()
    seen = []

    class Spy:
        def most_tasks(self):
            return 1

        def run(self, job):
            seen.append(job.trainer.num_threads)
            return InProcess().run(job)

    ChicleSVM(runtime=Spy()).fit(X, y)
    ChicleSVM(runtime=Spy(), n_threads=3).fit(X, y)
    assert seen == [7, 3]


def test_chunk_size_decides_the_number_of_chunks():
    """In bytes; a chunk that is larger than the data is the data."""
    X, y = problems.cancer()
    numbers = []
    for size in (X.nbytes // 100, X.nbytes // 10, 10 * X.nbytes):
        record = ChicleSVM(chunk_size=size, C=0.01).fit(X, y).history_[0]
        numbers.append(sum(record.num_chunks.values()))
    assert numbers[0] >= 100 > numbers[1] >= 10 > numbers[2] == 1


def test_the_history_tells_the_fit():
    """A record per iteration; certified figures where there are some, the last of which are the attributes."""
    X, y = problems.cancer()
    model = make("squared_hinge").fit(X, y)
    history = model.history_
    assert len(history) == model.n_iter_
    assert history.column("iteration").tolist() == list(range(1, model.n_iter_ + 1))
    assert history[-1].figures["duality_gap"] == model.duality_gap_
    assert history[-1].figures["objective"] == model.objective_.sum()
    assert np.all(np.diff(history.column("time_s")) > 0)
    assert history[-1].epochs == model.n_iter_


def test_verbose_prints_certificates_or_iterations(capsys):
    """0 nothing, 1 a line per certificate, 2 a line per iteration."""
    X, y = problems.cancer()
    make("hinge", verbose=0).fit(X, y)
    assert capsys.readouterr().out == ""
    model = make("hinge", C=100.0, verbose=1).fit(X, y)
    method, *lines = capsys.readouterr().out.splitlines()
    assert method == f"[ChicleSVM] from iteration 1: {model.history_.method}"
    certificates = [record for record in model.history_ if "duality_gap" in record.figures]
    assert len(lines) == len(certificates) < model.n_iter_
    assert lines[-1].startswith(f"[ChicleSVM] iteration {model.n_iter_}: relative duality gap ")
    assert "objective" in lines[-1]
    make("hinge", C=100.0, verbose=2).fit(X, y)
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_
    assert lines[0].startswith("[ChicleSVM] iteration 1: estimated relative duality gap ")


def test_history_says_how_the_model_was_found():
    """And that another way began with a second task; a file of the estimator keeps it."""
    X, y = problems.digits()
    model = make("hinge", runtime=InProcess(changes=((1, 2),)), tol=1e-9).fit(X, y)
    (first, alone), (joined, together) = model.history_.methods.items()
    assert first == 1
    assert "coordinate descent" in alone
    assert "one task" in alone
    assert model.history_[joined - 1].num_tasks == 2
    assert "a working set on one task, because of 2 tasks" in together
    assert model.history_.method == together


@pytest.mark.parametrize("loss", LOSSES)
def test_a_tol_of_zero_uses_all_iterations(loss):
    """Unless the gap really is 0 in floating point; then it stops."""
    X, y = problems.cancer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = make(loss, tol=0.0, max_iter=40).fit(X, y)
    assert model.n_iter_ == 40 or model.duality_gap_ <= 0.0


@pytest.mark.usefixtures("patient_ctrl_c")
@pytest.mark.parametrize(("num_tasks", "iteration"), [(1, 2), (3, 4)])
def test_ctrl_c_between_duals_and_model_leaves_them_consistent(num_tasks, iteration, monkeypatch):
    """A real SIGINT after the solver has written duals and before its part is merged.

    Coordinate descent (one task) computes w anew from the duals; Newton's method (three) has duals that follow from w.
    """
    solve = solver.LinearSolver.solve

    def interrupted(self, model, budget):
        update = solve(self, model, budget)
        if budget.iteration == iteration:
            signal.raise_signal(signal.SIGINT)
        return update

    monkeypatch.setattr(solver.LinearSolver, "solve", interrupted)
    X, y = problems.digits()
    model = make("hinge", runtime=InProcess(num_tasks=num_tasks))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.n_iter_ == iteration - 1
    gaps = problems.recomputed_gaps(model, X, y, is_converged=num_tasks == 1)
    assert model.duality_gap_ == pytest.approx(gaps.max(), rel=1e-9)
    assert model.score(X, y) > 0.8


def test_a_fit_that_fails_leaves_the_model_of_the_last_one():
    """A runtime that gives up half-way does not mix two models."""
    X, y = problems.digits()
    model = ChicleSVM(C=0.01).fit(X, y)
    expected = model.predict(X)

    class Failing:
        def most_tasks(self):
            return 1

        def run(self, job):
            raise ConnectionError("the cluster is gone")

    with pytest.raises(ConnectionError, match="the cluster is gone"):
        model.set_params(runtime=Failing()).fit(X, y > 4)
    np.testing.assert_array_equal(model.predict(X), expected)
