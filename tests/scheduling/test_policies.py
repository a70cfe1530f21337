"""Policies are asked at boundaries; whatever they say, training goes on."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from chicle_elastic.ids import NodeId
from chicle_elastic.policies.base import Policy
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.scheduler import OVER
from chicle_elastic.scheduling.snapshot import restore, snapshot
from chicle_elastic.scheduling.text import disabled_text, is_disabled_text
from chicle_elastic.values import (
    Decision,
    MoveChunks,
    Observations,
    RedrawOwnership,
    ReleaseNode,
    Remember,
    RequestNodes,
    ResourceOffer,
    SendMessage,
    SetParameter,
    TaskReport,
    TrainingState,
)
from tests.scheduling.stage import Stage, kinds, only

A_TO_B = (NodeId("a"), NodeId("b"))


@dataclass
class Script(Policy):
    """Says what the test wants, and remembers what it saw."""

    say: Callable[[Observations], Any]
    title: str = "script"
    seen: list[Observations] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Given by the test."""
        return self.title

    def decide(self, observations: Observations, /) -> Any:
        """The line of the script."""
        self.seen.append(observations)
        return self.say(observations)


def always(moves, reason="told to"):
    """A decision that is the same every time."""
    return lambda observations: Decision(actions=MoveChunks.of(moves), reason=reason)


def test_a_decision_is_carried_out_at_the_boundary_with_its_reason():
    """Which chunks go is drawn by the scheduler; the round stays the same."""
    policy = Script(always({A_TO_B: 2}, "a is slow"))
    stage = Stage(num_chunks=8, nodes=["a", "b"], policies=(policy,))
    stage.run()
    ordered = [*stage.finish(), *stage.answer()]
    assert [(copy.source, copy.target) for copy in only(ordered, effects.CopyChunks)] == [A_TO_B, A_TO_B]
    assert not only(ordered, effects.FormRound)
    assert stage.counts() == {"a": 2, "b": 6}
    assert "script moves 2 of 2 chunks: a is slow" in stage.logs


def test_a_policy_sees_who_holds_what_and_how_long_it_took():
    """All mappings have the same nodes, and reports go back as far as the settings say."""
    policy = Script(lambda observations: None)
    stage = Stage(num_chunks=6, start_nodes=2, policies=(policy,), history_length=2)
    stage.join("a", capacity_bytes=10)
    stage.join("b", capacity_bytes=10)
    stage.answer()
    for iteration in range(3):
        [order] = stage.take(effects.StartIteration)
        reports = {NodeId(n): TaskReport(samples=20, duration_s=float(iteration)) for n in ("a", "b")}
        stage.tell(events.IterationFinished(round=order.round, iteration=order.iteration, reports=reports))
    last = policy.seen[-1]
    assert (last.round, last.iteration) == (1, 3)
    assert last.num_chunks == {"a": 3, "b": 3}
    assert last.samples == {"a": 30, "b": 30}
    assert last.capacity_bytes == {"a": 10, "b": 10}
    assert last.used_bytes == {"a": 3, "b": 3}
    assert [report.duration_s for report in last.reports[NodeId("a")]] == [1.0, 2.0]


def test_several_policies_share_what_there_is():
    """The first takes 3 of 4 chunks, so that the second gets 1 of the 2 that it wants."""
    policies = (Script(always({A_TO_B: 3}), "one"), Script(always({A_TO_B: 2}), "two"))
    stage = Stage(num_chunks=8, nodes=["a", "b"], policies=policies)
    stage.run(2)
    assert stage.counts() == {"a": 0, "b": 8}
    assert "one moves 3 of 3 chunks: told to" in stage.logs
    assert "two moves 1 of 2 chunks (others are on their way, have left, or find no room): told to" in stage.logs


def raises(observations):
    """A policy with a fault."""
    raise ZeroDivisionError("no reports")


