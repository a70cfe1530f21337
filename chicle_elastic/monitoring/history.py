"""The history of a job: its records, what is known of its membership, and how it is shown."""

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from chicle_elastic.monitoring.html_table import html_table
from chicle_elastic.monitoring.records import (
    EVENTS_COLUMN,
    FIXED_COLUMNS,
    IterationRecord,
    Member,
    RecordTable,
    Transition,
)
from chicle_elastic.monitoring.swimlane import draw, draw_into
from chicle_elastic.monitoring.swimlane_text import MAX_WIDTH, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Panels = TypeVar("Panels")
TRANSITION_NAMES = tuple(field.name for field in fields(Transition))


class TransitionTable(tuple[Transition, ...]):
    """Changes of the membership, oldest first: `history_.transitions`, which a notebook shows as a table."""

    __slots__ = ()

    def to_dict(self) -> dict[str, list[Any]]:
        """A list of plain values per field; members and reasons are joined to one text each."""
        columns: dict[str, list[Any]] = {name: [getattr(one, name) for one in self] for name in TRANSITION_NAMES}
        columns["members"] = [", ".join(one.members) for one in self]
        columns["reasons"] = ["; ".join(one.reasons) for one in self]
        return columns

    def _repr_html_(self) -> str:
        """Show what changed first, then the milliseconds of its phases."""
        columns = self.to_dict()
        first = ("iteration", "reasons", "members", "stall_ms")
        rest = [name for name in TRANSITION_NAMES if name.endswith("_ms") and name not in first and any(columns[name])]
        shown = {name: columns[name] for name in (*first, *rest)}
        return html_table(shown, caption=f"{len(self)} changes of the membership", rows="changes")


class History(RecordTable):
    """The records of a job, oldest first: a sequence with access by column.

    An estimator has one as `history_`, an `Outcome` as `history`; `pandas.DataFrame(history.to_dict())` makes a table.

    >>> from sklearn.datasets import load_iris
    >>> from estimators import ChicleSVM
    >>> history = ChicleSVM(C=0.1, random_state=0).fit(*load_iris(return_X_y=True)).history_
    >>> history[-1].iteration == len(history)
    True
    >>> bool(history.column("duality_gap")[-1] <= 1e-3)
    True
    >>> history.method
    'coordinate descent (CoCoA), because of the hinge on one task'

    Attributes:
        members: The nodes of a local cluster that took part, by name; empty where there were none.
        methods: How the model was found, in words, and why so, by the first iteration that went like this; it may
            change with the number of tasks. Empty where the trainer knows one way only.
    """

    def __init__(self, records: Iterable[IterationRecord] = ()) -> None:
        super().__init__(records)
        self._transitions: dict[int, Transition] = {}
        self.members: dict[str, Member] = {}
        self.methods: dict[int, str] = {}

    @property
    def method(self) -> str:
        """The last of `methods`; "" where there is none."""
        return next(reversed(self.methods.values()), "")

    @property
    def transitions(self) -> TransitionTable:
        """How long each change of the membership took, oldest first; none in one process.

        A tuple of `Transition`, which a notebook shows as a table; `pandas.DataFrame(history.transitions.to_dict())`.

        Nodes see the same change a little differently: this is what the node says that was held up longest.
        """
        return TransitionTable(self._transitions[round] for round in sorted(self._transitions))

    def note(self, transition: Transition) -> None:
        """Write down a transition as one node saw it, or once more what became of it."""
        known = self._transitions.get(transition.round)
        if known is None:
            self._transitions[transition.round] = transition
            return
        slower = max(known, transition, key=lambda one: -1.0 if one.stall_ms is None else one.stall_ms)
        whole_ms = max((one.whole_ms for one in (known, transition) if one.whole_ms is not None), default=None)
        self._transitions[transition.round] = replace(slower, whole_ms=whole_ms)

    def append(self, record: IterationRecord) -> None:
        """Add the record of the latest iteration."""
        self._records.append(record)

    @overload
    def plot(self, *, title: str = "", ax: None = None) -> "Figure": ...
    @overload
    def plot(self, *, title: str = "", ax: Panels) -> Panels: ...
    def plot(self, *, title: str = "", ax: Any = None) -> Any:
        """Draw tasks, chunks and seconds per iteration, the gap, and what happened (`swimlane.draw`).

        Args:
            title: Shown on top; in a single axes the label of the curve.
            ax: Axes to draw into instead of a new figure. One axes gets the gap (or loss) alone, so that
                `one.history_.plot(ax=ax, title="4 tasks")` for several fits compares them; a sequence of axes gets one
                panel each.

        Returns:
            A matplotlib figure; a notebook shows it, `history.plot().savefig("fit.png")` keeps it. With `ax`, that.

        Raises:
            MissingExtraError: matplotlib is not installed.
            UsageError: There are no records, or axes for more or fewer panels than there are.
        """
        if ax is None:
            return draw(self, title=title)
        draw_into(self, ax, title=title)
        return ax

    def to_text(self, *, width: int = MAX_WIDTH) -> str:
        """Draw the same for a terminal, with block characters (`swimlane_text.render`).

        Args:
            width: Columns of the terminal, >= 40; more than 100 are not used.

        Raises:
            UsageError: There are no records, or the terminal is too narrow.
        """
        return render(self, width=width)

    def __repr__(self) -> str:
        if not self._records:
            return "History(no iterations)"
        counts = self.column("num_tasks")
        tasks = f"{counts.min()} to {counts.max()} tasks" if counts.min() != counts.max() else f"{counts[0]} tasks"
        last = self._records[-1]
        figures = "".join(f", {name}={figure:.4g}" for name, figure in last.figures.items())
        return f"History({len(self)} iterations, {tasks}, {last.epochs:.4g} epochs, {last.time_s:.4g} s{figures})"

    def _repr_html_(self) -> str:
        """A table of the first and last records, for notebooks."""
        fixed = (name for name in FIXED_COLUMNS if name != "samples")  # in `epochs`
        names = (*fixed, *self.figure_names, EVENTS_COLUMN)
        columns = {name: self.column(name).tolist() for name in names}
        columns[EVENTS_COLUMN] = ["; ".join(record.news) for record in self._records]
        return html_table(columns, caption=repr(self), rows="iterations")
