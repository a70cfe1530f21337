"""The report of a change of the membership: phases, stall and time to whole, on a clock of the test."""

import pytest

from chicle_elastic.cluster.agent.transitions import TransitionTimes
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.records import Transition

A, B = NodeId("a"), NodeId("b")


class Stage:
    """A clock, and what was told."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.told: list[Transition] = []
        self.transitions = TransitionTimes(lambda: self.now_s, self.told.append)

    def at(self, now_ms: float) -> TransitionTimes:
        """The transitions at another time."""
        self.now_s = now_ms / 1e3
        return self.transitions

    def begin(self) -> None:
        """Round 1, two iterations."""
        self.at(0).formed(1, (A, B))
        self.at(0).started(1, is_complete=True)
        self.at(30).ended(1, 1)
        self.at(60).ended(1, 2)
        self.told.clear()


@pytest.fixture
def stage() -> Stage:
    """Two iterations of round 1 have ended, the second one at 60 ms."""
    stage = Stage()
    stage.begin()
    return stage


def test_every_phase_is_reported(stage: Stage) -> None:
    """A join: detected, boundary, round, group beside the moves, first iteration."""
    stage.at(70).detected("c joins")
    stage.at(90).called()
    stage.at(102).formed(2, (A, B, NodeId("c")))
    stage.at(113).connected(2)
    stage.at(132).started(2, is_complete=True)
    stage.at(170).ended(2, 3)
    stage.at(200).ended(2, 4)
    assert stage.told == [
        Transition(
            iteration=3,
            round=2,
            members=(A, B, "c"),
            reasons=("c joins",),
            detect_ms=0,
            ahead_ms=0,
            pause_ms=20,
            rendezvous_ms=12,
            move_ms=30,
            group_ms=11,
            first_ms=38,
            stall_ms=110,
        )
    ]


def test_a_loss_is_told_again_when_all_samples_are_back(stage: Stage) -> None:
    """The silence before it counts as `detect`; what comes back, comes at a later boundary."""
    stage.at(2060).suspected("b is gone", heard_s=0.055)
    stage.at(2060).detected("b is lost", is_loss=True)
    stage.at(2060).called()
    stage.at(2070).formed(2, (A,))
    stage.at(2080).started(2, is_complete=False)
    stage.at(2100).ended(2, 3)
    stage.at(2130).ended(2, 4)
    stage.at(2140).started(2, is_complete=True)
    stage.at(2170).ended(2, 5)
    stage.at(2200).ended(2, 6)
    first, whole = stage.told
    assert (first.iteration, first.detect_ms, first.pause_ms, first.stall_ms) == (3, 2005, 0, 2040)
    assert first.whole_ms is None
    assert first.reasons == ("b is lost",)
    assert (whole.round, whole.whole_ms) == (2, 110)


def test_a_join_before_everything_is_back_does_not_take_the_place_of_the_loss(stage: Stage) -> None:
    """The time to whole belongs to the round of the loss."""
    stage.at(100).suspected("broken group")
    stage.at(105).detected("b is lost", is_loss=True)
    stage.at(110).formed(2, (A,))
    stage.at(110).started(2, is_complete=False)
    stage.at(140).ended(2, 3)
    stage.at(150).detected("c joins")
    stage.at(160).formed(3, (A, NodeId("c")))
    stage.at(160).started(3, is_complete=True)
    stage.at(200).ended(3, 4)
    assert [(told.round, told.whole_ms) for told in stage.told] == [(2, None), (3, None), (2, 100)]


def test_iterations_go_on_while_rows_travel_ahead(stage: Stage) -> None:
    """The pause begins with the end of the last of them."""
    stage.at(70).detected("c joins")
    stage.at(90).ended(1, 3)
    stage.at(120).ended(1, 4)
    stage.at(125).called()
    stage.at(135).formed(2, (A, B, NodeId("c")))
    stage.at(140).started(2, is_complete=True)
    stage.at(170).ended(2, 5)
    [told] = stage.told
    assert (told.ahead_ms, told.pause_ms, told.rendezvous_ms, told.stall_ms) == (50, 5, 10, 50)


def test_an_iteration_that_ends_after_a_loss_is_not_the_whole(stage: Stage) -> None:
    """The lost node had given its part; its chunks are missing from the next iteration on."""
    stage.at(70).detected("b is lost", is_loss=True)
    stage.at(80).ended(1, 3)
    assert not stage.told
    stage.at(81).called()
    stage.at(90).formed(2, (A,))
    stage.at(90).started(2, is_complete=False)
    stage.at(120).ended(2, 4)
    stage.at(120).started(2, is_complete=True)
    stage.at(150).ended(2, 5)
    assert [(told.round, told.whole_ms) for told in stage.told] == [(2, None), (2, 80)]
