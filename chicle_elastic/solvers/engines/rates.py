"""Learning rates by a scheduler of torch: its values are a table, so every task, old or new, reads the same."""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.network import name_of

GONE = 1e-7
"""A rate of this part of the first one trains nothing: float32 weights do not change."""


def rates_of(
    make: Callable[..., Any], settings: Mapping[str, Any], rate: float, num_steps: int, num_epochs: int
) -> list[float]:
    """Return the learning rate before each step of the scheduler.

    Args:
        make: Class of a scheduler, or a function that makes one; gets an optimizer of one group.
        settings: More of its arguments.
        rate: Learning rate of that optimizer.
        num_steps: Steps in the whole training.
        num_epochs: Epochs of the training; as many as steps where the scheduler steps once in each.

    Raises:
        UsageError: It cannot be made, needs more than `step()`, or is made for another number of steps, as a scheduler
            for epochs is that steps after each batch.
    """
    words = f"schedule={name_of(make)}"
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate, momentum=0.9)
    rates: list[float] = []
    try:
        scheduler = make(optimizer, **settings)
        made_for = {name: vars(scheduler)[name] for name in ("total_steps", "T_max") if name in vars(scheduler)}
        is_for_epochs = made_for.get("T_max") == num_epochs < num_steps
        fits = made_for.get("total_steps", num_steps) == num_steps and not is_for_epochs
        if fits:
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
    if not fits:
        lengths = ", ".join(f"{name}={value}" for name, value in made_for.items())
        raise UsageError(
            f"{words} is made for {lengths}, and this fit has {num_steps}; change that, or schedule_each ('epoch' "
            "or 'step')"
        )
    if not all(0 <= each < math.inf for each in rates):
        raise UsageError(f"{words} gives the learning rates {rates[:8]}; they have to be finite and at least 0")
    if num_epochs < num_steps and max(rates[num_steps // 2 :]) < GONE * max(rates):
        raise UsageError(
            f"{words} is down to the learning rate {rates[num_steps // 2]:.1e} of {max(rates):g} after half of "
            f"{num_steps} steps, as one for epochs would be; give schedule_each='epoch', or change it"
        )
    return rates
