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


def test_without_a_deadline_the_kernel_may_give_a_connection_up():
    """ETIMEDOUT of a peer that has answered no packet for minutes is Python's TimeoutError, too."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.01)  # the same exception as the kernel's
        deadline = Deadline(None)
        deadline.apply = lambda sock, *, peer: None  # type: ignore[method-assign]
        with pytest.raises(PeerLostError, match=r"n1 does not answer any more"):
            exchange.receive_exactly(ours, memoryview(bytearray(1)), deadline, peer="n1")
