"""Policies beside a job: whatever they do, somebody else goes on."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import pytest

from chicle_elastic import waits
from chicle_elastic.errors import ContractError
from chicle_elastic.ids import NodeId
from chicle_elastic.policies.base import Policy
from chicle_elastic.runtime.cluster_task.policy_runner import PolicyRunner, TimeLimitedPolicy
from chicle_elastic.runtime.training.uni_task import Mailboxes
from chicle_elastic.scheduling.events import PolicyDisabled
from chicle_elastic.scheduling.pending_policies import NodeHoldings, RecentIterations, observe
from chicle_elastic.values import (
    Decision,
    MoveChunks,
    Observations,
    Proposal,
    ResourceOffer,
    SetParameter,
    TaskReport,
    TrainingState,
)
from tests.timeouts import timeout_s

A, B = NodeId("a"), NodeId("b")


class Hand:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        """What the test says."""
        return self.now_s


@dataclass(frozen=True)
class Script(Policy):
    """Says what the test wants."""

    title: str
    say: Callable[[Observations], Any]

    @property
    def name(self) -> str:
        """Given by the test."""
        return self.title

    def decide(self, observations: Observations, /) -> Any:
        """The line of the script."""
        return self.say(observations)


def seen(iteration: int = 7) -> Observations:
    """After an iteration."""
    recent = RecentIterations()
    reports = {A: TaskReport(samples=10, duration_s=1.0), B: TaskReport(samples=10, duration_s=0.5)}
    recent.note(reports, (TrainingState(figures={"loss": 0.5}, elapsed_s=3.0, parameters={"rate": 0.1}),))
    return look(recent, iteration=iteration)


def look(recent: RecentIterations, *, iteration: int) -> Observations:
    """At two nodes with four chunks each."""
    holdings = {
        A: NodeHoldings(num_chunks=4, samples=40, used_bytes=256),
        B: NodeHoldings(num_chunks=4, samples=40, used_bytes=256, capacity_bytes=640),
    }
    return observe(
        recent,
        holdings,
        round=3,
        iteration=iteration,
        min_nodes=1,
        max_nodes=4,
        wanted=0,
        travelling=2,
        arriving={},
        offer=ResourceOffer(),
    )


def moves_one(observations: Observations) -> Decision:
    """A sound decision."""
    return Decision(actions=MoveChunks.of({(A, B): 1}), reason=f"seen {observations.iteration}")


class Room:
    """Advisers, and what they say."""

    def __init__(self, *policies: Policy, patience_s: float = 30.0) -> None:
        self.clock = Hand()
        self.said: SimpleQueue[Proposal | PolicyDisabled] = SimpleQueue()
        self.mailboxes = Mailboxes(policy.name for policy in policies)
        self.advisers = PolicyRunner(
            policies, self.clock, self.said.put, mailboxes=self.mailboxes, patience_s=patience_s
        )

    def hear(self) -> Proposal | PolicyDisabled:
        """The next thing said."""
        return self.said.get(timeout=timeout_s(10))


def test_a_decision_comes_from_a_thread_of_its_own():
    """With the round and the iteration that it saw."""
    room = Room(Script("good", moves_one))
    room.advisers.observe(seen(7), {})
    expected = Proposal(policy="good", round=3, iteration=7, actions=(MoveChunks(A, B, 1),), reason="seen 7", place=0)
    assert room.hear() == expected
    room.advisers.close()


def test_a_slow_policy_holds_up_nobody_and_sees_what_is_new_then():
    """What went by while it thought, it never sees; the other one answers each time."""
    may_end, has_begun = threading.Semaphore(0), threading.Semaphore(0)

    def think(observations: Observations) -> Decision:
        has_begun.release()
        assert may_end.acquire(timeout=timeout_s(10))
        return moves_one(observations)

    room = Room(Script("slow", think), Script("quick", moves_one))
    for iteration in (1, 2, 3):
        wait_until_idle(room, "quick")
        room.advisers.observe(seen(iteration), {})
        assert (room.hear().policy, iteration) == ("quick", iteration)
    assert has_begun.acquire(timeout=timeout_s(10))
    may_end.release()
    assert room.hear().iteration == 1
    wait_until_idle(room, "slow")
    wait_until_idle(room, "quick")
    may_end.release()
    room.advisers.observe(seen(4), {})
    assert {(said.policy, said.iteration) for said in (room.hear(), room.hear())} == {("slow", 4), ("quick", 4)}
    room.advisers.close()


def wait_until_idle(room: Room, name: str) -> None:
    """A thread says its decision before it is ready for the next one."""
    worker = room.advisers._workers[name]
    with worker._changed:  # held by the thread until it is
        assert worker.busy_since is None


@pytest.mark.parametrize(
    ("say", "complaint"),
    [
        (lambda seen: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda seen: "move it", "decided nonsense: 'move it' is no Decision"),
        (
            lambda seen: Decision(actions=MoveChunks.of({(A, B): 5}), reason="?"),
            "decided nonsense: 5 chunks are to leave a, which has 4",
        ),
        (lambda seen: Decision(actions=MoveChunks.of({(A, NodeId("z")): 1}), reason="?"), "z is not a member"),
        (
            lambda seen: Decision(actions=(SetParameter("rat", 1.0),), reason="?"),
            "decided nonsense: rat is no parameter that a policy can set; the trainer has rate",
        ),
        (lambda seen: Decision(actions=(SetParameter("rate", math.nan),), reason="?"), "rate is to be nan"),
        (lambda seen: Decision(actions=("move it",), reason="?"), "'move it' is no action"),
    ],
)
def test_a_bad_policy_says_why_it_failed_and_is_never_asked_again(say, complaint):
    """The others are."""
    asked = []
    room = Room(Script("bad", lambda seen: asked.append(seen) or say(seen)), Script("good", moves_one))
    room.advisers.observe(seen(1), {})
    answers = {said.policy: said for said in (room.hear(), room.hear())}
    assert complaint in answers["bad"].reason
    wait_until_idle(room, "good")
    wait_until_idle(room, "bad")
    room.advisers.observe(seen(2), {})
    assert room.hear().iteration == 2
    assert len(asked) == 1
    room.advisers.close()


def test_a_policy_that_never_answers_is_given_up_after_its_patience():
    """By name, and what it says at last is not heard."""
    may_end, has_ended = threading.Event(), threading.Event()

    def hang(observations: Observations) -> Decision:
        may_end.wait(timeout_s(30))
        has_ended.set()
        return moves_one(observations)

    room = Room(Script("stuck", hang), patience_s=5.0)
    room.advisers.observe(seen(1), {})
    room.clock.now_s = 5.0
    room.advisers.observe(seen(2), {})
    assert room.said.empty()
    room.clock.now_s = 5.5
    room.advisers.observe(seen(3), {})
    assert room.hear() == PolicyDisabled(policy="stuck", reason="did not answer within 5.5 s")
    assert not room.advisers
    may_end.set()
    assert has_ended.wait(timeout_s(10))
    assert room.said.empty()


def test_whoever_was_disabled_in_another_task_is_not_asked_here():
    """The log says so, and the next round brings it."""
    room = Room(Script("bad", moves_one), Script("good", moves_one))
    room.advisers.dismiss(("bad", "unknown"))
    room.advisers.observe(seen(), {})
    assert room.hear().policy == "good"
    assert room.said.empty()
    room.advisers.close()


def test_observations_have_everything_about_the_members_and_nobody_else():
    """What was said of the last 32 iterations; reports of a node that is no member any more are forgotten."""
    recent = RecentIterations()
    for iteration in range(40):
        training = TrainingState(
            figures={"loss": float(iteration)}, epochs=iteration / 2, elapsed_s=3.0 * iteration, duration_s=3.0
        )
        recent.note({A: TaskReport(samples=10, duration_s=float(iteration))}, (training,))
    observed = look(recent, iteration=40)
    assert (observed.round, observed.iteration) == (3, 40)
    assert observed.capacity_bytes == {A: None, B: 640}
    assert observed.used_bytes == {A: 256, B: 256}
    assert [report.duration_s for report in observed.reports[A]] == [float(number) for number in range(8, 40)]
    assert observed.reports[B] == ()
    assert [figures["loss"] for figures in observed.figures] == [float(number) for number in range(8, 40)]
    assert observed.iteration_s == (3.0,) * 32
    assert (observed.epochs, observed.now_s, observed.travelling) == (19.5, 117.0, 2)
    assert (observed.min_nodes, observed.max_nodes, observed.wanted, observed.available) == (1, 4, 2, None)
    recent.keep_only((B,))
    assert look(recent, iteration=41).reports[A] == ()


def test_who_asks_at_once_waits_no_longer_than_the_patience():
    """In one process the scheduler asks by itself; what raises there is disabled by name."""
    may_end = threading.Event()
    stuck = TimeLimitedPolicy(Script("stuck", lambda seen: may_end.wait(timeout_s(30))), patience_s=0.01)
    assert stuck.name == "stuck"
    with pytest.raises(ContractError, match=r"did not answer within 0.01 s"):
        stuck.decide(seen())
    may_end.set()
    with pytest.raises(ZeroDivisionError):
        TimeLimitedPolicy(Script("bad", lambda seen: 1 / 0)).decide(seen())
    assert TimeLimitedPolicy(Script("good", moves_one)).decide(seen()) == moves_one(seen())


def test_a_user_who_waits_for_a_policy_is_told_once(monkeypatch, caplog):
    """It may take thirty seconds, and in every iteration."""
    monkeypatch.setattr(waits, "PATIENCE_S", 0.01)
    caplog.set_level("INFO", logger="chicle")
    patient = TimeLimitedPolicy(Script("slow", lambda seen: time.sleep(0.05)), patience_s=timeout_s(30))
    for _ in range(2):
        assert patient.decide(seen()) is None
    assert [line.partition(" (")[0] for line in caplog.messages] == ["waiting for policy slow to decide"]


def test_each_policy_gets_its_own_messages_and_memory_with_its_observations():
    """Messages once, those of before its last decision no more."""
    heard: dict[str, list[Any]] = {"one": [], "two": []}

    def listen(name: str) -> Script:
        def say(seen: Observations) -> Decision:
            heard[name].append((seen.memory, [message.payload for message in seen.messages]))
            return moves_one(seen)

        return Script(name, say)

    room = Room(listen("one"), listen("two"))
    room.mailboxes.post("n0", "policy:one", {"heat": 1})
    room.mailboxes.post("policy:one", "*", "to all others")
    for _ in range(2):
        room.advisers.observe(seen(1), {"one": [7]})
        assert {room.hear().policy, room.hear().policy} == {"one", "two"}
        for name in heard:
            wait_until_idle(room, name)
    assert heard == {"one": [([7], [{"heat": 1}]), ([7], [])], "two": [(None, ["to all others"]), (None, [])]}
    room.advisers.close()
