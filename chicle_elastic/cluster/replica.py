"""One agent's copy of the log and its part in keeping all copies equal. Pure: messages in, actions out.

Theory of operation. At any time one agent leads. It gives events their places and sends them to all others; everybody
folds the same entries in the same order, and performs the orders that concern its own node. While an iteration runs
the lead holds events back and lets its task vote for a stop; an iteration without votes is appended by every agent by
itself (`log`), which is the usual case and costs no message. Where the log is steady, tasks do not even wait for that:
they go on by themselves until somebody votes or the group breaks, and every agent folds what its task tells, in order.
A log lags behind its task then and never leads, and a breaking term waits until all is told.

    FOLLOWING   somebody else leads, or will; what there is to say is proposed to it
    CLAIMING    this agent sees that a new term is due and asks the store for it
    COLLECTING  it has the term, and asks everybody where they stand
    LEADING     it gives events their places

A new term is due when an agent is lost, when an iteration breaks, and when the lead is under notice and was released.
The store grants each term once (compare-and-set), so that a node which was only silent, and comes back, cannot lead or
lose others any more: whoever is not among the members of a newer term is out, and joins again.
When a member of the iteration in flight is gone the term is *breaking*: everybody ends that iteration before
it answers. Then nobody's log grows any more, and:

* the best log wins, by (term of its last entry, length); the lead adopts what it lacks, and sends others what they lack
* an iteration that somebody merged is `IterationFinished`, one that nobody did is `IterationAborted`
* present nodes that the lead cannot reach are `NodeLost`
* whoever has entries that the best log has not is out

In a term that is not breaking the iteration goes on; the answers may be overtaken by in-band entries, which are the
same everywhere and may therefore overlap.

Proposals are kept by their author until they are in the log, and said again to every new lead when it sends its log; a
proposal is sequenced once, and those of one author in their order.
"""

from enum import Enum

from chicle_elastic.cluster import census
from chicle_elastic.cluster.census import Census
from chicle_elastic.cluster.entries import Ended, Entry
from chicle_elastic.cluster.followers import Followers
from chicle_elastic.cluster.log import KEPT_ENTRIES
from chicle_elastic.cluster.log_messages import (
    Action,
    Append,
    BreakGroup,
    Broke,
    Claim,
    Expel,
    Expelled,
    Install,
    Installed,
    Look,
    Message,
    NewTerm,
    Propose,
    Send,
    Standing,
    Vote,
)
from chicle_elastic.cluster.own_log import OwnLog
from chicle_elastic.cluster.proposals import Waiting
from chicle_elastic.cluster.roll import Roll
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.events import Event
from chicle_elastic.scheduling.machine import Scheduler

PATIENCE_LOOKS = 20


class Role(Enum):
    """See the theory of operation; OUT is the end."""

    FOLLOWING = "following"
    CLAIMING = "claiming"
    COLLECTING = "collecting"
    LEADING = "leading"
    OUT = "out"


