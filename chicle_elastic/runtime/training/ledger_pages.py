"""The task's own record of state versions, from which it writes the pages of the ledger.

It is independent of the agents' ledger: the task reads a version from the chunk itself when it attaches the chunk, and
raises it when it has merged. So comparing pages with the placement is a real check.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from chicle_elastic.ids import ChunkId
from chicle_elastic.values import StateVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPage:
    """Rows that a task read in one iteration, counted where it read them."""

    before: StateVersion  # version of the state that the chunks had before; chunks of other versions are on other pages
    after: StateVersion | None  # version that they have now; None when the iteration was not merged
    chunks: tuple[ChunkId, ...]
    rows: tuple[int, ...]


class LedgerPages:
    """Versions of the chunks that are local."""

    def __init__(self) -> None:
        self._versions: dict[ChunkId, StateVersion] = {}
        self._unmerged: tuple[StateVersion, tuple[LedgerPage, ...]] | None = None

    def attach(self, chunk: ChunkId, version: StateVersion) -> None:
        """A chunk was attached, with this version of its state."""
        self._versions[chunk] = version

    def detach(self, chunk: ChunkId) -> None:
        """A chunk was removed."""
        del self._versions[chunk]

    def stamp(self, version: StateVersion) -> None:
        """The state of all local chunks has this version now."""
        self._versions = dict.fromkeys(self._versions, version)

    def write(self, reads: Mapping[ChunkId, int], after: StateVersion | None) -> tuple[LedgerPage, ...]:
        """Pages of one iteration, before its `stamp`."""
        self._unmerged = None
        pages: dict[StateVersion, tuple[list[ChunkId], list[int]]] = {}
        for chunk, rows in reads.items():
            chunks, counts = pages.setdefault(self._versions[chunk], ([], []))
            chunks.append(chunk)
            counts.append(rows)
        return tuple(
            LedgerPage(before=before, after=after, chunks=tuple(chunks), rows=tuple(counts))
            for before, (chunks, counts) in pages.items()
        )

    def write_unmerged(self, reads: Mapping[ChunkId, int], attempt: StateVersion) -> tuple[LedgerPage, ...]:
        """Pages of an iteration that this task could not merge; other tasks may have received the complete sum."""
        pages = self.write(reads, None)
        self._unmerged = attempt, pages
        return pages

    def merged_by_others(self, merged: StateVersion) -> tuple[LedgerPage, ...]:
        """Pages of the last attempt again, as merged, if the model that this task continues with includes it.

        Args:
            merged: Round and iteration of the last merge in that model. The same iteration of another round is one that
                the others repeated without this task.
        """
        unmerged, self._unmerged = self._unmerged, None
        if unmerged is None or unmerged[0] != merged:
            return ()
        attempt, pages = unmerged
        return tuple(dataclasses.replace(page, after=attempt) for page in pages)
