"""Learning rates by a scheduler of torch: its values are a table, so every task, old or new, reads the same."""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.network import name_of


def rates_of(make: Callable[..., Any], settings: Mapping[str, Any], rate: float, num_steps: int) -> list[float]:
    """Return the learning rate before each step of the scheduler.

    Args:
        make: Class of a scheduler, or a function that makes one; gets an optimizer of one group.
        settings: More of its arguments.
        rate: Learning rate of that optimizer.
        num_steps: Steps in the whole training.

    Raises:
        UsageError: It cannot be made, needs more than `step()`, or is made for another number of steps.
    """
    words = f"schedule={name_of(make)}"
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate, momentum=0.9)
    rates: list[float] = []
    try:
        scheduler = make(optimizer, **settings)
        total = getattr(scheduler, "total_steps", num_steps)
        if total == num_steps:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in range(num_steps):
                    rates.append(float(optimizer.param_groups[0]["lr"]))
                    optimizer.step()
                    if len(rates) < num_steps:
                        scheduler.step()
    except Exception as error:
        raise UsageError(
            f"{words} gives no rate for step {len(rates) + 1} of {num_steps}: {type(error).__name__}: {error}; it is "
            "made with the optimizer and schedule__*, and its step() is called without arguments, as often as "
            "schedule_each says"
        ) from error
    if total != num_steps:
        raise UsageError(
            f"{words} is made for total_steps={total}, and this fit has {num_steps}; change that, or schedule_each "
            "('epoch' or 'step')"
        )
    if not all(0 <= each < math.inf for each in rates):
        raise UsageError(f"{words} gives the learning rates {rates[:8]}; they have to be finite and at least 0")
    return rates
