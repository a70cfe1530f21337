"""Addresses of services of an agent: "tcp://host:port", with IPv6 hosts in brackets, and "unix:@name".

Unix sockets have abstract names, not paths: an agent that is killed leaves no file behind.
"""

import ipaddress
import re
import secrets
import socket
import sys
from urllib.parse import urlsplit

from chicle_elastic.errors import PeerLostError, UsageError

MAX_NAME = 100
"""The kernel takes 107 bytes."""
NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME}}}")


def parse_tcp(address: str) -> tuple[str, int]:
    """Host and port of "tcp://host:port".

    Raises:
        UsageError: It is no such address.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or parts.scheme != "tcp" or parts.path or parts.query:
        raise UsageError(f"{address!r} is no address; write tcp://host:port, with port 0 for any free one")
    return host, port


def format_tcp(host: str, port: int) -> str:
    """The address of a host name or number, and a port."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this host is reached by it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen_tcp(address: str, *, backlog: int = 128) -> socket.socket:
    """A listening socket.

    Raises:
        UsageError: The address cannot be listened on.
    """
    host, port = parse_tcp(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {address} ({error.strerror or error}); choose port 0, or an address of this host"
        ) from error


def bound_tcp(listener: socket.socket) -> str:
    """The address that a listening socket has got."""
    host, port = listener.getsockname()[:2]
    return format_tcp(host, port)


def connect_tcp(address: str, *, timeout_s: float | None) -> socket.socket:
    """A connection, without delay for small frames, that notices a host which has vanished.

    Raises:
        UsageError: The address is none.
        PeerLostError: Nobody answers there.
    """
    host, port = parse_tcp(address)
    try:
        sock = socket.create_connection((host, port), timeout=timeout_s)
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
    """An address for a Unix socket that nobody else has, "unix:@chicle-PURPOSE-RANDOM"."""
    return f"unix:@chicle-{purpose}-{secrets.token_hex(16)}"


def unix_name(address: str) -> str:
    """What "unix:@name" is for the kernel: a name that lies in no folder, with a zero byte in front.

    Raises:
        UsageError: It is no such address.
    """
    name = address.removeprefix("unix:@")
    if name == address or not NAME.fullmatch(name):
        raise UsageError(
            f"{address!r:.200} is no address of a Unix socket; write unix:@name, with at most {MAX_NAME} letters, "
            "digits, dots, dashes and underscores"
        )
    return f"\0{name}"


def listen_unix(address: str, *, backlog: int = 128) -> socket.socket:
    """A listening Unix socket, which vanishes with the process.

    Its name is one for all users of this host (of this network namespace): who connects has to prove who it is.

    Raises:
        UsageError: It cannot be listened on.
    """
    name = unix_name(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(name)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise UsageError(
            f"cannot listen on {address} ({error.strerror or error}); choose a name that is not taken, on Linux"
        ) from error
    return sock


def connect_unix(address: str, *, timeout_s: float | None) -> socket.socket:
    """A connection to a Unix socket.

    Raises:
        UsageError: The address is none.
        PeerLostError: Nobody answers there.
    """
    name = unix_name(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(name)
    except OSError as error:
        sock.close()
        raise PeerLostError(f"{address} cannot be reached ({error.strerror or error}); its agent has ended") from error
    return sock
