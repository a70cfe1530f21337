"""A network in parts: which part of a job goes on, and what the others do meanwhile."""

import dataclasses
import itertools

import pytest

from chicle_elastic.cluster.consensus import reachability
from chicle_elastic.cluster.consensus.election import Role
from chicle_elastic.cluster.consensus.entries import Entry
from chicle_elastic.cluster.consensus.link_reports import STALL_S
from chicle_elastic.cluster.consensus.log import Log
from chicle_elastic.cluster.consensus.messages import (
    Action,
    Append,
    CheckTerm,
    Claim,
    Expel,
    Expelled,
    Folded,
    LinkReport,
    LogPosition,
    NewTerm,
    Paused,
    Propose,
    Refusal,
    Released,
    Send,
    SteppedDown,
    Term,
)
from chicle_elastic.cluster.consensus.patience import DOUBT_LOOKS, RETRY_LOOKS
from chicle_elastic.cluster.consensus.reachability import Authority, Reachability
from chicle_elastic.cluster.consensus.replica import Replica
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings, State
from chicle_elastic.values import ChunkInfo
from tests.cluster.consensus.log_judge import BrokenPromiseError
from tests.cluster.consensus.log_pair import (
    A,
    B,
    C,
    deliver,
    ended,
    exchange,
    lead_with_follower,
    run_to_first_iteration,
)
from tests.cluster.consensus.test_log import run_histories

D = NodeId("d")


def members_of_a_round(*nodes: NodeId) -> Log:
    """A log in which these nodes have joined and formed a round."""
    log = Log(Scheduler(SchedulerSettings()))
    log.lives = {node: f"{node}#1" for node in nodes}
    log.electorate = dict(log.lives)
    return log


@pytest.mark.parametrize(
    ("linked", "dead", "authority"),
    [
        ("bcd", "", Authority.MAJORITY),
        ("bc", "", Authority.MAJORITY),
        ("b", "", Authority.STORE),
        ("", "", Authority.NONE),
        ("", "b", Authority.NONE),
        ("", "bc", Authority.NONE),
        ("", "bcd", Authority.STORE),
    ],
)
def test_a_majority_needs_no_permission_and_a_minority_gets_none(linked: str, dead: str, authority: Authority) -> None:
    """Let this node reach some of four members, some others are proven dead. With b and c, d was a majority."""
    reachable = Reachability(A, "a#1", members_of_a_round(A, B, C, D))
    reachable.peers.update({NodeId(node): f"{node}#1" for node in linked})
    reachable.dead.update(f"{node}#1" for node in dead)
    assert reachable.authority() is authority


def test_a_node_that_rejoined_is_proof_that_its_earlier_incarnation_has_ended() -> None:
    """It does not vote, as it is no member of the round, and it is not waited for."""
    reachable = Reachability(A, "a#1", members_of_a_round(A, B, C))
    reachable.dead.add("c#1")
    assert reachable.authority() is Authority.NONE
    reachable.peers[B] = "b#2"
    assert reachable.authority() is Authority.STORE


def test_a_node_that_is_called_again_is_proof_as_well() -> None:
    """b rejoined, and its new link is gone: nobody looks for the incarnation that the old electorate has."""
    log = members_of_a_round(A, B, C)
    reachable = Reachability(A, "a#1", log)
    reachable.dead.add("c#1")
    log.scheduler.state, log.called, log.lives = State.FORMING, (2, (A, B)), {A: "a#1", B: "b#2"}
    assert reachable.authority() is Authority.STORE


def test_a_part_with_an_old_log_needs_the_electorate_that_the_store_keeps() -> None:
    """b, c and d have gone, and x that joined them asked last; it counted a in, which has not heard it as a leader."""
    replica = Replica(A, "a#1", Scheduler(SchedulerSettings()))
    replica.log.lives = {node: f"{node}#1" for node in (A, B, C, D)}
    replica.log.electorate = dict(replica.log.lives)
    for node in (B, C, D):
        replica.is_dead(f"{node}#1")
    assert replica.may_claim
    members, x = ("x#1", "a#1"), NodeId("x")
    replica.looked(Term(term=5, lead="x#1", members=members, electorates=({D: "d#1", x: "x#1"},)), now=1.0)
    assert not replica.may_claim
    assert [set(electors) for electors in replica.electorates] == [{A, B, C, D}, {D, x}]
    replica.is_dead("x#1")
    assert replica.may_claim, "nobody is left of those that asked"


