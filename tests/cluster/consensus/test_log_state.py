"""A log keeps its end only: newcomers are given what it has come to."""

import pytest

from chicle_elastic.cluster.consensus.election import Role
from chicle_elastic.cluster.consensus.entries import Entry
from chicle_elastic.cluster.consensus.followers import MOST_TOLD, Followers
from chicle_elastic.cluster.consensus.log import STATE_VERSION, Log
from chicle_elastic.cluster.consensus.messages import Append, Expelled, Install, Installed, Message, Send
from chicle_elastic.cluster.consensus.replica import Replica
from chicle_elastic.errors import ProtocolError
from chicle_elastic.scheduling import codec, events
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from tests.cluster.consensus.log_pair import A, B, C, ended, exchange, make_replica, run_to_first_iteration


def run_iterations(replicas: tuple[Replica, ...], first: int, last: int) -> None:
    """Iterations without votes, at all of these agents."""
    for iteration in range(first, last + 1):
        for replica in replicas:
            replica.iteration_ended(ended(iteration), votes=0, now=2.0)


def state_sent_to(newcomer: Replica, lead: Replica) -> Install:
    """What the lead sends to an agent that it is connected to now."""
    [action] = lead.connected(newcomer.node, newcomer.life, now=3.0)
    newcomer.connected(lead.node, lead.life, now=3.0)
    assert isinstance(action, Send)
    message = delivered(action.message)
    assert isinstance(message, Install)
    return message


def delivered(message: Message) -> Message:
    """A message as its receiver gets it."""
    received: Message = codec.decode(codec.encode(message, Message), Message)
    return received


def test_a_log_keeps_its_end_only() -> None:
    """Its memory is bounded; its length and its last terms are what they were."""
    lead, follower = run_to_first_iteration(kept=8)
    run_iterations((lead, follower), 1, 100)
    for log in (lead.log, follower.log):
        assert 8 <= len(log.entries) <= 16
        assert len(log) == log.start + len(log.entries) > 100
        assert log.term_before(log.start) == log.term_before(len(log)) == 1
        assert log.term_before(log.start - 1) is None


def test_a_newcomer_goes_on_from_the_state_of_a_long_log() -> None:
    """It has no orders from before, and folds what comes next like everybody else; also what was proposed before."""
    lead, follower = run_to_first_iteration(kept=8)
    run_iterations((lead, follower), 1, 100)
    joiner = make_replica(C, kept=8)
    message = state_sent_to(joiner, lead)
    assert joiner.received(A, message, now=3.0) == [Installed(length=len(lead.log))]
    assert joiner.log.state() == lead.log.state()
    assert joiner.lead == A
    exchange(lead, joiner, [], joiner.propose(events.NodeJoined(node=C), now=3.0))
    exchange(lead, joiner, lead.iteration_ended(ended(101), votes=1, now=4.0), [])
    assert C in joiner.log.present
    assert joiner.own.is_live
    assert joiner.log.state() == lead.log.state()


@pytest.mark.parametrize(("num_iterations", "kind"), [(10, Append), (MOST_TOLD, Install)])
def test_a_newcomer_is_told_few_entries_and_the_state_instead_of_many(num_iterations: int, kind: type) -> None:
    """All of them are kept, but it would have to fold them one by one before it can join."""
    lead, follower = run_to_first_iteration()
    run_iterations((lead, follower), 1, num_iterations)
    assert lead.log.start == 0
    joiner = make_replica(C)
    [action] = lead.connected(C, joiner.life, now=3.0)
    assert isinstance(action, Send)
    assert isinstance(action.message, kind)
    joiner.connected(A, lead.life, now=3.0)
    joiner.received(A, delivered(action.message), now=3.0)
    assert joiner.log.state() == lead.log.state()


def test_who_is_present_is_told_entries_however_many() -> None:
    """Its link may have come back. It has orders in entries, maybe: with the state it would have to begin afresh."""
    lead, follower = run_to_first_iteration()
    run_iterations((lead, follower), 1, 2 * MOST_TOLD)
    message = Followers(lead.log).tell(B, follower.life, term=1)
    assert isinstance(message, Append)
    assert message.base == 0
    assert not any(isinstance(done, Expelled) for done in follower.received(A, message, now=3.0))
    assert isinstance(Followers(lead.log).tell(B, "b#2", term=1), Install), "another life of it is a newcomer"


def test_the_lead_of_a_later_term_sends_a_newcomer_the_state_too() -> None:
    """Its log is no beginning of a log that does not keep its beginning, and it has no orders to lose."""
    lead, follower = run_to_first_iteration(kept=8)
    run_iterations((lead, follower), 1, 50)
    joiner = make_replica(C)
    follower.connected(C, joiner.life, now=2.0)
    joiner.connected(B, follower.life, now=2.0)
    follower.lost(A, now=2.0)
    from_follower = follower.claimed(2, now=2.0)
    from_follower += follower.iteration_broke(1, 51, "connection reset", now=2.0)
    [installed] = exchange_all(follower, joiner, from_follower, kind=Installed)
    assert installed == Installed(length=len(follower.log))
    assert joiner.log.state() == follower.log.state()


