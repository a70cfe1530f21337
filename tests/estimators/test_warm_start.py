"""A warm start goes on from the last fit: from duals of the same data, or from weights of the same columns."""

import pickle
import zlib

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris

from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.linear.rows import NewtonRows
from estimators import ChicleLogisticRegression, ChicleSVM
from tests.estimators import problems
from tests.estimators.reference_fits import require_certified

L2 = [ChicleSVM(C=0.05), ChicleSVM(C=0.05, loss="squared_hinge"), ChicleLogisticRegression(C=0.05)]
L1 = [
    ChicleSVM(C=0.02, loss="squared_hinge", penalty="l1", tol=1e-6),
    ChicleLogisticRegression(C=0.02, l1_ratio=1.0, tol=1e-6),
]
MODELS = [*L2, ChicleLogisticRegression(C=0.05, multi_class="ovr"), *L1]


def warm(model, **params):
    """Return an estimator that starts warm."""
    return clone(model).set_params(warm_start=True, random_state=0, max_iter=5000, **params)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_path_of_c_goes_on_from_the_last_fit(model, form):
    """To the same objectives in fewer iterations than cold fits; a copy of the data has nothing left to do.

    An iteration of the hinge has many passes over small data, so that cold fits take one each.
    """
    X, y = problems.digits()
    X, y = form(X[:200, 18:38]), y[:200] % 3
    going, num_cold, num_warm = warm(model), 0, 0
    for C in (0.02, 0.03, 0.05, 0.08):
        cold = clone(model).set_params(C=C, random_state=0, max_iter=5000).fit(X, y)
        going.set_params(C=C).fit(X.copy(), y.copy())
        np.testing.assert_allclose(going.objective_, cold.objective_, rtol=2 * model.tol)
        num_cold, num_warm = num_cold + cold.n_iter_, num_warm + going.n_iter_
    require_certified(going, X, y)
    assert num_warm <= num_cold + (type(model) is ChicleSVM and model.loss == "hinge")
    assert going.fit(X, y).n_iter_ <= 2


@pytest.mark.parametrize("Cs", [np.logspace(-3.0, 1.0, 7), np.logspace(1.0, -3.0, 7)], ids=["up", "down"])
@pytest.mark.parametrize("model", L2[1:], ids=str)
def test_a_long_path_takes_no_more_iterations(model, Cs):
    """Fewer while C grows, but for passes over small data, of which an iteration has many; objectives are the same."""
    X, y = problems.digits()
    iterations, objectives = {}, {}
    for is_warm in (False, True):
        going = clone(model).set_params(warm_start=is_warm, random_state=0)
        fits = [(going.set_params(C=C).fit(X, y).n_iter_, going.objective_) for C in Cs]
        iterations[is_warm] = sum(number for number, _ in fits)
        objectives[is_warm] = [objective for _, objective in fits]
    np.testing.assert_allclose(objectives[True], objectives[False], rtol=3e-3)
    more = len(Cs) if isinstance(model, ChicleSVM) else -int(Cs[0] < Cs[1])
    assert iterations[True] <= iterations[False] + more


@pytest.mark.parametrize("C", [0.001, 5.0])
@pytest.mark.parametrize("model", L2, ids=str)
def test_c_weights_and_loss_may_change_in_between(model, C):
    """The duals are carried into the new box: still feasible, and the certificate is true."""
    X, y = problems.cancer()
    going = warm(model, store_duals=True).fit(X, y)
    weights = np.random.default_rng(0).uniform(0.1, 3.0, size=len(y))
    going.set_params(C=C).fit(X, y, weights)
    gaps = problems.recomputed_gaps(going, X, y, weights)
    assert going.duality_gap_ == pytest.approx(gaps.max(), rel=1e-6)
    assert gaps.max() <= 1e-3
    if isinstance(model, ChicleSVM):
        going.set_params(loss="hinge", tol=1e-4).fit(X, y)
        assert problems.recomputed_gaps(going, X, y)[0] <= 1e-4


