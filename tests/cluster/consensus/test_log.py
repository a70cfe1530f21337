"""The log that all agents share: each rule as a sentence, then whole histories of bad luck."""

from collections import Counter

import pytest

from chicle_elastic.cluster.agent.pipelining import Pipelining
from chicle_elastic.cluster.consensus import followers
from chicle_elastic.cluster.consensus import replica as replica_module
from chicle_elastic.cluster.consensus.election import Election, Role
from chicle_elastic.cluster.consensus.entries import Entry
from chicle_elastic.cluster.consensus.log import Log
from chicle_elastic.cluster.consensus.messages import (
    Append,
    BreakGroup,
    Claim,
    Expel,
    Expelled,
    Folded,
    Install,
    LogPosition,
    Message,
    Messages,
    NewTerm,
    Propose,
    Released,
    Send,
    Term,
    Vote,
)
from chicle_elastic.cluster.consensus.replica import Replica
from chicle_elastic.errors import ProtocolError
from chicle_elastic.runtime.control.messages import Iterate
from chicle_elastic.scheduling import codec, effects, events
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings, State
from chicle_elastic.values import Observations
from tests.cluster.consensus.log_judge import BrokenPromiseError
from tests.cluster.consensus.log_net import Net
from tests.cluster.consensus.log_pair import (
    CHUNKS,
    A,
    B,
    C,
    ended,
    exchange,
    lead_with_follower,
    make_replica,
    orders_of,
    run_to_first_iteration,
)

FAULTS = {
    "join": ("join",),
    "leave": ("join", "notice"),
    "kill": ("join", "kill"),
    "task": ("join", "task"),
    "silence": ("join", "silence"),
    "cut": ("join", "cut"),
    "partition": ("join", "partition"),
    "pair": ("join", "pair"),
    "store": ("join", "kill", "store", "partition"),
    "halves": ("join", "notice", "partition", "store"),
    "all": ("join", "notice", "kill", "task", "silence", "cut", "partition", "pair", "store"),
}
NUM_HISTORIES = 12
MOST_TOLD = (followers.MOST_TOLD, 3)
"""Entries that a newcomer is told before it is sent the state instead."""


def test_an_iteration_without_votes_needs_no_message() -> None:
    """Both agents append the same entry by themselves, and say nothing."""
    lead, follower = run_to_first_iteration()
    for replica in (lead, follower):
        actions = replica.iteration_ended(ended(), votes=0, now=2.0)
        assert [type(action) for action in actions] == [Folded]
        assert replica.log.in_flight == (1, 2)
    assert lead.log.entries == follower.log.entries


def test_a_log_is_steady_after_a_boundary_that_ordered_nothing_else() -> None:
    """Then tasks may go on by themselves, until an event is sequenced."""
    lead, follower = run_to_first_iteration()
    assert not lead.log.is_steady
    for replica in (lead, follower):
        replica.iteration_ended(ended(), votes=0, now=2.0)
        assert replica.log.is_steady
    exchange(lead, follower, lead.propose(events.LeaveNoticed(node=B), now=2.0), [])
    for replica in (follower, lead):
        actions = replica.iteration_ended(ended(2), votes=1, now=2.0)
        exchange(replica, follower if replica is lead else lead, actions, [])
    assert not lead.log.is_steady


def test_a_policy_may_want_something_at_any_boundary() -> None:
    """So no task goes on by itself where there is one."""

    class Silent:
        name = "silent"

        def decide(self, observations: Observations) -> None:
            return None

    logs = [Log(Scheduler(SchedulerSettings(), policies)) for policies in ((), (Silent(),))]
    _, follower = run_to_first_iteration()
    for log in logs:
        for entry in follower.log.entries:
            log.append(entry)
        log.append(log.in_band(ended())[0])
        assert log.in_flight == (1, 2)
    assert [log.is_steady for log in logs] == [True, False]


def test_nobody_answers_a_breaking_term_before_its_task_has_told_all_that_it_merged() -> None:
    """The task is ahead of the log: what it has merged meanwhile must not be forgotten."""
    _, follower = run_to_first_iteration()
    follower.iteration_ended(ended(), votes=0, now=2.0)
    follower.lost(A, now=2.0)
    assert [type(action) for action in follower.claimed(2, now=2.0)] == [BreakGroup]
    for iteration in (2, 3):
        actions = follower.iteration_ended(ended(iteration), votes=0, now=2.0, goes_on=True)
        assert [type(action.entry.event) for action in actions] == [events.IterationFinished]
        assert follower.role is Role.COLLECTING
    actions = follower.iteration_broke(1, 4, "connection reset", now=2.0)
    folded = [type(action.entry.event) for action in actions if isinstance(action, Folded)]
    assert folded == [events.NodeLost, events.IterationAborted]
    assert follower.role is Role.LEADING