def test_nobody_joins_a_leader_that_the_store_may_not_know() -> None:
    """Let all that elected a leader die: a member that was cut off goes on with the store; what others say goes on."""
    leader = round_of_three()
    leader.lost(C, now=1.0)
    leader.store_unreachable(now=1.0)
    leader.received(B, LogPosition(term=2, last_term=0, length=0, base=0), now=1.0)
    leader.connected(D, "d#1", now=2.0)
    leader.received(D, Propose(origin="d#1", number=1, event=events.NodeJoined(node=D)), now=2.0)
    leader.received(B, Propose(origin="b#1", number=1, event=events.StopRequested(reason="x")), now=2.0)
    leader.settle(now=2.0)
    assert [entry.origin for entry in leader.log.entries] == ["", "b#1"]
    leader.stored(Term(term=2, lead="a#1"), now=3.0)
    leader.settle(now=3.0)
    assert [entry.origin for entry in leader.log.entries] == ["", "b#1", "d#1"]


def test_a_leader_replaces_a_newer_term_of_a_candidate_that_could_not_lead() -> None:
    """It went on without the store, where joining nodes read of the other one: they would wait for it for ever."""
    leader = round_of_three()
    leader.lost(C, now=1.0)
    leader.store_unreachable(now=1.0)
    leader.received(B, LogPosition(term=2, last_term=0, length=0, base=0), now=1.0)
    for foreign in (2, 7):
        asked = leader.stored(Term(term=foreign, lead="c#1", members=("c#1", "b#1")), now=2.0)
        assert [(type(action.message), action.message.term) for action in asked] == [(NewTerm, foreign + 1)]
        leader.received(B, LogPosition(term=foreign + 1, last_term=0, length=0, base=0), now=2.0)
        assert (leader.role, leader.term) == (Role.LEADING, foreign + 1)
    assert leader.stored(Term(term=8, lead="a#1", members=("a#1",)), now=3.0) == []
    assert leader.stored(Term(term=7, lead="c#1", members=("c#1",)), now=3.0) == [], "an answer of before"


def test_a_paused_node_that_was_refused_rests_like_others() -> None:
    """The other one, which hears a leader, would refuse it again, and each claim takes a term from the store."""
    node = round_of_three()
    node.lost(C, now=1.0)
    node.lost(B, now=1.0)
    node.store_unreachable(now=1.0)
    node.connected(B, "b#1", now=2.0)
    stored = Term(term=1, lead="a#1", members=("a#1", "b#1", "c#1"))
    assert [type(action) for action in node.looked(stored, now=2.0)] == [Claim]
    node.claimed(2, now=2.0)
    assert node.received(B, Refusal(term=1), now=2.0) == [CheckTerm()]
    looks = [node.looked(dataclasses.replace(stored, term=2), now=2.0) for _ in range(RETRY_LOOKS)]
    assert [type(action) for [action] in looks] == [CheckTerm] * (RETRY_LOOKS - 1) + [Claim]
    node.refused(Term(term=3, lead="b#1", members=("b#1", "a#1")), now=3.0)
    assert node.role is Role.FOLLOWING, "b may be about to lead"


def test_a_release_counts_where_its_entry_stands() -> None:
    """b left a part of the job that went on without a, to which a has no right."""
    log = members_of_a_round(A, B, C)
    reachable = Reachability(A, "a#1", log)
    reachable.released["b#1"] = Released(length=1, last_term=2)
    log.append(Entry(now=1.0, event=events.NodeLost(node=D), term=1))
    assert reachable.authority() is Authority.NONE
    reachable.released["b#1"] = Released(length=1, last_term=1)
    assert reachable.authority() is Authority.STORE


