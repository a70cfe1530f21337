"""ElasticEstimator: an algorithm of the user's with the face of scikit-learn."""

import dataclasses
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_clusterer, is_regressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from chicle_elastic import ArraySource, InProcess, Job, UsageError
from estimators import ElasticEstimator
from tests.estimators.own_trainers import KMeans, NearestMean, Steps

X_DIGITS, Y_DIGITS = load_digits(return_X_y=True)
X_CANCER, Y_CANCER = load_breast_cancer(return_X_y=True)


def test_a_clusterer_fits_predicts_transforms_and_scores(capsys: pytest.CaptureFixture[str]) -> None:
    """The model is that of the job; it ends by the rule of the trainer, which compares with the last iteration."""
    model = ElasticEstimator(KMeans(num_clusters=5), random_state=0, verbose=2).fit(X_DIGITS, Y_DIGITS.astype(str))
    assert capsys.readouterr().out.startswith("[KMeans] iteration 1: inertia ")
    assert is_clusterer(model)
    assert 1 < model.n_iter_ == len(model.history_) < 100
    assert model.history_[-1].figures["inertia"] == pytest.approx(-model.score(X_DIGITS), rel=1e-3)
    assert 3 <= len(set(model.predict(X_DIGITS))) <= 5  # a center may be without rows
    assert model.transform(X_DIGITS[:7]).shape == (7, 5)
    assert sum(account.rows for account in model.ledger_) == len(X_DIGITS)
    np.testing.assert_array_equal(model.transform(X_DIGITS), model.fit_transform(X_DIGITS))
    seed = int(np.random.RandomState(0).randint(np.iinfo(np.int32).max))
    job = Job(
        trainer=KMeans(num_clusters=5), source=ArraySource(X_DIGITS, np.zeros(1797)), max_iterations=100, seed=seed
    )
    np.testing.assert_array_equal(InProcess().run(job).model, model.model_)


def test_a_classifier_gets_codes_and_gives_labels() -> None:
    """Labels of any kind; weights reach the chunks, and accuracy is the score."""
    words = np.array(["malignant", "benign"])[Y_CANCER]
    model = make_pipeline(StandardScaler(), ElasticEstimator(NearestMean())).fit(X_CANCER, words)
    assert is_classifier(model)
    assert model.classes_.tolist() == ["benign", "malignant"]
    assert model.score(X_CANCER, words) > 0.9
    assert model.decision_function(X_CANCER).shape == (569, 2)
    assert not hasattr(model, "transform")
    assert not hasattr(model[-1], "predict_proba")
    weights = np.where(Y_CANCER == 1, 2.0, 1.0)
    weighted = ElasticEstimator(NearestMean()).fit(X_CANCER, Y_CANCER, sample_weight=weights)
    counts = weighted.model_.reshape(2, -1)[:, -1]
    np.testing.assert_array_equal(counts, [212, 714])


def test_a_regressor_uses_all_iterations_without_a_warning() -> None:
    """A trainer without a rule has nothing to miss; integers are numbers."""
    X, y = load_diabetes(return_X_y=True)
    X, y = StandardScaler().fit_transform(X), (y - y.mean()).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ElasticEstimator(Steps(), max_iter=300, runtime=InProcess(num_tasks=3)).fit(X, y)
    assert is_regressor(model)
    assert model.n_iter_ == 300
    assert model.score(X, y) == pytest.approx(0.517, abs=0.002)


def test_a_rule_that_never_held_is_warned_of() -> None:
    """With what to do."""
    with pytest.warns(ConvergenceWarning, match=r"KMeans has not ended by itself: all max_iter=2 .*raise max_iter"):
        ElasticEstimator(KMeans(tol=0), max_iter=2, random_state=0).fit(X_DIGITS)


def test_fields_of_the_trainer_are_parameters_in_a_search() -> None:
    """Each candidate has a trainer of its own, and the caller's stays as it is."""
    trainer = KMeans()
    search = GridSearchCV(
        make_pipeline(ElasticEstimator(trainer, random_state=0)),
        {"elasticestimator__trainer__num_clusters": [2, 12], "elasticestimator__max_iter": [100, 200]},
        cv=2,
    ).fit(X_DIGITS)
    assert search.best_params_["elasticestimator__trainer__num_clusters"] == 12
    assert trainer == KMeans()
    assert ElasticEstimator(trainer).get_params()["trainer__tol"] == 1e-6


