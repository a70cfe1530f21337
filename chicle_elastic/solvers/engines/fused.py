"""Steps of the default network on a CPU by kernels of our own, on the same flat vectors as torch's.

At 8 samples a step and 3, 6 and 16 channels, torch's kernels reach a twentieth of a processor's peak. Those of
`kernels.lenet` take eight samples as the vector of the machine; what they compute is the same but for rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.chunks.blocks import aligned_zeros
from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.kernels import lenet
from chicle_elastic.solvers.network import AS_THEY_ARE, GatheredSamples, Network, Scaling

if TYPE_CHECKING:
    from chicle_elastic.solvers.engines.augment import Augmentation

LANES = lenet.LANES
FILTER = lenet.TAPS


@dataclass(frozen=True, slots=True)
class Layers:
    """Parameters or gradients of the network, views of one flat vector in torch's order."""

    conv1: Array
    conv1_bias: Array
    conv2: Array
    conv2_bias: Array
    fc1: Array
    fc1_bias: Array
    fc2: Array
    fc2_bias: Array
    fc3: Array
    fc3_bias: Array

    @classmethod
    def of(cls, vector: Array, channels: int, features: int, num_classes: int) -> "Layers":
        """Views of `vector`, shape (num_weights,)."""
        shapes: list[tuple[int, ...]] = []
        for filters in ((6, channels, 5, 5), (16, 6, 5, 5)):
            shapes += [filters, filters[:1]]
        for dense in ((120, features), (84, 120), (num_classes, 84)):
            shapes += [dense, dense[:1]]
        views, start = [], 0
        for shape in shapes:
            size = int(np.prod(shape))
            views.append(vector[start : start + size].reshape(shape))
            start += size
        assert start == len(vector)
        return cls(*views)


