"""A dashboard for Grafana and alert rules for Prometheus, made of the list of metrics (`openmetrics.METRICS`).

Every agent answers for the whole job, so an expression takes the maximum over agents. Only `chicle_agent_info` knows
the name of the job, so every expression is joined with it.
"""

import json
from dataclasses import dataclass
from typing import Any

from chicle_elastic.monitoring.openmetrics import METRICS, Metric

NUM_COLUMNS, HEIGHT, WIDTH = 3, 7, 8  # of Grafana's grid of 24 units
UNITS = {"seconds": "s", "bytes": "bytes"}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
NOW = "10m"  # how long an alert about an event stays


def of_job(sample: str, *, run: str = "") -> str:
    """Return the expression of a sample with the label `run` of its job."""
    return f"{sample} * on (instance) group_left (run) chicle_agent_info{run}"


def of_agent(sample: str, *, run: str = "") -> str:
    """Return the expression of a sample of an agent itself, with the labels `run` and `node`."""
    return f"{sample} * on (instance) group_left (run, node) chicle_agent_info{run}"


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule of Prometheus."""

    name: str
    severity: str  # "critical" where training stands, else "warning"
    expression: str
    holds_s: int  # how long it has to be true
    summary: str
    remedy: str  # what to look at


LAST = f"max by (run) ({of_job('chicle_last_iteration_seconds')})"
ENDED = f"max by (run) ({of_job('chicle_last_iteration_end_seconds')})"
COMPUTED = f"max by (run, node) ({of_job('chicle_node_compute_seconds')})"
STANDS = "(chicle_paused + chicle_finished)"
LOSSES = f'increase(chicle_membership_changes_total{{change="loss"}}[{NOW}])'
ALERTS = (
    Alert(
        "ChicleJobPaused",
        "critical",
        f"max by (run) ({of_job('chicle_paused')}) == 1",
        120,
        "the job {{ $labels.run }} is paused",
        "chicle_pause_info has the reason: too few nodes, or no room for the chunks",
    ),
    Alert(
        "ChicleNoIteration",  # twenty times the last duration, and a minute at least
        "critical",
        f"time() - {ENDED} > clamp_min(20 * {LAST}, 60) unless max by (run) ({of_job(STANDS)}) > 0",
        0,
        "the job {{ $labels.run }} has ended no iteration for {{ $value | humanizeDuration }}",
        "kill -USR2 an agent: the line standing of its event file says what it waits for",
    ),
    Alert(
        "ChicleNoAgentAnswers",  # the other rules have nothing to look at then
        "critical",
        "absent(chicle_agent_info)",
        120,
        "no agent of any job answers",
        "all nodes are gone, or the scraper does not reach the ports of --metrics",
    ),
    Alert(
        "ChicleSlowNode",
        "warning",
        f"{COMPUTED} / on (run) group_left () quantile by (run) (0.5, {COMPUTED}) > 1.5",
        300,
        "{{ $labels.node }} takes {{ $value | humanize }} times as long as the median node of {{ $labels.run }}",
        "look for another process on its host; the policy Rebalance moves chunks away from it",
    ),
    Alert(
        "ChicleNodeLost",
        "warning",
        f"max by (run) ({of_job(LOSSES)}) > 0",
        0,
        "the job {{ $labels.run }} has lost a node without notice",
        "the event files of the others have its name; give nodes notice by SIGTERM",
    ),
    Alert(
        "ChicleTaskDied",
        "warning",
        f"max by (run, node) ({of_agent(f'increase(chicle_task_deaths_total[{NOW}])')}) > 0",
        0,
        "the task of {{ $labels.node }} has died",
        "look at what the task printed, and for the kernel's word about memory (dmesg)",
    ),
    Alert(
        "ChicleNodeExpelled",
        "warning",
        f"max by (run, node) ({of_agent(f'increase(chicle_expulsions_total[{NOW}])')}) > 0",
        0,
        "the others have declared {{ $labels.node }} dead while it was alive",
        "its host was stopped or overloaded for 2 s and more, or its network was cut",
    ),
    Alert(
        "ChicleStoreUnreachable",
        "warning",
        f"min by (run, node) ({of_agent('chicle_store_reachable')}) == 0",
        60,
        "the rendezvous store does not answer {{ $labels.node }}",
        "training goes on and no node can join: start the store again at its address, with its secret",
    ),
)


def alert_rules() -> str:
    """Return a file of rules for Prometheus, as YAML."""
    lines = ["groups:", "  - name: chicle", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.holds_s}s",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.remedy)}",
        ]
    return "\n".join(lines) + "\n"


def dashboard() -> str:
    """Return a dashboard for Grafana, as JSON: a panel for each metric, and a variable for the job."""
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        {
            "name": "run",
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": "label_values(chicle_agent_info, run)", "refId": "run"},
            "refresh": 2,
        },
    ]
    board = {
        "title": "Chicle",
        "uid": "chicle",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(number, metric) for number, metric in enumerate(METRICS)],
    }
    return json.dumps(board, indent=2) + "\n"


def _panel(number: int, metric: Metric) -> dict[str, Any]:
    labels = ("node",) if metric.is_own else metric.labels
    row, column = divmod(number, NUM_COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": metric.name,
        "description": metric.what,
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": WIDTH * column, "y": HEIGHT * row},
        "fieldConfig": {"defaults": {"unit": UNITS.get(metric.unit, "short")}, "overrides": []},
        "targets": [
            {
                "refId": "A",
                "datasource": SOURCE,
                "expr": f"max by ({', '.join(labels)}) ({_drawn(metric)})",
                "legendFormat": " ".join(f"{{{{{label}}}}}" for label in labels) or metric.name,
            }
        ],
    }


def _drawn(metric: Metric) -> str:
    """Return what a panel shows: a gauge itself, of a counter its increase, of a summary the mean."""
    run = '{run="$run"}'
    name = metric.name
    if name == "chicle_agent":
        return f"chicle_agent_info{run}"
    drawn = {
        "counter": f"increase({name}_total[5m])",
        "info": f"{name}_info",
        "summary": f"rate({name}_sum[1m]) / rate({name}_count[1m])",
    }.get(metric.kind, name)
    return of_agent(drawn, run=run) if metric.is_own else of_job(drawn, run=run)
