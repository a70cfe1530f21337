"""The links of one agent to all others, and who of them is there.

    dial                     accept
    connected, secret proven on both sides (transports.links; the name of each end is its life)
    Hello   ->               <-  Hello        node, transports, and what the job is: it has to be the same
    up                       up               now messages flow; each end says something at least every `BEAT_S`

A peer is lost at once when its end of the link closes (its process ended), and after `SILENT_S` without a word (its
host is stopped, or cut off). An agent that was stopped itself first listens to what came meanwhile before it judges.

At most one life of a node is linked at a time: a second agent of the same name is refused while the first is there.
"""

import logging
import secrets
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from chicle_elastic.cluster.event_loop import EventLoop
from chicle_elastic.errors import ChicleError, PeerLostError, ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.transports import links
from chicle_elastic.transports.carrier import Offer
from chicle_elastic.transports.links import Link, LinkListener
from chicle_elastic.transports.secret import JobSecret

BEAT_S = 0.4
SILENT_S = 2.0
DIAL_TIMEOUT_S = 2.0
GOODBYE_S = 1.0

logger = logging.getLogger(__name__)


def new_life(node: NodeId) -> str:
    """A name for one life of a node; no other life of any node has it."""
    return f"{node}#{secrets.token_hex(4)}"


def node_of(life: str) -> NodeId:
    """Whose life it is."""
    return NodeId(life.rpartition("#")[0])


@dataclass(slots=True, eq=False)
class Peer:
    """Another agent at the other end of a link.

    Attributes:
        life: Of that agent, as it proved it.
        link: To it.
        heard_s: When it said something last.
        said_s: When something was said to it last.
        offer: How to fetch chunks from it; None until it has said Hello.
    """

    life: str
    link: Link
    heard_s: float
    said_s: float
    offer: Offer | None = None
    has_said_goodbye: bool = field(default=False)

    @property
    def node(self) -> NodeId:
        """Its node."""
        return node_of(self.life)


class Neighbours(Protocol):
    """Whoever uses the mesh; called in the loop."""

    def peer_up(self, peer: Peer) -> None:
        """A peer can be talked to."""
        ...

    def peer_down(self, peer: Peer, reason: str) -> None:
        """A peer that was up is gone."""
        ...

    def peer_says(self, peer: Peer, message: dict[str, Any]) -> None:
        """A message; `kind` says of which kind.

        Raises:
            ProtocolError: It makes no sense; the link is closed.
        """
        ...

    def refused(self, who: str, reason: str) -> None:
        """An agent is there, and does not take this one."""
        ...


