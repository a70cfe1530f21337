"""Where a node listens, and by which address the other nodes reach it.

bind         the address that its listeners take: one of this host, or "0.0.0.0" or "::" for all of them
advertise    the address that other nodes are told; that of a port forwarding, say, need not be one of this host
ports        the ports that listeners may take
bulk         the own address for chunks, models and sums, where another network than that of control carries them
"""

import array
import contextlib
import ipaddress
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from chicle_elastic.transports.addresses import PortRange, format_listen, format_tcp, parse_tcp

IPV6_ADDRESSES = Path("/proc/net/if_inet6")
SIOCGIFCONF = 0x8912
MAX_ADDRESSES = 1024
GLOBAL_SCOPE = "00"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """See the top of the module."""

    bind: str  # number of IPv4 or IPv6
    advertise: str  # number of IPv4 or IPv6
    ports: PortRange = field(default=PortRange())
    bulk: str = ""  # number of IPv4 or IPv6; "" for the same network

    @property
    def for_bulk(self) -> "NodeAddress":
        """Say where chunks, models and sums go."""
        return replace(self, bind=self.bulk, advertise=self.bulk) if self.bulk else self

    def to_listen(self) -> str:
        """For `addresses.listen_tcp`."""
        return format_listen(self.bind, self.ports)

    def to_tell(self, address: str) -> str:
        """What other nodes are told of a listener."""
        return format_tcp(self.advertise, parse_tcp(address)[1])


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """An address of a network interface of this host."""

    interface: str
    address: str


def interface_addresses() -> Sequence[InterfaceAddress]:
    """All addresses of this host that other hosts may reach, loopback and link-local ones left out (Linux)."""
    found = [*_ipv4_addresses(), *_ipv6_addresses()]
    return [entry for entry in found if _is_global(entry.address)]


def is_own_address(host: str) -> bool:
    """Whether a listener of this host can take this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind((host, 0))
        return True
    return False


def _is_global(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


def _ipv4_addresses() -> list[InterfaceAddress]:
    import fcntl  # not on Windows

    # The names are up to 15 bytes; each entry is a name of 16 bytes and a sockaddr of 24 (struct ifreq, 64 bits).
    buffer = array.array("B", bytes(40 * MAX_ADDRESSES))
    where, _ = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, SIOCGIFCONF, struct.pack("iL", len(buffer), where))
    num_bytes, _ = struct.unpack("iL", answer)
    content = buffer.tobytes()
    return [
        InterfaceAddress(
            content[start : start + 16].partition(b"\0")[0].decode().partition(":")[0],
            socket.inet_ntoa(content[start + 20 : start + 24]),
        )
        for start in range(0, num_bytes, 40)
    ]


def _ipv6_addresses() -> list[InterfaceAddress]:
    try:
        lines = IPV6_ADDRESSES.read_text(encoding="ascii").splitlines()
    except OSError:  # IPv6 is switched off
        return []
    fields = [line.split() for line in lines]
    return [
        InterfaceAddress(name, str(ipaddress.IPv6Address(bytes.fromhex(number))))
        for number, _, _, scope, _, name in fields
        if scope == GLOBAL_SCOPE
    ]
