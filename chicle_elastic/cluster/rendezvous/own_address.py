"""Which address a node listens on, and which one it tells the others.

By default that is the address on the route to the rendezvous store: other hosts that reach the store reach it, too. A
node on the host of the store may name the store by a loopback address, or by a name that resolves to one (Debian and
Ubuntu write the name of the host beside 127.0.1.1). What such a node would advertise reaches no other host. So a store
says where it listens (`LISTENS_KEY`), and a loopback address is advertised only when the store listens on loopback
only. That key is not signed: a false value can make a node refuse to start, or choose another address of its own host.
"""

import contextlib
import ipaddress
import socket
from dataclasses import dataclass, field

from chicle_elastic.cluster.rendezvous.store import LISTENS_KEY, address_towards, parse_endpoint
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import UsageError
from chicle_elastic.transports.addresses import PortRange, is_all_hosts, is_loopback
from chicle_elastic.transports.node_address import NodeAddress, interface_addresses, is_own_address

ABSENT = "chicle: never written"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressOptions:
    """What the command line says about addresses; None for what it leaves open."""

    host: str | None = None  # address to listen on, or "0.0.0.0" or "::" for all
    advertise: str | None = None
    interface: str | None = None
    bulk: str | None = None  # an interface, or an address of this host
    ports: PortRange = field(default=PortRange())

    def __post_init__(self) -> None:
        if self.interface is not None and (self.host is not None or self.advertise is not None):
            raise UsageError(
                f"--interface {self.interface} says which address to listen on and to advertise; leave out --host, "
                "--advertise and --local-addr, or leave out --interface"
            )


def store_listens_on(store: StoreConnection) -> str | None:
    """The address that the store says it listens on; None when it does not say. Raises StoreUnreachableError when the
    store does not answer."""
    said = store.compare_set(LISTENS_KEY, ABSENT, ABSENT).decode("ascii", "replace")
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(said))
    return None


def choose_address(options: AddressOptions, *, endpoint: str, listens: str | None) -> NodeAddress:
    """The address of this node; see the top of the module. Raises UsageError when an address or interface is not there,
    or other hosts could not reach what would be advertised."""
    if options.interface is not None:
        advertise = bind = interface_address(options.interface, like=address_towards(endpoint))
    else:
        given_bind = None if options.host is None else _number(options.host, "--host")
        given = None if options.advertise is None else _number(options.advertise, "--advertise")
        if given is None and given_bind is not None and not is_all_hosts(given_bind):
            given = given_bind
        advertise = given or _found(endpoint, listens)
        bind = given_bind or (advertise if is_own_address(advertise) else "::" if ":" in advertise else "0.0.0.0")
    if is_all_hosts(advertise):
        raise UsageError(f"{advertise} is no address that other nodes can connect to; give --advertise ADDRESS")
    bulk = "" if options.bulk is None else _bulk_address(options.bulk, like=advertise)
    for told in (advertise, bulk):
        if told and is_loopback(told) and _is_elsewhere(listens):
            raise UsageError(_refusal(told, endpoint, listens))
    if ":" in advertise and ":" not in bind:
        raise UsageError(
            f"--host {bind} is an address of IPv4 and --advertise {advertise} one of IPv6; give two of one kind, or "
            "--host :: for both"
        )
    return NodeAddress(bind=bind, advertise=advertise, ports=options.ports, bulk=bulk)


def _bulk_address(wanted: str, *, like: str) -> str:
    option = "--bulk-interface"
    if wanted in {name for _, name in socket.if_nameindex()}:
        return interface_address(wanted, like=like, option=option)
    address = _number(wanted, option)
    if is_all_hosts(address) or not is_own_address(address):
        raise UsageError(f"{option} {wanted} is neither an interface nor an address of this host, which has {_own()}")
    return address


def interface_address(name: str, *, like: str = "0.0.0.0", option: str = "--interface") -> str:
    """The first address of a network interface, of the same kind as another address if it has one of that. Raises
    UsageError when there is no such interface, or it has no address."""
    if name not in {interface for _, interface in socket.if_nameindex()}:
        names = ", ".join(interface for _, interface in socket.if_nameindex())
        raise UsageError(f"{option} {name}: this host has no such interface; it has {names}")
    if is_loopback(like) and name == "lo":
        return like
    found = [entry.address for entry in interface_addresses() if entry.interface == name]
    found.sort(key=lambda address: (":" in address) != (":" in like))
    if not found:
        raise UsageError(f"{option} {name} has no address that other hosts reach; look at `ip address show {name}`")
    return found[0]


def _found(endpoint: str, listens: str | None) -> str:
    address = address_towards(endpoint)
    if not is_loopback(address) or listens is None or not _is_elsewhere(listens):
        return address
    if not is_all_hosts(listens) and is_own_address(listens):
        return listens  # a node on the store's host: others reach the store there, and so this node
    own = [entry.address for entry in interface_addresses() if (":" in entry.address) == (":" in address)]
    if is_all_hosts(listens) and len(own) == 1:
        return own[0]
    raise UsageError(_refusal(address, endpoint, listens))


def _is_elsewhere(listens: str | None) -> bool:
    return listens is not None and not is_loopback(listens)


def _own() -> str:
    return ", ".join(f"{entry.interface} {entry.address}" for entry in interface_addresses()) or "none"


def _refusal(address: str, endpoint: str, listens: str | None) -> str:
    host, _ = parse_endpoint(endpoint)
    return (
        f"this node would tell the others to reach it at {address}, which only this host does, and the rendezvous "
        f"store {endpoint} serves other hosts, too (it listens on {listens}); give --interface NAME or --advertise "
        f"ADDRESS (addresses here: {_own()}), or the store's address instead of {host} in --rdzv-endpoint. For a job "
        "on this host alone, let the store listen on 127.0.0.1"
    )


def _number(host: str, option: str) -> str:
    """The address that a name stands for; a number stays what it is."""
    text = host.removeprefix("[").removesuffix("]")
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return str(socket.getaddrinfo(text, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UsageError(
            f"{option} {host} is neither an address nor a name that resolves ({error.strerror or error}); give the "
            "address"
        ) from error
