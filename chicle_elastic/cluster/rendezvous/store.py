"""The rendezvous store: torch's TCPStore, served by the driver or an anchor process and never by a node.

Nodes come and go, and joining nodes find the job through the store. So the driver (or `--store-only`) keeps a
`StoreServer`, and every agent connects to it (`StoreConnection`). A job that runs does not need it.

Each agent serves a second store, the *round store*: in it the tasks of the rounds in which the agent is the first
member exchange the addresses of their process group. So a change among the members needs no process beside them.

A store has no access control: any process that reaches its port can read and write it. It holds nothing secret,
agents accept signed values only (`signed_value`), and it listens on the given address only, not on all as torch does.
One exception: a name of this host that resolves to loopback addresses only, as that of a Debian or Ubuntu host does in
its own /etc/hosts. Other hosts know it by another address, so the store then listens on all.
"""

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from torch.distributed import DistError, TCPStore
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from chicle_elastic.cluster.rendezvous.errors import StoreUnreachableError
from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.collectives.own_sockets import connections_to, endpoints_of, shut_down
from chicle_elastic.settings import Settings
from chicle_elastic.transports.addresses import PortRange, format_listen, listen_tcp
from chicle_elastic.transports.secret import JobSecret

DEFAULT_PORT = 29400
LISTENS_KEY = "chicle-store/listens-on"
"""Where a store says which address it listens on (`own_address`)."""
OPERATION_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0
RETRY_S = 0.05
ATTEMPT_S = 2.0
BACKLOG = 1024


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of "host:port"; the port is torchrun's 29400 when it is left out.

    Raises:
        UsageError: It is no endpoint.
    """
    try:
        if not endpoint.strip():
            raise ValueError("it is empty")
        return parse_rendezvous_endpoint(endpoint, DEFAULT_PORT)
    except ValueError as error:
        raise UsageError(f"the rendezvous endpoint {endpoint!r} is not HOST:PORT: {error}") from None


def format_endpoint(host: str, port: int) -> str:
    """ "host:port", IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(endpoint: str) -> bool:
    """Whether only this host can reach the endpoint."""
    host, _ = parse_endpoint(endpoint)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class StoreServer:
    """A server of the store in this process; it runs until `close`, also as a context manager.

    Args:
        endpoint: Address to listen on, and where nodes connect. The host "::" is that of IPv4 as well. Port 0 takes a
            free one.
        bind: Address to listen on when it is another one.
        ports: Where to take a free port from when the endpoint has port 0.

    Attributes:
        listens: The address that it listens on.

    Raises:
        UsageError: The address cannot be listened on.
    """

    def __init__(
        self, endpoint: str = "127.0.0.1:0", *, bind: str | None = None, ports: PortRange | None = None
    ) -> None:
        host, port = parse_endpoint(endpoint)
        try:
            self.listens = bind or _address_to_listen(host, port)
            listen_on = ports if ports is not None and port == 0 else PortRange(port, port)
            listener = listen_tcp(format_listen(self.listens, listen_on), backlog=BACKLOG)
        except (OSError, UsageError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            reason = getattr(cause, "strerror", None) or error
            raise UsageError(
                f"the rendezvous store cannot listen on {endpoint} ({reason}); choose an address of this host and a "
                f"free port{'' if ports is None else f', or widen the range {ports}'}"
            ) from error
        self._host, self._port = host, listener.getsockname()[1]
        with listener:
            self._server: TCPStore | None = TCPStore(
                _own_way(self.listens),
                self._port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=OPERATION_TIMEOUT_S),
                master_listen_fd=listener.fileno(),
            )
            listener.detach()  # belongs to the server now
        self._server.set(LISTENS_KEY, self.listens)

    @property
    def endpoint(self) -> str:
        """Where to connect, "host:port"."""
        return format_endpoint(self._host, self._port)

    def prune(self, run_id: str, *, before: int) -> None:
        """Delete the keys of all rounds before a number (`prune_rounds`), if this process still reaches its server.

        It uses the connection that torch's server has to itself. If that was cut, the keys stay: some hundred bytes per
        round and member, which harm no later round.
        """
        with contextlib.suppress(DistError):
            if self._server is not None:
                prune_rounds(self._server, run_id, before=before)

    def close(self) -> None:
        """End the server; every connection to it breaks."""
        self._server = None

    def __enter__(self) -> "StoreServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect_store(endpoint: str, *, timeout_s: float = CONNECT_TIMEOUT_S, is_awaited: bool = True) -> TCPStore:
    """A connection to the store, as a client whatever the address.

    A connection does one operation at a time: a thread that blocks in one needs a connection of its own. Connect once
    per process and not once per round: torch asks the name server for the name of each address that it connects to,
    and waits for the answer (5 s when it is lost).

    Args:
        endpoint: "host:port".
        timeout_s: How long the store may take to appear and to answer.
        is_awaited: Whether to wait for a process to listen there; otherwise one attempt is made, of two seconds.

    Raises:
        UsageError: The endpoint is malformed.
        StoreUnreachableError: No process answers there, or one that is no store.
    """
    host, port = parse_endpoint(endpoint)
    deadline_s = time.monotonic() + timeout_s
    if is_awaited:
        _await_listener(host, port, endpoint, timeout_s, deadline_s)
    else:
        _await_listener(host, port, endpoint, min(timeout_s, ATTEMPT_S), time.monotonic(), attempt_s=ATTEMPT_S)
    answer: list[TCPStore | Exception] = []

    def connect() -> None:
        try:
            timeout = timedelta(seconds=max(0.1, deadline_s - time.monotonic()))
            store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
            store.set_timeout(timedelta(seconds=OPERATION_TIMEOUT_S))
            answer.append(store)
        except Exception as error:
            answer.append(error)

    # torch waits for ever for the greeting of a process that listens and sends nothing; hence a thread.
    thread = threading.Thread(target=connect, name="chicle-store-connect", daemon=True)
    thread.start()
    thread.join(max(0.1, deadline_s - time.monotonic()))
    if answer and isinstance(answer[0], TCPStore):
        return answer[0]
    shut_down(connections_to(endpoints_of(host, port)))  # or the thread would wait for as long as that process runs
    reason = str(answer[0]).partition("\n")[0] if answer else f"no answer within {timeout_s:g} s"
    raise StoreUnreachableError(
        f"what listens at {endpoint} does not answer as a rendezvous store ({reason}); check --rdzv-endpoint"
    )


