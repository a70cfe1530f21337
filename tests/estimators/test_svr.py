"""ChicleSVR: scikit-learn's objective within the certified gap, on rows of both kinds, in folders and files."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale
from sklearn.svm import LinearSVR
from sklearn.utils.estimator_checks import parametrize_with_checks

from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleSVR
from tests.estimators.test_ridge import diabetes, digits, wide

LOSSES = ("epsilon_insensitive", "squared_epsilon_insensitive")
ROUNDING = 1e-12


@parametrize_with_checks([ChicleSVR()])
def test_scikit_learns_checks_pass(estimator, check):
    """All of them, those of weights too."""
    check(estimator)


def objective(model, params, X, y, weights=None):
    """P of any fitted linear model, with the parameters of ours."""
    scaling = params.get("intercept_scaling", 1.0)
    excess = np.maximum(np.abs(y - X @ model.coef_ - model.intercept_) - params["epsilon"], 0.0)
    losses = excess**2 if params["loss"].startswith("squared") else excess
    weights = np.ones(len(y)) if weights is None else weights
    intercept = float(np.ravel(model.intercept_)[0]) / scaling
    return 0.5 * (model.coef_ @ model.coef_ + intercept**2) + params["C"] * float(weights @ losses)


def theirs(params, X, y, weights=None):
    """scikit-learn's objective, of dual coordinate descent that is given time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LinearSVR(**params, tol=1e-6, max_iter=20_000, random_state=0).fit(X, y, weights)
    return objective(model, params, X, y, weights)


@pytest.mark.parametrize(("form", "num_tasks"), [(np.asarray, 1), (sparse.csr_matrix, 3)])
@pytest.mark.parametrize(("C", "epsilon"), [(0.01, 0.7), (1.0, 0.0)])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("data", [diabetes, digits])
def test_the_objective_is_that_of_linear_svr_within_the_gap(data, loss, C, epsilon, form, num_tasks):
    """And the dual objective below it; weights included."""
    X, y = data()
    X = scale(X)
    weights = np.random.default_rng(0).uniform(0.0, 2.0, size=len(y))
    params = {"loss": loss, "C": C, "epsilon": epsilon, "intercept_scaling": 2.0}
    runtime = InProcess(num_tasks=num_tasks)
    model = ChicleSVR(**params, tol=1e-4, runtime=runtime, chunk_size=9_000).fit(form(X), y, weights)
    assert model.duality_gap_ <= 1e-4
    assert model.objective_ == pytest.approx(objective(model, params, X, y, weights), rel=1e-9)
    assert model.duality_gap_ == pytest.approx(1 - model.dual_objective_ / model.objective_, rel=1e-6, abs=ROUNDING)
    best = theirs(params, X, y, weights)
    assert model.dual_objective_ <= best * (1 + ROUNDING)
    assert model.objective_ <= best * (1 + model.duality_gap_ + ROUNDING)
    assert set(model.history_.column("num_tasks").tolist()) == {num_tasks}


def test_large_C_and_targets_on_the_edge_of_the_tube():
    """Whole numbers with epsilon 0.5: many residuals are at the corner at once, and steps have to be short."""
    X, y = digits()
    params = {"loss": "epsilon_insensitive", "C": 100.0, "epsilon": 0.5}
    model = ChicleSVR(**params).fit((X - 3.0) / 16, y)
    assert model.duality_gap_ <= 1e-3
    assert model.n_iter_ < 300


@pytest.mark.parametrize("num_tasks", [1, 2])
@pytest.mark.parametrize("loss", LOSSES)
def test_wide_data_takes_conjugate_gradients(loss, num_tasks):
    """Both losses; one product a pass."""
    X, y = wide()
    params = {"loss": loss, "C": 0.5, "epsilon": 0.1}
    model = ChicleSVR(**params, runtime=InProcess(num_tasks=num_tasks), chunk_size=9_000).fit(X, y)
    assert "conjugate gradients" in model.history_.method
    best = theirs(params, X, y)
    assert model.duality_gap_ <= 1e-3
    assert model.dual_objective_ <= best
    assert model.objective_ <= best * (1 + model.duality_gap_)


def test_a_fit_that_is_cut_short_warns():
    """With what helps."""
    X, y = digits()
    with pytest.warns(ConvergenceWarning, match=r"after max_iter=3 iterations .* lower C"):
        model = ChicleSVR(C=10.0, max_iter=3).fit(X, y)
    assert model.duality_gap_ > 1e-3


@pytest.mark.parametrize(
    ("params", "what"),
    [
        ({"C": 0.0}, "'C' parameter of ChicleSVR"),
        ({"epsilon": -1.0}, "'epsilon' parameter"),
        ({"loss": "hinge"}, "'loss' parameter"),
        ({"intercept_scaling": 0.0}, "'intercept_scaling' parameter"),
    ],
)
def test_parameters_that_cannot_be_are_refused(params, what):
    """With their name."""
    X, y = diabetes()
    with pytest.raises(ValueError, match=what):
        ChicleSVR().set_params(**params).fit(X, y)


def test_targets_of_zero_are_no_trouble():
    """There is nothing to learn, and the objective is 0."""
    X, y = diabetes()
    model = ChicleSVR(epsilon=0.1).fit(X, np.zeros(len(y)))
    assert not model.coef_.any()
    assert model.objective_ == 0.0
