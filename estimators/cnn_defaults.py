"""What `ChicleCNNClassifier` takes where it is told "auto": learning rate and scale of the images.

Both were chosen on four data sets (docs/cnn.md has them). The scale helped most: with images of mean 0 and standard
deviation 1 the same network needs down to a fifth of the epochs, and one learning rate does for images of any range.
The best learning rate then falls with the number of steps, about as one over the root of it, as theory has it for SGD
with a constant rate: many steps average more noise away, and few have no time to be careful.
"""

import inspect
import math
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.network import imported, name_of

if TYPE_CHECKING:
    from chicle_elastic.solvers.network import Scaling


CODE = ("optimizer", "schedule", "loss")
"""Parameters that may be classes or functions, besides `module` and `augment`."""
USUAL_BATCH, USUAL_MOMENTUM = 8, 0.9
LEAST_RATE, MOST_RATE = 1e-3, 1e-2
"""Learning rates with these; more is not stable, and less does not arrive."""
RATE_TIMES_ROOT = 1 / 3
ADAM_RATE = 1e-3
VALUES_AT_ONCE = 1 << 20
DIGITS = 6
"""Digits of mean and scale that are kept, so that the order in which values are summed does not show."""
LEAST_LOCAL_STEPS, MOST_LOCAL_STEPS = 4, 16
MOST_STEPS_ALONE = 128
"""Of one task, whose learning rate stays as it is within an iteration."""
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
    """Return the steps between two averages, so that a fit has some hundred: 16, on little data fewer, but at least 4.

    A task that takes 16 steps of some hundred alone has moved far from the others before it hears of them. One task
    has nothing to average, so its iterations are longer: an iteration costs as much as some steps of a small network.

    Args:
        num_samples: Samples in all epochs.
        batch_size: Samples of a step.
        num_tasks: The most tasks that there may be; with one there is nothing to average.
    """
    least, most = (MOST_LOCAL_STEPS, MOST_STEPS_ALONE) if num_tasks == 1 else (LEAST_LOCAL_STEPS, MOST_LOCAL_STEPS)
    return min(max(num_samples // (batch_size * num_tasks) // USUAL_AVERAGES, least), most)


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


def optimizer_of(estimator: Any) -> tuple[Any, dict[str, Any]]:
    """Return the optimizer of a trainer and its settings: "sgd", or a class or function.

    Args:
        estimator: With `optimizer`, `momentum`, `weight_decay` and `optimizer__*`.

    Raises:
        UsageError: It is no optimizer.
    """
    given, settings = named(estimator.optimizer, "optimizer"), estimator._params_of("optimizer__")
    kinds = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
    if "lr" in settings and isinstance(given, str | type):
        raise UsageError("optimizer__lr is learning_rate here; give that")
    if isinstance(given, type) and given.__module__.startswith("torch.optim"):
        given = _own_name(given) or given
    if given == "sgd" and not settings:
        return given, {}
    if isinstance(given, str) and given in kinds:
        import torch

        momentum = float(estimator.momentum)
        usual = {"momentum": momentum} if given == "sgd" else {"betas": (momentum, 0.999)}
        return getattr(torch.optim, kinds[given]), {**usual, "weight_decay": estimator.weight_decay, **settings}
    if type(given).__module__.startswith("torch.optim"):
        name = type(given).__name__
        raise UsageError(
            f"optimizer={name}(...) holds the weights of another module: give the class, torch.optim.{name}, and its "
            "settings as optimizer__*, or a function of the module that makes it"
        )
    if not callable(given):
        raise UsageError(
            f"optimizer={given!r} is none; give 'sgd', 'adam' or 'adamw', a class of torch.optim with its settings as "
            "optimizer__*, or a function that makes one of the module"
        )
    if estimator.weight_decay and not isinstance(given, type):
        raise UsageError(
            f"weight_decay={estimator.weight_decay} would be ignored by the function optimizer={name_of(given)}, which "
            "sets it in the optimizer that it makes; leave weight_decay out"
        )
    return given, {"weight_decay": estimator.weight_decay, **settings} if estimator.weight_decay else settings


def schedule_of(estimator: Any) -> tuple[Any, dict[str, Any]]:
    """Return the schedule of a trainer and its settings.

    Args:
        estimator: With `schedule` and `schedule__*`.

    Raises:
        UsageError: It is none, or has no settings.
    """
    given, settings = named(estimator.schedule, "schedule"), estimator._params_of("schedule__")
    if isinstance(given, str) and given not in ("linear", "cosine"):
        raise UsageError(
            f"schedule={given!r} is none; give 'linear', 'cosine', a class of torch.optim.lr_scheduler with its "
            "settings as schedule__*, or a function that makes one of an optimizer"
        )
    if isinstance(given, str) and settings:
        raise UsageError(
            f"schedule={given!r} has no settings, so {', '.join('schedule__' + name for name in settings)} would be "
            "ignored; give a class of torch.optim.lr_scheduler, or leave them out"
        )
    return given, settings


def loss_of(estimator: Any, images: Any) -> Any:
    """Return the loss of a trainer: that of the estimator, or of the kind of targets; None for the cross-entropy.

    Args:
        estimator: With `loss`.
        images: An `ImageSet`.

    Raises:
        UsageError: It is none that gives a mean.
    """
    given = named(estimator.loss, "loss")
    reduction = getattr(given, "reduction", "mean")
    if isinstance(given, str | type):
        raise UsageError(
            f"loss={given if isinstance(given, str) else name_of(given)} is none; give an instance, such as "
            "nn.CrossEntropyLoss(), or a function of outputs and targets"
        )
    if reduction != "mean":
        raise UsageError(f"loss={name_of(given)} has reduction={reduction!r}, and a step needs the mean; leave it out")
    if given is None and images.target_shape is not None:
        from torch.nn import functional

        given = functional.mse_loss if images.classes is None else functional.binary_cross_entropy_with_logits
    return given


def default_rate(optimizer: Any) -> float | None:
    """Return the learning rate that a class of an optimizer has itself; None for those that Chicle has one for."""
    if not isinstance(optimizer, type) or (optimizer.__module__.startswith("torch.optim") and _own_name(optimizer)):
        return None
    parameter = inspect.signature(optimizer).parameters.get("lr")
    return float(parameter.default) if parameter is not None and isinstance(parameter.default, int | float) else None


def _own_name(optimizer: Any) -> str | None:
    """Return the short name of a class of torch.optim."""
    return {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw"}.get(getattr(optimizer, "__name__", ""))


def named(value: Any, parameter: str) -> Any:
    """Return what "package.module:Name" names, and any other value as it is.

    A name may come from a model file, so it is not any callable that may be called later.

    Raises:
        UsageError: It cannot be imported here, or is not what the parameter is for.
    """
    if not (isinstance(value, str) and ":" in value):
        return value
    found = imported(value, f"{parameter}={value!r}")
    import torch

    kinds = {"optimizer": torch.optim.Optimizer, "schedule": torch.optim.lr_scheduler.LRScheduler}
    is_class = isinstance(found, type) and issubclass(found, kinds.get(parameter, torch.nn.Module))
    if not (is_class or isinstance(found, FunctionType | torch.nn.Module)):
        raise UsageError(f"{parameter}={value!r} names neither a function nor what {parameter} is for")
    return found


def with_names(params: dict[str, Any], unnamed: Callable[[str, Any], None]) -> dict[str, Any]:
    """Return parameters in which classes and functions of `CODE` are "package.module:Name".

    What has no name is left out, and so are the arguments of it.

    Args:
        params: Of the estimator.
        unnamed: Called with name and value of code that cannot be imported.
    """
    told = dict(params)
    for name in CODE:
        value = told.get(name)
        if value is None or isinstance(value, str):
            continue
        own = _own_name(value) if getattr(value, "__module__", "").startswith("torch.optim") else None
        where, path = getattr(value, "__module__", None), getattr(value, "__qualname__", "<instance>")
        if own is not None:
            told[name] = own
        elif where in (None, "__main__") or "<" in path:
            unnamed(name, value)
            told = {key: each for key, each in told.items() if key != name and not key.startswith(f"{name}__")}
        else:
            told[name] = f"{where}:{path}"
    return told
