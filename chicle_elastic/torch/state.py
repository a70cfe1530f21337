"""The state of a training as bytes: what a joining node receives from its peers, and what a checkpoint holds.

Theory of operation. The state is a text and a list of tensors. The text is JSON: position, settings of the optimizer's
groups, scheduler, gradient scaler, and, where a value is a tensor, its number in the list. The tensors are raw bytes,
of the dtypes and shapes that the text says. So nothing is unpickled: bytes of another node can become numbers and
texts, and no code.

    tensors    parameters and buffers of the module, in its order; then those of the optimizer and of the outer momentum

Senders have the same bits, so each of them sends another part of the bytes to every receiver (`send_and_receive`). A
receiver that has nothing to lose receives parameters in place; one that holds an older state of the job keeps it until
everything has arrived.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.runtime.collectives.process_group import ProcessGroup
from chicle_elastic.torch.schedule import Position, Transfers, cut

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
KINDS = {"dict": dict, "list": list, "tuple": tuple, "counter": Counter}


class TrainingState:
    """Model, optimizer, scheduler and scaler of one member, with the position that they are of.

    Attributes:
        position: How far the training has come.
        velocity: Outer momentum of local SGD, a tensor per parameter of the optimizer; empty without.
        is_stopped: A member has asked for the end of the training in the step that led here.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, scaler: Any) -> None:
        self.model, self.optimizer, self.scheduler, self.scaler = model, optimizer, scheduler, scaler
        self.position = Position()
        self.velocity: list[Tensor] = []
        self.is_stopped = False

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters and buffers by name, those buffers included that `state_dict` leaves out."""
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()

    def describe(self) -> tuple[bytes, list[Tensor]]:
        """Return the text and the tensors; the tensors are those of the training itself. Raises UsageError when a value
        of the optimizer, scheduler or scaler is neither a number, a text nor a tensor."""
        tensors = [tensor.detach() for _, tensor in self.named_tensors()]
        held = {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "velocity": self.velocity,
        }
        position = self.position
        text = {
            "position": [position.epoch, position.offset, position.step],
            "is_stopped": self.is_stopped,
            "names": [name for name, _ in self.named_tensors()],
            "held": _encode(held, tensors, "the state"),
        }
        text["tensors"] = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in tensors]
        return json.dumps(text).encode(), tensors

    def empty_tensors(self, text: dict[str, Any], *, in_place: bool) -> list[Tensor]:
        """Return tensors of host memory for what the text announces.

        Args:
            in_place: Whether parameters and buffers of the model are among them, where they are of that kind.

        Raises:
            DataError: The text is of another model.
        """
        own = [tensor.detach() for _, tensor in self.named_tensors()]
        names, told = [name for name, _ in self.named_tensors()], text["tensors"]
        kinds = [(DTYPES[dtype], tuple(shape)) for dtype, shape in told]
        for name, told_name, tensor, kind in zip(names, text["names"], own, kinds, strict=False):
            if (name, tensor.dtype, tuple(tensor.shape)) != (told_name, *kind):
                raise DataError(
                    f"this model has {name} of {tensor.dtype} {tuple(tensor.shape)}, and the state that it is to get "
                    f"has {told_name} of {kind[0]} {kind[1]}; every node has to build the same model"
                )
        if len(names) != len(text["names"]):
            raise DataError(f"this model has {len(names)} tensors, and the state that it is to get {text['names']}")
        found = own if in_place else []
        return [
            found[number]
            if number < len(found) and found[number].is_contiguous() and found[number].device.type == "cpu"
            else _empty(*kind)
            for number, kind in enumerate(kinds)
        ]

    def adopt(self, text: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        """Take over a state whose tensors are complete."""
        with torch.no_grad():
            for (_, own), tensor in zip(self.named_tensors(), tensors, strict=False):
                if own.data_ptr() != tensor.data_ptr():
                    own.copy_(tensor)
        held = _decode(text["held"], tensors)
        self.optimizer.load_state_dict(held["optimizer"])
        parameters = parameters_of(self.optimizer)
        for number, state in held["optimizer"]["state"].items():
            loaded = self.optimizer.state[parameters[number]]
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dtype != loaded[name].dtype:  # torch has made it the parameter's
                    loaded[name] = value.to(loaded[name].device)
        for name in ("scheduler", "scaler"):
            if held[name] is not None:
                getattr(self, name).load_state_dict(held[name])
        self.velocity = [v.to(p.device) for v, p in zip(held["velocity"], parameters, strict=False)]
        self.is_stopped = text.get("is_stopped", False)  # not in files of before there was a step of the end
        self.position = Position(**dict(zip(("epoch", "offset", "step"), text["position"], strict=True)))


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups, in their order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def send_and_receive(group: ProcessGroup, plan: Transfers, state: TrainingState, *, in_place: bool) -> None:
    """Bring the state of the senders to the receivers; all members call it. Raises PeerLostError when a member was
    lost; then a receiver has the state of before, unless it receives in place."""
    if not plan.receivers:
        return
    is_sender, head, tensors = group.rank in plan.senders, b"", list[Tensor]()
    if is_sender:
        head, tensors = state.describe()
    size = int(group.all_gather(np.array([float(len(head))]))[plan.senders[0], 0])
    if group.rank == plan.senders[0]:
        group.exchange({rank: [memoryview(head)] for rank in plan.receivers}, {})
    elif not is_sender:
        content = bytearray(size)
        group.exchange({}, {plan.senders[0]: [memoryview(content)]})
        head = bytes(content)
    text = json.loads(head)
    if is_sender:
        views = [bytes_of(tensor.cpu().contiguous()) for tensor in tensors]
    else:
        tensors = state.empty_tensors(text, in_place=in_place)
        views = [bytes_of(tensor) for tensor in tensors]
    parts = cut(0, sum(map(len, views)), len(plan.senders))
    by_sender = {rank: list(_slices(views, part)) for rank, part in zip(plan.senders, parts, strict=True)}
    if is_sender:
        group.exchange(dict.fromkeys(plan.receivers, by_sender[group.rank]), {})
    else:
        group.exchange({}, by_sender)
        state.adopt(text, tensors)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor of the host."""
    if not tensor.numel():
        return memoryview(b"")
    values: Array = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return values.data