def order(iteration: int, *, may_go_on: bool = True, round: int = 1) -> Iterate:
    """An order to iterate."""
    return Iterate(round=round, iteration=iteration, is_complete=True, num_tasks=2, may_go_on=may_go_on)


def test_a_task_that_goes_on_by_itself_is_told_nothing_until_it_waits() -> None:
    """Only the first order is said, and the first one after a stop."""
    pace = Pipelining()
    assert pace.start(order(1, may_go_on=False)) == order(1, may_go_on=False)
    assert pace.start(order(2)) == order(2)
    assert pace.start(order(3)) is None
    pace.waits(1, 3)
    assert pace.start(order(4)) == order(4)
    assert pace.start(order(1, round=2)) == order(1, round=2)


def test_a_log_that_is_ahead_of_its_task_says_the_order_when_the_task_waits() -> None:
    """Others have told of iterations 3 and 4, and of a stop after 4; the own task comes to it later."""
    pace = Pipelining()
    pace.start(order(2))
    assert pace.start(order(5)) is None
    assert pace.overdue(3, (1, 5)) is None
    pace.waits(1, 4)
    assert pace.overdue(4, (1, 5)) == order(5)
    assert pace.overdue(4, (1, 5)) is None


def test_what_an_earlier_round_says_does_not_stop_a_task_of_this_one() -> None:
    """Otherwise an iteration would be ordered that the task has begun."""
    pace = Pipelining()
    pace.start(order(2, round=2))
    pace.waits(1, 7)
    assert pace.start(order(3, round=2)) is None


def test_events_wait_for_the_boundary_and_the_task_votes_for_it() -> None:
    """What happens while an iteration runs gets its place at the next boundary; then both have it."""
    lead, follower = run_to_first_iteration()
    length = len(lead.log)
    actions = exchange(lead, follower, [], follower.propose(events.LeaveNoticed(node=B), now=2.0))
    assert actions == [Vote()]
    assert len(lead.log) == len(follower.log) == length
    waits = follower.iteration_ended(ended(), votes=1, now=2.0)
    assert waits == []
    exchange(lead, follower, lead.iteration_ended(ended(), votes=1, now=2.0), [])
    kinds = [type(entry.event) for entry in lead.log.entries[length:]]
    assert kinds == [events.LeaveNoticed, events.IterationFinished]
    assert lead.log.entries == follower.log.entries


def test_the_lead_votes_again_when_its_vote_came_too_late() -> None:
    """An iteration that ends without the vote is followed by another vote."""
    lead, _ = run_to_first_iteration()
    lead.propose(events.LeaveNoticed(node=B), now=2.0)
    assert lead.settle(now=2.0) == [Vote()]
    assert Vote() in lead.iteration_ended(ended(), votes=0, now=2.0)


def test_a_verdict_to_stop_is_in_band_too() -> None:
    """All tasks come to the same verdict, so all agents finish the job without a message."""
    for replica in run_to_first_iteration():
        [request, finish] = replica.iteration_ended(ended(stop_reason="gap below tol"), votes=0, now=2.0)
        assert isinstance(request, Folded)
        assert isinstance(finish, Folded)
        assert effects.FinishJob(reason="gap below tol") in finish.effects


def test_the_next_present_node_claims_when_the_lead_is_lost() -> None:
    """The claim is for the next term; the group that waits for the dead is broken as soon as it is granted."""
    _, follower = run_to_first_iteration()
    assert follower.lost(A, now=2.0) == [Claim(term=2, known=1, members=("b#1",))]
    assert [type(action) for action in follower.claimed(2, now=2.0)] == [BreakGroup]
    actions = follower.iteration_broke(1, 1, "connection reset", now=2.0)
    folded = [type(action.entry.event) for action in actions if isinstance(action, Folded)]
    assert folded == [events.NodeLost, events.IterationAborted]
    assert follower.role is Role.LEADING


def test_what_somebody_merged_is_finished_and_not_aborted() -> None:
    """The follower has the sum, the lead died with the boundary in its hands."""
    _, follower = run_to_first_iteration()
    follower.iteration_ended(ended(), votes=1, now=2.0)
    follower.lost(A, now=2.0)
    actions = follower.claimed(2, now=2.0)
    folded = [type(action.entry.event) for action in actions if isinstance(action, Folded)]
    assert folded == [events.NodeLost, events.IterationFinished]


