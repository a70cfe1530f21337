"""How far the lead has told each agent the log."""

from collections.abc import Iterable

from chicle_elastic.cluster.log import Log
from chicle_elastic.cluster.log_messages import Append, Install
from chicle_elastic.ids import NodeId

MOST_TOLD = 64
"""Entries that a newcomer is told; of a longer log, what it has come to. To fold an entry takes 0.1 ms, often more."""


class Followers:
    """What was sent to whom.

    Args:
        log: Of the lead.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._sent: dict[NodeId, int] = {}

    def know(self, node: NodeId, length: int) -> None:
        """A node has so many entries."""
        self._sent[node] = length

    def have_all(self, nodes: Iterable[NodeId]) -> None:
        """These nodes append the last entries by themselves; those that were never told anything do not."""
        for node in nodes:
            if node in self._sent:
                self._sent[node] = len(self._log)

    def forget(self, node: NodeId) -> None:
        """A node is gone."""
        self._sent.pop(node, None)

    def lacks(self, node: NodeId) -> bool:
        """Whether there is something to tell a node."""
        return self._sent.get(node, 0) < len(self._log)

    def tell(self, node: NodeId, life: str, *, term: int) -> Append | Install:
        """What a node lacks, from now on known to it: entries, or the state where they are many or not kept.

        A life that takes part in the job may have orders in entries that it lacks, and needs those.
        """
        base = self._sent.get(node, 0)
        self._sent[node] = len(self._log)
        is_long = len(self._log) - base > MOST_TOLD and life not in self._log.lives.values()
        if is_long or base < self._log.start:
            return Install(term=term, state=self._log.state())
        return Append(term=term, base=base, entries=self._log.entries_from(base))