def test_before_the_first_round_the_store_decides() -> None:
    """Nodes that have joined and never trained may have been counted by the leader alone."""
    assert Reachability(A, "a#1", members_of_a_round()).authority() is Authority.STORE


def round_of_three() -> Replica:
    """The replica of a, which leads term 1 of a job of three that iterates."""
    replica = Replica(A, "a#1", Scheduler(SchedulerSettings(start_nodes=3)))
    replica.claimed(1, now=0.0)
    for node in (B, C):
        replica.connected(node, f"{node}#1", now=0.0)
    log = members_of_a_round(A, B, C)
    replica.log.lives, replica.log.electorate = dict(log.lives), dict(log.electorate)
    for node in (A, B, C):
        replica.log.scheduler.handle(events.NodeJoined(node=node), now=0.0)
    return replica


def test_a_leader_that_is_cut_off_pauses_and_says_whom_it_misses() -> None:
    """It steps down; as soon as it reaches another member again, it asks for the next term."""
    leader = round_of_three()
    assert Claim(term=2, known=1, members=("a#1", "c#1")) in leader.lost(B, now=1.0)
    leader.lost(C, now=1.0)
    paused = leader.claimed(2, now=1.0)
    [reason] = [action.reason for action in paused if isinstance(action, Paused)]
    assert reason is not None
    assert "b, c" in reason
    assert (leader.role, leader.lead, leader.is_paused) == (Role.FOLLOWING, None, True)
    leader.connected(B, "b#1", now=2.0)
    assert Claim(term=3, known=2, members=("a#1", "b#1")) in leader.looked(
        Term(term=2, lead="a#1", members=("a#1",)), now=2.0
    )


def test_a_majority_goes_on_without_the_store_and_half_of_the_nodes_do_not() -> None:
    """The store is the vote that decides between two halves."""
    leader = round_of_three()
    leader.lost(B, now=1.0)
    asked = [action for action in leader.store_unreachable(now=1.0) if isinstance(action, Send)]
    assert [type(action.message) for action in asked] == [NewTerm]
    assert (leader.role, leader.term) == (Role.COLLECTING, 2)
    lead, _ = run_to_first_iteration()
    lead.lost(B, now=1.0)
    [reason] = [action.reason for action in lead.store_unreachable(now=1.0) if isinstance(action, Paused)]
    assert reason is not None
    assert reason.startswith("the rendezvous store is unreachable, and this node reaches too few of the 2 members")


def test_a_part_that_is_too_small_does_not_blame_the_store() -> None:
    """It would have to pause with the store as well, so no question is sent there."""
    leader = round_of_three()
    leader.lost(B, now=1.0)
    leader.lost(C, now=1.0)
    assert not leader.may_claim
    [reason] = [action.reason for action in leader.store_unreachable(now=1.0) if isinstance(action, Paused)]
    assert reason is not None
    assert reason.startswith("this node reaches too few of the 3 members")


def test_a_follower_does_not_leave_a_leader_that_it_hears() -> None:
    """A candidate that has lost its link to the leader is refused; one that succeeds a released leader is not."""
    _, follower = run_to_first_iteration()
    follower.connected(C, "c#1", now=1.0)
    question = NewTerm(term=2, last_term=1, length=9, is_breaking=True, unreached=("a#1",))
    assert follower.received(C, question, now=1.0) == [Send(to=C, message=Refusal(term=1))]
    assert (follower.lead, follower.term) == (A, 1)
    follower.received(C, NewTerm(term=2, last_term=1, length=9, is_breaking=False), now=1.0)
    assert (follower.lead, follower.term) == (C, 2)


