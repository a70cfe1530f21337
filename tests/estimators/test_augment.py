"""Augmentation: a function of the user's on the images of each step of training, in both engines and on a cluster."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.in_process import InProcess
from estimators.submitted.staging import Staged, stage
from tests.cluster.notebooks import notebook
from tests.estimators.cnn_data import bars, digits, paper, tiny

pytestmark = pytest.mark.filterwarnings("ignore:.*has hardly learned")
CELLS = (
    "import torch\nREACH = 1\n",
    """
def shift(images, generator):
    "Move all images of a step by up to a pixel."
    by = torch.randint(-REACH, REACH + 1, (2,), generator=generator)
    return torch.roll(images, tuple(by.tolist()), dims=(2, 3))
""",
)


def noise(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Written into what it gets."""
    return images.add_(0.1 * torch.randn(images.shape, generator=generator))


class Seen:
    """Keeps the images that it gets, and returns them."""

    def __init__(self) -> None:
        self.images: list[np.ndarray] = []

    def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        self.images.append(images.numpy().copy())
        return images

    def __deepcopy__(self, memo: Any) -> "Seen":
        return self


@pytest.mark.parametrize(("kernels", "make"), [("fused", paper), ("onednn", paper), ("onednn", tiny)])
def test_equal_seeds_give_equal_models(kernels: str, make: Any) -> None:
    """In each engine; and other ones than without augmentation, or with another seed."""
    X, y = bars(96) if make is tiny else digits(96)

    def proba(**params: Any) -> np.ndarray:
        return make(kernels=kernels, max_epochs=2, **params).fit(X, y).predict_proba(X)

    first = proba(augment=noise)
    np.testing.assert_array_equal(first, proba(augment=noise))
    assert not np.allclose(first, proba())
    assert not np.allclose(first, proba(augment=noise, random_state=1))


@pytest.mark.parametrize("num_tasks", [1, 3])
def test_what_is_drawn_from_torchs_own_generator_is_seeded(num_tasks: int) -> None:
    """As transforms of others draw; the caller's generator is left as it was."""
    X, y = digits(96)
    runtime = InProcess(num_tasks=num_tasks)
    before = torch.get_rng_state()
    models = [
        paper(kernels="fused", augment=lambda images, _: images + 0.1 * torch.randn(images.shape), runtime=runtime)
        for _ in range(2)
    ]
    first, second = (model.fit(X, y).predict_proba(X) for model in models)
    np.testing.assert_array_equal(first, second)
    assert torch.equal(before, torch.get_rng_state())


def test_both_engines_show_it_the_images_of_each_step_as_the_network_takes_them() -> None:
    """In training only: one look before the fit, then a call per step. What it returns unchanged changes nothing."""
    X, y = digits(72)
    seen = {kernels: Seen() for kernels in ("fused", "onednn")}
    for kernels, each in seen.items():
        model = paper(kernels=kernels, augment=each, max_epochs=2).fit(X, y)
        calls = len(each.images)
        plain = paper(kernels=kernels, max_epochs=2).fit(X, y)
        np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(X), rtol=1e-3, atol=1e-5)
        assert len(each.images) == calls == 1 + 2 * 5  # 72 images in steps of 16
    for fused, eager in zip(seen["fused"].images, seen["onednn"].images, strict=True):
        assert fused.shape[1:] == (1, 16, 16)
        np.testing.assert_allclose(fused, eager, rtol=1e-5, atol=1e-6)
    every = np.concatenate([images.reshape(len(images), -1) for images in seen["fused"].images[1:]])
    assert abs(every.mean()) < 0.02  # digits of 8 x 8 in the middle of their mean


@pytest.mark.parametrize("kernels", ["fused", "onednn"])
@pytest.mark.parametrize(
    ("augment", "complaint"),
    [
        (lambda images, _: images[:-1], r"returned shape \(15, 1, 16, 16\), torch.float32 on cpu; .*\(16, 1, 16, 16\)"),
        (lambda images, _: images.double(), "returned shape .* torch.float64 on cpu; .* torch.float32 on cpu"),
        (lambda images, _: images.numpy(), "returned ndarray; it has to return a tensor"),
        (lambda images, _: None, "returned NoneType; it has to return a tensor"),
        (lambda images, _: images / 0, "returned NaN or infinity, for images with finite values"),
        (lambda images: images, r"raised TypeError: .*called with \(images, generator\), .*signature is \(images\)"),
        (lambda images, g: images.view(2, 3), "raised RuntimeError: .* for images of shape"),
    ],
)
def test_what_is_no_batch_of_images_is_refused_before_the_fit(kernels: str, augment: Any, complaint: str) -> None:
    """With the name of the function and both shapes; nothing is fitted."""
    X, y = digits(48)
    model = paper(kernels=kernels, augment=augment)
    with pytest.raises(UsageError, match=f"augment=.*<lambda> {complaint}"):
        model.fit(X, y)
    assert not hasattr(model, "module_")


@pytest.mark.parametrize("kernels", ["fused", "onednn"])
def test_images_that_go_wrong_later_are_named_and_not_taken_for_a_bad_learning_rate(kernels: str) -> None:
    """A NaN in the fifth step ends the fit with the name of the function."""
    calls: list[int] = []

    def fifth(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        calls.append(1)
        return images * float("nan") if len(calls) == 5 else images

    X, y = digits(96)
    with pytest.raises(UsageError, match=r"augment=.*fifth returned NaN or infinity"):
        paper(kernels=kernels, augment=fifth).fit(X, y)


def test_tasks_of_a_job_import_it_by_its_name(tmp_path: Path) -> None:
    """A function of a file goes; one of the notebook is refused, with what to do."""
    X, y = digits(48)
    stage(paper(augment=noise), X, y, None, tmp_path / "data")
    assert Staged(tmp_path / "data").params["augment"] == "tests.estimators.test_augment:noise"
    with notebook(*CELLS) as names, pytest.raises(UsageError, match=r"say net\.py, and give augment=net\.flip"):
        stage(paper(augment=names["shift"]), X, y, None, tmp_path / "other")
