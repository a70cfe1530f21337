"""The one exception tree of Chicle.

Every message says what, where (file, line, chunk, node), with which values, and what to do next. Three families
matter to a caller: *our* misuse (`UsageError`, `ContractError`), *data* that cannot be used (`DataError`,
`ChunkCorruptError`), and *resources or peers* that fail (`CapacityError`, `ProtocolError`, `PeerLostError`).
"""


class ChicleError(Exception):
    """Base of everything that Chicle raises on purpose."""


class UsageError(ChicleError, ValueError):
    """An argument or a combination of arguments that cannot work; the message names the argument and its values."""


class DataError(ChicleError, ValueError):
    """Input data that cannot be used: the message names the file and the line, row or column."""


class ChunkCorruptError(DataError):
    """Bytes that are not the chunk they claim to be: truncated, bit-flipped, or of an unknown version."""


class CapacityError(ChicleError, MemoryError):
    """The data does not fit where it has to go; the message has both figures."""


class ContractError(ChicleError, RuntimeError):
    """A solver or policy broke its contract (docs/design 2), e.g. a solver skipped or repeated a chunk."""


class ProtocolError(ChicleError, RuntimeError):
    """A peer or a recorded stream sent something that the protocol does not allow."""


class SecretError(ProtocolError):
    """A process could not prove the job secret, or a value does not carry its signature; Chicle has not used it."""


class TlsError(ProtocolError):
    """Two ends did not agree on TLS: one does not accept the certificate of the other, or speaks no TLS."""


class PeerLostError(ChicleError, RuntimeError):
    """A peer closed the connection, died, or was silent for too long; the message names it and what was going on."""


class ConnectionRefusedByHostError(PeerLostError):
    """The host answers, and no process listens at that port: the process that did has ended."""


class TooFewNodesError(ChicleError, RuntimeError):
    """The job had fewer nodes than it needs for longer than the quorum timeout (`--patience`)."""


class JobFailedError(ChicleError, RuntimeError):
    """The job ended because one of its tasks failed; the message has the traceback of that task."""


class UnreachablePlaceError(DataError):
    """A URL does not answer, or refuses to be read or written; the message has the URL and the reason."""


class DivergedError(ChicleError, FloatingPointError):
    """Training left the range of numbers; the message has the iteration and the learning rate."""


class MissingExtraError(ChicleError, ImportError):
    """An optional part is not installed; the message names the extra to install."""

    @classmethod
    def for_package(cls, package: str, *, extra: str, purpose: str) -> "MissingExtraError":
        """Build the one message that every optional import uses."""
        return cls(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"install it with: pip install 'chicle-elastic[{extra}]'"
        )
