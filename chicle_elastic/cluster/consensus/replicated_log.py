"""The log as an agent has it: the shell of a replica, which performs the replica's actions in the loop of the agent.

Events go in at one end (`append`), and come out in one order at every agent (`LogHost.folded`). A boundary must not
wait for a round trip: the end of an iteration is known to all members by their all-reduce, so each agent appends it by
itself (`iteration_ended`) instead of proposing it, and says so when it cannot (`iteration_broke`).

Messages to other agents are sent at the end of a turn of the loop, those to one agent together: what came in one turn
is given its places together. Terms are asked for through the `LogHost`, which answers with `claimed`, `refused` or
`looked`. All decisions are made in `replica`.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from chicle_elastic.cluster.consensus.election import Role
from chicle_elastic.cluster.consensus.entries import Ended
from chicle_elastic.cluster.consensus.messages import (
    Action,
    Append,
    BreakGroup,
    CheckTerm,
    Claim,
    Electorates,
    Expelled,
    Folded,
    Installed,
    Message,
    Paused,
    Send,
    Term,
    Vote,
)
from chicle_elastic.cluster.consensus.replica import Replica
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.fault_points import hit
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling.events import Event
from chicle_elastic.scheduling.recording import RecordingSink
from chicle_elastic.scheduling.scheduler import Scheduler

MAX_ENTRIES = 2000  # entries in one message


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """Holds what all entries so far have come to, and how this node stands in it; later entries do not change it."""

    incarnation: str  # of this node; another one begins with an empty log
    length: int
    first_term: int  # term of the first entry, the number of the job; 0 when there is none
    # nodes that joined and were neither lost nor released, in the order in which they joined
    present: tuple[NodeId, ...]
    members: tuple[NodeId, ...]
    electorate: Mapping[NodeId, str]  # incarnations that may vote on who leads (`reachability`), by node
    asked: tuple[NodeId, ...]
    reported: frozenset[NodeId]
    in_flight: tuple[int, int] | None  # round and iteration of the iteration that runs; None at a boundary
    is_steady: bool  # iterations follow each other, and nothing else is ordered, until an event is appended
    loss_round: int | None  # round in which something was lost or cut off, as long as no model was rebuilt since
    lines: tuple[str, ...]  # what happened at the boundary before the iteration in flight, in words
    is_live: bool  # this incarnation has joined: orders to its node are its own
    is_awaiting: bool  # the task of this node is in the iteration in flight, and its end will be told
    proposed: tuple[Event, ...]  # events of this node that have no place in the log yet, in their order
    seen: int  # number of the last event of this incarnation that has its place; 0 for none


class LogSubscriber(Protocol):
    """Told of every change of the log, in the loop."""

    def folded(self, folded: Folded) -> None:
        """An entry was folded."""

    def installed(self, length: int) -> None:
        """This node joins with the state of a log of so many entries, and without these."""

    def vote(self) -> None:
        """The own task is to vote for a stop at the next boundary: an event waits for its place."""

    def break_group(self, reason: str) -> None:
        """The own task is to end its iteration: it waits for a member that is gone."""

    def paused(self, reason: str | None) -> None:
        """This node reaches too few others to go on, and waits for them; None: it goes on again."""

    def expelled(self, reason: str) -> None:
        """The others go on without this incarnation; the node has to begin another one."""


class LogHost(LogSubscriber, Protocol):
    """Told of what happens in the log, and how the log reaches other agents and the store."""

    def send_log(self, to: Sequence[NodeId], messages: Sequence[Message]) -> None:
        """Send the same messages about the log to agents, encoded once, as far as there are links to them."""

    def claim(self, claim: Claim) -> None:
        """Ask the store for a term; `claimed`, `refused` or `store_unreachable` is called later."""

    def check_term(self) -> None:
        """Look into the store in a moment; `looked` or `store_unreachable` is called then."""


class ReplicatedLog:
    """See the top of the module. Everything is called in the loop."""

    def __init__(
        self,
        loop: EventLoop,
        node: NodeId,
        incarnation: str,
        *,
        make_scheduler: Callable[[], Scheduler],
        host: LogHost,
    ) -> None:
        self._loop, self._node, self._make_scheduler, self._host = loop, node, make_scheduler, host
        self._replica = Replica(node, incarnation, make_scheduler())
        self._todo: deque[Action] = deque()
        self._is_performing = False
        self._unsent: dict[NodeId, list[Message]] = {}
        self._is_settling = False
        self._snapshot: LogSnapshot | None = None
        self._sink: RecordingSink | None = None

    @property
    def scheduler(self) -> Scheduler:
        """Has folded all entries; to be read only, and not to be kept: another incarnation has another one."""
        return self._replica.log.scheduler

    def append(self, event: Event) -> None:
        """Something happened on this node: propose it. It comes to the subscribers when it has its place, behind all
        that this node appended before; it is kept and proposed again until then, also when the leader changes. It is
        lost only with this incarnation."""
        self._act(self._replica.propose(event, now=self._loop.now()))

    def iteration_ended(self, ended: Ended, *, votes: int, goes_on: bool = False) -> None:
        """The own task has merged an iteration: append its end without asking, unless a task has voted for a stop.

        Args:
            votes: Tasks that voted for a stop, the same number everywhere; the leader gives the end its place then.
        """
        self._act(self._replica.iteration_ended(ended, votes=votes, now=self._loop.now(), goes_on=goes_on))

    def iteration_broke(self, round: int, iteration: int, reason: str, *, merged: Ended | None = None) -> None:
        """The own task cannot end an iteration with the others; `merged` if it got as far as the merge."""
        self._act(self._replica.iteration_broke(round, iteration, reason, now=self._loop.now(), merged=merged))

    def snapshot(self) -> LogSnapshot:
        """What all entries so far have come to. Made once per change: an agent looks several times while it performs
        what an entry ordered."""
        if self._snapshot is None:
            self._snapshot = self._take_snapshot()
        return self._snapshot

    def _take_snapshot(self) -> LogSnapshot:
        log, own = self._replica.log, self._replica.own
        asked, reported = log.asked(log.scheduler.round)
        return LogSnapshot(
            incarnation=self._replica.life,
            length=len(log),
            first_term=log.first_term,
            present=log.present,
            members=log.members,
            electorate=log.voters,
            asked=asked,
            reported=frozenset(reported),
            in_flight=log.in_flight,
            is_steady=log.is_steady,
            loss_round=log.loss_round,
            lines=log.lines,
            is_live=own.is_live,
            is_awaiting=own.is_awaiting,
            proposed=tuple(proposal.event for proposal in own.outbox),
            seen=log.seen(self._replica.life),
        )

    # For the agent's membership, which finds the others and asks the store.

    @property
    def incarnation(self) -> str:
        """Of this node."""
        return self._replica.life

    @property
    def term(self) -> int:
        """Newest term that this agent knows of; 0 before the first word of a leader."""
        return self._replica.term

    @property
    def is_leading(self) -> bool:
        """Whether this agent gives events their places."""
        return self._replica.role is Role.LEADING

    @property
    def is_out(self) -> bool:
        """Whether this incarnation was expelled."""
        return self._replica.role is Role.OUT

    def record(self, sink: RecordingSink) -> None:
        """Record what the incarnations fold that begin from now on."""
        self._sink = sink

    def begin(self, incarnation: str) -> None:
        """Begin an incarnation with an empty log; its entries come from the leader."""
        self._replica = Replica(self._node, incarnation, self._make_scheduler())
        if self._sink is not None:
            self._replica.log.record(self._sink)
        self._snapshot = None

    def connected(self, peer: NodeId, incarnation: str) -> None:
        """There is a link to another agent now."""
        self._act(self._replica.connected(peer, incarnation, now=self._loop.now()))

    def lost(self, peer: NodeId) -> None:
        """The link to another agent is gone, and the agent with it."""
        self._act(self._replica.lost(peer, now=self._loop.now()))

    def received(self, peer: NodeId, message: Message) -> None:
        """A message has come from a connected agent."""
        self._act(self._replica.received(peer, message, now=self._loop.now()))

    def claimed(self, term: int) -> None:
        """The store has granted a claim."""
        self._act(self._replica.claimed(term, now=self._loop.now()))

    def stored(self, term: Term) -> None:
        """The store holds this term, where a leader keeps its own."""
        self._act(self._replica.stored(term, now=self._loop.now()))

    def refused(self, term: Term) -> None:
        """The store has granted this term to another agent."""
        self._act(self._replica.refused(term, now=self._loop.now()))

    def looked(self, term: Term) -> None:
        """The store holds this term."""
        self._act(self._replica.looked(term, now=self._loop.now()))

    @property
    def electorates(self) -> Electorates:
        """Return those that the store is to keep with a term of this node."""
        return self._replica.electorates

    def store_unreachable(self) -> None:
        """The store did not answer a claim or a look in time."""
        self._act(self._replica.store_unreachable(now=self._loop.now()))

    def is_dead(self, incarnation: str) -> None:
        """An incarnation has ended: its host refuses connections to its port."""
        self._act(self._replica.is_dead(incarnation))

    def check_links(self) -> None:
        """To be called twice a second; see `Replica.check_links`."""
        self._act(self._replica.check_links(now=self._loop.now()))

    @property
    def may_claim(self) -> bool:
        """Whether the nodes that this one reaches may go on without the others, if the store agrees."""
        return self._replica.may_claim

    @property
    def is_paused(self) -> bool:
        """Whether this node reaches too few others to go on."""
        return self._replica.is_paused

    def describe(self) -> dict[str, Any]:
        """Where the replica stands, as JSON values, to find out why nothing goes on."""
        replica = self._replica
        return {
            "life": replica.life,
            "role": replica.role.value,
            "is_paused": replica.is_paused,
            "electorate": replica.log.voters,
            "lead": replica.lead,
            "term": replica.term,
            "is_live": replica.own.is_live,
            "is_awaiting": replica.own.is_awaiting,
            "is_breaking": replica.own.is_breaking,
            "unseen": [type(proposal.event).__name__ for proposal in replica.own.outbox],
            "peers": dict(replica.peers),
            "length": len(replica.log),
            "present": replica.log.present,
            "members": replica.log.members,
            "in_flight": replica.log.in_flight,
        }

    # What the replica asks for.

    def _act(self, actions: list[Action]) -> None:
        """Something was told to the replica: perform what it asks for, and settle at the end of this turn."""
        self._perform_all(actions)
        if not self._is_settling and (self._unsent or self._replica.has_waiting):
            self._is_settling = True
            self._loop.soon(self._settle)

    def _settle(self) -> None:
        """At the end of a turn of the loop: what came in it is sequenced together, and sent together."""
        self._is_settling = False
        self._perform_all(self._replica.settle(now=self._loop.now()))
        unsent, self._unsent = self._unsent, {}
        alike: dict[tuple[int, ...], list[NodeId]] = {}
        for node, messages in unsent.items():
            alike.setdefault(tuple(map(id, messages)), []).append(node)  # `followers` tells many by the same object
        for nodes in alike.values():
            self._host.send_log(nodes, [part for message in unsent[nodes[0]] for part in _split(message)])

    def _perform_all(self, actions: list[Action]) -> None:
        """Perform actions in their order; what they lead to comes behind them."""
        self._snapshot = None  # the replica was told something: it may have folded entries
        self._todo.extend(actions)
        if self._is_performing:
            return
        self._is_performing = True
        try:
            while self._todo:
                self._perform(self._todo.popleft())
        finally:
            self._is_performing = False

    def _perform(self, action: Action) -> None:
        if isinstance(action, Send):
            self._unsent.setdefault(action.to, []).append(action.message)
        elif isinstance(action, Folded):
            hit("log.appended", event=type(action.entry.event).__name__)
            self._host.folded(action)
        elif isinstance(action, Installed):
            self._host.installed(action.length)
        elif isinstance(action, Vote):
            self._host.vote()
        elif isinstance(action, BreakGroup):
            self._host.break_group(action.reason)
        elif isinstance(action, Claim):
            self._host.claim(action)
        elif isinstance(action, CheckTerm):
            self._host.check_term()
        elif isinstance(action, Paused):
            self._host.paused(action.reason)
        elif isinstance(action, Expelled):
            self._todo.clear()
            self._unsent.clear()
            self._host.expelled(action.reason)


def _split(message: Message) -> list[Message]:
    """A log that is too long for one message comes in several."""
    if not isinstance(message, Append) or len(message.entries) <= MAX_ENTRIES:
        return [message]
    starts = range(0, len(message.entries), MAX_ENTRIES)
    return [
        Append(term=message.term, base=message.base + start, entries=message.entries[start : start + MAX_ENTRIES])
        for start in starts
    ]
