"""scikit-learn's array API dispatch: tensors come out where tensors went in, and everything else reads them."""

import inspect
import re

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.utils import estimator_checks, get_tags

from chicle_elastic.errors import UsageError
from estimators import (
    ChicleElasticNet,
    ChicleHuber,
    ChicleLasso,
    ChicleLogisticRegression,
    ChiclePoisson,
    ChicleRidge,
    ChicleRidgeClassifier,
    ChicleRidgeCV,
    ChicleSVM,
    ChicleSVR,
)

pytest.importorskip("sklearn", "1.9", "before, scikit-learn had classes_ in the library of X")
pytest.importorskip("scipy", "1.14", "scikit-learn asks for it")

MODELS = [
    ChicleSVM(store_duals=True),
    ChicleLogisticRegression(),
    ChicleLogisticRegression(l1_ratio=0.5, warm_start=True),
    ChicleRidgeClassifier(),
    ChicleRidge(),
    ChicleRidgeCV(store_cv_results=True),
    ChicleLasso(alpha=0.01, warm_start=True),
    ChicleElasticNet(alpha=0.01),
    ChicleSVR(random_state=0),
    ChicleHuber(),
    ChiclePoisson(),
]
ELSEWHERE = re.compile("cupy|cuda|dpnp|mps|xpu")  # devices that no machine of ours has
FOUND = getattr(estimator_checks, "_yield_array_api_checks", lambda _: ())(None)  # before 1.9 the file is skipped
CHECKS = [check for check in FOUND if not ELSEWHERE.search(str(check))]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 3))
y = (X[:, 0] + 0.3 * RNG.normal(size=80) > 0).astype(np.int64)


@pytest.fixture(autouse=True)
def _turned_on(monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # scikit-learn asks for it


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: "-".join(map(str, check.keywords.values())))
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_scikit_learns_checks_pass(model, check):
    """Attributes and answers have library and device of X, and the values that NumPy's have; it skips without them."""
    assert get_tags(model).array_api_support
    is_of_values = "check_values" in inspect.signature(check.func).parameters
    check(type(model).__name__, model, **({"check_values": True} if is_of_values else {}))


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_what_else_reads_a_model_of_tensors(model, tmp_path):
    """Rows of NumPy, files, scikit-learn's estimator and a second fit; without the dispatch NumPy answers."""
    torch = pytest.importorskip("torch")
    expected = clone(model).fit(X, y)
    with config_context(array_api_dispatch=True):
        model = clone(model).fit(torch.tensor(X), torch.tensor(y))
        assert isinstance(model.coef_, torch.Tensor)
        model.fit(torch.tensor(X), torch.tensor(y), torch.ones(len(y)))
    assert isinstance(model.predict(torch.tensor(X)), np.ndarray)
    model.save(tmp_path / "model.npz")
    for each in (model, type(model).load(tmp_path / "model.npz"), model.to_sklearn()):
        np.testing.assert_allclose(each.predict(X), expected.predict(X), rtol=1e-2, atol=1e-2)
    if hasattr(model, "sparse_coef_"):
        np.testing.assert_array_equal(model.sparse_coef_.toarray(), np.atleast_2d(np.asarray(model.coef_)))


def test_labels_that_are_text_and_several_targets():
    """Text has no tensor, so it stays NumPy's; targets have their columns."""
    torch = pytest.importorskip("torch")
    with config_context(array_api_dispatch=True):
        assert set(ChicleSVM().fit(torch.tensor(X), np.array(["a", "b"])[y]).predict(torch.tensor(X))) <= {"a", "b"}
        for model in (ChicleRidge(), ChicleLasso(alpha=0.01, warm_start=True)):
            model.fit(torch.tensor(X), torch.tensor(X[:, :2])).fit(torch.tensor(X), torch.tensor(X[:, :2]))
            assert model.predict(torch.tensor(X)).shape == (80, 2)
            assert model.coef_.shape == (2, 3)


@pytest.mark.parametrize("name", ["X", "y"])
def test_arrays_on_a_device_are_refused_without_the_dispatch(name):
    """Before any work, by name."""
    strict = pytest.importorskip("array_api_strict")
    far = {"X": X, "y": y}
    far[name] = strict.asarray(far[name], device=strict.Device("device1"))
    with pytest.raises(UsageError, match=f"ChicleRidge: {name} is not in memory"):
        ChicleRidge().fit(**far)


def test_a_network_answers_with_tensors():
    """Of its attributes none is an array that users compute with, so they stay NumPy's."""
    torch = pytest.importorskip("torch")
    from tests.estimators.cnn_data import bars, tiny

    images, labels = bars(60)
    with config_context(array_api_dispatch=True):
        images, codes = torch.tensor(images), torch.tensor(np.unique(labels, return_inverse=True)[1])
        model = tiny(max_epochs=1).fit(images, codes)
        for method in (model.predict, model.predict_proba, model.decision_function):
            assert isinstance(method(images), torch.Tensor)
        assert isinstance(model.score(images, codes), float)
