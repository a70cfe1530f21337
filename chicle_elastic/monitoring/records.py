"""What is kept of each iteration: the records that `history_`, TensorBoard and the pictures are made of.

Records are for people and plots. What the scheduler learns are events (`chicle_elastic.scheduling.events`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from chicle_elastic.errors import UsageError
from chicle_elastic.scheduling.text import MOST_TALLIED, is_boundary_text

__all__ = ["IterationRecord", "Member", "RecordTable", "Table", "Transition"]

Column: TypeAlias = npt.NDArray[Any]
Row = TypeVar("Row")

COUNT_COLUMNS = ("iteration", "num_tasks", "samples")
FIXED_COLUMNS = ("iteration", "epochs", "time_s", "num_tasks", "samples")
CHUNKS_PREFIX = "num_chunks."
SECONDS_PREFIX = "seconds."
EVENTS_COLUMN = "events"
PARAMETERS_PREFIX = "parameters."
"""Of figures that are not the trainer's: what policies have set (`SetParameter`), where it held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRecord:
    """One iteration and the boundary before it.

    Attributes:
        iteration: Its number, from 1.
        epochs: Passes over the data so far, this iteration included.
        time_s: Seconds since the start of the job, at the end of the iteration.
        num_tasks: Tasks that took part.
        num_chunks: Chunks that each of these tasks held, by name of the task.
        seconds: Seconds that each of these tasks computed.
        samples: Samples processed in this iteration by all tasks.
        figures: What the trainer says of the model, e.g. {"objective": 0.31, "duality_gap": 2e-4}. An iteration
            without a certificate simply has no gap. What policies have set is here, too, as "parameters.NAME".
        events: What was decided or happened at the boundary before it, each with its reason, in plain words.
    """

    iteration: int
    epochs: float
    time_s: float
    num_tasks: int
    samples: int
    num_chunks: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    events: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Plain copies: a record must not change when its maker goes on, and must pickle.
        num_chunks = {str(task): int(count) for task, count in self.num_chunks.items()}
        figures = {str(name): float(figure) for name, figure in self.figures.items()}
        seconds = {str(task): float(duration_s) for task, duration_s in self.seconds.items()}
        taken = [
            name
            for name in figures
            if name in FIXED_COLUMNS or name == EVENTS_COLUMN or name.startswith((CHUNKS_PREFIX, SECONDS_PREFIX))
        ]
        if taken:
            raise UsageError(
                f"figures named {taken} would hide columns of the history; rename them in Trainer.figures (taken are "
                f"{FIXED_COLUMNS}, {EVENTS_COLUMN!r} and names that begin with {CHUNKS_PREFIX!r} or {SECONDS_PREFIX!r})"
            )
        object.__setattr__(self, "num_chunks", num_chunks)
        object.__setattr__(self, "seconds", seconds)
        object.__setattr__(self, "figures", figures)
        object.__setattr__(self, "events", tuple(self.events))

    @property
    def news(self) -> tuple[str, ...]:
        """The events without the durations of boundaries, which are measurements; for pictures and bars."""
        return tuple(event for event in self.events if not is_boundary_text(event))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A node that took part in a job."""

    node: str  # its name, as in `IterationRecord.num_chunks`
    pid: int  # process of its task; 0 where it never had one
    agent_pid: int  # process of its agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change of the membership, phase by phase, in milliseconds."""

    iteration: int  # first iteration of the new round
    round: int  # the new round
    members: tuple[str, ...]  # of the round, by rank
    reasons: tuple[str, ...]  # why, in words: who joins, leaves or is lost
    detect_ms: float  # from the last message of a lost node to the detection of its loss; 0 for other reasons
    ahead_ms: float  # while rows were pre-copied for nodes that join or leave; iterations went on
    pause_ms: float  # until the boundary
    rendezvous_ms: float  # until all members of the round had met
    move_ms: float  # until no chunk was in transfer any more
    group_ms: float  # Set-up of the process group, from the same moment as the moves
    first_ms: float  # the first iteration of the round, its wait for the group included
    # from the last iteration that ended before the change to the first one that ended after it; None for a node that
    # was no member before
    stall_ms: float | None
    # from the detection of a loss to the end of the first iteration with all samples again; None until that iteration,
    # and where no node was lost
    whole_ms: float | None = None

    def words(self) -> str:
        """One line: the reasons, the members of the new round (of many the number), and how long training stalled."""
        reasons = "; ".join(self.reasons) or "the job begins"
        members = ", ".join(self.members) if len(self.members) <= MOST_TALLIED else f"{len(self.members)} nodes"
        if self.whole_ms is not None:
            return f"{reasons}: all samples are back after {self.whole_ms:.0f} ms"
        if self.iteration <= 1 and self.stall_ms is None:  # nodes that joined before the first iteration count as first
            return f"the job began with {members}"
        stall = "" if self.stall_ms is None else f", stalled for {self.stall_ms:.0f} ms"
        return f"{reasons}: round {self.round} of {members}{stall}"

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Transition":
        """From JSON, which has no tuples."""
        return cls(**{**fields, "members": tuple(fields["members"]), "reasons": tuple(fields["reasons"])})


