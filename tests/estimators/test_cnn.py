"""ChicleCNNClassifier: any form of images, scikit-learn's ways of working, and clear refusals."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from chicle_elastic.errors import DataError, DivergedError, UsageError
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleCNNClassifier
from tests.estimators.cnn_data import FAST, bars, digits, folder, paper, tiny
from tests.solvers import nets

EXCUSED = {
    "check_sample_weight_equivalence_on_dense_data": "a repeated sample makes a step of its own, a weight does not"
}


@parametrize_with_checks([paper(max_epochs=10)], expected_failed_checks=lambda _: EXCUSED)
def test_scikit_learns_checks_pass(estimator, check):
    """All but one of the two that compare weights with repetitions (the other is for sparse X)."""
    check(estimator)


def test_images_are_taken_in_any_form():
    """Four axes, three, flat with a shape, and lists give one and the same model; bytes stay bytes."""
    X, y = bars()
    model = tiny().fit(X, y)
    assert model.score(*bars(seed=1)) > 0.9
    assert model.image_shape_ == (1, 8, 8)
    assert model.is_byte_
    assert model.n_features_in_ == 64
    expected = model.predict_proba(X)
    np.testing.assert_allclose(expected.sum(axis=1), 1)
    flat = X.reshape(-1, 64)
    others = [
        tiny().fit(X[:, 0], y).predict_proba(X[:, 0]),
        tiny(image_shape=(8, 8)).fit(flat, y).predict_proba(flat),
        tiny(image_shape=[1, 8, 8]).fit(flat, y).predict_proba(X),
    ]
    for other in others:
        np.testing.assert_array_equal(other, expected)
    as_numbers = X.astype(float) * (2 / 255) - 1
    assert tiny().fit(as_numbers.tolist(), y).score(as_numbers, y) > 0.9


def test_flat_samples_become_the_smallest_square_that_the_network_takes():
    """64 features are an 8 x 8 image in the middle of 16 x 16, and are learnt as one."""
    X, y = digits(1700)
    model = paper(max_epochs=4, learning_rate=0.01, batch_size=8).fit(X[:1400], y[:1400])
    assert model.image_shape_ == (1, 16, 16)
    assert model.score(X[1400:], y[1400:]) > 0.85


def test_a_module_of_ones_own_gets_flat_samples_flat():
    """A plain multi-layer perceptron, as an instance; the user's copy is left as it was."""
    X, y = digits(300)
    mlp = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    before = mlp[0].weight.detach().clone()
    model = ChicleCNNClassifier(mlp, **FAST | {"max_epochs": 8}).fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.image_shape_ == (64,)
    assert torch.equal(mlp[0].weight, before)
    assert model.module_ is not mlp


def test_arguments_of_the_module_are_parameters():
    """As skorch has them: in the constructor, get_params, set_params, clone and grids."""
    model = tiny(module__dropout=0.5)
    assert model.get_params()["module__dropout"] == 0.5
    other = clone(model).set_params(module__dropout=0.0, module__has_norm=True)
    assert other.get_params()["module__has_norm"] is True
    X, y = bars()
    assert other.fit(X, y).module_.norm.num_features == 4
    search = GridSearchCV(tiny(max_epochs=1), {"module__has_norm": [False, True], "momentum": [0.5]}, cv=2, n_jobs=2)
    assert search.fit(X, y).best_estimator_.momentum == 0.5
    with pytest.raises(TypeError, match="passed as module__width"):
        ChicleCNNClassifier(width=3)
    with pytest.raises(UsageError, match=r"cannot be made with .*'width': 3"):
        tiny(module__width=3).fit(X, y)
    with pytest.raises(UsageError, match="module is an instance, so module__dropout would be ignored"):
        ChicleCNNClassifier(nets.Tiny(), module__dropout=0.1).fit(X, y)


def test_it_works_in_a_pipeline_and_with_cross_validation():
    """Several fits, each of its own."""
    X, y = digits(600)
    mlp = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    pipeline = make_pipeline(MinMaxScaler(), ChicleCNNClassifier(mlp, **FAST | {"max_epochs": 8}))
    assert cross_val_score(pipeline, X, y, cv=2).mean() > 0.8


