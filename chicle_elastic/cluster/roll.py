"""Who of the job can be talked to: links that are up, against the nodes that the log has as present."""

from chicle_elastic.cluster.log import Log
from chicle_elastic.ids import NodeId


class Roll:
    """The links of one life of a node.

    A node that joined again has another life: whoever is linked in a new one is not the one that the log has.

    Args:
        node: The node.
        life: Its life.
        log: What it knows.

    Attributes:
        peers: Life of every agent that there is a link to.
    """

    def __init__(self, node: NodeId, life: str, log: Log) -> None:
        self.peers: dict[NodeId, str] = {}
        self._node, self._life, self._log = node, life, log
        self._claimed: dict[NodeId, str] = {}

    def reaches(self, node: NodeId) -> bool:
        """Whether a node is present and this one, or can be talked to, in the life in which it joined."""
        life = self._life if node == self._node else self.peers.get(node)
        return life is not None and self._log.lives.get(node) == life

    def first_reached(self) -> NodeId | None:
        """The first present node that can be talked to: the one to lead."""
        return next((node for node in self._log.present if self.reaches(node)), None)

    def first_unreachable(self) -> NodeId | None:
        """The first present node that cannot be talked to: it is lost."""
        return next((node for node in self._log.present if not self.reaches(node)), None)

    def is_a_member_gone(self) -> bool:
        """Whether a member of the current round is not present any more, or cannot be talked to."""
        return any(node not in self._log.present or not self.reaches(node) for node in self._log.members)

    def has_left(self, lead: NodeId | None) -> bool:
        """Whether a lead is not present any more, because it left or its task died: it gives way to one that is."""
        return lead not in self._log.present and self.first_reached() is not None

    def call(self) -> tuple[str, ...]:
        """Lives of all that can be talked to, this one first; remembered for `is_complete`."""
        self._claimed = dict(self.peers)
        return (self._life, *self.peers.values())

    def is_complete(self) -> bool:
        """Whether all of the last `call` can still be talked to."""
        return not self._claimed.items() - self.peers.items()
