"""Metrics of a job for operators, in the text format of OpenMetrics 1.0 (https://prometheus.io/docs/specs/om/).

Made of the lines of an agent's event file, as TensorBoard's curves are. All agents see the same job, so each answers
for all of it, by what it has seen since it joined: one that answers is enough, also where the leader is gone and the
job is paused. `chicle_first_member` tells the one agent that writes TensorBoard from the others.

The agent's loop takes lines and replaces `Metrics`, which never changes; another thread makes the text of the latest
one. So neither ever waits for the other, and there is no lock.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from chicle_elastic.ids import NodeId

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
CHANGES = {"joined": "join", "noticed": "notice", "lost": "loss"}
MAX_REASON = 300

Line: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What an agent has seen of its job.

    Attributes:
        members: Of the round.
        iteration: The last one that has ended; 0 for none.
        iterations: That have ended.
        iterations_s: Sum of their durations, from one end to the next.
        last_iteration_s: Of the last one.
        ended_unix_s: When it ended; None for never.
        epochs: Passes over the data.
        samples: Processed.
        figures: Of the model, as they were known last.
        chunks: By node, in the last iteration.
        seconds: What each task computed in it, by node.
        changes: Joins, notices and losses.
        transitions: Changes of the membership that are over.
        stalls_s: Sum of their stalls.
        last_stall_s: Of the last one.
        moved_bytes: Of chunks that changed nodes.
        hidden_bytes: Of these, what was copied ahead.
        reloaded_chunks: That were lost with a node and loaded again.
        checkpoints: Written.
        checkpoint_iteration: Of the newest one.
        pause_reason: Why nothing goes on; "" while it does.
        end_reason: Why the job is over; "" while it is not.
    """

    members: tuple[str, ...] = ()
    iteration: int = 0
    iterations: int = 0
    iterations_s: float = 0.0
    last_iteration_s: float = math.nan
    ended_unix_s: float | None = None
    epochs: float = 0.0
    samples: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)
    chunks: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    changes: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(CHANGES.values(), 0))
    transitions: int = 0
    stalls_s: float = 0.0
    last_stall_s: float = math.nan
    moved_bytes: int = 0
    hidden_bytes: int = 0
    reloaded_chunks: int = 0
    checkpoints: int = 0
    checkpoint_iteration: int = 0
    pause_reason: str = ""
    end_reason: str = ""


class JobMetrics:
    """Collects the metrics of a job; `take` is called by one thread, `text` by any.

    Args:
        node: The node of the agent.
        run_id: Of the job.
    """

    def __init__(self, node: NodeId, run_id: str) -> None:
        self._node, self._run_id = node, run_id
        self._metrics = Metrics()

    @property
    def latest(self) -> Metrics:
        """As they are now."""
        return self._metrics

    def take(self, line: Line) -> None:
        """Handle a line of the event file."""
        known = self._metrics
        match line["kind"]:
            case "round":
                self._metrics = replace(known, members=tuple(line["members"]))
            case "iteration":
                self._metrics = _after_iteration(known, line)
            case "joined" | "noticed" | "lost" as kind:
                change = CHANGES[kind]
                self._metrics = replace(known, changes={**known.changes, change: known.changes[change] + 1})
            case "transition" if line["stall_ms"] is not None:
                stall_s = line["stall_ms"] / 1e3
                self._metrics = replace(
                    known, transitions=known.transitions + 1, stalls_s=known.stalls_s + stall_s, last_stall_s=stall_s
                )
            case "checkpoint":
                iteration = line["iteration"]
                self._metrics = replace(known, checkpoints=known.checkpoints + 1, checkpoint_iteration=iteration)
            case "paused":
                self._metrics = replace(known, pause_reason=line["reason"])
            case "resumed":
                self._metrics = replace(known, pause_reason="")
            case "finished":
                self._metrics = replace(known, pause_reason="", end_reason=line["reason"])

    def text(self) -> str:
        """All metrics, as a scraper gets them."""
        return "".join(_families(self._metrics, self._node, self._run_id)) + "# EOF\n"


def _after_iteration(known: Metrics, line: Line) -> Metrics:
    """An iteration that is known already, after a loss, counts again: it was computed again."""
    duration_s = line["duration_ms"] / 1e3
    return replace(
        known,
        iteration=line["iteration"],
        iterations=known.iterations + 1,
        iterations_s=known.iterations_s + duration_s,
        last_iteration_s=duration_s,
        ended_unix_s=line["time"],
        epochs=line["epochs"],
        samples=known.samples + sum(line["samples"].values()),
        figures={**known.figures, **line["figures"]},
        chunks=line["chunks"],
        seconds=line["seconds"],
        moved_bytes=known.moved_bytes + line["moved_bytes"],
        hidden_bytes=known.hidden_bytes + line["hidden_bytes"],
        reloaded_chunks=known.reloaded_chunks + line["reloaded_chunks"],
        pause_reason="",
    )


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


def _gauge(name: str, what: str, value: float, *, unit: str = "") -> str:
    return _family(name, "gauge", what, [("", {}, value)], unit=unit)


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
