"""The model of local SGD as one flat vector: weights, momentum, buffers, and where the training is.

    part      length          meaning
    w         num_weights     parameters of the module, in the order of `Module.parameters()`
    buffers   num_buffers     its buffers (batch norm's running statistics, say), averaged like the weights
    v         num_weights     momentum, in units of a gradient: v <- momentum v + g, w <- w - lr v
    outer     num_weights     outer momentum, in units of a change per iteration; only where there may be one
    place     PLACE           figures of `Place`, the same for every task

One all-reduce carries all of it, and a joiner that gets the model gets both momenta and the place with it.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array

VERSION = 3
"""Of this table: version 1 had no `TASKS`, and an outer momentum only where it was asked for; in version 2 the state of
Adam and of classes of torch lay in another order."""
PLACE = 8
MERGED, EPOCH, FIRST, SAMPLES, LOSS, LAST_LOSS, NUM_ROWS, TASKS = range(PLACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the training is. Figures below 2^24 are exact in float32.

    Attributes:
        merged: Last merged iteration; 0 before the first.
        epoch: Number of the present epoch, from 1.
        first: First iteration of the present epoch.
        samples: Samples processed in this epoch.
        loss: Sum of their losses.
        last_loss: Mean loss of the epoch before; NaN before its end.
        num_rows: Samples in the data set.
        tasks: Tasks in the last merged iteration; 0 before the first.
    """

    merged: int
    epoch: int
    first: int
    samples: int
    loss: float
    last_loss: float
    num_rows: int
    tasks: int

    @classmethod
    def of(cls, place: Array) -> "Place":
        """From the last `PLACE` numbers of a model."""
        pairs = zip(fields(cls), place.tolist(), strict=True)
        return cls(**{field.name: round(value) if field.type is int else value for field, value in pairs})

    def progress(self, max_epochs: int) -> float:
        """How much of a training of so many epochs is done, from 0 to 1; samples that are replayed count again."""
        return min((self.epoch - 1 + self.samples / self.num_rows) / max_epochs, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayout:
    """Where the parts of a model lie.

    Attributes:
        num_weights: Values in all parameters.
        num_buffers: Values in all buffers.
        num_state: Values of the optimizer's state; None for as many as weights, the momentum of SGD.
        has_outer: Whether there may be an outer momentum.
    """

    num_weights: int
    num_buffers: int
    num_state: int | None = None
    has_outer: bool = False

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.num_averaged + (self.num_weights if self.has_outer else 0) + PLACE

    @property
    def num_averaged(self) -> int:
        """Length of what tasks change and the trainer averages: w, buffers and v."""
        num_state = self.num_weights if self.num_state is None else self.num_state
        return self.num_weights + self.num_buffers + num_state

    def w(self, model: Array) -> Array:
        """View of the weights, shape (num_weights,)."""
        return model[: self.num_weights]

    def buffers(self, model: Array) -> Array:
        """View of the buffers, shape (num_buffers,)."""
        return model[self.num_weights : self.num_weights + self.num_buffers]

    def v(self, model: Array) -> Array:
        """View of the optimizer's state, shape (num_state,)."""
        return model[self.num_weights + self.num_buffers : self.num_averaged]

    def outer(self, model: Array) -> Array:
        """View of the outer momentum, shape (num_weights,); empty without one."""
        return model[self.num_averaged : -PLACE]

    def place(self, model: Array) -> Array:
        """View of the place, shape (PLACE,)."""
        return model[-PLACE:]

    def begin(self, w: Array, buffers: Array, *, num_rows: int, v: Array | None = None) -> Array:
        """A model at the beginning of its first epoch.

        Args:
            w: Shape (num_weights,).
            buffers: Shape (num_buffers,).
            num_rows: Samples in the data set.
            v: State of the optimizer to go on with, shape (num_state,); None for zeros.

        Returns:
            ndarray of shape (size,), float32.
        """
        model = np.zeros(self.size, dtype=np.float32)
        self.w(model)[:] = w
        self.buffers(model)[:] = buffers
        if v is not None:
            self.v(model)[:] = v
        place: Any = self.place(model)
        place[[EPOCH, FIRST, LAST_LOSS, NUM_ROWS]] = 1, 1, np.nan, num_rows
        return model
