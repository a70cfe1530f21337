"""The rendezvous store: torch's TCPStore, served by the driver or an anchor process and never by a node.

Nodes come and go, and the job would end with the one that serves the store. So whoever drives the job keeps a
`StoreHost`, and everybody else connects (`connect_store`).

The store itself knows no passwords: whoever reaches its port can read and write it. It holds nothing secret, what is
believed carries a signature (`signed_cell`), and it listens on the given address only, not on all as torch does.
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

from chicle_elastic.cluster.rendezvous_errors import StoreLostError
from chicle_elastic.errors import UsageError
from chicle_elastic.transports.secret import JobSecret

DEFAULT_PORT = 29400
OPERATION_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0
RETRY_S = 0.05


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


class StoreHost:
    """A server of the store in this process; lives until `close`, also as a context manager.

    Args:
        endpoint: Address to listen on. Port 0 takes a free one.

    Raises:
        UsageError: The address cannot be listened on.
    """

    def __init__(self, endpoint: str = "127.0.0.1:0") -> None:
        host, port = parse_endpoint(endpoint)
        try:
            listener = _listen(host, port)
        except OSError as error:
            raise UsageError(
                f"the rendezvous store cannot listen on {endpoint} ({error.strerror or error}); choose an address of "
                "this host and a free port"
            ) from error
        self._host, self._port = host, listener.getsockname()[1]
        with listener:
            self._server: TCPStore | None = TCPStore(
                host,
                self._port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=OPERATION_TIMEOUT_S),
                master_listen_fd=listener.fileno(),
            )
            listener.detach()  # belongs to the server now

    @property
    def endpoint(self) -> str:
        """Where to connect, "host:port"."""
        return format_endpoint(self._host, self._port)

    def close(self) -> None:
        """End the server; every connection to it breaks."""
        self._server = None

    def __enter__(self) -> "StoreHost":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect_store(endpoint: str, *, timeout_s: float = CONNECT_TIMEOUT_S) -> TCPStore:
    """A connection to the store, as a client whatever the address.

    A connection does one operation at a time: whoever blocks in one needs a connection of its own. Connect once per
    process and not once per round: torch asks the name server for the name of each address that it connects to, and
    waits for the answer (5 s when it is lost).

    Args:
        endpoint: "host:port".
        timeout_s: How long the store may take to appear and to answer.

    Raises:
        UsageError: The endpoint is none.
        StoreLostError: Nobody answers there, or something that is no store.
    """
    host, port = parse_endpoint(endpoint)
    deadline_s = time.monotonic() + timeout_s
    _await_listener(host, port, endpoint, timeout_s, deadline_s)
    answer: list[TCPStore | Exception] = []

    def connect() -> None:
        try:
            timeout = timedelta(seconds=max(0.1, deadline_s - time.monotonic()))
            store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
            store.set_timeout(timedelta(seconds=OPERATION_TIMEOUT_S))
            answer.append(store)
        except Exception as error:
            answer.append(error)

    # torch waits for ever for the greeting of something that listens and says nothing; hence a thread.
    thread = threading.Thread(target=connect, name="chicle-store-connect", daemon=True)
    thread.start()
    thread.join(max(0.1, deadline_s - time.monotonic()))
    if answer and isinstance(answer[0], TCPStore):
        return answer[0]
    reason = str(answer[0]).partition("\n")[0] if answer else f"no answer within {timeout_s:g} s"
    raise StoreLostError(
        f"what listens at {endpoint} does not answer as a rendezvous store ({reason}); check --rdzv-endpoint"
    )


def open_secret(secret_file: Path, *, endpoint: str) -> JobSecret:
    """The job secret; made when the file does not exist and the store is on this host.

    With the store elsewhere, a new secret could only be a wrong one.

    Raises:
        UsageError: There is no file and none may be made, or it cannot be used.
    """
    if is_loopback(endpoint):
        return JobSecret.load_or_create(secret_file)
    return JobSecret.load(secret_file)


def address_towards(endpoint: str) -> str:
    """Address of this host on the way to the store, which is one that others who reach the store can reach.

    Nothing is sent.

    Raises:
        UsageError: The endpoint is none, or its host has no address.
    """
    host, port = parse_endpoint(endpoint)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UsageError(
            f"no way from this host to the rendezvous store at {endpoint} ({error.strerror or error}); check the "
            "host name, or say --local-addr"
        ) from error


def round_prefix(run_id: str, round: int) -> str:
    """Where keys of a round lie in the store, those of its process group included."""
    return f"chicle/{run_id}/{round}/"


def prune_rounds(store: TCPStore, run_id: str, *, before: int) -> int:
    """Delete the keys of all rounds before a number, so that the store does not grow with the rounds.

    Returns:
        How many there were.
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
    """Within this, torch's errors of a lost store become `StoreLostError`."""
    try:
        yield
    except DistError as error:
        raise StoreLostError(
            f"the rendezvous store at {endpoint} is gone ({str(error).partition(chr(10))[0]}); the job cannot change "
            "its members without it: look at the driver, which serves it"
        ) from error


def _listen(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family, backlog=1024)


def _await_listener(host: str, port: int, endpoint: str, timeout_s: float, deadline_s: float) -> None:
    """Knock until somebody listens: torch's own retries print a page of C++ frames each."""
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            with socket.create_connection((host, port), timeout=max(0.1, left_s)):
                return
        except OSError as error:
            if left_s <= 0 or isinstance(error, socket.gaierror):
                raise StoreLostError(
                    f"no rendezvous store at {endpoint} within {timeout_s:g} s ({error.strerror or error}); start it "
                    f"first: python -m chicle_elastic.launch --store-only --rdzv-endpoint {endpoint}"
                ) from error
            time.sleep(RETRY_S)
