"""What followers report to the leader of links that are down, and which node is to be declared lost for it.

If two followers cannot reach each other, no collective operation of the two ends, and the leader, which reaches both,
would never know.
"""

from collections import Counter
from collections.abc import Mapping

from chicle_elastic.cluster.consensus.log import Log
from chicle_elastic.cluster.consensus.messages import LinkReport
from chicle_elastic.cluster.consensus.reachability import Reachability
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling.events import Event, NodeJoined, RoundFormed
from chicle_elastic.scheduling.scheduler import State

STALL_S = 1.0  # how long a report must stand, and the log must not have grown, before a node is declared lost


class LinkReporter:
    """What a follower has reported to the leader of a term."""

    def __init__(self) -> None:
        self._term = 0
        self._last = LinkReport(unreached=())

    def report(self, term: int, unreached: tuple[str, ...], left_out_of: int) -> LinkReport | None:
        """The next report, if there is anything to say.

        Args:
            term: Of the leader; each one is told from the start.
            unreached: Incarnations of the present nodes that this one cannot reach.
            left_out_of: The round that is called without this node.
        """
        nothing = LinkReport(unreached=())
        before = self._last if term == self._term else nothing
        self._term, self._last = term, LinkReport(unreached=unreached, left_out_of=left_out_of)
        return self._last if before != nothing or self._last != nothing else None


class LinkReports:
    """The latest report of each follower, for the leader."""

    def __init__(self, leader: NodeId, log: Log, reachability: Reachability) -> None:
        self._leader, self._log, self._reachability = leader, log, reachability
        self._reports: dict[NodeId, tuple[float, frozenset[str]]] = {}
        self._left_out: dict[NodeId, int] = {}
        self._length = -1
        self._grown_s = 0.0

    def clear(self) -> None:
        """This node leads a new term: all followers report again."""
        self._reports.clear()
        self._left_out.clear()

    def add(self, reporter: NodeId, report: LinkReport, now: float) -> None:
        """A follower has reported."""
        unreached = frozenset(report.unreached)
        since_s, before = self._reports.get(reporter, (now, unreached))
        self._reports[reporter] = (since_s if unreached & before else now, unreached)
        self._left_out[reporter] = report.left_out_of

    def awaits(self, event: Event) -> bool:
        """Say whether an event has no place yet. A round is formed when those that it leaves out know of it; nobody
        waits for a call that was given up. Nobody joins that has no vote while the store may not have the term."""
        if isinstance(event, NodeJoined) and not self._reachability.is_stored:
            return not self._reachability.hears(self._log.voters.get(event.node, ""))
        called = self._log.called[0] if self._log.scheduler.state is State.FORMING else 0
        if not isinstance(event, RoundFormed) or event.round != called:
            return False
        return any(
            node not in (self._leader, *event.members)
            and self._reachability.hears(life)
            and life not in self._reachability.released
            and self._left_out.get(node) != event.round
            for node, life in self._log.electorate.items()
        )

    def victim(self, peers: Mapping[NodeId, str], now: float) -> NodeId | None:
        """The node that the most links are down to, if links are down between peers of the leader and the log stands;
        never the leader."""
        if len(self._log) != self._length:
            self._length, self._grown_s = len(self._log), now
        linked = set(peers.values())
        num_down: Counter[NodeId] = Counter()
        for reporter, (since_s, unreached) in self._reports.items():
            if now - since_s < STALL_S or reporter not in self._log.lives or reporter not in peers:
                continue
            for node, life in self._log.lives.items():
                if life in unreached and life in linked:
                    num_down.update((reporter, node))
        del num_down[self._leader]
        if not num_down or now - self._grown_s < STALL_S:
            return None
        order = self._log.present
        return max(num_down, key=lambda node: (num_down[node], order.index(node)))
