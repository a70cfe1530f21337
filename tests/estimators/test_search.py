"""ChicleSearchCV and joblib's backend "chicle": the results of GridSearchCV, from one copy of the rows."""

import itertools
import pickle
import threading
import warnings
import weakref

import numpy as np
import pytest
from joblib import Parallel, delayed, parallel_config
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    RandomizedSearchCV,
    RepeatedKFold,
    ShuffleSplit,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.linear import local
from estimators import (
    ChicleElasticNet,
    ChicleLasso,
    ChicleLogisticRegression,
    ChicleRidge,
    ChicleSearchCV,
    ChicleSVM,
    ChicleSVR,
)
from estimators.search import plan
from estimators.search.classifiers import ClassifierWork
from estimators.search.plan import cut_path
from estimators.search.search_cv import rungs
from tests.estimators import problems
from tests.estimators.problems import diabetes, write

CS = [1e-3, 1e-2, 0.1]
TOL = 1e-6
ROWS = 3


def few(data, num_rows=300):
    """The first rows of a data set."""
    X, y = data()
    return X[:num_rows], y[:num_rows]


def assert_same(ours, theirs, num_rows):
    """The same table, with mean scores that differ by `ROWS` rows at most, and the same winner."""
    assert sorted(ours.cv_results_) == sorted(theirs.cv_results_)
    for name, column in theirs.cv_results_.items():
        assert np.shape(ours.cv_results_[name]) == np.shape(column)
        if "score" in name and "time" not in name and "rank" not in name:
            np.testing.assert_allclose(ours.cv_results_[name], column, atol=ROWS / num_rows)
    assert ours.cv_results_["params"] == theirs.cv_results_["params"]
    assert ours.n_splits_ == theirs.n_splits_


@pytest.mark.parametrize(
    "estimator",
    [
        ChicleSVM(tol=TOL),
        ChicleSVM(loss="squared_hinge", tol=TOL, class_weight="balanced", fit_intercept=False),
        ChicleLogisticRegression(tol=TOL, multi_class="ovr"),
        ChicleLogisticRegression(tol=TOL),
    ],
    ids=["hinge", "squared_hinge", "logistic", "softmax"],
)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("data", [problems.cancer, pytest.param(problems.digits, marks=pytest.mark.slow)])
def test_scores_are_those_of_grid_search(estimator, data, form):
    """Per candidate, within a few rows at tol; all fits share the rows."""
    X, y = few(data)
    ours = ChicleSearchCV(estimator, {"C": CS}, cv=3, return_train_score=True).fit(form(X), y)
    theirs = GridSearchCV(estimator, {"C": CS}, cv=3, return_train_score=True).fit(form(X), y)
    assert_same(ours, theirs, len(y))
    assert ours.best_params_ == theirs.best_params_
    assert ours.sharing_ == (
        f"9 fits of {type(estimator).__name__} on 3 splits share one copy of the rows, and their path along C",
    )
    np.testing.assert_array_equal(ours.predict(X), ours.best_estimator_.predict(X))


@pytest.mark.parametrize(
    ("estimator", "grid"),
    [
        (ChicleRidge(), {"alpha": [0.1, 10.0]}),
        (ChicleLasso(), {"alpha": [0.1, 1.0, 0.01]}),
        (ChicleElasticNet(), {"alpha": [0.1, 1.0], "l1_ratio": [0.2, 0.9]}),
        (ChicleSVR(C=10.0, tol=1e-10), {"C": [1.0, 10.0], "epsilon": [0.0, 5.0]}),
    ],
    ids=["ridge", "lasso", "elastic_net", "svr"],
)
def test_scores_of_regressors_are_those_of_grid_search(estimator, grid):
    """R^2, with weights; rows that are left out have a weight of 0."""
    X, y = diabetes()
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    ours = ChicleSearchCV(estimator, grid, cv=4).fit(X, y, sample_weight=weights)
    theirs = GridSearchCV(estimator, grid, cv=4).fit(X, y, sample_weight=weights)
    assert_same(ours, theirs, 1e5)
    assert ours.best_params_ == theirs.best_params_
    assert "share one copy of the rows" in ours.sharing_[0]