def test_a_candidate_that_a_better_log_has_lost_is_told_so() -> None:
    """It does not hear the leader, which has declared it dead; it would ask the store for one term after the other."""
    _, follower = lead_with_follower()
    follower.connected(C, "c#1", now=1.0)
    joined = Entry(now=1.0, event=events.NodeJoined(node=C), term=1, origin="c#1", number=1)
    follower.received(A, Append(term=1, base=len(follower.log), entries=(joined,)), now=1.0)
    length = len(follower.log)
    question = NewTerm(term=2, last_term=1, length=length, is_breaking=False, unreached=("a#1",))
    assert follower.received(C, question, now=1.0) == [Send(to=C, message=Refusal(term=1))]
    loss = Entry(now=1.0, event=events.NodeLost(node=C), term=1)
    follower.received(A, Append(term=1, base=length, entries=(loss,)), now=1.0)
    [answer] = follower.received(C, question, now=1.0)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, Expel)
    assert (follower.lead, follower.term) == (A, 1)
    better = NewTerm(term=2, last_term=2, length=length, is_breaking=False, unreached=("a#1",))
    assert follower.received(C, better, now=1.0) == [Send(to=C, message=Refusal(term=1))]


def test_a_refused_candidate_steps_down_and_a_leader_that_steps_down_is_left() -> None:
    """Nobody waits for an answer that never comes."""
    leader = round_of_three()
    leader.lost(B, now=1.0)
    leader.claimed(2, now=1.0)
    assert CheckTerm() in leader.received(C, Refusal(term=5), now=1.0)
    assert (leader.role, leader.lead) == (Role.FOLLOWING, None)
    _, follower = run_to_first_iteration()
    assert CheckTerm() in follower.received(A, SteppedDown(term=1), now=1.0)
    assert follower.lead is None


def test_a_foreign_term_of_a_part_that_may_not_go_on_is_replaced() -> None:
    """A node that reached the store and no member was granted a term by an older release, or by mistake."""
    leader = round_of_three()
    leader.lost(C, now=1.0)
    assert leader.role is Role.CLAIMING
    assert leader.refused(Term(term=7, lead="x#1", members=("x#1",)), now=1.0) == [CheckTerm()]
    for _ in range(DOUBT_LOOKS - 1):
        assert leader.looked(Term(term=7, lead="x#1", members=("x#1",)), now=2.0) == [CheckTerm()]
    assert leader.looked(Term(term=7, lead="x#1", members=("x#1",)), now=4.0) == [
        Claim(term=8, known=7, members=("a#1", "b#1"))
    ]
    assert any(isinstance(action, Expelled) for action in round_of_three_and(7, ("b#1", "c#1")))


def test_a_node_that_was_stopped_leaves_a_job_that_went_on_without_it() -> None:
    """It has not read yet that the others hung up; c knew that b had died, so c alone was half of those that lived."""
    leader = round_of_three()
    leader.lost(B, now=1.0)
    assert leader.role is Role.CLAIMING
    [expelled] = leader.refused(Term(term=2, lead="c#1", members=("c#1",)), now=3.0)
    assert isinstance(expelled, Expelled)


def test_a_node_that_was_stopped_does_not_trust_its_links() -> None:
    """Nor does it know that b and c have died; d went on alone, and the store has said so."""
    leader = round_of_three()
    leader.connected(D, "d#1", now=0.0)
    lives = {node: f"{node}#1" for node in (A, B, C, D)}
    leader.log.lives, leader.log.electorate = dict(lives), dict(lives)
    leader.lost(D, now=1.0)
    assert leader.refused(Term(term=2, lead="d#1", members=("d#1",)), now=3.0) == [CheckTerm()]
    leader.lost(B, now=3.0)
    leader.lost(C, now=3.0)
    [expelled] = leader.refused(Term(term=2, lead="d#1", members=("d#1",)), now=3.0)
    assert isinstance(expelled, Expelled)


def round_of_three_and(term: int, members: tuple[str, ...]) -> list[object]:
    """What a cut-off node does when it reads that the others went on."""
    replica = round_of_three()
    replica.lost(B, now=1.0)
    replica.lost(C, now=1.0)
    replica.store_unreachable(now=1.0)
    return list(replica.looked(Term(term=term, lead=members[0], members=members), now=2.0))


