"""What an engine is: it takes steps of SGD with momentum on one replica of a network.

A pass over a batch is the engine's business, and so is where the replica lives; which samples, in which order, and what
becomes of the result is the solver's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.model_vector import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The samples of an iteration, gathered, in the order in which they are to be used.

    Attributes:
        rows: ndarray of shape (n, values), uint8 (0 to 255 becomes -1 to 1 when it is used) or float32; zeros
            around the features where the network takes more values than there are.
        codes: Class codes, ndarray of shape (n,), int64.
        weights: Factors of the losses, ndarray of shape (n,), float32; None for 1.
    """

    rows: Array
    codes: Array
    weights: Array | None


class StepEngine(Protocol):
    """Takes steps. Used by one thread at a time."""

    @property
    def layout(self) -> Layout:
        """Of the models that it takes (without outer momentum, which is none of its business)."""
        ...

    def initial(self) -> tuple[Array, Array]:
        """Weights and buffers that the network begins with, float32."""
        ...

    def tune(self, batch_size: int) -> str:
        """Find the fastest way to take steps with such batches; nothing of the replica is changed.

        Returns:
            What was found, in words.
        """
        ...

    def load(self, w: Array, buffers: Array, v: Array, *, for_change: bool = False) -> None:
        """Set the replica, and where `for_change` keep a copy of what it was set to beside it."""
        ...

    def store(self, w: Array, buffers: Array, v: Array) -> None:
        """Copy the replica out."""
        ...

    def change(self, end: Array, size: int) -> Any:
        """What has become of the replica since `load(..., for_change=True)`, left where the replica lives.

        Args:
            end: What the last values are to be, ndarray of shape (m,), float32.
            size: Length of the whole.

        Returns:
            Tensor of shape (size,), float32: the changes of w, of the buffers and of v, zeros, `end`.
        """
        ...

    def run(
        self,
        samples: Samples,
        *,
        batch_size: int,
        lr: float,
        momentum: float,
        seed: int,
        is_spent: Callable[[], bool],
    ) -> tuple[int, float]:
        """Steps over all samples in batches; the gradient of the last, shorter one is divided by its true size.

        Args:
            samples: At least one.
            batch_size: Samples per step.
            lr: Learning rate.
            momentum: Of v.
            seed: Of what is drawn on the way (dropout).
            is_spent: Asked before each step; True ends the run.

        Returns:
            Samples used, and the sum of their losses.
        """
        ...
