"""Ctrl-C in a fit of one process: a warning, KeyboardInterrupt, and the best certified model so far."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from chicle_elastic.runtime import in_process
from chicle_elastic.solvers.linear.newton.solver import NewtonSolver
from estimators import ChicleRidge
from tests.timeouts import timeout_s

CHILD = """
import json, signal, sys, warnings
import numpy as np
from sklearn.model_selection import GridSearchCV
import estimators
signal.signal(signal.SIGINT, signal.default_int_handler)
rng = np.random.default_rng(0)
X, y = rng.normal(size=(600, 64)) * 10.0 ** rng.uniform(-2, 2, 64), np.arange(600) % 3
if {name!r} == "ChicleCNNClassifier":
    X = rng.normal(size=(600, 28, 28)).astype(np.float32)
model = estimators.{name}(**{params}, verbose=2)
fitted = GridSearchCV(model, {{"C": [1.0, 2.0]}}, n_jobs=1, error_score=0.0) if {in_search} else model
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter({action!r})
    try:
        fitted.fit(X, y)
    except KeyboardInterrupt:
        names = [warning.category.__name__ for warning in said]
        gap = getattr(fitted, "duality_gap_", None)
        predicts = hasattr(fitted, "n_iter_") and len(fitted.predict(X))
        print("RESULT", json.dumps([names, gap, predicts]), flush=True)
"""


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("ChicleSVM", {"C": 1e4}),
        ("ChicleLasso", {"alpha": 1e-6}),
        ("ChicleSVR", {}),
        pytest.param("ChicleCNNClassifier", {"max_epochs": 100_000}, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_warns_raises_and_leaves_a_model(name, params):
    """The signal comes from another process, in the middle of the fit; only a linear model has a gap."""
    is_linear = name != "ChicleCNNClassifier"
    warned, gap, predicts = interrupted(name, params | ({"tol": 0.0, "max_iter": 10**7} if is_linear else {}))
    assert "ConvergenceWarning" in warned
    assert predicts == 600
    assert (gap is not None and gap >= -1e-9) == is_linear


def test_a_search_ends_as_well():
    """The error of one fit is a score to a search, and Ctrl-C is no error."""
    warned, _, predicts = interrupted("ChicleSVM", {"tol": 0.0, "max_iter": 10**7}, in_search=True)
    assert "ConvergenceWarning" in warned
    assert not predicts


def test_warnings_that_are_errors_do_not_swallow_it():
    """KeyboardInterrupt is what comes out."""
    _, gap, predicts = interrupted("ChicleSVM", {"tol": 0.0, "max_iter": 10**7}, action="error")
    assert gap is not None
    assert predicts == 600


def interrupted(name, params, *, in_search=False, action="always"):
    """Names of the warnings, duality gap and number of predictions of a fit that is interrupted after five lines."""
    code = CHILD.format(name=name, params=params, in_search=in_search, action=action)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        try:
            lines = (line for line in iter(child.stdout.readline, "") if line.startswith(f"[{name}]"))
            for _ in range(5):
                next(lines)
            child.send_signal(signal.SIGINT)
            rest, _ = child.communicate(timeout=timeout_s(60))
        finally:
            child.kill()
    return json.loads(rest.partition("RESULT ")[2])


def test_where_no_certificate_can_be_made_the_last_certified_model_is_left(monkeypatch):
    """Iterations that take long leave no time for one after Ctrl-C; the model and the gap belong together."""
    X = np.random.default_rng(0).normal(size=(50, 8)) * 10.0 ** np.arange(8)
    y = X.sum(axis=1) + 1.0
    solve, at = NewtonSolver.solve, 12

    def interrupting(self, model, budget):
        if budget.iteration == at:
            raise KeyboardInterrupt
        return solve(self, model, budget)

    monkeypatch.setattr(NewtonSolver, "solve", interrupting)
    monkeypatch.setattr(in_process, "CERTIFY_WITHIN_S", -1.0)
    model = ChicleRidge(tol=0.0, max_iter=100)
    with pytest.raises(KeyboardInterrupt), pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    gaps = [record.figures["duality_gap"] for record in model.history_ if "duality_gap" in record.figures]
    assert model.n_iter_ == at - 1
    assert model.duality_gap_ == min(gaps)
    residuals = y - X @ model.coef_ - model.intercept_
    assert model.objective_ == pytest.approx(residuals @ residuals + model.coef_ @ model.coef_, rel=1e-9)


@pytest.mark.filterwarnings("error")
def test_before_the_first_iteration_has_ended_nothing_changes(monkeypatch):
    """An earlier fit is as it was, and there is nothing to warn of."""
    X, y = np.eye(6), np.arange(6.0)
    model = ChicleRidge(runtime=in_process.InProcess(num_tasks=1)).fit(X, y)
    before = model.coef_

    def interrupting(self, model, budget):
        raise KeyboardInterrupt

    monkeypatch.setattr(NewtonSolver, "solve", interrupting)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X * 2, y)
    assert model.coef_ is before
