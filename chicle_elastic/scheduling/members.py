"""The present nodes: those that joined and were neither lost nor released, and the round that they form.

A node is *present* from `NodeJoined` until it is lost or released. It *stays* until it is under notice; where rows are
copied ahead (`transitions`), it first arrives, and departs for a while before it leaves. Those that stay and are
members of the current round can be given chunks: they are *eligible*. When those that stay are not the members of the
round, a new round is due.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from chicle_elastic.ids import NodeId


@dataclass(slots=True)
class PresentNode:
    """One present node.

    Attributes:
        is_leaving: Under notice, and on its way out.
        is_departing: Under notice, and still a member while its chunks are copied ahead.
        is_arriving: Not to be a member before its share of chunks is copied ahead.
        is_planned: What is to be copied ahead for it was ordered.
        in_round: A member of the current round.
        is_new: Has not got its share of chunks yet.
        has_reported: Has told what it holds.
        joined_round: Round that was current, or asked for, when it joined.
    """

    is_leaving: bool = False
    is_departing: bool = False
    is_arriving: bool = False
    is_planned: bool = False
    in_round: bool = False
    is_new: bool = True
    has_reported: bool = False
    joined_round: int = 0


class Members:
    """The present nodes in the order in which they joined, the current round, and the one that was asked for."""

    def __init__(self) -> None:
        self.present: dict[NodeId, PresentNode] = {}
        self.round = 0
        self.asked: tuple[NodeId, ...] = ()
        self._formed: frozenset[NodeId] | None = None

    def __contains__(self, node: object) -> bool:
        return node in self.present

    @property
    def staying(self) -> tuple[NodeId, ...]:
        """Nodes that are or should be members: neither on their way out nor still arriving."""
        return tuple(node for node, member in self.present.items() if not (member.is_leaving or member.is_arriving))

    @property
    def leaving(self) -> tuple[NodeId, ...]:
        """Nodes under notice, on their way out."""
        return tuple(node for node, member in self.present.items() if member.is_leaving)

    @property
    def preparing(self) -> tuple[NodeId, ...]:
        """Nodes that arrive or depart, for which rows are copied ahead."""
        return tuple(node for node, member in self.present.items() if member.is_arriving or member.is_departing)

    @property
    def eligible(self) -> tuple[NodeId, ...]:
        """Members of the current round that stay."""
        return tuple(node for node, member in self.present.items() if member.in_round and not member.is_leaving)

    @property
    def joiners(self) -> tuple[NodeId, ...]:
        """Seats that have not got their share of chunks yet."""
        return tuple(node for node in self.eligible if self.present[node].is_new)

    def is_seat(self, node: NodeId) -> bool:
        """Whether the node may be given chunks."""
        member = self.present.get(node)
        return member is not None and member.in_round and not member.is_leaving

    def round_is_due(self) -> bool:
        """Whether those that stay are others than the members of the current round."""
        return self._formed is None or self._formed != frozenset(self.staying)

    def ask(self) -> int:
        """Go on to the next round of those that stay; `form` completes it.

        Who comes first to the first round is a race, and must not decide who gets which chunks: equal seeds, nodes and
        data give equal models. Shorter names first, so that n2 comes before n10.
        """
        if self.round == 0:
            self.present = dict(sorted(self.present.items(), key=lambda item: (len(item[0]), item[0])))
        self.round += 1
        self.asked = self.staying
        return self.round

    def form(self, nodes: Iterable[NodeId]) -> None:
        """The round that was asked for consists of these present nodes."""
        self._formed = frozenset(nodes)
        self.asked = ()
        for node, member in self.present.items():
            member.in_round = node in self._formed

    def remove(self, node: NodeId) -> None:
        """A node is lost or released; a round that it is a member of cannot go on, even if one of its name joins."""
        if self._formed is not None and node in self._formed:
            self._formed = None
        del self.present[node]

    def break_round(self) -> None:
        """The current round cannot go on, even if its members stay: a new one is due."""
        self._formed = None
