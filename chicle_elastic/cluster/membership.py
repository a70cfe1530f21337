"""A node's place in the job: it finds the others, shares their log, and begins another life when it was taken for lost.

    begin    the store says who leads: link to it; nobody does: claim the first term
    follow   the lead sends its log; link to all present nodes
    joined   `NodeJoined` is in the log: from now on orders for this node are performed
    out      this life is over (a newer term began without it): clean up, then begin another one

Everything runs in the loop; the rendezvous store is asked by worker threads. What is decided is decided in `replica`.
"""

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from chicle_elastic.cluster.entries import Ended
from chicle_elastic.cluster.event_loop import EventLoop, Timer
from chicle_elastic.cluster.log_messages import (
    Action,
    Append,
    BreakGroup,
    Claim,
    Expelled,
    Folded,
    Installed,
    Look,
    Message,
    Send,
    Vote,
    decode_message,
    encode_message,
)
from chicle_elastic.cluster.mesh import Mesh, Peer, new_life
from chicle_elastic.cluster.replica import Replica, Role
from chicle_elastic.cluster.steps import event_name, reach
from chicle_elastic.cluster.term_key import Contact, Term, TermKey
from chicle_elastic.errors import ChicleError, ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.events import Event
from chicle_elastic.scheduling.machine import Scheduler
from chicle_elastic.transports.carrier import Offer
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.values import ChunkInfo

LOOK_S = 0.1
HEAL_S = 1.0
WELCOME_S = 2.0
"""How long the agent that the store names may take to send its log."""
UNREACHABLE_S = 6.0
"""After so long without any agent of the job that can be reached, a newcomer begins the job afresh."""
REFUSED_S = 6.0
"""How long another agent of this node's name may take to be found dead."""
MAX_ENTRIES = 2000
"""Entries in one message."""

logger = logging.getLogger(__name__)


class Users(Protocol):
    """Whoever performs what the log orders; called in the loop."""

    def folded(self, folded: Folded) -> None:
        """An entry was folded."""
        ...

    def installed(self, length: int) -> None:
        """This node joins with the state of a log of so many entries, and without these."""
        ...

    def vote(self) -> None:
        """The own task is to vote for a stop at the next boundary."""
        ...

    def break_group(self, reason: str) -> None:
        """The own task is to end its iteration: it waits for somebody who is gone."""
        ...

    def expelled(self, reason: str) -> None:
        """This life is over; `begin` begins another one."""
        ...

    def enters(self, job: int) -> bool:
        """This node is about to join; False if it still has to get ready, because it knows another job.

        Args:
            job: Number of the job: a job that nobody survived is begun afresh under another one.
        """
        ...

    def peer_up(self, peer: Peer) -> None:
        """There is a link to another agent."""
        ...

    def peer_down(self, peer: Peer, reason: str) -> None:
        """An agent is gone."""
        ...

    def peer_says(self, peer: Peer, message: dict[str, Any]) -> None:
        """A message that is not about the log."""
        ...

    def failed(self, error: ChicleError) -> None:
        """This agent cannot take part in the job at all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this node is, and in which job.

    Attributes:
        node: Its name.
        host: Address of this host, for others.
        capacity_bytes: Memory for chunks.
        max_nodes: Nodes that the job has at most.
        offer: How to fetch chunks from here.
        chunks: The data set.
        job: What has to be the same at all agents.
        merged: Iteration of the checkpoint that this node would go on from; 0 for none.
    """

    node: NodeId
    host: str
    capacity_bytes: int
    max_nodes: int
    offer: Offer
    chunks: tuple[ChunkInfo, ...]
    job: Mapping[str, Any]
    merged: int = 0


