"""The transports of one node together, and which of them to use for which peer.

An agent tells its peers an `Endpoints`: where each of its transports listens, and which host it is on. A peer picks shm
when both are on one host, else verbs where both have RDMA, else tcp; the `Route` says why, for the log. Where RDMA
turns out to fail between two nodes that both have it, tcp takes over: a route has a fallback, and the fetch
that sees the route fail says so, so that later ones are spared the attempt for a while.
"""

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chicle_elastic.closing import Closing
from chicle_elastic.errors import CapacityError, ProtocolError
from chicle_elastic.transports import addresses
from chicle_elastic.transports.addresses import PortRange
from chicle_elastic.transports.base import FETCH_TIMEOUT_S, Memory
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.shm import ShmTransport
from chicle_elastic.transports.sockets import Transport
from chicle_elastic.transports.tcp import TcpTransport
from chicle_elastic.transports.tls import TlsIdentity
from chicle_elastic.transports.verbs.failures import RdmaFailure
from chicle_elastic.transports.verbs.library import RdmaUnavailableError
from chicle_elastic.transports.verbs.transport import VerbsTransport
from chicle_elastic.transports.wire import RefusedError

AVOID_S = 30.0  # how long a peer is reached by tcp after RDMA to it has failed
FALLBACK_TIMEOUT_S = 10.0
"""For a fetch that has failed once: the peer may be gone altogether, and then others wait for this to end."""
RDMA_OFF = "off"

_log = logging.getLogger(__name__)

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NETWORK = Path("/proc/self/ns/net")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where the transports of a node listen."""

    host: str  # says which running kernel the node is on, and in which network of it (see `host_id`)
    tcp: str  # address that peers on other hosts can reach
    shm: str | None = None  # address for peers on the same host; None where there is none
    verbs: str | None = None  # address for peers that have RDMA too; None where there is none

    @classmethod
    def from_json(cls, content: Any, *, peer: str) -> "Endpoints":
        """The offer in JSON values. Raises ProtocolError when it is none."""
        fields = content if isinstance(content, dict) else {}
        host, tcp, shm, verbs = (fields.get(name) for name in ("host", "tcp", "shm", "verbs"))
        are_right = isinstance(shm, str | None) and isinstance(verbs, str | None)
        if not isinstance(host, str) or not isinstance(tcp, str) or not are_right:
            raise ProtocolError(f"{peer} says that its transports are {content!r:.120}, and names host, tcp and shm")
        return cls(host=host, tcp=tcp, shm=shm, verbs=verbs)

    def to_json(self) -> dict[str, str | None]:
        """As JSON values."""
        return {"host": self.host, "tcp": self.tcp, "shm": self.shm, "verbs": self.verbs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How to reach a peer."""

    transport: Transport
    address: str  # where that of the peer listens
    reason: str
    timeout_s: float = FETCH_TIMEOUT_S
    fallback: "Route | None" = None  # what to try when this one fails

    def has_failed(self, error: Exception | None) -> bool:
        """Whether this error is one of the route, and the fallback may still bring what was asked for. A peer that has
        hung up or is silent is no such error: it has done so on all routes."""
        return self.fallback is not None and isinstance(error, RdmaFailure | RefusedError)


