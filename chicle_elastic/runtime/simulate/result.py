"""What came out of a simulation: as a row of a table, and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from chicle_elastic.monitoring.history import History
from chicle_elastic.scheduling.text import bytes_text

COLUMNS = ("policies", "seconds", "node s", "price", "iterations", "epochs", "nodes", "chunks moved", "bytes", "stalls")
ONLY_TIME = (
    "Times, prices and moves are simulated, and no model is trained: what policies do to convergence, only --work real "
    "says."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """A job that was simulated. Seconds are those of its virtual clock."""

    scenario: str  # name of the scenario
    policies: tuple[str, ...]  # names of the policies, in their order
    is_real: bool  # whether a model was trained
    has_finished: bool  # whether the job ended by itself
    reason: str  # why it ended, or what it waits for in vain
    time_s: float  # seconds of the whole job, with loading and waiting
    node_s: float  # seconds of all nodes, from their starts to their ends
    cost: float  # price of these seconds
    aborted: int  # iterations that a loss aborted
    chunks_moved: int  # chunks that changed their owner
    bytes_moved: int | None  # bytes of copies and pre-copies that arrived; None where that is not known
    chunks_lost: int  # how often the state of a chunk began anew because its node was lost
    stall_s: float  # seconds between two merged iterations in which no task computed, and those of aborted iterations
    longest_stall_s: float  # the longest of these
    history: History  # a record per merged iteration

    @property
    def label(self) -> str:
        """The policies, for a person."""
        return "+".join(self.policies) or "none"

    def to_dict(self) -> dict[str, Any]:
        """JSON values: the attributes, and the columns of the history as lists, None for what is not known."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "history"}
        columns = {name: [_known(value) for value in values] for name, values in self.history.to_dict().items()}
        return {**named, "policies": list(self.policies), "history": columns}

    def row(self, label: str) -> tuple[str, ...]:
        """Cells for `COLUMNS`."""
        counts = sorted({record.num_tasks for record in self.history})
        spans = f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else "".join(map(str, counts))
        return (
            label,
            f"{self.time_s:.4g}",
            f"{self.node_s:.4g}",
            f"{self.cost:.4g}",
            str(len(self.history)),
            f"{self.history[-1].epochs:.4g}" if self.history else "0",
            spans,
            str(self.chunks_moved),
            "?" if self.bytes_moved is None else bytes_text(self.bytes_moved),
            f"{self.stall_s:.3g} s",
        )


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = COLUMNS) -> list[str]:
    """Lines of a table in Markdown, with columns in line."""
    widths = [max(len(row[place]) for row in [header, *rows]) for place in range(len(header))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in [header, *rows]]
    lines.insert(1, ["-" * width for width in widths])
    return [f"| {' | '.join(line)} |" for line in lines]


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value
