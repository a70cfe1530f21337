"""Stochastic coordinate descent on the dual, over all local chunks (the local solver of CoCoA).

Rows are visited in shuffled buckets of 8: as good as random rows for convergence, and twice as fast, because rows of a
bucket lie side by side. The order runs over *all* local chunks; shuffling within a chunk only costs many more epochs.
A block of 64 buckets is turned into a list of rows first, so that rows can be asked for before they are needed.

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

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.kernels.jit import kernel
from chicle_elastic.solvers.kernels.losses import coordinate_step, dual_value, is_settled, primal_loss
from chicle_elastic.solvers.kernels.memory import load, prefetch, store
from chicle_elastic.solvers.kernels.tables import (
    DenseTable,
    RowTable,
    bucket_prefetch,
    fold_work,
    gather_into,
    load_work,
    row_add,
    row_dot,
    row_norm,
    row_prefetch,
    row_step,
)

BUCKET_ROWS = 8
BLOCK_BUCKETS = 64
"""Buckets between two looks at the stop flag; all outputs visit a block while its rows are in the cache."""


class SampleTable(NamedTuple):
    """Everything per sample that is not a feature, one entry per chunk.

    Attributes:
        lengths: Rows per chunk, shape (num_chunks,), int64.
        targets: Addresses of class codes (int32).
        duals: Addresses of the duals (float64, outputs side by side); the kernels write there.
        norms: Addresses of |x|^2 with the intercept column (float32).
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
        slack: Addresses per chunk of the slack of each dual (float32); -inf for a dual that may move.
        stamp: Addresses per chunk of the pass in which the slack was found (uint8, modulo 256).
        moved: Distance that w_k has moved since the start of each of those passes, shape (outputs, 256), float32.
        now: Number of this pass, modulo 256.
        caution: See the module.
        is_on: Whether slack is written and rows are left out; all of it starts at -inf.
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
        chunks, rows: The rows to visit in a block, shape (BLOCK_BUCKETS * BUCKET_ROWS,), uint32.
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


def make_scratch(rows: RowTable, num_outputs: int) -> Scratch:
    """Scratch memory for `scd_pass`; CSR rows need no working copy."""
    d, dtype = (rows.num_features, rows.like_work.dtype) if isinstance(rows, DenseTable) else (0, np.float64)
    return Scratch(
        work=np.zeros(d, dtype),
        gathered=np.zeros(d),
        chunks=np.zeros(BLOCK_BUCKETS * BUCKET_ROWS, np.uint32),
        rows=np.zeros(BLOCK_BUCKETS * BUCKET_ROWS, np.uint32),
        travelled=np.zeros(num_outputs),
    )


@register_jitable
def _list_rows(samples, screen, bucket_chunk, bucket_row, order, start, end, k, num_outputs, distance, scratch):
    """Write chunk and row of every row to visit in a block into the scratch memory; returns how many."""
    count = np.uintp(0)
    for position in range(start, end):
        bucket = order[position]
        chunk = np.uintp(bucket_chunk[bucket])
        length = np.uintp(samples.lengths[chunk])
        row = np.uintp(bucket_row[bucket])
        last = row + np.uintp(BUCKET_ROWS)
        last = last if last < length else length
        while row < last:
            entry = row * num_outputs + k
            scratch.chunks[count] = chunk
            scratch.rows[count] = row
            if screen.is_on:
                stamp = np.uintp(load(screen.stamp[chunk], entry, screen.like_stamp))
                slack = load(screen.slack[chunk], entry, samples.like_short)
                count += np.uintp(slack <= screen.moved[k, stamp] + distance)
            else:
                count += np.uintp(1)
            row += np.uintp(1)
    return count


