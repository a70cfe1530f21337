"""What a step of local SGD does with a gradient: SGD with momentum, or Adam; the state is a part of the model.

    sgd      v <- momentum v + (g + decay w);  w <- w - lr v                                    state: v
    adam     m <- momentum m + (1 - momentum) g';  s <- beta s + (1 - beta) g'^2;  t <- t + 1   state: m, s, t
             w <- w - lr (m / (1 - momentum^t)) / (sqrt(s / (1 - beta^t)) + EPS)                with g' = g + decay w
    adamw    the same with g' = g, after w <- (1 - lr decay) w

Kingma and Ba 2015, "Adam", algorithm 1; Loshchilov and Hutter 2019, "Decoupled weight decay regularization", algorithm
2; as in torch.optim. Tasks average the state with the weights, so it moves with the model, to joiners and to
checkpoints. The number of steps t is averaged, too: tasks that take fewer steps of an iteration count less.
Another optimizer of torch.optim, or these with more settings, is a `CustomOptimizer` (`engines.torch_optimizer`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

NAMES = ("sgd", "adam", "adamw")
BETA = 0.999
EPS = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """One of them, with its settings.

    Attributes:
        name: Of `NAMES`.
        weight_decay: Factor of w in the gradient, or of AdamW.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    weight_decay: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether it is SGD with momentum and no more, which fused kernels know."""
        return self.name == "sgd" and self.weight_decay == 0.0

    def num_state(self, num_weights: int) -> int:
        """Length of the state for so many weights."""
        return num_weights if self.name == "sgd" else 2 * num_weights + 1

    def step(self, w: Any, g: Any, state: Any, lr: float, momentum: float) -> None:
        """One step, in place; the gradient is zero afterwards.

        Args:
            w: Weights, tensor of shape (n,), float32.
            g: Their gradient, of the same shape.
            state: Of shape (num_state(n),), float32.
            lr: Learning rate.
            momentum: Of SGD; of Adam its first beta.
        """
        if self.weight_decay:
            if self.name == "adamw":
                w.mul_(1.0 - lr * self.weight_decay)
            else:
                g.add_(w, alpha=self.weight_decay)
        if self.name == "sgd":
            state.mul_(momentum).add_(g)
            w.add_(state, alpha=-lr)
        else:
            n = len(w)
            m, s, t = state[:n], state[n : 2 * n], state[2 * n :]
            m.mul_(momentum).add_(g, alpha=1.0 - momentum)
            # An average of tasks may round what is nearly 0 to less.
            s.mul_(BETA).addcmul_(g, g, value=1.0 - BETA).clamp_(min=0.0)
            steps = float(t.add_(1.0))
            root = (s / (1.0 - BETA**steps)).sqrt_().add_(EPS)
            w.addcdiv_(m, root, value=-lr / (1.0 - momentum**steps))
        g.zero_()


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomOptimizer:
    """An optimizer of torch.optim, described.

    Attributes:
        make: Its class, which gets the parameters and the learning rate; or a function of the module.
        settings: More arguments.
        rate: Learning rate.
    """

    make: Callable[..., Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    rate: float

    @property
    def is_plain(self) -> bool:
        """Never; see `Optimizer.is_plain`."""
        return False
