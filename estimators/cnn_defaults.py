"""What `ChicleCNNClassifier` takes where it is told "auto": learning rate and scale of the images.

Both were chosen on four data sets (docs/cnn.md has them). The scale helped most: with images of mean 0 and standard
deviation 1 the same network needs down to a fifth of the epochs, and one learning rate does for images of any range.
The best learning rate then falls with the number of steps, about as one over the root of it, as theory has it for SGD
with a constant rate: many steps average more noise away, and few have no time to be careful.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError

if TYPE_CHECKING:
    from chicle_elastic.solvers.network import Scaling


USUAL_BATCH, USUAL_MOMENTUM = 8, 0.9
LEAST_RATE, MOST_RATE = 1e-3, 1e-2
"""Learning rates with these; more is not stable, and less does not arrive."""
RATE_TIMES_ROOT = 1 / 3
ADAM_RATE = 1e-3
VALUES_AT_ONCE = 1 << 20
DIGITS = 6
"""Digits of mean and scale that are kept, so that the order in which values are summed does not show."""
LEAST_LOCAL_STEPS, MOST_LOCAL_STEPS = 4, 16
USUAL_AVERAGES = 100


def auto_learning_rate(num_samples: int, *, batch_size: int, momentum: float, optimizer: str = "sgd") -> float:
    """Learning rate of one task for a training that uses so many samples, each epoch's counted.

    With 8 samples a step and a momentum of 0.9 it is 1 / (3 sqrt(steps)), but from 0.001 to 0.01. It grows with the
    root of the batch, as it does with the root of the number of tasks; and what momentum adds up is kept.

    Args:
        num_samples: Samples in all epochs.
        batch_size: Samples of a step.
        momentum: Of each step.
        optimizer: "sgd"; steps of the others are as long as the learning rate, whatever the gradient.
    """
    if optimizer != "sgd":
        return ADAM_RATE * math.sqrt(batch_size / USUAL_BATCH)
    rate = RATE_TIMES_ROOT / math.sqrt(max(num_samples / USUAL_BATCH, 1.0))
    rate = min(max(rate, LEAST_RATE), MOST_RATE)
    return rate * math.sqrt(batch_size / USUAL_BATCH) * (1.0 - momentum) / (1.0 - USUAL_MOMENTUM)


def auto_local_steps(num_samples: int, *, batch_size: int, num_tasks: int) -> int:
    """Steps between two averages, so that a fit has some hundred of them: 16, and on little data fewer, but at least 4.

    A task that takes 16 steps of some hundred alone has moved far from the others before it hears of them.

    Args:
        num_samples: Samples in all epochs.
        batch_size: Samples of a step.
        num_tasks: The most tasks that there may be; with one there is nothing to average.
    """
    if num_tasks == 1:
        return MOST_LOCAL_STEPS
    steps = num_samples // (batch_size * num_tasks)
    return min(max(steps // USUAL_AVERAGES, LEAST_LOCAL_STEPS), MOST_LOCAL_STEPS)


class Moments:
    """Mean and standard deviation of all values of some images, from one look at them."""

    def __init__(self) -> None:
        self._count, self._first = 0, 0.0
        self._sum = self._squares = 0.0

    def add(self, rows: Array) -> None:
        """Look at these as well.

        Args:
            rows: ndarray of shape (n, values), uint8 or float32.
        """
        at_once = max(1, VALUES_AT_ONCE // max(1, rows.shape[1]))
        for start in range(0, len(rows), at_once):
            values = rows[start : start + at_once].astype(np.float64).ravel()
            if not self._count:
                self._first = float(values[0])
            values -= self._first  # so that a large mean takes no digits from the deviation
            self._count += len(values)
            self._sum += float(values.sum())
            self._squares += float(values @ values)

    def scaling(self) -> "Scaling":
        """What gives all values together the mean 0 and the standard deviation 1, and pads with the mean.

        Returns:
            With the scale 1 where all values are equal.
        """
        from chicle_elastic.solvers.network import Scaling

        mean = self._sum / self._count
        deviation = math.sqrt(max(self._squares / self._count - mean * mean, 0.0))
        mean += self._first
        # float32 cannot tell values apart that differ less than that.
        is_constant = deviation <= np.finfo(np.float32).eps * abs(mean)
        scale = 1.0 if is_constant else float(f"{1.0 / deviation:.{DIGITS}g}")
        mean = float(f"{mean:.{DIGITS}g}")
        return Scaling(scale=scale, shift=-mean * scale, padding=mean)


def optimizer_name(optimizer: Any) -> Any:
    """The name of an optimizer that is given by its name, or as a class of torch.optim.

    Raises:
        UsageError: It is another one: its state cannot be averaged, as far as Chicle knows.
    """
    names = {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw"}
    if isinstance(optimizer, type) and optimizer.__module__.startswith("torch.optim"):
        optimizer = names.get(optimizer.__name__, optimizer)
    if isinstance(optimizer, str) and optimizer in names.values():
        return optimizer
    if type(optimizer).__module__.startswith("torch.optim"):
        name = type(optimizer).__name__
        raise UsageError(
            f"optimizer={name}(...) holds the weights of another module: give the class, torch.optim.{name}, and its "
            "settings as learning_rate, momentum and weight_decay"
        )
    given = optimizer.__name__ if isinstance(optimizer, type) else repr(optimizer)
    raise UsageError(
        f"optimizer={given}: tasks average the state of an optimizer with the weights, and that is known to work for "
        "'sgd', 'adam' and 'adamw' only; settings go to learning_rate, momentum and weight_decay"
    )
