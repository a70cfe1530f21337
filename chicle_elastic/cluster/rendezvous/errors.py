"""What can go wrong at a rendezvous."""

from chicle_elastic.errors import ChicleError, PeerLostError, SecretError


class RoundTimeoutError(ChicleError):
    """Too few nodes arrived in time; the message names those that did."""


class JobClosedError(ChicleError):
    """The job is over, and no node may join any more.

    Attributes:
        is_success: The job has finished its work, so nothing was left for this node.
        is_late: It had done so before this node came, which may be the first node of another job.
    """

    def __init__(self, message: str, *, is_success: bool = False, is_late: bool = False) -> None:
        super().__init__(message)
        self.is_success, self.is_late = is_success, is_late


class StoreUnreachableError(PeerLostError):
    """No store answers at the endpoint of the rendezvous store. It may come back: an agent that is a member retries."""


class ForgedStateError(SecretError):
    """The rendezvous state does not carry the signature of the job, and no other agent has restored it."""
