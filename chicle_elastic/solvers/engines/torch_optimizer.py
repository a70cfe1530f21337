"""Any optimizer of torch.optim on a module whose values lie in flat vectors; its state is a part of the model.

A class that steps over each value by itself gets all of them as one parameter, which is fewer operations than a plain
loop needs; `is_elementwise` tries whether it does. Other classes, and functions, get the module's parameters.

The state of all parameters lies in one vector, after a flag: 0 while no step has been taken, and the optimizer begins
as torch lets it begin. Tasks average this vector as they average weights. Sums of squares and the like may be rounded
to less than 0 by that, so state that is never negative is clamped; which that is, two steps with opposite gradients
and weights tell.
"""

import copy
import warnings
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import nn

from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.network import name_of
from chicle_elastic.solvers.optimizers import CustomOptimizer


class TorchOptimizer:
    """Takes the steps of an optimizer that the user has chosen.

    Args:
        module: What it trains; gradients are there.
        custom: How it is made.
        w: Weights of the module, the memory of its parameters.
        g: Gradients, the memory of theirs.

    Attributes:
        rate: Learning rate that the first group of parameters was made with.
        num_state: Length of the vector of its state.

    Raises:
        UsageError: It cannot be made, or its state cannot be averaged.
    """

    def __init__(self, module: nn.Module, custom: CustomOptimizer, w: torch.Tensor, g: torch.Tensor) -> None:
        self._words = f"optimizer={name_of(custom.make)}"
        own = {id(parameter) for parameter in module.parameters()}
        is_whole = False
        try:
            if isinstance(custom.make, type):
                trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
                is_whole = sum(each.numel() for each in trained) == len(w) and is_elementwise(custom)
                if is_whole:
                    trained = [nn.Parameter(w)]
                    trained[0].grad = g
                    own = {id(trained[0])}
                made = custom.make(trained, lr=custom.rate, **_in_one_pass(custom), **custom.settings)
            else:
                made = custom.make(module, **custom.settings)
        except Exception as error:
            raise UsageError(
                f"{self._words} cannot be made with {dict(custom.settings)}: {error}; a class gets the parameters, lr "
                "and optimizer__*, a function gets the module and optimizer__*, and returns the optimizer"
            ) from error
        if not isinstance(made, torch.optim.Optimizer):
            raise UsageError(f"{self._words} makes a {type(made).__qualname__}, which is no torch.optim.Optimizer")
        self._optimizer = made
        self._parameters = [parameter for group in made.param_groups for parameter in group["params"]]
        if any(id(parameter) not in own for parameter in self._parameters):
            raise UsageError(f"{self._words} has parameters of another module; make it of the module that it is given")
        stepped = {id(parameter) for parameter in self._parameters}
        idle = [name for name, each in module.named_parameters() if each.requires_grad and id(each) not in stepped]
        if idle and not is_whole:
            warnings.warn(
                f"{self._words} has no group with {', '.join(idle[:8])}, so they stay as they are; set their "
                "requires_grad to False where that is meant",
                stacklevel=2,
            )
        self._rates = [float(group["lr"]) for group in made.param_groups]
        self.rate = self._rates[0]
        if not self.rate > 0:
            raise UsageError(f"{self._words} has the learning rate {self.rate} for its first group; it has to be > 0")
        self._first_state = copy.deepcopy([made.state.get(parameter, {}) for parameter in self._parameters])
        self._has_begun = False
        self._entries = self._probe(w, g)
        self.num_state = 1 + sum(size for _, _, size, _ in self._entries)

    def step(self, lr: float) -> None:
        """Take a step, in which the first group has the rate `lr` and the others keep their ratio to it."""
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * (lr / self.rate)
        self._optimizer.step()
        self._has_begun = True

    def read(self, state: torch.Tensor) -> None:
        """Copy the state to the vector."""
        state.zero_()
        if self._has_begun:
            of = self._optimizer.state
            values = [torch.as_tensor(of[parameter][key]).reshape(-1) for parameter, key, _, _ in self._entries]
            state[0] = 1.0
            start = 1
            for value in values:
                state[start : start + len(value)].copy_(value)
                start += len(value)

    def write(self, state: torch.Tensor) -> None:
        """Set the state from the vector."""
        self._reset()
        self._has_begun = bool(state[0] > 0.5)
        start = 1
        for parameter, key, size, has_sign in self._entries if self._has_begun else ():
            values, old = state[start : start + size].clone(), self._templates[parameter, key]
            values = values if has_sign else values.clamp_(min=0.0)
            start += size
            if isinstance(old, torch.Tensor):
                values = values.view(old.shape)
                new = values if old.is_floating_point() else values.round()
                self._optimizer.state[parameter][key] = new.to(old.device, old.dtype)
            else:
                self._optimizer.state[parameter][key] = (
                    float(values) if isinstance(old, float) else round(float(values))
                )

    def _reset(self) -> None:
        """Let the state be what it was before the first step."""
        for parameter, state in zip(self._parameters, copy.deepcopy(self._first_state), strict=True):
            self._optimizer.state[parameter] = state
        self._has_begun = False

    def _probe(self, w: torch.Tensor, g: torch.Tensor) -> list[tuple[nn.Parameter, str, int, bool]]:
        """Find parameter, name, size and "has a sign" of each part of the state; nothing else is changed."""
        kept, groups = w.clone(), _figures(self._optimizer)
        noise = torch.randn(len(g), generator=torch.Generator().manual_seed(0)).to(g.device)
        found: list[dict[tuple[nn.Parameter, str], Any]] = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                w.copy_((kept + noise) * sign)  # zeros have no sign
                g.copy_(noise * sign)
            self._reset()
            try:
                self.step(0.0)
            except Exception as error:
                raise UsageError(
                    f"{self._words} cannot take a step: {type(error).__name__}: {error}; it has to work with step() "
                    "alone, on dense gradients of all parameters of its groups"
                ) from error
            of = self._optimizer.state
            found.append({(p, key): value for p in self._parameters for key, value in sorted(of[p].items())})
        self._templates = {place: value for place, value in found[0].items() if value is not None}
        bad = [key for (_, key), value in self._templates.items() if not isinstance(value, torch.Tensor | int | float)]
        if bad or _figures(self._optimizer) != groups:
            what = f"{bad[0]!r} of its state" if bad else "figures of its groups, which change with its steps,"
            raise UsageError(
                f"{self._words}: {what} cannot be averaged by tasks, nor moved to those that join; use an optimizer "
                "whose state is tensors and numbers per parameter"
            )
        with torch.no_grad():
            w.copy_(kept)
            g.zero_()
        self._reset()
        return [
            (*place, torch.as_tensor(value).numel(), any(bool((torch.as_tensor(f[place]) < 0).any()) for f in found))
            for place, value in self._templates.items()
        ]