def test_the_longest_log_wins() -> None:
    """A new lead adopts what the old one told another agent only, and finishes what that one merged."""
    lead, follower = run_to_first_iteration()
    lead.iteration_ended(ended(), votes=0, now=2.0)
    exchange(lead, follower, lead.iteration_broke(1, 2, "connection reset", now=2.0), [])
    assert lead.role is Role.CLAIMING
    exchange(lead, follower, lead.claimed(2, now=2.0), follower.iteration_broke(1, 1, "connection reset", now=2.0))
    assert follower.log.entries == lead.log.entries
    kinds = Counter(type(entry.event) for entry in follower.log.entries)
    assert kinds[events.IterationFinished] == kinds[events.IterationAborted] == 1


def test_an_agent_that_merged_what_the_lead_did_not_is_believed() -> None:
    """The lead's own task broke in iteration 1, the follower's did not: the iteration counts."""
    lead, follower = run_to_first_iteration()
    from_follower = follower.iteration_ended(ended(), votes=0, now=2.0)
    from_follower += follower.iteration_broke(1, 2, "connection reset", now=2.0)
    exchange(lead, follower, lead.iteration_broke(1, 1, "connection reset", now=2.0), from_follower)
    exchange(lead, follower, lead.claimed(2, now=2.0), [])
    assert lead.log.entries == follower.log.entries
    assert events.IterationFinished in [type(entry.event) for entry in lead.log.entries]


def test_a_lead_under_notice_gives_way_without_breaking_the_iteration() -> None:
    """Released, it leads no more; the successor asks for a term while the iteration goes on."""
    lead, follower = run_to_first_iteration()
    exchange(lead, follower, lead.propose(events.LeaveNoticed(node=A), now=2.0), [])
    for replica in (follower, lead):
        actions = replica.iteration_ended(ended(), votes=1, now=2.0)
        exchange(replica, follower if replica is lead else lead, actions, [])
    # A holds the only chunk or none: either way it is released at the end of this.
    for _ in range(20):
        if A not in lead.log.present:
            break
        for replica in (lead, follower):
            other = follower if replica is lead else lead
            for event in answers_of(replica):
                exchange(replica, other, replica.propose(event, now=3.0), [])
    assert A not in lead.log.present
    assert lead.role is Role.FOLLOWING
    assert follower.role is Role.CLAIMING
    assert not any(isinstance(action, BreakGroup) for action in follower.claimed(2, now=3.0))


def answers_of(replica: Replica) -> list[events.Event]:
    """What a node would answer to its last orders."""
    answers: list[events.Event] = []
    for order in orders_of(replica):
        if isinstance(order, effects.FormRound) and order.round == replica.log.scheduler.round and replica.node == B:
            answers.append(events.RoundFormed(round=order.round, members=order.members))
        elif isinstance(order, effects.CopyChunks) and order.target == replica.node:
            answers.append(
                events.ChunksCopied(chunks=order.chunks, source=order.source, target=order.target, round=order.round)
            )
        elif isinstance(order, effects.FreeChunks) and order.node == replica.node:
            answers.append(events.ChunksFreed(chunks=order.chunks, node=order.node, round=order.round))
    return answers


def test_whoever_is_not_in_the_newest_term_is_out() -> None:
    """A silent agent that comes back learns from the store that the others went on."""
    _, follower = run_to_first_iteration()
    follower.lost(A, now=2.0)
    [action] = follower.refused(Term(term=2, lead="a#1", members=("a#1",)), now=2.0)
    assert isinstance(action, Expelled)
    assert follower.propose(events.LeaveNoticed(node=B), now=3.0) == []


def test_a_leader_of_a_job_that_is_over_loses_nobody() -> None:
    """The scheduler has no answer to it any more: the leader would sequence the same loss for ever."""
    lead, _ = run_to_first_iteration()
    lead.lost(B, now=2.0)
    lead.claimed(2, now=2.0)
    lead.iteration_ended(ended(stop_reason="gap below tol"), votes=0, now=2.0)
    assert lead.log.scheduler.state is State.FINISHED
    assert lead.role is Role.LEADING


def test_a_log_with_other_entries_is_expelled() -> None:
    """Whoever has sequenced something that the others never saw cannot go on with them."""
    lead, follower = lead_with_follower()
    lead.lost(B, now=1.0)
    lead.claimed(2, now=1.0)  # NodeLost of b, in a term that b never hears of
    message = Append(term=3, base=0, entries=(*follower.log.entries, entry_of(events.StopRequested(reason="x"))))
    lead.connected(C, "c#1", now=1.0)
    actions = lead.received(C, message, now=1.0)
    assert [type(action) for action in actions] == [Expelled]