class TransportSelector(Closing):
    """TCP, shm and RDMA of one node, with the same arenas registered. A context manager that closes them. Raises
    UsageError when the address cannot be listened on.

    Args:
        tcp_address: Where to listen, "tcp://host:port" or "tcp://host:first-last".
        advertise: Address of this host that peers are told; None for the host in `tcp_address`.
        rdma: Name of the RDMA device to use, None for the one that fits, "off" for none.
        tls: For chunks by TLS, at all nodes of the job alike; then there is no RDMA, which would go around it.
        tell: Called with the TCP address of a peer and how its chunks come, and why, whenever that changes; by the
            thread that fetches.

    Attributes:
        offer: To be told to peers.
        reason_against_rdma: Why this node does without RDMA; None where it has it.
        rdma_device: Name of its device; "" where it does without.
    """

    def __init__(
        self,
        secret: JobSecret,
        *,
        name: str,
        tcp_address: str = "tcp://127.0.0.1:0",
        advertise: str | None = None,
        has_shm: bool = True,
        rdma: str | None = None,
        tls: TlsIdentity | None = None,
        tell: Callable[[str, str], object] | None = None,
    ) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._avoided: dict[str, tuple[float, str]] = {}  # address -> until when, why
        self._said: dict[str, str] = {}
        with contextlib.ExitStack() as on_error:
            self._tcp = on_error.enter_context(TcpTransport(tcp_address, secret, name=name, tls=tls))
            self._shm: ShmTransport | None = None
            if has_shm:
                self._shm = on_error.enter_context(ShmTransport(addresses.new_unix("shm"), secret, name=name))
            bind, ports = addresses.parse_listen(tcp_address)
            host = advertise or bind
            if ports.first == ports.last:  # of a range, the next free port; else that port is taken by now
                ports = PortRange()
            self._verbs: VerbsTransport | None = None
            self.reason_against_rdma: str | None = None
            try:
                if tls is not None:
                    raise RdmaUnavailableError("chunks go by TLS (--tls-bulk), and RDMA would go around it")
                self._verbs = on_error.enter_context(
                    _verbs_transport(host, addresses.format_listen(bind, ports), secret, name=name, rdma=rdma)
                )
            except RdmaUnavailableError as error:
                self.reason_against_rdma = str(error)
                _log.info("%s does without RDMA: %s", name, error)
            self.rdma_device = "" if self._verbs is None else self._verbs.port.device
            self.endpoints = Endpoints(
                host=host_id(),
                tcp=addresses.format_tcp(host, addresses.parse_tcp(self._tcp.address)[1]),
                shm=None if self._shm is None else self._shm.address,
                verbs=None
                if self._verbs is None
                else addresses.format_tcp(host, addresses.parse_tcp(self._verbs.address)[1]),
            )
            on_error.pop_all()

    def register(self, memory: Memory) -> int:
        """Let peers read this memory; returns the number of the arena: 0, 1, ... in the order of registration. Register
        from one thread, so that every transport gives the same number. An arena that RDMA does not take (locked memory
        has limits) is fetched by tcp; peers that ask for it by RDMA are told why."""
        (number,) = {transport.register(memory) for transport in self._socket_transports()}
        if self._verbs is not None:
            try:
                self._verbs.register(memory)
            except (CapacityError, RdmaUnavailableError) as error:
                _log.warning("arena %d goes by tcp: %s", number, error)
        return number

    def route(self, theirs: Endpoints) -> Route:
        """The best way to a peer."""
        route = self._choose(theirs)
        with self._lock:
            is_news = self._said.get(theirs.tcp) != route.reason
            self._said[theirs.tcp] = route.reason
        if is_news:
            _log.info("chunks of %s come by %s", theirs.tcp, route.reason)
            if self._tell is not None:
                self._tell(theirs.tcp, route.reason)
        return route

    def avoid(self, route: Route, error: Exception) -> None:
        """A route has failed: the next ones to this peer are its fallback, for a while."""
        # Not the error itself: a handler that keeps the record would keep the slots that its traceback knows.
        _log.warning("RDMA to %s failed, tcp takes over for %g s: %s", route.address, AVOID_S, str(error))
        with self._lock:
            self._avoided[route.address] = (time.monotonic() + AVOID_S, str(error))

    def disconnect(self, theirs: Endpoints) -> None:
        """Drop all connections to a peer; fetches from it that are under way end with `PeerLostError`."""
        self._tcp.disconnect(theirs.tcp)
        if self._shm is not None and theirs.shm is not None:
            self._shm.disconnect(theirs.shm)
        if self._verbs is not None and theirs.verbs is not None:
            self._verbs.disconnect(theirs.verbs)
        with self._lock:  # what was found out about it is not true of its next life
            self._said.pop(theirs.tcp, None)
            self._avoided.pop(theirs.verbs or "", None)

    def close(self) -> None:
        """End all transports and give the registered memory up. May be called again."""
        for transport in self._socket_transports():
            transport.close()
        if self._verbs is not None:
            self._verbs.close()

    def _socket_transports(self) -> Iterator[TcpTransport | ShmTransport]:
        yield self._tcp
        if self._shm is not None:
            yield self._shm

    def _choose(self, theirs: Endpoints) -> Route:
        reason = self._reason_against_shm(theirs)
        if reason is None and self._shm is not None and theirs.shm is not None:
            return Route(transport=self._shm, address=theirs.shm, reason="shm: both agents are on one host")
        if self._verbs is None:
            return Route(transport=self._tcp, address=theirs.tcp, reason=f"tcp: {reason}")
        if theirs.verbs is None:
            return Route(transport=self._tcp, address=theirs.tcp, reason="tcp: the peer offers no RDMA")
        with self._lock:
            until_s, failure = self._avoided.get(theirs.verbs, (0.0, ""))
        if time.monotonic() < until_s:
            return Route(transport=self._tcp, address=theirs.tcp, reason=f"tcp: RDMA has just failed: {failure}")
        return Route(
            transport=self._verbs,
            address=theirs.verbs,
            reason=f"verbs: both agents have RDMA, this one {self._verbs.port.device}",
            fallback=Route(
                transport=self._tcp,
                address=theirs.tcp,
                reason="tcp: RDMA failed",
                timeout_s=FALLBACK_TIMEOUT_S,
            ),
        )

    def _reason_against_shm(self, theirs: Endpoints) -> str | None:
        if self._shm is None:
            return "this agent does without shm"
        if theirs.shm is None:
            return "the peer offers no shm"
        if theirs.host != self.endpoints.host:
            return "the peer is on another host, or in a container with a network of its own"
        return None


def _verbs_transport(host: str, address: str, secret: JobSecret, *, name: str, rdma: str | None) -> VerbsTransport:
    """The RDMA of this node. Raises RdmaUnavailableError when it has none, or shall not use it."""
    if rdma == RDMA_OFF:
        raise RdmaUnavailableError("it is switched off (CHICLE_RDMA=off)")
    if addresses.is_loopback(host):
        raise RdmaUnavailableError(f"its address is {host}, where only agents of this host find it")
    return VerbsTransport(address, secret, name=name, host=host, device=rdma)


def host_id() -> str:
    """Tells apart where names of Unix sockets mean different things. It is the same for all processes of one network
    namespace of a kernel, from one start of the machine to the next: containers share a kernel, and most often not
    their network."""
    try:
        return f"{BOOT_ID.read_text(encoding='ascii').strip()}/{os.stat(NETWORK).st_ino}"
    except OSError:
        return secrets.token_hex(16)  # no proc file system: equal to no other host