def test_equal_seeds_give_equal_models_and_tasks_share_the_work():
    """To the bit in one process; four tasks that come and go learn the same."""
    X, y = bars()
    first, second = (tiny(kernels="auto").fit(X, y).predict_proba(X) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    model = tiny(runtime=InProcess(num_tasks=4, changes=((2, 1),)), local_steps=2).fit(X, y)
    assert set(model.history_.column("num_tasks")) == {1, 4}
    assert model.score(X, y) > 0.9
    assert model.n_epochs_ == 3
    assert model.loss_ == model.history_[-1].figures["epoch_loss"]


def test_a_copy_predicts_the_same(tmp_path):
    """pickle, and a file without pickle; both go on training."""
    X, y = bars()
    model = tiny(module__has_norm=True).fit(X, y)
    model.save(tmp_path / "model.npz")
    for other in (pickle.loads(pickle.dumps(model)), ChicleCNNClassifier.load(tmp_path / "model.npz")):
        np.testing.assert_array_equal(other.predict_proba(X), model.predict_proba(X))
        assert other.history_ == model.history_
        assert other.get_params()["module__has_norm"] is True
        assert other.partial_fit(X, y).n_epochs_ == 1
    default = paper(max_epochs=1).fit(*digits(100))
    default.save(tmp_path / "default.npz")
    again = ChicleCNNClassifier.load(tmp_path / "default.npz")
    np.testing.assert_array_equal(again.predict(digits(100)[0]), default.predict(digits(100)[0]))


def test_a_file_of_another_module_or_estimator_is_refused(tmp_path):
    """With the name of the file."""
    X, y = bars()
    path = tmp_path / "model.npz"
    tiny(max_epochs=1).fit(X, y).save(path)
    with pytest.raises(UsageError, match=r"model\.npz: the network that was saved does not fit"):
        ChicleCNNClassifier.load(path, module=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)))
    from estimators import ChicleSVM

    with pytest.raises(UsageError, match=r"use ChicleCNNClassifier\.load"):
        ChicleSVM.load(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="damaged"):
        ChicleCNNClassifier.load(path)


def test_partial_fit_goes_on_with_weights_and_momentum():
    """A few calls learn what a fit does; unknown labels and other images are refused."""
    X, y = bars()
    model = tiny()
    for _ in range(3):
        model.partial_fit(X, y, classes=["left", "middle", "right"])
    assert model.score(X, y) > 0.9
    part = y != "right"
    model.partial_fit(X[part], y[part])
    with pytest.raises(UsageError, match=r"labels \['top'\], which are not among the classes"):
        model.partial_fit(X[:2], ["left", "top"])
    with pytest.raises(UsageError, match="not those of the first call"):
        model.partial_fit(X, y, classes=["left", "right"])
    with pytest.raises(DataError, match=r"images of shape \(1, 4, 8\).*fitted with \(1, 8, 8\)"):
        model.partial_fit(X[:, :, :4], y)


def test_a_warm_start_begins_with_the_weights_of_before():
    """The loss of its first epoch is below that of a fresh fit; another problem is refused."""
    X, y = bars()
    model = tiny(warm_start=True, max_epochs=1).fit(X, y)
    fresh = model.loss_
    assert model.fit(X, y).loss_ < fresh
    with pytest.raises(UsageError, match="warm_start cannot go on"):
        model.set_params(module__num_classes=2).fit(X[y != "left"], y[y != "left"])


def test_early_stopping_keeps_the_best_epoch():
    """Scores on samples held out, which end the fit when they do not improve."""
    X, y = bars(300)
    model = tiny(max_epochs=30, early_stopping=True, n_iter_no_change=2, validation_fraction=0.2).fit(X, y)
    assert len(model.validation_scores_) == model.n_epochs_ < 30
    assert model.best_validation_score_ == max(model.validation_scores_) > 0.9
    assert model.history_.column("samples").sum() == 240 * model.n_epochs_
    with pytest.raises(UsageError, match=r"validation_fraction=0\.001"):
        tiny(early_stopping=True, validation_fraction=0.001).fit(X, y)


def test_weights_decide_what_is_learnt():
    """Of samples, and of classes."""
    X, y = bars()
    ignored = tiny().fit(X, y, sample_weight=np.where(y == "left", 0.0, 5.0))
    assert "left" not in ignored.predict(X)
    ignored = tiny(class_weight={"left": 0.0}).fit(X, y)
    assert "left" not in ignored.predict(X)
    assert tiny(class_weight="balanced").fit(X, y).score(X, y) > 0.9