class Membership:
    """See the top of the module.

    Args:
        loop: Whose thread this runs in.
        identity: Who this node is.
        secret: Of the job.
        term_key: The terms in the store.
        make_scheduler: Makes the scheduler of a life; the same settings at all agents.
        is_ready: Whether the node could join now.
        require_open: Raises JobClosedError when the job has ended; called in a worker thread.
        users: Called with what happens.

    Attributes:
        replica: Of this life.
        mesh: Links to other agents.
    """

    def __init__(
        self,
        loop: EventLoop,
        identity: Identity,
        *,
        secret: JobSecret,
        term_key: TermKey,
        make_scheduler: Callable[[], Scheduler],
        is_ready: Callable[[], bool],
        require_open: Callable[[], None],
        users: Users,
    ) -> None:
        self.identity = identity
        self.mesh = Mesh(loop, secret, node=identity.node, host=identity.host, users=self)
        self._loop, self._terms, self._users = loop, term_key, users
        self._make_scheduler, self._is_ready, self._require_open = make_scheduler, is_ready, require_open
        self.replica = self._new_replica()
        self._todo: deque[Action] = deque()
        self._is_performing = False
        self._unsent: dict[NodeId, list[Any]] = {}
        self._is_settling = False
        self._has_announced = False
        self._is_leaving = False
        self._tries_since_s = self._contact_s = loop.now()
        self._term = Term()
        self._timers: list[Timer] = []
        self._finding: set[NodeId] = set()

    # What the agent asks for.

    def begin(self) -> None:
        """Begin a life: find the others, or be the first."""
        self.replica = self._new_replica()
        self._has_announced = False
        self._tries_since_s = self._loop.now()
        identity = self.identity
        self._contact_s = self._tries_since_s
        self.mesh.open(life=self.replica.life, offer=identity.offer, job=identity.job)
        self._later(HEAL_S, lambda: self._mend(self.replica))
        self._arrive()

    def propose(self, event: Event) -> None:
        """Something happened on this node."""
        self._act(self.replica.propose(event, now=self._loop.now()))

    def iteration_ended(self, ended: Ended, *, votes: int, goes_on: bool = False) -> None:
        """The own task has merged an iteration, and may have begun the next one."""
        self._act(self.replica.iteration_ended(ended, votes=votes, now=self._loop.now(), goes_on=goes_on))

    def iteration_broke(self, round: int, iteration: int, reason: str, *, merged: Ended | None = None) -> None:
        """The own task cannot end an iteration."""
        self._act(self.replica.iteration_broke(round, iteration, reason, now=self._loop.now(), merged=merged))

    def announce(self) -> None:
        """Ask to take part, if everything for that is there; to be called whenever something changed."""
        log, node = self.replica.log, self.identity.node
        has_log = len(log) > 0 or self.replica.role is Role.LEADING
        if self._has_announced or self._is_leaving or not has_log or not self._is_ready():
            return
        if node in log.present:
            return  # an earlier life, which the lead will find dead
        unreached = [other for other in log.present if other not in self.mesh.peers]
        for other in unreached:
            self._find(other)
        job = log.first_term or self.replica.term
        if unreached or len(log.present) >= self.identity.max_nodes or not self._users.enters(job):
            return
        self._has_announced = True
        reach("join.before_announce")
        life, contact = self.replica.life, self._contact()

        def join(_: object) -> None:
            if life != self.replica.life or not self._has_announced:
                return
            if not self.replica.log.scheduler.ledger.num_chunks:
                self.propose(events.ChunksDeclared(chunks=self.identity.chunks, merged=self.identity.merged))
            self.propose(events.NodeJoined(node=node, capacity_bytes=self.identity.capacity_bytes))
            reach("join.announced")

        # Only now: an agent that is not taken must not be found in the place of another one of its name.
        self._ask_store(lambda: self._terms.publish(node, contact), join)

    def would_go_on_from(self, merged: int) -> None:
        """A new task has found this checkpoint; of account only if this node begins the job."""
        self.identity = dataclasses.replace(self.identity, merged=merged)

    def task_is_gone(self) -> None:
        """The task died alone: this node takes no part until it announces itself again."""
        self._has_announced = False
        if self.identity.node in self.replica.log.present:
            self.propose(events.NodeLost(node=self.identity.node))

    def stop(self) -> None:
        """This node leaves, or the job is over: what becomes of the others does not matter any more."""
        self._is_leaving = True

    def close(self) -> None:
        """Hang up on everybody."""
        self.stop()
        self.mesh.end_life()
        for timer in self._timers:
            timer.cancel()

    # Arriving.

    def _new_replica(self) -> Replica:
        node = self.identity.node
        return Replica(node, new_life(node), self._make_scheduler())

    def _contact(self) -> Contact:
        return Contact(life=self.replica.life, address=self.mesh.address)

    def _arrive(self) -> None:
        """Look who leads, until somebody has sent the log."""
        life = self.replica.life

        def look() -> Term:
            self._require_open()
            return self._terms.look()

        def then(term: Term) -> None:
            if life != self.replica.life or self.replica.term or self._is_leaving:
                return
            waited_s = self._loop.now() - self._contact_s
            if term.term and waited_s <= UNREACHABLE_S:
                self.mesh.dial(term.address, expect=term.lead)
                self._later(LOOK_S, self._arrive)
                return
            if term.term:
                logger.warning("no agent of the job was reached for %.0f s; %s begins it afresh", waited_s, life)
            self._claim(Claim(term=term.term + 1, members=(life,)))

        self._ask_store(look, then)

    def _find(self, node: NodeId) -> None:
        """Make a link to a node, by the address that it has put into the store."""
        if node in self.mesh.peers or node == self.identity.node or node in self._finding:
            return
        self._finding.add(node)

        def then(contact: Contact | None) -> None:
            self._finding.discard(node)
            if contact is not None and node not in self.mesh.peers and not self._is_leaving:
                self.mesh.dial(contact.address, expect=contact.life)
            self._later(LOOK_S, self.announce)

        self._ask_store(lambda: self._terms.find(node), then)

    def _mend(self, replica: Replica) -> None:
        """As long as this life lasts, make the links to present nodes that are missing.

        They were cut; or others joined while this node asked to, and one of them leads now.
        """
        if replica is not self.replica or replica.role is Role.OUT:
            return
        for node in replica.log.present:
            self._find(node)
        self._later(HEAL_S, lambda: self._mend(replica))

    # What the mesh tells.

    def peer_up(self, peer: Peer) -> None:
        """Of `Neighbours`."""
        self._contact_s = self._loop.now()
        self._act(self.replica.connected(peer.node, peer.life, now=self._loop.now()))
        self._users.peer_up(peer)
        if not self.replica.term:
            self._later(WELCOME_S, self._look_elsewhere)
        self.announce()

    def peer_down(self, peer: Peer, reason: str) -> None:
        """Of `Neighbours`."""
        logger.info("%s loses %s: %s", self.replica.life, peer.life, reason)
        if self._is_leaving:
            return
        self._users.peer_down(peer, reason)
        self._act(self.replica.lost(peer.node, now=self._loop.now()))
        if not self.replica.term:
            self._later(LOOK_S, self._arrive)

    def peer_says(self, peer: Peer, message: dict[str, Any]) -> None:
        """Of `Neighbours`."""
        if message["kind"] == "log":
            messages = message.get("messages")
            if not isinstance(messages, list):
                raise ProtocolError(f"{peer.life} says {str(message)[:60]!r} about the log")
            for said in map(decode_message, messages):
                self._act(self.replica.received(peer.node, said, now=self._loop.now()))
            self.announce()
        else:
            self._users.peer_says(peer, message)

    def refused(self, who: str, reason: str) -> None:
        """Of `Neighbours`."""
        self._contact_s = self._loop.now()  # the job is alive, whatever it thinks of this node
        # The reason may be an earlier life of this node, which they are about to find dead.
        if not self._has_announced and self._loop.now() - self._tries_since_s > REFUSED_S:
            self._users.failed(ProtocolError(f"{who} does not take {self.identity.node}: {reason}"))

    def _look_elsewhere(self) -> None:
        """An agent that was expected to send its log has not: perhaps it does not lead any more."""
        if not self.replica.term and not self._is_leaving:
            for node in list(self.mesh.peers):
                self.mesh.drop(node, "it sends no log")

    # What the replica asks for.

    def _act(self, actions: list[Action]) -> None:
        """Something was told to the replica: perform what it asks for, and settle at the end of this turn."""
        self._perform_all(actions)
        if not self._is_settling and (self._unsent or self.replica.has_waiting):
            self._is_settling = True
            self._loop.soon(self._settle)

    def _settle(self) -> None:
        """At the end of a turn of the loop: what came in it is sequenced together, and sent together."""
        self._is_settling = False
        self._perform_all(self.replica.settle(now=self._loop.now()))
        unsent, self._unsent = self._unsent, {}
        for node, messages in unsent.items():
            self.mesh.send(node, "log", messages=messages)

    def _perform_all(self, actions: list[Action]) -> None:
        """Perform actions in their order; what they lead to comes behind them."""
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
            self._unsent.setdefault(action.to, []).extend(map(encode_message, _split(action.message)))
        elif isinstance(action, Folded):
            reach("log.appended", event=event_name(action.entry.event))
            self._users.folded(action)
            self._after_fold(action)
        elif isinstance(action, Installed):
            self._users.installed(action.length)
        elif isinstance(action, Vote):
            self._users.vote()
        elif isinstance(action, BreakGroup):
            self._users.break_group(action.reason)
        elif isinstance(action, Claim):
            self._claim(action)
        elif isinstance(action, Look):
            self._later(LOOK_S, self._look)
        elif isinstance(action, Expelled):
            logger.warning("%s is out of the job: %s", self.replica.life, action.reason)
            self.mesh.end_life()
            self._todo.clear()
            self._unsent.clear()
            self._users.expelled(action.reason)

    def _after_fold(self, folded: Folded) -> None:
        event = folded.entry.event
        if isinstance(event, events.NodeJoined) and event.node != self.identity.node and self.replica.own.is_live:
            self._find(event.node)  # both joined at one boundary, and neither knew of the other
        if isinstance(event, events.NodeLost) and folded.lost_life:
            # Only that life: in an old entry, or a late one, the node may have joined again since.
            peer = self.mesh.peers.get(event.node)
            if peer is not None and peer.life == folded.lost_life:
                self.mesh.drop(event.node, "it is not in the job any more")

    def _claim(self, claim: Claim) -> None:
        reach("lead.before_claim", term=claim.term)
        replica, contact = self.replica, self._contact()

        def then(answer: tuple[bool, Term]) -> None:
            is_granted, term = answer
            if replica is not self.replica:
                return
            if is_granted:
                reach("lead.claimed", term=claim.term)
                self._term = term
                self._later(HEAL_S, self._heal)
                self._act(replica.claimed(claim.term, now=self._loop.now()))
                self.announce()
            else:
                self._act(replica.refused(term.term, term.lead, term.members, now=self._loop.now()))
                if not replica.term and not len(replica.log):
                    self._later(LOOK_S, self._arrive)

        self._ask_store(lambda: self._terms.claim(claim.term, contact, claim.members), then)

    def _look(self) -> None:
        replica = self.replica

        def then(term: Term) -> None:
            if replica is self.replica:
                self._act(replica.looked(term.term, term.lead, term.members, now=self._loop.now()))

        self._ask_store(self._terms.look, then)

    def _heal(self) -> None:
        """As long as this agent leads, look after the value in the store."""
        term = self._term
        if self.replica.role is Role.LEADING and self.replica.term == term.term and not self._is_leaving:
            self._ask_store(lambda: self._terms.heal(term), lambda _: self._later(HEAL_S, self._heal))

    # How.

    def _ask_store(self, ask: Callable[[], Any], then: Callable[[Any], object]) -> None:
        def done(future: "Future[Any]") -> None:
            if self._is_leaving:
                return
            try:
                answer = future.result()
            except ChicleError as error:
                self._users.failed(error)
                return
            then(answer)

        self._loop.work(ask, done)

    def _later(self, delay_s: float, call: Callable[[], object]) -> None:
        self._timers = [timer for timer in self._timers if timer.is_due]
        self._timers.append(self._loop.later(delay_s, lambda: None if self._is_leaving else call()))


def _split(message: Message) -> list[Message]:
    """A log that is too long for one message comes in several."""
    if not isinstance(message, Append) or len(message.entries) <= MAX_ENTRIES:
        return [message]
    starts = range(0, len(message.entries), MAX_ENTRIES)
    return [
        Append(term=message.term, base=message.base + start, entries=message.entries[start : start + MAX_ENTRIES])
        for start in starts
    ]
