"""The pool of connections: what it keeps, and what it does not."""

import os
import socket
from collections.abc import Iterator

import pytest

from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.pool import ConnectionPool

ADDRESS = "unix:@there"


@pytest.fixture
def peers() -> Iterator[list[socket.socket]]:
    """The other ends of all connections."""
    ends: list[socket.socket] = []
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def pool(peers: list[socket.socket]) -> Iterator[ConnectionPool]:
    """A pool whose connections lead to this process."""

    def connect(address: str, deadline: Deadline) -> socket.socket:
        here, there = socket.socketpair()
        peers.append(there)
        return here

    pool = ConnectionPool(connect)
    yield pool
    pool.close()


def test_a_connection_is_used_again(pool: ConnectionPool, peers: list[socket.socket]) -> None:
    """There are as many as there were requests at a time."""
    for _ in range(3):
        with pool.connection(ADDRESS, Deadline(1)):
            pass
    assert len(peers) == 1
    with pool.connection(ADDRESS, Deadline(1)), pool.connection(ADDRESS, Deadline(1)):
        pass
    assert len(peers) == 2


def test_a_request_that_goes_well_though_its_peer_has_gone_leaves_nothing(
    pool: ConnectionPool, peers: list[socket.socket]
) -> None:
    """By shm, chunks can be read of a peer that has been disconnected; its connection and its arena would stay."""
    with pool.connection(ADDRESS, Deadline(1)) as connection:
        fd = os.open(os.devnull, os.O_RDONLY)
        connection.descriptors[0] = (fd, 64)
        pool.disconnect(ADDRESS)
    assert connection.sock.fileno() == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_addresses_of_who_has_gone_are_forgotten(pool: ConnectionPool) -> None:
    """A node is told of thousands of others in its life."""
    for number in range(3):
        address = f"unix:@{number}"
        with pool.connection(address, Deadline(1)):
            pass
        pool.disconnect(address)
        pool.disconnect(f"tcp://never-used:{number}")
    assert not pool._idle
    assert not pool._busy
