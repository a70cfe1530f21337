"""Addresses of services of an agent: "tcp://host:port", with IPv6 hosts in brackets, and "unix:///path"."""

import contextlib
import os
import socket
import sys
from urllib.parse import urlsplit

from chicle_elastic.errors import PeerLostError, UsageError


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


def unix_path(address: str) -> str:
    """The path of "unix:///path".

    Raises:
        UsageError: It is no such address.
    """
    parts = urlsplit(address)
    if parts.scheme != "unix" or parts.netloc or not parts.path.startswith("/"):
        raise UsageError(f"{address!r} is no address of a Unix socket; write unix:///absolute/path")
    return parts.path


def listen_unix(address: str, *, backlog: int = 128) -> socket.socket:
    """A listening Unix socket; its folder should be private (0700).

    Raises:
        UsageError: It cannot be listened on.
    """
    path = unix_path(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise UsageError(
            f"cannot listen on {address} ({error.strerror or error}); choose a short path in a folder of yours that is "
            "not taken"
        ) from error
    return sock


def connect_unix(address: str, *, timeout_s: float | None) -> socket.socket:
    """A connection to a Unix socket.

    Raises:
        UsageError: The address is none.
        PeerLostError: Nobody answers there.
    """
    path = unix_path(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise PeerLostError(f"{address} cannot be reached ({error.strerror or error}); its agent has ended") from error
    return sock


def remove_unix(address: str) -> None:
    """Remove the file of a Unix socket, if it is still there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unix_path(address))