def test_a_node_that_has_the_state_of_another_job_is_expelled() -> None:
    """All nodes of that job are dead, and the new one is shorter than the state: no kept entry can be compared."""
    lead, _ = run_to_first_iteration()
    joiner = make_replica(C)
    joiner.connected(A, "a#1", now=1.0)
    joiner.received(A, Install(term=1, state=lead.log.state()), now=1.0)
    assert len(joiner.log) == joiner.log.start == len(lead.log)
    joiner.lost(A, now=2.0)
    joiner.connected(B, "b#2", now=3.0)
    begun = Entry(now=0.0, event=events.ChunksDeclared(chunks=CHUNKS), term=2, origin="b#2", number=1)
    actions = joiner.received(B, Append(term=2, base=0, entries=(begun,)), now=3.0)
    assert [type(action) for action in actions] == [Expelled]


def test_a_member_that_was_released_has_sent_its_part_of_the_sum() -> None:
    """a left at a boundary that the task of b is about to come to: b must not break the iteration, which a merged."""
    _, follower = run_to_first_iteration()
    follower.received(A, Released(length=9, last_term=1), now=2.0)
    follower.lost(A, now=2.0)
    assert not any(isinstance(action, BreakGroup) for action in follower.claimed(2, now=2.0))
    first, *_ = follower.iteration_ended(ended(), votes=0, now=2.0)
    assert isinstance(first, Folded)
    assert (type(first.entry.event), first.entry.term) == (events.IterationFinished, 1)


def test_the_next_incarnation_of_a_member_is_sent_what_members_append_by_themselves() -> None:
    """b left and came back while the task of a was still in the iteration; its log began where that one runs."""
    lead, _ = run_to_first_iteration()
    lead.received(B, Released(length=len(lead.log) + 1, last_term=1), now=2.0)
    lead.lost(B, now=2.0)
    lead.claimed(2, now=2.0)
    assert lead.role is Role.LEADING
    lead.connected(B, "b#2", now=2.0)
    length = len(lead.log)
    said = [action.message for action in lead.iteration_ended(ended(), votes=0, now=3.0) if isinstance(action, Send)]
    assert [message.base for message in said if isinstance(message, Append)] == [length]


def test_whoever_reads_of_its_own_loss_is_out() -> None:
    """Its link was cut and made again before it looked into the store; a task that died alone is another matter."""
    _, follower = lead_with_follower()
    own_word = Entry(now=9.0, event=events.NodeLost(node=B), term=1, origin="b#1", number=2)
    assert not any(isinstance(action, Expelled) for action in hear(follower, own_word))
    again = Entry(now=9.0, event=events.NodeJoined(node=B), term=1, origin="b#1", number=3)
    loss = Entry(now=9.0, event=events.NodeLost(node=B), term=1)
    *_, last = hear(follower, again, loss)
    assert isinstance(last, Expelled)


def hear(follower: Replica, *entries: Entry) -> list:
    """What comes of more entries of the lead."""
    return follower.received(A, Append(term=1, base=len(follower.log), entries=entries), now=9.0)


def entry_of(event: events.Event) -> Entry:
    """An entry of term 3."""
    return Entry(now=9.0, event=event, term=3)


def test_a_claim_is_repeated_when_somebody_is_lost_meanwhile() -> None:
    """The store granted a term with that agent; a second loss asks for a term without it."""
    lead, follower = lead_with_follower()
    lead.connected(C, "c#1", now=1.0)
    lead.lost(C, now=1.0)
    assert lead.role is Role.CLAIMING
    lead.lost(follower.node, now=1.0)
    assert lead.claimed(2, now=1.0) == [Claim(term=3, known=2, members=("a#1",))]


def test_proposals_keep_their_order_and_are_sequenced_once() -> None:
    """One that overtakes an earlier one is not taken; one that is said again is not taken twice."""
    lead, follower = lead_with_follower()
    length = len(lead.log)
    first, second = (
        Propose(origin="b#1", number=number, event=events.StopRequested(reason=str(number))) for number in (2, 3)
    )
    for proposal in (second, first, first, second, second):
        lead.received(follower.node, proposal, now=1.0)
    lead.settle(now=1.0)
    assert [entry.number for entry in lead.log.entries[length:]] == [2, 3]


