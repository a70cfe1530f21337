"""What an agent has seen of its job: for `openmetrics`, which scrapers read, and for `chicle status`.

Made of the lines of the agent's event file, as TensorBoard's curves are. All agents see the same job, so each answers
for all of it, by what it has seen since it joined: one that answers is enough, also where the leader is gone and the
job is paused.

The agent's loop takes lines and replaces `Metrics`, which never changes; another thread reads the latest one. So
neither ever waits for the other, and there is no lock.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import codec

CHANGES = {"joined": "join", "noticed": "notice", "lost": "loss"}

Line: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What an agent has seen of its job."""

    round: int = 0  # the last one that was formed; 0 for none
    members: tuple[str, ...] = ()  # of the round
    iteration: int = 0  # the last one that has ended; 0 for none
    iterations: int = 0  # that have ended
    iterations_s: float = 0.0  # sum of their durations, from one end to the next
    last_iteration_s: float | None = None  # of the last one; None for none
    ended_unix_s: float | None = None  # when it ended; None for never
    epochs: float = 0.0  # passes over the data
    samples: int = 0  # Processed
    figures: Mapping[str, float] = field(default_factory=dict)  # of the model, as they were known last
    chunks: Mapping[str, int] = field(default_factory=dict)  # by node, in the last iteration
    seconds: Mapping[str, float] = field(default_factory=dict)  # what each task computed in it, by node
    # joins, notices and losses
    changes: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(CHANGES.values(), 0))
    transitions: int = 0  # changes of the membership that are over
    stalls_s: float = 0.0  # sum of their stalls
    last_stall_s: float | None = None  # of the last one; None for none
    moved_bytes: int = 0  # of chunks that changed nodes
    hidden_bytes: int = 0  # of these, what was copied ahead
    reloaded_chunks: int = 0  # that were lost with a node and loaded again
    checkpoints: int = 0  # Written
    checkpoint_iteration: int = 0  # of the newest one
    pause_reason: str = ""  # why nothing goes on; "" while it does
    end_reason: str = ""  # why the job is over; "" while it is not
    task_deaths: int = 0  # of the task of this agent
    expulsions: int = 0  # how often this agent was declared dead while it was alive
    is_store_reachable: bool = True  # whether the rendezvous store answers this agent


class JobMetrics:
    """Collects the metrics of a job; `take` is called by one thread, everything else by any."""

    def __init__(self, node: NodeId, run_id: str) -> None:
        self.node, self.run_id = node, run_id
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
                self._metrics = replace(known, round=line["round"], members=tuple(line["members"]))
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
            case "task_died":
                self._metrics = replace(known, task_deaths=known.task_deaths + 1)
            case "expelled":
                self._metrics = replace(known, expulsions=known.expulsions + 1)
            case "store":
                self._metrics = replace(known, is_store_reachable=line["is_reachable"])

    def status(self) -> dict[str, Any]:
        """The latest metrics as JSON values, for `metrics_of`; JSON has no figures that are not finite."""
        now = self._metrics
        figures = {name: value for name, value in now.figures.items() if math.isfinite(value)}
        return {"node": self.node, "run": self.run_id, "metrics": codec.to_values(replace(now, figures=figures))}


def metrics_of(message: Mapping[str, Any]) -> Metrics:
    """The metrics in what `JobMetrics.status` returned. Raises ProtocolError when they are malformed, or of another
    version of Chicle."""
    found: Metrics = codec.from_values(message.get("metrics"), Metrics)
    return found


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
