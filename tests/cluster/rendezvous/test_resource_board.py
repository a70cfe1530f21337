"""What a job and its resource manager write into a real store."""

from collections.abc import Iterator

import pytest

from chicle_elastic.cluster.rendezvous.resource_board import PREFIX, Finished, NodeOffer, NodeRequest, ResourceBoard
from chicle_elastic.cluster.rendezvous.signed_value import SignedValue
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.transports.secret import JobSecret

SECRET = JobSecret(b"s" * 32)


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Of a store of this test's own."""
    with StoreServer("127.0.0.1:0") as server:
        yield server.endpoint


def board_of(endpoint: str, secret: JobSecret = SECRET) -> ResourceBoard:
    """A board as an agent or an anchor has it."""
    return ResourceBoard(StoreConnection(endpoint).connect(), secret=secret)


def test_the_newest_request_holds(endpoint: str) -> None:
    """Every agent writes each request, and some of them late."""
    board = board_of(endpoint)
    assert board.request() is None
    for number, total in ((1, 4), (3, 2), (2, 8)):
        board_of(endpoint).put_request(NodeRequest(number, total, "why"))
    assert board.request() == NodeRequest(3, 2, "why")


def test_keys_are_apart(endpoint: str) -> None:
    """A person's wish, an offer and the end do not touch each other."""
    board = board_of(endpoint)
    board.put_scale(5)
    board.put_scale(2)
    board.put_offer(NodeOffer(1, available=0, price=0.5, text="none left"))
    assert (board.scale(), board.request(), board.finished()) == (NodeRequest(2, 2), None, None)
    board.put_finished(Finished("a task failed: no", has_failed=True))
    board.put_finished(Finished("late"))
    assert board.offer() == NodeOffer(1, 0, 0.5, "none left")
    assert board.finished() == Finished("a task failed: no", has_failed=True)


def test_what_is_not_signed_or_not_of_the_form_counts_as_none(endpoint: str) -> None:
    """Any process that reaches the store can write there; the next true request takes its place."""
    board = board_of(endpoint)
    board_of(endpoint, JobSecret(b"x" * 32)).put_request(NodeRequest(7, 64))
    assert board.request() is None
    board.put_request(NodeRequest(1, 3))
    assert board.request() == NodeRequest(1, 3)
    value = SignedValue(StoreConnection(endpoint).connect(), key=PREFIX + "scale", secret=SECRET)
    value.swap(value.read(), {"number": "1", "total": 3})
    assert board.scale() is None
    board.put_scale(4)
    assert board.scale() == NodeRequest(1, 4)
