"""What an agent sees of the replicated log: two of them, on one loop, that pass each other their messages as JSON."""

from collections.abc import Sequence
from typing import Any

import pytest

from chicle_elastic.cluster.consensus.entries import Entry
from chicle_elastic.cluster.consensus.messages import (
    Append,
    Claim,
    Expel,
    Folded,
    LogPosition,
    Message,
    Messages,
    Term,
)
from chicle_elastic.cluster.consensus.replicated_log import ReplicatedLog
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import codec, events
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings, State
from tests.cluster.consensus.log_pair import CHUNKS, A, B


class Agent:
    """One end: its log, what it was told, and the way to the other end."""

    def __init__(self, loop: EventLoop, node: NodeId) -> None:
        self.loop, self.node = loop, node
        self.other: Agent | None = None
        self.claims: list[Claim] = []
        self.num_looks = self.num_sent = 0
        self.told: list[Any] = []
        self.entries: list[Entry] = []
        self.log = ReplicatedLog(
            loop,
            node,
            f"{node}#1",
            make_scheduler=lambda: Scheduler(SchedulerSettings(start_nodes=2)),
            host=self,
        )

    def send_log(self, to: Sequence[NodeId], messages: Sequence[Message]) -> None:
        assert self.other is not None
        assert to == [self.other.node]
        self.num_sent += 1
        received: Messages = codec.decode(codec.encode(Messages(messages=tuple(messages))), Messages)
        for message in received.messages:
            self.loop.soon(lambda message=message: self.other.log.received(self.node, message))

    def claim(self, claim: Claim) -> None:
        self.claims.append(claim)

    def check_term(self) -> None:
        self.num_looks += 1

    def folded(self, folded: Folded) -> None:
        self.entries.append(folded.entry)
        self.told.append(folded.entry.event)

    def installed(self, length: int) -> None:
        self.told.append(("installed", length))

    def vote(self) -> None:
        self.told.append("vote")

    def break_group(self, reason: str) -> None:
        self.told.append(("break", reason))

    def expelled(self, reason: str) -> None:
        self.told.append(("expelled", reason))


@pytest.fixture
def agents(loop: EventLoop) -> tuple[Agent, Agent]:
    """Connected, and the first leads term 1; no event has happened."""
    lead, follower = Agent(loop, A), Agent(loop, B)
    lead.other, follower.other = follower, lead
    lead.log.claimed(1)
    lead.log.connected(B, follower.log.incarnation)
    follower.log.connected(A, lead.log.incarnation)
    settle(loop)
    assert lead.log.is_leading
    assert not follower.log.is_leading
    return lead, follower


def settle(loop: EventLoop) -> None:
    """Let everything happen that was said."""
    for _ in range(10):
        loop.turn(0.0)


def to_first_iteration(loop: EventLoop, lead: Agent, follower: Agent) -> None:
    """Both have joined and are in iteration 1 of round 1."""
    lead.log.append(events.ChunksDeclared(chunks=CHUNKS))
    for agent in (lead, follower):
        agent.log.append(events.NodeJoined(node=agent.node))
        settle(loop)
    lead.log.append(events.RoundFormed(round=1, members=(A, B)))
    settle(loop)
    [loader] = [agent for agent in (lead, follower) if agent.log.scheduler.ledger.node_chunks[agent.node].copies]
    loader.log.append(events.ChunksLoaded(chunks=(ChunkId(0),), node=loader.node, round=1))
    settle(loop)
    assert lead.log.snapshot().in_flight == follower.log.snapshot().in_flight == (1, 1)


def test_what_either_end_appends_comes_to_all_subscribers_in_one_order(
    loop: EventLoop, agents: tuple[Agent, Agent]
) -> None:
    """Also to the agent that appended it, and behind what it appended before."""
    lead, follower = agents
    said = [events.NodeJoined(node=B), events.LeaveNoticed(node=B), events.StopRequested(reason="b has enough")]
    for event in said:
        follower.log.append(event)
    assert follower.log.snapshot().proposed == tuple(said)
    lead.log.append(events.ChunksDeclared(chunks=CHUNKS))
    settle(loop)
    assert lead.entries == follower.entries
    assert [event for event in lead.told if event in said] == said
    assert len(lead.told) == 4
    assert follower.log.snapshot().proposed == ()


def test_what_is_appended_in_one_turn_is_sent_together(loop: EventLoop, agents: tuple[Agent, Agent]) -> None:
    """One message of the loop, however many events."""
    lead, follower = agents
    before = lead.num_sent
    for event in (events.ChunksDeclared(chunks=CHUNKS), events.NodeJoined(node=A), events.LeaveNoticed(node=A)):
        lead.log.append(event)
    settle(loop)
    assert lead.num_sent == before + 1
    assert follower.log.snapshot().length == 3


