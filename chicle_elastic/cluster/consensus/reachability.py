"""Which nodes of the job are reachable, and whether those may go on without the others.

The links that are up are compared with two sets of the log. The *present* nodes: of these, the unreachable ones are
lost. The *electorate*, the members of the last round that was formed: a part of it may lead the job on its own

    MAJORITY    if it is more than half: no other part can be that, so it needs no further permission
    STORE       if it is exactly half, or if all others are proven dead: with the permission of the store, which grants
                each term once and knows whether the job has ended
    NONE        otherwise: the others may go on somewhere, and this part waits for them

While a round forms, a part needs this of both electorates, the old one and the members that are called (Raft's joint
consensus). The round is formed when every member, and every elector that is left out and linked, has folded the call;
the leader has asked for a term without the others. So a part that knows only the old electorate is none that may lead:
the store is a vote, and a change of two nodes at once would let half of the old ones and a majority of the new ones
lead side by side.

Why no two parts lead. Parts that go on with the store are in one order, that of its terms. A part that goes on without
it is a majority, and its later rounds come from that majority. Half of the same electorate has a node in common with
it, whose log is the better one. Where all others are dead, nobody of that majority lives, and it has let nobody join:
a leader lets nobody join as long as the store may not have its term. Where some are dead and one is silent, that one
may lead what the dead have begun: a death alone gives no right. And a part with an old log may know an electorate that
others have replaced since, by permission of the store. So the store keeps the electorates of who asked last, and a part
that has not heard that leader needs these as well. A released node has given up its vote for who has the entry of its
release, too: elsewhere it may have led.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum

from chicle_elastic.cluster.consensus.log import Log
from chicle_elastic.cluster.consensus.messages import Electorates, Released
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling.scheduler import State


class Authority(IntEnum):
    """List what the nodes that are reachable may do, the least first; see the top of the module."""

    NONE = 0
    STORE = 1
    MAJORITY = 2


class Reachability:
    """The links of one incarnation of a node. A node that rejoined has another incarnation: a link to it does not make
    the incarnation in the log reachable."""

    def __init__(self, node: NodeId, life: str, log: Log) -> None:
        self.peers: dict[NodeId, str] = {}
        # incarnations that are known to have ended, because their host refuses connections to their port
        self.dead: set[str] = set()
        # incarnations that this node has declared lost, although there is a link to them
        self.evicted: set[str] = set()
        self.released: dict[str, Released] = {}  # incarnations that have said so
        self.is_stored = False  # the store has the term of this node
        # electorates of the newest term in the store, if this node has not heard its leader
        self.stored: Electorates = ()
        self._node, self._life, self._log = node, life, log
        self._claimed: dict[NodeId, str] = {}

    def reaches(self, node: NodeId) -> bool:
        """Whether the incarnation of a node that has joined is this one, or is linked."""
        life = self._life if node == self._node else self.peers.get(node)
        return life is not None and life not in self.evicted and self._log.lives.get(node) == life

    def hears(self, life: str) -> bool:
        """Whether an incarnation is this one, or linked."""
        return life == self._life or (life in self.peers.values() and life not in self.evicted)

    def unreached(self) -> tuple[str, ...]:
        """Incarnations of the present nodes that are unreachable."""
        return tuple(self._log.lives[node] for node in self._log.present if not self.reaches(node))

    def authority(self) -> Authority:
        """Return the right of this node and the linked ones."""
        own = min(map(self._authority, self._log.electorates))
        return own if own is Authority.MAJORITY else min([own, *map(self._authority, self.stored)])

    @property
    def is_majority(self) -> bool:
        """Say whether this node and the linked ones need nobody's permission."""
        return self.authority() is Authority.MAJORITY

    @property
    def electorates(self) -> Electorates:
        """Return all electorates that a part needs which asks the store after this node."""
        own = self._log.electorates
        return (*own, *(electors for electors in self.stored if electors not in own))

    def _authority(self, electors: Mapping[NodeId, str]) -> Authority:
        electorate = {node: life for node, life in electors.items() if not self._has_given_up(life)}
        num_reached = sum(map(self.hears, electorate.values()))
        if 2 * num_reached > len(electorate):
            return Authority.MAJORITY
        are_others_dead = all(self.hears(life) or self._is_over(node, life) for node, life in electorate.items())
        return Authority.STORE if 2 * num_reached == len(electorate) or are_others_dead else Authority.NONE

    def _has_given_up(self, life: str) -> bool:
        """Say whether an incarnation has no vote any more, by an entry that this log has, too."""
        release = self.released.get(life)
        return release is not None and self._log.term_before(release.length) == release.last_term

    def _is_over(self, node: NodeId, life: str) -> bool:
        """Say whether an incarnation has ended: by proof, or its node has another one, linked or called to a round."""
        successor = self._life if node == self._node else self.peers.get(node, life)
        is_replaced = life == self._log.electorate.get(node) and life != self._log.voters[node]
        return life in self.dead or life != successor or is_replaced

    def overrules(self, members: Iterable[str]) -> bool:
        """Whether a majority is here, and the members of a term that began without this node cannot go on alone. They
        have such a term where they reached the store, and the majority that went on without them did not."""
        return self.is_majority and not any(
            self._may_have_led(set(electorate.values()), members) for electorate in self._log.electorates
        )

    def _may_have_led(self, electorate: set[str], members: Iterable[str]) -> bool:
        led = electorate.intersection(members)
        # They may have had proofs of deaths that this node lacks: only those that it hears, and they, are sure to live.
        return 2 * len(led) >= len(led.union(filter(self.hears, electorate)))

    def who_is_missing(self) -> str:
        """That this node reaches too few of the others, and which it does not reach, in words."""
        electorate = self._log.voters
        missing = ", ".join(node for node, life in electorate.items() if not self.hears(life))
        return (
            f"this node reaches too few of the {len(electorate)} members of the job to go on without {missing}, which "
            "may go on without this one"
        )

    def first_reached(self) -> NodeId | None:
        """The first present node that is reachable: the one to lead."""
        return next((node for node in self._log.present if self.reaches(node)), None)

    def first_unreachable(self) -> NodeId | None:
        """The first present node that is unreachable: it is lost. A job that is over loses nobody any more."""
        if self._log.scheduler.state is State.FINISHED:
            return None
        return next((node for node in self._log.present if not self.reaches(node)), None)

    def is_a_member_gone(self) -> bool:
        """Say whether a member of the current round has gone, or is unreachable. One that was released is not
        gone: it has left after the iteration in flight, so its part of the sum is sent, and the others get the sum."""
        return any(
            node not in self._log.present or not (self.reaches(node) or self._log.lives.get(node) in self.released)
            for node in self._log.members
        )

    def has_left(self, lead: NodeId | None) -> bool:
        """Whether a leader is not present any more, because it left or its task died: a present node takes over."""
        return lead not in self._log.present and self.first_reached() is not None

    def left_out_of(self) -> int:
        """The round that is called without this node, which has a vote; 0 for none."""
        is_called = self._log.scheduler.state is State.FORMING and self._node not in self._log.called[1]
        return self._log.called[0] if is_called and self._life in self._log.electorate.values() else 0

    def call(self) -> tuple[str, ...]:
        """Incarnations of all linked agents, this one first; remembered for `is_complete`."""
        self._claimed = dict(self.peers)
        return (self._life, *(life for life in self.peers.values() if life not in self.evicted))

    def is_complete(self) -> bool:
        """Whether all agents of the last `call` are still linked."""
        return not self._claimed.items() - self.peers.items()
