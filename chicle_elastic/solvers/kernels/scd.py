"""Stochastic coordinate descent on the dual, over all local chunks (the local solver of CoCoA).

Rows are visited in shuffled buckets of 16 to 64: as good as random rows for convergence, and twice as fast, because
rows of a bucket lie side by side. The order runs over *all* local chunks; shuffling within a chunk only costs many more
epochs. A block of buckets is turned into a list of rows first, so that rows can be asked for before they are needed.

Screening. A dual that sits at a bound, with the margin on the safe side of 1 by `slack * |x|`, cannot move before w has
moved by `slack`. Such rows are left out of the list while `slack` is more than `caution` times the distance that w has
moved since. That is a guess where `caution` < 1 and where the distance within a pass is estimated; it decides only
where the work goes, never what is certified, because `objective_sums` looks at every row.

Each docstring ends with the plain NumPy form of the kernel; a test runs that very text against the kernel. In it,
`x(i)` is row i with the intercept column appended, `y[i, k]` is +1 where the target is class `positives[k]`, else -1,
`a[i, k]` the dual, `norm[i]` |x(i)|^2, `upper[i]` C_i, `v[k]` = `vectors[k]`; rows `i` come in the order of the call.
"""

import math
from typing import NamedTuple

import numpy as np

from chicle_elastic.chunks.blocks import aligned_zeros
from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.kernels.jit import kernel
from chicle_elastic.solvers.kernels.losses import dual_value, is_settled, primal_loss, step_and_values
from chicle_elastic.solvers.kernels.memory import (
    CODE,
    COUNT,
    NUMBER,
    PLACE,
    REAL,
    SHORT,
    STAMP,
    add,
    address_of,
    fetch_add,
    item_size,
    load,
    prefetch,
    store,
)
from chicle_elastic.solvers.kernels.tables import (
    RowTable,
    bucket_prefetch,
    is_dense,
    row_add,
    row_at,
    row_cross,
    row_dot,
    row_prefetch,
)

BUCKET_BYTES = 8192
CACHE_BYTES = 1 << 20
MAX_OVERLAPPED = 96
"""Columns up to which a row's product is begun before the step of the row before it is known.

The steps are a chain: each product has to wait for the step before it, and for short rows the processor does little
else. Begun early, a product misses one step, which is made good by that step times <x, x'> of the two rows. Long rows
have enough to do, and CSR rows have no cheap <x, x'>.
"""
LEAST_BUCKET_ROWS, MOST_BUCKET_ROWS = 16, 64
BLOCK_ROWS = 512
"""Rows, at most 64 buckets, between two looks at the stop flag; all outputs visit a block while it is in the cache."""


class SampleTable(NamedTuple):
    """Everything per sample that is not a feature, one entry per chunk.

    Attributes:
        lengths: Rows per chunk, shape (num_chunks,), int64.
        targets: Addresses of class codes (int32).
        duals: Addresses of the duals (float64, outputs side by side); the kernels write there.
        norms: Addresses of |x|^2 with the intercept column (float32); 0 until a row is first visited.
        upper: Addresses of C_i (float64); 0 where every sample has `uniform_upper`.
        uniform_upper: C.
    """

    lengths: Array
    targets: Array
    duals: Array
    norms: Array
    upper: Array
    uniform_upper: float


class ScreenTable(NamedTuple):
    """What screening remembers; outputs side by side, as the duals.

    Attributes:
        slack: Addresses per chunk of the slack of each dual (float32); 0 for a dual that may move.
        stamp: Addresses per chunk of the iteration in which the slack was found (uint8, modulo 256).
        moved: Distance that w_k has moved since the start of each of those iterations, shape (outputs, 256), float32.
        now: Number of this iteration, modulo 256.
        caution: See the module.
        is_on: Whether slack is written and rows are left out; all of it starts at 0.
    """

    slack: Array
    stamp: Array
    moved: Array
    now: int
    caution: float
    is_on: bool