class Mesh:
    """Links to other agents.

    Args:
        loop: Whose thread all of this runs in.
        secret: Of the job.
        host: Address of this host, for others.
        users: Called with what happens.
    """

    def __init__(self, loop: EventLoop, secret: JobSecret, *, node: NodeId, host: str, users: Neighbours) -> None:
        self.life = new_life(node)
        self._loop, self._secret, self._host, self._users = loop, secret, host, users
        self._offer: Offer | None = None
        self._job: Mapping[str, Any] = {}
        self._peers: dict[NodeId, Peer] = {}
        self._callers: dict[str, Peer] = {}
        self._dialling: set[str] = set()
        self._looked_s = loop.now()
        self._listener: LinkListener | None = None
        self._timer = loop.later(BEAT_S, self._beat)

    @property
    def address(self) -> str:
        """Where this agent takes links."""
        assert self._listener is not None
        return self._listener.address

    @property
    def peers(self) -> Mapping[NodeId, Peer]:
        """Agents that are up."""
        return self._peers

    def open(self, *, life: str, offer: Offer, job: Mapping[str, Any]) -> None:
        """Begin a life: take links under its name.

        Args:
            life: Its name.
            offer: How to fetch chunks from this agent.
            job: What has to be the same at all agents, by name.
        """
        self.life, self._offer, self._job = life, offer, job
        self._listener = LinkListener(f"tcp://{_bracketed(self._host)}:0", self._secret, name=life)
        self._loop.watch(self._listener, self._accept)

    def end_life(self) -> None:
        """Hang up on everybody and take no links; nobody is told of it here."""
        for peer in [*self._peers.values(), *self._callers.values()]:
            self._hang_up(peer)
        self._peers.clear()
        self._callers.clear()
        self._dialling.clear()
        if self._listener is not None:
            self._loop.forget(self._listener)
            self._listener.close()
            self._listener = None

    def dial(self, address: str, *, expect: str | None = None) -> None:
        """Make a link, unless there is one, or one is being made; `peer_up` or nothing follows.

        Args:
            address: Where the other agent takes links.
            expect: Its life; another one is hung up on.
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
                logger.info("%s does not reach %s: %s", life, address, error)
                return
            except ChicleError as error:  # somebody is there, and does not talk to this agent
                if life == self.life:
                    self._users.refused(address, str(error))
                return
            if life != self.life or self._listener is None or (expect is not None and link.peer != expect):
                link.close()
            else:
                self._greet(link)

        secret = self._secret
        self._loop.work(lambda: links.connect(address, secret, name=life, timeout_s=DIAL_TIMEOUT_S), then)

    def send(self, node: NodeId, kind: str, **fields: Any) -> bool:
        """Say something to a peer that is up; to others nothing is said. Returns whether it is up."""
        peer = self._peers.get(node)
        if peer is None:
            return False
        self._send(peer, {"kind": kind, **fields})
        return True

    def broadcast(self, kind: str, **fields: Any) -> None:
        """Say something to all peers that are up."""
        for node in list(self._peers):
            self.send(node, kind, **fields)

    def drop(self, node: NodeId, reason: str) -> None:
        """A peer is not wanted any more: hang up; `peer_down` follows."""
        peer = self._peers.get(node)
        if peer is not None:
            self._lose(peer, reason)

    def say_goodbye(self) -> bool:
        """Say that this agent leaves, once; to be called until it is true.

        Everything that was said is read by a peer before it hangs up. Hanging up first could make the kernel throw
        away what a peer has not read yet.

        Returns:
            Whether all peers have hung up.
        """
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
        there = self._peers.get(peer.node) or self._callers.get(peer.life)
        if peer.node == node_of(self.life) or (there is not None and there.life != peer.life):
            reason = f"there is an agent called {peer.node} in the job already; give every node a name of its own"
            self._refuse(peer, reason)
            return
        if there is not None:  # both have dialled: one link is enough
            link.close()
            return
        self._callers[peer.life] = peer
        self._loop.watch(link, lambda: self._read(peer))
        assert self._offer is not None
        self._send(peer, {"kind": "hello", "offer": self._offer.to_json(), "job": dict(self._job)})

    def _refuse(self, peer: Peer, reason: str) -> None:
        logger.warning("%s is refused: %s", peer.life, reason)
        self._send(peer, {"kind": "refused", "reason": reason})
        self._callers.pop(peer.life, None)
        # The peer hangs up when it has read why; if not, this end does.
        self._loop.watch(peer.link, lambda: self._hang_up(peer))
        self._loop.later(GOODBYE_S, lambda: self._hang_up(peer))

    def _read(self, peer: Peer) -> None:
        try:
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
                return  # the one before was reason to hang up
            try:
                self._handle(peer, message)
            except ProtocolError as error:
                logger.warning("%s breaks the protocol: %s", peer.life, error)
                self._lose(peer, str(error))
                return

    def _handle(self, peer: Peer, message: Any) -> None:
        kind = message.get("kind") if isinstance(message, dict) else None
        if kind == "hello" and peer.offer is None:
            self._on_hello(peer, message)
        elif kind == "refused":
            reason = str(message.get("reason"))
            self._lose(peer, reason)
            self._users.refused(peer.life, reason)
        elif kind == "goodbye":
            self._lose(peer, f"{peer.node} has left")
        elif kind != "beat":
            if peer.offer is None or kind is None:
                raise ProtocolError(f"{peer.life} says {str(message)[:60]!r} before hello")
            self._users.peer_says(peer, message)

    def _on_hello(self, peer: Peer, message: dict[str, Any]) -> None:
        peer.offer = Offer.from_json(message.get("offer"), peer=peer.life)
        job = message.get("job")
        if job != dict(self._job):
            self._refuse(peer, f"its job is {job}, and this one is {dict(self._job)}; start all nodes alike")
            return
        there = self._peers.get(peer.node)
        if there is not None:
            self._hang_up(peer)
            return
        self._callers.pop(peer.life, None)
        self._peers[peer.node] = peer
        self._users.peer_up(peer)

    def _send(self, peer: Peer, message: dict[str, Any]) -> None:
        peer.said_s = self._loop.now()
        try:
            peer.link.send(message)
        except PeerLostError as error:
            reason = str(error)
            self._loop.soon(lambda: self._lose(peer, reason))  # not in the middle of what the caller does
        else:
            if peer.link.wants_to_write:
                self._watch(peer)

    def _watch(self, peer: Peer) -> None:
        if peer.link.fileno() >= 0:
            self._loop.watch(peer.link, lambda: self._read(peer), writing=peer.link.wants_to_write)

    def _lose(self, peer: Peer, reason: str) -> None:
        self._hang_up(peer)
        self._callers.pop(peer.life, None)
        if self._peers.get(peer.node) is peer:
            del self._peers[peer.node]
            self._users.peer_down(peer, reason)

    def _hang_up(self, peer: Peer) -> None:
        if peer.link.fileno() >= 0:
            self._loop.forget(peer.link)
            peer.link.close()

    def _beat(self) -> None:
        """Say that this agent is there, and look who is not."""
        now = self._loop.now()
        was_away_s, self._looked_s = now - self._looked_s, now
        self._timer = self._loop.later(BEAT_S, self._beat)
        for peer in [*self._peers.values(), *self._callers.values()]:
            if was_away_s > SILENT_S / 2:
                peer.heard_s = now  # it was this agent that was stopped; what others said is still to be read
            elif now - peer.heard_s > SILENT_S:
                self._lose(peer, f"{peer.node} has been silent for {SILENT_S:g} s")
                continue
            if now - peer.said_s >= BEAT_S / 2 and peer.life not in self._callers:
                self._send(peer, {"kind": "beat"})


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