def _in_one_pass(custom: CustomOptimizer) -> dict[str, bool]:
    """Return the setting by which a class of torch takes a step in one pass over the weights, where it can."""
    has_fused = custom.make.__module__.startswith("torch.optim") and "fused" in signature(custom.make).parameters
    return {"fused": True} if has_fused and not {"fused", "foreach", "differentiable"} & custom.settings.keys() else {}


def is_elementwise(custom: CustomOptimizer) -> bool:
    """Say whether a class takes the same steps over a vector as over its parts; False where it takes none."""
    draw = partial(torch.randn, 17, generator=torch.Generator().manual_seed(0))
    whole, steps = draw(), [draw() for _ in range(3)]
    shapes = ((2, 1, 2, 2), (2, 3), (3,))
    in_parts = [part.reshape(shape) for part, shape in zip(whole.clone().split([8, 6, 3]), shapes, strict=True)]
    ends = []
    try:
        for tensors in ([whole.clone()], in_parts):
            parameters = [nn.Parameter(tensor) for tensor in tensors]
            optimizer = custom.make(parameters, lr=0.1, **custom.settings)
            for gradient in steps:
                optimizer.zero_grad()
                torch.cat([parameter.reshape(-1) for parameter in parameters]).dot(gradient).backward()
                optimizer.step()
            ends.append(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
    except Exception:  # what is wrong with it is said where it is made
        return False
    return torch.allclose(ends[0], ends[1], rtol=1e-5, atol=1e-7)


def _figures(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the numbers of each group but its learning rate."""
    return [
        {key: value for key, value in group.items() if isinstance(value, int | float) and key != "lr"}
        for group in optimizer.param_groups
    ]
