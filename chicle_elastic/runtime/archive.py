"""The records of a job as text, each written once, so that a newcomer need not wait for all of them.

A joiner needs the model and the latest records at once. What came before it, thousands of records perhaps, it needs for
the history of its own outcome only. So each task keeps the text of every record beside the records, a joiner is sent
that text as it is, and makes records of it when somebody asks.
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence

from chicle_elastic.errors import ProtocolError
from chicle_elastic.monitoring.records import History, IterationRecord


class Archive:
    """Text per iteration: its number, a space, and its record as JSON.

    Args:
        lines: Of an archive that is copied.
    """

    def __init__(self, lines: "dict[int, bytes] | None" = None) -> None:
        self._lines = dict(lines or {})

    def copy(self) -> "Archive":
        """One of its own, for another thread."""
        return Archive(self._lines)

    def keep(self, records: Sequence[IterationRecord]) -> None:
        """Write down the records at the end that are not here yet."""
        news = []
        for record in reversed(records):
            if record.iteration in self._lines:
                break
            news.append(record)
        for record in reversed(news):
            fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
            self._lines[record.iteration] = f"{record.iteration} {json.dumps(fields)}".encode()

    def forget(self, first: int) -> None:
        """Drop the iterations from this one on: others know better."""
        self._lines = {iteration: line for iteration, line in self._lines.items() if iteration < first}

    def text(self, first: int) -> bytes:
        """Everything from this iteration on."""
        return b"\n".join(line for iteration, line in self._lines.items() if iteration >= first)

    def take(self, text: bytes) -> None:
        """Add the text of another archive.

        Raises:
            ProtocolError: It is none.
        """
        try:
            for line in text.split(b"\n") if text else ():
                self._lines[int(line.partition(b" ")[0])] = line
        except ValueError as error:
            raise ProtocolError(f"the records of another task cannot be used: {error}") from error

    def complete(self, records: Iterable[IterationRecord]) -> History:
        """All records in order; those that are not among `records` are made of their text.

        Raises:
            ProtocolError: The text came from another task, and is not that of records.
        """
        known = {record.iteration: record for record in records}
        try:
            for iteration, line in self._lines.items():
                if iteration not in known:
                    known[iteration] = IterationRecord(**json.loads(line.partition(b" ")[2]))
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                f"the record of iteration {iteration} came from another task and cannot be used ({error}); all need "
                "the same release of chicle-elastic"
            ) from error
        return History(known[iteration] for iteration in sorted(known))
