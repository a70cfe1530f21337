"""What all trainers of linear models have in common: parameters and data they refuse, warm starts, and identities."""

import dataclasses

import numpy as np
import pytest
from scipy import sparse

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.losses import EpsilonInsensitive, Huber, Poisson, SquaredEpsilonInsensitive
from chicle_elastic.solvers.linear.newton.trainer import L1Trainer, MultinomialTrainer, RegressionTrainer
from chicle_elastic.solvers.linear.trainer import LinearTrainer

CLASSIFIERS, REGRESSIONS = (LinearTrainer, L1Trainer, MultinomialTrainer), (RegressionTrainer,)
REFUSED = [
    *((kind, "C", value) for kind in (*CLASSIFIERS, RegressionTrainer) for value in (0.0, np.nan)),
    *((kind, "tol", value) for kind in (*CLASSIFIERS, *REGRESSIONS) for value in (-1.0, np.nan)),
    *((kind, "C", np.inf) for kind in (L1Trainer, MultinomialTrainer, RegressionTrainer)),
    *((kind, "alpha", value) for kind in REGRESSIONS for value in (0.0, np.inf)),
    *((kind, "l1_ratio", value) for kind in (L1Trainer, RegressionTrainer) for value in (1.1, np.nan)),
    (L1Trainer, "l1_ratio", 0.0),
    (LinearTrainer, "num_threads", 0),
    *((kind, "epsilon", -0.1) for kind in (EpsilonInsensitive, SquaredEpsilonInsensitive)),
    (Huber, "epsilon", 0.9),
]
LASSO = RegressionTrainer(
    loss=SquaredEpsilonInsensitive(), C=0.5, alpha=0.1, l1_ratio=1.0, is_mean=True, tol=1e-6, penalises_intercept=False
)
LABELS, REAL = np.array([0, 1] * 25, dtype=np.int32), np.linspace(-1.0, 4.0, 50)


def run(trainer, X, y, **params):
    """On two tasks."""
    job = Job(trainer=trainer, source=ArraySource(X, y, max_tasks=2, **params), max_iterations=50)
    return job, InProcess(num_tasks=2).run(job)


@pytest.mark.parametrize(("kind", "name", "value"), REFUSED)
def test_parameters_that_cannot_be_are_refused(kind, name, value):
    """By the trainer, too, which scripts use without an estimator; each is named with what was given."""
    with pytest.raises(UsageError, match=f"{name}={value}"):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("kind", "loss"), [(L1Trainer, "hinge"), (RegressionTrainer, "hinge"), (LinearTrainer, "huber")]
)
def test_losses_of_others_are_refused(kind, loss):
    """By name."""
    with pytest.raises(UsageError, match=f"'{loss}'"):
        kind(loss=loss)


@pytest.mark.parametrize("loss", [EpsilonInsensitive(), Huber()])
def test_an_l1_penalty_of_a_loss_with_corners_or_a_scale_is_refused(loss):
    """Its steps know of neither."""
    with pytest.raises(UsageError, match=r"l1_ratio=0\.5 needs a smooth loss"):
        RegressionTrainer(loss=loss, l1_ratio=0.5)


@pytest.mark.parametrize("kind", [*CLASSIFIERS, *REGRESSIONS])
def test_targets_of_the_other_kind_are_refused(kind):
    """Real numbers by classifiers, class codes by regressions."""
    with pytest.raises(UsageError, match="int32"):
        run(kind(), np.ones((50, 2)), REAL if kind in CLASSIFIERS else LABELS)


def test_targets_that_a_loss_does_not_have_are_refused():
    """Counts are not negative."""
    with pytest.raises(DataError, match="targets y >= 0, and the data has -"):
        run(RegressionTrainer(loss=Poisson()), np.ones((50, 2)), REAL)


@pytest.mark.parametrize("kind", [*CLASSIFIERS, *REGRESSIONS])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_features_that_are_not_finite_are_named(kind, value, form):
    """A weight of 0 does not hide them."""
    X, weights = np.ones((50, 2)), np.ones(50)
    X[7, 1], weights[7] = value, 0.0
    with pytest.raises(DataError, match=r"\(row 7 of the data set\): a feature is NaN or infinite"):
        run(kind(), form(X), LABELS if kind in CLASSIFIERS else REAL, weights=weights)


@pytest.mark.parametrize("trainer", [L1Trainer(), LASSO])
def test_a_model_to_begin_with_is_taken_up(trainer):
    """From the solution nothing is left to be solved."""
    X = np.random.default_rng(0).normal(size=(50, 8))
    y = (X[:, 0] > 0.2).astype(np.int32) if isinstance(trainer, CLASSIFIERS) else X[:, 0] + 5.0
    job, cold = run(trainer, X, y)
    warm = InProcess(num_tasks=2).run(dataclasses.replace(job, initial_model=cold.model))
    assert len(cold.history) > len(warm.history) == 2
    np.testing.assert_allclose(warm.model, cold.model, rtol=1e-12)


@pytest.mark.parametrize(
    "base", [LinearTrainer(), L1Trainer(), MultinomialTrainer(), RegressionTrainer(loss=Poisson()), LASSO]
)
def test_what_is_certified_is_part_of_the_identity_and_the_tolerance_is_not(base):
    """A checkpoint of another objective is refused."""
    changes = {
        "C": 2.0,
        "alpha": 2.0,
        "l1_ratio": 0.5,
        "class_weights": (1.0, 2.0),
        "is_mean": base is not LASSO,
    }
    mine = {
        name: value for name, value in changes.items() if name in {field.name for field in dataclasses.fields(base)}
    }
    assert len(mine) > 1
    for name, value in mine.items():
        assert dataclasses.replace(base, **{name: value}).identity() != base.identity()
    assert dataclasses.replace(base, tol=1e-9).identity() == base.identity()
