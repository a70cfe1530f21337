"""What a job and its resource manager tell each other through the rendezvous store, where the manager serves the store.

    chicle-resources/request    {"number", "total", "reason"}: what the job wants; the highest number holds
    chicle-resources/scale      {"number", "total"}: what a person wants, whatever the job has asked for
    chicle-resources/notice     {"number", "nodes"}: a person wants these nodes to leave, all so far
    chicle-resources/offer      {"number", "available", "price", "text"}: what the manager could give
    chicle-resources/finished   {"reason", "has_failed"}: the job is over and needs no nodes any more

All of them are signed with the job secret (`signed_value`). A value that is not signed, or not of this form, counts as
none.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from chicle_elastic.cluster.rendezvous.signed_value import SignedValue
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import PeerLostError
from chicle_elastic.transports.secret import JobSecret

PREFIX = "chicle-resources/"
ATTEMPTS = 20  # writers of one key that may come before another one


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """So many nodes are wanted."""

    number: int  # of the request, counted up by those who make them
    total: int  # nodes, >= 1
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """What a resource manager could give; fields as of `events.ResourcesOffered`."""

    number: int
    available: int | None = None
    price: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class NodeNotice:
    """Nodes that are to leave."""

    number: int  # how many there are
    nodes: tuple[str, ...]  # their names, in the order of the notices


@dataclass(frozen=True, slots=True)
class Finished:
    """The job is over."""

    reason: str
    has_failed: bool = False

    @property
    def number(self) -> int:
        """Return 1 for a failure, which replaces a success: a script may fail after the job."""
        return int(self.has_failed)


class ResourceBoard:
    """See the top of the module. Every method is one or two round trips, so an agent calls it in a worker."""

    def __init__(self, store: StoreConnection, *, secret: JobSecret) -> None:
        self._endpoint = store.endpoint
        self._values = {
            name: SignedValue(store, key=PREFIX + name, secret=secret)
            for name in ("request", "scale", "notice", "offer", "finished")
        }

    def request(self) -> NodeRequest | None:
        """What the job wants; None for nothing yet."""
        return self._read("request", NodeRequest)

    def scale(self) -> NodeRequest | None:
        """What a person wants; None for nothing yet."""
        return self._read("scale", NodeRequest)

    def notice(self) -> NodeNotice | None:
        """The nodes that a person has given notice; None for none yet."""
        return self._read("notice", NodeNotice)

    def offer(self) -> NodeOffer | None:
        """What the manager could give; None where it has said nothing."""
        return self._read("offer", NodeOffer)

    def finished(self) -> Finished | None:
        """Why the job is over; None while it is not."""
        return self._read("finished", Finished)

    def put_request(self, request: NodeRequest) -> None:
        """Write what the job wants, unless the board has a newer request."""
        self._put("request", NodeRequest, request)

    def put_offer(self, offer: NodeOffer) -> None:
        """Write what the manager could give."""
        self._put("offer", NodeOffer, offer)

    def put_scale(self, total: int) -> None:
        """Write what a person wants."""
        before = self.scale()
        self._put("scale", NodeRequest, NodeRequest(1 if before is None else before.number + 1, total))

    def put_notice(self, node: str) -> None:
        """Give a node notice."""
        before = self.notice()
        nodes = (*(() if before is None else before.nodes), node)
        self._put("notice", NodeNotice, NodeNotice(len(nodes), nodes))

    def put_finished(self, finished: Finished) -> None:
        """Write that the job is over; the first that says so holds, unless a later one says that something failed."""
        self._put("finished", Finished, finished)

    # How.

    def _read(self, name: str, kind: Any) -> Any:
        return _converted(self._values[name].read().value, kind)

    def _put(self, name: str, kind: Any, value: Any) -> None:
        signed, written = self._values[name], msgspec.to_builtins(value)
        seen = signed.read()
        for _ in range(ATTEMPTS):
            there = _converted(seen.value, kind)
            if there is not None and getattr(there, "number", 0) >= getattr(value, "number", 0):
                return
            seen = signed.swap(seen, written)
            if signed.is_in_place(seen, written):
                return
        raise PeerLostError(f"the store at {self._endpoint} lets others write {signed.key!r} first, {ATTEMPTS} times")


def _converted(value: Any, kind: Any) -> Any:
    try:
        return None if value is None else msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None