def test_the_leader_declares_the_node_lost_that_fewer_others_hear() -> None:
    """Only if nothing goes on: a link that is down harms nobody as long as iterations end."""
    leader = round_of_three()
    leader.received(B, LinkReport(unreached=("c#1",)), now=10.0)
    leader.received(C, LinkReport(unreached=("b#1",)), now=10.0)
    assert leader.check_links(now=10.0) == []
    assert leader.check_links(now=10.0 + STALL_S / 2) == []
    claim = leader.check_links(now=10.1 + STALL_S)
    assert claim == [Claim(term=2, known=1, members=("a#1", "b#1"))], "the one that joined last"
    assert leader.peers == {B: "b#1", C: "c#1"}, "c is told by the log that it is lost"


def test_a_report_that_is_withdrawn_harms_nobody() -> None:
    """The link was made again in time."""
    leader = round_of_three()
    leader.received(B, LinkReport(unreached=("c#1",)), now=10.0)
    leader.check_links(now=10.0)
    leader.received(B, LinkReport(unreached=()), now=10.5)
    assert leader.check_links(now=20.0) == []


def test_entries_of_a_term_that_began_without_this_node_end_its_iteration() -> None:
    """Otherwise it would wait for a sum that the others have given up."""
    _, follower = run_to_first_iteration()
    follower.lost(A, now=1.0)
    follower.connected(C, "c#1", now=2.0)
    actions = follower.received(C, Append(term=3, base=len(follower.log), entries=()), now=2.0)
    assert "BreakGroup" in [type(action).__name__ for action in actions]


def test_a_candidate_yields_to_an_earlier_one_of_the_same_term() -> None:
    """Two members of a majority ask for the same term when the store cannot decide; only one gets all answers."""
    leader = round_of_three()
    leader.lost(C, now=1.0)
    leader.store_unreachable(now=1.0)
    question = NewTerm(term=2, last_term=0, length=0, is_breaking=False)
    assert leader.received(B, question, now=1.0) == [Send(to=B, message=Refusal(term=2))]
    assert not any(isinstance(action, LogPosition) for action in leader.settle(now=1.0))


def test_a_candidate_follows_the_leader_of_its_own_term() -> None:
    """c got the term from the store, a asked for the same one without; entries that a drops would never come again."""
    candidate = round_of_three()
    candidate.lost(B, now=1.0)
    candidate.store_unreachable(now=1.0)
    assert (candidate.role, candidate.term) == (Role.COLLECTING, 2)
    length = len(candidate.log)
    event = events.NodeLost(node=B)
    candidate.received(C, Append(term=2, base=length, entries=(Entry(now=1.0, event=event, term=2),)), now=1.0)
    assert (candidate.role, candidate.lead, len(candidate.log)) == (Role.FOLLOWING, C, length + 1)


def test_a_term_that_was_asked_for_in_vain_is_not_known() -> None:
    """Else the store would grant a the next term, although the other half has got that very one from the store."""
    candidate = round_of_three()
    candidate.lost(B, now=1.0)
    candidate.store_unreachable(now=1.0)
    candidate.lost(C, now=1.0)
    assert (candidate.is_paused, candidate.term) == (True, 2)
    candidate.connected(B, "b#1", now=2.0)
    claim = candidate.store_unreachable(now=2.0)
    assert claim == [Claim(term=3, known=1, members=("a#1", "b#1"))]


def test_while_a_round_forms_a_part_needs_the_old_electorate_and_the_new_one() -> None:
    """b is half of a and b, which the store would let go on: a and c are a majority of the round that may be formed."""
    _, follower = run_to_first_iteration()
    follower.iteration_ended(ended(), votes=1, now=2.0)
    joined = Entry(now=2.0, event=events.NodeJoined(node=C), term=1, origin="c#1", number=1)
    finished = Entry(now=2.0, event=ended().events()[0], term=1)
    follower.received(A, Append(term=1, base=len(follower.log), entries=(joined, finished)), now=2.0)
    assert follower.log.called == (2, (A, B, C))
    assert [type(action) for action in follower.lost(A, now=3.0)] == [Paused, CheckTerm]
    follower.connected(C, "c#1", now=4.0)
    assert follower.may_claim, "with c it is a majority of three and half of two"


