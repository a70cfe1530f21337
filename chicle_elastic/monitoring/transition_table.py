"""Changes of the membership as a table: `history_.transitions`."""

from dataclasses import fields
from typing import Any

from chicle_elastic.monitoring.html_table import html_table
from chicle_elastic.monitoring.records import Transition

NAMES = tuple(field.name for field in fields(Transition))


class TransitionTable(tuple[Transition, ...]):
    """A tuple of transitions, oldest first, that a notebook shows as a table. `pandas.DataFrame(transitions.to_dict())`
    has a row for each."""

    __slots__ = ()

    def to_dict(self) -> dict[str, list[Any]]:
        """A list of plain values per field; members and reasons are joined to one text each."""
        columns: dict[str, list[Any]] = {name: [getattr(one, name) for one in self] for name in NAMES}
        columns["members"] = [", ".join(one.members) for one in self]
        columns["reasons"] = ["; ".join(one.reasons) for one in self]
        return columns

    def _repr_html_(self) -> str:
        """For notebooks: what changed first, then the milliseconds of its phases."""
        columns = self.to_dict()
        first = ("iteration", "reasons", "members", "stall_ms")
        rest = [name for name in NAMES if name.endswith("_ms") and name not in first and any(columns[name])]
        shown = {name: columns[name] for name in (*first, *rest)}
        return html_table(shown, caption=f"{len(self)} changes of the membership", rows="changes")
