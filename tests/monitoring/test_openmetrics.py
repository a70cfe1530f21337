"""Metrics of a job, as the parser of Prometheus' own client reads them."""

import math
from typing import Any

import pytest

from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.job_metrics import JobMetrics
from chicle_elastic.monitoring.openmetrics import text_of

parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="needs prometheus-client")

NODE = NodeId("n0")


def values(metrics: JobMetrics) -> dict[str, float]:
    """All samples, by name and labels; the parser refuses what is no OpenMetrics."""
    return {
        sample.name + "".join(f" {label}={text}" for label, text in sorted(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text_of(metrics))
        for sample in family.samples
    }


def iteration(number: int, **changes: Any) -> dict[str, Any]:
    """A line as agents write it."""
    return {
        "kind": "iteration",
        "time": 1.7e9 + number,
        "iteration": number,
        "duration_ms": 500.0,
        "epochs": float(number),
        "figures": {"objective": 1.0 / number},
        "seconds": {"n0": 0.25, "n1": 0.5},
        "samples": {"n0": 30, "n1": 10},
        "chunks": {"n0": 3, "n1": 1},
        "moved_bytes": 100,
        "hidden_bytes": 80,
        "reloaded_chunks": 2,
        **changes,
    }


def told(*lines: dict[str, Any]) -> JobMetrics:
    """What an agent has after these lines."""
    metrics = JobMetrics(NODE, "job")
    for line in lines:
        metrics.take(line)
    return metrics


def test_an_agent_that_has_seen_nothing_has_metrics() -> None:
    """Of no members and no iteration; durations that are not known are no numbers."""
    found = values(told())
    assert found["chicle_agent_info node=n0 run=job"] == 1
    assert found["chicle_members"] == found["chicle_iteration"] == found["chicle_paused"] == 0
    assert math.isnan(found["chicle_last_iteration_seconds"])
    assert "chicle_last_iteration_end_seconds" not in found


def test_iterations_add_up() -> None:
    """Counters are sums; gauges are those of the last iteration, figures those that were known last."""
    first = iteration(1, figures={"duality_gap": 0.5, "objective": 1.0})
    found = values(told({"kind": "round", "round": 1, "members": ["n0", "n1"]}, first, iteration(2)))
    expected = {
        "chicle_members": 2,
        "chicle_first_member": 1,
        "chicle_tasks": 2,
        "chicle_iteration": 2,
        "chicle_epochs": 2.0,
        "chicle_samples_total": 80,
        "chicle_iteration_seconds_count": 2,
        "chicle_iteration_seconds_sum": 1.0,
        "chicle_last_iteration_seconds": 0.5,
        "chicle_last_iteration_end_seconds": 1.7e9 + 2,
        "chicle_model figure=duality_gap": 0.5,
        "chicle_model figure=objective": 0.5,
        "chicle_node_chunks node=n0": 3,
        "chicle_node_compute_seconds node=n1": 0.5,
        "chicle_moved_bytes_total": 200,
        "chicle_hidden_bytes_total": 160,
        "chicle_replayed_chunks_total": 4,
    }
    assert {name: found[name] for name in expected} == expected


def test_a_figure_that_is_no_number_is_one_of_openmetrics() -> None:
    """Agents write what a trainer says."""
    figures = {"loss": math.nan, "gap": math.inf, "score": -math.inf}
    found = values(told(iteration(1, figures=figures)))
    assert math.isnan(found["chicle_model figure=loss"])
    assert found["chicle_model figure=gap"] == math.inf
    assert found["chicle_model figure=score"] == -math.inf


def test_changes_and_stalls_are_counted() -> None:
    """What took long before the first iteration is no stall."""
    lines = [{"kind": kind} for kind in ("joined", "joined", "noticed", "lost")]
    stalls = [{"kind": "transition", "stall_ms": stall_ms} for stall_ms in (None, 250.0, 500.0)]
    found = values(told(*lines, *stalls))
    changes = {name: found[f"chicle_membership_changes_total change={name}"] for name in ("join", "notice", "loss")}
    assert changes == {"join": 2, "notice": 1, "loss": 1}
    assert found["chicle_stalls_total"] == 2
    assert found["chicle_stall_seconds_total"] == 0.75
    assert found["chicle_last_stall_seconds"] == 0.5


def test_a_pause_has_its_reason_until_it_is_over() -> None:
    """In the words of the scheduler, with quotes, line feeds and backslashes."""
    reason = 'waits for "n1"\nin C:\\jobs'
    metrics = told({"kind": "paused", "reason": reason})
    found = values(metrics)
    assert found["chicle_paused"] == 1
    assert found[f"chicle_pause_info reason={reason}"] == 1
    metrics.take(iteration(1))
    assert values(metrics)["chicle_paused"] == 0
    assert not [name for name in values(metrics) if name.startswith("chicle_pause_info")]
    for line in ({"kind": "paused", "reason": reason}, {"kind": "resumed"}):
        metrics.take(line)
    assert values(metrics)["chicle_paused"] == 0


def test_checkpoints_and_the_end_are_there() -> None:
    """And another node is not the first member."""
    lines = [{"kind": "round", "round": 3, "members": ["n1", "n0"]}, {"kind": "checkpoint", "iteration": 7}]
    found = values(told(*lines, {"kind": "finished", "reason": "converged"}))
    assert found["chicle_checkpoints_total"] == 1
    assert found["chicle_checkpoint_iteration"] == 7
    assert found["chicle_finished"] == 1
    assert found["chicle_first_member"] == 0
