"""The present nodes: those that joined and were neither lost nor released, and the round that they form.

A node is *present* from `NodeJoined` until it is lost or released. It *stays* until it is under notice; where rows are
copied ahead (`transitions`), it first arrives, and departs for a while before it leaves. Those that stay and are
members of the current round can be given chunks: they are *eligible*. When those that stay are not the members of the
round, a new round is due.

A node has the model of the last merge if its task took part in it. Where none that stays does, because all that trained
are under notice and others have come, those under notice are *keepers*: members of one more round, without chunks,
until an iteration has shown that the others have the model.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from chicle_elastic.ids import NodeId


@dataclass(slots=True)
class PresentNode:
    """One present node."""

    is_leaving: bool = False  # under notice, and on its way out
    is_departing: bool = False  # under notice, and still a member while its chunks are copied ahead
    is_arriving: bool = False  # not to be a member before its share of chunks is copied ahead
    is_planned: bool = False
    in_round: bool = False  # a member of the current round
    is_new: bool = True  # has not got its share of chunks yet
    has_reported: bool = False  # has told what it holds
    has_model: bool = False  # was a member when an iteration was merged, and so has the model, or a task that caught up
    joined_round: int = 0  # round that was current, or asked for, when it joined


class Group:
    """A group of nodes in the order in which they joined; found when it is asked for, and remembered by the object."""

    def __init__(self, belongs: Callable[[PresentNode], bool]) -> None:
        self.belongs = belongs

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, members: "Members", owner: type) -> tuple[NodeId, ...]:
        nodes = tuple(node for node, member in members.present.items() if self.belongs(member))
        vars(members)[self._name] = nodes  # where Python looks first from now on
        return nodes


@dataclass(eq=False, repr=False)
class Members:
    """The present nodes in the order in which they joined, the current round, and the one that was asked for.

    The groups of nodes are asked for with every event, and change with few of them: they are remembered until a method
    changes them. So only methods may change what a group depends on.

    Attributes:
        staying: Nodes that are or should be members: neither on their way out nor still arriving.
        lasting: Nodes that stay, when those that arrive have arrived, and those that depart have left.
        leaving: Nodes under notice, on their way out.
        eligible: Members of the current round that stay.
        joiners: Those of them that have not got their share of chunks yet.
    """

    staying = Group(lambda member: not (member.is_leaving or member.is_arriving))
    lasting = Group(lambda member: not (member.is_leaving or member.is_departing))
    leaving = Group(lambda member: member.is_leaving)
    preparing = Group(lambda member: member.is_arriving or member.is_departing)
    eligible = Group(lambda member: member.in_round and not member.is_leaving)
    joiners = Group(lambda member: member.in_round and not member.is_leaving and member.is_new)
    in_round = Group(lambda member: member.in_round)

    # every present node, in the order in which they joined; to be read only
    present: dict[NodeId, PresentNode] = field(default_factory=dict)
    round: int = 0
    asked: tuple[NodeId, ...] = ()
    _formed: frozenset[NodeId] | None = None

    def __post_init__(self) -> None:
        self._is_due: bool | None = None

    def __contains__(self, node: object) -> bool:
        return node in self.present

    @property
    def keepers(self) -> tuple[NodeId, ...]:
        """Nodes under notice that take part until a node that stays has the model."""
        if not self.leaving or any(self.present[node].has_model for node in self.staying):
            return ()
        return tuple(node for node in self.leaving if self.present[node].has_model)

    def is_seat(self, node: NodeId) -> bool:
        """Whether the node may be given chunks."""
        member = self.present.get(node)
        return member is not None and member.in_round and not member.is_leaving

    def round_is_due(self) -> bool:
        """Whether those that stay, and keepers, are others than the members of the current round."""
        if self._is_due is None:
            self._is_due = self._formed is None or self._formed != frozenset((*self.staying, *self.keepers))
        return self._is_due

    def add(self, node: NodeId, *, is_arriving: bool) -> None:
        """A node is present from now on."""
        self.present[node] = PresentNode(joined_round=self.round, is_arriving=is_arriving)
        self._changed(node)

    def arrived(self, node: NodeId) -> None:
        """The node waits for nothing more: it should be a member."""
        self.present[node].is_arriving = False
        self._changed(node)

    def depart(self, node: NodeId) -> None:
        """The node is under notice, and stays a member while its chunks are copied ahead."""
        member = self.present[node]
        member.is_departing, member.is_planned = True, False
        self._changed(node)

    def leave(self, node: NodeId) -> None:
        """The node is on its way out."""
        member = self.present[node]
        member.is_arriving = member.is_departing = False
        member.is_leaving = True
        self._changed(node)

    def filled(self, node: NodeId) -> None:
        """The node has got its share of chunks."""
        self.present[node].is_new = False
        self._changed(node)

    def ask(self) -> int:
        """Go on to the next round of those that stay, and of keepers; `form` completes it. Who comes first to the first
        round is a race, and must not decide who gets which chunks: equal seeds, nodes and data give equal models.
        Shorter names first, so that n2 comes before n10."""
        if self.round == 0:
            self.present = dict(sorted(self.present.items(), key=lambda item: (len(item[0]), item[0])))
            self._changed()
        self.round += 1
        self.asked = (*self.staying, *self.keepers)
        return self.round

    def form(self, nodes: Iterable[NodeId]) -> None:
        """The round that was asked for consists of these present nodes."""
        self._formed = frozenset(nodes)
        self.asked = ()
        for node, member in self.present.items():
            member.in_round = node in self._formed
        self._changed()

    def merged(self) -> None:
        """An iteration was merged: the members of the round have the model."""
        for node in self.in_round:
            if not (member := self.present[node]).has_model:
                member.has_model = True
                self._is_due = None

    def remove(self, node: NodeId) -> None:
        """A node is lost or released; a round that it is a member of cannot go on, even if one of its name joins."""
        if self._formed is not None and node in self._formed:
            self._formed = None
        del self.present[node]
        self._changed()

    def break_round(self) -> None:
        """The current round cannot go on, even if its members stay: a new one is due."""
        self._formed = None
        self._changed()

    def _changed(self, node: NodeId | None = None) -> None:
        """Forget the groups, or correct them for the node that came last: thousands may come one after the other."""
        self._is_due = None
        known = vars(self)
        groups = GROUPS.keys() & known.keys()  # those that were asked for
        if node is None or node != next(reversed(self.present)):
            for name in groups:
                del known[name]
            return
        member = self.present[node]
        for name in groups:
            nodes: tuple[NodeId, ...] = known[name]
            belongs, did_belong = GROUPS[name].belongs(member), nodes[-1:] == (node,)
            if belongs and not did_belong:
                known[name] = (*nodes, node)
            elif did_belong and not belongs:
                known[name] = nodes[:-1]


GROUPS: Mapping[str, Group] = {name: value for name, value in vars(Members).items() if isinstance(value, Group)}
"""By name."""
