"""Which address a node listens on and advertises: a real store, the interfaces of this host or of a namespace."""

import os
import socket
import sys
from pathlib import Path

import pytest

from chicle_elastic.cluster.rendezvous.own_address import (
    AddressOptions,
    choose_address,
    interface_address,
    store_listens_on,
)
from chicle_elastic.cluster.rendezvous.store import StoreServer, connect_store, parse_endpoint
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import UsageError
from chicle_elastic.transports.addresses import PortRange
from chicle_elastic.transports.node_address import NodeAddress, interface_addresses
from tests.programs import run

ENDPOINT = "127.0.0.1:29400"
ROOT = Path(__file__).parents[3]


def test_the_store_says_where_it_listens() -> None:
    """What it was given, and all addresses of both kinds for [::]."""
    for endpoint, listens in (("127.0.0.1:0", "127.0.0.1"), ("0.0.0.0:0", "0.0.0.0"), ("[::]:0", "::")):
        with StoreServer(endpoint) as server:
            _, port = parse_endpoint(server.endpoint)
            for host in ("127.0.0.1", "[::1]") if listens == "::" else ("127.0.0.1",):
                store = StoreConnection(f"{host}:{port}").connect()
                assert store_listens_on(store) == listens


def test_what_is_no_address_is_not_believed() -> None:
    """Any process can write to the store."""
    with StoreServer() as server:
        connect_store(server.endpoint).set("chicle-store/listens-on", "\xff nonsense")
        assert store_listens_on(StoreConnection(server.endpoint).connect()) is None


def test_a_store_takes_its_port_from_a_range() -> None:
    """And names the range when it is exhausted."""
    ports = PortRange(21300, 21301)
    with StoreServer("127.0.0.1:0", ports=ports) as first, StoreServer("127.0.0.1:0", ports=ports) as second:
        assert {first.endpoint, second.endpoint} == {"127.0.0.1:21300", "127.0.0.1:21301"}
        with pytest.raises(UsageError, match="21300-21301"):
            StoreServer("127.0.0.1:0", ports=ports)


def test_loopback_is_advertised_where_the_store_listens_on_loopback_only() -> None:
    """A job on one host. An old store, which says nothing, is believed to be one."""
    for listens in ("127.0.0.1", "::1", None):
        address = choose_address(AddressOptions(), endpoint=ENDPOINT, listens=listens)
        assert address == NodeAddress(bind="127.0.0.1", advertise="127.0.0.1")


@pytest.mark.parametrize("options", [AddressOptions(), AddressOptions(advertise="127.0.0.1")])
def test_loopback_is_refused_where_others_are_elsewhere(options: AddressOptions) -> None:
    """With the addresses of this host, and what to write."""
    with pytest.raises(UsageError, match=r"which only this host does.*it listens on 192\.0\.2\.77.*--interface NAME"):
        choose_address(options, endpoint=ENDPOINT, listens="192.0.2.77")


def test_options_say_what_to_listen_on_and_what_to_tell() -> None:
    """A forwarded address is no address of this host, so it listens on all."""

    def chosen(**options: str) -> tuple[str, str]:
        address = choose_address(AddressOptions(**options), endpoint=ENDPOINT, listens=None)  # type: ignore[arg-type]
        return address.bind, address.advertise

    assert chosen(host="127.0.0.3") == ("127.0.0.3", "127.0.0.3")
    assert chosen(advertise="127.0.0.3") == ("127.0.0.3", "127.0.0.3")
    assert chosen(advertise="192.0.2.1") == ("0.0.0.0", "192.0.2.1")
    assert chosen(advertise="[2001:db8::1]") == ("::", "2001:db8::1")
    assert chosen(host="127.0.0.3", advertise="192.0.2.1") == ("127.0.0.3", "192.0.2.1")
    assert chosen(host="0.0.0.0") == ("0.0.0.0", "127.0.0.1")
    assert chosen(advertise="localhost")[1] in ("127.0.0.1", "::1")
    assert chosen(interface="lo") == ("127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interface": "nosuch0"}, "this host has no such interface; it has .*lo"),
        ({"advertise": "0.0.0.0"}, "no address that other nodes can connect to"),
        ({"advertise": "nowhere.invalid"}, "neither an address nor a name that resolves"),
        ({"host": "127.0.0.1", "advertise": "2001:db8::1"}, "two of one kind, or --host ::"),
        ({"interface": "lo", "host": "127.0.0.1"}, "leave out --host"),
    ],
)
def test_options_that_cannot_work_are_named(options: dict[str, str], message: str) -> None:
    """Before any process starts."""
    with pytest.raises(UsageError, match=message):
        choose_address(AddressOptions(**options), endpoint=ENDPOINT, listens=None)  # type: ignore[arg-type]


