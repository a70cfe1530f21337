"""Searches on a local cluster of real agents: one job whose nodes keep the rows, also when one of them dies."""

import signal

import numpy as np
import pytest
from joblib import parallel_config
from scipy import sparse
from sklearn.model_selection import GridSearchCV

from chicle_elastic.cluster.local.local_cluster import LocalCluster
from estimators import ChicleLogisticRegression, ChicleRidge, ChicleSearchCV, ChicleSVM
from tests.estimators import problems
from tests.estimators.problems import diabetes
from tests.estimators.search_policies import KillOwnTask
from tests.estimators.test_search import CS, TOL, assert_same, few

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    """Two nodes."""
    with LocalCluster(2) as found:
        yield found


def wide(num_rows=120, num_features=3000):
    """Sparse rows with more columns than second derivatives can be made of."""
    rng = np.random.default_rng(0)
    X = sparse.random(num_rows, num_features, density=0.02, format="csr", random_state=0, dtype=np.float64)
    return X, (X @ rng.normal(size=num_features) > 0).astype(int)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.parametrize("data", [lambda: few(problems.cancer), lambda: few(problems.digits), wide])
def test_scores_are_those_of_one_process(cluster, data, loss):
    """All folds, candidates and two weights of classes in one job, for narrow and for wide data."""
    X, y = data()
    grid = {"C": CS, "class_weight": [None, "balanced"]}
    params = {"loss": loss, "tol": TOL, "random_state": 0}
    there = ChicleSearchCV(ChicleSVM(runtime=cluster, **params), grid, cv=3, refit=False).fit(X, y)
    here = ChicleSearchCV(ChicleSVM(**params), grid, cv=3, refit=False).fit(X, y)
    assert_same(there, here, len(y))
    assert there.sharing_ == (
        "18 fits of ChicleSVM on 3 splits share one job of a LocalCluster, whose nodes keep the rows, and their path "
        "along C",
    )


def test_a_softmax_is_found_on_nodes(cluster):
    """In a grid with one-vs-rest, whose stages are another job."""
    X, y = few(problems.digits)
    grid = {"C": CS, "multi_class": ["multinomial", "ovr"]}
    there = ChicleSearchCV(ChicleLogisticRegression(runtime=cluster, tol=TOL), grid, cv=3, refit=False).fit(X, y)
    here = ChicleSearchCV(ChicleLogisticRegression(tol=TOL), grid, cv=3, refit=False).fit(X, y)
    assert_same(there, here, len(y))


def test_grid_search_uses_one_cluster_in_the_backend(cluster):
    """scikit-learn's own search, by the backend; and the refit is a job of the cluster, too."""
    X, y = few(problems.cancer)
    with parallel_config("chicle"):
        search = GridSearchCV(ChicleLogisticRegression(runtime=cluster), {"C": CS}, cv=3).fit(X, y)
    assert search.best_score_ > 0.9
    assert len(search.best_estimator_.history_.members) == 2


def test_regressors_are_jobs_after_each_other(cluster):
    """Each with weights of 0 for what is left out."""
    X, y = diabetes()
    there = ChicleSearchCV(ChicleRidge(runtime=cluster), {"alpha": [0.1, 1.0]}, cv=2).fit(X, y)
    assert_same(there, ChicleSearchCV(ChicleRidge(), {"alpha": [0.1, 1.0]}, cv=2).fit(X, y), 1e5)


@pytest.mark.chaos
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_a_search_goes_on_without_a_killed_task(tmp_path, loss):
    """Its rows come back, and all scores are those of a search that nothing befell."""
    X, y = problems.cancer()
    mark = tmp_path / "struck"
    params = {"loss": loss, "tol": TOL, "random_state": 0}
    with LocalCluster(2) as cluster:
        estimator = ChicleSVM(runtime=cluster, policy=KillOwnTask(mark=str(mark)), chunk_size=9_000, **params)
        struck = ChicleSearchCV(estimator, {"C": CS}, cv=3, refit=False).fit(X, y)
    assert mark.exists()
    here = ChicleSearchCV(ChicleSVM(**params), {"C": CS}, cv=3, refit=False).fit(X, y)
    assert_same(struck, here, len(y))


def test_ctrl_c_ends_the_job(cluster):
    """A real SIGINT while the job runs; the cluster takes the next search."""
    X, y = few(problems.cancer)
    estimator = ChicleSVM(runtime=cluster, tol=1e-12, max_iter=100_000)
    previous = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 2.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            ChicleSearchCV(estimator, {"C": np.logspace(3, 9, 40)}, cv=5, refit=False).fit(X, y)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)
    assert ChicleSearchCV(estimator.set_params(tol=1e-3), {"C": CS}, cv=2).fit(X, y).best_score_ > 0.9
