"""What can go wrong at a rendezvous. Each is an error of Chicle and one that torch's agents know."""

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

from chicle_elastic.errors import ChicleError, ProtocolError, SecretError


class RoundAbandonedError(ChicleError, RendezvousError):
    """This node was told to wait no longer, or the others are in a later round already."""


class RoundTimeoutError(ChicleError, RendezvousTimeoutError):
    """Not everybody came in time; the message names who is missing."""


class JobClosedError(ChicleError, RendezvousClosedError):
    """The job is over, nobody may join any more.

    Attributes:
        is_success: It has done what it was to do, so there was nothing left for this node.
    """

    def __init__(self, message: str, *, is_success: bool = False) -> None:
        super().__init__(message)
        self.is_success = is_success


class StoreLostError(ChicleError, RendezvousConnectionError):
    """The rendezvous store cannot be reached."""


class ForgedStateError(SecretError, RendezvousStateError):
    """The state of the rendezvous does not carry the signature of the job, and nobody has put it right."""


class IdentityError(ProtocolError, RendezvousError):
    """Another agent takes part under the name of this node."""
