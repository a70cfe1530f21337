"""The membership of a node: it finds the others, shares their log, and rejoins after the others declared it dead.

    begin    link to the leader that the store names; if there is none, claim the first term. A node that reaches no
             agent of the job begins it anew only if the leader gives no sign of life and all agents are proven dead;
             otherwise it says whom it cannot reach, and waits
    follow   the leader sends its log; link to all present nodes
    joined   `NodeJoined` is in the log: from now on this node executes the effects that concern it
    out      this incarnation is over (a newer term began without it): clean up, then begin another one

Everything runs in the event loop; worker threads ask the rendezvous store. The log (`replicated_log`) decides which
nodes are members and which one leads; this module gives it its links and its terms.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from chicle_elastic.cluster.agent.job_search import UNREACHABLE_S, JobSearch
from chicle_elastic.cluster.consensus.messages import LOG, Claim, Folded, Install, Message, Messages
from chicle_elastic.cluster.consensus.replicated_log import LogSubscriber, ReplicatedLog
from chicle_elastic.cluster.consensus.term_store import Beacon, Contact, Term, TermStore
from chicle_elastic.cluster.net.event_loop import EventLoop, Timer
from chicle_elastic.cluster.net.fault_points import hit
from chicle_elastic.cluster.net.peers import Peer, PeerCallbacks, PeerLinks, new_incarnation, node_of
from chicle_elastic.cluster.net.worker_lanes import Lane
from chicle_elastic.cluster.rendezvous.errors import StoreUnreachableError
from chicle_elastic.errors import ChicleError, PeerLostError, ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import codec, events
from chicle_elastic.scheduling.scheduler import Scheduler
from chicle_elastic.transports.selector import Endpoints

LOOK_S = 0.1
HEAL_S = 1.0
WELCOME_S = 2.0  # how long the leader that the store names may take to send its log
CHECK_S = 0.5
CLAIM_S = 1.0  # how long a majority waits for the store when it asks for a term
SAY_S = 10.0
STORE_RETRY_S = 0.1
STORE_RETRY_LAST_S = 0.8
REFUSED_S = 6.0  # how long the others may take to detect the death of an earlier agent of this node's name

logger = logging.getLogger(__name__)


class MembershipCallbacks(LogSubscriber, Protocol):
    """What the node implements; called in the loop. `begin` follows `expelled`."""

    def can_join(self) -> bool:
        """Say whether the node is ready to join."""

    def enters(self, job: int) -> bool:
        """This node is about to join; False if it still has to get ready, because it knows another job.

        Args:
            job: Number of the job: a job of which no node survived begins anew under another number.
        """

    def peer_up(self, peer: Peer) -> None:
        """The link to another agent is up."""

    def peer_down(self, peer: Peer, reason: str) -> None:
        """Another agent is gone."""

    def peer_says(self, peer: Peer, message: dict[str, Any]) -> None:
        """A message that is not about the log."""

    def failed(self, error: ChicleError) -> None:
        """This agent cannot take part in the job at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this node is, and in which job."""

    node: NodeId
    capacity_bytes: int
    max_nodes: int
    endpoints: Endpoints
    declared: events.ChunksDeclared
    job: Mapping[str, Any]  # the parameters that have to be the same at all agents
    patience_s: float = math.inf  # time after which this node gives up if it reaches no agent of a job that lives
    # this node begins the job anew if the leader gives no sign of life, although some agents may live: the operator
    # knows that they do not
    may_begin_anew: bool = False


class Membership:
    """See the top of the module.

    One class because links, terms and announcements decide together which incarnation this node is.

    Args:
        term_store: The terms in the rendezvous store.
        make_scheduler: Makes the scheduler of an incarnation; with the same settings at all agents.
    """

    def __init__(
        self,
        loop: EventLoop,
        identity: Identity,
        *,
        make_links: Callable[[PeerCallbacks], PeerLinks],
        term_store: TermStore,
        make_scheduler: Callable[[], Scheduler],
        require_open: Callable[[], None],
        users: MembershipCallbacks,
    ) -> None:
        self.identity = identity
        node = identity.node
        self.peer_links = make_links(self)
        self._loop, self._terms, self._users = loop, term_store, users
        self._require_open = require_open
        self.log = ReplicatedLog(loop, node, new_incarnation(node), make_scheduler=make_scheduler, host=self)
        self._has_announced = False
        self._is_leaving = False
        self._joining_since_s = self._contact_s = loop.now()
        self._search = JobSearch(may_begin_anew=identity.may_begin_anew)
        self._addresses: dict[str, str] = {}
        self._dead: set[str] = set()
        self._said_s = -math.inf
        self._is_checking_term = False
        self._timers: list[Timer] = []
        self._lookups: set[NodeId] = set()

    # Called by the node.

    def begin(self) -> None:
        """Begin an incarnation: find the others, or be the first."""
        self.log.begin(new_incarnation(self.identity.node))
        self._lookups.clear()  # those of the incarnation before may still wait for the store
        self._has_announced = False
        self._joining_since_s = self._loop.now()
        identity = self.identity
        self._contact_s = self._joining_since_s
        self._search.begin(self._joining_since_s)
        self._is_checking_term = False
        self.peer_links.open(life=self.log.incarnation, endpoints=identity.endpoints, job=identity.job)
        incarnation = self.log.incarnation
        self._later(HEAL_S, lambda: self._relink(incarnation))
        self._later(HEAL_S, lambda: self._show_life(incarnation))
        self._later(CHECK_S, lambda: self._check_links(incarnation))
        self._find_leader()

    def announce(self) -> None:
        """Propose to join, once every precondition holds; called whenever one of them may have changed."""
        log, node = self.log.snapshot(), self.identity.node
        has_log = log.length > 0 or self.log.is_leading
        if self._has_announced or self._is_leaving or not has_log or not self._users.can_join():
            return
        if node in log.present:
            return  # an earlier incarnation, whose death the leader will detect
        unreached = [other for other in log.present if other not in self.peer_links.peers]
        for other in unreached:
            self._find(other)
        waited_s = self._loop.now() - self._joining_since_s
        if unreached and waited_s > UNREACHABLE_S:
            self._say_waits(
                f"it has not reached {', '.join(unreached)} for {waited_s:.0f} s, and every node of a job needs a link "
                "to every other; open the ports between the hosts, give the agents addresses that others reach",
                waited_s,
            )
        job = log.first_term or self.log.term
        if unreached or len(log.present) >= self.identity.max_nodes or not self._users.enters(job):
            return
        self._has_announced = True
        hit("join.before_announce")
        incarnation, contact = self.log.incarnation, self._contact()

        def join(_: object) -> None:
            if incarnation != self.log.incarnation or not self._has_announced:
                return
            if not self.log.scheduler.ledger.num_chunks:
                self.log.append(self.identity.declared)
            self.log.append(events.NodeJoined(node=node, capacity_bytes=self.identity.capacity_bytes))
            hit("join.announced")

        # Only now: an agent that was refused must not be found in place of another agent of its name.
        self._ask_store(lambda: self._terms.publish(node, contact), join)

    def set_declared(self, declared: events.ChunksDeclared) -> None:
        """A new task may have found another checkpoint; it matters only if this node begins the job."""
        self.identity = dataclasses.replace(self.identity, declared=declared)

    def task_is_gone(self) -> None:
        """The task died and the agent did not: this node takes no part until it announces itself again."""
        self._has_announced = False
        if self.identity.node in self.log.snapshot().present:
            self.log.append(events.NodeLost(node=self.identity.node))

    def stop(self) -> None:
        """This node leaves, or the job is over: ignore from now on what happens to other nodes."""
        self._is_leaving = True

    def close(self) -> None:
        """Close all links."""
        self.stop()
        self.peer_links.end_life()
        for timer in self._timers:
            timer.cancel()

    # Finding the job.

    def _contact(self) -> Contact:
        return Contact(life=self.log.incarnation, address=self.peer_links.address)

    def _find_leader(self) -> None:
        """Look up the leader in the store and link to it, until an agent has sent the log."""
        incarnation = self.log.incarnation

        def look() -> tuple[Term, Beacon]:
            self._require_open()
            return self._terms.look(), self._terms.beacon()

        def then(answer: tuple[Term, Beacon]) -> None:
            if incarnation != self.log.incarnation or self.log.term or self._is_leaving:
                return
            term, beacon = answer
            if not term.term or self._is_job_dead(term, beacon):
                self.claim(Claim(term=term.term + 1, known=term.term, members=(incarnation,)))
                return
            self.peer_links.dial(term.address, expect=term.lead)
            self._later(LOOK_S, self._find_leader)

        self._ask_store(look, then)

    def _is_job_dead(self, term: Term, beacon: Beacon) -> bool:
        """Whether a node that reaches no agent of the job may begin it anew. If it may not, it says why it waits."""
        now, life = self._loop.now(), self.log.incarnation
        waited_s = now - self._contact_s
        finding = self._search.look(term, beacon, dead=self._dead, waited_s=waited_s, now=now)
        if finding is None:
            return False
        if finding.is_dead:
            logger.warning("%s has reached no agent of the job for %.0f s and begins it anew", life, waited_s)
            return True
        for silent, address in finding.silent.items():
            self.peer_links.probe(address, silent)
            self._look_up(node_of(silent), silent)
        if finding.is_late:
            self._say_waits(finding.reason, waited_s)
        return False

    def _say_waits(self, reason: str, waited_s: float) -> None:
        """Say every `SAY_S` what this node waits for; give up after `patience_s`."""
        if waited_s > self.identity.patience_s:
            self._users.failed(PeerLostError(reason))
        elif self._loop.now() - self._said_s >= SAY_S:
            self._said_s = self._loop.now()
            logger.warning("%s waits: %s", self.log.incarnation, reason)

    def _find(self, node: NodeId) -> None:
        """Make a link to a node, at the address that it has published in the store."""
        if node in self.peer_links.peers or node == self.identity.node or node in self._lookups:
            return
        self._lookups.add(node)
        present = self.log.scheduler.ledger.node_chunks
        life = self.log.snapshot().electorate.get(node)
        if life in self._addresses and node in present:
            self.peer_links.dial(self._addresses[life], expect=life)  # the store may be unreachable

        def then(contact: Contact | None) -> None:
            self._lookups.discard(node)
            is_missing = node not in self.peer_links.peers and not self._is_leaving
            if contact is not None and not contact.has_ended and is_missing:
                self.peer_links.dial(contact.address, expect=contact.life)
            self._later(LOOK_S, self.announce)

        self._ask_store(lambda: self._terms.find(node), then)

    def _relink(self, incarnation: str) -> None:
        """As long as this incarnation lasts, make the missing links to present nodes. Such a link was cut; or other
        nodes joined while this one proposed to join, and one of them leads now."""
        if incarnation != self.log.incarnation or self.log.is_out:
            return
        for node in self.log.snapshot().present:
            self._find(node)
        self._probe_missing()
        self._later(HEAL_S, lambda: self._relink(incarnation))

    def _probe_missing(self) -> None:
        """Find out which incarnations that may vote on who leads have ended."""
        for node, life in self.log.snapshot().electorate.items():
            if node == self.identity.node or node in self.peer_links.peers:
                continue
            if life in self._dead:
                self.log.is_dead(life)  # an earlier incarnation of this node has found out
            elif life in self._addresses:
                self.peer_links.probe(self._addresses[life], life)
            elif self.log.is_paused:
                self._look_up(node, life)

    def _look_up(self, node: NodeId, life: str) -> None:
        def then(contact: Contact | None) -> None:
            if contact is not None and (contact.life != life or contact.has_ended):
                self.peer_is_dead(life)  # the node has another incarnation since, or has ended in order
            elif contact is not None:
                self._addresses[life] = contact.address

        self._ask_store(lambda: self._terms.find(node), then)

    def _check_links(self, incarnation: str) -> None:
        if incarnation == self.log.incarnation and not self.log.is_out:
            self.log.check_links()
            self._later(CHECK_S, lambda: self._check_links(incarnation))

    # Called by the peer links.

    def peer_up(self, peer: Peer) -> None:
        """Of `PeerCallbacks`."""
        self._contact_s = self._loop.now()
        self._addresses[peer.life] = peer.address
        self.log.connected(peer.node, peer.life)
        self._users.peer_up(peer)
        if not self.log.term:
            self._later(WELCOME_S, self._drop_silent_peers)
        self.announce()

    def peer_down(self, peer: Peer, reason: str) -> None:
        """Of `PeerCallbacks`."""
        logger.info("%s has lost the link to %s: %s", self.log.incarnation, peer.life, reason)
        if self._is_leaving:
            return
        self._users.peer_down(peer, reason)
        self.log.lost(peer.node)
        if self.log.snapshot().electorate.get(peer.node) == peer.life:
            self.peer_links.probe(peer.address, peer.life)
        if not self.log.term:
            self._later(LOOK_S, self._find_leader)

    def peer_says(self, peer: Peer, message: dict[str, Any]) -> None:
        """Of `PeerCallbacks`."""
        if message["kind"] == LOG:
            received: Messages = codec.from_values(message, Messages)
            for said in received.messages:
                self.log.received(peer.node, said)
            self.announce()
        else:
            self._users.peer_says(peer, message)

    def refused(self, who: str, reason: str) -> None:
        """Of `PeerCallbacks`."""
        self._contact_s = self._loop.now()  # the job is alive, even though it refuses this node
        # The reason may be an earlier incarnation of this node, whose death the others are about to detect.
        if not self._has_announced and self._loop.now() - self._joining_since_s > REFUSED_S:
            self._users.failed(ProtocolError(f"{who} refuses {self.identity.node}: {reason}"))

    def peer_is_dead(self, life: str) -> None:
        """Of `PeerCallbacks`."""
        if life not in self._dead and not self._is_leaving:
            logger.info("%s: the process of %s has ended", self.log.incarnation, life)
            self._dead.add(life)
        self.log.is_dead(life)

    def _drop_silent_peers(self) -> None:
        """Drop the agents that were expected to send their log and have not: perhaps they do not lead any more."""
        if not self.log.term and not self._is_leaving:
            for node in list(self.peer_links.peers):
                self.peer_links.drop(node, "it sends no log")

    # Called by the log (`LogSubscriber`): the node first, and last where its next incarnation may begin.

    def folded(self, folded: Folded) -> None:
        """Of `LogSubscriber`."""
        self._users.folded(folded)
        self._after_fold(folded)

    def installed(self, length: int) -> None:
        """Of `LogSubscriber`."""
        self._users.installed(length)

    def vote(self) -> None:
        """Of `LogSubscriber`."""
        self._users.vote()

    def break_group(self, reason: str) -> None:
        """Of `LogSubscriber`."""
        self._users.break_group(reason)

    def paused(self, reason: str | None) -> None:
        """Of `LogSubscriber`."""
        if reason is not None:
            self._probe_missing()
        self._users.paused(reason)

    def expelled(self, reason: str) -> None:
        """Of `LogSubscriber`."""
        logger.warning("%s is no member of the job any more: %s", self.log.incarnation, reason)
        self.peer_links.end_life()
        self._users.expelled(reason)

    def _after_fold(self, folded: Folded) -> None:
        event = folded.entry.event
        if isinstance(event, events.NodeJoined) and event.node != self.identity.node and self.log.snapshot().is_live:
            self._find(event.node)  # both nodes joined at one boundary, and neither knew of the other
        if isinstance(event, events.NodeLost) and folded.lost_life:
            # Only that incarnation: if the entry is old or late, the node may have rejoined since.
            peer = self.peer_links.peers.get(event.node)
            if peer is not None and peer.life == folded.lost_life:
                self.peer_links.drop(event.node, "it is not in the job any more")

    # What the log asks for (`LogHost`).

    def send_log(self, to: Sequence[NodeId], messages: Sequence[Message]) -> None:
        """Of `LogHost`."""
        is_finite = all(isinstance(message, Install) for message in messages)  # a snapshot was checked part by part
        self.peer_links.send_text(to, codec.encode(Messages(messages=tuple(messages)), is_finite=is_finite))

    def claim(self, claim: Claim) -> None:
        """Of `LogHost`."""
        hit("lead.before_claim", term=claim.term)
        incarnation, contact = self.log.incarnation, self._contact()
        is_answered = False

        def give_up() -> None:
            nonlocal is_answered
            if not is_answered and incarnation == self.log.incarnation:
                is_answered = True
                self.log.store_unreachable()

        def then(answer: tuple[bool, Term]) -> None:
            nonlocal is_answered
            is_granted, term = answer
            if incarnation != self.log.incarnation or is_answered:
                return
            is_answered = True
            if is_granted:
                hit("lead.claimed", term=claim.term)
                self.log.claimed(claim.term)
                self.announce()
            else:
                self.log.refused(term)
                if not self.log.term and not self.log.snapshot().length:
                    self._later(LOOK_S, self._find_leader)

        def ask() -> None:
            if incarnation != self.log.incarnation or self._is_leaving:
                return
            if not self.log.may_claim:
                give_up()  # a part of the network is gone: the first link alone did not show how many nodes that are
                return
            electorates = self.log.electorates
            self._ask_store(
                lambda: self._terms.claim(claim.term, contact, claim.members, electorates, known=claim.known),
                then,
                give_up,
            )
            if self.log.snapshot().length:
                self._later(CLAIM_S, give_up)

        self._loop.soon(ask)

    def check_term(self) -> None:
        """Of `LogHost`."""
        if not self._is_checking_term:
            self._is_checking_term = True
            self._later(LOOK_S, self._check_term)

    def _check_term(self) -> None:
        incarnation = self.log.incarnation

        def look() -> Term:
            self._require_open()  # a node that is paused is not told that the others have finished the job
            return self._terms.look()

        def then(term: Term) -> None:
            if incarnation == self.log.incarnation:
                self._is_checking_term = False
                self.log.looked(term)

        def unreachable() -> None:
            if incarnation == self.log.incarnation:
                self._is_checking_term = False
                self.log.store_unreachable()

        self._ask_store(look, then, unreachable)

    def _show_life(self, incarnation: str) -> None:
        """As long as this agent leads, keep its term and its beacon in the store, whatever other processes write."""
        if incarnation != self.log.incarnation or self.log.is_out or self._is_leaving:
            return
        if not self.log.is_leading:
            self._later(HEAL_S, lambda: self._show_life(incarnation))
            return
        present = set(self.log.snapshot().present)
        peers = [peer for peer in self.peer_links.peers.values() if peer.node in present]
        term = Term(
            term=self.log.term,
            lead=incarnation,
            address=self.peer_links.address,
            members=(incarnation, *(peer.life for peer in peers)),
            electorates=self.log.electorates,
        )
        agents = (self._contact(), *(Contact(life=peer.life, address=peer.address) for peer in peers))

        def show() -> Term:
            stored = self._terms.heal(term)
            self._terms.beat(term.term, incarnation, agents)
            return stored

        def again(stored: Term | None = None) -> None:
            if stored is not None and incarnation == self.log.incarnation:
                self.log.stored(stored)
            self._later(HEAL_S, lambda: self._show_life(incarnation))

        self._ask_store(show, again, again)

    # How.

    def _ask_store(
        self,
        ask: Callable[[], Any],
        then: Callable[[Any], object],
        unreachable: Callable[[], object] | None = None,
        *,
        retry_s: float = STORE_RETRY_S,
    ) -> None:
        """Ask the store in a worker thread. While it does not answer, a node with a log calls `unreachable`; any other
        question is asked again as long as this incarnation lasts."""
        incarnation = self.log.incarnation

        def ask_again() -> None:
            if incarnation == self.log.incarnation:
                self._ask_store(ask, then, unreachable, retry_s=min(2 * retry_s, STORE_RETRY_LAST_S))

        def done(future: "Future[Any]") -> None:
            if self._is_leaving:
                return
            try:
                answer = future.result()
            except StoreUnreachableError:
                if unreachable is not None and self.log.snapshot().length:
                    unreachable()
                else:
                    # Nothing follows from it about the job, which may well be alive: that this node finds no agent does
                    # not count while it cannot ask. The log says that the store is away (`store_keeper`).
                    self._contact_s = self._loop.now()
                    self._later(retry_s, ask_again)
                return
            except ChicleError as error:
                self._users.failed(error)
                return
            then(answer)

        self._loop.work(ask, done, lane=Lane.STORE)

    def _later(self, delay_s: float, call: Callable[[], object]) -> None:
        self._timers = [timer for timer in self._timers if timer.is_due]
        self._timers.append(self._loop.later(delay_s, functools.partial(self._unless_leaving, call)))

    def _unless_leaving(self, call: Callable[[], object]) -> None:
        if not self._is_leaving:
            call()
