"""What the members of a loop add up, in one flat vector: gradients at each step, or the state after local steps.

    GradientSum    [gradients, each times its member's share of the samples | buffers | marks]
    LocalSum       [parameters | state of the optimizer, if float, each times that share | buffers]

A float buffer counts by that share; of others, counters for example, the bits of one member are the sum, which has
samples, and the others add 0. A mark says that a member has a gradient for the parameter, or has changed the buffer. A
parameter without a mark keeps `grad = None`, so that its optimizer leaves it alone as in a plain loop, and a buffer
without a mark keeps its bits: an average of constants would drift by its rounding. The vector is float64 where
a parameter is, else float32.

The loop calls `begin`, after each batch `end_batch`, then `fill`; and when the sum of all members is there `commit`,
else `undo`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from chicle_elastic.chunks.views import Array
from chicle_elastic.torch.state import parameters_of


class FlatSum:
    """A vector of host memory with a view for each of some tensors, and marks behind them."""

    def __init__(self, tensors: Sequence[Tensor], *, num_marks: int = 0) -> None:
        is_wide = any(tensor.dtype == torch.float64 for tensor in tensors)
        sizes = [tensor.numel() for tensor in tensors]
        flat = torch.zeros(sum(sizes) + num_marks, dtype=torch.float64 if is_wide else torch.float32)
        *parts, self.marks = flat.split([*sizes, num_marks])
        self.views = [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
        self.buffer: Array = flat.numpy()  # what `all_reduce` changes in place


class GradientSum:
    """The sum of a step of all members; `parameters` are those of the optimizer.

    Args:
        apply: Takes the optimizer's step with the gradients of the parameters, and forgets them.
        is_mean: Whether a loss is the mean over the samples of its batch, and not their sum.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, apply: Callable[[], None], *, is_mean: bool
    ) -> None:
        self._apply, self._is_mean = apply, is_mean
        self.parameters, self._buffers = parameters_of(optimizer), list(model.buffers())
        num = len(self.parameters)
        self._flat = FlatSum([*self.parameters, *map(_numbers, self._buffers)], num_marks=num + len(self._buffers))
        self._views, self._buffer_views = self._flat.views[:num], self._flat.views[num:]
        self._saved: list[tuple[Tensor, Tensor]] = []

    def begin(self) -> None:
        """Keep the buffers, which the forward pass changes."""
        self._saved = [(buffer, buffer.detach().clone()) for buffer in self._buffers]

    @torch.no_grad()
    def undo(self) -> None:
        """Go back to the state of `begin`."""
        for buffer, saved in self._saved:
            buffer.copy_(saved)

    def end_batch(self) -> None:
        """Keep the gradients for the sum."""

    @torch.no_grad()
    def fill(self, share: float, *, is_first: bool) -> Array:
        """Return the vector with this member's part, whose share of the samples may be 0; `is_first`: its other buffers
        are the sum."""
        marks, factor = [], share if self._is_mean else 1.0
        for view, parameter in zip(self._views, self.parameters, strict=True):
            gradient = parameter.grad if share else None
            marks.append(float(gradient is not None))
            if gradient is None:
                view.zero_()
            else:
                _put(view, gradient.to_dense() if gradient.is_sparse else gradient, factor)
        for view, (buffer, saved) in zip(self._buffer_views, self._saved, strict=True):
            marks.append(float(share > 0 and not torch.equal(buffer, saved)))
            _put_buffer(view, buffer, share, is_first)
        self._flat.marks.copy_(torch.tensor(marks))
        return self._flat.buffer

    def commit(self, velocity: list[Tensor], num_steps: int) -> None:
        """Take the optimizer's step with the sum, which stays in the vector where that is of the parameter's kind."""
        marks = self._flat.marks.tolist()
        for view, parameter, mark in zip(self._views, self.parameters, marks, strict=False):
            is_alike = parameter.dtype == view.dtype and parameter.device == view.device
            parameter.grad = None if not mark else view if is_alike else view.to(parameter)
        with torch.no_grad():
            for view, buffer, mark in zip(self._buffer_views, self._buffers, marks[len(self._views) :], strict=True):
                if mark:
                    _take_buffer(buffer, view)
        self._apply()


