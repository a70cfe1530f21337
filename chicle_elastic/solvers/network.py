"""What network is trained, as a value: how it is made, what it takes, and what it gives. Knows no torch."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chicle_elastic.errors import UsageError

PAPER_CNN = "chicle_elastic.solvers.engines.paper_cnn:PaperCNN"
"""The network of the paper's experiments."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network for classes.

    Attributes:
        module: What makes the `torch.nn.Module`: "module:Class", a class, or an instance, whose copy is trained from
            the weights that it has. An instance cannot be told to the tasks of a cluster.
        settings: Arguments of the class.
        input_shape: Shape of one sample as the module takes it, e.g. (3, 32, 32).
        num_classes: Outputs that it has to have, one logit per class.
    """

    module: Any
    settings: Mapping[str, Any] = field(default_factory=dict)
    input_shape: tuple[int, ...]
    num_classes: int

    @property
    def name(self) -> str:
        """Name of the module's class, for messages."""
        if isinstance(self.module, str):
            return self.module.rpartition(":")[2]
        kind = self.module if isinstance(self.module, type) else type(self.module)
        return kind.__qualname__

    def importable_name(self) -> str | None:
        """Name that another process can import the class by; None for an instance, or a class of a notebook."""
        if isinstance(self.module, str):
            return self.module
        kind = self.module
        if not isinstance(kind, type) or kind.__module__ == "__main__":
            return None
        is_found = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind
        return f"{kind.__module__}:{kind.__qualname__}" if is_found else None

    def to_json(self) -> dict[str, Any]:
        """As JSON values.

        Raises:
            UsageError: The module is an instance or a class without a name to import it by.
        """
        module = self.importable_name()
        if module is None:
            what = "a class that cannot be imported by name" if isinstance(self.module, type) else "an object"
            raise UsageError(
                f"module={self.name} is {what}, and the tasks of a cluster have to make it themselves; pass a class "
                "from the top of a module, and its arguments as module__* parameters"
            )
        return {
            "module": module,
            "settings": dict(self.settings),
            "input_shape": list(self.input_shape),
            "num_classes": self.num_classes,
        }

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> "Network":
        """What `to_json` has said."""
        return cls(**{**described, "input_shape": tuple(described["input_shape"])})


def is_fusible(network: Network) -> bool:
    """Whether it is the default network, for which there are kernels of our own."""
    return isinstance(network.module, str) and network.module == PAPER_CNN