@pytest.mark.parametrize(
    ("estimator", "grid", "cv"),
    [
        (
            ChicleSVM(C=0.01, tol=TOL, random_state=0, max_iter=2000),
            [
                {"C": CS, "loss": ["hinge", "squared_hinge"], "class_weight": [None, "balanced", {0: 2.0}]},
                {"tol": [1e-5, 1e-6], "intercept_scaling": [1.0, 3.0], "n_threads": [1, 2]},
                {"runtime": [None, InProcess(num_tasks=2)], "max_iter": [2000]},
            ],
            GroupKFold(2),
        ),
        (ChicleLogisticRegression(tol=TOL), {"C": CS}, GroupKFold(3)),
    ],
)
def test_grids_weights_and_groups_are_those_of_grid_search(estimator, grid, cv):
    """Any parameter may be in a grid, or several grids; what is no C begins afresh on the same rows."""
    X, y = few(problems.cancer)
    rng = np.random.default_rng(0)
    given = {"groups": rng.integers(0, 20, len(y)), "sample_weight": rng.integers(0, 4, len(y)).astype(float)}
    ours = ChicleSearchCV(estimator, grid, cv=cv).fit(X, y, **given)
    assert_same(ours, GridSearchCV(estimator, grid, cv=cv).fit(X, y, **given), len(y))
    assert sum("share nothing" in line for line in ours.sharing_) == 0


def test_weights_are_routed():
    """With scikit-learn's metadata routing on, to the fits and to the scores that ask for them."""
    X, y = few(problems.cancer)
    weights = np.random.default_rng(0).integers(0, 4, len(y)).astype(float)
    with config_context(enable_metadata_routing=True):
        estimator = ChicleSVM(tol=TOL).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        ours = ChicleSearchCV(estimator, {"C": CS}, cv=3).fit(X, y, sample_weight=weights)
        assert_same(ours, GridSearchCV(estimator, {"C": CS}, cv=3).fit(X, y, sample_weight=weights), len(y))
    assert "share one copy" in ours.sharing_[0]


def test_several_scores_and_a_refit_of_ones_own():
    """A dict of scorers, refit by name and by a function, and not at all."""
    X, y = few(problems.cancer)
    params = {"scoring": {"a": "accuracy", "r": "roc_auc"}, "cv": 3}
    estimator = ChicleSVM(tol=TOL, random_state=0)
    ours = ChicleSearchCV(estimator, {"C": CS}, refit="r", **params).fit(X, y)
    theirs = GridSearchCV(estimator, {"C": CS}, refit="r", **params).fit(X, y)
    assert_same(ours, theirs, len(y))
    assert ours.multimetric_
    assert ours.best_index_ == theirs.best_index_
    chosen = ChicleSearchCV(estimator, {"C": CS}, refit=lambda results: 2, **params).fit(X, y)
    assert chosen.best_params_ == {"C": CS[2]}
    without = ChicleSearchCV(estimator, {"C": CS}, refit=False, cv=3).fit(X, y)
    with pytest.raises((AttributeError, NotFittedError)):
        without.predict(X)


@pytest.mark.parametrize(
    "cv",
    [
        ShuffleSplit(4, test_size=0.4, random_state=0),
        RepeatedKFold(n_splits=3, n_repeats=2, random_state=0),
        [(np.arange(0, 200), np.arange(200, 300)), (np.repeat(np.arange(100, 300), 2), np.arange(100))],
        [(np.arange(300) < 200, np.arange(300) >= 200)],
    ],
    ids=["shuffled", "repeated", "rows twice", "masks"],
)
def test_any_splits_will_do(cv):
    """Overlapping ones, rows that a split has twice, and masks."""
    X, y = few(problems.cancer)
    estimator = ChicleLogisticRegression(tol=TOL)
    ours = ChicleSearchCV(estimator, {"C": CS}, cv=cv).fit(X, y)
    assert_same(ours, GridSearchCV(estimator, {"C": CS}, cv=cv).fit(X, y), len(y))


