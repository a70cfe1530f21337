"""Messages between the parties of a job on their way from agent to agent. See `runtime.post_office` for the tasks' end.

On the wire: `{"kind": "post", "sender": party, "to": party, "payload": JSON text}`. A party is a node, which means the
solvers in its task, or the trainer, which is in the task of rank 0.
"""

from typing import Any

from chicle_elastic.cluster.membership import Membership
from chicle_elastic.cluster.mesh import Peer
from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.runtime import control
from chicle_elastic.runtime.task import EVERYONE, TRAINER

KIND = "post"


def pass_on(message: control.Post, membership: Membership) -> None:
    """Send what the own task posts to the agents whose tasks it is for."""
    fields = {"sender": message.sender, "to": message.to, "payload": message.payload}
    members = membership.replica.log.members
    if message.to == EVERYONE:
        membership.mesh.broadcast(KIND, **fields)
    elif message.to == TRAINER and members:
        membership.mesh.send(members[0], KIND, **fields)
    else:
        membership.mesh.send(NodeId(message.to), KIND, **fields)


def unpack(peer: Peer, message: dict[str, Any]) -> control.Deliver:
    """What another agent brings, for the own task.

    Raises:
        ProtocolError: It is not a message of this kind.
    """
    sender, to, payload = (message.get(name) for name in ("sender", "to", "payload"))
    if not (isinstance(sender, str) and isinstance(to, str) and isinstance(payload, str)):
        raise ProtocolError(f"{peer.life} posts {str(message)[:80]!r}")
    return control.Deliver(sender=sender, to=to, payload=payload)
