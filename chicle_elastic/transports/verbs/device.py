"""The RDMA device of this node: which one, which port and which of its addresses (GIDs).

A setting may name it. Otherwise it is the device that has the IP address on which the transport listens, because that
is the network in which the peers are; else the first one with an active port: on InfiniBand the address does not
matter, and on Ethernet a RoCE v2 address made from an IPv4 address does.
"""

import ipaddress
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chicle_elastic.errors import CapacityError
from chicle_elastic.transports.verbs.library import CREATION, RdmaUnavailableError, load

CLASS_FOLDER = Path("/sys/class/infiniband")
NODE_FOLDER = Path("/dev/infiniband")
MAX_GIDS = 256
ENOMEM = 12
MAX_READS = 16  # READs that one queue pair has under way at a time, at most; others wait in its queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port that can be used."""

    device: str  # name of its device
    number: int  # from 1
    gid: str  # the address, as eight groups of hexadecimal digits
    gid_index: int  # its place in the table of the port
    lid: int  # local identifier, on InfiniBand
    mtu: int  # as verbs count it: 1 for 256 bytes to 5 for 4096
    is_infiniband: bool  # whether packets find their way by `lid`
    max_reads: int  # READs that it answers at a time for one queue pair
    max_message_bytes: int  # longest READ

    @property
    def ip(self) -> str | None:
        """The IPv4 address that the GID was made from."""
        mapped = ipaddress.IPv6Address(self.gid).ipv4_mapped
        return None if mapped is None else str(mapped)


def device_names() -> list[str]:
    """Names of the devices that can be opened by this process, as far as the library knows. Raises RdmaUnavailableError
    when there is none; the message says what is missing."""
    verbs = load()
    try:
        names = [device.name.decode() for device in verbs.get_device_list()]
    except verbs.PyverbsError as error:
        raise RdmaUnavailableError(
            "the kernel of this host has no RDMA (ib_uverbs is not loaded); load the modules of the network card"
        ) from error
    if not names:
        raise RdmaUnavailableError(_why_there_is_none())
    return names


def _why_there_is_none() -> str:
    known = sorted(path.name for path in CLASS_FOLDER.glob("*"))
    if not known:
        return "this host has no RDMA device"
    if not list(NODE_FOLDER.glob("uverbs*")):
        return (
            f"the kernel has {', '.join(known)}, but there is no {NODE_FOLDER}/uverbs*; a container needs the device "
            "passed into it (docs/rdma.md)"
        )
    return f"the kernel has {', '.join(known)}, but libibverbs knows no driver for it; install ibverbs-providers"


def open_context(name: str) -> Any:
    """Open a device. Raises RdmaUnavailableError when it is not there, or this process may not open it."""
    verbs = load()
    if name not in (names := device_names()):
        raise RdmaUnavailableError(f"there is no RDMA device {name!r}; there is {', '.join(names)}")
    try:
        with CREATION:
            return verbs.Context(name=name)
    except verbs.PyverbsError as error:
        closed = [str(node) for node in sorted(NODE_FOLDER.glob("uverbs*")) if not os.access(node, os.R_OK | os.W_OK)]
        if closed:
            raise RdmaUnavailableError(
                f"user {os.geteuid()} has no permission to open {', '.join(closed)} for {name}; the file needs mode "
                "0666, which the rules of rdma-core give it"
            ) from error
        raise RdmaUnavailableError(f"{name} cannot be opened ({error})") from error


def close_context(context: Any) -> None:
    """Close an open device."""
    with CREATION:
        context.close()


