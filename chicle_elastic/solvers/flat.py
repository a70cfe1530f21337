"""A torch module on flat buffers: its parameters and their momenta are views of vectors, which tasks average.

A step of SGD is one pass over them. Backward leaves each gradient in memory of its own, which costs less than to add it
to zeros; `gather` copies all of them to one vector for an optimizer that takes the weights as one. `Module.to()`,
`.half()` and the like would give parameters memory of their own again; do not call them on a module that is held here.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.optim.sgd import sgd

from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.engines.torch_optimizer import TorchOptimizer
from chicle_elastic.solvers.optimizers import CustomOptimizer, Optimizer


class FlatModule:
    """Takes a module over.

    Args:
        module: Its parameters and buffers get other memory, with the same values as float32.
        device: Where to.
        optimizer: What a step does.

    Attributes:
        module: The module.
        w: Parameters, tensor of shape (num_weights,), float32, in the order of `Module.parameters()`.
        g: Gradients, of the same shape, after `gather`; zeros where a parameter has none.
        v: State of the optimizer, tensor of shape (num_state,); of SGD its momentum. Of a custom one a copy, see
            `read_state`.
        custom: The optimizer that the user has chosen; None for SGD.

    Raises:
        UsageError: A parameter is not real, or the module has none.
    """

    def __init__(
        self, module: nn.Module, device: torch.device, optimizer: Optimizer | CustomOptimizer | None = None
    ) -> None:
        self.module = module.to(device)
        parameters = list(module.parameters())
        self._gradients: list[tuple[nn.Parameter, torch.Tensor]] = []
        for name, parameter in module.named_parameters():
            if not parameter.is_floating_point():
                raise UsageError(
                    f"{type(module).__name__} has the parameter {name!r} of dtype {parameter.dtype}; only modules with "
                    "parameters of real numbers can be trained"
                )
        if not any(parameter.requires_grad for parameter in parameters):
            raise UsageError(
                f"{type(module).__name__} has no parameter that could be trained; register layers as attributes "
                "(nn.ModuleList instead of a list), and leave requires_grad set"
            )
        num_weights = sum(parameter.numel() for parameter in parameters)
        self.w = torch.empty(num_weights, device=device)
        self.g = torch.zeros(num_weights, device=device)
        spans, start = [], 0
        for parameter in parameters:
            span = slice(start, start + parameter.numel())
            self.w[span].copy_(parameter.detach().reshape(-1))
            parameter.data = self.w[span].view(parameter.shape)
            if parameter.requires_grad:
                parameter.grad = self.g[span].view(parameter.shape)
                self._gradients.append((parameter, parameter.grad))
                spans.append((parameter, span))
            start = span.stop
        self._weight_decay = optimizer.weight_decay if isinstance(optimizer, Optimizer) else 0.0
        self.custom: TorchOptimizer | None = None
        if isinstance(optimizer, CustomOptimizer):
            self.custom = TorchOptimizer(module, optimizer, self.w, self.g)
        self.v = torch.zeros(num_weights if self.custom is None else self.custom.num_state, device=device)
        self._momenta = [self.v[span].view(each.shape) for each, span in spans] if self.custom is None else []
        self._shapes = {name: buffer.shape for name, buffer in module.named_buffers()}

    @property
    def num_weights(self) -> int:
        """Values in all parameters."""
        return len(self.w)

    @property
    def num_buffers(self) -> int:
        """Values in all buffers."""
        return sum(shape.numel() for shape in self._shapes.values())

    def read_buffers(self) -> torch.Tensor:
        """All buffers, tensor of shape (num_buffers,), float32; counters become numbers like the others."""
        parts = [buffer.detach().reshape(-1).float() for buffer in self._buffers()]
        return torch.cat(parts) if parts else self.w.new_empty(0)

    def write_buffers(self, values: torch.Tensor) -> None:
        """Set all buffers; counters (batch norm's number of batches) are rounded."""
        start = 0
        for buffer in self._buffers():
            part = values[start : start + buffer.numel()].view(buffer.shape)
            buffer.copy_(part if buffer.is_floating_point() else part.round())
            start += buffer.numel()

    def _buffers(self) -> list[torch.Tensor]:
        """Return the buffers that the module has now: it may have set others in their place.

        Raises:
            UsageError: They are not those of the beginning, or have other shapes.
        """
        found = dict(self.module.named_buffers())
        for name in found.keys() | self._shapes.keys():
            before, now = self._shapes.get(name), found[name].shape if name in found else None
            if before != now:
                raise UsageError(
                    f"the buffer {name!r} of {type(self.module).__name__} had the shape "
                    f"{None if before is None else tuple(before)}, and has {None if now is None else tuple(now)} after "
                    "the module was used; tasks average buffers, so register all of them in the constructor, and keep "
                    "their shapes (a plain attribute stays out)"
                )
        return [buffer for buffer in found.values() if buffer.numel()]

    def new_parameters(self) -> list[str]:
        """Return the names of parameters that are trained, and were not when the module was taken over."""
        own = {id(parameter) for parameter, _ in self._gradients}
        return [name for name, each in self.module.named_parameters() if each.requires_grad and id(each) not in own]

    def gather(self) -> None:
        """Copy all gradients to `g`, where they lie until the next step."""
        for parameter, view in self._gradients:
            gradient = parameter.grad
            if gradient is None:
                view.zero_()
            elif gradient is not view:
                view.copy_(_dense(gradient))
            parameter.grad = view

    def drop_gradients(self) -> None:
        """Let no parameter have a gradient."""
        for parameter, _ in self._gradients:
            parameter.grad = None

    def read_state(self) -> torch.Tensor:
        """Return `v`, which is what a custom optimizer has at present."""
        if self.custom is not None:
            self.custom.read(self.v)
        return self.v

    def write_state(self, values: torch.Tensor) -> None:
        """Set the state of the optimizer."""
        self.v.copy_(values)
        if self.custom is not None:
            self.custom.write(self.v)

    def step(self, lr: float, momentum: float, max_grad_norm: float = math.inf) -> None:
        """Take a step along the gradients, and drop them. A parameter without a gradient stays as it is by SGD, as in
        torch; to a custom optimizer it has a gradient of zeros.

        Args:
            lr: Learning rate.
            momentum: Of SGD.
            max_grad_norm: A longer gradient is scaled down to it.
        """
        if max_grad_norm < math.inf:
            for parameter, _ in self._gradients:
                if parameter.grad is not None:
                    parameter.grad = _dense(parameter.grad)  # torch has no norm of sparse ones
            torch.nn.utils.clip_grad_norm_([parameter for parameter, _ in self._gradients], max_grad_norm)
        if self.custom is None:
            self._sgd(lr, momentum)
        else:
            self.gather()
            self.custom.step(lr)
        self.drop_gradients()

    def _sgd(self, lr: float, momentum: float) -> None:
        """Take a step of SGD, in one pass."""
        pairs = zip((parameter for parameter, _ in self._gradients), self._momenta, strict=True)
        parts = [(each, _dense(each.grad), v) for each, v in pairs if each.grad is not None]
        if parts:
            w, g, v = map(list, zip(*parts, strict=True))
            given: Any = {"weight_decay": self._weight_decay, "momentum": momentum, "lr": lr, "dampening": 0.0}
            sgd(w, g, v, fused=True, nesterov=False, maximize=False, **given)


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient in the order of its parameter's values."""
    return (gradient.to_dense() if gradient.is_sparse else gradient).contiguous()
