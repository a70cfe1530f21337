"""What network is trained, as a value: how it is made, what it takes, and what it gives. Knows no torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chicle_elastic.errors import UsageError

PAPER_CNN = "chicle_elastic.solvers.engines.paper_cnn:PaperCNN"
"""The network of the paper's experiments."""


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
    """A network for classes.

    Attributes:
        module: What makes the `torch.nn.Module`: "module:Class", a class, or an instance, whose copy is trained from
            the weights that it has.
        settings: Arguments of the class.
        input_shape: Shape of one sample as the module takes it, e.g. (3, 32, 32).
        num_classes: Outputs that it has to have, one logit per class.
        scaling: Of the values of a sample. None: bytes go from -1 to 1, and all others are taken as they are.
    """

    module: Any
    settings: Mapping[str, Any] = field(default_factory=dict)
    input_shape: tuple[int, ...]
    num_classes: int
    scaling: Scaling | None = None

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


def is_fusible(network: Network) -> bool:
    """Whether it is the default network, for which there are kernels of our own."""
    return isinstance(network.module, str) and network.module == PAPER_CNN
