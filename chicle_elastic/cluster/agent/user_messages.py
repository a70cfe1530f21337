"""User messages from agent to agent. See `runtime.cluster_task.message_router` for the end in the tasks.

On the wire: `{"kind": "post", "sender": party, "to": party, "payload": JSON text}`. A party is a node, which means the
solvers in its task, or the trainer or a policy, which are in the task of rank 0.
"""

from typing import Any

from chicle_elastic.cluster.agent.membership import Membership
from chicle_elastic.cluster.net.peers import Peer
from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.values import EVERYONE, POLICY_PREFIX, TRAINER

KIND = "post"


def forward(message: control.UserMessage, membership: Membership) -> None:
    """Forward a user message of this node's task to the agents of the tasks it is addressed to."""
    fields = {"sender": message.sender, "to": message.to, "payload": message.payload}
    members = membership.log.snapshot().members
    if message.to == EVERYONE:
        membership.peer_links.broadcast(KIND, **fields)
    elif members and (message.to == TRAINER or message.to.startswith(POLICY_PREFIX)):
        membership.peer_links.send(members[0], KIND, **fields)
    else:
        membership.peer_links.send(NodeId(message.to), KIND, **fields)


def unpack(peer: Peer, message: dict[str, Any]) -> control.Deliver:
    """A user message from another agent, for this node's task. Raises ProtocolError when it is not a message of this
    kind."""
    sender, to, payload = (message.get(name) for name in ("sender", "to", "payload"))
    if not (isinstance(sender, str) and isinstance(to, str) and isinstance(payload, str)):
        raise ProtocolError(f"{peer.life} sent a malformed user message: {str(message)[:80]!r}")
    return control.Deliver(sender=sender, to=to, payload=payload)