def call_without_b() -> tuple[Replica, Replica, list[Action]]:
    """The leader a has let b go, and calls a round of its own; b has not read of it. What a says is the last."""
    lead, follower = run_to_first_iteration()
    exchange(lead, follower, [], follower.propose(events.LeaveNoticed(node=B), now=2.0))
    follower.iteration_ended(ended(), votes=1, now=2.0)
    actions = lead.iteration_ended(ended(), votes=1, now=2.0)
    assert lead.log.called == (2, (A,))
    lead.propose(events.RoundFormed(round=2, members=(A,)), now=3.0)
    return lead, follower, actions + lead.settle(now=3.0)


def test_a_round_is_formed_when_those_that_it_leaves_out_know_of_it() -> None:
    """Cut off before, b would be half of a and b for the store, and a all of the new round: both would go on."""
    lead, follower, actions = call_without_b()
    assert lead.log.electorate == {A: "a#1", B: "b#1"}
    exchange(lead, follower, actions, [])
    assert lead.log.electorate == {A: "a#1"}


def iterate_three() -> tuple[Replica, Replica, Replica]:
    """The replicas of a, which leads, b and c, all linked and in iteration 1 of round 1; c is under notice."""
    a, b, c = trio = [Replica(node, f"{node}#1", Scheduler(SchedulerSettings(start_nodes=3))) for node in (A, B, C)]

    def propose(author: Replica, event: events.Event) -> None:
        deliver({replica: author.propose(event, now=0.0) if replica is author else [] for replica in trio})

    a.claimed(1, now=0.0)
    pairs = itertools.permutations(trio, 2)
    welcomed = [action for one, other in pairs for action in one.connected(other.node, other.life, now=0.0)]
    deliver({a: welcomed, b: [], c: []})
    chunks = tuple(ChunkInfo(id=ChunkId(number), num_rows=10, size_bytes=1) for number in range(3))
    propose(a, events.ChunksDeclared(chunks=chunks))
    for replica in trio:
        propose(replica, events.NodeJoined(node=replica.node))
    propose(a, events.RoundFormed(round=1, members=(A, B, C)))
    for replica in trio:
        own = tuple(a.log.scheduler.ledger.node_chunks[replica.node].copies)
        propose(replica, events.ChunksLoaded(chunks=own, node=replica.node, round=1))
    propose(c, events.LeaveNoticed(node=C))
    return a, b, c


def test_a_leader_without_the_store_needs_the_majority_of_the_log_that_it_takes_over() -> None:
    """a is half of a and b, and has the store. By its own log c is a majority with b; by that of b they are half."""
    a, b, c = iterate_three()
    deliver({b: b.iteration_ended(ended(), votes=1, now=1.0), a: a.iteration_ended(ended(), votes=1, now=1.0)})
    assert [replica.log.called for replica in (a, b, c)] == [(2, (A, B)), (2, (A, B)), (1, (A, B, C))]
    a.propose(events.RoundFormed(round=2, members=(A, B)), now=2.0)
    a.lost(C, now=2.0)
    [question] = [action for action in a.claimed(2, now=2.0) if isinstance(action, Send)]
    for answer in b.received(A, question.message, now=2.0):
        a.received(B, answer.message, now=2.0)  # what a says now does not arrive any more
    assert set(a.log.electorate) == {A, B}
    a.lost(B, now=3.0)
    a.claimed(3, now=3.0)
    a.iteration_broke(*a.log.in_flight, "b was lost", now=3.0)
    b.lost(A, now=3.0)
    b.store_unreachable(now=3.0)
    c.lost(A, now=3.0)
    for _ in range(2):  # b knows term 2, and refuses it to c
        while c.role is Role.FOLLOWING:
            c.store_unreachable(now=3.0)
        deliver({c: c.store_unreachable(now=3.0), b: []})
    assert (c.role, c.term, c.lead) == (Role.COLLECTING, 3, C)
    deliver({c: c.iteration_ended(ended(), votes=1, now=3.0), b: []})
    assert c.log.called == b.log.called
    assert (a.role, c.role) == (Role.LEADING, Role.FOLLOWING)


