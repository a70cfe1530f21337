"""Frames: what goes over a connection between agents, and the checks of what comes.

Little-endian. Every frame is a header of 16 bytes and a payload:

    offset size type   meaning
         0    4 bytes  magic 89 43 48 57 ("\\x89CHW")
         4    2 u16    version of the protocol, 3
         6    2 u16    kind, see `Kind`
         8    8 u64    bytes of the payload that follow

A payload is a JSON value in UTF-8, raw bytes that go straight into memory which the receiver has chosen (`BYTES`), or
a proof of 32 bytes. Magic and version keep their place in every version, so that any two versions can tell each other
that they differ.

Rules. The receiver says which kinds it allows now, and how long each may be; a header is judged before a byte of its
payload is read and before memory is taken for it. Until the secret is proven nothing longer than a few hundred bytes is
allowed. Whatever breaks a rule ends the connection: after that the receiver cannot tell where the next frame begins.
JSON never becomes anything but JSON values.

Change this file together with the golden bytes in tests/transports/test_wire.py.
"""

import enum
import json
import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from chicle_elastic.errors import PeerLostError, ProtocolError, TlsError
from chicle_elastic.garbage import uncollected

MAGIC = b"\x89CHW"
TLS_HANDSHAKE = b"\x16\x03"  # so the first record of a caller with TLS begins (RFC 8446, 5.1)
VERSION = 3
HEADER = struct.Struct("<4sHHQ")
LONG_BYTES = 1 << 22
"""From so many on the collector leaves the values of a payload alone. They are no garbage, and go by themselves."""


class Kind(enum.IntEnum):
    """What a frame is."""

    HELLO = 1  # JSON; the first frame of either end: purpose, name, nonce (`handshake`)
    PROOF = 2  # the proof of the secret: 32 bytes for each of its keys
    REFUSED = 3  # JSON {"error": ..., "reason": ...}: why a request is not served, or the connection not accepted
    MESSAGE = 4  # JSON: a message of one agent to another (`links`)
    # 5 answered messages of a kind that is not sent any more; do not use the number for something else.
    FETCH = 6  # JSON: the region of a registered arena that is asked for (`base.Region`)
    BYTES = 7  # the bytes of the region
    DESCRIPTOR = 8
    """JSON {"arena": number}: asks for the descriptor of an arena; the answer has it in ancillary data (`shm`)."""
    QUEUE_PAIR = 9  # JSON: one end of an RDMA connection; the answer describes the other end (`verbs.queue_pair`)
    MEMORY_KEY = 10  # JSON: the number of an arena; the answer is what opens it to RDMA (`verbs.memory`)
    ASK = 11  # JSON: an operation on a store of keys and values (`key_values`)
    ANSWER = 12  # JSON: what the operation returns


Limits = Mapping[Kind, int]  # kinds that may come now, and the most bytes that the payload of each may have

REASON_BYTES = 4096
MESSAGE_BYTES = 256 << 20


class VersionError(ProtocolError):
    """A peer speaks another version of the protocol."""


class FrameLengthError(ProtocolError):
    """A frame announces more bytes, or other ones, than there can be."""


class TruncatedFrameError(PeerLostError):
    """A connection ended in the middle of a frame."""


class RefusedError(ProtocolError):
    """The peer does not do what it was asked, and says why; the connection is still good."""

    def __init__(self, message: str, *, error: str = "") -> None:
        super().__init__(message)
        self.error = error


def pack_header(kind: Kind, num_bytes: int) -> bytes:
    """The 16 bytes in front of a payload."""
    return HEADER.pack(MAGIC, VERSION, kind, num_bytes)


def pack_json(kind: Kind, value: Any) -> bytes:
    """A frame with a JSON value. Raises ProtocolError when the value is not made of JSON values, or it is too long to
    be sent."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a {kind.name} frame cannot be sent: {error}; use JSON values only") from error
    return pack_text(kind, text)


def pack_text(kind: Kind, payload: bytes) -> bytes:
    """A frame with a JSON value that is text already. Raises FrameLengthError when it is too long to be sent."""
    if len(payload) > MESSAGE_BYTES:
        raise FrameLengthError(
            f"a {kind.name} frame of {len(payload)} bytes cannot be sent, the most is {MESSAGE_BYTES}; send it in parts"
        )
    return pack_header(kind, len(payload)) + payload


def unpack_header(header: bytes | bytearray | memoryview, limits: Limits, *, peer: str) -> tuple[Kind, int]:
    """Kind and payload bytes of a frame, judged. Raises VersionError when the peer speaks another version,
    FrameLengthError when the payload is longer than this kind may be, ProtocolError when this is no frame, or one that
    is not allowed now."""
    magic, version, code, num_bytes = HEADER.unpack(header)
    if magic != MAGIC and magic[:2] == TLS_HANDSHAKE:
        raise TlsError(
            f"{peer} speaks TLS, and this node does not on this connection; start all nodes of a job with the same "
            "--tls options"
        )
    if magic != MAGIC:
        raise ProtocolError(
            f"{peer} sent {bytes(magic).hex(' ')} where a frame begins, which is no agent of Chicle; look at which "
            "program uses that address"
        )
    if version != VERSION:
        raise VersionError(
            f"{peer} speaks version {version} of the wire protocol and this process version {VERSION}; install the "
            "same version of chicle-elastic on every node"
        )
    allowed = {int(kind): kind for kind in limits}
    if code not in allowed:
        name = Kind(code).name if code in Kind._value2member_map_ else f"unknown ({code})"
        raise ProtocolError(
            f"{peer} sent a frame of kind {name} where only {', '.join(kind.name for kind in limits)} may come; the "
            "connection is closed"
        )
    kind = allowed[code]
    if num_bytes > limits[kind]:
        raise FrameLengthError(
            f"{peer} announces a {kind.name} frame of {num_bytes} bytes, but it may have {limits[kind]} at most; the "
            "connection is closed and nothing of it was read"
        )
    return kind, num_bytes


def unpack_json(kind: Kind, payload: bytes | bytearray | memoryview, *, peer: str) -> Any:
    """The JSON value in a payload. Raises ProtocolError when it is none."""
    try:
        if len(payload) < LONG_BYTES:
            return msgspec.json.decode(payload)
        with uncollected():
            return msgspec.json.decode(payload)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{peer} sent a {kind.name} frame that is no JSON: {error}") from error


def pack_refusal(error: Exception) -> bytes:
    """A frame that tells the peer why."""
    reason = str(error)[: REASON_BYTES // 8]  # JSON takes up to 6 bytes for a character
    return pack_json(Kind.REFUSED, {"error": type(error).__name__, "reason": reason})


def refusal(content: Any, *, peer: str) -> RefusedError:
    """The error in a `REFUSED` frame, to be raised."""
    fields = content if isinstance(content, dict) else {}
    return RefusedError(
        f"{peer} refused: {fields.get('reason', 'no reason given')}", error=str(fields.get("error", ""))
    )
