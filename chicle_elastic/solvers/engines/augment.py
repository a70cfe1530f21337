"""What a user's function makes of the images of a step before the network sees them: called, seeded and checked."""

import math
from collections.abc import Callable
from typing import Any

import torch

from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.network import name_of, signature_of


class Augmentation:
    """Calls the function on the images of each step. Used by one thread at a time.

    Args:
        function: Takes a tensor of shape (n, *image_shape), float32, which it may write to, and a generator on the same
            device; returns a tensor of that shape and dtype there, with finite values.
        device: Where the images lie.
    """

    def __init__(self, function: Callable[[torch.Tensor, torch.Generator], Any], device: torch.device) -> None:
        self._function, self._device = function, device
        self._generator = torch.Generator(device)

    def seed(self, seed: int) -> None:
        """Begin what the generator draws anew."""
        self._generator.manual_seed(seed)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """The images that the network gets.

        Raises:
            UsageError: The function raised, or returned something else than such images; the message has its name.
        """
        shape, dtype = images.shape, images.dtype
        with torch.no_grad():
            try:
                found = self._function(images, self._generator)
            except Exception as error:
                raise UsageError(
                    f"{self._words} raised {type(error).__name__}: {error} for images of shape {tuple(shape)}; it is "
                    f"called with (images, generator), and its signature is {signature_of(self._function)}"
                ) from error
            if not isinstance(found, torch.Tensor):
                raise UsageError(f"{self._words} returned {type(found).__qualname__}; it has to return a tensor")
            if found.shape != shape or found.dtype != dtype or found.device != images.device:
                raise UsageError(
                    f"{self._words} returned shape {tuple(found.shape)}, {found.dtype} on {found.device}; it has to "
                    f"return what it was given: shape {tuple(shape)}, {dtype} on {images.device}"
                )
            # The sum is one operation; it is also infinite where finite values are very large.
            if not math.isfinite(float(found.sum())) and not bool(torch.isfinite(found).all()):
                raise UsageError(f"{self._words} returned NaN or infinity, for images with finite values")
        return found

    @property
    def _words(self) -> str:
        return f"augment={name_of(self._function)}"
