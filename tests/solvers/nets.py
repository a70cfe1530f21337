"""Small networks and image data for the tests of local SGD."""

from typing import Any

import numpy as np
import torch
from torch import nn

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.solvers.local_sgd import LocalSGDTrainer
from chicle_elastic.solvers.network import PAPER_CNN, Network

SIDE = 8


class Tiny(nn.Module):
    """A convolution and a linear layer; with batch norm and dropout where they are asked for."""

    def __init__(self, num_classes: int = 3, *, has_norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4) if has_norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(4 * 9, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        hidden = torch.relu(self.norm(self.conv(images)))
        return self.out(self.drop(torch.max_pool2d(hidden, 2).flatten(1)))


def images(num_rows: int = 480, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Bright bars at three places on noise: X of shape (n, 1, 8, 8), uint8, and class codes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, num_rows)
    X = rng.integers(0, 120, (num_rows, 1, SIDE, SIDE), dtype=np.uint8)
    for code in range(3):
        X[y == code, :, :, 2 * code + 1 : 2 * code + 3] += 100
    return X, y


def network(module: type[nn.Module] | nn.Module | str = Tiny, **settings: Any) -> Network:
    """Of three classes."""
    return Network(module=module, settings=settings, input_shape=(1, SIDE, SIDE), num_classes=3)


def paper(shape: tuple[int, ...] = (1, 16, 16), num_classes: int = 3) -> Network:
    """Describe the default network."""
    settings = dict(zip(("channels", "height", "width", "num_classes"), (*shape, num_classes), strict=True))
    return Network(module=PAPER_CNN, settings=settings, input_shape=shape, num_classes=num_classes)


def trainer(net: Network | None = None, **settings: Any) -> LocalSGDTrainer:
    """Settings with which a few epochs of `images` are enough."""
    defaults = {"learning_rate": 0.02, "local_steps": 4, "max_epochs": 3, "kernels": "onednn"}
    return LocalSGDTrainer(network=net or network(), **{**defaults, **settings})


def source(num_rows: int = 480, *, chunk_rows: int = 24, weights: np.ndarray | None = None) -> ArraySource:
    """`images` in shuffled chunks of so many rows."""
    X, y = images(num_rows)
    row_bytes = SIDE * SIDE + 12 + (0 if weights is None else weights.itemsize)
    return ArraySource(X, y, weights=weights, max_tasks=4, chunk_bytes=chunk_rows * row_bytes, shuffle=True)
