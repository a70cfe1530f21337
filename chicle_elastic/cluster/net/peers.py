"""The links of one agent to all other agents, and the failure detector over them.

    dial                     accept
    connected, secret proven on both sides (transports.links; the name of each end is its incarnation)
    Hello   ->               <-  Hello        transport endpoints, endpoint of the round store that the agent serves,
                                              and the job's parameters: they have to match
    up                       up               now messages flow; each end sends one at least every `BEAT_S`

A peer is lost at once when its end of the link closes (its process ended), and after `SILENT_S` without a message (its
host is stopped, or cut off). An agent that was stopped itself first reads what arrived meanwhile before it judges.
While a handler holds its loop, a thread sends its heartbeats (`busy_beats`).

At most one incarnation of a node is linked at a time: an agent refuses a second agent of the same name while it is
linked to the first.

Two agents that join together dial each other at the same time, and each has accepted the other's link before it learns
that its own is made. If each closed the second link that it sees, they would close both. So the agent whose incarnation
has the lesser name decides: it says hello on the first link and closes every other one. The agent with the greater name
says hello on all of them, and takes the link on which it hears a hello.
"""

import functools
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from chicle_elastic.cluster.net.busy_beats import BusyBeats
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.fault_points import hit
from chicle_elastic.cluster.net.worker_lanes import Lane
from chicle_elastic.errors import ChicleError, ConnectionRefusedByHostError, PeerLostError, ProtocolError, TlsError
from chicle_elastic.ids import NodeId
from chicle_elastic.transports import addresses, links, wire
from chicle_elastic.transports.links import Link, LinkListener
from chicle_elastic.transports.node_address import NodeAddress
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import Endpoints
from chicle_elastic.transports.tls import TlsIdentity
from chicle_elastic.transports.wire import Kind

BEAT_S = 0.4
SILENT_S = 2.0
DIAL_TIMEOUT_S = 2.0
GOODBYE_S = 1.0
BEAT = wire.pack_json(Kind.MESSAGE, {"kind": "beat"})
STORE = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")

logger = logging.getLogger(__name__)


def new_incarnation(node: NodeId) -> str:
    """A name for one incarnation of a node; no other incarnation of any node has it."""
    return f"{node}#{secrets.token_hex(4)}"


def node_of(life: str) -> NodeId:
    """The node of an incarnation."""
    return NodeId(life.rpartition("#")[0])


def _difference(node: NodeId, theirs: Any, own: NodeId, ours: Mapping[str, Any]) -> str:
    """Return what an agent is told whose job has other parameters."""
    theirs = theirs if isinstance(theirs, dict) else {}
    names = sorted(name for name in {*theirs, *ours} if theirs.get(name) != ours.get(name))
    told = ", ".join(
        f"{name} is {str(theirs.get(name))[:200]} at {node} and {ours.get(name)} at {own}" for name in names
    )
    return f"its job has other parameters ({told}); start all nodes alike, and with the same version of Chicle"


@dataclass(slots=True, eq=False)
class Peer:
    """Another agent at the other end of a link."""

    life: str
    link: Link  # to it
    heard_s: float  # when its last message arrived
    said_s: float  # when this agent last sent it a message
    endpoints: Endpoints | None = None  # how to fetch chunks from it; None until its Hello has arrived
    address: str = ""  # where it accepts links; empty until its Hello has arrived
    round_store: str = ""  # endpoint of the store that it serves for the rounds in which it is the first member
    has_said_goodbye: bool = field(default=False)

    @property
    def node(self) -> NodeId:
        """Its node."""
        return node_of(self.life)


class PeerCallbacks(Protocol):
    """What the owner of the peer links implements; called in the loop."""

    def peer_up(self, peer: Peer) -> None:
        """The link to a peer is ready for messages."""

    def peer_down(self, peer: Peer, reason: str) -> None:
        """A peer that was up is gone."""

    def peer_says(self, peer: Peer, message: dict[str, Any]) -> None:
        """A peer has sent a message; its field `kind` says of which kind. Raises ProtocolError when the message is
        malformed; the link is closed."""

    def refused(self, who: str, reason: str) -> None:
        """An agent answers, and refuses a link to this one."""

    def peer_is_dead(self, life: str) -> None:
        """An incarnation that this agent has dialled has ended: another one answers there, or the host refuses."""