class Scratch(NamedTuple):
    """Memory of one thread.

    Attributes:
        work, gathered: See `tables`; shape (num_features,), float32, and float64 zeros. Empty without a working copy.
        chunks, rows: The rows to visit in a block, shape (BLOCK_ROWS,), uint32.
        travelled: Squares of the steps of w_k in this pass, shape (outputs,), float64, zeros.
    """

    work: Array
    gathered: Array
    chunks: Array
    rows: Array
    travelled: Array


def positives(num_outputs: int) -> Array:
    """Positive class code of each output: 1 of two classes, else each class in turn; int32."""
    return np.arange(num_outputs, dtype=np.int32) if num_outputs > 1 else np.ones(1, dtype=np.int32)


def choose_bucket_rows(row_bytes: float, num_rows: int) -> int:
    """Rows of a bucket, a multiple of 16: what a jump to another place in memory costs is shared by 8 KiB.

    Rows that all fit into the cache are visited one by one: a jump costs nothing there, and neighbours are often alike.
    """
    if row_bytes * num_rows <= CACHE_BYTES:
        return 1
    rows = int(BUCKET_BYTES / max(1.0, row_bytes)) // LEAST_BUCKET_ROWS * LEAST_BUCKET_ROWS
    return min(max(rows, LEAST_BUCKET_ROWS), MOST_BUCKET_ROWS)


def make_scratch(rows: RowTable, num_outputs: int) -> Scratch:
    """Scratch memory for `scd_pass`; there is a working copy where it is in float32."""
    dtype = rows.kind.like_work.dtype.name
    d = rows.num_features if dtype == "float32" else 0
    return Scratch(
        work=aligned_zeros((d,), dtype),
        gathered=aligned_zeros((d,), "float64"),
        chunks=aligned_zeros((BLOCK_ROWS,), "uint32"),
        rows=aligned_zeros((BLOCK_ROWS,), "uint32"),
        travelled=aligned_zeros((num_outputs,), "float64"),
    )


