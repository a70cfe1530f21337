"""The estimators on a local cluster of real agents: `runtime=LocalCluster(...)` and `n_workers`."""

import os
import pickle
import signal

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from chicle_elastic.cluster.local.local_cluster import LocalCluster, shared_cluster
from chicle_elastic.errors import ContractError, UsageError
from estimators import ChicleLogisticRegression, ChicleSVM, ElasticEstimator
from tests.cluster.local.local_trainers import Shift
from tests.cluster.notebooks import notebook
from tests.estimators import problems
from tests.estimators.own_trainers import KMeans, NearestMean
from tests.estimators.problems import write
from tests.estimators.reference_fits import require_certified
from tests.estimators.test_callbacks import OtherData, Recorder
from tests.estimators.test_elastic import Loud
from tests.estimators.test_runtime import make


@pytest.fixture(scope="module", autouse=True)
def of_two():
    """The cluster that n_workers=2 means, for all tests of this file."""
    with shared_cluster(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def of_four():
    """A cluster of four nodes."""
    with LocalCluster(4) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("loss", "data", "form"),
    [("hinge", problems.digits, sparse.csr_matrix), ("logistic", problems.cancer, np.asarray)],
)
def test_four_agents_come_to_the_objective_of_one_task(of_four, loss, data, form):
    """Within tol, with weights; the duals return in the order of X, and NumPy finds the same gap."""
    X, y = data()
    X, y = X[:500], y[:500]
    weights = np.random.default_rng(0).uniform(0.5, 2, size=len(y))
    one = make(loss, C=0.01).fit(X, y, weights)
    four = make(loss, C=0.01, runtime=of_four).fit(form(X), y, weights)
    gaps = problems.recomputed_gaps(four, X, y, weights)
    assert gaps.max() <= 1e-3
    assert four.duality_gap_ == pytest.approx(gaps.max(), rel=1e-6)
    np.testing.assert_allclose(four.objective_, one.objective_, rtol=2e-3)
    assert four.history_.column("num_tasks").tolist() == [4] * four.n_iter_
    assert len(four.history_.members) == 4


def test_a_chunk_folder_is_read_in_place(of_two, tmp_path):
    """Nothing is staged: the tasks open the folder themselves."""
    X, y = problems.cancer()
    folder = write(tmp_path / "data", X, y, classes=(0, 1))
    model = make("hinge", runtime=of_two).fit(folder)
    assert problems.recomputed_gaps(model, X, y).max() <= 1e-3


@pytest.mark.parametrize(
    ("model", "at"),
    [
        (ChicleSVM(C=0.05, store_duals=True), 1),
        (ChicleLogisticRegression(C=100.0, l1_ratio=1.0), 5),
        (ChicleLogisticRegression(C=10.0), 6),
    ],
    ids=["hinge", "l1", "softmax"],
)
def test_a_process_is_killed_in_the_middle_of_a_fit(of_two, model, at):
    """The fit ends as if nothing had happened, and its history names node and process of everyone."""
    X, y = problems.cancer() if at < 6 else problems.digits()
    victim = []

    def kill():
        victim.append(of_two.members()["n1"])
        os.kill(victim[0].pid, signal.SIGKILL)

    model = clone(model).set_params(tol=1e-7, max_iter=100_000, chunk_size=9_000, n_workers=2)
    model.set_callbacks(OtherData({at: kill})).fit(X, y)
    require_certified(model, X, y)
    members = model.history_.members
    assert members["n1"].agent_pid == victim[0].agent_pid, "the agent lives on"
    assert members["n1"].pid not in (0, victim[0].pid), "and has started another task"
    assert model.history_.column("num_tasks").min() == 1


def test_grid_search_in_two_processes_uses_one_cluster(of_two):
    """joblib's processes get the address; their fits queue."""
    X, y = problems.cancer()
    search = GridSearchCV(make("hinge", runtime=of_two), {"C": [0.01, 0.1]}, cv=2, n_jobs=2).fit(X, y)
    plain = GridSearchCV(make("hinge"), {"C": [0.01, 0.1]}, cv=2).fit(X, y)
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"], atol=0.01)
    assert len(search.best_estimator_.history_.members) == 2


@pytest.mark.usefixtures("patient_ctrl_c")
@pytest.mark.parametrize("iteration", [0, 7])
def test_ctrl_c_leaves_a_usable_estimator(of_two, iteration):
    """A real SIGINT: KeyboardInterrupt comes out of fit, the attributes are set and belong together."""
    X, y = problems.cancer()
    recorder = Recorder({iteration: lambda: signal.raise_signal(signal.SIGINT)})
    model = make("hinge", C=1.0, tol=0.0, runtime=of_two).set_callbacks(recorder)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.n_iter_ == len(model.history_) > iteration
    found = problems.recomputed_gaps(model, X, y, is_converged=False).max()
    assert model.duality_gap_ == pytest.approx(found, rel=1e-9)
    # A first pass of Newton's method only looks at w = 0, and a step may be refused.
    assert model.score(X, y) > 0.9 or (iteration == 0 and not model.coef_.any())


