"""The rendezvous store: keys and values, served by the driver or an anchor process and never by a node.

Nodes come and go, and joining nodes find the job through the store. So the driver (or `--store-only`) keeps a
`StoreServer`, and every agent connects to it (`StoreConnection`). A job that runs does not need it.

Each agent serves a second store, the *round store*: in it the tasks of the rounds in which the agent is the first
member exchange the addresses of their process group. So a change among the members needs no process beside them.

A store has no access control: any process that reaches its port can read and write it. It holds nothing secret,
agents accept signed values only (`signed_value`), and it listens on the given address only.
One exception: a name of this host that resolves to loopback addresses only, as that of a Debian or Ubuntu host does in
its own /etc/hosts. Other hosts know it by another address, so the store then listens on all.
"""

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from chicle_elastic.closing import Closing
from chicle_elastic.cluster.rendezvous.errors import StoreUnreachableError
from chicle_elastic.errors import ChicleError, UsageError
from chicle_elastic.settings import Settings
from chicle_elastic.transports.addresses import MAX_PORT, PortRange, format_listen, is_loopback, listen_tcp
from chicle_elastic.transports.key_values import KeyValueClient, KeyValueServer
from chicle_elastic.transports.secret import JobSecret

DEFAULT_PORT = 29400
LISTENS_KEY = "chicle-store/listens-on"  # where a store says which address it listens on (`own_address`)
SETTLED_KEY = "chicle-store/has-settled"
"""What a store holds as soon as a job that has lost an earlier one has had the time to say that it lives."""
RESTORE_S = 3.0  # how long a leader may take to store its term in a store that was restarted
SETTLED_S = 2 * RESTORE_S  # after which nodes without the job begin one: those that paused with it come before
ENDPOINT = re.compile(r"(\[(?P<ipv6>[0-9A-Za-z:.%]+)\]|(?P<host>[\w.-]+))(:(?P<port>\d{1,5}))?", re.ASCII)
CONNECT_TIMEOUT_S = 10.0
RETRY_S = 0.05
ATTEMPT_S = 2.0
BACKLOG = 1024


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of "host:port"; the port is torchrun's 29400 when it is left out. Raises UsageError when it is no
    endpoint."""
    match = ENDPOINT.fullmatch(endpoint.strip())
    port = DEFAULT_PORT if match is None or match["port"] is None else int(match["port"])
    if match is None or port > MAX_PORT:
        raise UsageError(f"the rendezvous endpoint {endpoint!r} is not HOST:PORT; write 10.0.0.1:{DEFAULT_PORT}, say")
    return match["ipv6"] or match["host"], port


def format_endpoint(host: str, port: int) -> str:
    """ "host:port", IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class StoreServer(Closing):
    """A server of the store in this process; it runs until `close`, also as a context manager. Raises UsageError when
    the address cannot be listened on.

    Args:
        endpoint: Address to listen on, and where nodes connect. The host "::" is that of IPv4 as well. Port 0 takes a
            free one.
        bind: Address to listen on when it is another one.
        ports: Where to take a free port from when the endpoint has port 0.
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
        self._server = KeyValueServer(listener)
        self._server.values[LISTENS_KEY] = self.listens.encode()
        # Nobody can have known the address of a store that takes any free port.
        self._settling = threading.Timer(SETTLED_S if port else 0.0, self._settle)
        self._settling.daemon = True
        self._settling.start() if port else self._settle()

    def _settle(self) -> None:
        with self._server.lock:
            self._server.values[SETTLED_KEY] = b"yes"

    @property
    def endpoint(self) -> str:
        """Where to connect, "host:port"."""
        return format_endpoint(self._host, self._port)

    def prune(self, run_id: str, *, before: int) -> None:
        """Delete the keys of all rounds of a job before a number, so that the store does not grow with the rounds."""
        with self._server.lock:
            for key in keys_of_rounds(self._server.values, run_id, before=before):
                del self._server.values[key]

    def forget(self, run_id: str) -> None:
        """Delete all keys of a job."""
        with self._server.lock:
            for key in [key for key in self._server.values if f"/{run_id}/" in f"/{key}/"]:
                del self._server.values[key]

    def close(self) -> None:
        """End the server; every connection to it breaks."""
        self._settling.cancel()
        self._server.close()


def connect_store(endpoint: str, *, timeout_s: float = CONNECT_TIMEOUT_S, is_awaited: bool = True) -> KeyValueClient:
    """A connection to the store, as a client whatever the address. A connection does one operation at a time: a thread
    that waits for a key needs a connection of its own. Raises UsageError when the endpoint is malformed,
    StoreUnreachableError when no process answers there, or one that is no store.

    Args:
        is_awaited: Whether to wait for a process to listen there; otherwise one attempt is made, of two seconds.
    """
    host, port = parse_endpoint(endpoint)
    end_s = time.monotonic() + timeout_s
    while True:
        left_s = end_s - time.monotonic()
        try:
            client = KeyValueClient(host, port, connect_s=max(0.1, left_s) if is_awaited else min(timeout_s, ATTEMPT_S))
            break
        except OSError as error:
            if left_s <= 0 or not is_awaited or isinstance(error, socket.gaierror):
                raise StoreUnreachableError(
                    f"no rendezvous store at {endpoint} within {timeout_s:g} s ({error.strerror or error}); start it "
                    f"first: python -m chicle_elastic.launch --store-only --rdzv-endpoint {endpoint}"
                ) from error
            time.sleep(RETRY_S)
    operation_s, client.operation_s = client.operation_s, max(0.1, end_s - time.monotonic())
    try:
        client.get_all([])  # what listens there may be anything
    except ChicleError as error:
        raise StoreUnreachableError(
            f"what listens at {endpoint} does not answer as a rendezvous store ({error}); check --rdzv-endpoint"
        ) from error
    client.operation_s = operation_s
    return client


def open_secret(secret_file: Path | None, *, endpoint: str) -> JobSecret:
    """The job secret; made when the file does not exist and the store is on this host.

    Without a file it is that of the environment, CHICLE_SECRET.

    With the store elsewhere, a new secret could only be a wrong one. Raises UsageError when the file does not exist and
    may not be made, or it cannot be used.
    """
    if secret_file is None:
        return JobSecret.from_text(Settings.from_environment().secret or "", where="CHICLE_SECRET")
    if is_loopback(parse_endpoint(endpoint)[0]):
        return JobSecret.load_or_create(secret_file)
    return JobSecret.load(secret_file)


def address_towards(endpoint: str) -> str:
    """Address of this host on the route to the store, which other hosts that reach the store can reach. Sends nothing.
    Raises UsageError when the endpoint is malformed, or its host has no address."""
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


def keys_of_rounds(keys: Iterable[str], run_id: str, *, before: int) -> list[str]:
    """The keys of all rounds of a job before a number."""
    prefix = f"chicle/{run_id}/"
    numbers = ((key, key[len(prefix) :].partition("/")[0]) for key in keys if key.startswith(prefix))
    # Anybody can write keys, and Python makes no number of thousands of digits.
    return [key for key, number in numbers if number.isdecimal() and len(number) < 19 and int(number) < before]


def _address_to_listen(host: str, port: int) -> str:
    """The address of a host name or number; that of all addresses for a name that only this host resolves so."""
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    is_number = host == found[0]
    is_local = host == "localhost" or host.endswith(".localhost")
    if is_number or is_local or not all(ipaddress.ip_address(address).is_loopback for address in found):
        return found[0]
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
