"""What is looked at before a loop begins: whether nodes could take over from each other at all."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from chicle_elastic.errors import UsageError
from chicle_elastic.torch.schedule import Plan
from chicle_elastic.torch.state import parameters_of


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


def check_methods(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    """Raise UsageError when the optimizer has a parameter that the model has not, or that is complex, or the scheduler
    needs more than a call."""
    known = {id(parameter) for parameter in model.parameters()}
    for parameter in parameters_of(optimizer):
        if parameter.is_complex():
            raise UsageError(
                "a parameter of the optimizer is complex, and gradients are added up as real numbers; keep real and "
                "imaginary parts as two real parameters (torch.view_as_real)"
            )
        if id(parameter) not in known:
            raise UsageError(
                f"the optimizer has a parameter of shape {tuple(parameter.shape)} that is not in the model, so a "
                "joining node could not receive it; give a model with all parameters, such as an nn.ModuleList"
            )
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise UsageError(
            "ReduceLROnPlateau needs a figure for each step, and the loop has none to give; take another scheduler, or "
            "set the learning rate in the groups of the optimizer by a loss that loop.step has returned"
        )


def digest_of(model: nn.Module, optimizer: torch.optim.Optimizer, plan: Plan, options: Sequence[object]) -> str:
    """Say what every node has to build alike, in words and short digests: modules and tensors of the model, optimizer,
    samples and batches, and other options of the loop. A node that is refused is told both texts."""
    # With options of torch's modules, such as a stride; those of others may hold addresses of memory.
    modules = [
        (name, type(each).__name__, each.extra_repr() if type(each).__module__.startswith("torch.nn.") else "")
        for name, each in model.named_modules()
    ]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    kinds = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors]
    groups = [(len(group["params"]), *sorted(group)) for group in optimizer.param_groups]
    others = [plan.is_per_node, plan.local_steps, plan.is_shuffled, *map(str, options)]
    told = [hashlib.sha256(repr(part).encode()).hexdigest()[:8] for part in ([modules, kinds], groups, others)]
    name, size = type(optimizer).__name__, plan.batch_size
    return f"model {told[0]}, {name} {told[1]}, {plan.num_epochs} epochs, batches of {size}, options {told[2]}"
