"""ChicleCNNClassifier: any form of images, scikit-learn's ways of working, and clear refusals."""

import pickle

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from torch import nn

from chicle_elastic.errors import DataError, DivergedError, UsageError
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.network import Scaling
from estimators import ChicleCNNClassifier
from estimators.cnn_defaults import auto_learning_rate, auto_local_steps
from tests.estimators.cnn_data import FAST, bars, digits, folder, paper, tiny
from tests.solvers import nets


@pytest.mark.parametrize(("scale", "shift"), [(1 / 16, 0), (255 / 16, 1000), ("bytes", 0)])
def test_the_defaults_learn_images_of_any_range(scale, shift):
    """Digits from 0 to 1, far from 0, and as bytes: the same pictures, so about the same model.

    64 features are an 8 x 8 image in the middle of the smallest square that the network takes.
    """
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.uint8) if scale == "bytes" else X * scale + shift
    model = ChicleCNNClassifier(random_state=0).fit(X, y)
    assert model.score(X, y) > 0.99
    assert model.image_shape_ == (1, 16, 16)
    values = X.astype(float) * model.scaling_.scale + model.scaling_.shift
    np.testing.assert_allclose([values.mean(), values.std()], [0, 1], atol=1e-3)
    np.testing.assert_allclose(model.scaling_.padding, X.mean(), rtol=1e-4)
    assert 0.005 < model.learning_rate_ < 0.01


def test_a_single_value_is_not_scaled():
    """Nothing can be learnt of it."""
    constant = ChicleCNNClassifier(max_epochs=1).fit(np.full((20, 4), 7.0), np.arange(20) % 2)
    assert constant.scaling_ == Scaling(scale=1.0, shift=-7.0, padding=7.0)


def test_several_tasks_learn_with_the_defaults():
    """With the outer momentum that the user knows nothing of, also while their number changes."""
    X, y = load_digits(return_X_y=True)
    runtime = InProcess(num_tasks=16, changes=((4, 8), (8, 2)))
    assert ChicleCNNClassifier(random_state=0, runtime=runtime).fit(X, y).score(X, y) > 0.97


def test_the_learning_rate_is_that_of_the_steps_there_are():
    """1 / (3 sqrt(steps)) within bounds; with the root of the batch, and what momentum adds up stays the same."""
    usual = {"batch_size": 8, "momentum": 0.9}
    rates = [auto_learning_rate(8 * steps, **usual) for steps in (1, 400, 2500, 10_000, 75_000, 10**7)]
    np.testing.assert_allclose(rates, [0.01, 0.01, 1 / 150, 1 / 300, 0.00121716, 0.001], rtol=1e-4)
    np.testing.assert_allclose(auto_learning_rate(80_000, batch_size=32, momentum=0.9), rates[3] * 2)
    np.testing.assert_allclose(auto_learning_rate(80_000, batch_size=8, momentum=0.0), rates[3] * 10)
    X, y = bars()
    model = tiny(learning_rate="auto", local_steps=1).fit(X, y)
    assert model.learning_rate_ == auto_learning_rate(3 * 240, batch_size=16, momentum=0.9)
    assert model.history_[0].figures["learning_rate"] == model.learning_rate_
    assert model.history_[-1].figures["learning_rate"] < model.learning_rate_
    assert tiny(decay=0.0, local_steps=1).fit(X, y).history_[-1].figures["learning_rate"] == 0.03


