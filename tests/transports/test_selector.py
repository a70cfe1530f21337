"""Which transport for which peer, with the reason."""

import dataclasses

import pytest

from chicle_elastic.errors import ProtocolError, UsageError
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports import addresses
from chicle_elastic.transports.base import Region
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import Endpoints, TransportSelector, host_id
from tests.timeouts import timeout_s

TIMEOUT_S = timeout_s(10)


@pytest.fixture
def selectors_of():
    """Two nodes of one host."""
    secret = JobSecret.generate()
    with TransportSelector(secret, name="n1") as one, TransportSelector(secret, name="n2") as other:
        yield one, other


def test_a_peer_on_this_host_is_reached_by_shared_memory(selectors_of):
    """The chosen route works."""
    one, other = selectors_of
    route = one.route(other.endpoints)
    assert route.reason == "shm: both agents are on one host"
    assert_works(one, other, route)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"host": "another"}, "tcp: the peer is on another host, or in a container with a network of its own"),
        ({"shm": None}, "tcp: the peer offers no shm"),
    ],
)
def test_other_peers_are_reached_by_tcp(selectors_of, changes, reason):
    """The log says why."""
    one, other = selectors_of
    route = one.route(dataclasses.replace(other.endpoints, **changes))
    assert route.reason == reason
    assert_works(one, other, route)


def test_without_shm_there_is_only_tcp():
    """On both sides."""
    secret = JobSecret.generate()
    with (
        TransportSelector(secret, name="n1", has_shm=False) as one,
        TransportSelector(secret, name="n2", has_shm=False) as other,
    ):
        assert other.endpoints.shm is None
        route = one.route(other.endpoints)
        assert route.reason == "tcp: this agent does without shm"
        assert_works(one, other, route)


def test_disconnect_leaves_a_peer_that_can_be_asked_again(selectors_of):
    """A node that was thought lost may come back."""
    one, other = selectors_of
    route = one.route(other.endpoints)
    assert_works(one, other, route)
    one.disconnect(other.endpoints)
    content = bytearray(64)
    route.transport.fetch(route.address, Region(0, 0, 64), memoryview(content), timeout_s=TIMEOUT_S)
    assert content == bytes([5]) * 64


def test_an_offer_names_the_host_that_it_listens_on(selectors_of):
    """With the port that it has got, and which host that is."""
    with TransportSelector(JobSecret.generate(), name="n1", tcp_address="tcp://127.0.0.2:0") as transports:
        host, port = addresses.parse_tcp(transports.endpoints.tcp)
        assert host == "127.0.0.2"
        assert port > 0
        assert transports.endpoints.host == host_id()


def test_an_offer_travels_as_json(selectors_of):
    """And what is none is refused."""
    endpoints = selectors_of[0].endpoints
    assert Endpoints.from_json(endpoints.to_json(), peer="n1") == endpoints
    for content in (None, [], {}, {"host": "h", "tcp": 7}, {"host": "h", "tcp": "tcp://h:1", "shm": 1}):
        with pytest.raises(ProtocolError, match="n1 says that its transports are"):
            Endpoints.from_json(content, peer="n1")


@pytest.mark.parametrize("address", ["unix:///tmp/shm-1", "unix:@", "unix:@a/b", f"unix:@{'a' * 101}", "tcp://h:1"])
def test_what_is_no_name_of_a_unix_socket_is_refused(address):
    """A peer may offer anything."""
    with pytest.raises(UsageError, match="is no address of a Unix socket"):
        addresses.connect_unix(address, timeout_s=TIMEOUT_S)


def assert_works(reader, owner, route):
    """A fetch by this route brings what the owner has."""
    with Arena.create(1, slot_bytes=64) as arena:
        arena.view(0)[:] = bytes([5]) * 64
        number = owner.register(arena)
    content = bytearray(64)
    route.transport.fetch(route.address, Region(number, 0, 64), memoryview(content), timeout_s=TIMEOUT_S)
    assert content == bytes([5]) * 64
