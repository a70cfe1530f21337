"""How much of the log the leader has sent to each follower."""

from collections.abc import Iterable

from chicle_elastic.cluster.consensus.log import Log
from chicle_elastic.cluster.consensus.messages import Append, Install
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import codec

MOST_TOLD = 64
"""Maximum number of entries that a joining node is sent; of a longer log it gets a snapshot. To fold an entry takes
0.1 ms, often more."""


class Followers:
    """The number of entries sent to each follower."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._sent: dict[NodeId, int] = {}
        self._told: dict[int | None, Append | Install] = {}
        self._told_of = (0, 0)

    def know(self, node: NodeId, length: int) -> None:
        """A node has so many entries."""
        self._sent[node] = length

    def have_all(self, nodes: Iterable[NodeId]) -> None:
        """These nodes append the last entries by themselves; those that were never sent any entry do not."""
        for node in nodes:
            if node in self._sent:
                self._sent[node] = len(self._log)
        self._told.clear()

    def forget(self, node: NodeId) -> None:
        """A node is gone."""
        self._sent.pop(node, None)

    def lacks(self, node: NodeId) -> bool:
        """Whether a node lacks entries."""
        return self._sent.get(node, 0) < len(self._log)

    def tell(self, node: NodeId, life: str, *, term: int) -> Append | Install:
        """What a node lacks, which counts as sent from now on: entries, or a snapshot if they are many or not kept. An
        incarnation that has joined may have effects to execute in the entries that it lacks, and needs the entries.
        Nodes that lack the same are told by the same object, one after the other, so that it can be encoded once."""
        base = self._sent.get(node, 0)
        self._sent[node] = len(self._log)
        is_long = len(self._log) - base > MOST_TOLD and self._log.lives.get(node) != life
        is_snapshot = is_long or base < self._log.start
        if self._told_of != (term, len(self._log)):
            self._told_of = term, len(self._log)
            self._told.clear()
        key = None if is_snapshot else base
        if key not in self._told:
            self._told[key] = (
                Install(term=term, state=self._log.state(write=codec.to_raw))
                if is_snapshot
                else Append(term=term, base=base, entries=self._log.entries_from(base))
            )
        return self._told[key]
