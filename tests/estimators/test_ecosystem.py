"""Our estimators among the tools of scikit-learn."""

import inspect

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.feature_selection import SelectFromModel
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleLogisticRegression, ChicleSVM
from tests.estimators import problems

both = pytest.mark.parametrize("estimator_class", [ChicleSVM, ChicleLogisticRegression])


@both
def test_a_grid_search_with_two_workers_over_pipelines(estimator_class):
    """Parameters of the runtime's value among the grid; the best model predicts."""
    X, y = problems.cancer()
    pipeline = make_pipeline(StandardScaler(), estimator_class(random_state=0))
    name = estimator_class.__name__.lower()
    grid = {f"{name}__C": [0.01, 0.1], f"{name}__runtime": [None, InProcess(num_tasks=2)]}
    search = GridSearchCV(pipeline, grid, cv=3, n_jobs=2).fit(X, y)
    serial = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert search.best_score_ > 0.96
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], serial.cv_results_["mean_test_score"], atol=0.01)
    assert search.predict(X).shape == y.shape


@both
def test_cross_validation_with_sample_weights(estimator_class):
    """Metadata reaches fit."""
    X, y = problems.digits()
    scores = cross_val_score(estimator_class(C=0.01), X, y, cv=3, params={"sample_weight": np.ones(len(y))})
    assert scores.min() > 0.85


def test_text_is_trained_on_sparse():
    """The vectoriser gives CSR with float64 and int32 or int64 indices, and so it stays."""
    texts = ["a good film", "good and fine", "a bad film", "bad and poor"] * 5
    model = make_pipeline(TfidfVectorizer(), ChicleLogisticRegression(C=10.0)).fit(texts, [1, 1, 0, 0] * 5)
    assert model.predict(["a fine film", "poor film"]).tolist() == [1, 0]


def test_meta_estimators_accept_ours():
    """Those that read scores, probabilities, coefficients or weights."""
    X, y = problems.cancer()
    svm, logistic = ChicleSVM(C=0.01), ChicleLogisticRegression(C=0.1)
    assert CalibratedClassifierCV(svm, cv=2).fit(X, y).predict_proba(X).shape == (569, 2)
    assert VotingClassifier([("a", logistic), ("b", clone(logistic))], voting="soft").fit(X, y).score(X, y) > 0.96
    assert BaggingClassifier(svm, n_estimators=2, random_state=0).fit(X, y).score(X, y) > 0.96
    assert 0 < SelectFromModel(svm).fit(X, y).transform(X).shape[1] < 30
    assert MultiOutputClassifier(svm).fit(X, np.column_stack([y, 1 - y])).predict(X).shape == (569, 2)


@both
def test_the_parameters_are_the_documented_ones(estimator_class):
    """Every parameter and every fitted attribute has its paragraph in the docstring, every paragraph its parameter."""
    documented = inspect.getdoc(estimator_class).split("Parameters\n----------")[1].split("See Also")[0]
    parameters, attributes = documented.split("Attributes\n----------")
    names = [line.split(" : ")[0] for line in parameters.splitlines() if line[:1].strip() and " : " in line]
    assert sorted(names) == sorted(estimator_class().get_params())
    X, y = problems.cancer()
    model = estimator_class(store_duals=True).fit(pd.DataFrame(X).add_prefix("f"), y)
    properties = {name for name in dir(estimator_class) if isinstance(getattr(estimator_class, name), property)}
    fitted = {name for name in properties | set(vars(model)) if name.endswith("_") and not name.startswith("_")}
    described = {line.split(" : ")[0] for line in attributes.splitlines() if line[:1].strip() and " : " in line}
    assert fitted == described