@kernel
def scd_pass(
    loss,
    rows,
    samples,
    screen,
    bucket_chunk,
    bucket_row,
    bucket_rows,
    order,
    cursor,  # OUT
    max_blocks,
    positives,
    intercept,
    sigma,
    ahead,
    stop,
    scratch,  # OUT
    vectors,  # OUT
    processed,  # OUT
    stats,  # OUT
):
    """Exact coordinate steps over the buckets of `order`, for all outputs; threads share the order block by block.

    Args:
        loss: One of `losses.LOSSES`.
        rows: `tables.RowTable`.
        samples: `SampleTable`; its duals and norms are written (OUT).
        screen: `ScreenTable`; slack and stamps are written (OUT).
        bucket_chunk: Chunk of each bucket, shape (num_buckets,), int32.
        bucket_row: First row of each bucket in its chunk, shape (num_buckets,), int32.
        bucket_rows: Rows of a bucket, see `choose_bucket_rows`; the last one of a chunk may have fewer.
        order: Buckets to visit, shape (n,), int32.
        cursor: Position in `order` up to which buckets are taken, shape (1,), int64; all threads of a pass share it.
        max_blocks: Blocks to do at most before looking at the clock.
        positives: Positive class of each output, shape (outputs,), int32.
        intercept: Value of the intercept column; 0 for none.
        sigma: CoCoA's sigma' >= 1.
        ahead: Rows to ask for ahead of time.
        stop: uint8 of shape (1,); looked at between blocks.
        scratch: `Scratch`, fresh.
        vectors: Working vectors w + sigma' * (local change), shape (outputs, num_features + 1), float64, C-contiguous.
        processed: Rows processed per chunk are added here, shape (num_chunks,), int64.
        stats: Per output, shape (outputs, 5), float64, C-contiguous: gap contributions at the moving vector, change of
            the sum of dual values, duals that moved, duals that were looked at, and the sum of their dual values before
            are added here.

    NumPy equivalent, where rows of weight 0 are not visited::

        for i in visited:
            for k in range(outputs):
                margin = y[i, k] * (x(i) @ v[k])
                old = dual_values(loss, a[i, k], upper[i])
                stats[k, 0] += primal_losses(loss, margin, upper[i]) - old + a[i, k] * margin
                step = coordinate_steps(loss, margin, a[i, k], sigma * norm[i], upper[i]) - a[i, k]
                a[i, k] += step
                v[k] += sigma * step * y[i, k] * x(i)
                stats[k, 1] += dual_values(loss, a[i, k], upper[i]) - old
                stats[k, 2] += step != 0
                stats[k, 3] += 1
                stats[k, 4] += old
    """
    kind, last, num_outputs = rows.kind, np.uintp(rows.num_features), np.uintp(len(positives))
    bucket_rows, ahead, one = np.uintp(bucket_rows), np.uintp(ahead), np.uintp(1)
    # Addresses, because each use of an array in a tuple takes the compiler as long as ten loads.
    lengths, targets, duals = address_of(samples.lengths), address_of(samples.targets), address_of(samples.duals)
    norms, uppers = address_of(samples.norms), address_of(samples.upper)
    slacks, stamps, moved = address_of(screen.slack), address_of(screen.stamp), address_of(screen.moved)
    chunk_of, row_of = address_of(scratch.chunks), address_of(scratch.rows)
    work_copy, gathered = address_of(scratch.work), address_of(scratch.gathered)
    travelled, sums, is_screened = address_of(scratch.travelled), address_of(stats), screen.is_on
    overlaps = is_dense(kind) and rows.num_features <= MAX_OVERLAPPED
    is_copied = item_size(kind.like_work) < item_size(REAL)
    num_buckets, num_stamps = len(order), np.uintp(screen.moved.shape[1])
    block_buckets = BLOCK_ROWS // np.int64(bucket_rows)
    place = address_of(cursor)
    start = fetch_add(place, block_buckets)
    for number in range(max_blocks):
        if start >= num_buckets or stop[0] != 0:
            return
        end = start + block_buckets if start + block_buckets < num_buckets else num_buckets
        # Taken one ahead, so that it can be asked for.
        next_start = fetch_add(place, block_buckets) if number + 1 < max_blocks else num_buckets
        for k in range(num_outputs):
            vector = address_of(vectors) + k * (last + one) * item_size(REAL)
            distance = np.float32(screen.caution * math.sqrt(load(travelled, k, REAL)))
            # The rows to visit; those of weight 0 are none: their duals are 0 and stay so.
            count = np.uintp(0)
            for position in range(start, end):
                bucket = order[position]
                chunk, row = np.uintp(bucket_chunk[bucket]), np.uintp(bucket_row[bucket])
                behind, upper_of = np.uintp(load(lengths, chunk, COUNT)), load(uppers, chunk, PLACE)
                behind = row + bucket_rows if row + bucket_rows < behind else behind
                while row < behind:
                    store(chunk_of, count, chunk, NUMBER)
                    store(row_of, count, row, NUMBER)
                    is_visited = upper_of == 0 or load(upper_of, row, REAL) != 0.0
                    if is_visited and is_screened:
                        entry = row * num_outputs + k
                        stamp = np.uintp(load(load(stamps, chunk, PLACE), entry, STAMP)) + k * num_stamps
                        slack = load(load(slacks, chunk, PLACE), entry, SHORT)
                        is_visited = slack <= load(moved, stamp, SHORT) + distance
                    count += np.uintp(is_visited)
                    row += one
            if k == num_outputs - one:
                # Ask for what the listing and the steps of the next block read of each bucket besides its rows.
                for position in range(next_start, next_start + block_buckets):
                    if position >= num_buckets:
                        break
                    bucket = order[position]
                    chunk, row = np.uintp(bucket_chunk[bucket]), np.uintp(bucket_row[bucket])
                    entry, entries = row * num_outputs, bucket_rows * num_outputs
                    if is_screened:
                        prefetch(load(slacks, chunk, PLACE), entry, entries, SHORT)
                        prefetch(load(stamps, chunk, PLACE), entry, entries, STAMP)
                    prefetch(load(duals, chunk, PLACE), entry, entries, REAL)
                    prefetch(load(norms, chunk, PLACE), row, bucket_rows, SHORT)
                    prefetch(load(targets, chunk, PLACE), row, bucket_rows, CODE)
                    bucket_prefetch(rows, chunk, row)
            if count == 0:
                continue
            work = vector
            if is_copied:
                work = work_copy
                for j in range(last):
                    store(work, j, load(vector, j, REAL), kind.like_work)
            offset = load(vector, last, REAL)
            sum_gap, sum_dual, sum_old, num_moved, squares = 0.0, 0.0, 0.0, 0, 0.0
            for j in range(ahead if ahead < count else count):
                row_prefetch(kind, row_at(rows, load(chunk_of, j, NUMBER), load(row_of, j, NUMBER)))
            chunk, row = np.uintp(load(chunk_of, np.uintp(0), NUMBER)), np.uintp(load(row_of, np.uintp(0), NUMBER))
            at, product = row_at(rows, chunk, row), 0.0
            for j in range(count):
                if j + ahead < count:
                    row_prefetch(kind, row_at(rows, load(chunk_of, j + ahead, NUMBER), load(row_of, j + ahead, NUMBER)))
                following = j + one if j + one < count else j
                next_chunk = np.uintp(load(chunk_of, following, NUMBER))
                next_row = np.uintp(load(row_of, following, NUMBER))
                next_at, next_product, cross = row_at(rows, next_chunk, next_row), 0.0, 0.0
                if not (overlaps and j > 0):
                    product = row_dot(kind, at, work, kind.like_work)
                norm = np.float64(load(load(norms, chunk, PLACE), row, SHORT))
                if norm == 0.0:
                    short = np.float32(row_cross(kind, at, at) + intercept * intercept)
                    store(load(norms, chunk, PLACE), row, short, SHORT)
                    norm = np.float64(short)
                if overlaps:
                    next_product = row_dot(kind, next_at, work, kind.like_work)
                    cross = row_cross(kind, at, next_at)
                sign = 1.0 if load(load(targets, chunk, PLACE), row, CODE) == positives[k] else -1.0
                upper, upper_of = samples.uniform_upper, load(uppers, chunk, PLACE)
                if upper_of != 0:
                    upper = load(upper_of, row, REAL)
                entry, dual_of = row * num_outputs + k, load(duals, chunk, PLACE)
                alpha = load(dual_of, entry, REAL)
                margin = sign * (product + intercept * offset)
                new_alpha, old, new = step_and_values(loss, margin, alpha, sigma * norm, upper)
                sum_old += old
                sum_gap += primal_loss(loss, margin, upper) - old + alpha * margin
                if new_alpha != alpha:
                    store(dual_of, entry, new_alpha, REAL)
                    factor = sigma * (new_alpha - alpha) * sign
                    next_product += factor * cross
                    row_add(kind, factor, at, work, kind.like_work)
                    if is_copied:
                        row_add(kind, factor, at, gathered, REAL)
                    offset += factor * intercept
                    sum_dual += new - old
                    num_moved += 1
                    squares += factor * factor * norm
                if is_screened:
                    slack = np.float32(0.0)
                    if new_alpha == alpha and is_settled(loss, margin, alpha, upper):
                        slack = np.float32(abs(1.0 - margin)) / np.float32(math.sqrt(np.float32(norm))) - distance
                        store(load(stamps, chunk, PLACE), entry, screen.now, STAMP)
                    store(load(slacks, chunk, PLACE), entry, slack, SHORT)
                chunk, row, at, product = next_chunk, next_row, next_at, next_product
            if is_copied:
                for j in range(last):
                    add(vector, j, load(gathered, j, REAL))
                    store(gathered, j, 0.0, REAL)
            store(vector, last, offset, REAL)
            add(travelled, k, squares)
            first = k * np.uintp(5)
            add(sums, first, sum_gap)
            add(sums, first + one, sum_dual)
            add(sums, first + np.uintp(2), np.float64(num_moved))
            add(sums, first + np.uintp(3), np.float64(count))
            add(sums, first + np.uintp(4), sum_old)
        for position in range(start, end):
            bucket = order[position]
            left = samples.lengths[bucket_chunk[bucket]] - bucket_row[bucket]
            processed[bucket_chunk[bucket]] += np.int64(bucket_rows) if left > np.int64(bucket_rows) else left
        start = next_start


