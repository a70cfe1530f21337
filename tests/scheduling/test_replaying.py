"""Recordings with parts, answers of policies, errors of the scheduler, and lines that were cut off."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.recording import RecordedPolicy, Recorder, header_text, state_of
from chicle_elastic.scheduling.replaying import Replay
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from chicle_elastic.values import TaskReport
from tests.harness.sim_cluster import SimCluster
from tests.harness.text_sink import TextSink, replay
from tests.scheduling.stage import infos

A, B = NodeId("a"), NodeId("b")


def stories(is_worth: Any = lambda cluster: True) -> SimCluster:
    """A recorded history of which this is true."""
    worth = (seed for seed in range(300) if is_worth(SimCluster(seed)))
    return next(cluster for seed in worth if len((cluster := SimCluster(seed, is_recorded=True).run()).recording) > 60)


@pytest.fixture
def lines() -> list[str]:
    """Of some history without policies."""
    return stories(lambda cluster: not cluster.fault_profile.has_policies).recording


def test_a_part_that_begins_with_a_snapshot_goes_on_from_there(lines: list[str]) -> None:
    """As a node does that joins late: the second half alone gives the same effects, with the numbers of the log."""
    half = len(lines) // 2
    scheduler = [step.scheduler for step in Replay(lines[:half])][-1]
    later = [header_text(scheduler, length=half - 1, state=state_of(scheduler)).decode(), *lines[half:]]
    steps = list(Replay(later))
    assert [step.difference for step in steps] == [None] * (len(lines) - half)
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert [step.index for step in steps] == list(range(half, len(lines)))


def test_a_recording_has_several_parts(lines: list[str]) -> None:
    """An agent that rejoins writes them into one file, with an empty line before each."""
    whole = Replay([*lines, "\n", *lines])
    assert [step.difference for step in whole] == [None] * (2 * len(lines) - 2)
    assert (whole.num_entries, whole.num_parts, whole.notes) == (2 * len(lines) - 2, 2, [])


def test_half_a_line_at_the_end_of_a_part_is_left_out(lines: list[str]) -> None:
    """At the end of the file, and before the part of the next process."""
    cut = lines[-1][: len(lines[-1]) // 2]
    last = Replay([*lines[:-1], cut])
    assert sum(1 for _ in last) == len(lines) - 2
    between = Replay([*lines[:-1], cut + "\n", *lines])
    assert sum(1 for _ in between) == 2 * len(lines) - 3
    for found in (last, between):
        assert found.notes == [
            f"recording:{len(lines)} is cut off: the process ended while it wrote the line, which is left out"
        ]


def test_half_a_line_in_the_middle_of_a_part_is_an_error(lines: list[str]) -> None:
    """What follows would not fit."""
    lines[30] = lines[30][:20] + "\n"
    with pytest.raises(ProtocolError, match=r"recording:31: not a line of a recording: .*was the file cut off"):
        list(Replay(lines))


def test_a_last_line_that_is_whole_and_bent_is_an_error(lines: list[str]) -> None:
    """It was not cut off: its line feed is there."""
    lines[-1] = '{"now":1.0}\n'
    with pytest.raises(ProtocolError, match=rf"recording:{len(lines)}: not a line of a recording"):
        list(Replay(lines))


def test_a_header_that_is_cut_off_is_an_error() -> None:
    """There is nothing to replay."""
    with pytest.raises(ProtocolError, match=r"recording:1: not a line of a recording: .*was the file cut off"):
        list(Replay(['{"format":"chicle recor']))


def test_the_message_about_an_unknown_line_names_the_release_that_recorded_it(lines: list[str]) -> None:
    """An event that this release does not have."""
    header = json.loads(lines[0]) | {"release": "77.0"}
    bent = '{"now":1.0,"event":{"type":"SomethingNew"},"effects":[]}\n'
    with pytest.raises(
        ProtocolError, match=r"recording:2: .*SomethingNew.*chicle-elastic 77.0 recorded it and this is"
    ):
        list(Replay([json.dumps(header) + "\n", bent, *lines[1:]]))


def test_a_snapshot_of_another_version_is_refused(lines: list[str]) -> None:
    """Snapshots are read by the release that wrote them."""
    scheduler = Scheduler(SchedulerSettings())
    state = {**state_of(scheduler), "version": 0}
    with pytest.raises(ProtocolError, match=r"recording:1: the snapshot has version 0"):
        list(Replay([header_text(scheduler, state=state).decode()]))


def test_what_policies_answered_is_recorded() -> None:
    """Rebalance and a random policy, which fails now and then, are not needed to fold the events again."""
    cluster = stories(lambda cluster: cluster.fault_profile.has_policies)
    told = [json.loads(line) for line in cluster.recording[1:]]
    assert any("answers" in line for line in told)
    assert list(replay(cluster.recording)) == list(replay(cluster.recording, cluster.policies))


@dataclass
class Nonsense:
    """Answers anything."""

    answer: Any
    name: str = "nonsense"

    def decide(self, observations: object, /) -> Any:
        """As given; an error is raised."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "answer", [7, object(), ValueError("no idea"), type("Decision", (), {"moves": {("a", 3): 1}, "reason": "x"})()]
)
def test_a_policy_that_was_disabled_is_disabled_again(answer: Any) -> None:
    """For the reason that it was disabled for, which the log line has."""
    lines: list[str] = []
    recorder = Recorder(Scheduler(SchedulerSettings(), [RecordedPolicy(Nonsense(answer))]), TextSink(lines.append))
    recorder.handle(events.ChunksDeclared(chunks=infos(2)), now=0.0)
    recorder.handle(events.NodeJoined(node=A), now=0.0)
    recorder.handle(events.RoundFormed(round=1, members=(A,)), now=0.0)
    recorder.handle(events.ChunksLoaded(chunks=tuple(info.id for info in infos(2)), node=A, round=1), now=0.0)
    reports = {A: TaskReport(samples=1, duration_s=1.0)}
    effects = recorder.handle(events.IterationFinished(round=1, iteration=1, reports=reports), now=0.0)
    assert any("policy nonsense is disabled: it " in str(effect) for effect in effects)
    assert [list(effects) for _, effects in replay(lines)][-1] == effects


def test_an_event_at_which_the_scheduler_raised_is_in_the_recording() -> None:
    """It is what somebody wants to replay; an error that does not come any more is a difference."""
    lines: list[str] = []
    recorder = Recorder(Scheduler(SchedulerSettings()), TextSink(lines.append))
    recorder.handle(events.ChunksDeclared(chunks=infos(2)), now=0.0)
    with pytest.raises(ProtocolError):
        recorder.handle(events.ChunksDeclared(chunks=infos(3)), now=1.0)
    recorder.handle(events.NodeJoined(node=A), now=2.0)
    assert [step.difference for step in Replay(lines)] == [None] * 3
    lines[2] = lines[2].replace("declared once", "declared twice")
    with pytest.raises(
        ProtocolError, match=r"recording:3: entry 2, ChunksDeclared at 1.000 s: the scheduler raised Pro"
    ):
        list(replay(lines))
