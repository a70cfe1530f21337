"""Rendezvous handlers on a real store, and what they do in threads of their own."""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.elastic.rendezvous import RendezvousInfo

from chicle_elastic.cluster.rendezvous.errors import StoreUnreachableError
from chicle_elastic.cluster.rendezvous.handler import ChicleRendezvousHandler, RendezvousSettings
from chicle_elastic.cluster.rendezvous.job_entry import JobEntry
from chicle_elastic.cluster.rendezvous.store import StoreServer, connect_store
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.ids import NodeId
from chicle_elastic.transports.secret import JobSecret
from tests.timeouts import comes, timeout_s

RUN_ID = "job"
STATE_KEY = f"chicle/{RUN_ID}/rendezvous"


class Party:
    """A store, a secret, and handlers that use them."""

    def __init__(self, host: StoreServer) -> None:
        self.host = host
        self.secret = JobSecret.generate()
        self.store = connect_store(host.endpoint)

    def handler(
        self,
        node: str,
        *,
        secret: JobSecret | None = None,
        min_nodes: int = 1,
        max_nodes: int = 8,
        last_call_s: float = 5.0,
        join_timeout_s: float = 30.0,
    ) -> ChicleRendezvousHandler:
        """A handler with a connection of its own."""
        store = StoreConnection(self.host.endpoint).connect()
        entry = JobEntry(
            store,
            run_id=RUN_ID,
            node=NodeId(node),
            secret=secret or self.secret,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
        )
        settings = RendezvousSettings(last_call_s=last_call_s, join_timeout_s=timeout_s(join_timeout_s))
        return ChicleRendezvousHandler(entry, settings)

    def handlers(self, count: int) -> list[ChicleRendezvousHandler]:
        """n0, n1, ...; a free round of them waits for all of them."""
        return [self.handler(f"n{index}", min_nodes=count, max_nodes=count) for index in range(count)]


@contextmanager
def party() -> Iterator[Party]:
    """A store for one test."""
    with StoreServer() as host:
        yield Party(host)


def start(handler: ChicleRendezvousHandler) -> "Future[RendezvousInfo]":
    """`next_rendezvous` in a thread of its own."""
    future: Future[RendezvousInfo] = Future()

    def work() -> None:
        try:
            future.set_result(handler.next_rendezvous())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name=f"rendezvous-{handler.entry.node}", daemon=True).start()
    return future


def wait_for_a_place(endpoint: str, secret_file: Path) -> None:
    """Be n2, which comes late, in a process of its own."""
    entry = JobEntry.open(endpoint, run_id=RUN_ID, node=NodeId("n2"), secret_file=secret_file, min_nodes=2, max_nodes=8)
    ChicleRendezvousHandler(entry, RendezvousSettings()).next_rendezvous()


def results(futures: "Iterable[Future[RendezvousInfo]]") -> list[RendezvousInfo]:
    """Of all of them; the first error otherwise."""
    return [future.result(timeout_s(20)) for future in futures]


def join(handlers: Iterable[ChicleRendezvousHandler]) -> list[RendezvousInfo]:
    """A free round of these handlers, when it is complete."""
    return results([start(handler) for handler in handlers])


def wait_for(connection: StoreConnection) -> None:
    """Return once an operation succeeds again."""

    def succeeds() -> bool:
        try:
            connection.compare_set("key", "", "")
        except StoreUnreachableError:
            return False
        return True

    assert comes(succeeds, 20)