def ports_of(context: Any, name: str) -> Iterator[Port]:
    """Ports of an open device that are up, with each of their addresses that can be used; the best first."""
    verbs = load()
    attributes = context.query_device()
    gids = list(context.query_gid_table(max_entries=MAX_GIDS))
    for number in range(1, attributes.phys_port_cnt + 1):
        port = context.query_port(number)
        if port.state != verbs.IBV_PORT_ACTIVE:
            continue
        is_infiniband = port.link_layer == verbs.IBV_LINK_LAYER_INFINIBAND
        kind = verbs.IBV_GID_TYPE_IB if is_infiniband else verbs.IBV_GID_TYPE_ROCE_V2
        usable = [gid for gid in gids if gid.port_num == number and gid.gid_type == kind]
        # A link-local address is made for every port, and leads nowhere beyond a switch.
        for gid in sorted(usable, key=lambda gid: gid.gid_str().startswith("fe80") and not is_infiniband):
            yield Port(
                device=name,
                number=number,
                gid=gid.gid_str(),
                gid_index=gid.gid_index,
                lid=port.lid,
                mtu=port.active_mtu,
                is_infiniband=is_infiniband,
                # Zero would let the pair connect, and its READs never end.
                max_reads=max(1, min(MAX_READS, attributes.max_qp_rd_atom)),
                max_message_bytes=port.max_msg_sz,
            )


def choose_port(host: str, device: str | None = None) -> Port:
    """The port to use. Raises RdmaUnavailableError when no port can be used.

    Args:
        device: Name of the device; None to choose among all.
    """
    names = [device] if device else device_names()
    ports: list[Port] = []
    errors: list[str] = []
    for name in names:
        try:
            context = open_context(name)
        except RdmaUnavailableError as error:
            errors.append(str(error))
            continue
        try:
            ports.extend(ports_of(context, name))
        finally:
            close_context(context)
    if not ports:
        raise RdmaUnavailableError(
            "; ".join(errors) or f"no port of {', '.join(names)} is active with an address; look at `rdma link`"
        )
    return next((port for port in ports if port.ip == host), ports[0])


class Device:
    """An open device, with the protection domain that all memory and queue pairs of a transport belong to.

    It is closed by the last of its users: closing it under a thread that still asks a queue would be a crash. Raises
    RdmaUnavailableError when it cannot be opened.
    """

    def __init__(self, port: Port) -> None:
        verbs = load()
        self.port = port
        self.context = open_context(port.device)
        try:
            self.domain = verbs.PD(self.context)
        except BaseException:
            close_context(self.context)
            raise
        self._lock = threading.Lock()
        self._num_users = 1
        self._last_words: list[Callable[[], None]] = []

    def on_release(self, close: Callable[[], None]) -> None:
        """Have something closed by the last user, before the device is."""
        self._last_words.append(close)

    def hold(self) -> bool:
        """Have it kept open until `release`; False when it is closed already."""
        with self._lock:
            if not self._num_users:
                return False
            self._num_users += 1
            return True

    def release(self) -> None:
        """Give one hold up."""
        with self._lock:
            self._num_users -= 1
            if self._num_users:
                return
        for close in self._last_words:
            close()
        self.domain.close()
        close_context(self.context)

    def register(self, address: int, size_bytes: int, *, is_for_peers: bool) -> Any:
        """Let the card reach memory of this process, which stays where it is until the registration is closed. All of
        its pages are locked meanwhile, and the interpreter with them: register before anybody waits for a heartbeat.
        Raises CapacityError when this process may not lock that much."""
        verbs = load()
        access = verbs.IBV_ACCESS_LOCAL_WRITE | (verbs.IBV_ACCESS_REMOTE_READ if is_for_peers else 0)
        try:
            return verbs.MR(self.domain, size_bytes, access, address=address)
        except verbs.PyverbsRDMAError as error:
            what = f"{self.port.device} cannot register {size_bytes / 2**20:.1f} MiB"
            if error.error_code != ENOMEM:
                raise RdmaUnavailableError(f"{what} ({error})") from error
            import resource  # not on Windows, where importing this file is harmless

            limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
            said = "no limit" if limit == resource.RLIM_INFINITY else f"{limit / 2**20:.1f} MiB"
            raise CapacityError(
                f"{what}: this process may lock {said} in all (ulimit -l); set LimitMEMLOCK=infinity for the service "
                "that starts it, or memlock in /etc/security/limits.conf"
            ) from error
