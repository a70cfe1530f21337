"""Deadlines of blocking exchanges, and what is said when they have passed."""

import socket

import pytest

from chicle_elastic.errors import PeerLostError
from chicle_elastic.transports import exchange
from chicle_elastic.transports.exchange import Deadline


def test_a_silent_peer_is_named_with_the_time_that_it_had():
    """The deadline is that of the exchange, not of a call."""
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(PeerLostError, match=r"n1 did not answer within 0\.01 s"):
        exchange.receive_exactly(ours, memoryview(bytearray(1)), Deadline(0.01), peer="n1")
