"""Schedules, their files, and the resource manager that keeps to one."""

from pathlib import Path

import pytest

from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.resources.managers import Assigned, Revoked, Said
from chicle_elastic.resources.schedule import Schedule, ScheduledNodes, ScheduleStep
from chicle_elastic.values import ResourceOffer

FILE = """\
# what a spot market had
0   4  1.0
30, 2, 0.25   # half of them are taken

60 6
"""


def of(said: list[Said] | object, kind: type) -> list[Said]:
    """What is of this kind."""
    assert isinstance(said, list)
    return [each for each in said if isinstance(each, kind)]


def test_a_file_is_read(tmp_path: Path) -> None:
    """Blanks and commas, comments and empty lines."""
    (tmp_path / "spot.txt").write_text(FILE)
    schedule = Schedule.read(tmp_path / "spot.txt")
    assert schedule.steps == (ScheduleStep(0.0, 4, 1.0), ScheduleStep(30.0, 2, 0.25), ScheduleStep(60.0, 6))
    assert (schedule.least(), schedule.most()) == (2, 6)
    assert [schedule.at(now).nodes for now in (0, 29.9, 30, 60, 1e9)] == [4, 4, 2, 6, 6]
    assert schedule == Schedule(((0, 4, 1.0), (30, 2, 0.25), (60, 6)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 4\n10\n", r":2: .*: a step is `seconds, nodes`"),
        ("0 4\n10 two\n", r":2: '10 two' is not `seconds nodes \[price\]`"),
        ("0 4\n10 2.5\n", ":2: .*: nodes must be an integer"),
        ("0 4\n10 2 0.1 7\n", r":2: .*: a step is `seconds, nodes`"),
        ("5 4\n", ":1: .*: the first step begins at 0 seconds"),
        ("0 4\n\n9 2\n9 3\n", ":4: .*: it must come after second 9"),
        ("0 -1\n", ":1: .*: seconds, nodes and price must be >= 0 and finite"),
        ("0 4 nan\n", ":1: .*: seconds, nodes and price"),
        ("-1 4\n", ":1: .*: seconds, nodes and price"),
        ("inf 4\n", ":1: .*: seconds, nodes and price"),
        ("# nothing\n", "has no line"),
        ("", "has no line"),
    ],
)
def test_a_file_that_is_bent(tmp_path: Path, text: str, says: str) -> None:
    """The message has the line."""
    (tmp_path / "spot.txt").write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        Schedule.read(tmp_path / "spot.txt")
    assert str(tmp_path / "spot.txt") in str(caught.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    """A folder, bytes that are no text, nothing."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe0 4")
    for path in (tmp_path, tmp_path / "bytes", tmp_path / "missing"):
        with pytest.raises(UsageError, match="cannot be read"):
            Schedule.read(path)


@pytest.mark.parametrize("steps", [(), ((1, 2),), ((0, 2), (0, 3)), ((0, True),), ((0,),), (5,), (("0", 2),)])
def test_steps_that_cannot_be(steps: tuple[object, ...]) -> None:
    """Also where a program gives them."""
    with pytest.raises(UsageError, match="Schedule: "):
        Schedule(steps)  # type: ignore[arg-type]


def test_a_job_gets_all_that_there_is_until_it_asks_for_a_number() -> None:
    """The newest nodes are revoked; names are never used again."""
    manager = ScheduledNodes(Schedule(((0, 2), (10, 4, 0.5), (20, 1))), prefix="n")
    said = list(manager.poll(0.0))
    assert said == [Assigned(NodeId("n0")), Assigned(NodeId("n1")), ResourceOffer(available=0)]
    assert of(list(manager.poll(9.0)), Assigned) == []
    said = list(manager.poll(10.0))
    assert [each.node for each in said if isinstance(each, Assigned)] == ["n2", "n3"]
    assert said[-1] == ResourceOffer(available=0, price=0.5)
    said = list(manager.poll(25.0))
    assert [each.node for each in said if isinstance(each, Revoked)] == ["n1", "n2", "n3"]
    manager.request(3, "more")
    assert of(list(manager.poll(26.0)), Assigned) == []
    assert manager.nodes == ["n0"]


def test_a_request_is_kept_until_there_are_as_many() -> None:
    """And fewer than there are revokes none: the job chooses which ones it gives back."""
    manager = ScheduledNodes(Schedule(((0, 2), (10, 4))), prefix="n", target=1)
    assert list(manager.poll(0.0)) == [Assigned(NodeId("n0")), ResourceOffer(available=1)]
    manager.request(3, "more")
    assert list(manager.poll(1.0)) == [Assigned(NodeId("n1")), ResourceOffer(available=0)]
    assert list(manager.poll(10.0)) == [Assigned(NodeId("n2")), ResourceOffer(available=1)]
    manager.request(2, "fewer")
    assert of(list(manager.poll(11.0)), Revoked) == []
    manager.release(NodeId("n0"))
    assert list(manager.poll(12.0)) == [ResourceOffer(available=2)]
    manager.release(NodeId("n1"))
    assert of(list(manager.poll(13.0)), Assigned) == [Assigned(NodeId("n3"))]


def test_what_is_released_without_a_request_is_not_replaced_and_what_is_lost_is() -> None:
    """A job that gives a node back wants no other one for it."""
    manager = ScheduledNodes(Schedule(((0, 3),)), prefix="n")
    manager.poll(0.0)
    manager.release(NodeId("n1"))
    assert of(list(manager.poll(1.0)), Assigned) == []
    manager.lost(NodeId("n0"))
    assert of(list(manager.poll(2.0)), Assigned) == [Assigned(NodeId("n3"))]
    manager.release(NodeId("stranger"))
    manager.lost(NodeId("stranger"))
    assert manager.nodes == ["n2", "n3"]


def test_an_operator_resizes() -> None:
    """More are assigned, the newest are revoked."""
    manager = ScheduledNodes(Schedule(((0, 4),)), prefix="n", target=2)
    manager.poll(0.0)
    manager.resize(3)
    assert of(list(manager.poll(1.0)), Assigned) == [Assigned(NodeId("n2"))]
    manager.resize(1)
    assert of(list(manager.poll(2.0)), Revoked) == [Revoked(NodeId("n1")), Revoked(NodeId("n2"))]
    assert of(list(manager.poll(3.0)), Assigned) == []
