"""Stands between a job and its resource manager: which nodes the job has of it, and what is new.

A manager may be code of the user, or speak for another system. What it says that cannot be is left out, with a line
that says so; one that raises is not asked again. The job goes on with the nodes that it has.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from chicle_elastic.ids import NodeId
from chicle_elastic.resources.managers import Assigned, ResourceManager, Revoked
from chicle_elastic.values import ResourceOffer

PATIENCE_S = 60.0
"""After so long a request that is not fulfilled, and that the last offer would cover, is called forgotten."""


@dataclass(slots=True)
class ResourceNews:
    """What is new, in the order in which it is to be carried out."""

    revoked: list[Revoked] = field(default_factory=list)  # nodes of the job that have to leave
    assigned: list[NodeId] = field(default_factory=list)  # nodes that the job has from now on
    offer: ResourceOffer | None = None  # another offer than before; None for the same
    # what a person should know: a denied request, nonsense that was left out
    lines: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.revoked or self.assigned or self.offer is not None or self.lines)


class ManagedNodes:
    """See the top of the module."""

    def __init__(self, manager: ResourceManager) -> None:
        self.wanted: int | None = None  # nodes that the job has asked for; None where it takes what there is
        self.fault: str | None = None  # why the manager is not asked any more; None while it is
        self._manager = manager
        self._known: set[NodeId] = set()
        self._revoked: set[NodeId] = set()
        self._offer = ResourceOffer()
        self._news = ResourceNews()
        self._is_new = False
        self._requested_s: float | None = None

    def request(self, total: int, reason: str) -> None:
        """Hand a request of the job on."""
        if total != self.wanted:
            self.wanted, self._is_new, self._requested_s = total, True, None
            self._ask("request", lambda: self._manager.request(total, reason))

    def released(self, node: NodeId) -> None:
        """The job does not have the node any more."""
        self._known.discard(node)
        self._revoked.discard(node)
        self._ask("release", lambda: self._manager.release(node))

    def poll(self, now_s: float, nodes: Collection[NodeId]) -> ResourceNews:
        """Ask the manager what is new. `nodes`: those that the job has, and that stay."""
        self._known.update(nodes)
        said: list[object] = []
        self._ask("poll", lambda: said.extend(self._manager.poll(now_s)))
        offer, num_nodes = self._offer, len(nodes)
        news = self._news
        for each in said:
            if isinstance(each, Revoked):
                num_nodes -= self._revoke(each, news)
            elif isinstance(each, Assigned):
                num_nodes += self._assign(each, news, num_nodes)
            elif isinstance(each, ResourceOffer):
                offer = self._judged(each, news) or offer
            else:
                news.lines.append(
                    f"the resource manager said {each!r}, which is left out: it can assign, revoke and offer"
                )
        if offer != self._offer:
            self._offer = news.offer = offer
        self._judge_request(now_s, num_nodes, news)
        self._news = ResourceNews()
        return news

    # What it says.

    def _assign(self, said: Assigned, news: ResourceNews, num_nodes: int) -> int:
        node = said.node
        if not isinstance(node, str) or not node:
            news.lines.append(f"the resource manager assigned {node!r}, which is no name of a node; it is left out")
        elif node in self._known:
            news.lines.append(f"the resource manager assigned {node}, which the job has; it is left out")
        elif self.wanted is not None and num_nodes >= self.wanted:
            news.lines.append(
                f"the resource manager assigned {node}, which the job has not asked for ({self.wanted} wanted, "
                f"{num_nodes} here); it is given back"
            )
            self._ask("release", lambda: self._manager.release(node))
        else:
            self._known.add(node)
            news.assigned.append(node)
            return 1
        return 0

    def _revoke(self, said: Revoked, news: ResourceNews) -> int:
        node, grace_s = said.node, said.grace_s
        if node not in self._known:
            news.lines.append(f"the resource manager revoked {node}, which the job does not have; that is left out")
        elif not isinstance(grace_s, int | float) or not 0 <= grace_s < math.inf:
            news.lines.append(
                f"the resource manager revoked {node} within {grace_s!r} s, which cannot be; that is left out"
            )
        elif node not in self._revoked:
            self._revoked.add(node)
            if node in news.assigned:
                news.assigned.remove(node)
                self.released(node)
            else:
                news.revoked.append(said)
            return 1
        return 0

    def _judged(self, offer: ResourceOffer, news: ResourceNews) -> ResourceOffer | None:
        available, price = offer.available, offer.price
        is_count = available is None or (
            isinstance(available, int) and not isinstance(available, bool) and available >= 0
        )
        is_price = price is None or (isinstance(price, int | float) and 0 <= price < math.inf)
        if is_count and is_price:
            return offer
        news.lines.append(
            f"the resource manager offered {available!r} nodes at {price!r}, which cannot be; it is left out"
        )
        return None

    def _judge_request(self, now_s: float, num_nodes: int, news: ResourceNews) -> None:
        """Say that a request is denied, or forgotten; once each."""
        if self.wanted is None or num_nodes >= self.wanted or self.fault is not None:
            self._is_new, self._requested_s = False, None
            return
        available = self._offer.available
        missing = self.wanted - num_nodes
        if self._is_new:
            self._is_new, self._requested_s = False, now_s
            if available is not None and available < missing:
                more = f"{available} more" if available else "no more"
                news.lines.append(
                    f"{self.wanted} nodes are wanted and {num_nodes} here: the resource manager has {more} now, and "
                    "the job goes on with what it has"
                )
        elif self._requested_s is not None and now_s - self._requested_s > PATIENCE_S:
            if available is None or available > 0:
                news.lines.append(
                    f"{self.wanted} nodes were wanted {now_s - self._requested_s:.0f} s ago and {num_nodes} are here: "
                    "the resource manager has not assigned the others; the job goes on with what it has"
                )
            self._requested_s = None

    def _ask(self, what: str, call: Callable[[], None]) -> None:
        if self.fault is not None:
            return
        try:
            call()
        except Exception as error:  # it may be user code, and must not end the training
            self.fault = f"{what} raised {type(error).__name__}: {error}"
            self._news.lines.append(
                f"the resource manager is not asked any more: {self.fault}; the job goes on with the nodes that it has"
            )
