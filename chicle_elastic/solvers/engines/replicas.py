"""Several devices of a node: each step splits its batch among replicas of the module, and adds up their gradients.

The node still has one task: one model, one optimizer, one set of chunks. They live on the first device. Before a step
the other devices get its weights and buffers. Each device computes the mean loss of its part times the part's share of
the batch, so that the sum of gradients is that of the whole batch. Buffers (running means of batch norm) are those of
the first device, which sees its part alone, as with `torch.nn.DataParallel`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from chicle_elastic.solvers.engines.loss import Loss
from chicle_elastic.solvers.flat import FlatModule


class Replicas:
    """Computes gradients on all devices.

    Args:
        flats: The module on each device; the first one is trained.
        losses: On each device.
        outputs: Takes a module and images, returns what it gives.
        least: Samples that a device must get at least, where it gets some.
    """

    def __init__(
        self, flats: Sequence[FlatModule], losses: Sequence[Loss], outputs: Callable[..., Any], *, least: int
    ) -> None:
        self.flats, self._losses, self._outputs, self._least = flats, losses, outputs, least

    def backward(self, images: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """Add the gradient of a batch to that of the first module; returns the mean loss, tensor of shape ()."""
        first = self.flats[0]
        count = max(1, min(len(self.flats), len(targets) // self._least))
        flats = self.flats[:count]
        with torch.no_grad():
            for other in flats[1:]:
                other.w.copy_(first.w)
                other.write_buffers(first.read_buffers().to(other.w.device))
        batch = [images, targets] if weights is None else [images, targets, weights]
        total = torch.zeros((), device=first.w.device)
        for flat, loss_of, *part in zip(
            flats, self._losses, *(each.tensor_split(count) for each in batch), strict=False
        ):
            samples, labels, *factors = (each.to(flat.w.device) for each in part)
            outputs = self._outputs(flat.module.train(), samples)
            loss = loss_of(outputs, labels, factors[0] if factors else None) * (len(labels) / len(targets))
            loss.backward()
            total += loss.detach().to(total.device)
        first.gather()
        for other in flats[1:]:
            other.gather()
            first.g.add_(other.g.to(first.g.device))
            other.drop_gradients()
        return total
