"""The connections of this process, found from outside: for libraries that open sockets and do not hand them out.

Sockets are told apart by inode and not by descriptor number, so that a number that was used again meanwhile is never
hit. Linux only.
"""

import contextlib
import os
import select
import socket
from collections.abc import Set
from typing import TypeAlias

Endpoint: TypeAlias = tuple[str, int]
"""Numeric address and port."""


def own_sockets() -> frozenset[int]:
    """Inodes of all sockets of this process."""
    return frozenset(_own_sockets().values())


def shut_down(inodes: frozenset[int]) -> None:
    """Shut down those connections of this process that have these inodes; threads that wait on them wake up."""
    for fd, inode in _own_sockets().items() if inodes else ():
        if inode not in inodes:
            continue
        # A duplicate cannot be closed, and its number used again, between the check and the shutdown.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as duplicate:
            if os.fstat(duplicate.fileno()).st_ino == inode and _is_connection(duplicate):
                duplicate.shutdown(socket.SHUT_RDWR)


def endpoints_of(host: str, port: int) -> frozenset[Endpoint]:
    """What a connection to an address may have at its other end; empty where the host name does not resolve.

    Asks the name server for a name, which may take seconds.
    """
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return frozenset((str(address[0]), port) for _, _, _, _, address in found)
    return frozenset()


def connections_to(endpoints: Set[Endpoint]) -> frozenset[int]:
    """Inodes of the connections of this process that have one of these at their other end."""
    return frozenset(inode for fd, inode in _own_sockets().items() if _peer(fd) in endpoints)


def are_open(inodes: frozenset[int]) -> bool:
    """Whether this process has all of these connections, and none of them was closed or shut down at either end."""
    fds = {inode: fd for fd, inode in _own_sockets().items() if inode in inodes}
    poll = select.poll()
    for fd in fds.values():
        poll.register(fd, select.POLLRDHUP)  # POLLHUP and POLLERR come unasked
    return len(fds) == len(inodes) and not poll.poll(0)


def _peer(fd: int) -> Endpoint | None:
    """Address and port of the other end of a connection, IPv4 addresses as such also in a socket of IPv6."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as duplicate:
        if _is_connection(duplicate):
            host, port = duplicate.getpeername()[:2]
            return str(host).removeprefix("::ffff:"), int(port)
    return None


def _own_sockets() -> dict[int, int]:
    """Inode of every socket of this process, by descriptor."""
    inodes = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile; the descriptor of the listing itself
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                inodes[int(name)] = os.stat(int(name)).st_ino
    return inodes


def _is_connection(sock: socket.socket) -> bool:
    return (
        sock.family in (socket.AF_INET, socket.AF_INET6)
        and sock.type == socket.SOCK_STREAM
        and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    )
