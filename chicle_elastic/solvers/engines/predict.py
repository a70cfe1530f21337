"""Trained modules: filled with the values of a model, and asked for logits."""

import numpy as np
import torch
from torch import nn

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.engines.eager import device_of, scaled, threads_on
from chicle_elastic.solvers.engines.modules import build_module
from chicle_elastic.solvers.flat import FlatModule
from chicle_elastic.solvers.network import GatheredSamples, Network, Scaling, padded

ROWS_AT_ONCE = 256
CPU = torch.device("cpu")


def filled_module(network: Network, w: Array, buffers: Array) -> nn.Module:
    """The module with these weights and buffers, in memory of its own, on the CPU and in evaluation mode."""
    module = build_module(network, 0)
    flat = FlatModule(module, CPU)
    with torch.no_grad():
        flat.w.copy_(torch.from_numpy(np.array(w)))
        if len(buffers):
            flat.write_buffers(torch.from_numpy(np.array(buffers)))
    for parameter in module.parameters():  # no views of one vector that is larger than what a user wants to keep
        parameter.data = parameter.detach().clone()
        parameter.grad = None
    return module.eval()


def values_of(module: nn.Module) -> tuple[Array, Array]:
    """Weights and buffers of a module, float32, in the order of a model."""
    weights = [parameter.detach().cpu().reshape(-1).float() for parameter in module.parameters()]
    buffers = [buffer.detach().cpu().reshape(-1).float() for buffer in module.buffers() if buffer.numel()]
    return torch.cat(weights).numpy(), torch.cat(buffers).numpy() if buffers else np.empty(0, np.float32)


def samples_of(rows: Array, input_shape: tuple[int, ...], network: Network) -> GatheredSamples:
    """Rows as an engine takes them, for no target.

    Args:
        rows: ndarray of shape (n, features), uint8 or float32.
        input_shape: Shape of a sample as the module takes it.
        network: Says what surrounds samples with fewer values.
    """
    padding = network.scaling_of(is_byte=rows.dtype == np.uint8).padding
    return GatheredSamples(
        rows=padded(rows, input_shape, padding), targets=np.zeros(len(rows), dtype=np.int64), weights=None
    )


def logits(
    module: nn.Module, rows: Array, input_shape: tuple[int, ...], *, scaling: Scaling, device: str = "cpu"
) -> Array:
    """What a module says of samples.

    Args:
        module: In evaluation mode.
        rows: ndarray of shape (n, features), uint8 or float32; see `columns_for` where the network takes more.
        input_shape: Shape of a sample as the module takes it.
        scaling: Of the values of a sample.
        device: Where to compute; the module is moved there and back.

    Returns:
        ndarray of shape (n, outputs), or (n,) where it gives a number per sample, float32.
    """
    place = device_of(device)
    parts = []
    with threads_on(place), torch.inference_mode():
        module = module.to(place)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[start : start + ROWS_AT_ONCE]
            batch = scaled(torch.from_numpy(padded(part, input_shape, scaling.padding)).to(place), scaling)
            parts.append(module(batch.view(-1, *input_shape)).cpu().numpy())
        module.to(CPU)
    return np.concatenate(parts)
