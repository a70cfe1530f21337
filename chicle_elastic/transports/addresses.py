"""Addresses of services of an agent: "tcp://host:port", with IPv6 hosts in brackets, and "unix:@name".

A service that listens may name a range, "tcp://host:29410-29449": it takes the first free port of it. The host "::" is
all addresses of this host, those of IPv4 included.

Unix sockets have abstract names, not paths: an agent that is killed leaves no file behind.
"""

import errno
import ipaddress
import re
import secrets
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from chicle_elastic.errors import ConnectionRefusedByHostError, PeerLostError, UsageError

MAX_NAME = 100  # the kernel takes 107 bytes
BACKLOG = 128  # connections that wait to be accepted
NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME}}}")
MAX_PORT = 65535
RANGE = re.compile(r"(tcp://.*:)(\d{1,5})-(\d{1,5})")


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports that listeners may take. Raises UsageError when it is no range of ports."""

    first: int = 0  # the lowest, 1 to 65535; 0 when the kernel chooses
    last: int = 0  # the highest, at least `first`; 0 as well when the kernel chooses

    def __post_init__(self) -> None:
        if (self.first, self.last) != (0, 0) and not 1 <= self.first <= self.last <= MAX_PORT:
            raise UsageError(f"{self.first}-{self.last} is no range of ports; write FIRST-LAST, e.g. 29410-29449")

    @property
    def is_any(self) -> bool:
        """Whether the kernel chooses the port."""
        return self.first == 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __str__(self) -> str:
        return "0" if self.is_any else f"{self.first}-{self.last}"


def parse_tcp(address: str) -> tuple[str, int]:
    """Host and port of "tcp://host:port". Raises UsageError when it is no such address."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or parts.scheme != "tcp" or parts.path or parts.query:
        raise UsageError(f"{address!r} is no address; write tcp://host:port, with port 0 for any free one")
    return host, port


def is_all_hosts(host: str) -> bool:
    """Whether a listener there takes connections to every address of this host."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def parse_listen(address: str) -> tuple[str, PortRange]:
    """Host and ports of "tcp://host:port" or "tcp://host:first-last"; the range of port 0 is that of any port. Raises
    UsageError when it is no such address."""
    match = RANGE.fullmatch(address)
    if match is None:
        host, port = parse_tcp(address)
        return host, PortRange(port, port)
    host, _ = parse_tcp(f"{match[1]}{match[2]}")
    return host, PortRange(int(match[2]), int(match[3]))


def format_tcp(host: str, port: int) -> str:
    """The address of a host name or number, and a port."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this host is reached by it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def format_listen(host: str, ports: PortRange) -> str:
    """The address of a service that takes a free port of a range."""
    return f"{format_tcp(host, 0).removesuffix('0')}{ports}"


def listen_tcp(address: str, *, backlog: int = BACKLOG) -> socket.socket:
    """A listening socket. Raises UsageError when the address cannot be listened on, or the range has no free port.

    Args:
        address: "tcp://host:port", or "tcp://host:first-last" for the first free port of a range.
    """
    host, ports = parse_listen(address)
    is_ipv6 = ":" in host
    failure: OSError | None = None
    for port in ports:
        try:
            return socket.create_server(
                (host, port),
                family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
                backlog=backlog,
                dualstack_ipv6=is_all_hosts(host) and is_ipv6 and socket.has_dualstack_ipv6(),
            )
        except OSError as error:
            failure = error
            if error.errno != errno.EADDRINUSE:
                break
    reason = failure.strerror if failure else None
    if ports.first != ports.last and failure is not None and failure.errno == errno.EADDRINUSE:
        raise UsageError(
            f"no port of the range {ports} is free at {host}; widen the range (--port-range): a node listens on up to "
            "6 ports, and nodes on one host share its ports"
        ) from failure
    raise UsageError(
        f"cannot listen on {address} ({reason or failure}); choose port 0, or an address of this host"
    ) from failure


def bound_tcp(listener: socket.socket) -> str:
    """The address that a listening socket has got."""
    host, port = listener.getsockname()[:2]
    return format_tcp(host, port)


def connect_tcp(address: str, *, timeout_s: float | None) -> socket.socket:
    """A connection, without delay for small frames, that notices a host which has vanished. Raises UsageError when the
    address is none, ConnectionRefusedByHostError when the host answers that no process listens there, PeerLostError
    when no process answers there."""
    host, port = parse_tcp(address)
    try:
        sock = socket.create_connection((host, port), timeout=timeout_s)
    except ConnectionRefusedError as error:
        raise ConnectionRefusedByHostError(
            f"{address} cannot be reached (Connection refused); its agent has ended, or a firewall rejects connections"
        ) from error
    except OSError as error:
        raise PeerLostError(
            f"{address} cannot be reached ({error.strerror or error}); its agent has ended, or "
            "the network between keeps you apart"
        ) from error
    tune_tcp(sock)
    return sock


def tune_tcp(sock: socket.socket) -> None:
    """Send small frames at once; let the kernel find out when the other host is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def new_unix(purpose: str) -> str:
    """An address for a Unix socket that no other socket has, "unix:@chicle-PURPOSE-RANDOM"."""
    return f"unix:@chicle-{purpose}-{secrets.token_hex(16)}"


def unix_name(address: str) -> str:
    """What "unix:@name" is for the kernel: a name that lies in no folder, with a zero byte in front. Raises UsageError
    when it is no such address."""
    name = address.removeprefix("unix:@")
    if name == address or not NAME.fullmatch(name):
        raise UsageError(
            f"{address!r:.200} is no address of a Unix socket; write unix:@name, with at most {MAX_NAME} letters, "
            "digits, dots, dashes and underscores"
        )
    return f"\0{name}"


def listen_unix(address: str) -> socket.socket:
    """A listening Unix socket, which vanishes with the process. Its name is one for all users of this host (of this
    network namespace): who connects has to prove who it is. Raises UsageError when it cannot be listened on."""
    name = unix_name(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(name)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise UsageError(
            f"cannot listen on {address} ({error.strerror or error}); choose a name that is not taken, on Linux"
        ) from error
    return sock


def connect_unix(address: str, *, timeout_s: float | None) -> socket.socket:
    """A connection to a Unix socket. Raises UsageError when the address is none, PeerLostError when no process answers
    there."""
    name = unix_name(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(name)
    except OSError as error:
        sock.close()
        raise PeerLostError(f"{address} cannot be reached ({error.strerror or error}); its agent has ended") from error
    return sock
