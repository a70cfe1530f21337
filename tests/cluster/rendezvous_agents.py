"""Rendezvous handlers on a real store, and what they do in threads of their own."""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from torch.distributed.elastic.rendezvous import RendezvousInfo

from chicle_elastic.cluster.rendezvous import ChicleRendezvousHandler, RendezvousSettings
from chicle_elastic.cluster.store_host import StoreHost, connect_store
from chicle_elastic.ids import NodeId
from chicle_elastic.transports.secret import JobSecret
from tests.timeouts import timeout_s

RUN_ID = "job"
STATE_KEY = f"chicle/{RUN_ID}/rendezvous"


class Party:
    """A store, a secret, and handlers that use them."""

    def __init__(self, host: StoreHost) -> None:
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
        return ChicleRendezvousHandler(
            connect_store(self.host.endpoint),
            endpoint=self.host.endpoint,
            run_id=RUN_ID,
            node=NodeId(node),
            secret=secret or self.secret,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            settings=RendezvousSettings(last_call_s=last_call_s, join_timeout_s=timeout_s(join_timeout_s)),
        )

    def handlers(self, count: int) -> list[ChicleRendezvousHandler]:
        """n0, n1, ..."""
        return [self.handler(f"n{index}") for index in range(count)]


@contextmanager
def party() -> Iterator[Party]:
    """A store for one test."""
    with StoreHost() as host:
        yield Party(host)


def start(handler: ChicleRendezvousHandler) -> "Future[RendezvousInfo]":
    """`next_rendezvous` in a thread of its own."""
    future: Future[RendezvousInfo] = Future()

    def work() -> None:
        try:
            future.set_result(handler.next_rendezvous())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name=f"rendezvous-{handler.node}", daemon=True).start()
    return future


def call(
    handlers: Iterable[ChicleRendezvousHandler],
    round: int,
    *,
    members: tuple[str, ...] | None = None,
    patience_s: float = 10.0,
) -> "list[Future[RendezvousInfo]]":
    """Call a round at these handlers, by default for just them."""
    handlers = list(handlers)
    names = tuple(NodeId(name) for name in members) if members else tuple(handler.node for handler in handlers)
    for handler in handlers:
        handler.expect(round=round, members=names, timeout_s=timeout_s(patience_s))
    return [start(handler) for handler in handlers]


def results(futures: "Iterable[Future[RendezvousInfo]]") -> list[RendezvousInfo]:
    """Of all of them; the first error otherwise."""
    return [future.result(timeout_s(20)) for future in futures]


def join(handlers: Iterable[ChicleRendezvousHandler], round: int) -> list[RendezvousInfo]:
    """Call a round for these handlers and wait until it is complete."""
    return results(call(handlers, round))
