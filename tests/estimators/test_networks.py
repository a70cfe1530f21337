"""Networks for numbers and for several labels per sample: those of a plain loop, from every form of the data."""

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.metrics import accuracy_score, r2_score
from torch import nn
from torch.nn import functional

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.folder_writer import ChunkFolderWriter
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError, DivergedError, UsageError
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleCNNClassifier, ChicleRegressor
from estimators.submitted.staging import Staged, stage
from tests.estimators.cnn_data import bars, tiny
from tests.solvers import nets

QUICK: dict[str, Any] = {"learning_rate": 0.02, "batch_size": 16, "max_epochs": 20, "random_state": 0}


def mlp(num_outputs: int = 1, num_features: int = 6) -> nn.Module:
    """Return a network with equal weights in each call."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(num_features, 12), nn.Tanh(), nn.Linear(12, num_outputs))


def numbers(num_rows: int = 200, *, dtype: str = "float32") -> tuple[Array, Array]:
    """Return samples and two targets of each."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (num_rows, 6), dtype=np.uint8) if dtype == "uint8" else rng.normal(size=(num_rows, 6))
    scaled = X / 127.5 - 1 if dtype == "uint8" else X
    y = np.stack([scaled[:, 0] - 2 * scaled[:, 1], scaled[:, 2] + 0.5], axis=1)
    return X.astype(dtype), y


