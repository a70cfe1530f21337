"""The local chunks in order, what is remembered per sample, and tables of them for kernels.

Made inside an iteration, because chunks are read for it. Memory per sample: 8 bytes of dual and 1 of whether it is
left out per output, 8 for the norm, and 8 for the bound where samples or classes have weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chicle_elastic.chunks.blocks import zeros_per_chunk
from chicle_elastic.chunks.rows import as_floats
from chicle_elastic.chunks.views import Array, CsrRows, Rows, lie_in_chunk_file
from chicle_elastic.errors import DataError
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.linear.objectives import Loss, dual_values, upper_bounds
from chicle_elastic.solvers.local_chunk import MOST_CACHED_VALUES, LocalChunk, RowBlock

if TYPE_CHECKING:
    from chicle_elastic.solvers.kernels.descent import SampleTable
    from chicle_elastic.solvers.kernels.tables import RowTable


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where the C_i come from, and what target codes mean."""

    C: float  # factor of the sum of losses
    class_weights: tuple[float, ...] | None = None  # factor of C per target code; None for 1
    # class of each target code; None where codes are classes. See `LinearTrainer`
    code_classes: tuple[int, ...] | None = None

    def of(self, block: RowBlock) -> Array | None:
        """C_i of a block, shape (n,), float64; None where it is C for all."""
        if block.weights is None and self.class_weights is None:
            return None
        return upper_bounds(self.C, block.targets, block.weights, self.class_weights)

    def with_classes(self, block: RowBlock) -> RowBlock:
        """The block with classes as targets."""
        if self.code_classes is None:
            return block
        return replace(block, targets=np.asarray(self.code_classes, dtype=np.int32)[block.targets])


@dataclass(slots=True, kw_only=True)
class Notes:
    """What the solver remembers of a chunk while it is local."""

    norms: Array  # |x|^2 with the intercept column, shape (num_rows,), float64; 0 until a row is first visited
    upper: Array | None  # C_i, shape (num_rows,), float64, or None
    left_out: Array  # whether passes leave out a dual, shape (num_rows, outputs), uint8


