"""Own modules of four kinds, and what trains them: ours, a plain loop, skorch with its defaults, and steps alone."""

import contextlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from estimators import ChicleCNNClassifier

BATCH, RATE, EPOCHS = 64, 0.01, 2


class Block(nn.Module):
    """Two convolutions with batch norm, and a way past them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        first, second = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.way = nn.Sequential(first, nn.BatchNorm2d(after), nn.ReLU(), second, nn.BatchNorm2d(after))
        past = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.past = nn.Identity() if before == after else past

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute both."""
        return functional.relu(self.way(images) + self.past(images))


class ResNet(nn.Module):
    """Has the eight blocks of ResNet-18, of a quarter of its channels."""

    def __init__(self) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        sizes = [(16, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)]
        self.blocks = nn.Sequential(*stem, *(Block(a, b, 1 if a == b else 2) for a, b in sizes))
        self.out = nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.out(self.blocks(images).mean((2, 3)))


class ViT(nn.Module):
    """Has four layers of attention over 16 patches."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.at = nn.Conv2d(1, 64, 7, 7), nn.Parameter(torch.zeros(1, 16, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True, norm_first=True)
        self.body, self.out = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.out(self.body(self.cut(images).flatten(2).transpose(1, 2) + self.at).mean(1))


class LSTM(nn.Module):
    """Reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.out = nn.LSTM(28, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.out(self.net(images.squeeze(1))[0][:, -1])


class MLP(nn.Sequential):
    """Has two hidden layers."""

    def __init__(self) -> None:
        hidden = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU()]
        super().__init__(nn.Flatten(), *hidden, nn.Linear(256, 10))


CASES: dict[type[nn.Module], tuple[tuple[int, ...], int]] = {
    MLP: ((1, 28, 28), 8192),
    ResNet: ((3, 32, 32), 640),
    ViT: ((1, 28, 28), 2560),
    LSTM: ((1, 28, 28), 4096),
}
"""Shape of an image, and how many there are."""


def sides_of(kind: Any, count: int) -> dict[str, Callable[[], Any]]:
    """Return what trains a module on so many made images; each call is a whole fit, as a user has it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(count, *CASES[kind][0])).astype(np.float32)
    y = rng.integers(0, 10, count)
    rows, codes = torch.from_numpy(X), torch.from_numpy(y)

    def ours() -> None:
        ChicleCNNClassifier(
            kind, batch_size=BATCH, max_epochs=EPOCHS, learning_rate=RATE, decay=0.0, random_state=0
        ).fit(X, y)

    def loop(*, is_one_batch: bool = False) -> None:
        torch.manual_seed(0)
        net = kind()
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
        for _ in range(EPOCHS):
            for chosen in torch.randperm(count).split(BATCH):
                optimizer.zero_grad()
                batch = slice(0, BATCH) if is_one_batch else chosen
                functional.cross_entropy(net(rows[batch]), codes[batch]).backward()
                optimizer.step()

    sides = {"ours": ours, "a plain loop": loop, "steps over one batch": lambda: loop(is_one_batch=True)}
    with contextlib.suppress(ImportError):
        from skorch import NeuralNetClassifier

        given = {"optimizer": torch.optim.SGD, "optimizer__momentum": 0.9, "criterion": nn.CrossEntropyLoss}

        def skorch() -> None:
            with contextlib.redirect_stdout(io.StringIO()):
                NeuralNetClassifier(kind, batch_size=BATCH, max_epochs=EPOCHS, lr=RATE, **given).fit(X, y)

        sides["skorch, which trains on four fifths"] = skorch
    return sides