class PeerLinks:
    """Links to other agents.

    One class because each step in the life of a link looks at all the other links of this agent.

    Args:
        users: Called when a peer comes up, sends a message, goes down or refuses this agent.
        status: What this agent tells who asks how the job stands, as JSON values.
    """

    def __init__(
        self,
        loop: EventLoop,
        secret: JobSecret,
        *,
        node: NodeId,
        address: NodeAddress,
        round_store: str,
        users: PeerCallbacks,
        status: Callable[[], dict[str, Any]] = dict,
        tls: TlsIdentity | None = None,
    ) -> None:
        self.life = new_incarnation(node)
        self._round_store = round_store
        self._loop, self._secret, self._tls, self._own, self._users = loop, secret, tls, address, users
        self._status = status
        self._endpoints: Endpoints | None = None
        self._job: Mapping[str, Any] = {}
        self._peers: dict[NodeId, Peer] = {}
        self._callers: list[Peer] = []  # their hello has not arrived
        self._dialling: set[str] = set()
        self._refused_tls: set[str] = set()  # a line for each, and not for each attempt
        self._refusals: set[tuple[str, str]] = set()  # incarnation and reason: they are dialled again and again
        self._looked_s = loop.now()
        self._listener: LinkListener | None = None
        self._busy_beats: BusyBeats | None = None
        self._timer = loop.later(BEAT_S, self._beat)

    @property
    def address(self) -> str:
        """Where this agent accepts links, as others reach it."""
        assert self._listener is not None
        return self._own.to_tell(self._listener.address)

    @property
    def peers(self) -> Mapping[NodeId, Peer]:
        """The peers that are up, by node."""
        return self._peers

    def open(self, *, life: str, endpoints: Endpoints, job: Mapping[str, Any]) -> None:
        """Begin an incarnation: accept links under its name.

        Args:
            job: The parameters that have to be the same at all agents, by name.
        """
        self.life, self._endpoints, self._job = life, endpoints, job
        self._listener = LinkListener(self._own.to_listen(), self._secret, name=life, tls=self._tls)
        self._loop.watch(self._listener, self._accept)
        self._busy_beats = BusyBeats(
            self._loop,
            lambda: [peer.link for peer in list(self._peers.values())],  # a list of values is made in one step
            beat=BEAT,
            every_s=BEAT_S / 2,
        )

    def end_life(self) -> None:
        """Close all links and accept none; sends no goodbye and calls no callback."""
        for peer in [*self._peers.values(), *self._callers]:
            self._hang_up(peer)
        self._peers.clear()
        self._callers.clear()
        self._dialling.clear()
        if self._busy_beats is not None:
            self._busy_beats.close()
            self._busy_beats = None
        if self._listener is not None:
            self._loop.forget(self._listener)
            self._listener.close()
            self._listener = None

    def dial(self, address: str, *, expect: str | None = None) -> None:
        """Make a link, unless there is one, or one is being made; on success `peer_up` follows.

        Args:
            expect: Its incarnation; a link to any other incarnation is closed.
        """
        if address in self._dialling:
            return
        self._dialling.add(address)
        life = self.life

        def then(future: "Future[Link]") -> None:
            self._dialling.discard(address)
            try:
                link = future.result()
            except PeerLostError as error:
                logger.info("%s cannot reach %s: %s", life, address, error)
                if isinstance(error, ConnectionRefusedByHostError) and expect is not None and life == self.life:
                    self._users.peer_is_dead(expect)
                return
            except ChicleError as error:  # an agent answers there, and refuses to talk to this one
                if isinstance(error, TlsError) and address not in self._refused_tls:
                    self._refused_tls.add(address)
                    logger.warning("%s has no link to %s: %s", life, address, error)
                if life == self.life:
                    self._users.refused(expect or address, str(error))
                return
            if life != self.life or self._listener is None:
                link.close()
            elif expect is not None and link.peer != expect:
                link.close()
                self._users.peer_is_dead(expect)
            else:
                self._greet(link)

        secret, tls = self._secret, self._tls
        self._loop.work(
            lambda: links.connect(address, secret, name=life, timeout_s=DIAL_TIMEOUT_S, tls=tls), then, lane=Lane.DIAL
        )

    def probe(self, address: str, life: str) -> None:
        """Find out whether the process of an incarnation has ended: `peer_is_dead` follows if its host says so."""
        own_life = self.life

        def then(future: "Future[None]") -> None:
            try:
                future.result()
            except ConnectionRefusedByHostError:
                if own_life == self.life:
                    self._users.peer_is_dead(life)
            except PeerLostError:
                pass  # silence proves nothing

        self._loop.work(lambda: addresses.connect_tcp(address, timeout_s=DIAL_TIMEOUT_S).close(), then, lane=Lane.DIAL)

    def send(self, node: NodeId, kind: str, **fields: Any) -> bool:
        """Send a message to a peer if it is up. Returns whether it is up."""
        peer = self._peers.get(node)
        if peer is None:
            return False
        self._send(peer, {"kind": kind, **fields})
        return True

    def send_text(self, nodes: Iterable[NodeId], message: bytes) -> None:
        """Send one message to those of the nodes that are up; it is JSON text already, and has its `kind` in it."""
        self._send_frame(nodes, wire.pack_text(Kind.MESSAGE, message))

    def broadcast(self, kind: str, **fields: Any) -> None:
        """Send a message to all peers that are up."""
        self._send_frame(list(self._peers), wire.pack_json(Kind.MESSAGE, {"kind": kind, **fields}))

    def _send_frame(self, nodes: Iterable[NodeId], frame: bytes) -> None:
        """One frame for all: 256 links that wait for the kernel keep 256 references to it, and no copy."""
        for node in nodes:
            if (peer := self._peers.get(node)) is not None:
                self._send(peer, frame)

    def drop(self, node: NodeId, reason: str) -> None:
        """Close the link to a peer; `peer_down` follows."""
        peer = self._peers.get(node)
        if peer is not None:
            self._lose(peer, reason)

    def say_goodbye(self) -> bool:
        """Tell all peers, once, that this agent leaves; the caller calls again until it returns true. A peer reads
        every earlier message before it hangs up. If this agent hung up first, the kernel could throw away what a peer
        has not read yet. Returns whether all peers have hung up."""
        for peer in list(self._peers.values()):
            if not peer.has_said_goodbye:
                peer.has_said_goodbye = True
                self._send(peer, {"kind": "goodbye"})
        return not self._peers

    # How.

    def _accept(self) -> None:
        while self._listener is not None and (link := self._listener.accept()) is not None:
            self._greet(link)

    def _greet(self, link: Link) -> None:
        now = self._loop.now()
        peer = Peer(life=link.peer, link=link, heard_s=now, said_s=now)
        there = self._peers.get(peer.node)
        if peer.node == node_of(self.life) or (there is not None and there.life != peer.life):
            reason = f"the job already has an agent called {peer.node}; give every node a name of its own"
            self._refuse(peer, reason)
            return
        has_decided = self.life < peer.life and any(caller.life == peer.life for caller in self._callers)
        if there is not None or has_decided:  # both agents have dialled: one link is enough
            link.close()
            return
        self._callers.append(peer)
        self._loop.watch(link, functools.partial(self._read, peer))
        assert self._endpoints is not None
        where = {"offer": self._endpoints.to_json(), "address": self.address, "store": self._round_store}
        # The clock is for `chicle doctor --peer`; agents ignore it.
        self._send(peer, {"kind": "hello", **where, "job": dict(self._job), "clock_s": time.time()})

    def _refuse(self, peer: Peer, reason: str) -> None:
        if (peer.life, reason) not in self._refusals:
            self._refusals.add((peer.life, reason))
            logger.warning("refusing the agent %s: %s", peer.life, reason)
        self._send(peer, {"kind": "refused", "reason": reason})
        self._greeted(peer)
        # The peer hangs up when it has read the reason; if it does not, this end does.
        self._loop.watch(peer.link, lambda: self._hang_up(peer))
        self._loop.later(GOODBYE_S, lambda: self._hang_up(peer))

    def _read(self, peer: Peer) -> None:
        try:
            hit("link.heard", peer=peer.node)
            if peer.link.wants_to_write:
                peer.link.flush()
                self._watch(peer)
            messages = peer.link.receive()
        except (PeerLostError, ProtocolError) as error:
            self._lose(peer, str(error))
            return
        peer.heard_s = self._loop.now()
        for message in messages:
            if peer.link.fileno() < 0:
                return  # the message before this one made this agent close the link
            try:
                self._handle(peer, message)
            except ProtocolError as error:
                logger.warning("%s breaks the protocol: %s", peer.life, error)
                self._lose(peer, str(error))
                return

    def _handle(self, peer: Peer, message: Any) -> None:
        kind = message.get("kind") if isinstance(message, dict) else None
        if kind == "hello" and peer.endpoints is None:
            self._on_hello(peer, message)
        elif kind == "refused":
            reason = str(message.get("reason"))
            self._lose(peer, reason)
            self._users.refused(peer.life, reason)
        elif kind == "goodbye":
            self._lose(peer, f"{peer.node} has left")
        elif kind == "get_status":  # of `chicle status`, which is no agent and sends no hello
            self._send(peer, {"kind": "status", **self._status()})
        elif kind != "beat":
            if peer.endpoints is None or kind is None:
                raise ProtocolError(f"{peer.life} sent {str(message)[:60]!r} before its hello")
            self._users.peer_says(peer, message)

    def _on_hello(self, peer: Peer, message: dict[str, Any]) -> None:
        peer.endpoints = Endpoints.from_json(message.get("offer"), peer=peer.life)
        peer.address = str(message.get("address"))
        if not isinstance(store := message.get("store"), str) or not STORE.fullmatch(store):
            raise ProtocolError(f"{peer.life} said in its hello that its round store is at {str(store)[:60]!r}")
        peer.round_store = store
        job = message.get("job")
        if job != dict(self._job):
            self._refuse(peer, _difference(peer.node, job, node_of(self.life), self._job))
            return
        self._greeted(peer)
        if peer.node in self._peers:
            self._hang_up(peer)
            return
        for other in [caller for caller in self._callers if caller.life == peer.life]:
            self._lose(other, f"{peer.life} has said hello on another link")
        self._peers[peer.node] = peer
        self._users.peer_up(peer)

    def _send(self, peer: Peer, message: dict[str, Any] | bytes) -> None:
        peer.said_s = self._loop.now()
        try:
            if isinstance(message, bytes):
                peer.link.send_frame(message)
            else:
                peer.link.send(message)
        except PeerLostError as error:
            reason = str(error)
            self._loop.soon(lambda: self._lose(peer, reason))  # not inside the caller, who may be walking the peers
        else:
            if peer.link.wants_to_write:
                self._watch(peer)

    def _watch(self, peer: Peer) -> None:
        if peer.link.fileno() >= 0:
            self._loop.watch(peer.link, functools.partial(self._read, peer), writing=peer.link.wants_to_write)

    def _lose(self, peer: Peer, reason: str) -> None:
        self._hang_up(peer)
        self._greeted(peer)
        if self._peers.get(peer.node) is peer:
            del self._peers[peer.node]
            self._users.peer_down(peer, reason)

    def _greeted(self, peer: Peer) -> None:
        """Its hello has arrived, or never will. May be called again."""
        if peer in self._callers:
            self._callers.remove(peer)

    def _hang_up(self, peer: Peer) -> None:
        if peer.link.fileno() >= 0:
            self._loop.forget(peer.link)
            peer.link.close()

    def _beat(self) -> None:
        """Send heartbeats, and declare the silent peers lost."""
        now = self._loop.now()
        was_away_s, self._looked_s = now - self._looked_s, now
        self._timer = self._loop.later(BEAT_S, self._beat)
        for peer in [*self._peers.values(), *self._callers]:
            if was_away_s > SILENT_S / 2:
                peer.heard_s = now  # this agent itself was stopped; messages of the others are still to be read
            elif now - peer.heard_s > SILENT_S:
                self._lose(peer, f"{peer.node} has been silent for {SILENT_S:g} s")
                continue
            if now - peer.said_s >= BEAT_S / 2 and peer not in self._callers:
                self._send(peer, BEAT)