@pytest.mark.parametrize(
    ("say", "complaint"),
    [
        (raises, "raised ZeroDivisionError: no reports"),
        (always({A_TO_B: -1}), "decided nonsense: -1 chunks from a to b"),
        (always({A_TO_B: 5}), "5 chunks are to leave a, which has 4"),
        (always({A_TO_B: 1.5}), "1.5 chunks"),
        (always({A_TO_B: True}), "True chunks"),
        (always({(NodeId("a"), NodeId("z")): 1}), "z is not a member"),
        (always({(NodeId("a"), NodeId("a")): 1}), "from a to itself"),
        (lambda seen: Decision(actions=[A_TO_B], reason="?"), "('a', 'b') is no action"),
        (lambda seen: Decision(actions=(RedrawOwnership(1.5),), reason="?"), "a share of 1.5 is to be redrawn"),
        (lambda seen: Decision(actions=(RequestNodes(0),), reason="?"), "0 nodes are wanted"),
        (lambda seen: Decision(actions=(ReleaseNode("z"),), reason="?"), "z is not a member that stays"),
        (lambda seen: [RedrawOwnership(0.5)], "is no Decision"),
        (lambda seen: Decision(actions=7, reason="?"), "actions are 7 and not a sequence"),
        (
            lambda seen: Decision(actions=(SendMessage("z", 1),), reason="?"),
            "a message is for 'z'; it can be for trainer",
        ),
        (lambda seen: Decision(actions=(SendMessage("policy:z", 1),), reason="?"), "a message is for 'policy:z'"),
        (lambda seen: Decision(actions=(SendMessage("a", {1, 2}),), reason="?"), "is not of JSON"),
        (lambda seen: Decision(actions=(Remember(float("nan")),), reason="?"), "is not of JSON"),
        (lambda seen: Decision(actions=(Remember("x" * (1 << 16)),), reason="?"), "65538 characters is sent or"),
        (lambda seen: Decision(actions=(SetParameter("rate", 1.0),), reason="?"), "rate is no parameter"),
        (lambda observations: "move it", "'move it' is no Decision"),
    ],
)
def test_a_bad_policy_is_disabled_by_name_and_training_goes_on(say, complaint):
    """The others are still asked."""
    bad, good = Script(say, "bad"), Script(always({A_TO_B: 1}), "good")
    stage = Stage(num_chunks=8, nodes=["a", "b"], policies=(bad, good))
    stage.run(3)
    assert len(bad.seen) == 1
    assert len(good.seen) == 2
    [line] = [line for line in stage.logs if "disabled" in line]
    assert line.startswith("policy bad is disabled")
    assert complaint in line
    assert stage.counts() == {"a": 2, "b": 6}


def test_a_line_about_a_policy_that_is_disabled_is_told_from_others():
    """A user has to hear of it, and of nothing else as loudly."""
    assert is_disabled_text(disabled_text("my policy", "raised KeyError: 7\nand more"))
    assert not is_disabled_text("decision of policy slow is refused: it is disabled")
    assert not is_disabled_text("n1 is under notice: policy slow is disabled: it says")


@pytest.mark.parametrize(
    ("generation", "moves", "complaint"),
    [
        (0, {A_TO_B: 1}, "it is of round 0, and this is round 1"),
        (1, {A_TO_B: -1}, "-1 chunks"),
        (1, {A_TO_B: 99}, "99 chunks are to leave a, which has 4"),
        (1, {(NodeId("z"), NodeId("b")): 1}, "z is not a member"),
    ],
)
def test_a_bad_decision_by_event_is_ignored_with_a_reason(generation, moves, complaint):
    """Never an exception: it comes from somebody else's thread."""
    stage = Stage(num_chunks=8, nodes=["a", "b"])
    stage.run()
    stage.tell(events.Proposal(policy="slow", round=generation, actions=MoveChunks.of(moves), reason="?"))
    assert "decision of policy slow is refused" in stage.logs[-1]
    assert complaint in stage.logs[-1]
    assert kinds(stage.finish()) == ["StartIteration"]


