"""Models on disk without pickle, in pickles, and as estimators of scikit-learn."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import make_scorer, r2_score
from sklearn.model_selection import KFold

import estimators
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleRidgeCV, ChicleSVM, persistence
from tests.estimators import problems

GOLDEN = Path(__file__).parents[1] / "golden" / "models"


def labelled(labels, num_classes):
    """Digits of the first classes, with other labels."""
    X, y = problems.digits()
    chosen = y < num_classes
    return X[chosen], np.array(labels)[y[chosen]]


LABELS = {
    "int64": ([3, 5, 7], 3),
    "uint8": (np.array([3, 5, 7], dtype=np.uint8), 3),
    "float": ([-1.0, 1.0], 2),
    "bool": ([False, True], 2),
    "str": (["eins", "zwei", "drüber"], 3),
    "object": (np.array(["a", "bcd"], dtype=object), 2),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_and_weights_of_classes_come_back_with_their_dtype(kind, tmp_path):
    """With the names of the columns; `test_every_linear` has the rest of a file."""
    X, y = labelled(*LABELS[kind])
    frame = pd.DataFrame(X, columns=[f"pixel {i}" for i in range(64)])
    model = ChicleSVM(C=0.02, class_weight=dict.fromkeys(np.unique(y), 1.5), random_state=np.int64(3)).fit(frame, y)
    model.save(tmp_path / "model")
    loaded = ChicleSVM.load(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert loaded.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))
    np.testing.assert_array_equal(loaded.feature_names_in_, model.feature_names_in_)
    assert loaded.get_params() == model.get_params()
    assert loaded.fit(frame, y).n_iter_ == model.n_iter_


def test_no_pickle_is_in_the_file(tmp_path):
    """Every array opens with allow_pickle=False, and the header is JSON that a person can read."""
    X, y = problems.cancer()
    ChicleSVM().fit(X, y).save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as content:
        header = json.loads(str(content["header"]))
        assert all(content[name].dtype != object for name in content.files)
    assert (header["format"], header["version"]) == ("chicle-model", 2)
    assert header["estimator"] == "ChicleSVM"


def test_runtime_and_random_state_instance_are_left_out(tmp_path):
    """They belong to where the model was trained; the loaded one has the defaults."""
    X, y = problems.cancer()
    model = ChicleSVM(runtime=InProcess(num_tasks=2), random_state=np.random.RandomState(0), logdir=tmp_path / "logs")
    model.set_params(logdir=tmp_path / "logs").fit(X, y).save(tmp_path / "model.npz")
    loaded = ChicleSVM.load(tmp_path / "model.npz")
    assert loaded.runtime is None
    assert loaded.random_state is None
    assert loaded.logdir == str(tmp_path / "logs")


def test_an_existing_model_is_replaced_at_once_or_not_at_all(tmp_path, monkeypatch):
    """A failure in the middle leaves the old model, and no other file."""
    X, y = problems.cancer()
    path = tmp_path / "model.npz"
    old = ChicleSVM(C=0.01).fit(X, y)
    old.save(path)
    new = ChicleSVM(C=0.02).fit(X, y)
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            new.save(path)
    assert [each.name for each in tmp_path.iterdir()] == ["model.npz"]
    np.testing.assert_array_equal(ChicleSVM.load(path).coef_, old.coef_)
    new.save(path)
    np.testing.assert_array_equal(ChicleSVM.load(path).coef_, new.coef_)


def test_every_damaged_byte_is_noticed_or_harmless(tmp_path):
    """Flips all over the file: a DataError that names it, or (in unused bytes of the zip) the very same model."""
    X, y = problems.cancer()
    model = ChicleSVM(max_iter=5, C=1e-3).fit(X, y)
    path = tmp_path / "model.npz"
    model.save(path)
    content = path.read_bytes()
    num_noticed = 0
    for position in range(0, len(content), 37):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :])
        try:
            loaded = ChicleSVM.load(path)
        except DataError as error:
            num_noticed += str(path) in str(error)
        else:
            np.testing.assert_array_equal(loaded.coef_, model.coef_)
            np.testing.assert_array_equal(loaded.classes_, model.classes_)
    assert num_noticed > 0.8 * len(range(0, len(content), 37))


def test_files_that_are_no_models_are_refused(tmp_path):
    """Other .npz, other bytes, a part of a model, no file."""
    path = tmp_path / "model.npz"
    ChicleSVM().fit(*problems.cancer()).save(path)
    content = path.read_bytes()
    for share in (0.0, 0.1, 0.5, 0.99):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(DataError, match="is damaged, or not a model"):
            ChicleSVM.load(path)
    np.savez(tmp_path / "other.npz", X=np.zeros(3))
    np.savez(tmp_path / "json.npz", header=np.array('{"format": "another"}'))
    for name, message in (("other.npz", "header"), ("json.npz", "is not a model")):
        with pytest.raises(DataError, match=message):
            ChicleSVM.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        ChicleSVM.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"the model cannot be saved: .*: '.*/nowhere/model\.npz'"):
        ChicleSVM().fit(*problems.cancer()).save(tmp_path / "nowhere" / "model.npz")


def rewrite(path, change):
    """The model with another header or other arrays."""
    with np.load(path, allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    header = json.loads(str(arrays.pop("header")))
    change(header, arrays)
    np.savez(path, header=np.array(json.dumps(header)), **arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, arrays: header.update(version=99), "version 99, .* reads version 2: load it with the other"),
        (lambda header, arrays: header.update(version="x"), "version x"),
        (lambda header, arrays: arrays.pop("coef_"), "lacks coef_"),
        (lambda header, arrays: arrays.update(coef_=np.zeros((1, 29))), r"coef_ has shape \(1, 29\)"),
        (lambda header, arrays: arrays.update(classes_=np.arange(3)), r"coef_ has shape \(1, 30\)"),
        (lambda header, arrays: header.update(params={"gamma": 1}, chicle="9.0"), "chicle-elastic 9.0 wrote it"),
        (lambda header, arrays: header.pop("values"), "the header of the model is damaged"),
    ],
)
def test_a_model_that_contradicts_itself_is_refused(change, message, tmp_path):
    """Versions, missing arrays, shapes, parameters."""
    path = tmp_path / "model.npz"
    ChicleSVM().fit(*problems.cancer()).save(path)
    rewrite(path, change)
    with pytest.raises(DataError, match=message):
        ChicleSVM.load(path)


@pytest.mark.parametrize("stem", sorted(path.stem for path in GOLDEN.glob("*.npz")))
def test_every_file_that_was_once_written_can_be_read(stem):
    """Made by tests/golden/models/make.py; it has the parameters, predicts the same, and can be fitted again."""
    model = getattr(estimators, stem.partition("-")[0]).load(GOLDEN / f"{stem}.npz")
    expected = json.loads((GOLDEN / f"{stem}.json").read_text(encoding="utf-8"))
    X = np.array(expected["X"])
    if "scores" in expected:
        assert model.predict(X).tolist() == expected["predictions"]
        np.testing.assert_allclose(model.decision_function(X), expected["scores"], rtol=1e-12)
        assert model.get_params()["class_weight"] == {"no": 2.0, "yes": 1.0}
    else:
        np.testing.assert_allclose(model.predict(X), expected["predictions"], rtol=1e-12)
    assert model.get_params().items() >= expected.get("params", {}).items()
    assert not len(model.history_) or model.history_[-1].figures["duality_gap"] == model.duality_gap_
    assert model.fit(X, model.predict(X)).n_features_in_ == 2


def test_every_linear_estimator_has_a_file_of_this_version():
    """A new one, or a new format, needs files of its own (tests/golden/models/make.py)."""
    stems = {path.stem for path in GOLDEN.glob("*.npz")}
    kinds = [name for name in estimators.__all__ if hasattr(getattr(estimators, name), "to_sklearn")]
    assert stems >= {f"{name}-v{persistence.VERSION}" for name in kinds if name != "LinearRegressor"}


@pytest.mark.parametrize(
    "params", [{"cv": KFold(3)}, {"cv": 3, "scoring": make_scorer(r2_score)}], ids=["cv", "scoring"]
)
def test_a_parameter_that_is_an_object_is_refused_by_name(params, tmp_path):
    """And what to do works: the fitted attributes stay."""
    X, y = problems.cancer()
    model = ChicleRidgeCV(alphas=[np.int64(1), 10.0], **params).fit(X, y)
    name = list(params)[-1]
    with pytest.raises(UsageError, match=rf"ChicleRidgeCV cannot be saved with {name}=.*set_params\({name}=None\)"):
        model.save(tmp_path / "model.npz")
    model.set_params(**{name: None}).save(tmp_path / "model.npz")
    loaded = ChicleRidgeCV.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert (loaded.alpha_, loaded.alphas) == (model.alpha_, [1, 10.0])