def test_history_is_not_performed_again() -> None:
    """A joiner folds the whole log, and is ordered nothing by entries from before it joined."""
    lead, _ = run_to_first_iteration()
    joiner = make_replica(C)
    joiner.connected(A, "a#1", now=1.0)
    lead.connected(C, "c#1", now=1.0)
    actions = joiner.received(A, Append(term=1, base=0, entries=tuple(lead.log.entries)), now=1.0)
    folded = [action for action in actions if isinstance(action, Folded)]
    assert len(folded) == len(lead.log)
    assert not any(action.is_live for action in folded)


@pytest.mark.parametrize(
    "message",
    [
        Propose(origin="a#1", number=3, event=events.NodeJoined(node=A, capacity_bytes=7)),
        Append(term=2, base=5, entries=(Entry(now=0.25, event=events.NodeLost(node=B), term=2),)),
        NewTerm(term=3, last_term=2, length=9, is_breaking=True),
        LogPosition(term=3, last_term=2, length=9, base=9, ended=ended()),
        Install(term=3, state={"version": 1}),
        Expel(reason="why"),
    ],
)
def test_messages_survive_the_wire(message: Message) -> None:
    """What is encoded is decoded to the same, alone and as one of those that go over a link together."""
    assert codec.decode(codec.encode(message, Message), Message) == message
    together = Messages(messages=(message, message))
    assert codec.from_values(codec.to_values(together), Messages) == together


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"type": "Format"},
        {"type": "NewTerm", "term": -1, "last_term": 0, "length": 0, "is_breaking": False},
        {"type": "NewTerm", "term": 1, "last_term": 0, "length": True, "is_breaking": False},
        {"type": "Append", "term": 1, "base": 0, "entries": [{"now": float("nan")}]},
        {"type": "Append", "term": 1, "base": 0, "entries": "all"},
        {"type": "Propose", "origin": "a", "number": 1, "event": {"type": "Effect"}},
    ],
)
def test_nonsense_is_refused(data: object) -> None:
    """A peer that talks nonsense gets a ProtocolError, and nothing is folded."""
    with pytest.raises(ProtocolError):
        codec.from_values(data, Message)
    with pytest.raises(ProtocolError):
        codec.from_values({"kind": "log", "messages": [data]}, Messages)


def run_histories(kind: str, number: int, first: int = 0) -> Counter[str]:
    """Live through some histories, from this seed on.

    Returns:
        How often each kind of thing happened in them.
    """
    happened: Counter[str] = Counter()
    for seed in range(first, first + number):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(followers, "MOST_TOLD", MOST_TOLD[seed % 2])
            happened += Net(seed, FAULTS[kind]).run().happened
    return happened


@pytest.mark.parametrize("number", [NUM_HISTORIES, pytest.param(5 * NUM_HISTORIES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", FAULTS)
def test_all_agents_fold_the_same_events(kind: str, number: int) -> None:
    """Random histories: delays, deaths at any point, silence, cut links, leads among the victims, several at once."""
    happened = run_histories(kind, number)
    assert all(happened[name] for name in FAULTS[kind]), happened
    assert happened["installed"], "somebody begins with a state and not with the entries"
    if kind == "kill":
        assert min(happened["kill of leading"], happened["terms"]) > 5, "agents are struck while they lead"


def test_a_lead_that_ignores_better_logs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge of the histories is not blind: without this rule, they fail."""
    monkeypatch.setattr(Election, "better_than", lambda self, log, lives: None)
    with pytest.raises(BrokenPromiseError, match=r"comes to (an|the) end"):
        run_histories("task", 50, first=50)  # the first one that shows it is number 84


def test_a_lead_that_forgets_to_ask_for_a_term_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the store's consent two parts of a cut network both go on, and the histories show it."""

    def claim_without_asking(self: Replica) -> None:
        self.role = Role.CLAIMING
        self._reachability.call()
        self.claimed(self.term + 1, now=self.log.now)

    monkeypatch.setattr(replica_module.Replica, "_claim", claim_without_asking)
    with pytest.raises(BrokenPromiseError, match=r"comes to (an|the) end"):
        run_histories("cut", 100)


def test_a_log_that_keeps_every_entry_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge sees a log that grows with its job."""
    keep = Log._keep

    def keep_every_entry(self: Log, entry: Entry) -> None:
        self._kept = 10_000
        keep(self, entry)

    monkeypatch.setattr(Log, "_keep", keep_every_entry)
    with pytest.raises(BrokenPromiseError, match="a log keeps its end"):
        run_histories("join", 10)  # the first one that shows it is number 1
