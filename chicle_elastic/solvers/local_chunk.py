"""A chunk as a solver sees it: readable only during an iteration, and every read is written down.

The lines are written where rows are read (never derived from the placement), so that comparing them with the
placement means something.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from chicle_elastic.chunks.views import NO_NOTES, Array, Chunk, Rows
from chicle_elastic.errors import ContractError
from chicle_elastic.ids import ChunkId

MOST_CACHED_VALUES = 1 << 21
"""Feature values that stay in the caches of a processor, where rows may be visited in any order: 16 MiB of float64."""


class Gate:
    """Open during an iteration, closed at the boundary; shared by all chunks of one task.

    Args:
        task: Name of the uni-task, for messages.
    """

    def __init__(self, task: str) -> None:
        self.task = task
        self.iteration = 0
        self.is_open = False
        self.reads: Counter[ChunkId] = Counter()

    def open(self, iteration: int) -> None:
        """Start iteration number `iteration`: chunks may be read and their state written."""
        self.iteration = iteration
        self.is_open = True
        self.reads = Counter()

    def close(self) -> Counter[ChunkId]:
        """End the iteration.

        Returns:
            Rows processed per chunk since `open`.
        """
        self.is_open = False
        return self.reads


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """Views of consecutive rows of one chunk, valid until the iteration ends.

    Attributes:
        rows: ndarray of shape (n, num_features) or `CsrRows`.
        targets: ndarray of shape (n,).
        weights: ndarray of shape (n,), or None.
        row_ids: ndarray of shape (n,), int64.
        state: ndarray of shape (n, outputs, width); writable.
        notes: ndarray of shape (n * outputs * note_bytes,), uint8; writable. Empty where chunks do not move.
    """

    rows: Rows
    targets: Array
    weights: Array | None
    row_ids: Array
    state: Array
    notes: Array = field(default_factory=lambda: NO_NOTES)


class LocalChunk:
    """Access of one solver to one chunk that its node owns."""

    def __init__(self, chunk: Chunk, gate: Gate) -> None:
        self._chunk = chunk
        self._gate = gate
        self.id = chunk.id
        self.num_rows = chunk.num_rows
        self.num_features = chunk.num_features
        self.is_sparse = chunk.is_sparse
        self.has_weights = chunk.weights is not None

    def read(self) -> RowBlock:
        """All rows of the chunk, and a line in the ledger that they were processed.

        Raises:
            ContractError: Outside an iteration.
        """
        block = self.peek()
        self._gate.reads[self.id] += self.num_rows
        return block

    def peek(self) -> RowBlock:
        """All rows without a line in the ledger: for norms and tables, and for kernels that `count` by themselves.

        Raises:
            ContractError: Outside an iteration.
        """
        self._require_open("touched")
        chunk = self._chunk
        return RowBlock(
            rows=chunk.rows,
            targets=chunk.targets,
            weights=chunk.weights,
            row_ids=chunk.row_ids,
            state=chunk.state,
            notes=chunk.notes,
        )

    def count(self, num_rows: int) -> None:
        """Write down that `num_rows` rows of this chunk were processed."""
        self._require_open("counted rows of")
        self._gate.reads[self.id] += num_rows

    def _require_open(self, verb: str) -> None:
        if not self._gate.is_open:
            raise ContractError(
                f"the solver of task {self._gate.task!r} {verb} chunk {self.id} outside its iteration (the last one "
                f"was {self._gate.iteration}); read chunks in solve(), recover() and evaluate() only, "
                "not in attach() or between iterations"
            )


def count_all(chunks: Mapping[ChunkId, LocalChunk]) -> int:
    """Write down that every row of these chunks was processed; returns how many there are."""
    num_rows = 0
    for chunk in chunks.values():
        chunk.count(chunk.num_rows)
        num_rows += chunk.num_rows
    return num_rows


def check_full_pass(chunks: dict[ChunkId, LocalChunk], reads: Counter[ChunkId], *, task: str, iteration: int) -> None:
    """Check that a complete pass read every local row exactly once.

    Raises:
        ContractError: It names the task, the chunk, and how many rows were read of how many.
    """
    for chunk_id in reads.keys() - chunks.keys():
        raise ContractError(
            f"the solver of task {task!r} counted {reads[chunk_id]} rows of chunk {chunk_id} in iteration "
            f"{iteration}, but that chunk is not local"
        )
    for chunk_id, chunk in chunks.items():
        num_read = reads[chunk_id]
        if num_read != chunk.num_rows:
            what = "skipped" if num_read == 0 else "read only a part of" if num_read < chunk.num_rows else "read twice"
            raise ContractError(
                f"the solver of task {task!r} {what} chunk {chunk_id} in iteration {iteration}: {num_read} rows "
                f"processed of {chunk.num_rows}; a full pass processes each local row once "
                "(return Update(is_partial=True) when the budget ends it early)"
            )