def test_a_fit_that_is_nearly_there_gets_there():
    """Passes estimated gaps of some classes below tol that were above it, and Newton steps left these classes alone."""
    X, y = problems.digits()
    model = warm(L2[0]).fit(X, y)
    model.set_params(tol=1e-4).fit(X, y)
    for _ in range(3):
        assert model.fit(X, y).n_iter_ < 20
        assert model.duality_gap_ <= 1e-4


@pytest.mark.parametrize(
    "change",
    [
        lambda X, y: (X + 1e-9, y),
        lambda X, y: (X, 1 - y),
        lambda X, y: (X, np.array(["a", "b"])[y]),
        lambda X, y: (X[:-1], y[:-1]),
        lambda X, y: (X[:, :-1], y),
        lambda X, y: (X.astype(np.float32), y),
        lambda X, y: (X[::-1], y[::-1]),
    ],
    ids=["one digit", "swapped labels", "other labels", "a row less", "a column less", "dtype", "order"],
)
def test_duals_of_other_data_are_left_out(change):
    """The model is the same, bit by bit, as of an estimator that has seen nothing before."""
    X, y = problems.cancer()
    other = change(X, y)
    model = warm(L2[0]).fit(X, y).fit(*other)
    np.testing.assert_array_equal(model.coef_, warm(L2[0]).fit(*other).coef_)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("model", L2[:2], ids=str)
def test_rows_that_are_added_leave_the_others_their_duals(model, form):
    """Rows without weight change nothing: the first certificate will do. With weight, the gap is that of the whole."""
    X, y = problems.cancer()
    n = 500
    going = warm(model, runtime=InProcess(num_tasks=3)).fit(form(X[:n]), y[:n])
    w = going.coef_
    going.fit(form(X), y, (np.arange(len(y)) < n) * 1.0)
    assert going.n_iter_ == 1
    np.testing.assert_allclose(going.coef_, w, rtol=1e-9, atol=1e-12)
    going = warm(model).fit(form(X[:n]), y[:n]).fit(form(X), y)
    require_certified(going, X, y)


@pytest.mark.parametrize("runtime", [None, InProcess(num_tasks=3)], ids=str)
@pytest.mark.parametrize("num_classes", [2, 10])
def test_rows_that_are_added_cost_no_second_derivatives(num_classes, runtime, monkeypatch):
    """The preconditioner of the last fit does for the first steps; it is not that of another C, and in no pickle."""
    X, y = problems.digits()
    X = np.cos(X @ np.random.default_rng(0).normal(scale=0.1, size=(64, 600)))
    y, n, sums, add_products = y % num_classes, 1600, [], NewtonRows.add_products
    monkeypatch.setattr(
        NewtonRows, "add_products", lambda *args, **how: sums.append(args) or add_products(*args, **how)
    )
    going = warm(ChicleLogisticRegression(C=0.01, runtime=runtime)).fit(X[:n], y[:n])
    assert sums
    sums.clear()
    going.fit(X, y)
    assert not sums
    assert going.duality_gap_ <= going.tol
    assert len(pickle.dumps(going)) < 2 * going.coef_.nbytes + 60_000
    going.set_params(C=0.02).fit(X, y)
    assert sums
    expected = clone(going).fit(X, y)
    np.testing.assert_allclose(going.objective_, expected.objective_, rtol=going.tol)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_a_warm_start_reads_each_byte_once_to_know_the_rows(form, monkeypatch):
    """The checksum of the first rows goes on over those that were added, for the next fit."""
    X, y = problems.cancer()
    X, n, read, crc32 = form(X), 500, [], zlib.crc32
    going = warm(L2[0]).fit(X[:n], y[:n])
    monkeypatch.setattr(zlib, "crc32", lambda data, before=0: read.append(len(data)) or crc32(data, before))
    going.fit(X, y)
    parts = [X.indptr, X.indices, X.data] if sparse.issparse(X) else [X]
    assert sum(read) == sum(part.nbytes for part in parts) + 4 * len(y)
    read.clear()
    assert going.fit(X, y).n_iter_ == 1
    assert sum(read) == sum(part.nbytes for part in parts) + 4 * len(y)


