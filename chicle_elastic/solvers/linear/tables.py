"""Tables of the local chunks for CoCoA's kernels: addresses, buckets, and what is remembered per sample.

Built inside an iteration, because chunks are read for it. Memory per sample: 8 bytes of dual and 1 of whether it is
left out per output, 8 for the norm, and 8 for the bound where samples or classes have weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from chicle_elastic.chunks.blocks import zeros_per_chunk
from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.kernels import descent, memory, tables
from chicle_elastic.solvers.linear.objectives import Loss, dual_values, upper_bounds
from chicle_elastic.solvers.linear.pass_solver import require_finite
from chicle_elastic.solvers.local_chunk import LocalChunk, RowBlock


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


@dataclass(slots=True, kw_only=True)
class LocalTables:
    """Tables over all local chunks, in the order of `ids`."""

    ids: list[ChunkId]
    rows: tables.RowTable
    samples: descent.SampleTable
    bucket_chunk: Array
    bucket_row: Array
    bucket_rows: int
    num_outputs: int
    num_rows: int
    num_values: int
    keep_alive: list[RowBlock]
    notes: list[Notes]

    def by_chunk(self, values: Array) -> list[Array]:
        """Cut values of all rows, shape (num_rows,), into those of each chunk."""
        return np.split(values, np.cumsum(self.samples.lengths)[:-1])

    def upper(self) -> Array:
        """Return C_i of all rows, shape (num_rows,), float64."""
        C, lengths = self.samples.uniform_upper, self.samples.lengths.tolist()
        bounds = zip(self.notes, lengths, strict=True)
        return np.concatenate([np.full(n, C) if note.upper is None else note.upper for note, n in bounds])

    def dual_sums(self, loss: Loss) -> Array:
        """Sum the dual values of all rows per output, shape (outputs,), float64."""
        total = np.zeros(self.num_outputs)
        for block, note in zip(self.keep_alive, self.notes, strict=True):
            duals = block.state[:, :, 0]
            if duals.any():
                upper = np.array(self.samples.uniform_upper) if note.upper is None else note.upper[:, None]
                total += dual_values(loss, duals, upper).sum(axis=0)
        return total

    def require_finite_norms(self) -> None:
        """Look at the norms that passes have found so far; a DataError names one that has a NaN or an infinity."""
        # NaN wins in a maximum; and nothing is as long as the norms, as `isfinite(norms)` would be.
        if not all(np.isfinite(note.norms.max()) for note in self.notes):
            self.require_finite(np.concatenate([note.norms for note in self.notes]))

    def require_finite(self, values: Array) -> None:
        """Look at rows whose value here is not finite, shape (num_rows,); a DataError names one that has a NaN or an
        infinity.
        """
        if not np.isfinite(values).all():
            for chunk_id, block, part in zip(self.ids, self.keep_alive, self.by_chunk(values), strict=True):
                require_finite(chunk_id, block, part)

    def even_cuts(self, most: int) -> list[int]:
        """Cut the chunks into at most so many parts of about as many rows: where each begins, and the last one ends."""
        ends = np.cumsum(self.samples.lengths)
        goals = np.arange(1, most) * (ends[-1] / most)
        after = np.searchsorted(ends, goals)  # the chunk with that row goes to the part that has more of it
        cuts = after + (2.0 * goals > 2.0 * ends[after] - self.samples.lengths[after])
        return np.unique([0, *cuts, len(ends)]).tolist()

    def part(self, begin: int, end: int) -> "LocalTables":
        """Select chunks by their positions, the last one excluded."""
        chunks = slice(begin, end)
        buckets = slice(*np.searchsorted(self.bucket_chunk, [begin, end]))
        blocks = self.keep_alive[chunks]
        samples = {name: table[chunks] for name, table in self.samples._asdict().items() if name != "uniform_upper"}
        return LocalTables(
            ids=self.ids[chunks],
            rows=self.rows._replace(places=self.rows.places[chunks]),
            samples=self.samples._replace(**samples),
            bucket_chunk=self.bucket_chunk[buckets] - np.int32(begin),
            bucket_row=self.bucket_row[buckets],
            bucket_rows=self.bucket_rows,
            num_outputs=self.num_outputs,
            num_rows=int(samples["lengths"].sum()),
            num_values=sum(num_values(block) for block in blocks),
            keep_alive=blocks,
            notes=self.notes[chunks],
        )


def build_tables(chunks: Mapping[ChunkId, LocalChunk], notes: dict[ChunkId, Notes], bounds: Bounds) -> LocalTables:
    """Tables over `chunks` (at least one); `notes` of new chunks are added."""
    ids = list(chunks)
    read = {chunk_id: chunks[chunk_id].peek() for chunk_id in ids}
    blocks = [bounds.with_classes(block) for block in read.values()]
    fresh = [(chunk_id, block) for chunk_id, block in read.items() if chunk_id not in notes]
    norms = zeros_per_chunk([len(block.targets) for _, block in fresh], (), "float64")
    for (chunk_id, block), norms_of_chunk in zip(fresh, norms, strict=True):
        left_out = np.zeros(block.state.shape[:2], np.uint8)
        notes[chunk_id] = Notes(norms=norms_of_chunk, upper=bounds.of(block), left_out=left_out)
    local = [notes[chunk_id] for chunk_id in ids]
    lengths = np.array([len(block.targets) for block in blocks], dtype=np.int64)
    samples = descent.SampleTable(
        lengths=lengths,
        targets=memory.addresses([block.targets for block in blocks]),
        duals=memory.addresses([block.state for block in blocks]),
        left_out=memory.addresses([note.left_out for note in local]),
        norms=memory.addresses([note.norms for note in local]),
        upper=np.array([0 if note.upper is None else note.upper.ctypes.data for note in local], dtype=np.uint64),
        uniform_upper=float(bounds.C),
    )
    num_rows, total_values = int(lengths.sum()), sum(num_values(block) for block in blocks)
    value_bytes = 8 if isinstance(blocks[0].rows, CsrRows) else blocks[0].rows.itemsize
    bucket_rows = descent.choose_bucket_rows(value_bytes * total_values / num_rows, total_values)
    bucket_chunk = np.repeat(np.arange(len(ids), dtype=np.int32), -(-lengths // bucket_rows))
    bucket_row = np.concatenate([np.arange(0, length, bucket_rows, dtype=np.int32) for length in lengths.tolist()])
    return LocalTables(
        ids=ids,
        rows=tables.row_table(blocks),
        samples=samples,
        bucket_chunk=bucket_chunk,
        bucket_row=bucket_row,
        bucket_rows=bucket_rows,
        num_outputs=blocks[0].state.shape[1],
        num_rows=num_rows,
        num_values=total_values,
        keep_alive=blocks,
        notes=local,
    )


def num_values(block: RowBlock) -> int:
    """Stored feature values of a block."""
    rows = block.rows
    return int(rows.size) if isinstance(rows, np.ndarray) else rows.num_nonzeros