def test_the_advertised_address_is_told_with_the_port() -> None:
    """Whatever the node listens on."""
    address = NodeAddress(bind="::", advertise="::1", ports=PortRange(21300, 21309))
    assert address.to_tell("tcp://[::]:7") == "tcp://[::1]:7"


def test_the_interfaces_of_this_host_have_addresses_that_can_be_listened_on() -> None:
    """Of both kinds, without loopback."""
    for entry in interface_addresses():
        family = socket.AF_INET6 if ":" in entry.address else socket.AF_INET
        with socket.socket(family) as sock:
            sock.bind((entry.address, 0))
        assert entry.interface != "lo"
        assert interface_address(entry.interface, like=entry.address)


NAMESPACE = """
import socket
from chicle_elastic.cluster.rendezvous.own_address import AddressOptions, choose_address, store_listens_on
from chicle_elastic.cluster.rendezvous.store import StoreServer, connect_store, parse_endpoint
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import UsageError

def chosen(endpoint, listens, **options):
    address = choose_address(AddressOptions(**options), endpoint=endpoint, listens=listens)
    return address.bind, address.advertise

# The name of the host resolves to 127.0.1.1: the store listens where other hosts reach it.
with StoreServer("alpha:0") as server:
    assert server.listens == "::", server.listens
    _, port = parse_endpoint(server.endpoint)
    for host in ("127.0.0.1", "10.77.1.1", "[fd77::1]"):
        store = StoreConnection(f"{host}:{port}").connect()
    listens = store_listens_on(store)
    # The node beside it: the only address that others reach.
    assert chosen(f"alpha:{port}", listens) == ("10.77.1.1", "10.77.1.1")
    assert chosen(f"127.0.0.1:{port}", listens) == ("10.77.1.1", "10.77.1.1")
# A store that listens on one address of this host: others reach this node there as well.
assert chosen("127.0.0.1:29400", "10.77.1.1") == ("10.77.1.1", "10.77.1.1")
# Interfaces, by name, of the kind that the store's address has.
assert chosen("127.0.0.1:29400", None, interface="data0") == ("10.77.1.1", "10.77.1.1")
assert chosen("[fd77::1]:29400", None, interface="data0") == ("fd77::1", "fd77::1")
for option, name in {"interface": "--interface", "bulk": "--bulk-interface"}.items():
    try:
        chosen("127.0.0.1:29400", None, **{option: "bare0"})
    except UsageError as error:
        assert f"{name} bare0 has no address" in str(error)
    else:
        raise AssertionError("an interface without an address")
import subprocess
subprocess.run(["ip", "address", "add", "10.78.1.1/24", "dev", "bare0"], check=True)
# Another network for chunks and sums, by its interface or its address.
for bulk in ("bare0", "10.78.1.1"):
    address = choose_address(AddressOptions(bulk=bulk), endpoint="10.77.1.1:29400", listens="::")
    assert (address.advertise, address.for_bulk.bind, address.for_bulk.advertise) == ("10.77.1.1", *["10.78.1.1"] * 2)
for bulk in ("lo", "10.78.1.9", "0.0.0.0"):
    try:
        choose_address(AddressOptions(bulk=bulk), endpoint="10.77.1.1:29400", listens="::")
    except UsageError as error:
        assert "--bulk-interface" in str(error), error
    else:
        raise AssertionError(f"{bulk} reaches no other host")
try:
    chosen("127.0.0.1:29400", "::")
except UsageError as error:
    assert "data0 10.77.1.1" in str(error) and "bare0 10.78.1.1" in str(error), error
else:
    raise AssertionError("two addresses to choose from")
"""


def test_a_host_whose_name_is_loopback_is_reached_by_its_address(tmp_path: Path) -> None:
    """Debian and Ubuntu write it so; in a namespace with interfaces of its own."""
    if os.geteuid() != 0:
        pytest.skip("network and mount namespaces need root")
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 alpha\n")
    setup = f"""
set -e
hostname alpha
mount --bind {tmp_path}/hosts /etc/hosts
ip link set lo up
for name in data0 bare0; do ip tuntap add $name mode tap; ip link set $name up; done
ip address add 10.77.1.1/24 dev data0
ip -6 address add fd77::1/64 dev data0 nodad
exec {sys.executable} -c '{NAMESPACE.replace("'", '"')}'
"""
    run("unshare", "--net", "--mount", "--uts", "sh", "-c", setup, seconds=100, cwd=ROOT)
