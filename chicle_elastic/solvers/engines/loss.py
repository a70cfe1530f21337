"""The loss of a batch: that of the kind of targets, or a function that the user has written, with sample weights."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.network import name_of


class Loss:
    """Computes the mean loss of a batch.

    Args:
        function: Takes outputs of the module and targets, returns the mean of the losses, as those of torch.nn and
            torch.nn.functional do; with `reduction="none"` the loss of each sample, or of each of its outputs. None for
            the cross-entropy. Of a module a copy is used.
        device: Where outputs are.
    """

    def __init__(self, function: Callable[..., Any] | None, device: torch.device) -> None:
        self._name = "cross_entropy" if function is None else name_of(function)
        self._mean: Callable[..., Any] = functional.cross_entropy if function is None else function
        if isinstance(function, nn.Module):
            self._mean = copy.deepcopy(function).to(device)

    def __call__(self, outputs: Any, targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """Return the mean over the samples of weight times loss.

        Args:
            outputs: Of the module; those of one number per sample get the shape of the targets.
            targets: Class codes of shape (n,), int64, or numbers of shape (n, ...), float32.
            weights: Of the samples, shape (n,), float32; None for 1.

        Raises:
            UsageError: The module gives no such outputs, or the function raised, or does not give such a loss.
        """
        if not isinstance(outputs, torch.Tensor) or outputs.shape[:1] != targets.shape[:1]:
            found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__qualname__
            raise UsageError(
                f"the module gives {found} in training, for a batch of {len(targets)} samples; it has to return one "
                "tensor of outputs, with a row per sample, as in evaluation"
            )
        if targets.is_floating_point() and outputs.numel() == len(targets):
            outputs = outputs.reshape(targets.shape)  # a loss of (n, 1) and (n,) would be that of n x n pairs
        shape: tuple[int, ...] = () if weights is None else (len(targets),)
        loss = self._called(self._mean, outputs, targets) if weights is None else self._each(outputs, targets)
        if not isinstance(loss, torch.Tensor) or tuple(loss.shape) != shape:
            found = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__qualname__
            raise UsageError(
                f"loss={self._name} returned {found} for outputs of shape {tuple(outputs.shape)}; it has to return "
                f"{'a tensor of one number, their mean' if weights is None else f'a loss per sample, {shape}'}"
            )
        if not loss.requires_grad:
            raise UsageError(f"loss={self._name} has no gradient; compute it from the outputs by functions of torch")
        found_loss: torch.Tensor = loss if weights is None else torch.dot(loss, weights) / len(targets)
        return found_loss

    def _each(self, outputs: torch.Tensor, targets: torch.Tensor) -> Any:
        if isinstance(self._mean, nn.Module) and hasattr(self._mean, "reduction"):
            each: Any = copy.copy(self._mean)
            each.reduction = "none"
            loss = self._called(each, outputs, targets)
        else:
            loss = self._called(self._mean, outputs, targets, reduction="none")
        has_columns = isinstance(loss, torch.Tensor) and targets.dim() > 1 and loss.shape == targets.shape
        return loss.mean(1) if has_columns else loss

    def _called(self, function: Callable[..., Any], outputs: torch.Tensor, targets: torch.Tensor, **more: Any) -> Any:
        try:
            return function(outputs, targets, **more)
        except Exception as error:
            raise UsageError(
                f"loss={self._name} raised {type(error).__name__}: {error} for outputs of shape {tuple(outputs.shape)} "
                f"and targets of shape {tuple(targets.shape)}{_asked(more)}"
            ) from error


def _asked(more: dict[str, Any]) -> str:
    return ", called with reduction='none' because samples have weights" if more else ""
