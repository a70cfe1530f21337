"""Replicas that talk to each other, for tests of single rules of the log."""

from chicle_elastic.cluster.consensus.entries import Ended
from chicle_elastic.cluster.consensus.log import KEPT_ENTRIES, Log
from chicle_elastic.cluster.consensus.messages import Message, Send
from chicle_elastic.cluster.consensus.replica import Replica
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import codec, effects, events
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from chicle_elastic.values import ChunkInfo, TaskReport

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
CHUNKS = (ChunkInfo(id=ChunkId(0), num_rows=10, size_bytes=1),)


def make_replica(node: NodeId, *, kept: int = KEPT_ENTRIES, life: int = 1) -> Replica:
    """A replica of a job that starts with two nodes."""
    return Replica(node, f"{node}#{life}", Scheduler(SchedulerSettings(start_nodes=2)), kept=kept)


def lead_with_follower(*, kept: int = KEPT_ENTRIES) -> tuple[Replica, Replica]:
    """Two connected agents, the first of which leads term 1; both have joined."""
    lead, follower = make_replica(A, kept=kept), make_replica(B, kept=kept)
    lead.claimed(1, now=0.0)
    exchange(lead, follower, lead.connected(B, "b#1", now=0.0), follower.connected(A, "a#1", now=0.0))
    exchange(lead, follower, lead.propose(events.ChunksDeclared(chunks=CHUNKS), now=0.0), [])
    exchange(lead, follower, lead.propose(events.NodeJoined(node=A), now=0.0), [])
    exchange(lead, follower, [], follower.propose(events.NodeJoined(node=B), now=0.0))
    return lead, follower


def run_to_first_iteration(*, kept: int = KEPT_ENTRIES) -> tuple[Replica, Replica]:
    """The two of `lead_with_follower`, in iteration 1 of round 1."""
    lead, follower = lead_with_follower(kept=kept)
    exchange(lead, follower, lead.propose(events.RoundFormed(round=1, members=(A, B)), now=1.0), [])
    [loader] = [node for node in (A, B) if lead.log.scheduler.ledger.node_chunks[node].copies]
    loaded = events.ChunksLoaded(chunks=(ChunkId(0),), node=loader, round=1)
    author = lead if loader == A else follower
    actions = author.propose(loaded, now=1.0)
    exchange(lead, follower, *((actions, []) if author is lead else ([], actions)))
    assert lead.log.in_flight == follower.log.in_flight == (1, 1)
    return lead, follower


def orders_of(replica: Replica) -> list[effects.Effect]:
    """Everything that the log of a replica ordered."""
    log = Log(Scheduler(SchedulerSettings(start_nodes=2)))
    return [effect for entry in replica.log.entries for effect in log.append(entry)]


def exchange(one: Replica, other: Replica, from_one: list, from_other: list) -> list:
    """Deliver what two replicas say to each other until they are silent; see `deliver`."""
    return deliver({one: from_one, other: from_other})


def deliver(said: dict[Replica, list]) -> list:
    """Deliver what these replicas have said, and what follows from it; what they say to others is lost.

    Returns:
        All actions that are not messages.
    """
    rest, replicas = [], {replica.node: replica for replica in said}
    waiting = [(sender, action) for sender, actions in said.items() for action in actions + sender.settle(now=1.0)]
    while waiting:
        sender, action = waiting.pop(0)
        if not isinstance(action, Send):
            rest.append(action)
        elif (receiver := replicas.get(action.to)) is not None:
            message = codec.decode(codec.encode(action.message, Message), Message)
            answers = receiver.received(sender.node, message, now=1.0) + receiver.settle(now=1.0)
            waiting += [(receiver, answer) for answer in answers]
    return rest


def ended(iteration: int = 1, stop_reason: str | None = None) -> Ended:
    """An iteration that both tasks have merged."""
    reports = {node: TaskReport(samples=5, duration_s=0.5) for node in (A, B)}
    return Ended(round=1, iteration=iteration, reports=reports, stop_reason=stop_reason)
