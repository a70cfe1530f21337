"""One agent's replica of the log and its part in keeping all replicas equal. Pure: messages in, actions out.

The theory of operation is in the docstring of the room (`cluster.consensus`).
"""

from chicle_elastic.cluster.consensus import election
from chicle_elastic.cluster.consensus.election import Election, Role
from chicle_elastic.cluster.consensus.entries import Ended, Entry
from chicle_elastic.cluster.consensus.followers import Followers
from chicle_elastic.cluster.consensus.link_reports import LinkReporter, LinkReports
from chicle_elastic.cluster.consensus.log import KEPT_ENTRIES
from chicle_elastic.cluster.consensus.messages import (
    Action,
    Append,
    BreakGroup,
    CheckTerm,
    Claim,
    Electorates,
    Expel,
    Expelled,
    GroupFailed,
    Install,
    Installed,
    LinkReport,
    LogPosition,
    Message,
    NewTerm,
    Paused,
    Propose,
    Refusal,
    Released,
    Send,
    SteppedDown,
    Term,
    Vote,
)
from chicle_elastic.cluster.consensus.node_log import NodeLog
from chicle_elastic.cluster.consensus.patience import Patience
from chicle_elastic.cluster.consensus.proposals import PendingProposal
from chicle_elastic.cluster.consensus.reachability import Authority, Reachability
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.events import Event
from chicle_elastic.scheduling.scheduler import Scheduler


