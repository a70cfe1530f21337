"""The reads of a task in one iteration, for the ledger of the job."""

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
