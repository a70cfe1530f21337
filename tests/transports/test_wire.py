"""Frames: golden bytes, and every header that must not be believed."""

import json

import pytest

from chicle_elastic.errors import ProtocolError
from chicle_elastic.transports import wire
from chicle_elastic.transports.wire import Kind

LIMITS = {Kind.HELLO: 512, Kind.REFUSED: wire.REASON_BYTES}


def test_the_bytes_of_version_3_stay_what_they_are():
    """Agents of two releases may meet: change the version with these."""
    assert wire.pack_json(Kind.FETCH, [0, 64, 4096]).hex(" ", -4) == (
        "89434857 03000600 0b000000 00000000 5b302c36 342c3430 39365d"
    )
    assert {kind.name: int(kind) for kind in Kind} == {
        "HELLO": 1,
        "PROOF": 2,
        "REFUSED": 3,
        "MESSAGE": 4,
        "FETCH": 6,
        "BYTES": 7,
        "DESCRIPTOR": 8,
        "QUEUE_PAIR": 9,
        "MEMORY_KEY": 10,
        "ASK": 11,
        "ANSWER": 12,
    }


def test_a_frame_is_read_as_it_was_written():
    """Kind and length in the header, JSON behind it."""
    frame = wire.pack_json(Kind.HELLO, {"name": "ä"})
    header, payload = frame[: wire.HEADER.size], frame[wire.HEADER.size :]
    assert wire.unpack_header(header, LIMITS, peer="n2") == (Kind.HELLO, len(payload))
    assert wire.unpack_json(Kind.HELLO, payload, peer="n2") == {"name": "ä"}


@pytest.mark.parametrize(
    ("header", "error", "message"),
    [
        (b"\x89CHX" + bytes(12), ProtocolError, "n2 sent 89 43 48 58 where a frame begins"),
        (wire.HEADER.pack(wire.MAGIC, 1, 1, 0), wire.VersionError, "version 1 of the wire protocol .* version 3"),
        (wire.HEADER.pack(wire.MAGIC, 4, 999, 1 << 63), wire.VersionError, "version 4 .* version 3"),
        (wire.pack_header(Kind.BYTES, 1), ProtocolError, "kind BYTES where only HELLO, REFUSED may come"),
        (wire.HEADER.pack(wire.MAGIC, wire.VERSION, 77, 0), ProtocolError, r"kind unknown \(77\)"),
        (wire.pack_header(Kind.HELLO, 513), wire.FrameLengthError, "HELLO frame of 513 bytes, but it may have 512"),
    ],
    ids=["magic", "older", "newer", "kind", "unknown", "length"],
)
def test_a_header_is_judged_before_its_payload_is_read(header, error, message):
    """Version first: what comes behind it may mean something else in another one."""
    with pytest.raises(error, match=message):
        wire.unpack_header(header, LIMITS, peer="n2")


def test_the_longest_allowed_frame_is_allowed():
    """The limit itself is within it."""
    assert wire.unpack_header(wire.pack_header(Kind.HELLO, 512), LIMITS, peer="n2") == (Kind.HELLO, 512)


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b"[" * 100_000, b"1" * 10_000])
def test_what_is_no_json_is_a_protocol_error(payload):
    """Also what would be too deep or too long a number for Python."""
    with pytest.raises(ProtocolError, match="n2 sent a MESSAGE frame that is no JSON"):
        wire.unpack_json(Kind.MESSAGE, payload, peer="n2")


@pytest.mark.parametrize("value", [{1, 2}, float("inf"), b"bytes"])
def test_what_is_no_json_is_not_sent(value):
    """Nothing is pickled in its place."""
    with pytest.raises(ProtocolError, match="a MESSAGE frame cannot be sent"):
        wire.pack_json(Kind.MESSAGE, value)


def test_a_message_beyond_the_limit_is_not_sent():
    """The receiver would hang up."""
    with pytest.raises(wire.FrameLengthError, match="send it in parts"):
        wire.pack_json(Kind.MESSAGE, "x" * wire.MESSAGE_BYTES)


def test_a_refusal_keeps_within_its_limit():
    """Even when every character of the reason takes six bytes."""
    frame = wire.pack_refusal(ProtocolError("\x01" * 10_000))
    _, num_bytes = wire.unpack_header(frame[: wire.HEADER.size], LIMITS, peer="n2")
    error = wire.refusal(json.loads(frame[wire.HEADER.size :]), peer="n2")
    assert num_bytes <= wire.REASON_BYTES
    assert str(error).startswith("n2 refused: \x01\x01")
    assert error.error == "ProtocolError"


@pytest.mark.parametrize("content", [None, [], {}, {"reason": ["?"]}])
def test_a_refusal_without_a_reason_is_still_one(content):
    """A peer that refuses badly must not be believed to have agreed."""
    assert str(wire.refusal(content, peer="n2")).startswith("n2 refused: ")