def test_a_chunk_folder_takes_the_place_of_x_and_y(tmp_path):
    """Its images have their shape, and its labels come along; predictions are in the order of X."""
    X, y = bars()
    data = folder(tmp_path / "bars", X, y)
    model = tiny().fit(data)
    assert model.image_shape_ == (1, 8, 8)
    assert model.score(data) == model.score(X, y) > 0.9
    np.testing.assert_array_equal(model.predict(data), model.predict(X))
    flat = folder(tmp_path / "flat", X, y, has_shape=False)
    assert tiny(image_shape=(8, 8)).fit(flat).score(flat) > 0.9
    with pytest.raises(UsageError, match="early_stopping holds out"):
        tiny(early_stopping=True).fit(data)
    with pytest.raises(DataError, match="dtype uint8, but ChicleCNNClassifier was fitted with float32"):
        tiny(max_epochs=1).fit(X / 255, y).predict(data)


class Stop:
    """A callback that ends the fit after two epochs."""

    def __init__(self):
        self.seen = []

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if context.task_name != "epoch":
            return None
        self.seen.append(fitted_estimator.predict(bars(20)[0]))
        return len(self.seen) == 2


def test_callbacks_are_told_of_every_epoch(capsys, tmp_path):
    """And may end the fit; there are lines and a folder for TensorBoard besides."""
    X, y = bars()
    stop = Stop()
    model = tiny(max_epochs=9, verbose=1, logdir=tmp_path).set_callbacks(stop).fit(X, y)
    assert model.n_epochs_ == len(stop.seen) == 2
    assert stop.seen[-1].shape == (20,)
    assert "epoch 2 done, mean loss" in capsys.readouterr().out
    assert list(tmp_path.iterdir())


def test_a_loss_that_is_no_number_is_an_error_with_iteration_and_learning_rate():
    """The estimator shows what was done until then."""
    X, y = bars()
    with pytest.raises(DivergedError, match=r"iteration \d+ at a learning rate of 1e\+12"):
        tiny(learning_rate=1e12).fit(X, y)


@pytest.mark.parametrize(
    ("params", "X", "complaint"),
    [
        ({}, np.zeros((3, 16, 16, 1), np.uint8), r"looks like channels last.*transpose\(0, 3, 1, 2\)"),
        ({}, np.zeros((3, 1, 8, 8), np.uint8), "too small for the default network"),
        ({}, np.zeros((3, 1, 1, 16, 16)), "5 axes"),
        ({}, np.full((3, 1, 16, 16), np.nan), "NaN"),
        ({}, np.full((3, 16, 16), "a"), "could not convert string"),
        ({"image_shape": (4, 4)}, np.zeros((3, 20)), "has 16 values, but X has 20 features"),
        ({"image_shape": (4,)}, np.zeros((3, 4)), r"say \(height, width\)"),
        ({"image_shape": (20, 20)}, np.zeros((3, 16, 16)), r"images of shape \(1, 16, 16\), but image_shape"),
        ({"module": nets.Tiny}, np.zeros((3, 1, 16, 16)), r"does not take samples of shape \(1, 16, 16\)"),
        ({"module": nets.Tiny, "module__num_classes": 5}, np.zeros((3, 1, 8, 8)), r"logits of shape \(2, 2\)"),
        ({"module__depth": 5}, np.zeros((3, 1, 16, 16)), "module__depth; pass a module"),
        ({"device": "tpu"}, np.zeros((3, 1, 16, 16)), "'cuda:N'"),
        ({"local_steps": 0}, np.zeros((3, 1, 16, 16)), "local_steps"),
    ],
)
def test_what_cannot_be_trained_is_refused(params, X, complaint):
    """With shapes and what to do, before the first step."""
    with pytest.raises(ValueError, match=complaint):
        ChicleCNNClassifier(**params).fit(X, [0, 1, 1])


def test_predictions_need_images_like_those_of_the_fit():
    """Same shape and same dtype: bytes are scaled, and numbers are not."""
    X, y = bars()
    model = tiny(max_epochs=1).fit(X, y)
    with pytest.raises(DataError, match=r"X has images of shape \(1, 8, 4\) \(32 features\)"):
        model.predict(X[:, :, :, :4])
    with pytest.raises(DataError, match="X has the dtype float32, but ChicleCNNClassifier was fitted with uint8"):
        model.predict(X / 255)
    with pytest.raises(ValueError, match="expecting 64 features"):
        model.predict(X.reshape(-1, 64)[:, :60])