class FusedSteps:
    """Takes the steps of one replica.

    Args:
        network: For which `network.is_fusible` holds.
        w: Weights, ndarray of shape (num_weights,), float32; written.
        v: Momentum, of the same shape; written.
    """

    def __init__(self, network: Network, w: Array, v: Array) -> None:
        channels, height, width = network.input_shape
        self._network = network
        self._size = height, width
        self._h1, self._w1 = height - FILTER + 1, width - FILTER + 1
        hp1, wp1 = self._h1 // 2, self._w1 // 2
        self._hp1, self._wp1 = hp1, wp1
        self._h2, self._w2 = hp1 - FILTER + 1, wp1 - FILTER + 1
        hp2, wp2 = self._h2 // 2, self._w2 // 2
        self._w, self._v, self._g = w, v, np.zeros_like(w)
        features = 16 * hp2 * wp2
        self._layers = Layers.of(w, channels, features, network.num_classes)
        self._gradients = Layers.of(self._g, channels, features, network.num_classes)
        self._front = ((FILTER - 1) * wp1 + FILTER - 1) * LANES
        self._x = _room(channels * height * width, LANES)
        self._planes = self._x.reshape(channels, -1)
        self._y1 = _room(6, self._h1 * width * LANES)
        self._p1, self._which1 = _room(6, hp1, wp1, LANES), aligned_zeros((6, hp1, wp1, LANES), "int64")
        self._y2 = _room(16, self._h2 * wp1 * LANES)
        self._p2, self._which2 = _room(16, hp2, wp2, LANES), aligned_zeros((16, hp2, wp2, LANES), "int64")
        self._hidden = [_room(120, LANES), _room(84, LANES), _room(network.num_classes, LANES)]
        self._to = [_room(features, LANES), _room(120, LANES), _room(84, LANES)]
        layers = self._layers
        self._spare = [np.empty_like(weights) for weights in (layers.fc1, layers.fc2, layers.fc3)]
        # Zeros around the gradients are never written: what a filter sees beyond the edge.
        self._g1 = _room(6, self._h1 * width * LANES)
        self._g2 = _room(16, self._front + hp1 * wp1 * LANES)
        self._to_p1, self._no_bias = _room(6, hp1 * wp1 * LANES), _room(6)
        self._turned = _room(6, 16, FILTER, FILTER)

    @np.errstate(all="ignore")  # steps that diverge end with NaN, which the caller looks for
    def run(
        self,
        samples: GatheredSamples,
        *,
        batch_size: int,
        lr: float,
        momentum: float,
        is_spent: Callable[[], bool],
        augmentation: "Augmentation | None" = None,
    ) -> tuple[int, list[float]]:
        """Steps over all samples in batches; see `EagerEngine.run`. Returns samples used and the loss of each step."""
        count, done = len(samples.targets), 0
        losses: list[float] = []
        weights = np.ones(count, dtype=np.float32) if samples.weights is None else samples.weights
        while done < count and not is_spent():
            stop = min(done + batch_size, count)
            factors = weights[done:stop] / np.float32(stop - done)
            rows, scaling = samples.rows[done:stop], self._scaling_of(samples)
            if augmentation is not None:
                rows, scaling = self._augmented(rows, scaling, augmentation), AS_THEY_ARE
            loss = 0.0
            self._turned[:] = self._layers.conv2[:, :, ::-1, ::-1].swapaxes(0, 1)
            for start in range(0, stop - done, LANES):
                used = min(LANES, stop - done - start)
                codes = samples.targets[done + start : done + start + used]
                total = self._gradient(rows, scaling, start, codes, factors[start:])
                loss += total * (stop - done)
            lenet.step(self._w, self._v, self._g, np.float32(lr), np.float32(momentum))
            losses.append(loss)
            done = stop
        return done, losses

    def _scaling_of(self, samples: GatheredSamples) -> Scaling:
        return self._network.scaling_of(is_byte=samples.rows.dtype == np.uint8)

    def _augmented(self, rows: Array, scaling: Scaling, augmentation: "Augmentation") -> Array:
        """What the network gets of these rows, shape (n, values), float32."""
        import torch

        values = np.multiply(rows, np.float32(scaling.scale), dtype=np.float32)
        values += np.float32(scaling.shift)
        images = torch.from_numpy(values).view(-1, *self._network.input_shape)
        found: Array = augmentation(images).reshape(len(rows), -1).contiguous().numpy()
        return found

    def _gradient(self, rows: Array, scaling: Scaling, start: int, codes: Array, factors: Array) -> float:
        """Add the gradient of up to eight samples; returns the sum of factor * loss."""
        (_, width), layers, used = self._size, self._layers, len(codes)
        lenet.load(rows[start : start + used], np.float32(scaling.scale), np.float32(scaling.shift), self._x)
        lenet.convolve(self._planes, layers.conv1, layers.conv1_bias, width, self._h1, self._w1, self._y1)
        lenet.pool(self._y1, width, self._p1.shape[1], self._wp1, self._p1, self._which1)
        planes = self._p1.reshape(6, -1)
        lenet.convolve(planes, layers.conv2, layers.conv2_bias, self._wp1, self._h2, self._w2, self._y2)
        lenet.pool(self._y2, self._wp1, self._p2.shape[1], self._p2.shape[2], self._p2, self._which2)
        hidden1, hidden2, logits = self._hidden
        features = self._p2.reshape(-1, LANES)
        lenet.dense(layers.fc1, layers.fc1_bias, features, hidden1, True)
        lenet.dense(layers.fc2, layers.fc2_bias, hidden1, hidden2, True)
        lenet.dense(layers.fc3, layers.fc3_bias, hidden2, logits, False)
        loss: Any = lenet.cross_entropy(logits, codes, 0, used, factors)
        self._backward(planes, features, width)
        return float(loss)

    def _backward(self, planes: Array, features: Array, width: int) -> None:
        layers, g = self._layers, self._gradients
        (hidden1, hidden2, logits), (to_features, to1, to2), spare = self._hidden, self._to, self._spare
        lenet.dense_gradient(layers.fc3, hidden2, logits, spare[2], g.fc3, g.fc3_bias, to2, True)
        lenet.dense_gradient(layers.fc2, hidden1, to2, spare[1], g.fc2, g.fc2_bias, to1, True)
        lenet.dense_gradient(layers.fc1, features, to1, spare[0], g.fc1, g.fc1_bias, to_features, False)
        lenet.unpool(to_features.reshape(16, -1), self._which2.reshape(16, -1), self._front, self._g2)
        lenet.convolve_gradient(planes, self._g2, self._front, self._wp1, self._h2, self._w2, g.conv2, g.conv2_bias)
        # The gradient of what a convolution reads is a convolution, of the gradients behind an edge of zeros.
        lenet.convolve(self._g2, self._turned, self._no_bias, self._wp1, self._hp1, self._wp1, self._to_p1)
        lenet.unpool(self._to_p1, self._which1.reshape(6, -1), 0, self._g1)
        lenet.convolve_gradient(self._planes, self._g1, 0, width, self._h1, self._w1, g.conv1, g.conv1_bias)


def _room(*shape: int) -> Array:
    return aligned_zeros(shape, "float32")
