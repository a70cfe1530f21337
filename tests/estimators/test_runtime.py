"""Where and how a fit runs: tasks that come and go, threads, seeds, what is printed and recorded."""

import importlib
import signal
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from chicle_elastic.policies.shuffle import Shuffle
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.linear import local, solver
from estimators import ChicleLogisticRegression, ChicleSVM
from tests.estimators import problems

LOSSES = ["hinge", "squared_hinge", "logistic"]


def make(loss, **params):
    """An estimator that keeps its duals."""
    params = {"C": 0.05, "random_state": 0, "store_duals": True, "max_iter": 5000} | params
    return ChicleLogisticRegression(**params) if loss == "logistic" else ChicleSVM(loss=loss, **params)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("loss", LOSSES)
def test_tasks_come_and_go_and_the_certificate_is_true(loss, form):
    """Four tasks, then two, then six: duals return in the order of X, and the objective is that of one task."""
    X, y = problems.digits()
    X, y = X[:300], y[:300]
    weights = np.random.default_rng(0).uniform(0.5, 2, size=len(y))
    one = make(loss, tol=1e-4).fit(X, y, weights)
    many = make(loss, tol=1e-4, runtime=InProcess(num_tasks=4, changes=((1, 2), (2, 6)))).fit(form(X), y, weights)
    gaps = problems.recomputed_gaps(many, X, y, weights)
    assert gaps.max() <= 1e-4
    assert many.duality_gap_ == pytest.approx(gaps.max(), rel=1e-6)
    np.testing.assert_allclose(many.objective_, one.objective_, rtol=2e-4)
    assert many.history_.column("num_tasks")[:3].tolist() == [4, 2, 6]


def test_more_tasks_than_samples_is_no_error():
    """Some tasks hold nothing."""
    X = np.array([[0.0], [1.0], [2.0]])
    model = ChicleSVM(C=10.0, runtime=InProcess(num_tasks=5)).fit(X, [0, 0, 1])
    assert model.predict(X).tolist() == [0, 0, 1]


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


def test_a_random_state_instance_moves_on():
    """As in scikit-learn: an instance is used up, an int is used again."""
    X, y = problems.cancer()
    instance = np.random.RandomState(0)
    first = ChicleSVM(C=0.1, random_state=instance).fit(X, y).coef_
    assert not np.array_equal(first, ChicleSVM(C=0.1, random_state=instance).fit(X, y).coef_)


def test_two_threads_reach_the_same_gap(monkeypatch):
    """Threads are used where the data is large enough; here it is told to be. The certificate agrees with NumPy."""
    monkeypatch.setattr(local, "MIN_VALUES_PER_THREAD", 100)
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


def test_logdir_holds_the_figures_of_every_iteration(tmp_path):
    """TensorBoard reads them back."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard")
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    plugin_data = importlib.import_module("tensorboard.plugins.hparams.plugin_data_pb2").HParamsPluginData
    X, y = problems.cancer()
    model = make("hinge", logdir=tmp_path / "runs").fit(X, y)
    [run] = (tmp_path / "runs").iterdir()
    events = reader.EventAccumulator(str(run)).Reload()
    gaps = events.Scalars("model/duality_gap")
    assert gaps[-1].step == model.n_iter_
    assert gaps[-1].value == pytest.approx(model.duality_gap_, rel=1e-6)
    assert len(events.Scalars("job/samples")) == model.n_iter_
    assert events.Images("pictures/swimlanes")[-1].step == model.n_iter_
    assert "_hparams_/session_end_info" in events.PluginTagToContent("hparams")
    begun = plugin_data.FromString(events.PluginTagToContent("hparams")["_hparams_/session_start_info"])
    assert begun.session_start_info.hparams["tol"].number_value == model.tol
    assert not {"logdir", "runtime", "verbose"} & set(begun.session_start_info.hparams)


def test_every_fit_of_a_search_has_a_folder(tmp_path):
    """TensorBoard shows them as runs of their own."""
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    X, y = problems.cancer()
    GridSearchCV(make("hinge", logdir=tmp_path), {"C": [0.01, 0.1]}, cv=2).fit(X, y)
    assert [run.name.startswith("ChicleSVM-") for run in tmp_path.iterdir()] == [True] * 5


def test_two_fits_leave_no_trace_of_the_first():
    """Another number of classes and features, without duals: nothing of the first fit is left."""
    X, y = problems.digits()
    model = make("hinge", C=0.01).fit(X, y)
    X, y = problems.cancer()
    model.set_params(store_duals=False).fit(X, y)
    assert model.coef_.shape == (1, 30)
    assert not hasattr(model, "duals_")


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


def test_a_grid_search_varies_the_share_that_is_shuffled():
    """In process: what moved is in history and ledger, equal fits are equal, and the policy given stays as it is."""
    X, y = problems.cancer()
    given = Shuffle(every=2)
    model = make("hinge", tol=0.0, max_iter=12, runtime=InProcess(num_tasks=3), policy=given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search = GridSearchCV(model, {"policy__share": [0.1, 0.5]}, cv=2, refit=False).fit(X, y)
        first, second = (clone(model).set_params(policy__share=0.5).fit(X, y) for _ in range(2))
    assert not np.isnan(search.cv_results_["mean_test_score"]).any()
    assert given == Shuffle(every=2)
    assert np.array_equal(first.coef_, second.coef_)
    moved = [record.iteration for record in first.history_ if any("Shuffle redraws" in line for line in record.events)]
    assert moved == [3, 5, 7, 9, 11]
    assert {sum(account.iterations.values()) for account in first.ledger_} == {first.n_iter_}
    assert any(len(account.iterations) > 1 for account in first.ledger_)
    assert len({tuple(record.num_chunks.values()) for record in first.history_}) == 1