def plain_losses(network: nn.Module, X: Array, y: Array, loss: Any, epochs: int) -> list[float]:
    """Return the losses of a plain loop that takes all samples in each step."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
    inputs, targets, losses = torch.from_numpy(X), torch.from_numpy(y.astype(np.float32)), []
    for _ in range(epochs):
        found = loss(network(inputs).view(targets.shape), targets)
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        losses.append(found.item())
    return losses


def ends(model: Any) -> list[float]:
    """Return the loss of each epoch."""
    return [record.figures["epoch_loss"] for record in model.history_ if "epoch_loss" in record.figures]


@pytest.mark.parametrize("columns", [slice(0, 1), slice(0, 2), 0])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_regressor_has_the_losses_of_a_plain_loop(columns: Any, dtype: str) -> None:
    """Of one number per sample, with and without an axis of its own, and of two; on bytes and on floats."""
    X, y = numbers(dtype=dtype)
    y = y[:, columns]
    num_outputs = 1 if y.ndim == 1 else y.shape[1]
    whole: dict[str, Any] = {"batch_size": 200, "local_steps": 1, "decay": 0.0, "max_epochs": 6}
    model = ChicleRegressor(mlp(num_outputs), **{**QUICK, **whole}).fit(X, y)
    inputs = X.astype(np.float32) * np.float32(2 / 255) - 1 if dtype == "uint8" else X
    np.testing.assert_allclose(
        ends(model), plain_losses(mlp(num_outputs), inputs, y, functional.mse_loss, 6), rtol=1e-4
    )
    assert model.predict(X).shape == y.shape
    assert model.predict(X).dtype == np.float64
    assert model.score(X, y) == pytest.approx(r2_score(y, model.predict(X)))


def labels(num_rows: int = 200) -> tuple[Array, Array]:
    """Return samples and three labels of each, 0 or 1."""
    X, y = numbers(num_rows)
    return X, np.column_stack([y[:, 0] > 0, y[:, 1] > 0.5, X[:, 3] > 0]).astype(int)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, torch.from_numpy, list])
def test_several_labels_have_the_losses_of_a_plain_loop(form: Any) -> None:
    """Of the cross-entropy of each label by itself, whatever holds them; predictions are 0 and 1."""
    X, y = labels()
    whole: dict[str, Any] = {"batch_size": 200, "local_steps": 1, "decay": 0.0, "max_epochs": 6}
    model = ChicleCNNClassifier(mlp(3), **{**QUICK, **whole}).fit(X, form(y))
    loss = functional.binary_cross_entropy_with_logits
    np.testing.assert_allclose(ends(model), plain_losses(mlp(3), X, y, loss, 6), rtol=1e-4)
    probabilities = model.predict_proba(X)
    assert probabilities.shape == y.shape
    np.testing.assert_array_equal(model.predict(X), probabilities > 0.5)
    np.testing.assert_array_equal(model.decision_function(X) > 0, probabilities > 0.5)
    assert model.score(X, y) == accuracy_score(y, model.predict(X))


@pytest.mark.parametrize("kind", ["numbers", "labels"])
def test_tasks_that_come_and_go_files_and_partial_fits_have_such_targets(kind: str, tmp_path: Path) -> None:
    """A model that is saved goes on as it is; each sample is used once an epoch."""
    X, y = numbers() if kind == "numbers" else labels()
    make: Any = ChicleRegressor if kind == "numbers" else ChicleCNNClassifier
    runtime = InProcess(num_tasks=3, changes=((4, 1), (9, 2)))
    model = make(mlp(y.shape[1]), **{**QUICK, "max_epochs": 40}, runtime=runtime, local_steps=2).fit(X, y)
    assert {record.num_tasks for record in model.history_} == {1, 2, 3}
    assert model.history_.column("samples").sum() == 40 * len(X)
    assert model.score(X, y) > 0.8
    model.save(tmp_path / "net.npz")
    loaded = make.load(tmp_path / "net.npz", module=mlp(y.shape[1]))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    model.set_params(runtime=None)
    np.testing.assert_array_equal(loaded.partial_fit(X, y).predict(X), model.partial_fit(X, y).predict(X))
    with pytest.raises(DataError, match=r"targets of shape .*was fitted with \(2,\)"):
        (loaded if kind == "numbers" else make(mlp(2), **QUICK).fit(X, y[:, :2])).partial_fit(X, y[:, :1])


def test_weights_of_samples_are_those_of_their_losses() -> None:
    """A sample of weight 0 does not count, in the fit, in early stopping and in the score of a regressor."""
    X, y = numbers()
    odd = y.copy()
    odd[::2] += 100
    weights = np.arange(len(X)) % 2
    for targets, loss in ((odd[:, 0], None), (odd, None), (odd, nn.SmoothL1Loss())):
        model = ChicleRegressor(mlp(targets[0].size), **{**QUICK, "max_epochs": 40}, loss=loss, early_stopping=True)
        model.fit(X, targets, sample_weight=weights)
        assert model.score(X, targets, sample_weight=weights) > 0.9
        assert model.best_validation_score_ > 0.8


def test_the_default_network_learns_numbers_of_images() -> None:
    """Standardized, as for classes."""
    X, y = nets.images(240)
    model = ChicleRegressor(max_epochs=8, random_state=0).fit(np.pad(X, ((0, 0), (0, 0), (4, 4), (4, 4))), y / 2)
    assert model.score(np.pad(X, ((0, 0), (0, 0), (4, 4), (4, 4))), y / 2) > 0.8


def write_numbers(path: Path, X: Array, y: Array) -> ChunkFolder:
    """Write samples and a target of each to a chunk folder."""
    with ChunkFolderWriter(path, kind="dense", dtype=X.dtype.name, max_tasks=2) as writer:
        writer.add(X, y)
        return writer.finish(classes=(), recode=lambda kept: kept)


def test_a_chunk_folder_brings_numbers_along_in_memory_or_in_its_files(tmp_path: Path) -> None:
    """For data larger than memory; the score is that of the arrays. One of labels is refused, and the other way."""
    X, y = numbers()
    folder = write_numbers(tmp_path / "chunks", X, y[:, 0])
    models = [ChicleRegressor(mlp(), **QUICK).fit(each) for each in (folder, folder.mapped())]
    assert models[0].score(folder) == pytest.approx(models[0].score(X, y[:, 0]))
    assert models[0].score(folder) > 0.9
    np.testing.assert_array_equal(models[0].predict(X), models[1].predict(X))
    with pytest.raises(UsageError, match=r"needs class labels and dense images .* has 0 classes"):
        ChicleCNNClassifier(mlp(3), **QUICK).fit(folder)


def test_several_labels_go_to_a_cluster_as_they_are(tmp_path: Path) -> None:
    """And so do numbers."""
    for make, (X, y) in ((ChicleCNNClassifier, labels()), (ChicleRegressor, numbers())):
        given: Any = make("tests.solvers.nets:Tiny", random_state=0)
        stage(given, X, y, None, tmp_path / make.__name__)
        np.testing.assert_array_equal(Staged(tmp_path / make.__name__).data()[1], y)


class Seen(nn.Module):
    """Has a steeper output where it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.out(images.flatten(1)) * (3.0 if torch.compiler.is_compiling() else 1.0)