def decided(policy: str = "slow", *, iteration: int | None, moves=None) -> events.Proposal:
    """A decision by event."""
    return events.Proposal(
        policy=policy, round=1, actions=MoveChunks.of(moves or {A_TO_B: 1}), reason="?", iteration=iteration
    )


def test_a_decision_that_has_not_seen_its_own_moves_is_refused():
    """It would ask for them again; moves of another policy, which it cannot have seen, leave it what is left."""
    stage = Stage(num_chunks=8, nodes=["a", "b"])
    stage.run(2)
    stage.tell(decided("one", iteration=1))
    stage.tell(decided("two", iteration=1))
    stage.finish()
    stage.answer()
    assert stage.counts() == {"a": 2, "b": 6}
    stage.tell(decided("one", iteration=2))
    assert "one after iteration 2 is refused: chunks were moved for it after iteration 2" in stage.logs[-1]
    assert stage.tell(decided("three", iteration=1, moves={A_TO_B: 4})) == []
    stage.finish()
    stage.answer()
    assert "three moves 2 of 4 chunks (others are on their way, have left, or find no room): ?" in stage.logs
    assert stage.counts() == {"a": 0, "b": 8}
    assert "1 chunks are to leave a, which has 0" in stage.scheduler.flaw_of(decided("one", iteration=4))


def test_a_newer_decision_takes_the_place_of_one_that_waits():
    """Of the same policy; those that it stands for are counted, also where it is refused."""
    stage = Stage(num_chunks=8, nodes=["a", "b"])
    stage.run(3)
    stage.tell(decided(iteration=1, moves={A_TO_B: 3}))
    stage.tell(replace(decided(iteration=2), replaced=4))
    stage.tell(decided("other", iteration=2))
    stage.finish()
    stage.answer()
    assert stage.counts() == {"a": 2, "b": 6}
    assert stage.logs.count("policy slow has replaced 5 decisions by a newer one") == 1
    stage.tell(replace(decided(iteration=3), replaced=1))
    assert stage.logs[-2] == "policy slow has replaced 1 decision by a newer one"
    assert stage.logs[-1].startswith("decision of policy slow after iteration 3 is refused")


def test_what_waits_when_the_job_ends_is_refused():
    """Each with a line."""
    stage = Stage(num_chunks=8, nodes=["a", "b"])
    stage.run(2)
    stage.tell(decided("one", iteration=1))
    stage.tell(decided("two", iteration=1))
    stage.tell(events.StopRequested(reason="enough"))
    stage.finish()
    assert stage.logs[-2:] == [
        f"decision of policy {name} after iteration 1 is refused: {OVER}" for name in ("one", "two")
    ]
    assert stage.scheduler.flaw_of(decided("one", iteration=2)) == OVER


def test_a_policy_that_fails_elsewhere_is_disabled_by_an_event():
    """Named once; what it wanted is forgotten, and what it still wants is not heard."""
    stage = Stage(num_chunks=8, nodes=["a", "b"])
    stage.run()
    stage.tell(decided(iteration=None))
    for _ in range(2):
        stage.tell(events.PolicyDisabled(policy="slow", reason="raised KeyError: 'n7'"))
    assert stage.logs.count("policy slow is disabled: it raised KeyError: 'n7'") == 1
    assert stage.scheduler.disabled_policies == ("slow",)
    assert stage.logs.count("decision of policy slow is refused: it is disabled") == 1
    assert kinds(stage.finish()) == ["StartIteration"]
    stage.tell(decided(iteration=1))
    assert stage.logs[-1] == "decision of policy slow after iteration 1 is refused: it is disabled"


A_RATE = TrainingState(parameters={"rate": 0.5}, figures={"loss": 2.0})


def wish(policy, place, *actions):
    """What a policy wants, by event."""
    return events.Proposal(policy=policy, round=1, actions=actions, reason="because", place=place)


