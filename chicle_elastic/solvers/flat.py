"""A torch module on flat buffers: parameters and gradients are views, so that a step is two operations on a vector.

`Module.to()`, `.half()` and the like would give parameters memory of their own again, and `zero_grad()` would drop the
gradients' views; do not call them on a module that is held here.
"""

from collections.abc import Iterator

import torch
from torch import nn

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
        names: Of its parameters.
        w: Parameters, tensor of shape (num_weights,), float32, in the order of `Module.parameters()`.
        g: Gradients, of the same shape; backward adds to them.
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
        self._parameters = list(module.parameters())
        for name, parameter in module.named_parameters():
            if not parameter.is_floating_point():
                raise UsageError(
                    f"{type(module).__name__} has the parameter {name!r} of dtype {parameter.dtype}; only modules with "
                    "parameters of real numbers can be trained"
                )
        if not any(parameter.requires_grad for parameter in self._parameters):
            raise UsageError(
                f"{type(module).__name__} has no parameter that could be trained; register layers as attributes "
                "(nn.ModuleList instead of a list), and leave requires_grad set"
            )
        num_weights = sum(parameter.numel() for parameter in self._parameters)
        self.w = torch.empty(num_weights, device=device)
        self.g = torch.zeros(num_weights, device=device)
        start = 0
        for parameter in self._parameters:
            span = slice(start, start + parameter.numel())
            self.w[span].copy_(parameter.detach().reshape(-1))
            parameter.data = self.w[span].view(parameter.shape)
            if parameter.requires_grad:
                parameter.grad = self.g[span].view(parameter.shape)
            start = span.stop
        self._optimizer = optimizer or Optimizer()
        self.custom: TorchOptimizer | None = None
        if isinstance(self._optimizer, CustomOptimizer):
            self.custom = TorchOptimizer(module, self._optimizer, self.w, self.g)
            num_state = self.custom.num_state
        else:
            num_state = num_weights
        self.v = torch.zeros(num_state, device=device)
        self.names = {name for name, _ in module.named_parameters()}
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

    def lost_views(self) -> Iterator[str]:
        """Names of parameters whose gradient does not lie in `g`: dropped by a `zero_grad()`, say, or of new ones."""
        start = self.g.data_ptr()
        stop = start + self.g.numel() * self.g.element_size()
        for name, parameter in self.module.named_parameters():
            gradient = parameter.grad
            if parameter.requires_grad and (
                gradient is None or gradient.is_sparse or not start <= gradient.data_ptr() < stop
            ):
                yield name

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

    def step(self, lr: float, momentum: float) -> None:
        """A step of the optimizer; g <- 0."""
        if isinstance(self._optimizer, Optimizer):
            self._optimizer.step(self.w, self.g, self.v, lr, momentum)
        elif self.custom is not None:
            self.custom.step(lr)
            self.g.zero_()