def test_products_of_steps_may_be_computed_in_bfloat16() -> None:
    """About as exact; weights, loss and predictions stay float32."""
    X, y = bars()
    seen = []

    def loss(outputs: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        seen.append((outputs.dtype, outputs.grad_fn is not None and "ToCopy" in type(outputs.grad_fn).__name__))
        return functional.cross_entropy(outputs, codes)

    exact, rough = (tiny(module=Seen, loss=loss, precision=each).fit(X, y) for each in ("float32", "bf16"))
    assert {dtype for dtype, _ in seen} == {torch.float32}
    assert {is_cast for _, is_cast in seen} == {False, True}, "outputs were bfloat16 in one of the fits"
    assert rough.module_.out.weight.dtype == torch.float32
    np.testing.assert_allclose(ends(rough), ends(exact), rtol=0.03)
    assert rough.score(X, y) > 0.9
    with pytest.raises(UsageError, match="loss or precision; say kernels='auto'"):
        ChicleCNNClassifier(kernels="fused", precision="bf16").fit(np.zeros((9, 16, 16)), np.arange(9) % 3)


def test_a_module_may_be_compiled() -> None:
    """By the backend that is named; the losses are the same, and predictions run the module itself."""
    X, y = bars()
    plain = tiny(module=nets.Tiny, module__has_norm=True).fit(X, y)
    model = tiny(module=nets.Tiny, module__has_norm=True, compile="aot_eager").fit(X, y)
    np.testing.assert_allclose(ends(model), ends(plain), rtol=1e-4)
    compiled, plain = (tiny(module=Seen, compile=each, max_epochs=1).fit(X, y) for each in ("eager", False))
    assert abs(compiled.loss_ - plain.loss_) > 0.01
    with pytest.raises(UsageError, match="compile='nonsense' cannot be used"):
        tiny(module=Seen, compile="nonsense").fit(X, y)


def test_a_state_dict_goes_out_and_in() -> None:
    """Of tensors of their own, as files of safetensors need them; what is loaded is trained on."""
    X, y = bars()
    module = tiny(module__has_norm=True).fit(X, y).module_
    state = module.state_dict()
    assert len({tensor.untyped_storage().data_ptr() for tensor in state.values()}) == len(state)
    network = nets.Tiny(has_norm=True)
    network.load_state_dict(copy.deepcopy(state))
    model = tiny(module=network, learning_rate=1e-9, momentum=0.0, max_epochs=1).fit(X, y)
    torch.testing.assert_close(model.module_.conv.weight, module.conv.weight, rtol=1e-4, atol=1e-6)


class Growing(nn.Module):
    """Gets another layer in training, in its third step."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.steps = nn.Linear(64, 3), 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        self.steps += self.training
        if self.steps == 3 and not hasattr(self, "extra"):
            self.extra = nn.Linear(3, 3)
        found = self.out(images.flatten(1))
        return self.extra(found) if hasattr(self, "extra") else found


class Breaking(nn.Module):
    """Gives NaN for samples that begin with a bright value."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.out = nn.Linear(64, width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        rows = images.flatten(1)
        return self.out(rows) + torch.where(rows[:, :1] > 0.99, torch.nan, 0.0)


class Shaking(nn.Module):
    """Has a finite loss and a gradient that is none, of a root at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.out(images.flatten(1)) + (self.out.bias * 0).abs().sum().sqrt() * 0


def squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return a loss that has no `reduction`."""
    return (outputs - targets).square().mean()


X_BARS, Y_BARS = bars(96)
X_NUMBERS, Y_NUMBERS = numbers(96)
SCHEDULERS = torch.optim.lr_scheduler


@pytest.mark.parametrize(
    ("make", "params", "X", "y", "complaint"),
    [
        (tiny, {"module": Growing}, X_BARS, Y_BARS, r"Growing has the parameters extra\.weight, extra\.bias since"),
        (tiny, {}, [*X_BARS[:3], X_BARS[3, :, :5]], Y_BARS[:4], "inhomogeneous"),
        (tiny, {"module": mlp(3, 64)}, X_BARS.reshape(96, -1), [[0, 2]] * 96, "each is 0 or 1"),
        (tiny, {"module": mlp(3, 64)}, X_BARS.reshape(96, -1), [[0, 1, 1]] * 95, "inconsistent numbers of samples"),
        (tiny, {"module": mlp(2, 64)}, X_BARS.reshape(96, -1), [[0, 1, 1]] * 96, r"gives \(2, 2\) .* shape \(2, 3\)"),
        (tiny, {"module": mlp(2, 6), "class_weight": "balanced"}, X_NUMBERS, [[0, 1]] * 96, "pos_weight"),
        (ChicleRegressor, {"module": mlp(2)}, X_NUMBERS, Y_NUMBERS[:, 0], r"gives \(2, 2\) .* shape \(2,\)"),
        (ChicleRegressor, {"module": mlp()}, X_NUMBERS, ["a"] * 96, "could not convert string"),
        (ChicleRegressor, {"module": mlp()}, X_NUMBERS, [np.nan] * 96, "y contains NaN"),
        (ChicleRegressor, {"module": mlp()}, X_NUMBERS, None, "requires y"),
        (ChicleRegressor, {"module": mlp()}, X_NUMBERS, [1e300] * 96, "too large for dtype.*float32"),
        (ChicleRegressor, {"module": mlp(), "loss": nn.CrossEntropyLoss}, X_NUMBERS, Y_NUMBERS[:, 0], "an instance"),
        (ChicleRegressor, {"module": mlp(), "precision": "fp8"}, X_NUMBERS, Y_NUMBERS[:, 0], "precision"),
        (ChicleRegressor, {"module": mlp(), "kernels": "fused"}, X_NUMBERS, Y_NUMBERS[:, 0], "fused"),
        (tiny, {"schedule": SCHEDULERS.CosineAnnealingLR, "schedule__T_max": 3}, X_BARS, Y_BARS, "T_max=3, .* has 18"),
        (tiny, {"schedule": SCHEDULERS.ExponentialLR, "schedule__gamma": 0.1}, X_BARS, Y_BARS, "as one for epochs"),
        (tiny, {"schedule": SCHEDULERS.StepLR, "schedule__step_size": 1}, X_BARS, Y_BARS, "schedule_each='epoch'"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_what_to_do(
    make: Any, params: dict[str, Any], X: Any, y: Any, complaint: str
) -> None:
    """By a ValueError; schedulers here step after each batch."""
    given = {**params, "schedule_each": "step"} if "schedule" in params else params
    with pytest.raises(ValueError, match=complaint):
        make(**given, **({} if make is tiny else QUICK)).fit(X, y)


def test_a_scheduler_for_steps_that_falls_far_or_is_short_of_none_is_taken() -> None:
    """The rate may be 0 at the end, and begin there; a cosine of all steps is none of epochs."""
    for scheduler, settings in (
        (SCHEDULERS.CosineAnnealingLR, {"T_max": 18}),
        (SCHEDULERS.LinearLR, {"start_factor": 1e-9, "total_iters": 18}),
        (SCHEDULERS.ExponentialLR, {"gamma": 0.7}),
    ):
        given = {f"schedule__{name}": value for name, value in settings.items()}
        assert tiny(schedule=scheduler, schedule_each="step", **given).fit(X_BARS, Y_BARS).n_epochs_ == 3


@pytest.mark.parametrize("num_tasks", [1, 2])
def test_a_loss_that_is_no_number_is_told_with_step_and_samples(
    num_tasks: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The step stands in the error of one task, the samples in the log of each; the model of before is kept."""
    X, y = np.zeros((96, 64), np.float32), np.arange(96) % 3
    X[37, 0] = 1.0
    model = ChicleCNNClassifier(Breaking, batch_size=8, max_epochs=2, random_state=0).fit(X * 0.5, y)
    before = model.predict_proba(X * 0.5)
    model.set_params(runtime=InProcess(num_tasks=num_tasks), local_steps=4)
    with pytest.raises(
        DivergedError, match=r"in step [1-4] of iteration \d+" if num_tasks == 1 else r"in iteration \d+"
    ):
        model.fit(X, y)
    (told,) = [record.getMessage() for record in caplog.records if "not a finite number" in record.getMessage()][:1]
    named = told.partition("of the samples ")[2].split(", ")
    assert "37" in named or len(named) == 8
    assert "step" in told
    assert "epoch 1" in told
    np.testing.assert_array_equal(model.predict_proba(X * 0.5), before)


def test_weights_that_are_no_numbers_at_the_end_are_no_model() -> None:
    """Of a loss that was finite, in the only step of the fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DivergedError, match="weights of the network are not finite numbers after 1 iterations"):
            tiny(module=Shaking, max_epochs=1, batch_size=96).fit(X_BARS, Y_BARS)


def test_a_loss_without_a_reduction_is_asked_for_it_only_with_weights() -> None:
    """And the error says why."""
    ChicleRegressor(mlp(), **QUICK, loss=squares).fit(X_NUMBERS, Y_NUMBERS[:, 0])
    with pytest.raises(UsageError, match="called with reduction='none' because samples have weights"):
        ChicleRegressor(mlp(), **QUICK, loss=squares).fit(X_NUMBERS, Y_NUMBERS[:, 0], sample_weight=np.ones(96))


PAGE = Path(__file__).parents[2] / "docs/how-to/networks.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_code_of_the_page_runs(number: int) -> None:
    """From a plain loop, numbers and several labels, from skorch, from Lightning; as a reader copies it."""
    assert len(BLOCKS) == 4
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a plain loop beside other tests waits for its threads
    try:
        exec(compile(BLOCKS[number], str(PAGE), "exec"), {"__name__": "page"})
    finally:
        torch.set_num_threads(threads)


def test_parameters_that_no_group_has_are_named() -> None:
    """They stay as they are; frozen ones are meant."""
    for is_frozen in (False, True):
        network = nets.Tiny()
        network.conv.requires_grad_(not is_frozen)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model = tiny(module=network, optimizer=lambda module: torch.optim.SGD(module.out.parameters(), lr=0.01))
            model.fit(X_BARS, Y_BARS)
        named = [str(each.message) for each in told if "has no group with conv.weight, conv.bias" in str(each.message)]
        assert bool(named) != is_frozen
        torch.testing.assert_close(model.module_.conv.weight, network.conv.weight)