def test_a_class_that_a_split_lacks():
    """Of three classes: its model has two; the score is that of GridSearchCV."""
    X, y = problems.digits()
    X, y = X[y < 3], y[y < 3]
    order = np.argsort(y, kind="stable")
    X, y = X[order], y[order]
    estimator = ChicleSVM(C=0.01, tol=TOL, random_state=0)
    ours = ChicleSearchCV(estimator, {"C": CS}, cv=KFold(3)).fit(X, y)
    assert_same(ours, GridSearchCV(estimator, {"C": CS}, cv=KFold(3)).fit(X, y), len(y))


def test_a_split_with_one_class_is_a_fit_that_fails():
    """It has the error score, a warning says why, and the other splits have theirs."""
    X, y = few(problems.cancer)
    cv = [(np.arange(0, 200), np.arange(200, 300)), (np.flatnonzero(y == 1), np.arange(0, 50))]
    with pytest.warns(FitFailedWarning, match="only one class: 1"):
        search = ChicleSearchCV(ChicleSVM(), {"C": CS}, cv=cv, error_score=-1.0).fit(X, y)
    assert (search.cv_results_["split1_test_score"] == -1.0).all()
    assert (search.cv_results_["split0_test_score"] > 0.9).all()
    with pytest.raises(ValueError, match="only one class: 1"):
        ChicleSearchCV(ChicleSVM(), {"C": CS}, cv=cv, error_score="raise").fit(X, y)


SOFTMAX = {"estimator": ChicleLogisticRegression(), "y": np.arange(300) % 3}


