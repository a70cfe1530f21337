"""What torchrun finds under the entry point group `torchrun.handlers`.

torch loads this in the middle of the import of its own rendezvous package, in every process of an environment with
Chicle in it. So it imports nothing, and everything else when a handler is asked for.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def torchrun_handler() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """What makes handlers for `torchrun --rdzv-backend chicle`."""
    return create


def create(parameters: "RendezvousParameters") -> "RendezvousHandler":
    """A rendezvous handler; see `rendezvous.create_handler`."""
    from chicle_elastic.cluster.rendezvous import create_handler

    return create_handler(parameters)
