"""A path of C takes fewer iterations with `warm_start`, in either direction."""

from typing import Any

import numpy as np
import pytest

from estimators import ChicleLogisticRegression, ChicleSVM
from tests.estimators import problems

CS = np.logspace(-3.0, 1.0, 7)


@pytest.mark.parametrize("Cs", [CS, CS[::-1]], ids=["up", "down"])
@pytest.mark.parametrize(
    ("kind", "given"), [(ChicleLogisticRegression, {}), (ChicleSVM, {"loss": "squared_hinge"})], ids=["logistic", "svm"]
)
def test_a_path_takes_no_more_iterations(kind: Any, given: dict[str, Any], Cs: Any) -> None:
    """Fewer while C grows, but for passes over small data, of which an iteration has many; objectives are the same."""
    X, y = problems.digits()
    iterations, objectives = {}, {}
    for is_warm in (False, True):
        model = kind(warm_start=is_warm, random_state=0, **given)
        fits = [(model.set_params(C=C).fit(X, y).n_iter_, model.objective_) for C in Cs]
        iterations[is_warm] = sum(number for number, _ in fits)
        objectives[is_warm] = [objective for _, objective in fits]
    np.testing.assert_allclose(objectives[True], objectives[False], rtol=3e-3)
    more = len(Cs) if kind is ChicleSVM else -(Cs is CS)
    assert iterations[True] <= iterations[False] + more
