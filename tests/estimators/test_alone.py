"""Little data of losses with corners is fitted without a job where nobody has asked for one, and a job comes to the
same model; an explicit `chunk_size` asks for one."""

import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine, make_regression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from chicle_elastic import InProcess
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.solvers.linear.alone import looks
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from estimators import ChicleSVM, ChicleSVR
from tests.timeouts import comes, timeout_s

JOB = {"chunk_size": 1 << 30}
LOSSES = ["hinge", "squared_hinge", "modified_huber"]


def scaled(load):
    """Features of unit variance, and targets."""
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def require_same_optimum(model, X, y, weights=None):
    """Compare with a job that comes nearer to the optimum."""
    kind, params = type(model), model.get_params()
    job = kind(**params | JOB | {"tol": 1e-7}).fit(X, y, weights)
    assert model.duality_gap_ <= model.tol
    total = np.sum(job.objective_)
    assert total * (1 - 1e-6) <= np.sum(model.objective_) <= total * (1 + 2 * model.tol)
    assert model.history_[-1].figures.keys() == job.history_[-1].figures.keys()
    assert {account.rows for account in model.ledger_} == {account.rows for account in job.ledger_} == {len(y)}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("load", [load_iris, load_breast_cancer])
@pytest.mark.parametrize("as_rows", [np.asarray, np.float32, sparse.csr_matrix])
def test_classes_have_the_optimum_of_a_job(loss, load, as_rows):
    """Dense and sparse rows, bounds of their own, some of them 0; the duals make the weights."""
    X, y = scaled(load)
    weights, params = np.arange(len(y)) % 4 / 2.0, {"class_weight": "balanced", "intercept_scaling": 3.0}
    model = ChicleSVM(loss=loss, store_duals=True, random_state=0, **params).fit(as_rows(X), y, weights)
    require_same_optimum(model, as_rows(X), y, weights)
    positive = model.classes_ if len(model.classes_) > 2 else model.classes_[1:]
    signs = np.where(y[:, None] == positive, 1.0, -1.0)
    np.testing.assert_allclose((signs * model.duals_).T @ X, model.coef_, rtol=0, atol=1e-3 * np.abs(model.coef_).max())


@pytest.mark.parametrize("loss", LOSSES[1:])
def test_sparse_rows_are_little_data_by_the_values_they_have(loss):
    """A job would begin with second derivatives of all columns; they are no narrower for that few values are there."""
    rng = np.random.default_rng(0)
    X = sparse.random(3500, 600, density=0.01, format="csr", random_state=0)
    y = (X @ rng.normal(size=600) + 0.3 * rng.normal(size=3500) > 0).astype(int)
    model = ChicleSVM(loss=loss, random_state=0).fit(X, y)
    assert "coordinate descent" in model.history_.method
    assert "Newton" in ChicleSVM(loss=loss, random_state=0, **JOB).fit(X, y).history_.method
    require_same_optimum(model, X, y)


@pytest.mark.parametrize("loss", LOSSES)
def test_duals_of_fewer_rows_need_no_job_either(loss):
    """Nor does a first fit that keeps them; the model that goes on from them is that of a job."""
    X = sparse.random(700, 600, density=0.01, format="csr", random_state=0)
    y = (X @ np.random.default_rng(0).normal(size=600) > 0).astype(int)
    model = ChicleSVM(loss=loss, warm_start=True, random_state=0).fit(X[:630], y[:630])
    cold = ChicleSVM(loss=loss, random_state=0).fit(X[:630], y[:630])
    np.testing.assert_array_equal(model.coef_, cold.coef_)
    assert "coordinate descent" in model.fit(X, y).history_.method
    require_same_optimum(model, X, y)


@pytest.mark.parametrize("loss", LOSSES)
def test_duals_to_begin_with_are_gone_on_from(loss):
    """Those of the optimum leave nothing to do in an iteration that does not lead there by itself."""
    X, y = scaled(load_breast_cancer)
    trainer, source = LinearTrainer(loss=loss, C=10.0, tol=1e-9, algorithm="cocoa"), ArraySource(X, y.astype(np.int32))
    found = [look for look in looks(trainer, source, seed=0, max_iterations=300) if look.report.is_certificate]
    best = min(found, key=lambda look: look.figures["duality_gap"])
    cold, warm = (
        next(looks(trainer, source, seed=0, max_iterations=1, initial_state=state)) for state in (None, best.duals())
    )
    assert warm.figures["duality_gap"] < 1e-6 < cold.figures["duality_gap"]


def test_a_job_goes_on_where_passes_do_not_get_on():
    """Columns that are nearly the same: coordinate descent would take thousands of passes."""
    X, y = make_regression(1000, 30, effective_rank=3, noise=1.0, random_state=0)
    model = ChicleSVR(C=1e4, random_state=0).fit(StandardScaler().fit_transform(X), y)
    assert model.duality_gap_ <= model.tol
    assert "Newton" in model.history_.method, "the history is that of the job"


@pytest.mark.parametrize("params", [JOB, {"runtime": InProcess()}, {"verbose": 1}], ids=str)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_job_that_was_asked_for_is_one(params):
    """It goes by Newton's method."""
    assert "Newton" in ChicleSVR(random_state=0, **params).fit(*scaled(load_diabetes)).history_.method


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("max_iter", [1, 200])
def test_a_fit_without_a_tol_uses_all_iterations_and_comes_to_rounding(max_iter):
    """Newton's method of a job begins anew whenever it is there, and may end anywhere."""
    rng = np.random.default_rng(42)
    X, y = rng.random((15, 30)), rng.integers(0, 3, 15).astype(float)
    for weights in (None, rng.integers(0, 5, 15)):
        model = ChicleSVR(tol=0.0, max_iter=max_iter, random_state=0).fit(X, y, sample_weight=weights)
        assert model.n_iter_ == max_iter
        assert model.duality_gap_ <= 1e-10


