"""What goes wrong with RDMA, by name.

All of them end the queue pair; the transport makes a new one for the next request.
"""

from chicle_elastic.errors import ChicleError, PeerLostError, ProtocolError


class RdmaFailure(ChicleError):  # noqa: N818 - what the errors below have in common
    """RDMA failed, which says nothing about other ways to the peer."""


class RetriesExceededError(RdmaFailure, PeerLostError):
    """The other card did not acknowledge in all tries: the process or the host is gone, or the wire is cut."""


class RemoteAccessError(RdmaFailure, ProtocolError):
    """The peer's card refuses to read there: a wrong key, or bytes outside of the registered memory."""


class QueuePairError(RdmaFailure, PeerLostError):
    """There is no queue pair, it was in error before, or a work request failed for another reason."""


_MEANINGS: dict[str, tuple[type[PeerLostError] | type[ProtocolError], str]] = {
    "RETRY_EXC_ERR": (RetriesExceededError, "does not acknowledge any more; it has ended, or the wire is cut"),
    "REM_ACCESS_ERR": (RemoteAccessError, "does not let us read there; ask the owner again where the chunk lies"),
    "REM_INV_REQ_ERR": (RemoteAccessError, "calls our request invalid; look at the versions of both ends"),
    "WR_FLUSH_ERR": (QueuePairError, "cannot be reached by this queue pair, which had an error before"),
}


def error_of_status(status: int, names: dict[int, str], *, what: str, peer: str) -> PeerLostError | ProtocolError:
    """The error for a work completion that is none."""
    name = names.get(status, str(status))
    kind, meaning = _MEANINGS.get(name, (QueuePairError, "or this host, has a fault"))
    return kind(f"{what} failed ({name}): {peer} {meaning}")