def test_a_copy_is_equal_and_predicts_the_same() -> None:
    """By clone, not fitted; by pickle, fitted. A parameter set later does not change what was fitted."""
    model = ElasticEstimator(KMeans(num_clusters=3), random_state=0, n_workers=None).fit(X_DIGITS)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(X_DIGITS)
    loaded = pickle.loads(pickle.dumps(model))
    before = model.predict(X_DIGITS)
    np.testing.assert_array_equal(loaded.predict(X_DIGITS), before)
    model.set_params(trainer__num_clusters=4)
    np.testing.assert_array_equal(model.predict(X_DIGITS), before)


def test_a_trainer_with_parameters_of_its_own_keeps_them() -> None:
    """`get_params` and `set_params` as scikit-learn has them."""

    class Own(Steps):
        def get_params(self, deep: bool = True) -> dict[str, Any]:
            return {"step": self.step}

        def set_params(self, **params: Any) -> "Own":
            vars(self).update(params)
            return self

    model = clone(ElasticEstimator(Own(step=0.2))).set_params(trainer__step=0.3)
    assert model.get_params()["trainer__step"] == model.trainer.step == 0.3


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"trainer__clusters": 3}, "KMeans has no parameter 'clusters'; its fields are num_clusters, tol"),
        ({"trainer__num_clusters": 0}, "num_clusters=0 must be at least 1"),
        ({"nothing": 3}, "Invalid parameter 'nothing'"),
        ({"trainer": Steps(), "trainer__step": 1.0}, "Steps has no parameter 'step'; it is no dataclass with fields"),
    ],
)
def test_parameters_that_cannot_be_are_refused(change: dict[str, Any], complaint: str) -> None:
    """With those that there are; nothing has changed then."""
    model = ElasticEstimator(KMeans())
    with pytest.raises(ValueError, match=complaint):
        model.set_params(**change)
    if "trainer" not in change:
        assert model.trainer == KMeans()


class Odd(KMeans):
    """Of no kind that there is."""

    estimator_type = "oracle"


class Short(KMeans):
    """Predicts for the first row only."""

    def predict(self, model: Any, X: Any) -> Any:
        return super().predict(model, X)[:1]


class Floats(NearestMean):
    """A classifier that returns something else than codes."""

    def predict(self, model: Any, X: Any) -> Any:
        return super().predict(model, X) + 0.5


class Loud(Steps):
    """Its solver reports a metric that it does not name."""

    def metric_names(self, schema: Any) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize(
    ("trainer", "y", "complaint"),
    [
        (KMeans, None, r"trainer=KMeans\): pass an instance, KMeans\(...\)"),
        ("kmeans", None, "has to be a chicle_elastic.Trainer, which this str is not"),
        (Odd(), None, r"Odd.estimator_type is 'oracle'; it has to be one of \('classifier'"),
        (NearestMean(), None, "requires y to be passed"),
        (NearestMean(), np.linspace(0, 1, 1797), "Unknown label type"),
        (Steps(), Y_DIGITS.astype(str).astype(object) + "x", "y holds text, as '0x' in row 0"),
        (Loud(), Y_DIGITS, r"returned the metrics 'squares'.* name them in Loud.metric_names"),
        (Short(), None, r"Short.predict has to return a value or a row for each of 1797 rows, and returned shape \(1,"),
        (Floats(), Y_DIGITS, "Floats.predict of a classifier has to return codes, integers from 0 to 9"),
    ],
)
def test_a_trainer_that_cannot_be_used_is_told(trainer: Any, y: Any, complaint: str) -> None:
    """What is wrong, and where."""
    with pytest.raises((ValueError, RuntimeError), match=complaint):
        ElasticEstimator(trainer).fit(X_DIGITS, y).predict(X_DIGITS)


def test_a_runtime_that_takes_no_objects_is_refused() -> None:
    """Jobs of a cluster get no pickles."""

    class Submitting(InProcess):
        """Has what `TorchXRuntime` is known by."""

        def submit(self) -> None:
            """Never called."""

    with pytest.raises(UsageError, match=r"Submitting fits Chicle's own estimators.* KMeans goes to a LocalCluster"):
        ElasticEstimator(KMeans(), runtime=Submitting()).fit(X_DIGITS)


def test_unknown_labels_of_a_score_are_named() -> None:
    """Where the trainer scores by itself."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Scoring(NearestMean):
        def score(self, model: Any, X: Any, y: Any) -> float:
            return float((self.predict(model, X) == y).mean())

    model = ElasticEstimator(Scoring()).fit(X_CANCER, Y_CANCER + 7)
    assert 0.8 < model.score(X_CANCER, Y_CANCER + 7) < 1
    with pytest.raises(ValueError, match=r"y has the label .*0.*, and the fit had \[7, 8\]"):
        model.score(X_CANCER, Y_CANCER)
    with pytest.raises(UsageError, match="takes no sample_weight"):
        model.score(X_CANCER, Y_CANCER + 7, sample_weight=np.ones(569))