def test_what_a_module_of_ones_own_gets_is_not_touched_unless_asked_for():
    """Numbers as they are and bytes from -1 to 1; with standardize=True mean 0 and deviation 1."""
    X, y = bars()
    assert tiny(max_epochs=1).fit(X, y).scaling_ == Scaling(scale=2 / 255, shift=-1.0)
    assert tiny(max_epochs=1).fit(X / 255, y).scaling_ == Scaling()
    model = tiny(standardize=True).fit(X, y)
    np.testing.assert_allclose(model.scaling_.scale, 1 / X.std(), rtol=1e-4)
    assert model.score(X, y) > 0.9
    assert paper(max_epochs=1, standardize=False).fit(*digits(100)).scaling_ == Scaling()


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
    search = GridSearchCV(tiny(max_epochs=1), {"module__has_norm": [False, True], "momentum": [0.5]}, cv=2)
    assert search.fit(X, y).best_estimator_.momentum == 0.5
    with pytest.raises(TypeError, match="passed as module__width"):
        ChicleCNNClassifier(width=3)
    with pytest.raises(UsageError, match=r"cannot be made with .*'width': 3"):
        tiny(module__width=3).fit(X, y)
    with pytest.raises(UsageError, match="module is an instance, so module__dropout would be ignored"):
        ChicleCNNClassifier(nets.Tiny(), module__dropout=0.1).fit(X, y)


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
    default = ChicleCNNClassifier(max_epochs=1, random_state=0).fit(*digits(100))
    default.save(tmp_path / "default.npz")
    again = ChicleCNNClassifier.load(tmp_path / "default.npz")
    np.testing.assert_array_equal(again.predict_proba(digits(100)[0]), default.predict_proba(digits(100)[0]))
    assert (again.scaling_, again.learning_rate_) == (default.scaling_, default.learning_rate_)
    rates = [model.partial_fit(*digits(100)).learning_rate_ for model in (again, default)]
    assert rates[0] == rates[1]


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
    model = tiny(learning_rate="auto", batch_size=8, standardize=True)
    rates, scalings = [], []
    for factor in (1, 2, 1, 1, 1, 1):
        model.partial_fit((X * (factor / 255)).astype(np.float32), y, classes=["left", "middle", "right"])
        rates.append(model.learning_rate_)
        scalings.append(model.scaling_)
    assert scalings == scalings[:1] * 6, "that of the first images"
    assert rates == [auto_learning_rate(240 * (n + 1), batch_size=8, momentum=0.9) for n in range(6)]
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
    with pytest.raises(ValueError, match="'momentum' parameter of ChicleCNNClassifier must be"):
        model.set_params(momentum=-1.0).partial_fit(X, y)


def test_a_schedule_over_all_epochs_is_refused_where_nobody_knows_how_many_there_will_be():
    """It would not fall; the error names the parameter, and nothing is fitted."""
    X, y = bars(48)
    model = tiny(schedule="cosine", decay=1.0)
    with pytest.raises(UsageError, match=r"schedule='cosine' .* partial_fit does not know how many"):
        model.partial_fit(X, y)
    assert not hasattr(model, "module_")
    assert model.fit(X, y).n_epochs_ == 3


def test_a_warm_start_begins_with_the_weights_of_before():
    """The loss of its first epoch is below that of a fresh fit; another problem is refused."""
    X, y = bars()
    model = tiny(warm_start=True, max_epochs=1).fit(X, y)
    fresh = model.loss_
    assert model.fit(X, y).loss_ < fresh
    with pytest.raises(UsageError, match="warm_start cannot go on"):
        model.set_params(module__num_classes=2).fit(X[y != "left"], y[y != "left"])


def test_early_stopping_keeps_the_best_epoch(capsys, tmp_path):
    """Scores on samples held out, which end the fit when they do not improve; they are told with each epoch."""
    given = {"early_stopping": True, "n_iter_no_change": 2, "validation_fraction": 0.2}
    model = tiny(max_epochs=30, **given, verbose=1, logdir=tmp_path).fit(*bars(300))
    assert len(model.validation_scores_) == model.n_epochs_ < 30
    assert model.best_validation_score_ == max(model.validation_scores_) > 0.9
    assert model.history_.column("samples").sum() == 240 * model.n_epochs_
    found = [record.figures["validation_score"] for record in model.history_ if "validation_score" in record.figures]
    assert found == model.validation_scores_
    assert f"validation score {found[0]:.4g}" in capsys.readouterr().out
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard")
    [run] = tmp_path.iterdir()
    board = reader.EventAccumulator(str(run)).Reload()
    assert [event.value for event in board.Scalars("model/validation_score")] == pytest.approx(found)
    with pytest.raises(UsageError, match=r"validation_fraction=0\.001"):
        tiny(early_stopping=True, validation_fraction=0.001).fit(*bars(300))


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
    scalings = [tiny(max_epochs=1, standardize=True).fit(*data_).scaling_ for data_ in ((data,), (X, y))]
    assert scalings[0] == scalings[1]
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
    pytest.importorskip("sklearn.callback", reason="scikit-learn 1.9 and newer have callbacks")
    X, y = bars()
    stop = Stop()
    model = tiny(max_epochs=9, verbose=1, logdir=tmp_path).set_callbacks(stop).fit(X, y)
    assert model.n_epochs_ == len(stop.seen) == 2
    assert stop.seen[-1].shape == (20,)
    assert "epoch 2 done, mean loss" in capsys.readouterr().out
    assert list(tmp_path.iterdir())