class Replica:
    """The log of one agent. What is told to it is answered with what to do; `settle` comes last.

    Args:
        node: This node.
        life: Name of this life of the node, unique in the job; a node that joins again has another one.
        scheduler: Has handled nothing yet; the same settings everywhere.
        kept: Entries of the log that are kept at least.

    Attributes (to be read only):
        own: How this node and its task stand.
        log: The log.
        role: What part it has now.
        lead: Who leads, as far as known.
        term: Newest term that it knows of.
        peers: Life of every agent that it is connected to.
    """

    def __init__(self, node: NodeId, life: str, scheduler: Scheduler, *, kept: int = KEPT_ENTRIES) -> None:
        self.node = node
        self.life = life
        self.own = OwnLog(node, life, scheduler, kept=kept)
        self.log = self.own.log
        self.role = Role.FOLLOWING
        self.lead: NodeId | None = None
        self.term = 0
        self._roll = Roll(node, life, self.log)
        self.peers = self._roll.peers
        self._actions: list[Action] = []
        # As a follower.
        self._question: NewTerm | None = None
        self._queue: list[Append | Install] = []
        self._heard_term = 0
        self._num_looks = 0
        self._newest = 0
        # As the lead, or while becoming it.
        self._waiting = Waiting(self.log)
        self._census = Census()
        self._followers = Followers(self.log)
        self._offset_s = 0.0

    # What the agent tells.

    def connected(self, peer: NodeId, life: str, *, now: float) -> list[Action]:
        """There is a link to another agent now; `lost` was said of an earlier one of that name."""
        if self.role is Role.OUT:
            return []
        self.peers[peer] = life
        if self.role is Role.LEADING:
            self._send(peer, self._followers.tell(peer, self.peers[peer], term=self.term))
        elif self.role is Role.COLLECTING:
            self._ask(peer)
        elif self.role is Role.FOLLOWING and peer == self.lead:
            self._say_again()
        return self._take()

    def lost(self, peer: NodeId, *, now: float) -> list[Action]:
        """The link to another agent is gone, and the agent with it."""
        if self.role is Role.OUT or peer not in self.peers:
            return []
        del self.peers[peer]
        self._followers.forget(peer)
        self._census.drop(peer)
        self._waiting.drop(peer)
        if self.role in (Role.LEADING, Role.COLLECTING):
            # The store granted a term in which this peer was reached; who was lost may ask for the next one.
            self._claim()
        elif self.role is Role.FOLLOWING and self.lead in (None, peer):
            self.lead = None
            self._look_for_lead()
        return self._take()

    def received(self, peer: NodeId, message: Message, *, now: float) -> list[Action]:
        """A message has come from a connected agent."""
        if self.role is Role.OUT or peer not in self.peers:
            return []
        if isinstance(message, Propose):
            self._on_propose(peer, message)
        elif isinstance(message, Append | Install):
            self._on_append(peer, message, now)
        elif isinstance(message, NewTerm):
            self._on_new_term(peer, message)
        elif isinstance(message, Standing):
            if self.role is Role.COLLECTING and message.term == self.term:
                self._census.add(peer, message)
                self._try_install(now)
        elif isinstance(message, Broke):
            self._on_broke(message)
        else:
            self._leave(f"{peer} says: {message.reason}")
        return self._take()

    def propose(self, event: Event, *, now: float) -> list[Action]:
        """Something has happened on this node."""
        if self.role is Role.OUT:
            return []
        proposal = self.own.outbox.add(event)
        if self.role is Role.FOLLOWING and self.lead is not None:
            self._send(self.lead, proposal)
        elif self.role is Role.LEADING:
            self._waiting.add(self.node, proposal)
        return self._take()

    @property
    def has_waiting(self) -> bool:
        """Whether `settle` is to be called."""
        return bool(self._waiting)

    def settle(self, *, now: float) -> list[Action]:
        """What has come for now is told: give all that was proposed its place."""
        self._sequence(now)
        return self._take()

    def iteration_ended(self, ended: Ended, *, votes: int, now: float, goes_on: bool = False) -> list[Action]:
        """The own task has merged an iteration.

        Args:
            ended: What all tasks know of it.
            votes: Tasks that voted for a stop here, the same number everywhere.
            now: Seconds on this agent's clock.
            goes_on: The task has begun the next one by itself; only where the log was steady, and without votes.
        """
        if self.role is Role.OUT or not self.own.ends(ended.round, ended.iteration):
            return []
        if votes:
            self.own.ended = ended
        else:
            self._actions += self.own.fold(self.log.in_band(ended), goes_on=goes_on)
            assert not goes_on or self.log.in_flight == (ended.round, ended.iteration + 1)
            self._followers.have_all(self.log.members)
        self._go_on(now)
        return self._take()

    def iteration_broke(
        self, round: int, iteration: int, reason: str, *, now: float, merged: Ended | None = None
    ) -> list[Action]:
        """The own task cannot end an iteration with the others; `merged` if it got as far as the merge."""
        if self.role is Role.OUT or not self.own.ends(round, iteration):
            return []
        self.own.ended = merged
        self.own.broken = Broke(round=round, iteration=iteration, reason=reason)
        if self.role is Role.LEADING or (self.role is Role.COLLECTING and not self.own.is_breaking):
            self._claim()
        elif self.role is Role.FOLLOWING and self.lead is not None and not self.own.is_breaking:
            self._send(self.lead, self.own.broken)
        self._go_on(now)
        return self._take()

    def claimed(self, term: int, *, now: float) -> list[Action]:
        """The store has granted a claim."""
        if self.role not in (Role.CLAIMING, Role.FOLLOWING) or term <= self.term:
            return []
        self.term = term
        self.lead = self.node
        self.role = Role.COLLECTING
        self._queue.clear()
        self._census.clear()
        if not self._roll.is_complete():
            self._claim()
            return self._take()
        if self._must_break():
            self._break("a node is gone")
        for peer in self.peers:
            self._ask(peer)
        self._try_install(now)
        return self._take()

    def refused(self, term: int, lead: str, members: tuple[str, ...], *, now: float) -> list[Action]:
        """The store has granted `term` to somebody else, as in `looked`."""
        if self.role is Role.CLAIMING:
            self._step_down()
            self._judge_look(term, lead, members)
        return self._take()

    def looked(self, term: int, lead: str, members: tuple[str, ...], *, now: float) -> list[Action]:
        """The store was looked into.

        Args:
            term: The newest term.
            lead: Life of its lead.
            members: Lives that it began with.
            now: Seconds on this agent's clock.
        """
        if self.role is Role.FOLLOWING and self.lead is None:
            self._num_looks += 1
            self._judge_look(term, lead, members)
        return self._take()

    # Terms.

    def _claim(self) -> None:
        """A new term is due: ask for it."""
        self.role = Role.CLAIMING
        self._waiting.clear()
        self._do(Claim(term=max(self.term, self._newest) + 1, members=self._roll.call()))

    def _must_break(self) -> bool:
        """Whether the iteration in flight cannot end: a member is gone, or has said so."""
        return self.log.in_flight is not None and (self.own.broken is not None or self._roll.is_a_member_gone())

    def _ask(self, peer: NodeId) -> None:
        self._send(peer, census.ask(self.log, term=self.term, is_breaking=self.own.is_breaking))

    def _on_new_term(self, peer: NodeId, message: NewTerm) -> None:
        if message.term <= self.term:
            return
        self._follow(peer, message.term)
        self._question = message
        if message.is_breaking:
            self._break(f"{peer} leads now, and says that a node is gone")
        self._answer()

    def _answer(self) -> None:
        """Say where this log stands, as soon as it does not grow any more by what breaks."""
        question = self._question
        if question is None or self.lead is None or (self.own.is_breaking and self.own.is_awaiting):
            return
        self._question = None
        said = census.answer(self.log, question, asker=self.peers.get(self.lead, ""), ended=self.own.ended)
        self._send(self.lead, said)
        if self.own.broken is not None and not self.own.is_breaking:
            self._send(self.lead, self.own.broken)

    def _follow(self, lead: NodeId, term: int) -> None:
        self.lead, self.term, self.role = lead, term, Role.FOLLOWING
        self._num_looks = 0
        self._queue.clear()
        self._waiting.clear()
        self._question = None

    def _break(self, reason: str) -> None:
        self.own.is_breaking = True
        if self.own.is_awaiting:
            self._do(BreakGroup(reason=reason))

    def _try_install(self, now: float) -> None:
        """Everybody has said where they stand: the best log becomes everybody's."""
        if self.role is not Role.COLLECTING or not self._census.has_all(self.peers):
            return
        if self.own.is_breaking and self.own.is_awaiting:
            return
        best = self._census.better_than(self.log, self.peers)
        if best is not None:
            is_same = best.base <= len(self.log) and self._adopt(best.base, best.tail)
            if not is_same or self.own.is_lost or self._census.better_than(self.log, self.peers):
                self._leave("another agent has a better log, which has other entries or has lost this node")
                return
        self.role = Role.LEADING
        self._say_again()
        self._offset_s = now - self.log.now
        for peer, length in self._census.split(self.log):
            if length is not None:
                self._followers.know(peer, length)
            else:
                self._send(peer, Expel(reason=f"{self.node} leads now with a log that yours is no beginning of"))
                del self.peers[peer]
        if self.own.is_breaking:
            self._close_round(now)
            self.own.is_breaking = False
        for peer in self.peers:
            self._send(peer, self._followers.tell(peer, self.peers[peer], term=self.term))
        self._sequence(now)

    def _close_round(self, now: float) -> None:
        """Put the losses and the end of the broken iteration into the log."""
        ended = self._census.ended(self.own.ended, self.log.in_flight)
        while (node := self._roll.first_unreachable()) is not None:
            self._sequence_one(events.NodeLost(node=node), now)
        for event in ended.events() if ended is not None else ():
            self._sequence_one(event, now)
        if self.log.in_flight is not None:
            round, iteration = self.log.in_flight
            reason = self.own.broken.reason if self.own.broken else "a member is gone"
            self._sequence_one(events.IterationAborted(round=round, iteration=iteration, reason=reason), now)

    def _leave(self, reason: str) -> None:
        self.role = Role.OUT
        self.lead = None
        self._do(Expelled(reason=reason))

    # Without a lead.

    def _look_for_lead(self) -> None:
        """The lead is gone: the first present node that can be reached claims the next term, the others wait."""
        if self._roll.first_reached() == self.node:
            self._claim()
        else:
            self._do(Look())

    def _judge_look(self, term: int, lead: str, members: tuple[str, ...]) -> None:
        self._newest = max(self._newest, term)
        if term > self.term and self.life not in members:
            self._leave(f"term {term} began without this node, which was taken for lost")
        elif term > self.term and lead not in self.peers.values() and self._num_looks < PATIENCE_LOOKS:
            self._look_for_lead()  # it was lost before it could say a word
        elif self._num_looks < PATIENCE_LOOKS:
            self._do(Look())
        elif term > self.term and lead in self.peers.values():
            self._leave(f"term {term} began, and its lead does not talk to this node")
        elif self._roll.reaches(self.node):
            self._claim()  # whoever ought to does not
        else:
            self._leave("the lead is gone, and no node of the job can be reached")

    def _step_down(self) -> None:
        self.role = Role.FOLLOWING
        self.lead = None
        self._num_looks = 0
        self._waiting.clear()

    # Leading.

    def _on_propose(self, peer: NodeId, message: Propose) -> None:
        if self.role is Role.LEADING:
            self._waiting.add(peer, message)

    def _on_broke(self, message: Broke) -> None:
        if message.round != self.log.scheduler.round or self.role in (Role.FOLLOWING, Role.OUT):
            return
        self.own.broken = self.own.broken or message
        if self.role is Role.LEADING or (self.role is Role.COLLECTING and not self.own.is_breaking):
            self._claim()

    def _sequence(self, now: float) -> None:
        """Give places to what waits, as far as the iteration in flight allows."""
        if self.role is not Role.LEADING:
            return
        while self.log.in_flight is None or self.own.ended is not None:
            lost = self._roll.first_unreachable()
            if lost is not None:
                self._sequence_one(events.NodeLost(node=lost), now)
            elif (proposal := self._waiting.pop()) is not None:
                self._sequence_one(proposal.event, now, proposal.origin, proposal.number)
            elif self.own.ended is not None:
                for event in self.own.ended.events():
                    self._sequence_one(event, now)
            else:
                break
        for peer in self.peers:
            if self._followers.lacks(peer):
                self._send(peer, self._followers.tell(peer, self.peers[peer], term=self.term))
        if self.own.is_awaiting and (self._waiting or self._roll.first_unreachable()):
            self._do(Vote())
        if self._roll.has_left(self.lead):
            self._step_down()
            self._look_for_lead()

    def _sequence_one(self, event: Event, now: float, origin: str = "", number: int = 0) -> None:
        stamp = max(self.log.now, now - self._offset_s)
        entry = Entry(now=stamp, event=event, term=self.term, origin=origin, number=number)
        self._actions += self.own.fold([entry])

    # Following.

    def _on_append(self, peer: NodeId, message: Append | Install, now: float) -> None:
        if message.term < self.term or (message.term == self.term and self.role is not Role.FOLLOWING):
            return
        if message.term > self.term or self.lead != peer:
            self._follow(peer, message.term)
        if self._heard_term != message.term:
            self._heard_term = message.term
            self._say_again()
        self._queue.append(message)
        self._go_on(now)

    def _drain(self) -> None:
        """Fold what has come, as far as the own task and the order of things allow."""
        while self._queue and not self.own.is_awaiting:
            message = self._queue[0]
            if isinstance(message, Append) and message.base > len(self.log):
                return
            del self._queue[0]
            if isinstance(message, Install):
                if not self.own.install(message.state):
                    self._leave("the lead does not keep entries that this node lacks, and has orders in")
                    return
                self._do(Installed(length=len(self.log)))
            elif not self._adopt(message.base, message.entries) or self.own.is_lost:
                self._leave("the log of the lead has other entries, or has lost this node")
                return
            self.own.is_breaking = False
            if self._roll.has_left(self.lead):
                self._step_down()
                self._look_for_lead()
                return

    # Both.

    def _go_on(self, now: float) -> None:
        """The own task's iteration is over, or something has come: do what waited for it."""
        if self.role is Role.FOLLOWING:
            self._drain()
            if self.role is Role.FOLLOWING:
                self._answer()
        elif self.role is Role.COLLECTING:
            self._try_install(now)
        else:
            self._sequence(now)

    def _adopt(self, base: int, entries: tuple[Entry, ...]) -> bool:
        folded = self.own.adopt(base, entries)
        self._actions += folded or []
        return folded is not None

    def _say_again(self) -> None:
        """Tell the lead everything that has no place yet."""
        for proposal in self.own.outbox:
            if self.lead == self.node:
                self._waiting.add(self.node, proposal)
            elif self.lead is not None and self.lead in self.peers:
                self._send(self.lead, proposal)

    def _send(self, to: NodeId, message: Message) -> None:
        self._do(Send(to=to, message=message))

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _take(self) -> list[Action]:
        """Actions since the last call; messages first, so that others begin while this node still performs."""
        actions, self._actions = self._actions, []
        return sorted(actions, key=lambda action: not isinstance(action, Send))