@pytest.mark.parametrize("model", L2, ids=str)
def test_a_class_among_added_rows_starts_afresh(model):
    """The model is the same, bit by bit, as of an estimator that has seen nothing before."""
    X, y = problems.digits()
    y = np.minimum(y, 2)
    order = np.argsort(y, kind="stable")
    X, y, n = X[order], y[order], np.count_nonzero(y < 2)
    going = warm(model).fit(X[:n], y[:n]).fit(X, y)
    np.testing.assert_array_equal(going.coef_, warm(model).fit(X, y).coef_)


@pytest.mark.parametrize("model", L1, ids=str)
def test_weights_of_other_columns_or_classes_are_left_out(model):
    """And those of other labels; a fit needs as many iterations as a cold one."""
    X, y = problems.cancer()
    cold = clone(model).fit(X, y)
    going = warm(model).fit(X, y)
    assert going.fit(X, y + 1).n_iter_ == cold.n_iter_
    assert going.fit(X[:, :20], y).coef_.shape == (1, 20)
    assert going.fit(*load_iris(return_X_y=True)).coef_.shape == (3, 4)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"multi_class": "ovr"}, {}),
        ({"l1_ratio": 1.0}, {}),
        ({}, {"multi_class": "ovr"}),
        ({}, {"l1_ratio": 1.0}),
        ({"fit_intercept": False}, {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("num_classes", [2, 3])
def test_another_kind_of_model_is_no_harm(before, after, num_classes):
    """What was a softmax, had another penalty or no intercept is taken up where it helps, or left out."""
    X, y = load_iris(return_X_y=True)
    X, y = X[y < num_classes] + 1.0, y[y < num_classes]
    model = ChicleLogisticRegression(C=0.1, warm_start=True, tol=1e-6)
    usual = model.get_params()
    model.set_params(**before).fit(X, y)
    model.set_params(**usual).set_params(**after).fit(X, y)
    expected = ChicleLogisticRegression(C=0.1, tol=1e-6, **after).fit(X, y)
    assert model.duality_gap_ <= 1e-6
    np.testing.assert_allclose(model.objective_, expected.objective_, rtol=2e-6)


def test_a_warm_start_works_with_several_tasks():
    """Rows are shuffled there; the duals find theirs by global row number."""
    X, y = problems.cancer()
    model = warm(L2[0], runtime=InProcess(num_tasks=3), store_duals=True).fit(X, y)
    cold = model.n_iter_
    assert model.set_params(random_state=7).fit(X, y).n_iter_ <= cold / 4
    assert problems.recomputed_gaps(model, X, y)[0] <= 1e-3


def test_without_warm_start_nothing_is_kept():
    """A second fit is the first one again; pickles and clones start afresh: duals are as long as the training set."""
    X, y = problems.digits()
    model = warm(L2[0]).fit(X, y)
    cold = model.n_iter_
    assert len(pickle.dumps(model)) < model.coef_.nbytes + 60_000
    assert pickle.loads(pickle.dumps(model)).fit(X, y).n_iter_ == clone(model).fit(X, y).n_iter_ == cold
    assert model.fit(X, y).n_iter_ < cold
    assert model.set_params(warm_start=False).fit(X, y).n_iter_ == cold
    assert not hasattr(model, "_kept_duals")


def test_little_data_has_several_passes_in_an_iteration_when_it_is_warm_too():
    """An update of several passes has no room for a preconditioner, which costs little there."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 64))
    y = np.argmax(X @ rng.normal(size=(64, 10)) + rng.normal(size=(300, 10)), axis=1)
    model = ChicleLogisticRegression(warm_start=True, tol=1e-8).fit(X[:270], y[:270])
    num_cold = model.n_iter_
    assert model.fit(X, y).n_iter_ < 0.9 * num_cold