def test_parts_of_a_pipeline_or_search_need_none():
    """Unless it has callbacks; the model is that of a fit by itself, to the bit."""
    X, y = load_diabetes(return_X_y=True)
    alone = ChicleSVR(C=0.1, random_state=0).fit(*scaled(load_diabetes))
    pipeline = make_pipeline(StandardScaler(), ChicleSVR(C=0.1, random_state=0))
    search = GridSearchCV(pipeline, {"chiclesvr__epsilon": [0.0]}, cv=2).fit(X, y)
    for model in (alone, pipeline.fit(X, y)[-1], search.best_estimator_[-1]):
        assert "coordinate descent" in model.history_.method
        np.testing.assert_array_equal(model.coef_, alone.coef_)


def test_the_first_iterations_are_those_of_coordinate_descent():
    """Without Newton steps, where the algorithm of the paper was asked for."""
    X, y = scaled(load_wine)
    trainer = LinearTrainer(algorithm="cocoa", tol=1e-9)
    found = list(looks(trainer, ArraySource(X, y.astype(np.int32)), seed=0, max_iterations=40))
    gaps = [trainer.relative_gap(look.model, look.report) for look in found if look.report.is_certificate]
    assert gaps[-1] < 1e-6
    signs = np.where(y[:, None] == np.arange(3), 1.0, -1.0)
    w = (signs * found[-1].duals()[:, :, 0]).T @ np.column_stack([X, np.ones(len(X))])
    np.testing.assert_allclose(w.ravel(), found[-1].model, atol=1e-9)


CHILD = """
import signal, numpy as np
from estimators import ChicleSVM
signal.signal(signal.SIGINT, signal.default_int_handler)
rng = np.random.default_rng(0)
X, y = rng.normal(size=(600, 64)) * 10.0 ** rng.uniform(-2, 2, 64), np.arange(600) % 3
ChicleSVM(C=1e4, max_iter=2).fit(X, y)
model = ChicleSVM(C=1e4, algorithm="cocoa", tol=1e-17, max_iter=10**7, store_duals=True)
print("ready", flush=True)
try:
    model.fit(X, y)
except KeyboardInterrupt:
    drift = np.where(y[:, None] == np.arange(3), 1.0, -1.0) * model.duals_
    print(len(model.predict(X)), model.duality_gap_ < 1.0, np.abs(drift.T @ X - model.coef_).max() < 1e-9, flush=True)
"""


def cpu_ticks(process):
    """Return the hundredths of a second that a process has computed."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_ctrl_c_leaves_a_model():
    """The signal comes from another process; the weights are those of the duals, and have a gap."""
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", CHILD], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            ready = cpu_ticks(child)
            assert comes(lambda: cpu_ticks(child) > ready + 30, 60), "it is in the middle of the fit"
            child.send_signal(signal.SIGINT)
            assert child.communicate(timeout=timeout_s(30))[0] == "600 True True\n"
        finally:
            child.kill()


@pytest.mark.parametrize("params", [{}, JOB, {"runtime": InProcess(num_tasks=2)}])
def test_times_of_records_are_those_of_the_clock_of_the_caller(params):
    """They count from within the call, with or without a job: no more than has passed, nor less than was computed."""
    X, y = scaled(load_wine)
    began_s = time.monotonic()
    history = ChicleSVM(tol=1e-9, **params).fit(X, y).history_
    passed_s = time.monotonic() - began_s
    computed_s = np.cumsum([max(record.seconds.values()) for record in history])
    times = [record.time_s for record in history]
    assert times == sorted(times)
    assert 0.0 < times[-1] <= passed_s
    assert np.all(computed_s <= times)


@pytest.mark.parametrize("loss", ["squared_hinge", "modified_huber"])
@pytest.mark.parametrize("seed", range(4))
def test_features_that_spoil_the_steps_of_the_kernel_are_left_to_others(loss, seed):
    """Its first factor fails: columns of 1e8 beside a penalty of 1."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(20, 30)) * 1e8, rng.integers(0, 2, 20)
    model = ChicleSVM(loss=loss, random_state=0).fit(X, y)
    assert model.n_iter_ < 20
    assert np.max(model.duality_gap_) <= 1e-3


def test_newton_steps_by_less_than_rounding_end_with_a_model():
    """Columns whose mean is 300 times their deviation: a tolerance out of reach is a warning and no DataError."""
    rng = np.random.default_rng(1038)
    n, d = int(rng.integers(20, 600)), int(rng.integers(1, 130))
    X = rng.normal(size=(n, d)) + 10.0 ** rng.uniform(0, 4)
    K = int(rng.integers(2, 5))
    y = np.argmax(X / X.std(axis=0) @ rng.normal(size=(d, K)) + rng.normal(size=(n, K)), axis=1)
    y[:2] = 0, 1
    with warnings.catch_warnings(action="ignore"):
        model = ChicleSVM(algorithm="newton", C=0.3860259111591011, tol=1e-8).fit(X, y)
    assert np.isfinite(model.coef_).all()
