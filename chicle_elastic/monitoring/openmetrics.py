"""Metrics of a job for operators, in the text format of OpenMetrics 1.0 (https://prometheus.io/docs/specs/om/).

Every agent answers for the whole job, by its `JobMetrics`. `chicle_first_member` tells the one agent that writes
TensorBoard from the others.
"""

import math
from collections.abc import Iterator, Sequence

from chicle_elastic.monitoring.job_metrics import JobMetrics, Metrics

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
MAX_REASON = 300


def text_of(metrics: JobMetrics) -> str:
    """All metrics, as a scraper gets them; called by any thread."""
    return "".join(_families(metrics.latest, metrics.node, metrics.run_id)) + "# EOF\n"


def _families(now: Metrics, node: str, run_id: str) -> Iterator[str]:
    is_first = bool(now.members) and now.members[0] == node
    yield _family("chicle_agent", "info", "Which agent this is.", [("_info", {"node": node, "run": run_id}, 1)])
    yield _gauge("chicle_first_member", "Whether this node is the first member of the round.", int(is_first))
    yield _gauge("chicle_members", "Nodes in the round.", len(now.members))
    yield _gauge("chicle_tasks", "Tasks that took part in the last iteration.", len(now.seconds))
    yield _gauge("chicle_iteration", "The last iteration that has ended.", now.iteration)
    yield _gauge("chicle_epochs", "Passes over the data.", now.epochs)
    yield _counter("chicle_samples", "Samples processed.", now.samples)
    duration: list[tuple[str, dict[str, str], float]] = [("_count", {}, now.iterations), ("_sum", {}, now.iterations_s)]
    yield _family("chicle_iteration_seconds", "summary", "How long iterations took.", duration, unit="seconds")
    yield _gauge("chicle_last_iteration_seconds", "How long the last one took.", now.last_iteration_s, unit="seconds")
    if now.ended_unix_s is not None:
        what = "When the last iteration ended, since 1970."
        yield _gauge("chicle_last_iteration_end_seconds", what, now.ended_unix_s, unit="seconds")
    figures = [("", {"figure": name}, value) for name, value in now.figures.items()]
    yield _family("chicle_model", "gauge", "Figures of the model, such as duality_gap.", figures)
    chunks = [("", {"node": name}, count) for name, count in now.chunks.items()]
    yield _family("chicle_node_chunks", "gauge", "Chunks of each node in the last iteration.", chunks)
    seconds = [("", {"node": name}, value) for name, value in now.seconds.items()]
    what = "How long the task of each node computed in the last iteration."
    yield _family("chicle_node_compute_seconds", "gauge", what, seconds, unit="seconds")
    changes = [("_total", {"change": change}, count) for change, count in now.changes.items()]
    yield _family("chicle_membership_changes", "counter", "Joins, notices and losses of nodes.", changes)
    yield _counter("chicle_stalls", "Changes of the membership that training waited for.", now.transitions)
    yield _counter("chicle_stall_seconds", "How long training waited for them.", now.stalls_s, unit="seconds")
    yield _gauge("chicle_last_stall_seconds", "How long it waited for the last one.", now.last_stall_s, unit="seconds")
    what = "Bytes of chunks that changed nodes."
    yield _counter("chicle_moved_bytes", what, now.moved_bytes, unit="bytes")
    what = "Of chicle_moved_bytes, what was copied ahead, behind iterations."
    yield _counter("chicle_hidden_bytes", what, now.hidden_bytes, unit="bytes")
    what = "Chunks that were lost with a node and loaded again; their samples are replayed."
    yield _counter("chicle_replayed_chunks", what, now.reloaded_chunks)
    yield _counter("chicle_checkpoints", "Checkpoints written.", now.checkpoints)
    yield _gauge("chicle_checkpoint_iteration", "Iteration of the newest checkpoint.", now.checkpoint_iteration)
    yield _gauge("chicle_paused", "Whether the job is paused.", int(bool(now.pause_reason)))
    reasons = [("_info", {"reason": now.pause_reason[:MAX_REASON]}, 1)] if now.pause_reason else []
    yield _family("chicle_pause", "info", "Why it is paused.", reasons)
    yield _gauge("chicle_finished", "Whether the job is over.", int(bool(now.end_reason)))


def _gauge(name: str, what: str, value: float | None, *, unit: str = "") -> str:
    return _family(name, "gauge", what, [("", {}, math.nan if value is None else value)], unit=unit)


def _counter(name: str, what: str, value: float, *, unit: str = "") -> str:
    return _family(name, "counter", what, [("_total", {}, value)], unit=unit)


def _family(
    name: str, kind: str, what: str, samples: Sequence[tuple[str, dict[str, str], float]], *, unit: str = ""
) -> str:
    """A family: its type, unit and help, then its samples: suffix of the name, labels, value."""
    lines = [f"# TYPE {name} {kind}"]
    lines += [f"# UNIT {name} {unit}"] if unit else []
    lines += [f"# HELP {name} {_escaped(what)}"]
    for suffix, labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{name}{suffix}{{{inside}}} {_number(value)}" if inside else f"{name}{suffix} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
