"""The entry point of Chicle in torchrun's entry point group `torchrun.handlers`.

torch loads this module in the middle of the import of its own rendezvous package, in every process of an environment
with Chicle in it. So this module imports nothing at its top; the handler is imported when torchrun asks for one.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def torchrun_handler() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """The factory of handlers for `torchrun --rdzv-backend chicle`."""
    return create


def create(parameters: "RendezvousParameters") -> "RendezvousHandler":
    """A rendezvous handler; see `rendezvous.handler.create_handler`."""
    from chicle_elastic.cluster.rendezvous.handler import create_handler

    return create_handler(parameters)
