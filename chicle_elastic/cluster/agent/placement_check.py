"""Checks the rows that a task has read against the chunks that it owns by the scheduler's ledger.

The two are independent: a page (`runtime.training.ledger_pages`) is written where the task reads rows, with the version
that it found in the chunk; the scheduler's ledger is folded from events. So a mistake in either shows at the next
iteration: a chunk that was skipped, read twice or is owned by another node, and state that is older than it should be.

Only in an interrupted iteration may a task read fewer rows of a chunk than it has. State that was loaded from the
source and not copied from another node has no version yet (iteration 0). Where the tasks rebuilt the model first, all
state is of the iteration before from then on: also that of a chunk whose node came back with it, and missed some.
"""

from collections.abc import Iterable, Sequence

from chicle_elastic.errors import ContractError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.training.ledger_pages import LedgerPage
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.values import StateVersion


class PlacementCheck:
    """Checks the pages of one node's task."""

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._fresh: set[ChunkId] = set()

    def loads(self, chunks: Iterable[ChunkId]) -> None:
        """This node loads the chunks from their source, with initial state."""
        self._fresh.update(chunks)

    def copies(self, chunks: Iterable[ChunkId]) -> None:
        """This node copies chunks from another node, with their state."""
        self._fresh.difference_update(chunks)

    def check(
        self, pages: Sequence[LedgerPage], *, version: StateVersion, ledger: Ledger, is_interrupted: bool
    ) -> None:
        """Compare the pages of a merged iteration with the ledger as it was during that iteration. Raises ContractError
        when they differ; the message names task, chunk and iteration.

        Args:
            ledger: The scheduler's ledger, before this iteration is counted in it.
            is_interrupted: An agent told the task to end this iteration early, so it may have left rows unread.
        """
        iteration = version.iteration
        owned = ledger.node_chunks[self._node].owned if self._node in ledger.node_chunks else {}
        read: set[ChunkId] = set()
        for page in pages:
            for chunk, rows in zip(page.chunks, page.rows, strict=True):
                if chunk not in owned:
                    owner = ledger.owner(chunk) if ledger.knows(chunk) else None
                    raise self._error(
                        iteration,
                        f"read {rows} rows of chunk {chunk}",
                        "no node owns it" if owner is None else f"{owner} owns it",
                    )
                num_rows = ledger.info(chunk).num_rows
                is_part = rows < num_rows and not is_interrupted
                if chunk in read or rows > num_rows or is_part:
                    again = " again" if chunk in read else ""
                    raise self._error(iteration, f"read {rows} rows of chunk {chunk}{again}", f"it has {num_rows} rows")
                self._check_version(chunk, page, version, ledger)
                read.add(chunk)
        if len(read) < len(owned) and not is_interrupted:
            chunk = min(owned.keys() - read)
            rows = ledger.info(chunk).num_rows
            raise self._error(iteration, f"skipped chunk {chunk}", f"it owns it, with all {rows} rows")
        self._fresh -= read

    def _check_version(self, chunk: ChunkId, page: LedgerPage, version: StateVersion, ledger: Ledger) -> None:
        found, expected = page.before.iteration, ledger.version(chunk).iteration
        is_rebuilt = page.before == StateVersion(version.round, version.iteration - 1)
        if found != expected and not is_rebuilt and (found or chunk not in self._fresh):
            raise self._error(
                version.iteration,
                f"found state of iteration {found} in chunk {chunk}",
                f"it is of iteration {expected}",
            )

    def _error(self, iteration: int, done: str, expected: str) -> ContractError:
        return ContractError(
            f"the task of {self._node} {done} in iteration {iteration}, but by the placement {expected}; either its "
            "solver does not process each local row exactly once (Update(is_partial=True) is for iterations that the "
            "budget ended), or the chunk was moved wrongly: the event file of each node has its ledger lines"
        )
