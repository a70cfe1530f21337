"""The state of a training as bytes: what a joining node receives from its peers, and what a checkpoint holds.

Theory of operation. The state is a head and the bytes of tensors, in the format of safetensors. The head is JSON: name,
dtype, shape and place of each tensor. Its metadata is a text, JSON again: position, settings of the optimizer's groups,
scheduler, gradient scaler, and, where a value is a tensor, its number. So nothing is unpickled: bytes of another node
can become numbers and texts, and no code.

    tensors    parameters and buffers of the module by name; those of the optimizer and of the outer momentum as state/N

Senders with the same bits each send another part of each tensor to every receiver (`begin_transfer`), and compute the
next step meanwhile: nothing of the state changes before its sum but buffers. A receiver keeps the state that it has
until everything has arrived.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.runtime.collectives.process_group import ProcessGroup
from chicle_elastic.torch.schedule import Position, cut

METADATA, OWN, STATE = "__metadata__", "chicle", "state/"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool}
DTYPES |= {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""dtypes as the format names them."""


class TrainingState:
    """Model, optimizer, scheduler and scaler of one member, with the position that they are of.

    Attributes:
        position: How far the training has come.
        outer: Takes the steps that are made of averages, and keeps their momentum.
        is_stopped: A member has asked for the end of the training in the step that led here.
        is_alike: Whether all members of a position have the same bits; else their optimizers differ.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, scaler: Any, *, is_alike: bool = True
    ) -> None:
        self.model, self.optimizer, self.scheduler, self.scaler = model, optimizer, scheduler, scaler
        self.position = Position()
        self.outer = torch.optim.SGD(parameters_of(optimizer))
        self.is_stopped, self.is_alike = False, is_alike
        parts = {"optimizer": optimizer, "outer": self.outer, "scheduler": scheduler, "scaler": scaler}
        self._parts: dict[str, Any] = {name: part for name, part in parts.items() if part is not None}

    def named_tensors(self) -> dict[str, Tensor]:
        """Return parameters and buffers by name, those buffers included that `state_dict` leaves out; of complex ones
        real and imaginary parts, as the format lacks some sizes of them."""
        named = ((name, t.detach()) for name, t in (*self.model.named_parameters(), *self.model.named_buffers()))
        return {name: torch.view_as_real(tensor) if tensor.is_complex() else tensor for name, tensor in named}

    def describe(self) -> tuple[bytes, dict[str, Tensor]]:
        """Return the head and the tensors by name; they are those of the training itself, but for buffers, which a
        forward pass changes. Raises UsageError when a value of the optimizer, scheduler or scaler is neither a number,
        a text nor a tensor, or the format lacks a dtype."""
        tensors = self.named_tensors()
        tensors |= {name: tensors[name].clone() for name, _ in self.model.named_buffers()}
        held = {name: part.state_dict() for name, part in self._parts.items()}
        held |= {"position": dataclasses.asdict(self.position), "is_stopped": self.is_stopped}
        text = json.dumps(_encode(held, tensors, "the state"))
        head, end = dict[str, Any]({METADATA: {OWN: text}}), 0
        for name, tensor in tensors.items():
            if tensor.dtype not in NAMES:
                raise UsageError(f"{name} is of {tensor.dtype}, which cannot be sent to a joining node")
            start, end = end, end + tensor.numel() * tensor.dtype.itemsize
            head[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        return json.dumps(head).encode(), tensors

    def room(self, head: bytes) -> dict[str, Tensor]:
        """Return tensors of host memory for those of a head. Raises DataError when it is of another model."""
        tensors: dict[str, Tensor] = {}
        for name, entry in json.loads(head).items():
            if name != METADATA:
                begin, end = entry["data_offsets"]
                # By NumPy, which asks the kernel for huge pages: most of the time to receive is their first use.
                memory = torch.from_numpy(np.empty(end - begin, np.uint8))
                tensors[name] = memory.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
        kinds = {name: (t.dtype, t.shape) for name, t in tensors.items() if not name.startswith(STATE)}
        own = {name: (t.dtype, t.shape) for name, t in self.named_tensors().items()}
        for name in own | kinds:
            if own.get(name) != kinds.get(name):
                raise DataError(
                    f"{name} is {own.get(name)} in this model, and {kinds.get(name)} in the state that it is to get; "
                    "every node has to build the same model"
                )
        return tensors

    def adopt(self, head: bytes, tensors: Mapping[str, Tensor]) -> None:
        """Take over a state whose tensors are complete."""
        with torch.no_grad():
            for name, own in self.named_tensors().items():
                own.copy_(tensors[name])
        text = json.loads(head)[METADATA][OWN]
        held = json.loads(text, object_hook=lambda entry: _decoded(entry, tensors))
        for name, part in self._parts.items():
            if held.get(name):
                part.load_state_dict(held[name])
        parameters = parameters_of(self.optimizer)
        for number, state in held["optimizer"]["state"].items():
            loaded = self.optimizer.state[parameters[number]]
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dtype != loaded[name].dtype:  # torch has made it the parameter's
                    loaded[name] = value.to(loaded[name].device)
        self.is_stopped, self.position = held["is_stopped"], Position(**held["position"])


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups, in their order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def begin_transfer(group: ProcessGroup, holders: Sequence[int], state: TrainingState) -> Callable[[], None]:
    """Begin to bring the state of its holders, by rank, to all others; all members call it.

    Returns:
        What does the rest. A holder of states that are alike may call it in another thread, until the next sum.

    Raises:
        PeerLostError: A member was lost; so does the rest. Then a receiver has the state of before.
    """
    receivers = [rank for rank in range(group.size) if rank not in holders]
    if not receivers:
        return lambda: None
    senders = holders if state.is_alike else holders[:1]
    is_sender, is_receiver = group.rank in senders, group.rank in receivers
    head, tensors = state.describe() if is_sender else (b"", dict[str, Tensor]())
    size = int(group.all_gather(np.array([float(len(head))]))[senders[0], 0])
    content = np.frombuffer(head, np.uint8).copy() if group.rank == senders[0] else np.zeros(size, np.uint8)
    if is_receiver or group.rank == senders[0]:
        group.broadcast(content, root=senders[0], to=receivers)
    if is_receiver:
        head = content.tobytes()
        tensors = state.room(head)
    by_sender: dict[int, list[memoryview]] = {rank: [] for rank in senders}
    for view in map(bytes_of, tensors.values()):
        for rank, part in zip(senders, cut(0, len(view), len(senders)), strict=True):
            if part.start < part.stop:  # a stream of verbs takes no empty views
                by_sender[rank].append(view[part.start : part.stop])

    def rest() -> None:
        if is_sender:
            group.exchange(dict.fromkeys(receivers, by_sender[group.rank]), {})
        elif is_receiver:
            group.exchange({}, by_sender)
            state.adopt(head, tensors)

    return rest


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a tensor, of a copy where it is not contiguous or not of the host."""
    values: Array = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return values.data


def _encode(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    """Return a tree as JSON values; its tensors are added to `tensors`."""
    if isinstance(value, Tensor):
        name = f"{STATE}{len(tensors)}"
        tensors[name] = value.detach()
        return {"tensor": name}
    if isinstance(value, dict):
        pairs = [[_encode(k, tensors, where), _encode(v, tensors, f"{where}[{k!r}]")] for k, v in value.items()]
        return {"counter" if isinstance(value, Counter) else "dict": pairs}
    if isinstance(value, list | tuple):
        entries = [_encode(entry, tensors, f"{where}[{number}]") for number, entry in enumerate(value)]
        return entries if isinstance(value, list) else {"tuple": entries}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(
        f"{where} is of {type(value).__name__}, which cannot be sent to a joining node: only numbers, texts, tensors, "
        "and lists and dicts of them can"
    )


def _decoded(entry: dict[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """Return what an object of the text stands for; those within it have been decoded."""
    [(kind, content)] = entry.items()
    if kind == "tensor":
        return tensors[content]
    return tuple(content) if kind == "tuple" else Counter(dict(content)) if kind == "counter" else dict(content)