def start_of(stage):
    """The iteration that begins after the present one."""
    stage.finish()
    stage.answer()
    return next(order for order in stage.orders if isinstance(order, effects.StartIteration))


def test_a_parameter_that_a_policy_sets_holds_from_the_next_iteration_on():
    """In each that follows, also in another round; to set it again to the same value is no decision."""
    stage = Stage(num_chunks=8, nodes=["a", "b"])
    stage.run()
    stage.tell(wish("tune", 0, SetParameter("rate", 0.25)))
    assert start_of(stage).parameters == {"rate": 0.25}
    assert "tune sets rate to 0.25: because" in stage.logs
    assert start_of(stage).parameters == {"rate": 0.25}
    assert stage.scheduler.flaw_of(wish("tune", 0, SetParameter("rate", 0.25))) == "it changes nothing"
    stage.join("c")
    order = start_of(stage)
    assert (order.round, order.parameters) == (2, {"rate": 0.25})


def test_the_first_policy_in_order_owns_a_parameter_and_a_lost_wish_is_said_once():
    """Whichever spoke first; moves of both add up."""
    stage = Stage(num_chunks=8, nodes=["a", "b"])
    stage.run()
    stage.tell(wish("second", 1, SetParameter("rate", 2.0), MoveChunks(*A_TO_B, 1)))
    assert start_of(stage).parameters == {"rate": 2.0}
    stage.tell(wish("second", 1, SetParameter("rate", 3.0), MoveChunks(*A_TO_B, 1)))
    stage.tell(wish("first", 0, SetParameter("rate", 1.0), MoveChunks(*A_TO_B, 1)))
    assert start_of(stage).parameters == {"rate": 1.0}
    assert stage.counts() == {"a": 1, "b": 7}
    lost = "second does not decide on rate: first does, an earlier policy"
    assert stage.logs.count(lost) == 1
    assert stage.scheduler.flaw_of(wish("second", 1, SetParameter("rate", 4.0))) == "it changes nothing"
    stage.tell(events.PolicyDisabled(policy="first", reason="raised KeyError: 7"))
    stage.tell(wish("second", 1, SetParameter("rate", 5.0)))
    assert start_of(stage).parameters == {"rate": 5.0}
    assert stage.logs.count(lost) == 1


def test_policies_of_one_process_see_the_figures_and_set_what_the_trainer_has():
    """An unknown name disables the policy, with the names that there are."""
    good = Script(lambda seen: Decision(actions=(SetParameter("rate", seen.parameters["rate"] / 2),), reason="slow"))
    bad = Script(lambda seen: Decision(actions=(SetParameter("rat", 1.0),), reason="?"), "bad")
    stage = Stage(num_chunks=8, nodes=["a", "b"], policies=(bad, good))
    stage.run()
    [order] = stage.take(effects.StartIteration)
    stage.tell(events.IterationFinished(round=1, iteration=order.iteration, reports={}, training=(A_RATE,)))
    assert only(stage.orders, effects.StartIteration)[0].parameters == {"rate": 0.25}
    assert good.seen[0].figures == ({"loss": 2.0},)
    [line] = [line for line in stage.logs if "disabled" in line]
    assert line == (
        "policy bad is disabled: it decided nonsense: rat is no parameter that a policy can set; the trainer has rate"
    )


def test_a_redraw_moves_a_share_of_the_chunks_and_every_node_keeps_its_count():
    """By the same draw on every agent, and another one after each iteration."""
    nodes = ["a", "b", "c"]
    stage = Stage(num_chunks=24, nodes=nodes)
    stage.run()
    owned = [{node: set(chunks) for node, chunks in stage.owned().items()}]
    for _ in range(2):
        stage.tell(wish("shuffle", 0, RedrawOwnership(0.5)))
        start_of(stage)
        owned.append({node: set(chunks) for node, chunks in stage.owned().items()})
        assert stage.counts() == dict.fromkeys(nodes, 8)
        assert [len(owned[-1][node] - owned[-2][node]) for node in nodes] == [4, 4, 4]
    assert stage.logs.count("shuffle redraws the owners of 12 chunks: because") == 2
    assert owned[1] != owned[2]


