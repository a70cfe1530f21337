"""l1 penalties of the classifiers: scikit-learn's objectives, gaps that NumPy finds again, folders and bad input."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from benchmarks.real import load_real, missing
from benchmarks.shapes import tfidf_text
from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleLogisticRegression, ChicleSVM
from tests.estimators import problems

ROUNDING = 1e-11


def logistic(**params):
    """With an l1 penalty alone, unless it is told otherwise."""
    return ChicleLogisticRegression(**{"l1_ratio": 1.0, "tol": 1e-6} | params)


def svm(**params):
    """With an l1 penalty."""
    return ChicleSVM(**{"penalty": "l1", "loss": "squared_hinge", "tol": 1e-6} | params)


KINDS = pytest.mark.parametrize("kind", [logistic, svm])


def recomputed(model, X, y, weights=None):
    """P, and a feasible D, of each output: from X, y, coef_ and intercept_ alone; each of shape (outputs,)."""
    X = X.toarray() if sparse.issparse(X) else np.asarray(X, dtype=np.float64)
    upper = model.C * (np.ones(len(y)) if weights is None else weights)
    is_svm = isinstance(model, ChicleSVM)
    l1 = 1.0 if is_svm else model.l1_ratio
    primal, dual = [], []
    for k, label in enumerate(model.classes_[1:] if len(model.classes_) == 2 else model.classes_):
        is_mine, w, b = y == label, model.coef_[k], model.intercept_[k]
        signs = np.where(is_mine, 1.0, -1.0)
        margins = signs * (X @ w + b)
        penalty = l1 * np.abs(w).sum() + 0.5 * (1 - l1) * w @ w
        if is_svm:
            alpha = 2.0 * upper * np.maximum(1.0 - margins, 0.0)
            losses, columns = upper @ np.maximum(1.0 - margins, 0.0) ** 2, X
            if model.fit_intercept:  # one more column, penalised like the others
                columns = np.column_stack([X, np.full(len(X), model.intercept_scaling)])
                penalty += abs(b) / model.intercept_scaling
        else:
            alpha, losses, columns = upper * np.exp(-np.logaddexp(0.0, margins)), upper @ np.logaddexp(0.0, -margins), X
            if model.fit_intercept:  # free: the duals of both classes have to add up to the same
                sums = alpha[is_mine].sum(), alpha[~is_mine].sum()
                alpha *= np.where(is_mine, min(1.0, sums[1] / sums[0]), min(1.0, sums[0] / sums[1]))
        v, found = columns.T @ (signs * alpha), [0.0]
        feasible = min(1.0, l1 / max(np.abs(v).max(), 1e-300))
        steep = min(1.0, l1 / max(np.abs(v[: len(w)] - (1 - l1) * w).max(), 1e-300))
        for factor in {feasible, steep, 1.0} if l1 < 1 else {feasible}:
            a, positive = (factor * alpha)[upper > 0], upper[upper > 0]
            if is_svm:
                values = a - a**2 / (4.0 * positive)
            else:
                share = a / positive
                inside = np.where(share > 0, share, 1.0)
                values = -positive * (share * np.log(inside) + (1 - share) * np.log1p(-share))
            excess = np.maximum(factor * np.abs(v) - l1, 0.0)
            found.append(values.sum() - (0.5 * excess @ excess / (1 - l1) if l1 < 1 else 0.0))
        primal.append(losses + penalty)
        dual.append(max(found))
    return np.array(primal), np.array(dual)


def require_certified(model, X, y, weights=None, tol=1e-6):
    """The certificate is what NumPy finds, and within tol."""
    primal, dual = recomputed(model, X, y, weights)
    np.testing.assert_allclose(model.objective_, primal, rtol=1e-9)
    np.testing.assert_allclose(model.dual_objective_, dual, rtol=1e-6)
    assert model.duality_gap_ == pytest.approx(((primal - dual) / primal).max(), abs=1e-9)
    assert model.duality_gap_ <= tol


def least(kind, X, codes):
    """The least C that leaves a weight, for two classes."""
    if kind is svm:
        signs = np.where(codes, 1.0, -1.0)
        return 0.5 / max(np.abs(X.T @ signs).max(), abs(signs.sum()))
    return 1.0 / np.abs(X.T @ (codes - codes.mean())).max()


def real(name):
    """The first rows of a real data set, of digits the ones against the rest."""
    if missing(name, problems.SHARED_DATA):
        pytest.skip(f"the data set {name} is not beside the checkout (../shared/data)")
    data = load_real(name, problems.SHARED_DATA, quick=True)
    return data.X, (data.y == 1).astype(np.int64)


def text():
    """TF-IDF of 600 made-up documents, the words that at least 4 of them have: more columns than a message takes."""
    X, y = tfidf_text(600)
    return X[:, np.flatnonzero(np.bincount(X.indices, minlength=X.shape[1]) >= 4)], y


SETS = {
    "cancer": (problems.cancer, 2, 256),
    "digits": (lambda: real("digits"), 8, 256),
    "a9a": (lambda: real("a9a"), 8, 256),
    "HIGGS": (lambda: real("higgs-real"), 3, 8),
    "Fashion-MNIST": (lambda: real("fashion"), 64, 512),
    "text": (text, 32, 256),
}
"""What makes each set, and multiples of the least C: those that leave about a tenth and half of the weights, or as many
as a larger C would leave where that are fewer."""
EVERYDAY = {("cancer", 1), ("cancer", 2), ("text", 1)}
"""Sets and places of multiples that take little time."""


def theirs(kind, X, y, C):
    """The least objective that solvers of scikit-learn find, and theirs within a thousandth of it."""
    reached = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if kind is svm:
            models = [LinearSVC(penalty="l1", dual=False, C=C, tol=1e-6, max_iter=3000, random_state=0)]
        else:  # liblinear penalises the intercept, by as little as a large constant column
            params = {"C": C, "l1_ratio": 1.0, "tol": 1e-6, "random_state": 0, "max_iter": 500}
            if LogisticRegression().l1_ratio is None:  # before scikit-learn 1.8
                params |= {"penalty": "l1"}
            models = [LogisticRegression(solver="liblinear", intercept_scaling=1e3, **params)]
            if X.shape[0] * X.shape[1] < 50_000:
                models.append(LogisticRegression(solver="saga", **params | {"max_iter": 3000}))
        for model in models:
            ours = clone(kind(C=C))
            model.fit(X, y)
            ours.coef_, ours.intercept_, ours.classes_ = model.coef_, np.ravel(model.intercept_), model.classes_
            reached.append(float(recomputed(ours, X, y)[0][0]))
    return min(reached)


@KINDS
@pytest.mark.parametrize(
    ("name", "which"),
    [
        pytest.param(name, which, marks=[] if (name, which) in EVERYDAY else pytest.mark.slow)
        for name in SETS
        for which in (1, 2)
    ],
)
def test_the_objective_is_that_of_scikit_learn_within_the_gap(name, which, kind):
    """On six data sets, and the dual objective is not above theirs; the certificate is that of NumPy."""
    X, y = SETS[name][0]()
    C = SETS[name][which] * least(kind, X, y)
    model = kind(C=C).fit(X, y)
    require_certified(model, X, y)
    assert 0 < model.sparse_coef_.nnz < X.shape[1]
    best = theirs(kind, X, y, C)
    assert model.objective_[0] <= best * (1 + model.duality_gap_ + ROUNDING)
    assert model.dual_objective_[0] <= best * (1 + ROUNDING)
    assert best <= model.objective_[0] * 1.02  # which is to say that it is the same function


@KINDS
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, lambda X: X.astype(np.float32)])
def test_weights_of_samples_and_classes_are_factors_of_C(kind, form):
    """A sample of weight 0 changes nothing; with labels that are words, and without an intercept."""
    X, y = problems.cancer()
    rows, labels = form(X), np.array(["no", "yes"])[y]
    X = sparse.csr_matrix(rows).toarray().astype(np.float64)
    weights = np.random.default_rng(0).uniform(0, 2, size=len(y)) * (np.arange(len(y)) % 5 > 0)
    for fit_intercept in (True, False):
        model = kind(C=0.3, fit_intercept=fit_intercept).fit(rows, labels, weights)
        require_certified(model, X, labels, weights)
        kept = weights > 0
        part = kind(C=0.3, fit_intercept=fit_intercept).fit(rows[kept], labels[kept], weights[kept])
        np.testing.assert_allclose(part.coef_, model.coef_, atol=1e-6)
    weighted = kind(C=0.3, class_weight={"no": 2.0, "yes": 0.5}).fit(rows, labels)
    require_certified(weighted, X, labels, np.where(y, 0.5, 2.0))


@pytest.mark.parametrize("l1_ratio", [1e-6, 0.01, 0.5, 0.99])
def test_an_elastic_net_has_both_penalties(l1_ratio):
    """Of the weights and not of the intercept; the fewer l1, the closer to the l2 penalty of scikit-learn."""
    X, y = problems.cancer()
    model = logistic(C=0.3, l1_ratio=l1_ratio).fit(X + 2.0, y)
    require_certified(model, X + 2.0, y)
    if l1_ratio == 1e-6:
        other = LogisticRegression(C=0.3, tol=1e-10, max_iter=10_000).fit(X + 2.0, y)
        np.testing.assert_allclose(model.coef_, other.coef_, atol=2e-3)


@pytest.mark.parametrize("l1_ratio", [0.0, 0.15, 0.8, 1.0])
def test_an_elastic_net_of_the_squared_hinge(l1_ratio):
    """Between the two penalties of LinearSVC, at the optimum of proximal gradient steps; the intercept is penalised."""
    X, y = problems.cancer()
    model = svm(penalty="elasticnet", l1_ratio=l1_ratio, C=0.05).fit(X, y)
    rows, signs = np.column_stack([X, np.ones(len(y))]), np.where(y == 1, 1.0, -1.0)

    def objective(w):
        losses = 0.05 * (np.maximum(1.0 - signs * (rows @ w), 0.0) ** 2).sum()
        return losses + l1_ratio * np.abs(w).sum() + 0.5 * (1 - l1_ratio) * w @ w

    w, step = np.zeros(rows.shape[1]), 1.0 / (0.1 * np.linalg.norm(rows, 2) ** 2 + 1.0)
    for _ in range(3000):
        slopes = 0.1 * rows.T @ (signs * np.maximum(1.0 - signs * (rows @ w), 0.0)) - (1 - l1_ratio) * w
        ahead = w + step * slopes
        w = np.sign(ahead) * np.maximum(np.abs(ahead) - step * l1_ratio, 0.0)
    assert model.objective_[0] == pytest.approx(objective(np.append(model.coef_[0], model.intercept_)), rel=1e-12)
    assert model.objective_[0] <= objective(w) * (1 + 2e-6)
    assert model.duality_gap_ <= 1e-6


def test_an_elastic_net_has_no_linear_svc():
    """Which says what to do instead."""
    X, y = problems.cancer()
    with pytest.raises(UsageError, match=r"'penalty' parameter of LinearSVC .* 'elasticnet'"):
        svm(penalty="elasticnet").fit(X, y).to_linear_svc()
    with pytest.raises(UsageError, match=r"'loss' parameter of LinearSVC .* 'modified_huber'"):
        svm(loss="modified_huber").fit(X, y).to_linear_svc()
    with pytest.raises(UsageError, match="penalty='elasticnet' needs loss='squared_hinge'"):
        ChicleSVM(penalty="elasticnet").fit(X, y)


@KINDS
def test_a_small_c_leaves_the_intercept_alone(kind):
    """The best one there is, of a loss that does not penalise it: the logarithm of the odds; below the least C only."""
    X, y = problems.cancer()
    C = least(kind, X, y)
    for factor in (1e-6, 0.999):
        model = kind(C=factor * C).fit(X, y)
        assert not model.coef_.any()
        if kind is logistic:
            assert model.intercept_[0] == pytest.approx(np.log(y.mean() / (1 - y.mean())), rel=1e-14)
        assert abs(model.duality_gap_) <= 1e-14
        assert model.n_iter_ == 2
    assert kind(C=1.001 * C).fit(X, y).sparse_coef_.nnz + (kind is svm) >= 1


def test_an_intercept_that_is_not_penalised_moves_with_the_features():
    """By a constant that is added to all of them; what `intercept_scaling` is makes no difference."""
    X, y = problems.cancer()
    one = logistic(C=0.5, tol=1e-8).fit(X, y)
    other = logistic(C=0.5, tol=1e-8, intercept_scaling=7.0).fit(X + 4.0, y)
    np.testing.assert_allclose(other.coef_, one.coef_, atol=1e-7)
    assert other.intercept_[0] == pytest.approx(one.intercept_[0] - 4.0 * one.coef_.sum(), rel=1e-6)


@KINDS
def test_a_warm_start_goes_on_from_the_last_weights(kind):
    """Along a path of C, to the same objectives in fewer iterations; other features or classes begin anew."""
    X, y = problems.cancer()
    warm, num_cold, num_warm = kind(warm_start=True), 0, 0
    for C in (0.02, 0.03, 0.05, 0.08):
        cold = kind(C=C).fit(X, y)
        warm.set_params(C=C).fit(X, y)
        np.testing.assert_allclose(warm.objective_, cold.objective_, rtol=1e-6)
        num_cold, num_warm = num_cold + cold.n_iter_, num_warm + warm.n_iter_
    assert num_warm < num_cold
    assert warm.fit(X, y).n_iter_ == 2
    assert warm.fit(X, y + 1).n_iter_ == cold.n_iter_
    assert warm.fit(X[:, :20], y).coef_.shape == (1, 20)
    assert warm.fit(*load_iris(return_X_y=True)).coef_.shape == (3, 4)


def test_an_l2_fit_and_an_l1_fit_follow_each_other_with_a_warm_start():
    """Weights go over to the l1 penalty; duals of the l2 penalty do not come from it."""
    X, y = problems.cancer()
    model = ChicleLogisticRegression(C=0.1, warm_start=True, tol=1e-6)
    for l1_ratio in (0.0, 1.0, 0.0):
        model.set_params(l1_ratio=l1_ratio).fit(X, y)
        expected = ChicleLogisticRegression(C=0.1, l1_ratio=l1_ratio, tol=1e-6).fit(X, y)
        np.testing.assert_allclose(model.objective_, expected.objective_, rtol=2e-6)


def test_the_method_is_said_for_each_shape_of_the_data():
    """In words, with what decides it."""
    X, y = problems.cancer()
    assert "on chunks, because products of 31 columns and 1 output cost little" in logistic().fit(X, y).history_.method
    wide = problems.widened(X, 3000)
    assert "on the columns of one task, because" in svm(C=0.1).fit(wide, y).history_.method
    several = svm(C=0.1, runtime=InProcess(num_tasks=2)).fit(wide, y)
    assert "with a working set of columns, because products of 3031 columns" in several.history_.method
    assert "do not fit into a message" in several.history_.method
    large = problems.widened(np.tile(X, (400, 1)), 90)
    assert "would take long" in logistic(C=1e-4, tol=1e-2).fit(large, np.tile(y, 400)).history_.method


# Bad input.


@KINDS
def test_a_fit_that_is_cut_short_warns_and_its_gap_is_true(kind):
    """After every number of iterations; the first ones have looked at the data, and certify nothing but 0."""
    X, y = problems.cancer()
    for max_iter in (1, 2, 3, 4, 6):
        with pytest.warns(ConvergenceWarning, match=rf"after max_iter={max_iter} iterations the relative duality gap"):
            model = kind(max_iter=max_iter).fit(X, y)
        primal, dual = recomputed(model, X, y)
        np.testing.assert_allclose(model.objective_, primal, rtol=1e-9)
        assert 1e-6 < 1 - dual[0] / primal[0] <= model.duality_gap_ + 1e-12
        assert model.dual_objective_[0] >= 0


def test_more_weights_than_a_working_set_takes_are_found_by_one_task(monkeypatch):
    """And several tasks, which take them in turns, say that one will do when they have not converged."""
    rng = np.random.default_rng(0)
    X = sparse.random(400, 3000, density=0.02, random_state=0, format="csr")
    y = (X @ rng.normal(size=3000) > 0).astype(np.int64)
    monkeypatch.setattr("chicle_elastic.solvers.linear.methods.MOST_COLUMNS", 129)
    model = svm(C=30.0, tol=1e-4).fit(X, y)
    require_certified(model, X, y, tol=1e-4)
    assert model.sparse_coef_.nnz > 129
    with pytest.warns(ConvergenceWarning, match=r"on 2 tasks .* use fewer tasks"):
        svm(C=30.0, max_iter=20, runtime=InProcess(num_tasks=2)).fit(X, y)
