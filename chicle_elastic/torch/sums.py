"""What the members of a loop add up, in one flat vector of host memory.

    at each step         [gradients | buffers                | marks]
    after local steps    [          parameters | buffers     | marks]

Each part counts by its member's share of the samples. Of a buffer that is not of floats, a counter for example, the
bits of one member are the sum, which has samples, and the others add 0. A mark says that a member has a gradient for
the parameter, or has changed the tensor. A parameter without a mark keeps `grad = None`, so that its optimizer leaves
it alone as in a plain loop; a tensor without a mark keeps its bits, as an average of constants would drift by its
rounding. The vector is float64 where a parameter is, else float32.

The state of an optimizer is not among it. Between local steps each member keeps its own, as DiLoCo has it (Douillard et
al. 2023): so an average costs one model, and not three with Adam.

The loop calls `begin`, after each batch `end_batch`, then `fill`; and when the sum of all members is there `commit`,
else `undo`.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from chicle_elastic.chunks.views import Array
from chicle_elastic.torch.state import parameters_of


class StepSum:
    """The sum of a step, or of local steps; `parameters` are those of the optimizer.

    Args:
        apply: Takes the optimizer's step with the gradients of the parameters, and forgets them.
        is_local: Whether members take steps of their own, and average parameters.
        is_mean: Whether a loss is the mean over the samples of its batch, and not their sum.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, apply: Callable[[], None], *, is_local: bool, is_mean: bool
    ) -> None:
        self._optimizer, self._apply, self._is_local, self._is_mean = optimizer, apply, is_local, is_mean
        self.parameters, buffers = parameters_of(optimizer), list(model.buffers())
        self._averaged = [*self.parameters, *buffers] if is_local else buffers
        self._saved: list[Tensor] = []
        self._saved_state: dict[Any, Any] = {}
        tensors = [*([] if is_local else self.parameters), *map(_numbers, self._averaged)]
        sizes = [tensor.numel() for tensor in tensors]
        dtype = torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
        flat = torch.zeros(sum(sizes) + len(sizes), dtype=dtype, device="cpu")
        *parts, self._marks = flat.split([*sizes, len(sizes)])
        views = [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
        self._num_gradients = len(tensors) - len(self._averaged)
        self._gradient_views, self._views = views[: self._num_gradients], views[self._num_gradients :]
        self.buffer: Array = flat.numpy()  # what `all_reduce` changes in place

    @torch.no_grad()
    def begin(self) -> None:
        """Keep what the body changes: buffers, in the forward pass; and all of the state before local steps."""
        self._saved = [tensor.clone() for tensor in self._averaged]
        if self._is_local:
            self._saved_state = {key: copy.deepcopy(state) for key, state in self._optimizer.state.items()}

    @torch.no_grad()
    def undo(self) -> None:
        """Go back to the state of `begin`, without gradients."""
        self._optimizer.zero_grad(set_to_none=True)
        for tensor, saved in zip(self._averaged, self._saved, strict=True):
            tensor.copy_(saved)
        if self._is_local:
            self._optimizer.state.clear()
            self._optimizer.state.update(self._saved_state)

    def end_batch(self) -> None:
        """Take a local step, or keep the gradients for the sum."""
        if self._is_local:
            self._apply()

    @torch.no_grad()
    def fill(self, share: float, *, is_first: bool) -> Array:
        """Return the vector with this member's part, whose share of the samples may be 0; `is_first`: its other buffers
        are the sum."""
        marks, factor = [], share if self._is_mean else 1.0
        for view, parameter in zip(self._gradient_views, self.parameters, strict=False):
            gradient = parameter.grad if share else None
            marks.append(gradient is not None)
            _put(view, gradient, factor)
        for view, tensor, saved in zip(self._views, self._averaged, self._saved, strict=True):
            marks.append(share > 0 and not torch.equal(tensor, saved))
            _put(view, _numbers(tensor), share if tensor.is_floating_point() else float(is_first))
        self._marks.copy_(torch.tensor(marks))
        return self.buffer

    def commit(self, outer: Optimizer) -> None:
        """Take the optimizer's step with the sum, which stays in the vector where that is of the parameter's kind; or
        make the average the state, and take the step of `outer` by it."""
        marks = [bool(mark) for mark in self._marks.tolist()]
        for view, parameter, mark in zip(self._gradient_views, self.parameters, marks, strict=False):
            parameter.grad = view.to(parameter) if mark else None  # the view itself where it is of that kind
        with torch.no_grad():
            for view, tensor, mark in zip(self._views, self._averaged, marks[self._num_gradients :], strict=True):
                if mark and tensor.is_floating_point():
                    tensor.copy_(view)
                elif mark:
                    tensor.copy_(view.to(_kind(tensor)).view(tensor.dtype).reshape(tensor.shape))
            if self._is_local:
                self._step_outside(outer)
        if not self._is_local:
            self._apply()

    def _step_outside(self, outer: Optimizer) -> None:
        """Move the parameters beyond their averages: the change is the gradient of a step from where they were."""
        [group] = outer.param_groups
        if not group["momentum"]:
            outer.state.clear()
            if group["lr"] == 1.0:
                return  # not even a rounding
        for parameter, before in zip(self.parameters, self._saved, strict=False):
            parameter.grad = before - parameter
            parameter.copy_(before)
        outer.step()
        outer.zero_grad(set_to_none=True)


def _put(view: Tensor, tensor: Tensor | None, factor: float) -> None:
    """Write `factor * tensor` into the view; a member without samples has no part, also in what is not finite."""
    if tensor is None or not factor:
        view.zero_()
    elif tensor.dtype == view.dtype and tensor.device == view.device and not tensor.is_sparse:
        torch.mul(tensor, factor, out=view)
    else:
        view.copy_(tensor.to_dense()).mul_(factor)


def _numbers(tensor: Tensor) -> Tensor:
    """Return what is added up of a tensor: itself if it is of floats, such as means of batch norm; else its bits, as
    numbers of 16 or 8 bits, which every float holds."""
    if tensor.is_floating_point():
        return tensor
    return tensor.detach().cpu().contiguous().reshape(-1).view(_kind(tensor))


def _kind(tensor: Tensor) -> torch.dtype:
    return torch.int16 if tensor.dtype.itemsize > 1 else torch.uint8