def test_a_redraw_adds_up_with_moves_and_leaves_out_nodes_without_room():
    """b has no room for more than it has: a and c swap."""
    stage = Stage(num_chunks=9, start_nodes=3)
    for node, capacity in (("a", 12), ("b", 3), ("c", 12)):
        stage.join(node, capacity_bytes=capacity)
    stage.run()
    assert stage.counts() == {"a": 3, "b": 3, "c": 3}
    kept = stage.owned()["b"]
    stage.tell(wish("shuffle", 0, RedrawOwnership(1.0), MoveChunks(NodeId("a"), NodeId("c"), 1)))
    start_of(stage)
    assert stage.counts() == {"a": 2, "b": 3, "c": 4}
    assert stage.owned()["b"] == kept


def test_a_policy_lets_a_node_go_as_after_a_notice():
    """Its chunks are handed over first, and not below the least number of nodes; the first policy in order decides."""
    stage = Stage(num_chunks=8, nodes=["a", "b", "c"], min_nodes=2)
    stage.run()
    stage.tell(wish("scale", 0, ReleaseNode(NodeId("c"))))
    stage.tell(wish("other", 1, ReleaseNode(NodeId("b")), RequestNodes(5)))
    ordered = [*stage.finish(), *stage.answer()]
    assert only(ordered, effects.NoticeNode) == [effects.NoticeNode(node=NodeId("c"))]
    assert only(ordered, effects.ReleaseNode) == [effects.ReleaseNode(node=NodeId("c"))]
    assert only(ordered, effects.FormRound)[0].members == ("a", "b")
    assert sum(stage.counts().values()) == 8
    assert "scale releases c: because" in stage.logs
    assert "other does not release b: the job needs 2 nodes (min_nodes)" in stage.logs
    assert "other does not decide on the number of nodes: scale does, an earlier policy" in stage.logs
    assert not only(ordered, effects.RequestNodes)
    again = wish("scale", 0, ReleaseNode(NodeId("b")))
    stage.tell(replace(again, round=2))
    start_of(stage)
    stage.tell(replace(again, round=2))
    assert stage.logs.count("scale does not release b: the job needs 2 nodes (min_nodes)") == 1
    assert stage.logs[-1] == "decision of policy scale is refused: it changes nothing"


def test_moves_of_a_later_policy_leave_out_a_node_that_an_earlier_one_lets_go():
    """At the same boundary; what it wants of the others is done."""
    stage = Stage(num_chunks=9, nodes=["a", "b", "c"])
    stage.run()
    stage.tell(wish("scale", 0, ReleaseNode(NodeId("c"))))
    pairs = (("a", "c", 1), ("c", "b", 1), ("a", "b", 2))
    stage.tell(wish("shuffle", 1, *(MoveChunks(NodeId(one), NodeId(other), count) for one, other, count in pairs)))
    ordered = [*stage.finish(), *stage.answer()]
    assert only(ordered, effects.ReleaseNode) == [effects.ReleaseNode(node=NodeId("c"))]
    assert "shuffle moves 2 of 4 chunks (others are on their way, have left, or find no room): because" in stage.logs
    assert set(stage.counts()) == {"a", "b"}
    assert sum(stage.counts().values()) == 9


def test_nodes_are_asked_for_once_and_within_the_limits_of_the_job():
    """What the resource manager hears; the same number again is no decision."""
    stage = Stage(num_chunks=8, nodes=["a", "b"], max_nodes=4)
    stage.run()
    stage.tell(wish("scale", 0, RequestNodes(9)))
    ordered = [*stage.finish(), *stage.answer()]
    assert only(ordered, effects.RequestNodes) == [effects.RequestNodes(total=4, reason="because", number=1)]
    assert only(ordered, effects.StartIteration)[0].wanted == 4
    assert "scale wants 4 nodes: because" in stage.logs
    assert stage.scheduler.flaw_of(wish("scale", 0, RequestNodes(7))) == "it changes nothing"


