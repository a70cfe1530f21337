"""The optimum is reached, on real data: no peer has a lower objective, and the certificate is true."""

import functools

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from estimators import ChicleLogisticRegression, ChicleSVM
from tests.estimators import problems

TOL = 1e-5
LOSSES = ["hinge", "squared_hinge", "logistic"]
CASES = [
    (data, C, loss)
    for data in (problems.cancer, problems.digits, problems.a9a)
    for C in ("100/n", 1e-2, 1)
    for loss in LOSSES
]

load = functools.cache(lambda data: data())


def ours(loss, C):
    """Our estimator, to be fitted to a gap of `TOL`."""
    params = {"C": C, "tol": TOL, "max_iter": 30_000, "random_state": 0, "n_threads": 1, "store_duals": True}
    if loss == "logistic":  # liblinear has no softmax
        return ChicleLogisticRegression(multi_class="ovr", **params)
    return ChicleSVM(loss=loss, **params)


def objectives_of(loss, C, model, X, y):
    """Objective of each output of any linear classifier."""
    bounds, scaling = C * np.ones(len(y)), np.inf if loss == "logistic" else 1.0
    return problems.objectives(loss, X, y, model.classes_, model.coef_, model.intercept_, bounds, scaling)


def peer_objectives(loss, C, X, y, classes):
    """Objective of scikit-learn's, output by output: liblinear's, of the hinge in the dual, or Newton's method."""
    if sparse.issparse(X):
        X = sparse.csr_matrix((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), shape=X.shape)
    params = {"C": C, "random_state": 0}
    if loss == "logistic":
        peer = LogisticRegression(solver="newton-cholesky", tol=1e-9, max_iter=1000, **params)
    elif loss == "hinge":
        peer = LinearSVC(loss="hinge", dual=True, tol=1e-4, max_iter=300 if len(y) > 10_000 else 5_000, **params)
    else:
        peer = LinearSVC(loss="squared_hinge", dual=False, tol=1e-9, **params)
    found = []
    for label in classes[1:] if len(classes) == 2 else classes:
        signs = np.where(y == label, 1, -1)
        peer.fit(X, signs)
        found.append(objectives_of(loss, C, peer, X, signs))
    return np.concatenate(found)


@pytest.mark.filterwarnings("ignore:Liblinear failed to converge")
@pytest.mark.parametrize(("data", "C", "loss"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_no_peer_has_a_lower_objective_and_the_gap_is_true(data, C, loss):
    """Dense and CSR: objective <= scikit-learn's (1 + 1e-5), and duality_gap_ is what NumPy computes from the duals."""
    X, y = load(data)
    C = 100 / len(y) if C == "100/n" else C
    dense = X.toarray() if sparse.issparse(X) else X
    peer = peer_objectives(loss, C, X, y, np.unique(y))
    for rows in (dense, X if sparse.issparse(X) else sparse.csr_matrix(X)):
        model = ours(loss, C).fit(rows, y)
        gaps = problems.recomputed_gaps(model, rows, y)
        assert gaps.max() <= TOL
        assert model.duality_gap_ == pytest.approx(gaps.max(), rel=1e-4, abs=1e-12)
        objectives = objectives_of(loss, C, model, dense, y)
        np.testing.assert_allclose(model.objective_, objectives, rtol=1e-12)
        np.testing.assert_allclose(model.dual_objective_, model.objective_ * (1 - gaps), rtol=1e-9)
        assert np.all(objectives <= peer * (1 + TOL))
        assert np.all(peer <= objectives * 1.05), "the peer minimises another function, or was stopped far too early"