def test_a_node_that_stays_without_a_task_knows_that_a_round_leaves_it_out() -> None:
    """Its link lasts, so it may vote until then; it says so to each leader."""
    lead, follower = run_to_first_iteration()
    exchange(lead, follower, [], follower.propose(events.NodeLost(node=B), now=2.0))
    follower.iteration_ended(ended(), votes=1, now=2.0)
    actions = lead.iteration_ended(ended(), votes=1, now=2.0)
    lead.propose(events.RoundFormed(round=2, members=(A,)), now=3.0)
    assert not any(isinstance(action, Folded) for action in lead.settle(now=3.0))
    exchange(lead, follower, actions, [])
    assert follower.log.members == (A,)


def test_a_call_that_was_given_up_holds_nothing_up() -> None:
    """b was to report that the round leaves it out; the task of a dies, so nothing is called any more."""
    lead, follower = run_to_first_iteration()
    exchange(lead, follower, [], follower.propose(events.NodeLost(node=B), now=2.0))
    follower.iteration_ended(ended(), votes=1, now=2.0)
    lead.iteration_ended(ended(), votes=1, now=2.0)
    lead.propose(events.NodeLost(node=A), now=3.0)
    lead.propose(events.RoundFormed(round=2, members=(A,)), now=3.0)
    lead.propose(events.NodeJoined(node=A), now=3.0)
    lead.settle(now=3.0)
    assert lead.log.present == (A,)


def test_a_released_node_gives_up_its_vote_before_it_hangs_up() -> None:
    """Let a go on without the store; had b been cut off, a would need the store, which b may have asked first."""
    lead, follower, actions = call_without_b()
    lead.lost(B, now=4.0)
    [reason] = [action.reason for action in lead.store_unreachable(now=4.0) if isinstance(action, Paused)]
    assert reason is not None
    lead, follower, actions = call_without_b()
    exchange(lead, follower, actions, [])
    lead.lost(B, now=4.0)
    lead.store_unreachable(now=4.0)
    assert lead.role is Role.LEADING


def test_entries_that_wait_behind_the_task_belong_to_the_log_of_a_candidate() -> None:
    """The leader a has let itself go and has left; b, whose task was still in the iteration, has what that ordered."""
    lead, follower = run_to_first_iteration()
    exchange(lead, follower, lead.propose(events.LeaveNoticed(node=A), now=2.0), [])
    exchange(lead, follower, lead.iteration_ended(ended(), votes=1, now=2.0), [])
    follower.lost(A, now=3.0)
    follower.claimed(2, now=3.0)
    follower.iteration_ended(ended(), votes=1, now=3.0)
    assert follower.log.entries[: len(lead.log)] == lead.log.entries


def test_a_node_that_was_declared_lost_does_not_count_for_those_that_go_on() -> None:
    """Its link lasts until it has read of its loss; cut off before, it and its like may be half of the electorate."""
    reachable = Reachability(A, "a#1", members_of_a_round(A, B, C, D))
    reachable.peers.update({node: f"{node}#1" for node in (B, C, D)})
    reachable.evicted.update(("c#1", "d#1"))
    assert reachable.authority() is Authority.STORE


def test_a_part_that_goes_on_without_a_majority_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge of the histories is not blind: without this rule, a partition makes two jobs of one."""
    monkeypatch.setattr(reachability.Reachability, "authority", lambda self: Authority.MAJORITY)
    with pytest.raises(BrokenPromiseError, match="everybody comes to the end"):
        run_histories("partition", 25)
