"""What can go wrong at a rendezvous. Each is an error of Chicle and one that torch's agents know."""

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

from chicle_elastic.errors import ChicleError, PeerLostError, SecretError


class RoundTimeoutError(ChicleError, RendezvousTimeoutError):
    """Too few nodes arrived in time; the message names those that did."""


class JobClosedError(ChicleError, RendezvousClosedError):
    """The job is over, and no node may join any more.

    Attributes:
        is_success: The job has finished its work, so nothing was left for this node.
        is_late: It had done so before this node came, which may be the first node of another job.
    """

    def __init__(self, message: str, *, is_success: bool = False, is_late: bool = False) -> None:
        super().__init__(message)
        self.is_success, self.is_late = is_success, is_late


class StoreUnreachableError(PeerLostError, RendezvousConnectionError):
    """No store answers at the endpoint of the rendezvous store. It may come back: an agent that is a member retries."""


class ForgedStateError(SecretError, RendezvousStateError):
    """The rendezvous state does not carry the signature of the job, and no other agent has restored it."""