class LocalSum:
    """The average of all members after local steps, and the state of before; `parameters` are those of the optimizer.

    Args:
        apply: As of `GradientSum`.
        rate: Of the outer step; 1 takes the average.
        momentum: Of the outer step (Nesterov), in [0, 1).
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        apply: Callable[[], None],
        *,
        rate: float,
        momentum: float,
    ) -> None:
        self._optimizer, self._apply, self._rate, self._momentum = optimizer, apply, rate, momentum
        self.parameters = parameters_of(optimizer)
        self._buffers, self._all = list(model.buffers()), [*self.parameters, *model.buffers()]
        self._saved: list[Tensor] = []
        self._saved_state: dict[int, tuple[Tensor, Tensor]] = {}
        self._flat = FlatSum([])

    @torch.no_grad()
    def begin(self) -> None:
        """Keep the state of before the local steps."""
        self._saved = [tensor.detach().clone() for tensor in self._all]
        self._saved_state = {id(tensor): (tensor, tensor.clone()) for _, tensor in self._state()}

    @torch.no_grad()
    def undo(self) -> None:
        """Go back to the state of `begin`."""
        for tensor, saved in zip(self._all, self._saved, strict=True):
            tensor.copy_(saved)
        for tensor, saved in self._saved_state.values():
            tensor.copy_(saved)
        if not self._saved_state:
            self._optimizer.state.clear()

    def end_batch(self) -> None:
        """Take a local step."""
        self._apply()

    @torch.no_grad()
    def fill(self, share: float, *, is_first: bool) -> Array:
        """Return the vector with this member's part, whose share of the samples may be 0; `is_first`: its other buffers
        are the sum."""
        tensors = self._tensors()
        if len(self._flat.views) != len(tensors) + len(self._buffers):
            self._flat = FlatSum([*tensors, *map(_numbers, self._buffers)])
        for view, tensor in zip(self._flat.views, tensors, strict=False):
            _put(view, tensor, share)
        for view, buffer in zip(self._flat.views[len(tensors) :], self._buffers, strict=True):
            _put_buffer(view, buffer, share, is_first)
        return self._flat.buffer

    @torch.no_grad()
    def commit(self, velocity: list[Tensor], num_steps: int) -> None:
        """Make the average the state, and take the outer step.

        Args:
            velocity: OUT; outer momentum, a tensor per parameter, or empty where there is none yet.
            num_steps: Local steps that the members took.
        """
        num = len(self.parameters)
        if self._momentum and not velocity:
            velocity += [torch.zeros_like(parameter) for parameter in self.parameters]
        for which, (parameter, view) in enumerate(zip(self.parameters, self._flat.views, strict=False)):
            before = self._saved[which]
            change = view.to(parameter) - before
            if self._momentum:
                velocity[which].mul_(self._momentum).add_(change)
                change.add_(velocity[which], alpha=self._momentum)
            parameter.copy_(before.add_(change, alpha=self._rate))
        state = self._tensors()[num:]
        for tensor, view in zip(state, self._flat.views[num:], strict=False):
            tensor.copy_(view)
        for buffer, view in zip(self._buffers, self._flat.views[num + len(state) :], strict=True):
            _take_buffer(buffer, view)
        for name, step in self._state():
            if name == "step":  # a member without samples has taken none of the steps
                _, saved = self._saved_state.get(id(step), (step, torch.zeros_like(step)))
                step.copy_(saved + num_steps)

    def _tensors(self) -> list[Tensor]:
        state = [tensor for name, tensor in self._state() if tensor.is_floating_point() and name != "step"]
        return [*self.parameters, *state]

    def _state(self) -> list[tuple[str, Tensor]]:
        """Return the optimizer's tensors with their names, by parameter."""
        states = [self._optimizer.state.get(parameter, {}) for parameter in self.parameters]
        return [(name, value) for state in states for name, value in sorted(state.items()) if isinstance(value, Tensor)]


def _put(view: Tensor, tensor: Tensor, factor: float) -> None:
    """Write `factor * tensor` into the view; a member without samples has no part, also in what is not finite."""
    if not factor:
        view.zero_()
    elif tensor.dtype == view.dtype and tensor.device == view.device:
        torch.mul(tensor, factor, out=view)
    else:
        view.copy_(tensor).mul_(factor)


def _numbers(buffer: Tensor) -> Tensor:
    """Return what is added up of a buffer: itself if it is of floats, such as means of batch norm; else its bits, as
    numbers of 16 or 8 bits, which every float holds."""
    if buffer.is_floating_point():
        return buffer
    return buffer.detach().cpu().contiguous().reshape(-1).view(_kind(buffer))


def _kind(buffer: Tensor) -> torch.dtype:
    return torch.int16 if buffer.dtype.itemsize > 1 else torch.uint8


def _put_buffer(view: Tensor, buffer: Tensor, share: float, is_first: bool) -> None:
    if buffer.is_floating_point():
        _put(view, buffer, share)
    elif is_first:
        view.copy_(_numbers(buffer))
    else:
        view.zero_()


def _take_buffer(buffer: Tensor, view: Tensor) -> None:
    is_float = buffer.is_floating_point()
    buffer.copy_(view if is_float else view.to(_kind(buffer)).view(buffer.dtype).reshape(buffer.shape))
