"""Chunks between agents of one host: the descriptor of the arena travels once, then the kernel copies.

The copy is a `preadv` from the peer's memory file into the slot and not a copy between two maps: it runs without the
interpreter's lock, nothing of the peer stays mapped here, and a file that is shorter than promised is a short read and
not a SIGBUS. The connection stays open and is asked before each fetch whether the peer still lives: the memory of a
dead one could still be read, but no process vouches for it.
"""

import os
import socket
import struct
from typing import Any

from chicle_elastic.errors import PeerLostError, ProtocolError
from chicle_elastic.transports import exchange, wire
from chicle_elastic.transports.base import PIECE_BYTES, Pull, Region
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.pool import Connection
from chicle_elastic.transports.sockets import Transport
from chicle_elastic.transports.wire import Kind

FD = struct.Struct("i")

_LIMITS = {Kind.DESCRIPTOR: 64, Kind.REFUSED: wire.REASON_BYTES}


class ShmTransport(Transport):
    """A `Transport`; addresses are "unix:@name", and the secret keeps others out."""

    scheme = "shm"
    request = Kind.DESCRIPTOR

    def _bring(self, connection: Connection, pull: Pull, deadline: Deadline, *, peer: str) -> Exception | None:
        region, into = pull.region, pull.into
        if region.arena not in connection.descriptors:
            connection.descriptors[region.arena] = _ask_for_descriptor(connection.sock, region, deadline, peer=peer)
        fd, arena_bytes = connection.descriptors[region.arena]
        try:
            region.require_within(arena_bytes)
        except ProtocolError as outside:
            return outside
        position = 0
        error: Exception | None = None
        while position < region.size_bytes and error is None:
            try:
                count = os.preadv(fd, [into[position : position + PIECE_BYTES]], region.offset + position)
            except OSError as failure:
                raise ProtocolError(f"{peer} sent a descriptor that cannot be read ({failure.strerror})") from failure
            if not count:
                raise ProtocolError(
                    f"{peer} said that arena {region.arena} has {arena_bytes} bytes, but it ends at "
                    f"{region.offset + position}; what was copied is not used"
                )
            position += count
            error = pull.judge(position)
        return error

    def _answer(self, sock: socket.socket, content: Any, deadline: Deadline, *, peer: str) -> None:
        if type(content) is not int:
            raise ProtocolError(f"{peer} asks for the descriptor of {content!r:.80}, which is no number of an arena")
        fd, arena_bytes = self._registry.descriptor(content)
        frame = wire.pack_json(Kind.DESCRIPTOR, arena_bytes)
        deadline.apply(sock, peer=peer)
        try:
            sent = socket.send_fds(sock, [frame], [fd])
        except OSError as error:
            raise PeerLostError(f"{peer} cannot be sent to any more ({error.strerror or error})") from error
        exchange.send_frame(sock, frame[sent:], deadline, peer=peer)


def _ask_for_descriptor(sock: socket.socket, region: Region, deadline: Deadline, *, peer: str) -> tuple[int, int]:
    """Descriptor and size in bytes of a peer's arena."""
    exchange.send_frame(sock, wire.pack_json(Kind.DESCRIPTOR, region.arena), deadline, peer=peer)
    deadline.apply(sock, peer=peer)
    try:
        # The first byte of the header carries the descriptor; the rest comes by the ordinary way.
        # Not socket.recv_fds: in Python 3.11 it forgets the flags.
        begun, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_LEN(FD.size), socket.MSG_CMSG_CLOEXEC)
    except TimeoutError:
        raise deadline.passed(peer) from None
    except OSError as error:
        raise PeerLostError(f"the connection to {peer} is broken ({error.strerror or error})") from error
    descriptors = [
        FD.unpack(content)[0]
        for level, kind, content in ancillary
        if (level, kind, len(content)) == (socket.SOL_SOCKET, socket.SCM_RIGHTS, FD.size)
    ]
    try:
        arena_bytes = exchange.receive_json(sock, _LIMITS, deadline, peer=peer, begun=begun)
        if not descriptors or type(arena_bytes) is not int:
            raise ProtocolError(f"{peer} answered without a descriptor, or without its size; look at its version")
    except BaseException:
        for fd in descriptors:
            os.close(fd)
        raise
    return descriptors[0], arena_bytes
