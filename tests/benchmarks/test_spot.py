"""What the spot benchmark replays, and how it counts node time."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import spot_trace
from benchmarks.spot import NUM_TICKS, SEED, TICK_S, Replay, lost, schedule_of, there_s, used_s


def test_the_generated_trace_is_as_bulky_as_the_public_ones() -> None:
    """The same for the same seed; it ends with all machines, so that the job can end."""
    counts = spot_trace.generated(SEED, num_ticks=NUM_TICKS)
    assert counts == spot_trace.generated(SEED, num_ticks=NUM_TICKS)
    assert len(counts) == NUM_TICKS
    assert counts[-1] == spot_trace.MOST
    assert 0.16 <= counts.count(0) / len(counts) <= 0.62
    falls = [before - after for before, after in itertools.pairwise(counts) if after < before]
    assert 0.47 <= sum(fall >= spot_trace.MOST / 2 for fall in falls) / len(falls) <= 0.86
    assert "none there for 17 % of the time" in spot_trace.describe(counts)


def test_a_file_of_public_traces_is_read_and_scaled(tmp_path: Path) -> None:
    """Each of four nodes stands for four machines, and is there if half of them are."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": [0, 1, 2, 5, 6, 15, 16]}))
    assert spot_trace.scaled(spot_trace.read(path, 0, 7), 4) == [0, 0, 1, 1, 2, 4, 4]
    assert spot_trace.read(path, 2, 4) == [2, 5]


def test_the_schedule_has_a_step_for_each_change() -> None:
    """In seconds of the replay."""
    steps = schedule_of([4, 4, 0, 0, 2], TICK_S).steps
    assert [(step.start_s, step.nodes) for step in steps] == [(0.0, 4), (2 * TICK_S, 0), (4 * TICK_S, 2)]


def test_time_with_fewer_machines_than_the_job_needs_was_not_there() -> None:
    """And none after the end of the job."""
    result = Replay(counts=[(0.0, 4), (10.0, 1), (20.0, 2), (30.0, 4)], ended_s=31.0)
    assert there_s(result) == pytest.approx(4 * 10 + 2 * 10 + 4 * 1)


def machine(*events: dict[str, Any]) -> Any:
    """With the event file of a node."""
    return SimpleNamespace(name="m0", events=lambda: list(events))


def iteration(time: float, node: str = "m0") -> dict[str, Any]:
    """That took 100 ms."""
    return {"kind": "iteration", "time": time, "duration_ms": 100.0, "seconds": {node: 0.1}}


def test_transitions_are_used_time_and_starts_and_pauses_are_not() -> None:
    """From the beginning of the first iteration to the pause, and then again."""
    events = [
        {"kind": "hot", "time": 1.0},
        iteration(2.0),
        iteration(2.1),
        iteration(3.0),
        {"kind": "paused", "time": 3.2},
        iteration(9.0),
        iteration(11.0, "other"),
    ]
    used, merged = used_s(machine(*events), ended_s=20.0)
    assert used == pytest.approx(0.1 + 0.1 + 0.9 + 0.2 + 0.1)
    assert merged == pytest.approx(0.4)


def test_iterations_that_were_merged_again_are_lost() -> None:
    """Up to 12 before the machines had gone, from 11 on after: two; those of a fall with a notice count apart."""
    merged = [(1.0, 11, 1, 4), (2.0, 12, 1, 4), (6.0, 11, 1, 2), (7.0, 12, 1, 2), (12.0, 13, 1, 2)]
    result = Replay(counts=[(0.0, 4), (5.0, 0), (5.5, 2), (10.0, 0)], falls=[(4, 0, False), (2, 0, True)])
    assert lost(merged, result, False) == 2
    assert lost(merged, result, True) == 0