def bad_values(X):
    """The same with a NaN."""
    X = X.copy()
    X[3, 1] = np.nan
    return X


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"grid": {"C": [-1.0]}}, ValueError, "'C' parameter of ChicleSVM must be a float in the range"),
        ({"grid": {"C": [0.0]}, **SOFTMAX}, ValueError, "'C' parameter of ChicleLogisticRegression must be a float in"),
        ({"grid": {"C": [np.nan]}, **SOFTMAX}, ValueError, "'C' parameter of ChicleLogisticRegression must be a float"),
        ({**SOFTMAX, "y": np.ones(300)}, ValueError, "only one class"),
        ({**SOFTMAX, "X": bad_values}, ValueError, "contains NaN in column 1, row"),
        ({"X": bad_values}, ValueError, "contains NaN in column 1, row"),
        ({"y": np.ones(7)}, ValueError, "inconsistent numbers of samples"),
        ({"params": {"factor": 1.0}}, ValueError, "'factor' parameter of ChicleSearchCV must be a float in the range"),
        ({"params": {"factor": 3}, "grid": {"C": CS, "tol": [0.1]}}, UsageError, "each rung has a tol"),
        ({"params": {"factor": 3}, "estimator": ChicleSVM(tol=0.0)}, UsageError, "tol=0.0"),
        ({"params": {"factor": 3}, "estimator": make_pipeline(ChicleSVM())}, UsageError, "tol=None"),
        ({"params": {"factor": 3, "scoring": ["accuracy", "f1"], "refit": False}}, UsageError, "name it by refit"),
        ({"estimator": object()}, ValueError, "'estimator' parameter of ChicleSearchCV must be an object implementing"),
        ({"estimator": ChicleSVM(n_workers=2, runtime=InProcess())}, ValueError, "leave one of them out"),
    ],
)
def test_bad_input_is_refused_with_the_reason(change, error, words):
    """As by GridSearchCV where that knows it."""
    X, y = few(problems.cancer)
    search = ChicleSearchCV(
        change.get("estimator", ChicleSVM()), change.get("grid", {"C": CS}), **{"cv": 3, **change.get("params", {})}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that fail, and of scores that are NaN
        with pytest.raises(error, match=words):
            search.fit(change.get("X", np.asarray)(X), change.get("y", y))


def test_a_chunk_folder_is_refused(tmp_path):
    """In words that say what to pass."""
    X, y = few(problems.cancer)
    folder = write(tmp_path / "data", X, y, classes=(0, 1))
    assert isinstance(folder, ChunkFolder)
    with pytest.raises(UsageError, match="splits rows that are in memory"):
        ChicleSearchCV(ChicleSVM(), {"C": CS}).fit(folder)


def test_a_score_of_nan_is_no_winner():
    """Of a scorer that fails for one candidate."""

    def score(estimator, X, y):
        if CS[1] == estimator.C:
            raise RuntimeError("no score for this one")
        return estimator.score(X, y)

    X, y = few(problems.cancer)
    with pytest.warns(UserWarning, match="no score for this one"):
        search = ChicleSearchCV(ChicleSVM(), {"C": CS}, scoring=score, cv=3).fit(X, y)
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [False, True, False]
    assert search.best_params_["C"] != CS[1]


def test_fits_that_have_not_converged_warn():
    """With the gap, as the estimator does."""
    X, y = few(problems.cancer)
    with pytest.warns(ConvergenceWarning, match="after max_iter=1 iterations the relative duality gap is"):
        ChicleSearchCV(ChicleLogisticRegression(max_iter=1), {"C": CS}, cv=3, refit=False).fit(X, y)


@pytest.mark.parametrize(
    ("estimator", "reason"),
    [
        (make_pipeline(StandardScaler(), ChicleSVM(C=0.01, random_state=0)), "Pipeline is none of"),
        (LogisticRegression(), "LogisticRegression is none of"),
        (ChicleSVM(warm_start=True, random_state=0), "warm_start=True"),
        (ChicleSVM(store_duals=True, random_state=0), "store_duals=True"),
        (ChicleSVM(loss="squared_hinge", penalty="l1", C=0.05, random_state=0), "whose fits are not a path"),
    ],
)
def test_other_estimators_are_fitted_as_they_are(estimator, reason):
    """With the results of GridSearchCV; the search says why nothing was shared."""
    X, y = few(problems.cancer)
    ours = ChicleSearchCV(estimator, {}, cv=3).fit(X, y)
    assert_same(ours, GridSearchCV(estimator, {}, cv=3).fit(X, y), len(y))
    assert len(ours.sharing_) == 1
    assert ours.sharing_[0].startswith("3 fits share nothing: ")
    assert reason in ours.sharing_[0]


@pytest.mark.parametrize("form", [lambda X: X.astype(np.float16), sparse.csr_matrix])
def test_one_softmax_of_all_classes_shares_along_C(form):
    """Beside one-vs-rest, with weights, words as labels, and a split that lacks a class; and it goes on from C to C."""
    X, y = problems.digits()
    X, y = X[y < 3][:300] / 16, np.array(["a", "b", "c"])[y[y < 3][:300]]
    weights = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    cv = [(np.arange(0, 200), np.arange(200, 300)), (np.flatnonzero(y != "b"), np.arange(0, 100))]
    grid = {"C": CS, "multi_class": ["multinomial", "ovr"], "class_weight": [None, "balanced"]}
    ours = ChicleSearchCV(ChicleLogisticRegression(tol=TOL), grid, cv=cv).fit(form(X), y, sample_weight=weights)
    theirs = GridSearchCV(ChicleLogisticRegression(tol=TOL), grid, cv=cv).fit(form(X), y, sample_weight=weights)
    assert_same(ours, theirs, len(y))
    assert ours.sharing_ == (
        "24 fits of ChicleLogisticRegression on 2 splits share one copy of the rows, and their path along C",
    )
    np.testing.assert_allclose(ours.best_estimator_.coef_, theirs.best_estimator_.coef_)


def test_a_softmax_of_many_values_takes_the_threads_for_one_fold_after_the_other(monkeypatch):
    """Each fold has a state as large as second derivatives; the scores are the same, and models that are scored go."""
    for module in (plan, local):
        monkeypatch.setattr(module, "MOST_CACHED_VALUES", 2000)
    X, y = problems.digits()
    X, y = X[:300] / 16, y[:300]
    jobs, models, fewest = [], [], []

    def score(estimator, X, y):
        if len(models) < 6:  # without the refit
            models.append(weakref.ref(estimator.coef_))
            fewest.append(sum(model() is not None for model in models))
        return estimator.score(X, y)

    def fitted(work, stop, run=ClassifierWork.run):
        jobs.append((threading.current_thread(), work.num_threads))
        run(work, stop)

    monkeypatch.setattr(ClassifierWork, "run", fitted)
    grid = {"C": CS[1:]}
    ours = ChicleSearchCV(ChicleLogisticRegression(tol=TOL), grid, cv=3, n_jobs=2, scoring=score).fit(X, y)
    assert jobs == [(threading.current_thread(), 2)] * 3
    assert max(fewest) <= 2
    assert_same(ours, GridSearchCV(ChicleLogisticRegression(tol=TOL), grid, cv=3).fit(X, y), len(y))
    for other in ({"n_threads": 1}, {"multi_class": "ovr"}):
        jobs.clear()
        ChicleSearchCV(ChicleLogisticRegression(**other), grid, cv=2, n_jobs=2, refit=False).fit(X, y)
        assert all(thread is not threading.current_thread() for thread, _ in jobs)


def test_penalties_that_differ_by_rounding_do_no_harm_to_the_next():
    """Going on as from the stage before would lead as far as the ratio of two logarithms."""
    X, y = make_classification(300, 10, n_informative=6, n_classes=3, random_state=0)
    scores = [
        ChicleSearchCV(ChicleLogisticRegression(multi_class="multinomial"), {"C": C}, cv=3).fit(X, y).cv_results_
        for C in ([0.1, 0.3, 0.1 * 3, 10.0], [10.0])
    ]
    np.testing.assert_allclose(scores[0]["mean_test_score"][-1], scores[1]["mean_test_score"][0])


def test_a_fit_with_callbacks_is_a_fit_of_its_own():
    """Callbacks of the estimator are told of each, as in GridSearchCV."""
    pytest.importorskip("sklearn.callback")
    from tests.estimators.test_callbacks import OtherData

    X, y = few(problems.cancer)
    recorder = OtherData({})
    search = ChicleSearchCV(ChicleSVM(C=0.01).set_callbacks(recorder), {"C": CS}, cv=2, refit=False).fit(X, y)
    assert "callbacks" in search.sharing_[0]
    assert recorder.hooks


def test_halving_stops_losers_at_a_loose_gap():
    """All candidates at 0.01, a third of them at 0.001; the winner is that of all fits to the end."""
    X, y = few(problems.cancer)
    grid = {"C": np.logspace(-6, -2, 9)}
    estimator = ChicleLogisticRegression()
    search = ChicleSearchCV(estimator, grid, cv=3, factor=3).fit(X, y)
    assert search.cv_results_["iter"].tolist() == [0] * 9 + [1] * 3
    assert search.cv_results_["param_tol"].tolist() == [0.01] * 9 + [0.001] * 3
    full = ChicleSearchCV(estimator, grid, cv=3).fit(X, y)
    assert search.best_params_ == {**full.best_params_, "tol": 0.001}
    assert search.best_index_ >= 9
    assert search.best_estimator_.duality_gap_ <= 1e-3
    assert sum(line.startswith("27 fits") for line in search.sharing_) == 1


@pytest.mark.parametrize("n_jobs", [2, 7, -1])
def test_threads_that_would_be_idle_cut_a_path(n_jobs):
    """Three folds on two threads and on seven; the scores are the same within tol."""
    X, y = few(problems.cancer)
    estimator = ChicleLogisticRegression(tol=TOL)
    ours = ChicleSearchCV(estimator, {"C": [*CS, 1.0]}, cv=3, n_jobs=n_jobs).fit(X, y)
    assert_same(ours, GridSearchCV(estimator, {"C": [*CS, 1.0]}, cv=3).fit(X, y), len(y))


def test_a_path_is_cut_into_parts_that_take_as_long():
    """Fits take longer the larger C is, and twice as long at the beginning of a part."""
    assert cut_path(8, 1) == []
    assert cut_path(8, 2) == [6]
    assert cut_path(8, 3) == [5, 7]
    assert cut_path(1, 4) == []
    cuts = [0, *cut_path(500, 8), 500]
    costs = [sum(range(a + 1, b + 1)) + (a + 1) * (a > 0) for a, b in itertools.pairwise(cuts)]
    assert max(costs) <= 1.05 * sum(costs) / 8


def test_rungs_of_halving():
    """A tenth of tol from rung to rung, until no more than `factor` candidates are left."""
    assert rungs(1, 3, 1e-3) == [1e-3]
    assert rungs(8, 3, 1e-3) == pytest.approx([1e-2, 1e-3])
    assert rungs(27, 3, 1e-3) == pytest.approx([0.1, 1e-2, 1e-3])
    assert rungs(100, 3, 1e-3) == pytest.approx([0.1, 0.1, 0.1, 1e-2, 1e-3])
    assert rungs(8, 2, 0.5) == pytest.approx([0.5, 0.5, 0.5])


def test_the_search_clones_pickles_and_keeps_names():
    """As an estimator of scikit-learn; data frames keep the names of their columns."""
    pandas = pytest.importorskip("pandas")
    X, y = few(problems.cancer)
    frame = pandas.DataFrame(X, columns=[f"c{number}" for number in range(X.shape[1])])
    search = clone(ChicleSearchCV(ChicleSVM(), {"C": CS}, cv=3)).fit(frame, y)
    assert search.feature_names_in_[1] == "c1"
    again = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(again.decision_function(frame), search.decision_function(frame))
    assert "factor" in search.get_params()
    assert "pre_dispatch" not in search.get_params()


def test_scikit_learns_own_searches_share_in_the_backend():
    """By its name; what they find is what they find without it."""
    X, y = few(problems.cancer)
    estimator = ChicleLogisticRegression(tol=TOL)
    plain = GridSearchCV(estimator, {"C": CS}, cv=3).fit(X, y)
    drawn = RandomizedSearchCV(estimator, {"C": CS}, n_iter=2, cv=3, random_state=0)
    expected = clone(drawn).fit(X, y)
    with parallel_config("chicle", n_jobs=2):
        assert_same(GridSearchCV(estimator, {"C": CS}, cv=3).fit(X, y), plain, len(y))
        assert_same(drawn.fit(X, y), expected, len(y))
        scores = cross_val_score(estimator, X, y, cv=4)
        found = cross_validate(estimator, X, y, cv=2, return_estimator=True)
    np.testing.assert_allclose(scores, cross_val_score(estimator, X, y, cv=4), atol=ROWS / len(y))
    assert all(hasattr(each, "history_") for each in found["estimator"]), "these were asked for, and are whole"


def test_a_search_within_a_search():
    """Nested cross-validation: the outer tasks run as they are, and each inner search shares."""
    X, y = few(problems.cancer)
    search = ChicleSearchCV(ChicleSVM(), {"C": CS}, cv=2)
    with parallel_config("chicle"):
        scores = cross_val_score(search, X, y, cv=2)
    assert scores.min() > 0.9


def test_the_backend_runs_what_is_no_fit():
    """Any function, one that raises, and batches of several."""
    with parallel_config("chicle", n_jobs=2):
        assert Parallel()(delayed(pow)(number, 2) for number in range(50)) == [number**2 for number in range(50)]
        assert Parallel(batch_size=7)(delayed(abs)(-number) for number in range(20)) == list(range(20))
        with pytest.raises(ZeroDivisionError):
            Parallel()(delayed(divmod)(1, number) for number in (1, 0))
        assert Parallel(n_jobs=1)(delayed(abs)(-1) for _ in range(2)) == [1, 1]


def test_ctrl_c_leaves_nothing_running():
    """It comes out of fit, and the threads of the search have ended; the next one is whole."""
    X, y = few(problems.cancer)
    before = threading.active_count()

    def interrupt(estimator, X, y):
        raise KeyboardInterrupt

    search = ChicleSearchCV(ChicleSVM(tol=1e-9), {"C": [*CS, 10.0]}, scoring=interrupt, cv=5, n_jobs=2)
    with pytest.raises(KeyboardInterrupt):
        search.fit(X, y)
    assert threading.active_count() == before
    assert search.set_params(scoring=None).fit(X, y).best_score_ > 0.9
