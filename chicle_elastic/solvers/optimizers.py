"""What a step of local SGD does with a gradient: SGD with momentum here, and any optimizer of torch.optim, described.

    v <- momentum v + (g + decay w);  w <- w - lr v

The state is a part of the model. Tasks average it with the weights, so it moves with the model, to joiners and to
checkpoints.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """SGD with momentum.

    Attributes:
        weight_decay: Factor of w in the gradient.
    """

    weight_decay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomOptimizer:
    """An optimizer of torch.optim, described; `engines.torch_optimizer` makes it.

    Attributes:
        make: Its class, which gets the parameters and the learning rate; or a function of the module.
        settings: More arguments.
        rate: Learning rate.
    """

    make: Callable[..., Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    rate: float
