"""Metrics of a job for operators, in the text format of OpenMetrics 1.0 (https://prometheus.io/docs/specs/om/).

Every agent answers for the whole job, by its `JobMetrics`. `chicle_first_member` tells the one agent that writes
TensorBoard from the others. `METRICS` is the only list of what there is: the dashboard and the alerts (`dashboards`)
are made of it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from chicle_elastic.monitoring.job_metrics import JobMetrics, Metrics

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
MAX_REASON = 300
UNITS = ("seconds", "bytes")

Sample: TypeAlias = tuple[str, Mapping[str, str], float | None]  # suffix of the name, labels, value; None is NaN


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of metrics."""

    name: str  # ends with its unit, seconds or bytes, if it has one
    kind: str  # gauge, counter, summary or info
    what: str  # help, a sentence
    samples: Callable[[JobMetrics], Iterable[Sample]]
    labels: tuple[str, ...] = ()
    is_own: bool = False  # of this agent; the others are of the job, and each agent answers for them

    @property
    def unit(self) -> str:
        """Unit of the values; "" for none."""
        return next((unit for unit in UNITS if self.name.endswith(f"_{unit}")), "")

    def text(self, seen: JobMetrics) -> str:
        """Return the family as a scraper gets it: type, unit and help, then the samples."""
        lines = [f"# TYPE {self.name} {self.kind}"]
        lines += [f"# UNIT {self.name} {self.unit}"] if self.unit else []
        lines += [f"# HELP {self.name} {_escaped(self.what)}"]
        for suffix, labels, value in self.samples(seen):
            inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            lines.append(f"{self.name}{suffix}{f'{{{inside}}}' if inside else ''} {_number(value)}")
        return "\n".join(lines) + "\n"


def text_of(metrics: JobMetrics) -> str:
    """Return all metrics, as a scraper gets them; called by any thread."""
    return "".join(metric.text(metrics) for metric in METRICS) + "# EOF\n"


def _gauge(name: str, what: str, value: Callable[[Metrics], float | None]) -> Metric:
    return Metric(name, "gauge", what, lambda seen: [("", {}, value(seen.latest))])


def _counter(name: str, what: str, value: Callable[[Metrics], float], *, is_own: bool = False) -> Metric:
    return Metric(name, "counter", what, lambda seen: [("_total", {}, value(seen.latest))], is_own=is_own)


def _each(name: str, kind: str, what: str, label: str, values: Callable[[Metrics], Mapping[str, float]]) -> Metric:
    suffix = "_total" if kind == "counter" else ""

    def samples(seen: JobMetrics) -> list[Sample]:
        return [(suffix, {label: text}, value) for text, value in values(seen.latest).items()]

    return Metric(name, kind, what, samples, labels=(label,))


def _agent(seen: JobMetrics) -> list[Sample]:
    return [("_info", {"node": seen.node, "run": seen.run_id}, 1)]


def _is_first(seen: JobMetrics) -> list[Sample]:
    return [("", {}, int(seen.latest.members[:1] == (seen.node,)))]


def _has_store(seen: JobMetrics) -> list[Sample]:
    return [("", {}, int(seen.latest.is_store_reachable))]


def _durations(seen: JobMetrics) -> list[Sample]:
    return [("_count", {}, seen.latest.iterations), ("_sum", {}, seen.latest.iterations_s)]


def _end(seen: JobMetrics) -> list[Sample]:
    ended_s = seen.latest.ended_unix_s
    return [] if ended_s is None else [("", {}, ended_s)]


def _pause(seen: JobMetrics) -> list[Sample]:
    reason = seen.latest.pause_reason[:MAX_REASON]
    return [("_info", {"reason": reason}, 1)] if reason else []


COMPUTED = "How long the task of each node computed in the last iteration."
ENDED = "When the last iteration ended, since 1970."
EXPELLED = "How often the others have declared this node dead while it was alive."
HIDDEN = "Of chicle_moved_bytes, what was copied ahead, behind iterations."
REPLAYED = "Chunks that were lost with a node and loaded again; their samples are replayed."
METRICS = (
    Metric("chicle_agent", "info", "Which agent this is.", _agent, labels=("node", "run")),
    Metric(
        "chicle_first_member", "gauge", "Whether this node is the first member of the round.", _is_first, is_own=True
    ),
    _gauge("chicle_members", "Nodes in the round.", lambda now: len(now.members)),
    _gauge("chicle_tasks", "Tasks that took part in the last iteration.", lambda now: len(now.seconds)),
    _gauge("chicle_iteration", "The last iteration that has ended.", lambda now: now.iteration),
    _gauge("chicle_epochs", "Passes over the data.", lambda now: now.epochs),
    _counter("chicle_samples", "Samples processed.", lambda now: now.samples),
    Metric("chicle_iteration_seconds", "summary", "How long iterations took.", _durations),
    _gauge("chicle_last_iteration_seconds", "How long the last one took.", lambda now: now.last_iteration_s),
    Metric("chicle_last_iteration_end_seconds", "gauge", ENDED, _end),
    _each("chicle_model", "gauge", "Figures of the model, such as duality_gap.", "figure", lambda now: now.figures),
    _each("chicle_node_chunks", "gauge", "Chunks of each node in the last iteration.", "node", lambda now: now.chunks),
    _each("chicle_node_compute_seconds", "gauge", COMPUTED, "node", lambda now: now.seconds),
    _each("chicle_membership_changes", "counter", "Joins, notices and losses.", "change", lambda now: now.changes),
    _counter("chicle_stalls", "Changes of the membership that training waited for.", lambda now: now.transitions),
    _counter("chicle_stall_seconds", "How long training waited for them.", lambda now: now.stalls_s),
    _gauge("chicle_last_stall_seconds", "How long it waited for the last one.", lambda now: now.last_stall_s),
    _counter("chicle_moved_bytes", "Bytes of chunks that changed nodes.", lambda now: now.moved_bytes),
    _counter("chicle_hidden_bytes", HIDDEN, lambda now: now.hidden_bytes),
    _counter("chicle_replayed_chunks", REPLAYED, lambda now: now.reloaded_chunks),
    _counter("chicle_checkpoints", "Checkpoints written.", lambda now: now.checkpoints),
    _gauge("chicle_checkpoint_iteration", "Iteration of the newest checkpoint.", lambda now: now.checkpoint_iteration),
    _gauge("chicle_paused", "Whether the job is paused.", lambda now: int(bool(now.pause_reason))),
    Metric("chicle_pause", "info", "Why it is paused.", _pause, labels=("reason",)),
    _gauge("chicle_finished", "Whether the job is over.", lambda now: int(bool(now.end_reason))),
    _counter("chicle_task_deaths", "How often the task of this node died.", lambda now: now.task_deaths, is_own=True),
    _counter("chicle_expulsions", EXPELLED, lambda now: now.expulsions, is_own=True),
    Metric("chicle_store_reachable", "gauge", "Whether the store answers this agent.", _has_store, is_own=True),
)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
