"""What a resource manager is asked, and what it says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from chicle_elastic.ids import NodeId
from chicle_elastic.values import ResourceOffer

REVOCATION_GRACE_S = 120.0
"""From a revocation to the end of the node where the manager does not say: what spot machines get."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """The job has this node from now on.

    Attributes:
        node: Its name, which no node of the job had before.
    """

    node: NodeId


@dataclass(frozen=True, slots=True)
class Revoked:
    """The job has to give this node back.

    Attributes:
        node: One that was assigned.
        grace_s: Seconds until it is taken away.
    """

    node: NodeId
    grace_s: float = REVOCATION_GRACE_S


Said: TypeAlias = Assigned | Revoked | ResourceOffer
"""What a resource manager can say. An offer holds until the next one."""


class ResourceManager(Protocol):
    """Gives nodes to one job and takes them back. It need not obey, and may take its time.

    Methods are called by one thread, one after the other. None of them may wait.
    """

    def request(self, total: int, reason: str) -> None:
        """The job wants so many nodes in all, from now on; the same request may come again.

        Fewer than there are is no request to revoke any: the job chooses which ones it gives back (`release`).

        Args:
            total: Nodes, >= 1.
        """
        ...

    def release(self, node: NodeId) -> None:
        """The job does not have the node any more: given back, revoked, failed, or never wanted."""
        ...

    def poll(self, now_s: float) -> Sequence[Said]:
        """What is new since the last call.

        Args:
            now_s: Seconds since the job began; the first call is at its beginning.
        """
        ...