def _slices(views: Sequence[memoryview], part: range) -> Iterator[memoryview]:
    """Yield what lies in a part of the views as if they were one."""
    begin = 0
    for view in views:
        start, stop = max(part.start, begin), min(part.stop, begin + len(view))
        if start < stop:
            yield view[start - begin : stop - begin]
        begin += len(view)


def _empty(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    # By NumPy, which asks the kernel for huge pages: most of the time to receive is that of the pages' first use.
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.empty(num_bytes, dtype=np.uint8)).view(dtype).reshape(shape)


def _encode(value: Any, tensors: list[Tensor], where: str) -> Any:
    """Return a tree as JSON values; its tensors are appended to `tensors`."""
    if isinstance(value, Tensor):
        tensors.append(value.detach())
        return {"tensor": len(tensors) - 1}
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, Counter) else "dict"
        items = [[_encode(k, tensors, where), _encode(v, tensors, f"{where}[{k!r}]")] for k, v in value.items()]
        return {kind: items}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(entry, tensors, f"{where}[{i}]") for i, entry in enumerate(value)]}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(
        f"{where} is of {type(value).__name__}, which cannot be sent to a joining node: only numbers, texts, tensors, "
        "and lists and dicts of them can"
    )


def _decode(value: Any, tensors: Sequence[Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "float":
        return float(content)
    if kind in ("dict", "counter"):
        return KINDS[kind]({_decode(k, tensors): _decode(v, tensors) for k, v in content})
    return KINDS[kind](_decode(entry, tensors) for entry in content)
