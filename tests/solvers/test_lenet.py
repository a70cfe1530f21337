"""Our kernels of the default network against the NumPy forms in their docstrings, and whole steps against torch."""

import inspect
import textwrap

import numpy as np
import pytest
import torch
from torch.nn import functional

from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.engines.eager import EagerEngine
from chicle_elastic.solvers.kernels import lenet
from chicle_elastic.solvers.network import GatheredSamples
from tests.solvers import nets

RNG = np.random.default_rng(0)


def normal(*shape):
    """Random numbers."""
    return RNG.normal(size=shape).astype(np.float32)


def reference_of(kernel, **arrays):
    """Run the block of NumPy code in a kernel's docstring on copies of its arguments."""
    lines = inspect.getdoc(kernel).split("::", 1)[1]
    names = {name: value.copy() for name, value in arrays.items()}
    exec(textwrap.dedent(lines), {"len": len}, names)
    return names


def samples(shape, count, *, dtype=np.uint8, num_classes=10, weights=None):
    """Random images, half of them with a constant background where many values tie."""
    rows = RNG.integers(0, 256, (count, int(np.prod(shape))), dtype=np.uint8)
    rows[::2, : rows.shape[1] // 2] = 0
    rows = rows if dtype == np.uint8 else (rows / 255).astype(dtype)
    return GatheredSamples(rows=rows, targets=RNG.integers(0, num_classes, count), weights=weights)


def after(kernels, shape, given, *, batch_size, num_classes=10):
    """Loss and weights after a run."""
    engine = EagerEngine(nets.paper(shape, num_classes), seed=0, kernels=kernels)
    done, loss = engine.run(given, batch_size=batch_size, lr=0.01, momentum=0.9, seed=0, is_spent=lambda: False)
    assert done == len(given.targets)
    w, _, v = engine.parts()
    return loss, w, v


@pytest.mark.parametrize(("height", "width", "channels"), [(5, 5, 1), (9, 11, 3), (28, 20, 2)])
def test_convolutions_are_those_of_the_docstring(height, width, channels):
    """Both kernels, where the planes are wider than the result too."""
    high, wide, front = height - 4, width - 4, 24
    planes, filters, bias = normal(channels, height * width * 8), normal(4, channels, 5, 5), normal(4)
    arrays = {"planes": planes, "filters": filters, "bias": bias, "width": np.int64(width)}
    room = np.zeros((4, high, width, 8), np.float32)
    expected = reference_of(lenet.convolve, **arrays, out=room.reshape(4, -1))["out"].reshape(room.shape)
    lenet.convolve(planes, filters, bias, width, high, wide, room.reshape(4, -1))
    np.testing.assert_allclose(room[:, :, :wide], expected[:, :, :wide], rtol=1e-5, atol=1e-4)

    room[:, :, wide:] = 0
    gradients = np.concatenate([normal(4, front), room.reshape(4, -1)], axis=1)
    arrays |= {"gradients": gradients, "front": np.int64(front), "height_out": np.int64(high)}
    expected = reference_of(lenet.convolve_gradient, **arrays)
    lenet.convolve_gradient(planes, gradients, front, width, high, wide, filters, bias)
    np.testing.assert_allclose(filters, expected["filters"], rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(bias, expected["bias"], rtol=1e-4, atol=1e-2)


def test_pooling_takes_the_first_of_equal_values_and_gives_back_to_it():
    """As torch does; what ReLU has cut off gets nothing."""
    planes = np.ascontiguousarray(RNG.integers(-1, 3, (2, 6, 4, 8)).astype(np.float32))
    out, which = np.zeros((2, 3, 2, 8), np.float32), np.zeros((2, 3, 2, 8), np.int64)
    lenet.pool(planes.reshape(2, -1), 4, 3, 2, out, which)
    images = torch.from_numpy(np.moveaxis(planes, 3, 0).copy()).requires_grad_()
    pooled = functional.max_pool2d(functional.relu(images), 2)
    np.testing.assert_array_equal(np.moveaxis(out, 3, 0), pooled.detach().numpy())
    gradients = normal(*out.shape)
    pooled.backward(torch.from_numpy(np.moveaxis(gradients, 3, 0).copy()))
    back = np.zeros((2, 5 + planes[0].size), np.float32)
    lenet.unpool(gradients.reshape(2, -1), which.reshape(2, -1), 5, back)
    np.testing.assert_array_equal(back[:, 5:].reshape(planes.shape), np.moveaxis(images.grad.numpy(), 0, 3))


@pytest.mark.parametrize(
    ("shape", "count", "batch_size"),
    [((3, 32, 32), 24, 8), ((1, 28, 28), 13, 8), ((1, 16, 16), 20, 20), ((2, 17, 22), 9, 1), ((1, 29, 27), 64, 32)],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_steps_are_those_of_torch(shape, count, batch_size, dtype):
    """For several sizes, odd ones too, and batches that are no multiple of eight."""
    given = samples(shape, count, dtype=dtype, num_classes=3)
    loss, w, v = after("fused", shape, given, batch_size=batch_size, num_classes=3)
    expected = after("onednn", shape, given, batch_size=batch_size, num_classes=3)
    assert loss == pytest.approx(expected[0], rel=1e-5)
    np.testing.assert_allclose(w, expected[1], atol=1e-5)
    np.testing.assert_allclose(v, expected[2], rtol=1e-2, atol=1e-4)


def test_weights_are_factors():
    """A weight of 0 leaves its sample out."""
    shape = (1, 16, 16)
    given = samples(shape, 12, weights=np.arange(12, dtype=np.float32) / 4)
    for found, expected in zip(*(after(k, shape, given, batch_size=8) for k in ("fused", "onednn")), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_what_is_no_number_stays_none():
    """So that a loss that diverges is seen."""
    given = samples((1, 16, 16), 8, dtype=np.float32)
    given.rows[3] = np.nan
    assert np.isnan(after("fused", (1, 16, 16), given, batch_size=8)[0])


def test_they_are_for_the_default_network_only():
    """Others are refused where they are asked for by name."""
    with pytest.raises(UsageError, match=r"for the default network on a CPU by SGD .*, and this is Tiny"):
        EagerEngine(nets.network(), seed=0, kernels="fused")
