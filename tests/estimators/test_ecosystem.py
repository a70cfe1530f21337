"""Our estimators among the tools of scikit-learn."""

import inspect

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleLogisticRegression, ChicleSVM
from tests.estimators import problems


def test_a_grid_search_with_two_workers_over_pipelines():
    """Parameters of the runtime's value among the grid; the best model predicts."""
    X, y = problems.cancer()
    pipeline = make_pipeline(StandardScaler(), ChicleSVM(random_state=0))
    grid = {"chiclesvm__C": [0.01, 0.1], "chiclesvm__runtime": [None, InProcess(num_tasks=2)]}
    search = GridSearchCV(pipeline, grid, cv=3, n_jobs=2).fit(X, y)
    serial = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert search.best_score_ > 0.96
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], serial.cv_results_["mean_test_score"], atol=0.01)
    assert CalibratedClassifierCV(ChicleSVM(C=0.01), cv=2).fit(X, y).predict_proba(X).shape == (569, 2)


@pytest.mark.parametrize("estimator_class", [ChicleSVM, ChicleLogisticRegression])
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