def test_a_loss_that_is_no_number_is_an_error_with_iteration_and_learning_rate():
    """The history shows what was done until then, and a model of before is kept."""
    X, y = bars()
    with pytest.raises(DivergedError, match=r"iteration \d+ at a learning rate of 1e\+12"):
        tiny(learning_rate=1e12).fit(X, y)
    model = tiny(warm_start=True).fit(X, y)
    before = model.predict_proba(X)
    with pytest.raises(DivergedError):
        model.set_params(learning_rate=1e30).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert not np.isfinite(model.history_[-1].figures["loss"])


@pytest.mark.parametrize(
    ("params", "X", "complaint"),
    [
        ({}, np.zeros((3, 16, 16, 1), np.uint8), r"looks like channels last.*transpose\(0, 3, 1, 2\)"),
        ({}, np.zeros((3, 1, 8, 8), np.uint8), "too small for the default network"),
        ({}, np.zeros((3, 1, 1, 16, 16)), "5 axes"),
        ({}, np.full((3, 1, 16, 16), np.nan), "NaN"),
        ({}, np.full((3, 16, 16), "a"), "holds text"),
        ({"image_shape": (4, 4)}, np.zeros((3, 20)), "has 16 values, but X has 20 features"),
        ({"image_shape": (4,)}, np.zeros((3, 4)), r"say \(height, width\)"),
        ({"image_shape": (20, 20)}, np.zeros((3, 16, 16)), r"images of shape \(1, 16, 16\), but image_shape"),
        ({"module": nets.Tiny}, np.zeros((3, 1, 16, 16)), r"does not take samples of shape \(1, 16, 16\)"),
        ({"module": nets.Tiny, "module__num_classes": 1}, np.zeros((3, 1, 8, 8)), r"logits of shape \(2, 2\) or more"),
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


class Probable(nn.Module):
    """A network that ends with a softmax, as those of other libraries do."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(64, 3)

    def forward(self, x):
        return torch.softmax(self.out(x.flatten(1)), dim=1)


@pytest.mark.parametrize(
    ("num_samples", "num_tasks", "expected"),
    [
        (13_470, 1, 16),
        (60_000, 1, 75),
        (10**7, 1, 128),
        (13_470, 4, 4),
        (600_000, 16, 16),
        (60_000, 4, 16),
        (32_000, 4, 10),
        (100, 8, 4),
    ],
)
def test_local_steps_leave_a_hundred_averages(num_samples, num_tasks, expected):
    """16 where there is data enough, and one task has nothing to average."""
    assert auto_local_steps(num_samples, batch_size=8, num_tasks=num_tasks) == expected


def test_local_steps_of_a_fit_follow_the_most_tasks_there_may_be(tmp_path):
    """`partial_fit` keeps those of one task, because its calls go on with one model; a file has them, too."""
    X, y = digits(300)
    model = paper(max_epochs=2, runtime=InProcess(num_tasks=2, changes=((3, 4),))).fit(X, y)
    assert model.local_steps_ == 4
    model.save(tmp_path / "model.npz")
    assert ChicleCNNClassifier.load(tmp_path / "model.npz").local_steps_ == 4
    assert paper(runtime=InProcess(num_tasks=4)).partial_fit(X, y).local_steps_ == 16
    assert paper(max_epochs=1, local_steps=7).fit(X, y).local_steps_ == 7


def test_a_fit_that_has_learned_nothing_says_so():
    """Labels that have nothing to do with the images."""
    X, y = digits(300)
    y = np.random.default_rng(0).permutation(y)
    with pytest.warns(ConvergenceWarning, match=r"guessing among 10 classes gives 2\.3"):
        paper(max_epochs=1).fit(X, y)


def test_decisions_are_outputs_of_the_network():
    """One column per class; with two classes one number, whose sign is the label."""
    X, y = digits(300)
    model = paper(max_epochs=3).fit(X, y)
    decision = model.decision_function(X)
    assert decision.shape == (len(X), 10)
    np.testing.assert_allclose(softmax(decision, axis=1), model.predict_proba(X), rtol=1e-5)
    X, y = X[y < 2], y[y < 2]
    model.fit(X, y)
    assert model.decision_function(X).shape == (len(X),)
    np.testing.assert_array_equal(model.decision_function(X) > 0, model.predict(X) == 1)


def test_a_module_may_have_outputs_of_classes_that_a_fold_lacks():
    """As cross_val_score meets it with a rare class: torch's loss takes them, and no sample is given to them."""
    X = np.random.default_rng(0).normal(size=(24, 1, 8, 8))
    y = np.arange(24) % 3
    model = ChicleCNNClassifier(module=nets.Tiny, module__num_classes=5, max_epochs=1, random_state=0).fit(X, y)
    assert model.predict_proba(X).shape == (24, 3)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0, rtol=1e-5)
    assert set(model.predict(X)) <= {0, 1, 2}