def test_a_callback_ends_the_fit_with_a_true_certificate(of_two):
    """In the very iteration, as in process: callbacks are asked, and the tasks wait for the answer."""
    X, y = problems.cancer()
    model = make("hinge", C=1.0, tol=0.0, runtime=of_two).set_callbacks(Recorder({4: lambda: True})).fit(X, y)
    assert model.n_iter_ == len(model.history_) == 5
    assert model.duality_gap_ == pytest.approx(problems.recomputed_gaps(model, X, y, is_converged=False)[0], rel=1e-9)


def test_warm_start_goes_on_from_the_duals(of_two):
    """A second fit of the same data has nothing left to do."""
    X, y = problems.cancer()
    model = make("hinge", warm_start=True, runtime=of_two).fit(X, y)
    assert model.fit(X, y).n_iter_ <= 2


def test_an_estimator_keeps_pointing_at_its_cluster(of_two):
    """After clone and pickle; a saved model has no place of its own."""
    X, y = problems.cancer()
    model = make("hinge", runtime=of_two, n_workers=None)
    for other in (clone(model), pickle.loads(pickle.dumps(model))):
        assert other.runtime == of_two
        assert other.fit(X, y).history_.members


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_grid_search_varies_the_field_of_a_policy(of_two):
    """And what the policy did is in history and ledger; the estimator that was searched with has its own policy."""
    X, y = problems.cancer()
    model = make("hinge", tol=0.0, max_iter=300, runtime=of_two, policy=Shift(keep=9))
    search = GridSearchCV(model, {"policy__keep": [3]}, cv=2).fit(X, y)
    assert model.policy.keep == 9
    best = search.best_estimator_
    assert best.policy == Shift(keep=3)
    assert best.history_[-1].num_chunks["n0"] == 3
    moved = [account for account in best.ledger_ if len(account.iterations) == 2]
    assert len(moved) == best.history_[0].num_chunks["n0"] - 3
    assert {sum(account.iterations.values()) for account in best.ledger_} == {best.n_iter_}
    assert any("Shift moves" in event for event in best.history_.column("events"))


@pytest.mark.parametrize("n_workers", [0, (4, 2), (1, 2, 3), 1.5, "2"])
def test_a_number_of_workers_that_cannot_be_is_refused(n_workers):
    """By scikit-learn's own validation, or by the cluster's."""
    X, y = problems.cancer()
    with pytest.raises(ValueError, match=r"n_workers|nodes="):
        make("hinge", n_workers=n_workers).fit(X, y)


def test_a_wrong_value_in_x_is_named_as_in_process(of_two):
    """Large data is looked at by the tasks; the message names row and column all the same."""
    X, y = problems.cancer()
    X = np.tile(X, (64, 1))
    X[20_000, 3] = np.nan
    assert X.size > 1 << 20
    with pytest.raises(ValueError, match="NaN"):
        make("hinge", runtime=of_two).fit(X, np.tile(y, 64))


X, Y = load_digits(return_X_y=True)
CELLS = (
    "from tests.estimators.own_trainers import KMeans\nFACTOR = 2.0\n",
    """
class Doubled(KMeans):
    "A class of the notebook, which shows twice the inertia."
    def figures(self, model, report):
        return {"doubled": FACTOR * report.metrics["inertia"]}
""",
)


def test_an_own_algorithm_comes_to_the_model_of_this_process(of_two):
    """In a pipeline and a search too, whose fits run on the same nodes one after the other."""
    here = ElasticEstimator(KMeans(num_clusters=4), random_state=0).fit(X)
    there = ElasticEstimator(KMeans(num_clusters=4), random_state=0, runtime=of_two).fit(X)
    assert len(there.history_.members) == 2
    assert there.n_iter_ == here.n_iter_
    np.testing.assert_allclose(there.model_, here.model_, rtol=1e-9)
    pipeline = make_pipeline(MinMaxScaler(), ElasticEstimator(NearestMean(), runtime=of_two))
    search = GridSearchCV(pipeline, {"elasticestimator__trainer__shrink": [0.0, 0.9]}, cv=2).fit(X, Y)
    assert search.best_params_ == {"elasticestimator__trainer__shrink": 0.0}
    assert search.score(X, Y) > 0.85


def test_a_trainer_of_a_notebook_goes_along(of_two):
    """With what it uses of another cell; the estimator has the class of the notebook."""
    with notebook(*CELLS) as names:
        model = ElasticEstimator(names["Doubled"](num_clusters=3), random_state=0, runtime=of_two).fit(X)
        assert type(model.trainer_) is names["Doubled"]
    assert model.history_[-1].figures["doubled"] == pytest.approx(-2 * model.score(X), rel=1e-3)


def test_what_is_wrong_with_a_trainer_is_told_as_in_this_process(of_two):
    """A metric without a name comes from a task; what cannot travel is refused before."""
    with pytest.raises(ContractError, match=r"node n\d: .*metrics 'squares'.* name them in Loud.metric_names"):
        ElasticEstimator(Loud(), runtime=of_two).fit(X, Y)
    generator = (number for number in range(3))
    with pytest.raises(UsageError, match=r"a generator cannot be pickled: trainer\.told \("):
        ElasticEstimator(NearestMean(told=generator), runtime=of_two).fit(X, Y)
