"""The network of the paper's experiments (Chicle, section on local SGD): LeNet with ReLU and max-pooling."""

import torch
from torch import nn
from torch.nn import functional

from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.network import LEAST_SIDE, side_after


class PaperCNN(nn.Module):
    """Two convolutions (6 and 16 filters of 5 x 5) with ReLU and 2 x 2 max-pooling, three fully connected layers.

    With 3 x 32 x 32 images and 10 classes it has 62,006 parameters, with 1 x 28 x 28 images 44,426.

    Args:
        channels: Of the images.
        height: Of the images, at least 16.
        width: Of the images, at least 16.
        num_classes: Outputs.
    """

    def __init__(self, channels: int, height: int, width: int, num_classes: int) -> None:
        super().__init__()
        if min(height, width) < LEAST_SIDE:
            raise UsageError(
                f"images of {height} x {width} are too small for the default network, which takes {LEAST_SIDE} x "
                f"{LEAST_SIDE} and more; enlarge them, or pass a module of your own"
            )
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * side_after(height) * side_after(width), 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of shape (n, num_classes) of images of shape (n, channels, height, width), float32."""
        hidden = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        hidden = functional.max_pool2d(functional.relu(self.conv2(hidden)), 2)
        hidden = functional.relu(self.fc1(hidden.flatten(1)))
        return self.fc3(functional.relu(self.fc2(hidden)))
