"""scikit-learn's own checks of an estimator."""

import pytest
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    check_sample_weight_equivalence_on_sparse_data,
    parametrize_with_checks,
)

from estimators import ChicleLogisticRegression, ChicleRidgeClassifier, ChicleRidgeCV, ChicleSVM

WEIGHT_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": "compares to 1e-7; passes at tol=0, see below",
    "check_sample_weight_equivalence_on_sparse_data": "compares to 1e-7; passes at tol=0, see below",
}

ESTIMATORS = [
    ChicleSVM(),
    ChicleLogisticRegression(),
    ChicleSVM(loss="squared_hinge", class_weight="balanced", store_duals=True),
    ChicleRidgeCV(),
    ChicleRidgeCV(cv=3),
    ChicleRidgeClassifier(),
]


def excused(estimator):
    """The weight checks with the hinge and its square; others find seven digits."""
    return WEIGHT_CHECKS if isinstance(estimator, ChicleSVM) else {}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=excused)
def test_scikit_learns_checks_pass(estimator, check):
    """All but the two that need more digits than the default `tol` gives (strictly: they must fail there)."""
    check(estimator)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "check", [check_sample_weight_equivalence_on_dense_data, check_sample_weight_equivalence_on_sparse_data]
)
@pytest.mark.parametrize(
    "estimator",
    [
        ChicleSVM(tol=0.0, max_iter=200),
        ChicleSVM(loss="squared_hinge", tol=0.0, max_iter=200),
        ChicleLogisticRegression(tol=0.0, max_iter=200),
    ],
    ids=["hinge", "squared_hinge", "logistic"],
)
def test_weights_equal_repetitions_to_seven_digits(estimator, check):
    """The two excused checks pass, for every loss, when the fit uses all its iterations."""
    check(type(estimator).__name__, estimator)