def test_a_snapshot_says_what_the_entries_came_to_and_does_not_change(
    loop: EventLoop, agents: tuple[Agent, Agent]
) -> None:
    """Later entries are in the next one."""
    lead, follower = agents
    empty = follower.log.snapshot()
    assert (empty.length, empty.present, empty.in_flight, empty.is_live) == (0, (), None, False)
    to_first_iteration(loop, lead, follower)
    running = follower.log.snapshot()
    assert (empty.length, empty.present, empty.in_flight, empty.is_live) == (0, (), None, False)
    assert running.present == running.members == (A, B)
    assert (running.length, running.first_term, running.incarnation) == (5, 1, "b#1")
    assert running.is_live
    assert running.is_awaiting
    assert not running.is_steady
    assert follower.log.scheduler.state is State.RUNNING


def test_a_node_that_a_newer_term_began_without_is_told_and_begins_again(
    loop: EventLoop, agents: tuple[Agent, Agent]
) -> None:
    """Nothing that it says reaches the log any more; its next incarnation has an empty one."""
    lead, follower = agents
    to_first_iteration(loop, lead, follower)
    follower.log.lost(A)
    assert [claim.term for claim in follower.claims] == [2]
    follower.log.refused(Term(term=1, lead="a#1", members=("a#1", "b#1")))
    assert follower.num_looks == 1
    follower.log.looked(Term(term=2, lead="a#1", members=("a#1",)))
    assert follower.told[-1][0] == "expelled"
    assert follower.log.is_out
    follower.log.append(events.LeaveNoticed(node=B))
    settle(loop)
    assert follower.log.snapshot().proposed == ()
    follower.log.begin("b#2")
    assert not follower.log.is_out
    assert (follower.log.snapshot().length, follower.log.incarnation, follower.log.term) == (0, "b#2", 0)


def test_who_is_expelled_says_nothing_more(loop: EventLoop, agents: tuple[Agent, Agent]) -> None:
    """Nor what it has said in the same turn of the loop."""
    _, follower = agents
    before = follower.num_sent
    follower.log.append(events.LeaveNoticed(node=B))
    follower.log.received(A, Expel(reason="why"))
    settle(loop)
    assert follower.told == [("expelled", "a has expelled this node: why")]
    assert follower.num_sent == before


def test_a_group_that_waits_for_the_dead_is_broken(loop: EventLoop, agents: tuple[Agent, Agent]) -> None:
    """As soon as the store has granted a term without them; the task tells how far it got."""
    lead, follower = agents
    to_first_iteration(loop, lead, follower)
    follower.log.lost(A)
    follower.log.claimed(2)
    kind, reason = follower.told[-1]
    assert kind == "break"
    assert reason


class Broadcaster(Agent):
    """A leader that writes down what it sends to whom."""

    def __init__(self, loop: EventLoop, node: NodeId) -> None:
        super().__init__(loop, node)
        self.sent: list[tuple[list[NodeId], tuple[Message, ...]]] = []

    def send_log(self, to: Sequence[NodeId], messages: Sequence[Message]) -> None:
        self.sent.append((list(to), tuple(messages)))


def test_what_several_followers_lack_alike_is_sent_to_all_of_them_at_once(loop: EventLoop) -> None:
    """So it is encoded once, and not once per follower: an inventory of each of 256 nodes, for 255 followers."""
    lead = Broadcaster(loop, A)
    lead.log.claimed(1)
    followers = [NodeId(name) for name in ("b", "c", "d")]
    for node in followers[:2]:
        lead.log.connected(node, f"{node}#1")
        lead.log.received(node, LogPosition(term=1, last_term=0, length=0, base=0))
    settle(loop)
    lead.sent.clear()
    lead.log.append(events.ChunksDeclared(chunks=CHUNKS))
    lead.log.append(events.NodeJoined(node=A))
    settle(loop)
    [(nodes, (message,))] = lead.sent
    assert nodes == followers[:2]
    assert isinstance(message, Append)
    assert len(message.entries) == 2
    # The third lacks more than the others do: it has a message of its own, and the others still share theirs.
    lead.log.connected(followers[2], "d#1")
    lead.log.append(events.HandoverDue(node=A))
    settle(loop)
    sent = {tuple(nodes): [message.base for message in messages] for nodes, messages in lead.sent[1:]}
    assert sent == {("b", "c"): [2], ("d",): [0, 2]}
