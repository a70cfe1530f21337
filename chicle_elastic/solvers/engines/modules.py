"""Making a torch module from its description, and the check that it fits the samples at hand."""

import copy
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.network import Network, imported, signature_of


def build_module(network: Network, seed: int) -> nn.Module:
    """The module, with float32 parameters.

    Args:
        network: Says how; of an instance a copy is made.
        seed: Of what its constructor draws; torch's own generator is left as it was.

    Raises:
        UsageError: It cannot be made.
    """
    if isinstance(network.module, nn.Module):
        return copy.deepcopy(network.module).float()
    kind: Any = network.module
    if isinstance(kind, str):
        kind = imported(kind, f"the module class {kind!r}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            module: Any = kind(**network.settings)
        except TypeError as error:
            raise UsageError(
                f"module {network.name} cannot be made with {dict(network.settings)}: {error}; its arguments are "
                f"module__* parameters, and its signature is {kind.__name__}{signature_of(kind)}"
            ) from error
        if not isinstance(module, nn.Module):
            raise UsageError(f"module={network.name} makes a {type(module).__qualname__}, which is no torch.nn.Module")
        if any(nn.parameter.is_lazy(parameter) for parameter in module.parameters()):
            check_module(module, network)  # a first look at samples gives lazy layers their shapes
    return module.float()


def check_module(module: nn.Module, network: Network) -> None:
    """Try the module on two samples; nothing of it is changed.

    Raises:
        UsageError: It does not take such samples, or gives fewer logits than there are classes (more are outputs of
            classes that this part of the data lacks), or not as many numbers as the targets are.
    """
    was_training = module.training
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    shape = network.input_shape
    try:
        with torch.no_grad():
            out = module.eval()(torch.zeros(2, *shape, device=device))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"module {network.name} does not take samples of shape {shape}: {_first_line(error)}; pass a module that "
            "takes tensors of shape (n, " + ", ".join(map(str, shape)) + "), or other samples (image_shape)"
        ) from error
    finally:
        module.train(was_training)
    found = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
    if network.target_shape is not None:
        wanted = (2, *network.target_shape)
        if found != wanted and (found, wanted) != ((2, 1), (2,)):
            raise UsageError(
                f"module {network.name} gives {found} for 2 samples of shape {shape}, and their targets have the shape "
                f"{wanted}; set the number of its outputs (a module__* parameter) to {network.num_classes}"
            )
    elif not (len(found) == 2 and found[0] == 2 and isinstance(found[1], int) and found[1] >= network.num_classes):
        raise UsageError(
            f"module {network.name} gives {found} for 2 samples of shape {shape}, and the {network.num_classes} "
            f"classes of y need logits of shape (2, {network.num_classes}) or more; set the number of its outputs (a "
            "module__* parameter)"
        )


def flops_of(module: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Return the operations of a step per sample, forward and backward, as torch counts them; 0 where it cannot."""
    was_training = module.training
    images = torch.zeros(2, *input_shape, device=next(module.parameters()).device)
    backends: Any = torch.backends
    had_fast_path, had_onednn = backends.mha.get_fastpath_enabled(), backends.mkldnn.enabled
    try:
        backends.mha.set_fastpath_enabled(False)  # fused attention and recurrence hide their products
        backends.mkldnn.enabled = False
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            module.eval()(images)
    except Exception:  # a module that runs, though not under a counter
        return 0
    finally:
        module.train(was_training)
        backends.mha.set_fastpath_enabled(had_fast_path)
        backends.mkldnn.enabled = had_onednn
    return int(3 * counter.get_total_flops() // 2)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0][:200]
