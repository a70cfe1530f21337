"""What network is trained, as a value: how it is made, what it takes, and what it gives. Knows no torch."""

import functools
import importlib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError

PAPER_CNN = "chicle_elastic.solvers.engines.paper_cnn:PaperCNN"
"""The network of the paper's experiments."""
LEAST_SIDE = 16
"""Smallest height and width of its images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What becomes of a value x of the data on its way into a module: x * scale + shift, as float32.

    Attributes:
        scale: Factor, > 0.
        shift: Added to the product.
        padding: Value of the data that surrounds samples with fewer values than the module takes.
    """

    scale: float = 1.0
    shift: float = 0.0
    padding: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and math.isfinite(self.shift) and self.scale > 0):
            raise UsageError(
                f"values cannot be scaled by {self.scale} and shifted by {self.shift}; both have to be finite"
            )


AS_THEY_ARE = Scaling()
BYTES_FROM_MINUS_ONE_TO_ONE = Scaling(scale=2.0 / 255.0, shift=-1.0)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network, for classes or for numbers.

    Attributes:
        module: What makes the `torch.nn.Module`: "module:Class", a class, or an instance, whose copy is trained from
            the weights that it has.
        settings: Arguments of the class.
        input_shape: Shape of one sample as the module takes it, e.g. (3, 32, 32).
        num_classes: Outputs that it has to have: one logit per class, or one per target.
        scaling: Of the values of a sample. None: bytes go from -1 to 1, and all others are taken as they are.
        target_shape: Shape of the target of a sample, which is float32: () for one number, (k,) for k of them, whose
            bytes then lie behind the values of the sample. None: it is a class code.
    """

    module: Any
    settings: Mapping[str, Any] = field(default_factory=dict)
    input_shape: tuple[int, ...]
    num_classes: int
    scaling: Scaling | None = None
    target_shape: tuple[int, ...] | None = None

    def target_columns(self, dtype: Any) -> int:
        """Return how many values of this dtype the targets take that lie behind those of a sample."""
        return math.prod(self.target_shape) * 4 // np.dtype(dtype).itemsize if self.target_shape else 0

    def scaling_of(self, *, is_byte: bool) -> Scaling:
        """That of values that are bytes, or numbers."""
        if self.scaling is not None:
            return self.scaling
        return BYTES_FROM_MINUS_ONE_TO_ONE if is_byte else AS_THEY_ARE

    @property
    def name(self) -> str:
        """Name of the module's class, for messages."""
        if isinstance(self.module, str):
            return self.module.rpartition(":")[2]
        kind = self.module if isinstance(self.module, type) else type(self.module)
        return kind.__qualname__


def name_of(thing: Any) -> str:
    """Return the name of a class, a function or an object, for messages."""
    name: str = getattr(thing, "__qualname__", type(thing).__qualname__)
    return name


def signature_of(function: Any) -> str:
    """Return the arguments of a class or function, for messages."""
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError):
        return "unknown"


def imported(name: str, words: str) -> Any:
    """Return what "package.module:Name" names.

    Raises:
        UsageError: It cannot be imported here; the message begins with `words`.
    """
    module, _, path = name.partition(":")
    try:
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except Exception as error:  # the module is code of the user, and may not even be Python
        raise UsageError(
            f"{words} cannot be imported here ({error}); write package.module:Name, which every node can import"
        ) from error


def is_fusible(network: Network) -> bool:
    """Whether it is the default network, for which there are kernels of our own."""
    return isinstance(network.module, str) and network.module == PAPER_CNN


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredSamples:
    """The samples of an iteration, gathered, in the order in which they are to be used.

    Attributes:
        rows: ndarray of shape (n, values), uint8 or float32, as they are in the data; they are scaled when used
            (`Network.scaling_of`); padded where the network takes more values than there are.
        targets: Class codes, ndarray of shape (n,), int64; or numbers, of shape (n, *target_shape), float32.
        weights: Factors of the losses, ndarray of shape (n,), float32; None for 1.
    """

    rows: Array
    targets: Array
    weights: Array | None


# Sizes of images on their way through the default network.


def side_after(side: int) -> int:
    """Height or width after both convolutions and poolings of an image with this one."""
    return ((side - 4) // 2 - 4) // 2


def columns_for(num_features: int, input_shape: tuple[int, ...]) -> Any:
    """Find where the features of a flat sample go in an input with more values than that; the others stay zero.

    They fill the smallest square that has room for them, row by row, in the middle of the image: so features that were
    a small square image stay one, and few features are not in a corner that few filters see.

    Args:
        num_features: Features of a sample.
        input_shape: Shape of a sample as the network takes it, (1, height, width) where features are missing.

    Returns:
        Positions in the flattened input, ndarray of shape (num_features,); a slice where nothing is missing.
    """
    if num_features == math.prod(input_shape):
        return slice(None)
    *_, height, width = input_shape
    side = math.isqrt(num_features - 1) + 1
    top, left = (height - side) // 2, (width - side) // 2
    rows, columns = np.divmod(np.arange(num_features), side)
    return (top + rows) * width + left + columns


def padded(rows: Array, input_shape: tuple[int, ...], padding: float) -> Array:
    """Return rows with as many values as a network takes, writable, shape (n, values); see `columns_for`."""
    num_values = math.prod(input_shape)
    if rows.shape[1] == num_values:
        return np.require(rows, requirements=("C", "W"))
    values = np.full((len(rows), num_values), padding, dtype=rows.dtype)
    values[:, columns_for(rows.shape[1], input_shape)] = rows
    return values


def square_for(num_features: int) -> int:
    """Side of the smallest square image that the network takes and that has room for so many values."""
    return max(LEAST_SIDE, math.isqrt(num_features - 1) + 1)