def open_secret(secret_file: Path | None, *, endpoint: str) -> JobSecret:
    """The job secret; made when the file does not exist and the store is on this host.

    Without a file it is that of the environment, CHICLE_SECRET.

    With the store elsewhere, a new secret could only be a wrong one.

    Raises:
        UsageError: The file does not exist and may not be made, or it cannot be used.
    """
    if secret_file is None:
        return JobSecret.from_text(Settings.from_environment().secret or "", where="CHICLE_SECRET")
    if is_loopback(endpoint):
        return JobSecret.load_or_create(secret_file)
    return JobSecret.load(secret_file)


def address_towards(endpoint: str) -> str:
    """Address of this host on the route to the store, which other hosts that reach the store can reach.

    Sends nothing.

    Raises:
        UsageError: The endpoint is malformed, or its host has no address.
    """
    host, port = parse_endpoint(endpoint)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UsageError(
            f"no route from this host to the rendezvous store at {endpoint} ({error.strerror or error}); check the "
            "host name, or give --advertise"
        ) from error


def round_prefix(run_id: str, round: int) -> str:
    """Prefix of the keys of a round in the store, those of its process group included."""
    return f"chicle/{run_id}/{round}/"


def prune_rounds(store: TCPStore, run_id: str, *, before: int) -> int:
    """Delete the keys of all rounds before a number, so that the store does not grow with the rounds.

    Returns:
        Number of deleted keys.
    """
    prefix = f"chicle/{run_id}/"
    deleted = 0
    for key in store.list_keys():
        number = key[len(prefix) :].partition("/")[0] if key.startswith(prefix) else ""
        if number.isdecimal() and int(number) < before:
            deleted += store.delete_key(key)
    return deleted


@contextlib.contextmanager
def store_errors(endpoint: str) -> Iterator[None]:
    """Within this, torch's errors of a store that is gone become `StoreUnreachableError`."""
    try:
        yield
    except DistError as error:
        raise StoreUnreachableError(
            f"the rendezvous store at {endpoint} does not answer ({str(error).partition(chr(10))[0]}); no node can "
            "join without it: check the driver or the --store-only process, which serves it, and start it again there"
        ) from error


def _address_to_listen(host: str, port: int) -> str:
    """The address of a host name or number; that of all addresses for a name that only this host resolves so."""
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    is_number = host == found[0]
    is_local = host == "localhost" or host.endswith(".localhost")
    if is_number or is_local or not all(ipaddress.ip_address(address).is_loopback for address in found):
        return found[0]
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def _own_way(listens: str) -> str:
    """How this process reaches its own store."""
    return {"::": "127.0.0.1" if socket.has_dualstack_ipv6() else "::1", "0.0.0.0": "127.0.0.1"}.get(listens, listens)


def _await_listener(
    host: str, port: int, endpoint: str, timeout_s: float, deadline_s: float, *, attempt_s: float = 0.1
) -> None:
    """Retry until a process listens there: torch's own retries print a page of C++ frames each."""
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            with socket.create_connection((host, port), timeout=max(attempt_s, left_s)):
                return
        except OSError as error:
            if left_s <= 0 or isinstance(error, socket.gaierror):
                raise StoreUnreachableError(
                    f"no rendezvous store at {endpoint} within {timeout_s:g} s ({error.strerror or error}); start it "
                    f"first: python -m chicle_elastic.launch --store-only --rdzv-endpoint {endpoint}"
                ) from error
            time.sleep(RETRY_S)