@register_jitable
def _prefetch_block(rows, samples, screen, bucket_chunk, bucket_row, order, start, end, num_outputs):
    """Ask for what `_list_rows` and the steps read of each bucket besides its rows."""
    for position in range(start, end):
        bucket = order[position]
        chunk = np.uintp(bucket_chunk[bucket])
        first = np.uint64(bucket_row[bucket])
        entry = first * np.uint64(num_outputs)
        if screen.is_on:
            prefetch(screen.slack[chunk] + entry * np.uint64(4))
            prefetch(screen.stamp[chunk] + entry)
        prefetch(samples.duals[chunk] + entry * np.uint64(8))
        prefetch(samples.norms[chunk] + first * np.uint64(4))
        prefetch(samples.targets[chunk] + first * np.uint64(4))
        bucket_prefetch(rows, chunk, first)


@kernel
def scd_pass(
    loss,
    rows,
    samples,
    screen,
    bucket_chunk,
    bucket_row,
    order,
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
    """One pass of exact coordinate steps over the buckets of `order`, for all outputs.

    Args:
        loss: Number of an `objectives.Loss`.
        rows: `tables.DenseTable` or `tables.CsrTable`.
        samples: `SampleTable`; its duals are written (OUT).
        screen: `ScreenTable`; slack and stamps are written (OUT).
        bucket_chunk: Chunk of each bucket, shape (num_buckets,), int64.
        bucket_row: First row of each bucket in its chunk, shape (num_buckets,), int64.
        order: Buckets to visit, shape (n,), int64.
        positives: Positive class of each output, shape (outputs,), int32.
        intercept: Value of the intercept column; 0 for none.
        sigma: CoCoA's sigma' >= 1.
        ahead: Rows to ask for ahead of time.
        stop: uint8 of shape (1,); looked at between blocks.
        scratch: `Scratch`, fresh.
        vectors: Working vectors w + sigma' * (local change), shape (outputs, num_features + 1), float64.
        processed: Rows processed per chunk are added here, shape (num_chunks,), int64.
        stats: Per output, shape (outputs, 4), float64: gap contributions at the moving vector, change of the sum of
            dual values, duals that moved, and duals that were looked at are added here.

    NumPy equivalent::

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
    """
    num_outputs = np.uintp(len(positives))
    last = np.uintp(rows.num_features)
    ahead = np.uintp(ahead)
    num_buckets = len(order)
    for start in range(0, num_buckets, BLOCK_BUCKETS):
        if stop[0] != 0:
            return
        end = start + BLOCK_BUCKETS if start + BLOCK_BUCKETS < num_buckets else num_buckets
        following = end + BLOCK_BUCKETS if end + BLOCK_BUCKETS < num_buckets else num_buckets
        for k in range(num_outputs):
            vector = vectors[k]
            distance = np.float32(screen.caution * math.sqrt(scratch.travelled[k]))
            count = _list_rows(
                samples, screen, bucket_chunk, bucket_row, order, start, end, k, num_outputs, distance, scratch
            )
            if k == num_outputs - np.uintp(1):
                _prefetch_block(rows, samples, screen, bucket_chunk, bucket_row, order, end, following, num_outputs)
            if count == 0:
                continue
            work = load_work(rows, vector, scratch.work)
            gathered = gather_into(rows, vector, scratch.gathered)
            offset = vector[last]
            sum_gap, sum_dual, num_moved, squares = 0.0, 0.0, 0, 0.0
            for j in range(count + ahead):
                if j < count:
                    row_prefetch(rows, np.uintp(scratch.chunks[j]), np.uintp(scratch.rows[j]))
                if j < ahead:
                    continue
                chunk, row = np.uintp(scratch.chunks[j - ahead]), np.uintp(scratch.rows[j - ahead])
                entry = row * num_outputs + k
                sign = 1.0 if load(samples.targets[chunk], row, samples.like_code) == positives[k] else -1.0
                norm = np.float64(load(samples.norms[chunk], row, samples.like_short))
                upper = samples.uniform_upper
                if samples.upper[chunk] != 0:
                    upper = load(samples.upper[chunk], row, samples.like_real)
                alpha = load(samples.duals[chunk], entry, samples.like_real)
                margin = sign * (row_dot(rows, chunk, row, work) + intercept * offset)
                new_alpha = coordinate_step(loss, margin, alpha, sigma * norm, upper)
                old = dual_value(loss, alpha, upper)
                sum_gap += primal_loss(loss, margin, upper) - old + alpha * margin
                if new_alpha != alpha:
                    store(samples.duals[chunk], entry, new_alpha, samples.like_real)
                    factor = sigma * (new_alpha - alpha) * sign
                    row_step(rows, chunk, row, factor, work, gathered)
                    offset += factor * intercept
                    sum_dual += dual_value(loss, new_alpha, upper) - old
                    num_moved += 1
                    squares += factor * factor * norm
                if screen.is_on:
                    slack = np.float32(-np.inf)
                    if new_alpha == alpha and is_settled(loss, margin, alpha, upper):
                        slack = np.float32(abs(1.0 - margin) / math.sqrt(norm)) - distance
                        store(screen.stamp[chunk], entry, np.uint8(screen.now), screen.like_stamp)
                    store(screen.slack[chunk], entry, slack, samples.like_short)
            fold_work(rows, vector, gathered)
            vector[last] = offset
            scratch.travelled[k] += squares
            stats[k, 0] += sum_gap
            stats[k, 1] += sum_dual
            stats[k, 2] += num_moved
            stats[k, 3] += count
        for position in range(start, end):
            bucket = order[position]
            left = samples.lengths[bucket_chunk[bucket]] - bucket_row[bucket]
            processed[bucket_chunk[bucket]] += BUCKET_ROWS if left > BUCKET_ROWS else left


@kernel
def objective_sums(
    loss,
    rows,
    samples,
    begin,
    end,
    positives,
    intercept,
    vectors,
    rebuilt,  # OUT
    stats,  # OUT
):
    """What a certificate needs of the chunks `begin` to `end`, in one look at each row, all in float64.

    Args:
        loss, rows, samples, positives, intercept: As in `scd_pass`.
        begin, end: Range of chunks.
        vectors: Where losses are evaluated, shape (outputs, num_features + 1), float64.
        rebuilt: w(alpha) of these chunks is added here, shape as `vectors`.
        stats: Per output, the sums of losses and of dual values are added here, shape (outputs, 2), float64.

    NumPy equivalent::

        for i in visited:
            for k in range(outputs):
                margin = y[i, k] * (x(i) @ v[k])
                stats[k, 0] += primal_losses(loss, margin, upper[i])
                stats[k, 1] += dual_values(loss, a[i, k], upper[i])
                rebuilt[k] += a[i, k] * y[i, k] * x(i)
    """
    num_outputs = np.uintp(len(positives))
    last = np.uintp(rows.num_features)
    for chunk_number in range(begin, end):
        chunk = np.uintp(chunk_number)
        length = np.uintp(samples.lengths[chunk])
        for row in range(length):
            upper = samples.uniform_upper
            if samples.upper[chunk] != 0:
                upper = load(samples.upper[chunk], row, samples.like_real)
            target = load(samples.targets[chunk], row, samples.like_code)
            for k in range(num_outputs):
                sign = 1.0 if target == positives[k] else -1.0
                alpha = load(samples.duals[chunk], row * num_outputs + k, samples.like_real)
                margin = sign * (row_dot(rows, chunk, row, vectors[k]) + intercept * vectors[k, last])
                stats[k, 0] += primal_loss(loss, margin, upper)
                stats[k, 1] += dual_value(loss, alpha, upper)
                if alpha != 0.0:
                    row_add(rows, chunk, row, sign * alpha, rebuilt[k])
                    rebuilt[k, last] += sign * alpha * intercept


@kernel
def squared_norms(
    rows,
    chunk,
    intercept,
    norms,  # OUT
):
    """|x|^2 of the rows of one chunk, the intercept column included.

    Args:
        rows, intercept: As in `scd_pass`.
        chunk: Number of the chunk in the table.
        norms: Shape (rows of that chunk,), float32.

    NumPy equivalent::

        for i in visited:
            norms[i] = x(i) @ x(i)
    """
    for row in range(len(norms)):
        norms[row] = row_norm(rows, np.uintp(chunk), np.uintp(row)) + intercept * intercept
