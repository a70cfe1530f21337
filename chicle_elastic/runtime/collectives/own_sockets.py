"""The connections of this process, found from outside: for libraries that open sockets and do not hand them out.

Sockets are told apart by inode and not by descriptor number, so that a number that was used again meanwhile is never
hit. Linux only.
"""

import contextlib
import os
import socket


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


def connections_to(host: str, port: int) -> frozenset[int]:
    """Inodes of the connections of this process to an address; none where the host name does not resolve."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = {str(address[0]) for _, _, _, _, address in found}
        inodes = _own_sockets().items()
        return frozenset(inode for fd, inode in inodes if _peer(fd) in {(address, port) for address in addresses})
    return frozenset()


def _peer(fd: int) -> tuple[str, int] | None:
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
