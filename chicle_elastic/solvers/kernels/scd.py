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
from numba.extending import register_jitable

from chicle_elastic.chunks.blocks import aligned_zeros
from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.kernels.jit import INLINE, kernel
from chicle_elastic.solvers.kernels.losses import dual_value, is_settled, primal_loss, step_and_values
from chicle_elastic.solvers.kernels.memory import fetch_add, load, prefetch_items, store
from chicle_elastic.solvers.kernels.tables import (
    DenseTable,
    RowTable,
    bucket_prefetch,
    fold_work,
    gather_into,
    load_work,
    overlaps,
    row_add,
    row_cross,
    row_dot,
    row_dot_and_norm,
    row_norm,
    row_prefetch,
    row_step,
)

BUCKET_BYTES = 8192
CACHE_BYTES = 1 << 20
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
        like_code, like_real, like_short: Empty arrays of int32, float64 and float32.
    """

    lengths: Array
    targets: Array
    duals: Array
    norms: Array
    upper: Array
    uniform_upper: float
    like_code: Array
    like_real: Array
    like_short: Array


class ScreenTable(NamedTuple):
    """What screening remembers; outputs side by side, as the duals.

    Attributes:
        slack: Addresses per chunk of the slack of each dual (float32); 0 for a dual that may move.
        stamp: Addresses per chunk of the iteration in which the slack was found (uint8, modulo 256).
        moved: Distance that w_k has moved since the start of each of those iterations, shape (outputs, 256), float32.
        now: Number of this iteration, modulo 256.
        caution: See the module.
        is_on: Whether slack is written and rows are left out; all of it starts at 0.
        like_stamp: Empty array of uint8.
    """

    slack: Array
    stamp: Array
    moved: Array
    now: int
    caution: float
    is_on: bool
    like_stamp: Array


class Scratch(NamedTuple):
    """Memory of one thread.

    Attributes:
        work, gathered: See `tables`; shape (num_features,), of the dtype of the working copy, and float64 zeros.
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
    """Scratch memory for `scd_pass`; CSR rows need no working copy."""
    d, dtype = (rows.num_features, rows.like_work.dtype.name) if isinstance(rows, DenseTable) else (0, "float64")
    return Scratch(
        work=aligned_zeros((d,), dtype),
        gathered=aligned_zeros((d,), "float64"),
        chunks=aligned_zeros((BLOCK_ROWS,), "uint32"),
        rows=aligned_zeros((BLOCK_ROWS,), "uint32"),
        travelled=aligned_zeros((num_outputs,), "float64"),
    )


@register_jitable(**INLINE)
def _list_rows(
    samples, screen, bucket_chunk, bucket_row, bucket_rows, order, start, end, k, num_outputs, distance, scratch
):
    """Write chunk and row of every row to visit in a block into the scratch memory; returns how many.

    Rows of weight 0 are none: their duals are 0 and stay so.
    """
    count = np.uintp(0)
    for position in range(start, end):
        bucket = order[position]
        chunk = np.uintp(bucket_chunk[bucket])
        length = np.uintp(samples.lengths[chunk])
        row = np.uintp(bucket_row[bucket])
        last = row + bucket_rows
        last = last if last < length else length
        while row < last:
            entry = row * num_outputs + k
            scratch.chunks[count] = chunk
            scratch.rows[count] = row
            if samples.upper[chunk] != 0 and load(samples.upper[chunk], row, samples.like_real) == 0.0:
                row += np.uintp(1)
                continue
            if screen.is_on:
                stamp = np.uintp(load(screen.stamp[chunk], entry, screen.like_stamp))
                slack = load(screen.slack[chunk], entry, samples.like_short)
                count += np.uintp(slack <= screen.moved[k, stamp] + distance)
            else:
                count += np.uintp(1)
            row += np.uintp(1)
    return count