class LocalTables:
    """Some local chunks (at least one). Tables for kernels are made when they are asked for: they load the compiler."""

    def __init__(self, ids: list[ChunkId], keep_alive: list[RowBlock], notes: list[Notes], C: float) -> None:
        self.ids, self.keep_alive, self.notes, self._C = ids, keep_alive, notes, C
        self.lengths = np.array([len(block.targets) for block in keep_alive], dtype=np.int64)
        self.num_outputs, self.num_rows = keep_alive[0].state.shape[1], int(self.lengths.sum())
        self.num_values = sum(_num_values(block.rows) for block in keep_alive)  # stored ones of features

    @cached_property
    def are_in_files(self) -> bool:
        """Say whether rows stay in their files, because memory has no room for them."""
        return any(lie_in_chunk_file(block.rows) for block in self.keep_alive)

    @cached_property
    def rows(self) -> "RowTable":
        """Where the rows are."""
        from chicle_elastic.solvers.kernels import tables

        return tables.row_table(self.keep_alive)

    @cached_property
    def samples(self) -> "SampleTable":
        """Where everything else is."""
        from chicle_elastic.solvers.kernels import descent, memory

        uppers = [0 if note.upper is None else note.upper.ctypes.data for note in self.notes]
        return descent.SampleTable(
            lengths=self.lengths,
            targets=memory.addresses([block.targets for block in self.keep_alive]),
            duals=memory.addresses([block.state for block in self.keep_alive]),
            left_out=memory.addresses([note.left_out for note in self.notes]),
            norms=memory.addresses([note.norms for note in self.notes]),
            upper=np.array(uppers, dtype=np.uint64),
            uniform_upper=float(self._C),
        )

    @cached_property
    def bucket_rows(self) -> int:
        """Rows of a bucket: 1 where all stay in the cache: jumps cost nothing there, and neighbours are often alike."""
        from chicle_elastic.solvers.kernels import descent

        return 1 if self.num_values <= MOST_CACHED_VALUES else descent.BUCKET_ROWS

    @cached_property
    def bucket_chunk(self) -> Array:
        """Chunk of each bucket, shape (buckets,), int32."""
        return np.repeat(np.arange(len(self.ids), dtype=np.int32), -(-self.lengths // self.bucket_rows))

    @cached_property
    def bucket_row(self) -> Array:
        """First row of each bucket in its chunk, shape (buckets,), int32."""
        return np.concatenate([np.arange(0, n, self.bucket_rows, dtype=np.int32) for n in self.lengths.tolist()])

    def raise_bounds(self, C: float) -> None:
        """C has become larger, and C_i of the notes are already so."""
        self._C = C
        vars(self).pop("samples", None)

    def by_chunk(self, values: Array) -> list[Array]:
        """Cut values of all rows, shape (num_rows,), into those of each chunk."""
        return np.split(values, np.cumsum(self.lengths)[:-1])

    def upper(self) -> Array:
        """Return C_i of all rows, shape (num_rows,), float64."""
        bounds = zip(self.notes, self.lengths.tolist(), strict=True)
        return np.concatenate([np.full(n, self._C) if note.upper is None else note.upper for note, n in bounds])

    def dual_sums(self, loss: Loss) -> Array:
        """Sum the dual values of all rows per output, shape (outputs,), float64."""
        total = np.zeros(self.num_outputs)
        for block, note in zip(self.keep_alive, self.notes, strict=True):
            duals = block.state[:, :, 0]
            if duals.any():
                upper = np.array(self._C) if note.upper is None else note.upper[:, None]
                total += dual_values(loss, duals, upper).sum(axis=0)
        return total

    def require_finite(self, values: Array) -> None:
        """Look at rows whose value here is not finite, shape (num_rows,); a DataError names one that has a NaN or an
        infinity.
        """
        if np.isfinite(values).all():
            return
        for chunk_id, block, part in zip(self.ids, self.keep_alive, self.by_chunk(values), strict=True):
            for row in np.flatnonzero(~np.isfinite(part)).tolist():
                if isinstance(block.rows, CsrRows):
                    features = block.rows.values[slice(*block.rows.indptr[row : row + 2])]
                else:
                    features = as_floats(block.rows[row])
                if not np.isfinite(features).all():  # else the value is beyond its dtype, which is no crime
                    raise DataError(
                        f"chunk {chunk_id}, row {row} (row {int(block.row_ids[row])} of the data set): a feature is "
                        "NaN or infinite; leave the sample out or fill the value in"
                    )

    def even_cuts(self, most: int) -> list[int]:
        """Cut the chunks into at most so many parts of about as many rows: where each begins, and the last one ends."""
        ends = np.cumsum(self.lengths)
        goals = np.arange(1, most) * (ends[-1] / most)
        after = np.searchsorted(ends, goals)  # the chunk with that row goes to the part that has more of it
        cuts = after + (2.0 * goals > 2.0 * ends[after] - self.lengths[after])
        return np.unique([0, *cuts, len(ends)]).tolist()

    def part(self, begin: int, end: int) -> "LocalTables":
        """Select chunks by their positions, the last one excluded."""
        return LocalTables(self.ids[begin:end], self.keep_alive[begin:end], self.notes[begin:end], self._C)


def build_tables(chunks: Mapping[ChunkId, LocalChunk], notes: dict[ChunkId, Notes], bounds: Bounds) -> LocalTables:
    """Tables over `chunks` (at least one); `notes` of new chunks are added."""
    read = {chunk_id: chunk.peek() for chunk_id, chunk in chunks.items()}
    fresh = [(chunk_id, block) for chunk_id, block in read.items() if chunk_id not in notes]
    norms = zeros_per_chunk([len(block.targets) for _, block in fresh], (), "float64")
    for (chunk_id, block), norms_of_chunk in zip(fresh, norms, strict=True):
        left_out = np.zeros(block.state.shape[:2], np.uint8)
        notes[chunk_id] = Notes(norms=norms_of_chunk, upper=bounds.of(block), left_out=left_out)
    blocks = [bounds.with_classes(block) for block in read.values()]
    return LocalTables(list(read), blocks, [notes[chunk_id] for chunk_id in read], bounds.C)


def _num_values(rows: Rows) -> int:
    return int(rows.size) if isinstance(rows, np.ndarray) else rows.num_nonzeros
