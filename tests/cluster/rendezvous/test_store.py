"""The store's host, connections to it, and the secret that goes with it."""

import os
import socket
import stat
from pathlib import Path

import pytest

from chicle_elastic.cluster.rendezvous.errors import StoreUnreachableError
from chicle_elastic.cluster.rendezvous.store import (
    StoreServer,
    address_towards,
    connect_store,
    format_endpoint,
    open_secret,
    parse_endpoint,
    round_prefix,
)
from chicle_elastic.errors import UsageError
from chicle_elastic.transports.addresses import is_loopback
from chicle_elastic.transports.secret import JobSecret


def test_the_store_listens_on_the_given_address_only() -> None:
    """The store knows no passwords."""
    with StoreServer("127.0.0.1:0") as host:
        _, port = parse_endpoint(host.endpoint)
        connect_store(host.endpoint)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", port), timeout=5)


def test_a_port_in_use_is_an_error_that_says_so() -> None:
    """With the address."""
    with StoreServer() as host, pytest.raises(UsageError, match=r"cannot listen on .* in use"):
        StoreServer(host.endpoint)


def test_a_store_that_is_not_there_is_an_error_with_the_command_that_starts_one() -> None:
    """After a short patience: driver and nodes may be started at the same time."""
    with StoreServer() as host:
        endpoint = host.endpoint
    with pytest.raises(StoreUnreachableError, match=f"no rendezvous store at {endpoint} .* --store-only"):
        connect_store(endpoint, timeout_s=0.2)


def test_something_else_that_listens_is_not_waited_for_for_ever() -> None:
    """It gets a question, and gives no answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = format_endpoint(*silent.getsockname())
        with pytest.raises(StoreUnreachableError, match="does not answer as a rendezvous store"):
            connect_store(endpoint, timeout_s=0.3)


@pytest.mark.parametrize("endpoint", ["", "  ", "host:port", "host:99999", "a b:1", "host:-1"])
def test_endpoints_that_are_none_are_named(endpoint: str) -> None:
    """The user wrote them."""
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        parse_endpoint(endpoint)


def test_endpoints_of_this_host_are_told_from_others() -> None:
    """Only where everybody is on this host may a missing secret be made by a node."""
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "127.8.8.8"))
    assert not any(is_loopback(host) for host in ("10.0.0.1", "driver", "fe80::1"))
    assert parse_endpoint("[::1]:7") == ("::1", 7)
    assert format_endpoint("::1", 7) == "[::1]:7"
    assert address_towards("127.0.0.1:29400") == "127.0.0.1"


def test_a_node_makes_a_secret_only_where_the_store_is_on_its_host(tmp_path: Path) -> None:
    """Elsewhere the one it made would be a wrong one."""
    path = tmp_path / "job.secret"
    with pytest.raises(UsageError, match="cannot be read"):
        open_secret(path, endpoint="driver:29400")
    made = open_secret(path, endpoint="127.0.0.1:29400")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert made.sign("x", 1) == JobSecret.load(path).sign("x", 1)
    assert open_secret(path, endpoint="driver:29400").sign("x", 1) == made.sign("x", 1)


def test_a_server_prunes_old_rounds() -> None:
    """And forgets a job that is over."""
    with StoreServer() as host:
        client = connect_store(host.endpoint)
        for round in (1, 2, 3):
            client.set(f"{round_prefix('job', round)}key", "value")
        host.prune("job", before=3)
        assert [key for key in client.list_keys() if "job" in key] == ["chicle/job/3/key"]
        host.forget("job")
        assert not [key for key in client.list_keys() if "job" in key]