def test_a_policy_sees_what_the_resource_manager_offers():
    """The newest offer holds, also for tasks that ask policies; its line is logged once."""
    policy = Script(lambda observations: None)
    stage = Stage(num_chunks=8, nodes=["a", "b"], policies=(policy,))
    stage.run()
    assert (policy.seen, stage.scheduler.offer_number) == ([], 0)
    for number, available in ((1, 3), (2, 1), (1, 3), (2, 1)):
        offer = ResourceOffer(available=available, price=0.5)
        stage.tell(events.ResourcesOffered(offer=offer, number=number, text=f"{available} more"))
    ordered = stage.finish()
    assert (policy.seen[-1].available, policy.seen[-1].price) == (1, 0.5)
    assert only(ordered, effects.StartIteration)[0].offer == ResourceOffer(available=1, price=0.5)
    assert (stage.logs.count("3 more"), stage.logs.count("1 more"), stage.scheduler.offer_number) == (1, 1, 2)


def test_a_memory_is_seen_by_its_policy_alone_and_goes_to_all_tasks_once():
    """With the iteration after the decision; the same value again is no decision."""
    count = Script(
        lambda seen: Decision(
            actions=(Remember({"asked": (seen.memory or {"asked": 0})["asked"] + 1}),), reason="one more"
        )
    )
    other = Script(lambda seen: None, "other")
    stage = Stage(num_chunks=8, nodes=["a", "b"], policies=(count, other))
    stage.run(3)
    assert [seen.memory for seen in count.seen] == [None, {"asked": 1}]
    assert [seen.memory for seen in other.seen] == [None, None]
    assert count.seen[0].policies == ("script", "other")
    assert start_of(stage).memories == {"script": {"asked": 3}}
    assert stage.scheduler.memories == {"script": {"asked": 3}}
    assert stage.scheduler.flaw_of(wish("script", 0, Remember({"asked": 3}))) == "it changes nothing"
    assert "script remembers something: one more" in stage.logs


def test_a_message_of_a_policy_goes_with_the_next_iteration():
    """And with no other one; where a new round comes first it is refused like any decision."""
    stage = Stage(num_chunks=8, nodes=["a", "b"])
    stage.run()
    stage.tell(wish("one", 0, SendMessage("b", {"rest_s": 1})))
    stage.tell(wish("two", 1, SendMessage("policy:one", [1])))
    first = start_of(stage).messages
    assert [(message.sender, message.to, message.payload) for message in first] == [
        ("policy:one", "b", {"rest_s": 1}),
        ("policy:two", "policy:one", [1]),
    ]
    assert start_of(stage).messages == ()
    stage.tell(wish("one", 0, SendMessage("*", None)))
    stage.join("c")
    order = start_of(stage)
    assert (order.round, order.messages) == (2, ())
    assert "decision of policy one is refused: it is of round 1, and this is round 2" in stage.logs