def record_of(line: Mapping[str, Any], *, began_s: float, events: Iterable[str] = ()) -> IterationRecord:
    """Return the record in a line `iteration` of an event file; `began_s` is when the job began, as lines have times.
    JSON has null for a figure that is not finite: it is left out."""
    return IterationRecord(
        iteration=line["iteration"],
        epochs=line["epochs"],
        time_s=max(0.0, line["time"] - began_s),
        num_tasks=len(line["seconds"]),
        samples=sum(line["samples"].values()),
        num_chunks=line["chunks"],
        seconds=line["seconds"],
        figures={name: figure for name, figure in line["figures"].items() if figure is not None},
        events=tuple(events),
    )


def transition_of(line: Mapping[str, Any]) -> Transition:
    """Return the transition in a line `transition` or `whole` of an event file."""
    return Transition.of({each.name: line[each.name] for each in fields(Transition)})


class Table(Sequence[Row]):
    """Rows that a notebook shows: a sequence whose slices are tables."""

    def __init__(self, records: Iterable[Row] = ()) -> None:
        self._records = list(records)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Row | Self:
        return type(self)(self._records[index]) if isinstance(index, slice) else self._records[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._records)

    def __eq__(self, other: object) -> bool:
        return self._records == other._records if isinstance(other, Table) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it grows, and rows hold mappings


class RecordTable(Table[IterationRecord]):
    """Records, oldest first: a sequence with access by column."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of all tasks that ever held chunks, in the order in which they appeared."""
        return tuple(dict.fromkeys(task for record in self._records for task in record.num_chunks))

    @property
    def figure_names(self) -> tuple[str, ...]:
        """Names of all figures, in the order in which they appeared."""
        return tuple(dict.fromkeys(name for record in self._records for name in record.figures))

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names that `column` takes, which are fixed ones, figures, `num_chunks.TASK`, `seconds.TASK`, and `events`."""
        of_tasks = tuple(prefix + task for prefix in (CHUNKS_PREFIX, SECONDS_PREFIX) for task in self.tasks)
        return (*FIXED_COLUMNS, *self.figure_names, *of_tasks, EVENTS_COLUMN)

    def column(self, name: str) -> Column:
        """One value of every record. Raises UsageError when no record has such a column.

        Returns:
            ndarray of shape (len(self),). Counts are int64 (a task that did not take part holds 0 chunks), figures
            and seconds float64 (NaN where a record has none), `events` are strings joined by "; ".
        """
        if name in COUNT_COLUMNS:
            return np.array([getattr(record, name) for record in self._records], dtype=np.int64)
        if name in FIXED_COLUMNS:
            return np.array([getattr(record, name) for record in self._records], dtype=np.float64)
        if name == EVENTS_COLUMN:
            return np.array(["; ".join(record.events) for record in self._records], dtype=object)
        if name.removeprefix(CHUNKS_PREFIX) in self.tasks and name.startswith(CHUNKS_PREFIX):
            task = name.removeprefix(CHUNKS_PREFIX)
            return np.array([record.num_chunks.get(task, 0) for record in self._records], dtype=np.int64)
        if name.removeprefix(SECONDS_PREFIX) in self.tasks and name.startswith(SECONDS_PREFIX):
            task = name.removeprefix(SECONDS_PREFIX)
            return np.array([record.seconds.get(task, np.nan) for record in self._records], dtype=np.float64)
        if name in self.figure_names:
            return np.array([record.figures.get(name, np.nan) for record in self._records], dtype=np.float64)
        raise UsageError(f"the history has no column {name!r}; it has {', '.join(self.column_names)}")

    def to_dict(self) -> dict[str, list[Any]]:
        """Every column as a list of Python values, for `pandas.DataFrame(history.to_dict())` or JSON."""
        return {name: self.column(name).tolist() for name in self.column_names}
