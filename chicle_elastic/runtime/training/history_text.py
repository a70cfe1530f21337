"""The records of a job as text, each serialised once, so that a joining task need not wait for all of them.

A joining task needs the model and the latest records at once. It needs the earlier ones, thousands perhaps, only for
the history of its own outcome. So each task keeps the text of every record beside the records, sends a joining task
that text as it is, and the joining task parses it when its history is read.
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence

from chicle_elastic.errors import ProtocolError
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.records import IterationRecord


class HistoryText:
    """Text per iteration: its number, a space, and its record as JSON."""

    def __init__(self, lines: "dict[int, bytes] | None" = None) -> None:
        self._lines = dict(lines or {})

    def copy(self) -> "HistoryText":
        """A copy for another thread."""
        return HistoryText(self._lines)

    def keep(self, records: Sequence[IterationRecord]) -> None:
        """Add the text of the last records that are not included yet."""
        news = []
        for record in reversed(records):
            if record.iteration in self._lines:
                break
            news.append(record)
        for record in reversed(news):
            fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
            self._lines[record.iteration] = f"{record.iteration} {json.dumps(fields)}".encode()

    def forget(self, first: int) -> None:
        """Drop the iterations from this one on, which the text of another task replaces."""
        self._lines = {iteration: line for iteration, line in self._lines.items() if iteration < first}

    def text(self, first: int) -> bytes:
        """Everything from this iteration on."""
        return b"\n".join(line for iteration, line in self._lines.items() if iteration >= first)

    def take(self, text: bytes) -> None:
        """Add the text of another task. Raises ProtocolError when it is malformed."""
        try:
            for line in text.split(b"\n") if text else ():
                self._lines[int(line.partition(b" ")[0])] = line
        except ValueError as error:
            raise ProtocolError(
                f"the records of another task are malformed ({error}); install the same release of chicle-elastic on "
                "all nodes"
            ) from error

    def complete(self, records: Iterable[IterationRecord]) -> History:
        """All records in order; those that are not among `records` are parsed from their text. Raises ProtocolError
        when the text of another task is malformed."""
        known = {record.iteration: record for record in records}
        try:
            for iteration, line in self._lines.items():
                if iteration not in known:
                    known[iteration] = IterationRecord(**json.loads(line.partition(b" ")[2]))
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                f"the record of iteration {iteration} came from another task and is malformed ({error}); install the "
                "same release of chicle-elastic on all nodes"
            ) from error
        return History(known[iteration] for iteration in sorted(known))
