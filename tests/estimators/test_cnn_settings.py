"""Settings of ChicleCNNClassifier that would be ignored, or would run what a file names, are refused."""

import functools
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from chicle_elastic.errors import UsageError
from estimators import ChicleCNNClassifier
from estimators.submitted.staging import stage
from tests.estimators.cnn_data import bars, tiny
from tests.estimators.test_cnn import Probable

SCHEDULERS = torch.optim.lr_scheduler


class Flattening(nn.Module):
    """Takes `view` of what a convolution makes of images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        hidden = torch.relu(self.conv(images))
        return self.out(hidden.view(hidden.size(0), -1))


def test_a_module_that_flattens_by_view_learns_images_of_several_channels() -> None:
    """With the defaults, in `fit` and in `partial_fit`."""
    X, y = bars()
    model = tiny(module=Flattening, kernels="auto").fit(np.repeat(X, 3, axis=1), y)
    assert model.partial_fit(np.repeat(X, 3, axis=1), y).score(np.repeat(X, 3, axis=1), y) > 0.9


def sgd(module: nn.Module) -> Any:
    """Make an optimizer."""
    return torch.optim.SGD(module.parameters(), lr=0.01)


def falls_to(rate: float) -> Any:
    """Return a schedule that ends with this rate."""
    return functools.partial(SCHEDULERS.LambdaLR, lr_lambda=lambda epoch: rate if epoch else 1.0)


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"optimizer": "rmsprop"}, "'rmsprop' is none; give 'sgd'"),
        ({"optimizer": torch.optim.Adam([torch.zeros(1)])}, r"give the class, torch\.optim\.Adam, and its settings"),
        ({"optimizer": "adam", "optimizer__lr": 0.1}, "optimizer__lr is learning_rate here"),
        ({"optimizer": torch.optim.NAdam, "optimizer__lr": 0.1}, "optimizer__lr is learning_rate here"),
        ({"optimizer": sgd, "weight_decay": 0.1}, "ignored by the function optimizer=sgd"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS cannot take a step: .*closure"),
        ({"optimizer": torch.optim.AdamW, "optimizer__beta": 1}, "AdamW cannot be made with .*beta"),
        ({"optimizer": lambda module: module}, "makes a Tiny, which is no torch.optim.Optimizer"),
        ({"optimizer": lambda module: sgd(nn.Linear(1, 1))}, "of another module"),
        ({"schedule": "exponential"}, "'exponential' is none"),
        ({"schedule": "cosine", "schedule__T_max": 3}, "'cosine' has no settings, so schedule__T_max"),
        ({"schedule": SCHEDULERS.ReduceLROnPlateau}, "no rate for step 2 of 3: .*metrics"),
        (
            {"schedule": SCHEDULERS.OneCycleLR, "schedule__max_lr": 0.1, "schedule__total_steps": 45},
            "made for total_steps=45, and this fit has 3; .*schedule_each",
        ),
        *(({"schedule": falls_to(rate)}, "finite and at least 0") for rate in (-1.0, math.nan, math.inf)),
        ({"loss": "cross_entropy"}, "loss=cross_entropy is none; give an instance"),
        ({"loss": nn.CrossEntropyLoss}, "loss=CrossEntropyLoss is none; give an instance"),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "reduction='sum', and a step needs the mean"),
        ({"loss": nn.BCEWithLogitsLoss()}, r"BCEWithLogitsLoss raised .*outputs of shape \(16, 3\)"),
        ({"loss": lambda outputs, codes: outputs}, r"returned \(16, 3\) .*one number"),
        ({"loss": lambda outputs, codes: outputs.detach().mean()}, "no gradient"),
    ],
)
def test_settings_that_cannot_be_used_or_would_be_ignored_are_refused(params: dict[str, Any], complaint: str) -> None:
    """By name, with the values and what to give instead."""
    with pytest.raises(UsageError, match=complaint):
        tiny(**params).fit(*bars(48))


@pytest.mark.parametrize("parameter", ["optimizer", "schedule", "loss"])
def test_a_name_of_what_the_parameter_is_not_for_is_not_called(parameter: str, tmp_path: Path) -> None:
    """Whatever stands in a model file, which names code of a later fit."""
    model = tiny(max_epochs=1).fit(*bars(48)).set_params(**{parameter: "subprocess:Popen"})
    model.save(tmp_path / "net.npz")
    with pytest.raises(UsageError, match=f"{parameter}='subprocess:Popen' names neither"):
        ChicleCNNClassifier.load(tmp_path / "net.npz").fit(*bars(48))


def test_a_file_that_names_a_command_runs_none(tmp_path: Path) -> None:
    """A module is a class of networks."""
    model = tiny(max_epochs=1).fit(*bars(48))
    model.set_params(
        module=type("Popen", (), {"__module__": "subprocess"}), module__args=["touch", str(tmp_path / "x")]
    )
    model.save(tmp_path / "net.npz")
    with pytest.raises(UsageError, match="subprocess:Popen is no class of networks"):
        ChicleCNNClassifier.load(tmp_path / "net.npz")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("is_loaded", [False, True])
def test_the_state_of_another_optimizer_is_dropped(is_loaded: bool, tmp_path: Path) -> None:
    """Also of one whose state has the same length, and of other settings; that of the same optimizer is kept."""
    X, y = bars()
    other = {"optimizer": torch.optim.Adamax, "optimizer__betas": (0.5, 0.9), "learning_rate": 0.01}

    def after(**params: Any) -> Any:
        model = tiny(**other).fit(X, y)
        if is_loaded:
            model.save(tmp_path / "net.npz")
            model = ChicleCNNClassifier.load(tmp_path / "net.npz")
        weights = nn.utils.parameters_to_vector(model.module_.parameters()).detach()
        v, told = model._momentum, model._state_of
        model.set_params(**params).partial_fit(X, y)
        assert (model._state_of == told) == (not params)
        again = tiny(**{**other, **params}).fit(X, y)
        nn.utils.vector_to_parameters(weights, again.module_.parameters())
        if params:
            del again._momentum  # begins anew
        else:
            again._momentum = v
        again.partial_fit(X, y)
        np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))

    after()
    after(optimizer__betas=(0.8, 0.9))
    after(optimizer=torch.optim.RAdam)


def test_arguments_of_code_that_is_left_out_are_left_out(tmp_path: Path) -> None:
    """So that a model that was loaded can be fitted."""
    schedule = functools.partial(SCHEDULERS.StepLR, step_size=1)
    model = tiny(schedule=schedule, schedule__gamma=0.5, optimizer=lambda module, lr: sgd(module), optimizer__lr=0.1)
    model.fit(*bars(48)).save(tmp_path / "net.npz")
    assert ChicleCNNClassifier.load(tmp_path / "net.npz").fit(*bars(48)).n_epochs_ == 3


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, "tasks import it: write a function"),
        ({"schedule": SCHEDULERS.LambdaLR, "schedule__lr_lambda": lambda epoch: 1.0}, "cannot go to a cluster"),
    ],
)
def test_code_without_a_name_goes_to_no_cluster(params: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    """And nothing is written."""
    with pytest.raises(UsageError, match=complaint):
        stage(tiny(random_state=0, **params), *bars(48), None, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_probabilities_are_warned_of_for_what_takes_their_softmax() -> None:
    """The cross-entropy, and with a loss of the user's the predictions."""
    X, y = bars()

    def log_loss(outputs: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        return nn.functional.nll_loss(outputs.clamp(min=1e-6).log(), codes)

    for loss, reason in ((None, "The loss expects logits"), (log_loss, "predict_proba takes the softmax")):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            tiny(module=Probable, loss=loss, max_epochs=1).fit(X, y)
        assert any(reason in str(each.message) for each in told)