def test_an_iteration_that_was_aborted_begins_again_with_what_it_brought():
    """Messages, memories and happenings; what was merged is brought no more. A snapshot in between changes nothing."""
    stage = Stage(num_chunks=8, nodes=["a", "b"])
    stage.run()
    stage.tell(wish("one", 0, SendMessage("b", 7), Remember([1])))
    first = start_of(stage)
    assert [message.payload for message in first.messages] == [7]
    stage.scheduler = restore(snapshot(stage.scheduler))
    stage.ledger = stage.scheduler.ledger
    stage.join("c")
    stage.abort()
    stage.answer()
    again = next(order for order in stage.orders if isinstance(order, effects.StartIteration))
    assert (again.iteration, again.messages, again.memories) == (first.iteration, first.messages, {"one": [1]})
    assert [each.kind for each in again.happened][:1] == ["joined"]
    stage.tell(events.NodeLost(node=NodeId("c")))
    stage.abort()
    stage.answer()
    third = next(order for order in stage.orders if isinstance(order, effects.StartIteration))
    assert third.happened[: len(again.happened)] == again.happened
    assert third.happened[-1].kind == "lost"
    recent = stage.scheduler._pending_policies.recent.happened
    assert [each for each in recent if each.iteration == third.iteration] == list(third.happened)
    last = start_of(stage)
    assert (last.messages, last.memories, last.happened) == ((), {}, ())


def test_a_decision_that_does_not_know_its_own_memory_is_refused():
    """It would overwrite an update; one of another policy, and one that has seen it, is carried out."""
    stage = Stage(num_chunks=8, nodes=["a", "b"])
    stage.run(3)  # 2 are merged
    stage.tell(remembers([2], iteration=2))
    assert start_of(stage).memories == {"keeper": [2]}  # 3 are merged
    stale = remembers([3], iteration=3)
    stage.scheduler = restore(snapshot(stage.scheduler))
    stage.ledger = stage.scheduler.ledger
    assert stage.scheduler.flaw_of(stale) == "its memory was changed after iteration 3"
    assert stage.scheduler.flaw_of(replace(stale, policy="other")) is None
    assert stage.scheduler.flaw_of(replace(stale, actions=(SetParameter("rate", 2.0),))) is None
    stage.tell(remembers([2, 4], iteration=4))
    assert start_of(stage).memories == {"keeper": [2, 4]}


def remembers(value: Any, *, iteration: int) -> events.Proposal:
    """A decision to remember something."""
    return events.Proposal(policy="keeper", round=1, actions=(Remember(value),), reason="?", iteration=iteration)


def test_a_policy_may_change_the_memory_that_it_is_shown():
    """The scheduler has its own, and what the policy does not remember is not kept."""

    def count(seen: Observations) -> Decision | None:
        memory = seen.memory or {}
        memory.setdefault("seen", []).append(seen.iteration)
        return None if seen.iteration == 2 else Decision(actions=(Remember(memory),), reason="counts")

    stage = Stage(num_chunks=8, nodes=["a", "b"], policies=(Script(count),))
    stage.run(4)
    assert stage.scheduler.memories == {"script": {"seen": [1, 3]}}


def test_policies_see_what_has_happened_to_nodes_links_and_checkpoints():
    """Each with the iteration that began after it; what is older than the history of reports is forgotten."""
    policy = Script(lambda observations: None)
    stage = Stage(num_chunks=8, nodes=["a", "b"], policies=(policy,), history_length=4)
    stage.run(2)
    stage.join("c")
    stage.tell(events.CheckpointSaved(iteration=1, size_bytes=7, duration_s=0.5))
    stage.run(3)
    seen = [(each.kind, each.node, each.iteration) for each in policy.seen[-1].happened]
    assert seen[:2] == [("joined", "a", 1), ("joined", "b", 1)]
    assert seen[2:4] == [("joined", "c", 3), ("saved", "", 3)]
    copied = [each for each in policy.seen[-1].happened if each.kind == "copied"]
    assert {each.node for each in copied} == {"c"}
    assert sum(each.size_bytes for each in copied) == stage.counts()["c"]
    stage.notice("c")
    stage.run(3)
    assert ("noticed", "c") in [(each.kind, each.node) for each in policy.seen[-1].happened]
    assert ("left", "c") in [(each.kind, each.node) for each in policy.seen[-1].happened]
    assert min(each.iteration for each in policy.seen[-1].happened) > 1
    stage.lose("b")
    stage.abort()
    stage.run(2)
    assert policy.seen[-1].happened[-1].kind == "lost"
