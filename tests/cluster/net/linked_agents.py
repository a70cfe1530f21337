"""The links of agents, each in an event loop of its own."""

from contextlib import ExitStack
from typing import Any

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.peers import Peer, PeerLinks
from chicle_elastic.ids import NodeId
from chicle_elastic.transports.node_address import NodeAddress
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import Endpoints

HERE = NodeAddress(bind="127.0.0.1", advertise="127.0.0.1")
ENDPOINTS = Endpoints(host="here", tcp="tcp://127.0.0.1:1")


class Agent:
    """The links of one agent in a loop of its own, and what they have told it, in order."""

    def __init__(self, node: str, secret: JobSecret, stack: ExitStack, *, data: str = "") -> None:
        self.loop = stack.enter_context(EventLoop(name=f"chicle-test-{node}"))
        self.node = NodeId(node)
        self.life = f"{node}#0"
        self.told: list[str] = []
        self.links = PeerLinks(self.loop, secret, node=self.node, address=HERE, round_store="127.0.0.1:9", users=self)
        self.links.open(life=self.life, endpoints=ENDPOINTS, job={"data": data})
        stack.callback(self.links.end_life)

    def dial(self, other: "Agent") -> None:
        self.links.dial(other.links.address, expect=other.life)

    def peer_up(self, peer: Peer) -> None:
        self.told.append(f"{peer.life} is up")

    def peer_down(self, peer: Peer, reason: str) -> None:
        self.told.append(f"{peer.life} is down: {reason}")

    def peer_says(self, peer: Peer, message: dict[str, Any]) -> None:
        self.told.append(f"{peer.life} says {message['text']}")

    def refused(self, who: str, reason: str) -> None:
        self.told.append(f"{who} refuses: {reason}")

    def peer_is_dead(self, life: str) -> None:
        self.told.append(f"{life} is dead")