@register_jitable(**INLINE)
def _prefetch_block(rows, samples, screen, bucket_chunk, bucket_row, bucket_rows, order, start, end, num_outputs):
    """Ask for what `_list_rows` and the steps read of each bucket besides its rows."""
    for position in range(start, end):
        bucket = order[position]
        chunk = np.uintp(bucket_chunk[bucket])
        first = np.uint64(bucket_row[bucket])
        entry, entries = first * np.uint64(num_outputs), np.uint64(bucket_rows * num_outputs)
        if screen.is_on:
            prefetch_items(screen.slack[chunk], entry, entries, np.uint64(4))
            prefetch_items(screen.stamp[chunk], entry, entries, np.uint64(1))
        prefetch_items(samples.duals[chunk], entry, entries, np.uint64(8))
        prefetch_items(samples.norms[chunk], first, bucket_rows, np.uint64(4))
        prefetch_items(samples.targets[chunk], first, bucket_rows, np.uint64(4))
        bucket_prefetch(rows, chunk, first)


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
        loss: Number of an `objectives.Loss`.
        rows: `tables.DenseTable` or `tables.CsrTable`.
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
        vectors: Working vectors w + sigma' * (local change), shape (outputs, num_features + 1), float64.
        processed: Rows processed per chunk are added here, shape (num_chunks,), int64.
        stats: Per output, shape (outputs, 5), float64: gap contributions at the moving vector, change of the sum of
            dual values, duals that moved, duals that were looked at, and the sum of their dual values before are added
            here.

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
    num_outputs = np.uintp(len(positives))
    last = np.uintp(rows.num_features)
    ahead = np.uintp(ahead)
    bucket_rows = np.uintp(bucket_rows)
    num_buckets = len(order)
    block_buckets = BLOCK_ROWS // np.int64(bucket_rows)
    place = np.uint64(cursor.ctypes.data)
    start = fetch_add(place, block_buckets)
    for number in range(max_blocks):
        if start >= num_buckets or stop[0] != 0:
            return
        end = min(start + block_buckets, num_buckets)
        # Taken one ahead, so that it can be asked for.
        next_start = min(fetch_add(place, block_buckets), num_buckets) if number + 1 < max_blocks else num_buckets
        next_end = min(next_start + block_buckets, num_buckets)
        for k in range(num_outputs):
            vector = vectors[k]
            distance = np.float32(screen.caution * math.sqrt(scratch.travelled[k]))
            count = _list_rows(
                samples, screen, bucket_chunk, bucket_row, bucket_rows, order, start, end, k, num_outputs, distance,
                scratch,
            )  # fmt: skip
            if k == num_outputs - np.uintp(1):
                _prefetch_block(
                    rows,
                    samples,
                    screen,
                    bucket_chunk,
                    bucket_row,
                    bucket_rows,
                    order,
                    next_start,
                    next_end,
                    num_outputs,
                )
            if count == 0:
                continue
            work = load_work(rows, vector, scratch.work)
            gathered = gather_into(rows, vector, scratch.gathered)
            offset = vector[last]
            sum_gap, sum_dual, sum_old, num_moved, squares = 0.0, 0.0, 0.0, 0, 0.0
            for j in range(ahead if ahead < count else count):
                row_prefetch(rows, np.uintp(scratch.chunks[j]), np.uintp(scratch.rows[j]))
            chunk, row = np.uintp(scratch.chunks[0]), np.uintp(scratch.rows[0])
            product = 0.0
            for j in range(count):
                if j + ahead < count:
                    row_prefetch(rows, np.uintp(scratch.chunks[j + ahead]), np.uintp(scratch.rows[j + ahead]))
                entry = row * num_outputs + k
                has_next = j + np.uintp(1) < count
                next_j = j + np.uintp(1) if has_next else j
                next_chunk, next_row = np.uintp(scratch.chunks[next_j]), np.uintp(scratch.rows[next_j])
                norm = np.float64(load(samples.norms[chunk], row, samples.like_short))
                is_new, square = norm == 0.0, 0.0
                if not (overlaps(rows) and j > 0):
                    if is_new:
                        product, square = row_dot_and_norm(rows, chunk, row, work)
                    else:
                        product = row_dot(rows, chunk, row, work)
                elif is_new:
                    square = row_norm(rows, chunk, row)
                if is_new:
                    short = np.float32(square + intercept * intercept)
                    store(samples.norms[chunk], row, short, samples.like_short)
                    norm = np.float64(short)
                next_product, cross = 0.0, 0.0
                if overlaps(rows) and has_next:
                    next_product = row_dot(rows, next_chunk, next_row, work)
                    cross = row_cross(rows, chunk, row, next_chunk, next_row)
                sign = 1.0 if load(samples.targets[chunk], row, samples.like_code) == positives[k] else -1.0
                upper = samples.uniform_upper
                if samples.upper[chunk] != 0:
                    upper = load(samples.upper[chunk], row, samples.like_real)
                alpha = load(samples.duals[chunk], entry, samples.like_real)
                margin = sign * (product + intercept * offset)
                new_alpha, old, new = step_and_values(loss, margin, alpha, sigma * norm, upper)
                sum_old += old
                sum_gap += primal_loss(loss, margin, upper) - old + alpha * margin
                if new_alpha != alpha:
                    store(samples.duals[chunk], entry, new_alpha, samples.like_real)
                    factor = sigma * (new_alpha - alpha) * sign
                    next_product += factor * cross
                    row_step(rows, chunk, row, factor, work, gathered)
                    offset += factor * intercept
                    sum_dual += new - old
                    num_moved += 1
                    squares += factor * factor * norm
                if screen.is_on:
                    slack = np.float32(0.0)
                    if new_alpha == alpha and is_settled(loss, margin, alpha, upper):
                        slack = np.float32(abs(1.0 - margin)) / np.float32(math.sqrt(np.float32(norm))) - distance
                        store(screen.stamp[chunk], entry, np.uint8(screen.now), screen.like_stamp)
                    store(screen.slack[chunk], entry, slack, samples.like_short)
                chunk, row, product = next_chunk, next_row, next_product
            fold_work(rows, vector, gathered)
            vector[last] = offset
            scratch.travelled[k] += squares
            stats[k, 0] += sum_gap
            stats[k, 1] += sum_dual
            stats[k, 2] += num_moved
            stats[k, 3] += count
            stats[k, 4] += sum_old
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
        vectors: Where losses are evaluated, shape (outputs, num_features + 1), float64.
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
    num_outputs = np.uintp(len(positives))
    last = np.uintp(rows.num_features)
    block_rows = np.uintp(BLOCK_ROWS)
    for chunk_number in range(begin, end):
        chunk = np.uintp(chunk_number)
        length = np.uintp(samples.lengths[chunk])
        for first in range(np.uintp(0), length, block_rows):
            behind = first + block_rows if first + block_rows < length else length
            for k in range(num_outputs):
                vector, target = vectors[k], rebuilt[k]
                offset = intercept * vector[last]
                sum_loss, sum_dual, sum_signed = 0.0, 0.0, 0.0
                for row in range(first, behind):
                    upper = samples.uniform_upper
                    if samples.upper[chunk] != 0:
                        upper = load(samples.upper[chunk], row, samples.like_real)
                    if upper == 0.0:
                        continue
                    sign = 1.0 if load(samples.targets[chunk], row, samples.like_code) == positives[k] else -1.0
                    alpha = load(samples.duals[chunk], row * num_outputs + k, samples.like_real)
                    if has_losses:
                        margin = sign * (row_dot(rows, chunk, row, vector) + offset)
                        sum_loss += primal_loss(loss, margin, upper)
                    sum_dual += dual_value(loss, alpha, upper)
                    if alpha != 0.0:
                        row_add(rows, chunk, row, sign * alpha, target)
                        sum_signed += sign * alpha
                target[last] += intercept * sum_signed
                stats[k, 0] += sum_loss
                stats[k, 1] += sum_dual