class Replica:
    """The log of one agent. Every call returns the actions to perform; `settle` comes last.

    One class because it is one state machine, whose answers to all messages follow from the same variables.

    Args:
        life: Name of this incarnation of the node, unique in the job; a node that rejoins has another one.
        scheduler: Has handled nothing yet; with the same settings at all agents.
    """

    def __init__(self, node: NodeId, life: str, scheduler: Scheduler, *, kept: int = KEPT_ENTRIES) -> None:
        self.node, self.life = node, life
        self.own = NodeLog(node, life, scheduler, kept=kept)
        self.log = self.own.log
        self.role = Role.FOLLOWING
        self.lead: NodeId | None = None
        self.term = self._newest = self._claimed_term = 0
        self._reachability = Reachability(node, life, self.log)
        self.peers = self._reachability.peers
        self.is_paused = False
        self._actions: list[Action] = []
        # As a follower.
        self._question: NewTerm | None = None
        self._queue: list[Append | Install] = []
        self._patience = Patience()
        self._link_reporter = LinkReporter()
        # As the leader, or while becoming it.
        self._waiting = PendingProposal(self.log)
        self._election = Election()
        self._followers = Followers(self.log)
        self._link_reports = LinkReports(node, self.log, self._reachability)
        self._offset_s = 0.0
        # A claim may follow on these terms in the store, and on no other: this node heard the leader of the one, and
        # was counted in by the other. The number of its own term proves nothing, as a refused candidate has one too.
        self._settled_term = self._approved_term = 0

    # Called by the membership.

    def connected(self, peer: NodeId, life: str, *, now: float) -> list[Action]:
        """The link to another agent is up; `lost` was called for an earlier link to that node."""
        if self.role is Role.OUT:
            return []
        self.peers[peer] = life
        if self.role is Role.LEADING:
            self._send(peer, self._followers.tell(peer, self.peers[peer], term=self.term))
        elif self.role is Role.COLLECTING:
            self._ask(peer)
        elif self.role is Role.FOLLOWING:
            self._say_again() if peer == self.lead else self._report_links()
        return self._take()

    def lost(self, peer: NodeId, *, now: float) -> list[Action]:
        """The link to another agent is gone, and the agent with it."""
        if self.role is Role.OUT or peer not in self.peers:
            return []
        del self.peers[peer]
        self._followers.forget(peer)
        self._election.drop(peer)
        self._waiting.drop(peer)
        if self.role in (Role.LEADING, Role.COLLECTING):
            # The store granted a term in which this peer was reached; the lost peer may ask for the next one.
            self._claim()
        elif self.role is Role.FOLLOWING and self.lead in (None, peer):
            self._look_for_lead()
        elif self.role is Role.FOLLOWING:
            self._report_links()
        return self._take()

    def is_dead(self, life: str) -> list[Action]:
        """An incarnation has ended: its host refuses connections to its port."""
        self._reachability.dead.add(life)
        if self.role is Role.FOLLOWING and self.lead is None and self.is_paused:
            self._look_for_lead()
        return self._take()

    def check_links(self, *, now: float) -> list[Action]:
        """To be called twice a second: declares a node lost that other nodes cannot hear, if that stops the job."""
        if self.role is Role.LEADING and (victim := self._link_reports.victim(self.peers, now)) is not None:
            self._reachability.evicted.add(self.log.lives[victim])
            self._claim()
        return self._take()

    def received(self, peer: NodeId, message: Message, *, now: float) -> list[Action]:
        """A message has come from a connected agent."""
        if self.role is Role.OUT or peer not in self.peers:
            return []
        if isinstance(message, Propose):
            if self.role is Role.LEADING:
                self._waiting.add(peer, message)
        elif isinstance(message, Append | Install):
            self._on_append(peer, message, now)
        elif isinstance(message, NewTerm):
            self._on_new_term(peer, message)
        elif isinstance(message, LogPosition):
            if self.role is Role.COLLECTING and message.term == self.term:
                self._election.add(peer, message)
                self._try_install(now)
        elif isinstance(message, GroupFailed):
            self._on_broke(message)
        elif isinstance(message, Refusal):
            self._on_refusal(message)
        elif isinstance(message, SteppedDown):
            if self.role is Role.FOLLOWING and self.lead == peer:
                self._look_for_lead()
        elif isinstance(message, LinkReport):
            self._link_reports.add(peer, message, now)
        elif isinstance(message, Released):
            self._reachability.released[self.peers[peer]] = message
        else:
            self._leave(f"{peer} has expelled this node: {message.reason}")
        return self._take()

    def propose(self, event: Event, *, now: float) -> list[Action]:
        """Propose an event of this node."""
        if self.role is Role.OUT:
            return []
        proposal = self.own.outbox.add(event)
        if self.role is Role.FOLLOWING and self.lead is not None:
            self._send(self.lead, proposal)
        elif self.role is Role.LEADING:
            self._waiting.add(self.node, proposal)
        return self._take()

    @property
    def may_claim(self) -> bool:
        """Whether the nodes that this one reaches may go on without the others, if the store agrees."""
        return self._reachability.authority() is not Authority.NONE

    @property
    def has_waiting(self) -> bool:
        """Whether `settle` is to be called."""
        return bool(self._waiting)

    def settle(self, *, now: float) -> list[Action]:
        """All calls of this turn of the loop are made: sequence what was proposed."""
        self._sequence(now)
        return self._take()

    def iteration_ended(self, ended: Ended, *, votes: int, now: float, goes_on: bool = False) -> list[Action]:
        """The task of this node has merged an iteration.

        Args:
            goes_on: The task has begun the next one by itself; only where the log was steady, and without votes.
        """
        if self.role is Role.OUT or not self.own.ends(ended.round, ended.iteration):
            return []
        if votes:
            self.own.ended = ended
        else:
            self._actions += self.own.fold(self.log.in_band(ended), goes_on=goes_on)
            assert not goes_on or self.log.in_flight == (ended.round, ended.iteration + 1)
            self._followers.have_all(filter(self._reachability.reaches, self.log.members))
        self._go_on(now)
        return self._take()

    def iteration_broke(
        self, round: int, iteration: int, reason: str, *, now: float, merged: Ended | None = None
    ) -> list[Action]:
        """The task of this node cannot complete an iteration; `merged` if it got as far as the merge."""
        if self.role is Role.OUT or not self.own.ends(round, iteration):
            return []
        self.own.ended = merged
        self.own.broken = GroupFailed(round=round, iteration=iteration, reason=reason)
        if self.role is Role.LEADING or (self.role is Role.COLLECTING and not self.own.is_breaking):
            self._claim()
        elif self.role is Role.FOLLOWING and self.lead is not None and not self.own.is_breaking:
            self._send(self.lead, self.own.broken)
        self._go_on(now)
        return self._take()

    def claimed(self, term: int, *, now: float) -> list[Action]:
        """The store has granted a claim."""
        may_begin = self.role is Role.CLAIMING or (self.role is Role.FOLLOWING and self.may_claim)  # paused meanwhile
        if term <= self.term or not may_begin:
            return []
        self._approved_term = max(self._approved_term, term)
        self._collect(term, now, is_stored=True)
        return self._take()

    def stored(self, term: Term, *, now: float) -> list[Action]:
        """The store holds this term, where a leader keeps its own. One that is as new, of a candidate that could not
        lead, would send all joining nodes there."""
        if (term.term, term.lead) == (self.term, self.life):
            self._reachability.is_stored = True
        elif self.role is Role.LEADING and term.term >= self.term:
            self._newest = max(self._newest, term.term)
            self._collect(self._newest + 1, now) if self._reachability.is_majority else self._claim()
        return self._take()

    def refused(self, term: Term, *, now: float) -> list[Action]:
        """The store has granted this term to another agent."""
        if self.role is Role.CLAIMING:
            self._step_down()
            self._patience.refuse()
            self._judge_look(term)
        return self._take()

    def store_unreachable(self, *, now: float) -> list[Action]:
        """The store did not answer the last claim or look: a majority goes on without it."""
        if self.role is Role.CLAIMING:
            if self._reachability.is_majority:
                self._collect(self._claimed_term, now)
            else:
                self._pause("the rendezvous store is unreachable, and" if self.may_claim else "")
        elif self.role is Role.FOLLOWING and self.lead is None:
            self._patience.looked()
            self._judge_look(Term(members=(self.life,)))  # nothing was read: no term is approved by it, nor its own
        return self._take()

    def looked(self, term: Term, *, now: float) -> list[Action]:
        """The membership has read the newest term from the store."""
        if self.role is Role.FOLLOWING and self.lead is None:
            self._patience.looked()
            self._judge_look(term)
        return self._take()

    @property
    def electorates(self) -> Electorates:
        """Return those that the store is to keep with a term of this node."""
        return self._reachability.electorates

    # Terms.

    def _claim(self) -> None:
        """A new term is due: ask the store for it, if the nodes that this one reaches may go on without the others."""
        if not self.may_claim:
            self._pause("")
            return
        self.role = Role.CLAIMING
        self._waiting.clear()
        self._claimed_term = max(self.term, self._newest) + 1
        known = max(self._settled_term, self._approved_term)
        self._do(Claim(term=self._claimed_term, known=known, members=self._reachability.call()))

    def _collect(self, term: int, now: float, *, is_stored: bool = False) -> None:
        """Begin a term: ask all agents for the positions of their logs."""
        self.term, self._reachability.is_stored = term, is_stored
        self.role, self.lead = Role.COLLECTING, self.node
        self._election.clear()
        if not self._reachability.is_complete():
            self._claim()
            return
        if self.log.in_flight and (self.own.broken is not None or self._reachability.is_a_member_gone()):
            self._break(self.own.why_broken)
        for peer in self.peers:
            self._ask(peer)
        self._try_install(now)

    def _pause(self, why: str) -> None:
        """Wait until this node reaches more of the others."""
        if self.role is not Role.FOLLOWING:
            for peer in self.peers:
                self._send(peer, SteppedDown(term=self.term))
        self._step_down()
        if not self.is_paused:
            self.is_paused = True
            self._do(Paused(reason=f"{why} {self._reachability.who_is_missing()}".strip()))
        self._do(CheckTerm())

    def _resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._do(Paused(reason=None))

    def _ask(self, peer: NodeId) -> None:
        unreached = self._reachability.unreached()
        self._send(peer, election.ask(self.log, term=self.term, is_breaking=self.own.is_breaking, unreached=unreached))

    def _on_new_term(self, peer: NodeId, message: NewTerm) -> None:
        if not self._yields_to(peer, message):
            self._send(peer, election.refuse(self.own, message, self.peers[peer], term=max(self.term, self._newest)))
            return
        self._follow(peer, message.term)
        self._question = message
        if message.is_breaking:
            self._break(f"the new leader {peer} says that the iteration cannot end")
        self._answer()

    def _yields_to(self, peer: NodeId, question: NewTerm) -> bool:
        """Whether to follow a new leader, once per term."""
        if self.role is Role.COLLECTING and question.term == self.term:  # two candidates, and the store did not decide
            present = self.log.present
            return peer in present and (self.node not in present or present.index(peer) < present.index(self.node))
        is_led = self.role is Role.FOLLOWING and self.lead is not None and self.lead != peer
        leader = self.peers.get(self.lead, "") if is_led and self.lead is not None else ""
        return question.term > self.term and leader not in question.unreached

    def _on_refusal(self, message: Refusal) -> None:
        self._newest = max(self._newest, message.term)
        if self.role is Role.COLLECTING:
            self._step_down()
            self._patience.shorten()
            self._do(CheckTerm())

    def _report_links(self) -> None:
        """Tell the leader which present nodes this one cannot reach."""
        if self.lead is None or self.lead not in self.peers or not self.own.is_live:
            return
        unreached, left_out_of = self._reachability.unreached(), self._reachability.left_out_of()
        if (report := self._link_reporter.report(self.term, unreached, left_out_of)) is not None:
            self._send(self.lead, report)

    def _answer(self) -> None:
        """Answer with the position of this log, once the iteration that breaks cannot extend it any more."""
        question = self._question
        if question is None or self.lead is None or self._holds_back():
            return
        self._question = None
        said = election.answer(self.log, question, asker=self.peers.get(self.lead, ""), ended=self.own.ended)
        self._send(self.lead, said)
        if self.own.broken is not None and not self.own.is_breaking:
            self._send(self.lead, self.own.broken)

    def _holds_back(self) -> bool:
        """Say whether the iteration of the task may still extend this log: it breaks, or entries of the leader before
        wait for its end. These are entries like all others: that leader may have left with what they order."""
        ends = (said.base + len(said.entries) for said in self._queue if isinstance(said, Append))
        return self.own.is_awaiting and (self.own.is_breaking or max(ends, default=0) > len(self.log))

    def _follow(self, lead: NodeId, term: int) -> None:
        self.lead, self.term, self.role = lead, term, Role.FOLLOWING
        self._resume()
        self._patience.end()
        self._waiting.clear()
        self._question = None

    def _break(self, reason: str) -> None:
        self.own.is_breaking = True
        if self.own.is_awaiting:
            self._do(BreakGroup(reason=reason))

    def _try_install(self, now: float) -> None:
        """When all reachable agents have answered, the most complete log becomes the log of all."""
        if self.role is not Role.COLLECTING or not self._election.has_all(self.peers):
            return
        self._drain()
        if self.role is not Role.COLLECTING or self._holds_back():
            return
        best = self._election.better_than(self.log, self.peers)
        if best is not None:
            is_same = best.base <= len(self.log) and self._adopt(best.base, best.tail)
            if not is_same or self.life in self.own.lost or self._election.better_than(self.log, self.peers):
                self._leave("another agent has a better log, which has other entries or has lost this node")
                return
        if self._reachability.authority() < (Authority.STORE if self._reachability.is_stored else Authority.MAJORITY):
            self._pause("")  # by the better log there are more nodes that may go on without this one
            return
        self.role = Role.LEADING
        self._settled_term, self._reachability.stored = self.term, ()
        self._resume()
        self._link_reports.clear()
        self._say_again()
        self._offset_s = now - self.log.now
        for peer, length in self._election.split(self.log):
            if length is not None:
                self._followers.know(peer, length)
            else:
                self._send(peer, Expel(reason=f"its log has entries that the log of the leader {self.node} lacks"))
                del self.peers[peer]
        if self.own.is_breaking:
            self._close_round(now)
            self.own.is_breaking = False
        for peer in self.peers:
            self._send(peer, self._followers.tell(peer, self.peers[peer], term=self.term))
        self._sequence(now)

    def _close_round(self, now: float) -> None:
        """Append the losses and the end of the broken iteration to the log."""
        ended = self._election.ended(self.own.ended, self.log.in_flight)
        while (node := self._reachability.first_unreachable()) is not None:
            self._sequence_one(events.NodeLost(node=node), now)
        for event in ended.events() if ended is not None else ():
            self._sequence_one(event, now)
        if self.log.in_flight is not None:
            round, iteration = self.log.in_flight
            why = self.own.why_broken
            self._sequence_one(events.IterationAborted(round=round, iteration=iteration, reason=why), now)

    def _leave(self, reason: str) -> None:
        self.role, self.lead = Role.OUT, None
        self._do(Expelled(reason=reason))

    # Without a leader.

    def _look_for_lead(self) -> None:
        """The leader is gone: the first present node that can be reached claims the next term, the others wait."""
        self.lead = None
        if self._reachability.first_reached() == self.node:
            self._claim()
        else:
            self._do(CheckTerm())

    def _judge_look(self, stored: Term) -> None:
        term, is_counted = stored.term, self.life in stored.members
        self._newest = max(self._newest, term)
        is_foreign = term > self._settled_term and not is_counted
        if is_foreign and not self._reachability.overrules(stored.members):
            self._leave(f"term {term} began without this node, which the others have declared dead")
            return
        if self._patience.doubts(is_foreign):
            self._do(CheckTerm())
            return
        self._approved_term = max(self._approved_term, term)
        if term > self._settled_term and is_counted:
            self._reachability.stored = stored.electorates
        is_lead_linked = stored.lead in self.peers.values()
        if term > self.term and not (is_counted and (is_lead_linked or self._patience.is_over)):
            self._look_for_lead()  # without this node; or the new leader was lost before it could send a message
        elif self.is_paused and not self._patience.rests and self._reachability.first_reached() == self.node:
            self._claim()
        elif not self._patience.is_over:
            self._do(CheckTerm())
        elif term > self.term and is_lead_linked:
            self._leave(f"term {term} began, and its leader sends nothing to this node")
        elif self._reachability.reaches(self.node):
            self._claim()  # the node that ought to claim the term has not done so
        else:
            self._leave("the leader is gone, and no node of the job can be reached")

    def _step_down(self) -> None:
        self.role, self.lead = Role.FOLLOWING, None
        self._patience.begin()
        self._waiting.clear()

    # Leading.

    def _on_broke(self, message: GroupFailed) -> None:
        if message.round != self.log.scheduler.round or self.role in (Role.FOLLOWING, Role.OUT):
            return
        self.own.broken = self.own.broken or message
        if self.role is Role.LEADING or (self.role is Role.COLLECTING and not self.own.is_breaking):
            self._claim()

    def _sequence(self, now: float) -> None:
        """Sequence the waiting proposals, as far as the iteration in flight allows."""
        if self.role is not Role.LEADING:
            return
        while self.log.in_flight is None or self.own.ended is not None:
            if self.own.is_live and self.own.ended is None and self._reachability.has_left(self.lead):
                break  # others may know it without a message, and go on at once: what waits is proposed to them again
            lost = self._reachability.first_unreachable()
            if lost is not None:
                self._sequence_one(events.NodeLost(node=lost), now)
            elif (proposal := self._waiting.pop(self._link_reports.awaits)) is not None:
                self._sequence_one(proposal.event, now, proposal.origin, proposal.number)
            elif self.own.ended is not None:
                for event in self.own.ended.events():
                    self._sequence_one(event, now)
            else:
                break
        for peer in self.peers:
            if self._followers.lacks(peer):
                self._send(peer, self._followers.tell(peer, self.peers[peer], term=self.term))
        if self.own.is_awaiting and (self._waiting.is_urgent or self._reachability.first_unreachable()):
            self._do(Vote())
        self._replace_leader()

    def _sequence_one(self, event: Event, now: float, origin: str = "", number: int = 0) -> None:
        stamp = max(self.log.now, now - self._offset_s)
        entry = Entry(now=stamp, event=event, term=self.term, origin=origin, number=number)
        self._actions += self.own.fold([entry])

    # Following.

    def _on_append(self, peer: NodeId, message: Append | Install, now: float) -> None:
        is_candidate = self.role is Role.COLLECTING  # and the peer leads this very term: one of the two had no store
        if message.term < self.term or (message.term == self.term and self.role in (Role.LEADING, Role.CLAIMING)):
            return
        if (message.term > self.term or is_candidate) and self.own.is_awaiting:
            self._break(f"{peer} leads a term that began without this node: its iteration is over there")
        if message.term > self.term or self.lead != peer:
            self._follow(peer, message.term)
        if self._settled_term != message.term:
            self._settled_term = message.term
            if message.term >= self._approved_term:
                self._reachability.stored = ()
            self._say_again()
        self._queue.append(message)
        self._go_on(now)

    def _drain(self) -> None:
        """Fold the received entries, as far as the task's iteration and gaps in the entries allow."""
        while self._queue and not self.own.is_awaiting:
            message = self._queue[0]
            if isinstance(message, Append) and message.base > len(self.log) and message.term == self.term:
                return
            del self._queue[0]
            if isinstance(message, Append) and message.base > len(self.log):
                continue
            if isinstance(message, Install):
                if not self.own.install(message.state):
                    self._leave("the leader no longer keeps entries that this node lacks, and that may concern it")
                    return
                self._do(Installed(length=len(self.log)))
            elif not self._adopt(message.base, message.entries) or self.life in self.own.lost:
                self._leave("the log of the leader has other entries, or has lost this node")
                return
            if message.term < self.term:
                continue  # of the leader before
            self.own.is_breaking = False
            if self._reachability.left_out_of():
                self._report_links()
            if self._replace_leader():
                return

    def _replace_leader(self) -> bool:
        """If the leader is not present any more, a present node takes over. Returns whether that is so."""
        if self.lead is None or not self._reachability.has_left(self.lead):
            return False
        self._step_down()
        self._look_for_lead()
        return True

    # Both.

    def _go_on(self, now: float) -> None:
        """The iteration of the task is over, or a message has arrived: continue what waited for it."""
        if self.role is Role.FOLLOWING:
            self._drain()
            if self.role is Role.FOLLOWING and (self._queue or not self._replace_leader()):
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
        """Send the leader all proposals of this node that are not in the log yet."""
        self._report_links()
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
        if self.own.release is not None:
            for peer in self.peers:
                self._send(peer, self.own.release)
            self.own.release = None
        actions, self._actions = self._actions, []
        return sorted(actions, key=lambda action: not isinstance(action, Send))