@pytest.mark.parametrize("num_iterations", [10, MOST_TOLD])
def test_the_survivors_go_on_although_a_newcomer_was_given_more_than_they_have(num_iterations: int) -> None:
    """The lead alone has merged an iteration, and is lost after a newcomer came, who can tell entries, or cannot."""
    lead, follower = run_to_first_iteration()
    run_iterations((lead, follower), 1, num_iterations)
    joiner = make_replica(C)
    joiner.connected(B, follower.life, now=2.0)
    follower.connected(C, joiner.life, now=2.0)
    lead.iteration_ended(ended(num_iterations + 1), votes=0, now=2.0)
    [action] = lead.connected(C, joiner.life, now=3.0)
    joiner.connected(A, lead.life, now=3.0)
    assert isinstance(action, Send)
    joiner.received(A, delivered(action.message), now=3.0)
    assert len(joiner.log) == len(follower.log) + 1
    joiner.lost(A, now=3.0)
    assert follower.lost(A, now=3.0)
    from_follower = follower.claimed(2, now=3.0)
    from_follower += follower.iteration_broke(1, num_iterations + 1, "connection reset", now=3.0)
    exchange(follower, joiner, from_follower, [])
    assert follower.role is Role.LEADING
    assert A not in follower.log.present
    has_merged = any(
        isinstance(entry.event, events.IterationFinished) and entry.event.iteration == num_iterations + 1
        for entry in follower.log.entries
    )
    # Entries are handed on. What nobody can hand on was never done, and whoever was told of it begins another life.
    assert has_merged == isinstance(action.message, Append) == (joiner.role is Role.FOLLOWING)


def test_an_agent_that_was_lost_in_the_log_of_a_newcomer_begins_afresh() -> None:
    """They have gone on without it: its log is not to become everybody's, whoever can hand entries on."""
    lead, late = run_to_first_iteration()
    run_iterations((lead, late), 1, 2 * MOST_TOLD)
    lead.lost(B, now=3.0)
    lead.claimed(2, now=3.0)
    lead.iteration_broke(1, 2 * MOST_TOLD + 1, "connection reset", now=3.0)
    assert B not in lead.log.present
    joiner = make_replica(C)
    [action] = lead.connected(C, joiner.life, now=4.0)
    joiner.connected(A, lead.life, now=4.0)
    assert isinstance(action, Send)
    assert isinstance(action.message, Install)
    joiner.received(A, delivered(action.message), now=4.0)
    joiner.lost(A, now=5.0)
    late.lost(A, now=5.0)
    joiner.connected(B, late.life, now=5.0)
    late.connected(C, joiner.life, now=5.0)
    from_late = late.claimed(3, now=5.0) + late.iteration_broke(1, 2 * MOST_TOLD + 1, "connection reset", now=5.0)
    exchange(late, joiner, from_late, [])
    assert late.role is Role.OUT


def exchange_all(one: Replica, other: Replica, from_one: list, *, kind: type) -> list:
    """As `exchange`; returns the actions of one kind."""
    return [action for action in exchange(one, other, from_one, []) if isinstance(action, kind)]


def test_an_agent_that_lacks_orders_which_are_not_kept_begins_afresh() -> None:
    """The state says nothing of what it would have had to do."""
    lead, follower = run_to_first_iteration(kept=8)
    run_iterations((lead,), 1, 100)
    lead.lost(B, now=3.0)
    late = make_replica(B, life=2)
    lead.claimed(2, now=3.0)
    lead.iteration_broke(1, 101, "connection reset", now=3.0)
    message = state_sent_to(late, lead)
    assert follower.iteration_broke(1, 1, "connection reset", now=3.0)
    [*_, action] = follower.received(A, message, now=3.0)
    assert isinstance(action, Expelled)
    assert late.received(A, message, now=3.0) == [Installed(length=len(lead.log))]


def test_what_a_life_has_proposed_is_not_said_again_when_the_state_has_it() -> None:
    """The state knows who has proposed what."""
    lead, follower = run_to_first_iteration(kept=8)
    joiner = make_replica(C, kept=8)
    exchange(lead, joiner, lead.connected(C, joiner.life, now=2.0), joiner.connected(A, lead.life, now=2.0))
    exchange(lead, joiner, [], joiner.propose(events.StopRequested(reason="early"), now=2.0))
    other = Log(Scheduler(SchedulerSettings(start_nodes=2)))
    for entry in follower.log.entries:
        other.append(entry)
    other.append(Entry(now=3.0, event=events.StopRequested(reason="early"), term=1, origin=joiner.life, number=1))
    assert joiner.own.install(other.state())
    assert list(joiner.own.outbox) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, f"has version 2 and this release reads version {STATE_VERSION}"),
        ({"version": 99}, f"has version 99 and this release reads version {STATE_VERSION}"),
        ({"log": []}, "Expected `object`, got `array` - at `LogState`"),
        ({"scheduler": {}}, "no snapshot of a scheduler"),
    ],
)
def test_a_state_that_is_none_is_refused(change: dict, words: str) -> None:
    """And the log stays what it was."""
    lead, follower = run_to_first_iteration(kept=8)
    run_iterations((lead, follower), 1, 20)
    before = follower.log.state()
    with pytest.raises(ProtocolError, match=words):
        follower.log.install(lead.log.state() | change)
    assert follower.log.state() == before


def test_the_state_of_a_job_with_other_settings_is_refused() -> None:
    """Its scheduler would decide otherwise."""
    other = Log(Scheduler(SchedulerSettings(seed=5)))
    with pytest.raises(ProtocolError, match="seed=5"):
        make_replica(A).log.install(other.state())
