"""The transports of one node together, and which of them to use for which peer.

An agent tells its peers an `Offer`: where each of its transports listens, and which host it is on. A peer picks shm
when both are on one host, else tcp; the `Route` says why, for the log.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chicle_elastic.errors import ProtocolError
from chicle_elastic.transports import addresses
from chicle_elastic.transports.base import Memory, Transport
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.shm import ShmTransport
from chicle_elastic.transports.tcp import TcpTransport

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NETWORK = Path("/proc/self/ns/net")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Where the transports of a node listen.

    Attributes:
        host: Says which running kernel the node is on, and in which network of it (see `host_id`).
        tcp: Address that peers on other hosts can reach.
        shm: Address for peers on the same host; None where there is none.
    """

    host: str
    tcp: str
    shm: str | None = None

    @classmethod
    def from_json(cls, content: Any, *, peer: str) -> "Offer":
        """The offer in JSON values.

        Raises:
            ProtocolError: It is none.
        """
        fields = content if isinstance(content, dict) else {}
        host, tcp, shm = fields.get("host"), fields.get("tcp"), fields.get("shm")
        if not isinstance(host, str) or not isinstance(tcp, str) or not isinstance(shm, str | None):
            raise ProtocolError(f"{peer} says that its transports are {content!r:.120}, and names host, tcp and shm")
        return cls(host=host, tcp=tcp, shm=shm)

    def to_json(self) -> dict[str, str | None]:
        """As JSON values."""
        return {"host": self.host, "tcp": self.tcp, "shm": self.shm}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How to reach a peer.

    Attributes:
        transport: Which transport of this node.
        address: Where that of the peer listens.
        reason: Why this one, in words.
    """

    transport: Transport
    address: str
    reason: str


class Carrier:
    """TCP and shm of one node, with the same arenas registered. A context manager that closes them.

    Args:
        secret: Of the job.
        name: Of this node.
        tcp_address: Where to listen, "tcp://host:port".
        public_host: Name or number under which other hosts know this one; by default the host in `tcp_address`.
        has_shm: Whether to offer shm.

    Attributes:
        offer: To be told to peers.

    Raises:
        UsageError: The address cannot be listened on.
    """

    def __init__(
        self,
        secret: JobSecret,
        *,
        name: str,
        tcp_address: str = "tcp://127.0.0.1:0",
        public_host: str | None = None,
        has_shm: bool = True,
    ) -> None:
        with contextlib.ExitStack() as on_error:
            self._tcp = on_error.enter_context(TcpTransport(tcp_address, secret, name=name))
            self._shm: ShmTransport | None = None
            if has_shm:
                self._shm = on_error.enter_context(ShmTransport(addresses.new_unix("shm"), secret, name=name))
            host, port = addresses.parse_tcp(self._tcp.address)
            self.offer = Offer(
                host=host_id(),
                tcp=addresses.format_tcp(public_host or host, port),
                shm=None if self._shm is None else self._shm.address,
            )
            on_error.pop_all()

    def register(self, memory: Memory) -> int:
        """Let peers read this memory; returns the number of the arena: 0, 1, ... in the order of registration.

        Register from one thread, so that every transport gives the same number.
        """
        (number,) = {transport.register(memory) for transport in self._transports()}
        return number

    def route(self, theirs: Offer) -> Route:
        """The best way to a peer."""
        reason = self._reason_against_shm(theirs)
        if reason is None and self._shm is not None and theirs.shm is not None:
            return Route(transport=self._shm, address=theirs.shm, reason="shm: both agents are on one host")
        return Route(transport=self._tcp, address=theirs.tcp, reason=f"tcp: {reason}")

    def disconnect(self, theirs: Offer) -> None:
        """Drop all connections to a peer; fetches from it that are under way end with `PeerLostError`."""
        self._tcp.disconnect(theirs.tcp)
        if self._shm is not None and theirs.shm is not None:
            self._shm.disconnect(theirs.shm)

    def close(self) -> None:
        """End all transports and give the registered memory up. May be called again."""
        for transport in self._transports():
            transport.close()

    def __enter__(self) -> "Carrier":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _transports(self) -> Iterator[TcpTransport | ShmTransport]:
        yield self._tcp
        if self._shm is not None:
            yield self._shm

    def _reason_against_shm(self, theirs: Offer) -> str | None:
        if self._shm is None:
            return "this agent does without shm"
        if theirs.shm is None:
            return "the peer offers no shm"
        if theirs.host != self.offer.host:
            return "the peer is on another host, or in a container with a network of its own"
        return None


def host_id() -> str:
    """Tells apart where names of Unix sockets mean different things.

    It is the same for all processes of one network namespace of a kernel, from one start of the machine to the next:
    containers share a kernel, and most often not their network.
    """
    try:
        return f"{BOOT_ID.read_text(encoding='ascii').strip()}/{os.stat(NETWORK).st_ino}"
    except OSError:
        return secrets.token_hex(16)  # no proc file system: equal to nobody