@kernel
def objective_sums(
    loss,
    rows,
    samples,
    begin,
    end,
    positives,
    intercept,
    has_losses,
    vectors,
    rebuilt,  # OUT
    stats,  # OUT
):
    """What a certificate needs of the chunks `begin` to `end`, in one look at each row, all in float64.

    Args:
        loss, rows, samples, positives, intercept: As in `scd_pass`.
        begin, end: Range of chunks.
        has_losses: Without, the sums of losses stay 0, and a row whose dual is 0 is not looked at.
        vectors: Where losses are evaluated, shape (outputs, num_features + 1), float64, C-contiguous.
        rebuilt: w(alpha) of these chunks is added here, shape as `vectors`.
        stats: Per output, the sums of losses and of dual values are added here, shape (outputs, 2), float64.

    NumPy equivalent, where rows of weight 0 are not visited::

        for i in visited:
            for k in range(outputs):
                if has_losses:
                    margin = y[i, k] * (x(i) @ v[k])
                    stats[k, 0] += primal_losses(loss, margin, upper[i])
                stats[k, 1] += dual_values(loss, a[i, k], upper[i])
                rebuilt[k] += a[i, k] * y[i, k] * x(i)
    """
    kind, last, num_outputs = rows.kind, np.uintp(rows.num_features), np.uintp(len(positives))
    block_rows = np.uintp(BLOCK_ROWS)
    lengths, targets, duals = address_of(samples.lengths), address_of(samples.targets), address_of(samples.duals)
    uppers = address_of(samples.upper)
    for chunk_number in range(begin, end):
        chunk = np.uintp(chunk_number)
        num_rows, upper_of = np.uintp(load(lengths, chunk, COUNT)), load(uppers, chunk, PLACE)
        target_of, dual_of = load(targets, chunk, PLACE), load(duals, chunk, PLACE)
        for first in range(np.uintp(0), num_rows, block_rows):
            behind = first + block_rows if first + block_rows < num_rows else num_rows
            for k in range(num_outputs):
                shift = k * (last + np.uintp(1)) * item_size(REAL)
                vector, target = address_of(vectors) + shift, address_of(rebuilt) + shift
                offset = intercept * load(vector, last, REAL)
                sum_loss, sum_dual, sum_signed = 0.0, 0.0, 0.0
                for row in range(first, behind):
                    upper = load(upper_of, row, REAL) if upper_of != 0 else samples.uniform_upper
                    if upper == 0.0:
                        continue
                    sign = 1.0 if load(target_of, row, CODE) == positives[k] else -1.0
                    alpha = load(dual_of, row * num_outputs + k, REAL)
                    at = row_at(rows, chunk, row)
                    if has_losses:
                        sum_loss += primal_loss(loss, sign * (row_dot(kind, at, vector, REAL) + offset), upper)
                    sum_dual += dual_value(loss, alpha, upper)
                    if alpha != 0.0:
                        row_add(kind, sign * alpha, at, target, REAL)
                        sum_signed += sign * alpha
                add(target, last, intercept * sum_signed)
                add(address_of(stats), k * np.uintp(2), sum_loss)
                add(address_of(stats), k * np.uintp(2) + np.uintp(1), sum_dual)
