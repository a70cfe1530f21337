"""What is looked at before a loop begins: whether nodes could take over from each other at all."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from chicle_elastic.errors import UsageError
from chicle_elastic.torch.schedule import Plan


def inner_module(model: nn.Module) -> nn.Module:
    """Return the module of a DDP wrapper over one process. Raises UsageError for one over several."""
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return model
    size = torch.distributed.get_world_size(model.process_group)
    if size != 1:
        raise UsageError(
            f"the model is wrapped for a process group of {size}, whose processes cannot change; give the module itself"
        )
    inner: nn.Module = model.module
    return inner


def check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise UsageError when the optimizer has a parameter that the model has not."""
    known = {id(parameter) for parameter in model.parameters()}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in known:
                raise UsageError(
                    f"group {number} of the optimizer has a parameter of shape {tuple(parameter.shape)} that is not in "
                    "the model, so a joining node could not receive it; give a model with all parameters, such as an "
                    "nn.ModuleList"
                )


def check_methods(optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    """Raise UsageError for an optimizer or a scheduler that needs more than summed gradients and a call."""
    if any(parameter.is_complex() for group in optimizer.param_groups for parameter in group["params"]):
        raise UsageError(
            "a parameter of the optimizer is complex, and gradients are added up as real numbers; keep real and "
            "imaginary parts as two real parameters (torch.view_as_real)"
        )
    if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
        raise UsageError(
            f"{type(optimizer).__name__} does not work in a loop: LBFGS calls the model again within its step, and "
            "SparseAdam needs sparse gradients, whose sum is dense here; take Adam or SGD, for example"
        )
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise UsageError(
            "ReduceLROnPlateau needs a figure for each step, and the loop has none to give; take another scheduler, or "
            "set the learning rate in the groups of the optimizer by a loss that loop.step has returned"
        )


def digest_of(model: nn.Module, optimizer: torch.optim.Optimizer, plan: Plan, options: Sequence[object]) -> str:
    """Return a digest of what every node has to build alike: tensors of the model, optimizer, samples and batches, and
    other options of the loop."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    parts = [
        [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in tensors],
        [type(optimizer).__name__, *([len(group["params"]), *sorted(group)] for group in optimizer.param_groups)],
        str(plan),
        list(map(str, options)),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
