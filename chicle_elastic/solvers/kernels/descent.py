"""Dual coordinate descent with shrinking, over all local chunks (the local solver of CoCoA).

Rows that fit into a cache are visited one by one in random order, and many passes are made in one call. Other rows are
visited in shuffled buckets of 32: as good as random rows for convergence, and twice as fast, because rows of a bucket
lie side by side. The order runs over *all* local chunks; shuffling within a chunk only costs many more epochs.
A block of buckets is turned into a list of rows first, so that rows can be asked for before they are needed.

Shrinking (Hsieh, Chang, Lin, Keerthi and Sundararajan 2008, "A dual coordinate descent method for large-scale linear
SVM", section 3.2). A dual at a bound whose derivative says that it stays there, by more than any derivative of the pass
before said of the others, is left out until all others are done, or until a certificate has looked at every row.

Many passes end with one that moves no dual. It finds the gap of w, where other passes find estimates, summed while w
moves. It follows an estimate that is near enough, by what the last such pass has found.

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
from chicle_elastic.solvers.kernels.losses import is_settled, primal_loss, pull, sign_and_target, step_and_values
from chicle_elastic.solvers.kernels.memory import (
    CODE,
    COUNT,
    FLAG,
    NUMBER,
    PLACE,
    REAL,
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

BUCKET_ROWS = 32
"""Rows of a bucket, and those that are asked for ahead at most. With 16 a pass over 1,000,000 x 28 values or over 11
values a row takes 1.2 to 1.4 times as long, with 64 as long and 5 passes come to a gap that is a tenth larger."""
MAX_OVERLAPPED = 96
"""Columns up to which a row's product is begun before the step of the row before it is known.

The steps are a chain: each product has to wait for the step before it, and for short rows the processor does little
else. Begun early, a product misses one step, which is made good by that step times <x, x'> of the two rows. Long rows
have enough to do, and CSR rows have no cheap <x, x'>.
"""
BLOCK_ROWS = 512
"""Rows between two looks at the stop flag; all outputs visit a block while it is in the cache."""
CURSOR, ACTIVE, RANDOM, NUM_COUNTS = range(4)
"""Places in the counts of an order: buckets that are taken, buckets that are to be visited, state of the generator."""
GAP, CHANGE, VISITS, MOST, LEAST, NUM_STATS = range(6)
"""Places in the statistics of an output: see `descend`."""
ABOVE, BELOW, PER_GAP = 0, 1, 2
"""Places in the bounds of an output: see `descend`."""
FIRST_PER_GAP, LEAST_PER_GAP = 2.0, 0.1
"""What an estimate is of the gap that is found at its end, at first and at least: duals most often near the optimum."""


class SampleTable(NamedTuple):
    """Everything per sample that is not a feature: addresses, one per chunk. Kernels write duals, `left_out`, norms."""

    lengths: Array  # rows per chunk, shape (num_chunks,), int64
    targets: Array  # of class codes (int32)
    duals: Array  # float64, outputs side by side
    left_out: Array  # of whether each dual is left out (uint8, outputs side by side)
    norms: Array  # of |x|^2 with the intercept column (float64); 0 until a row is first visited
    upper: Array  # of C_i (float64); 0 where every sample has `uniform_upper`
    uniform_upper: float  # C


class Scratch(NamedTuple):
    """Memory of one thread."""

    work: Array  # see `tables`; shape (num_features,), float32. Empty without a working copy, as the next one
    gathered: Array  # zeros of this shape, float64
    chunks: Array  # chunks, rows: the rows to visit in a block, shape (BLOCK_ROWS,), uint32
    rows: Array


def positives(num_outputs: int) -> Array:
    """Positive class code of each output: 1 of two classes, else each class in turn; int32."""
    return np.arange(num_outputs, dtype=np.int32) if num_outputs > 1 else np.ones(1, dtype=np.int32)


def make_scratch(rows: RowTable) -> Scratch:
    """Scratch memory for `descend`; there is a working copy where it is in float32."""
    dtype = rows.kind.like_work.dtype.name
    d = rows.num_features if dtype == "float32" else 0
    return Scratch(
        work=aligned_zeros((d,), dtype),
        gathered=aligned_zeros((d,), "float64"),
        chunks=np.zeros(BLOCK_ROWS, np.uint32),
        rows=np.zeros(BLOCK_ROWS, np.uint32),
    )


@kernel
def shuffle(
    order,  # OUT: buckets, shape (n,), int32; those that nobody visits are below 0
    counts,  # OUT: int64, see `CURSOR`; the state of the generator is not 0
):
    """Begin a pass: move the buckets that nobody visits any more to the end, and shuffle the others."""
    kept, random = 0, np.uint64(counts[RANDOM])
    for place in range(counts[ACTIVE]):
        bucket = order[place]
        if bucket >= 0:
            order[place], order[kept] = order[kept], bucket
            kept += 1
    for place in range(kept - 1, 0, -1):
        random ^= random << np.uint64(13)  # xorshift (Marsaglia 2003)
        random ^= random >> np.uint64(7)
        random ^= random << np.uint64(17)
        other = np.int64((random >> np.uint64(32)) * np.uint64(place + 1) >> np.uint64(32))  # a remainder takes longer
        order[place], order[other] = order[other], order[place]
    counts[CURSOR], counts[ACTIVE], counts[RANDOM] = 0, kept, np.int64(random)


@kernel
def descend(
    loss,  # one of `losses.LOSSES`
    rows,  # `tables.RowTable`
    samples,  # `SampleTable`
    bucket_chunk,  # bucket_chunk, bucket_row: chunk and first row there of each bucket, shape (num_buckets,), int32
    bucket_row,
    bucket_rows,  # rows of a bucket, see `LocalTables.bucket_rows`; the last one of a chunk may have fewer
    positives,  # positive class of each output, shape (outputs,), int32
    intercept,  # value of the intercept column; 0 for none
    ahead,  # rows to ask for ahead of time, `BLOCK_ROWS` for none
    # orders, counts: OUT. Of one pass one order, which all outputs have in common, as `shuffle` leaves it; of many
    # passes one for each output, in which buckets without a row to visit become negative; (orders, num_buckets or 3)
    orders,
    counts,
    # OUT: largest and least derivative of the pass before, infinite where nothing is to be left out, and what an
    # estimate is of the gap that is found after it; shape (outputs, 3), float64. Written by many passes
    bounds,
    dual_sums,  # sums of dual values per output before this call
    stop,  # uint8 of shape (1,); looked at between blocks, or between many passes
    scratch,  # OUT: `Scratch`
    are_done,  # which orders have no part in this, shape (orders,), bool
    num_buckets,  # buckets of the order to visit, where there is one pass
    max_blocks,  # blocks to do at most before looking at the clock, where there is one pass
    sigma,  # CoCoA's sigma' >= 1
    goal,  # relative gap that ends many passes
    # 0 for one pass. Else one thread makes passes for one output after the other over buckets of one row, until the gap
    # is `goal`, or as many duals were visited
    most_visits,
    vectors,  # OUT: w + sigma' * (local change), shape (outputs, num_features + 1), float64, C-contiguous
    processed,  # OUT: rows processed per chunk are added, shape (num_chunks,), int64
    # OUT: per output, shape (outputs, 5), float64, C-contiguous. Added to: gap contributions at the moving vector (of
    # many passes the gap at their end, or `FIRST_PER_GAP` times what it is expected to be if that is above `goal`),
    # change of the sum of dual values, duals that were looked at. Then the largest and the least derivative of duals
    # that may move (in the last pass)
    stats,
):
    """Exact coordinate steps over the buckets of an order; threads share the order block by block.

    NumPy equivalent of one pass, where rows of weight 0 are not visited::

        for i in visited:
            for k in range(outputs):
                margin = y[i, k] * (x(i) @ v[k])
                old = dual_values(loss, a[i, k], upper[i])
                stats[k, 0] += primal_losses(loss, margin, upper[i]) - old + a[i, k] * margin
                step = coordinate_steps(loss, margin, a[i, k], sigma * norm[i], upper[i]) - a[i, k]
                a[i, k] += step
                v[k] += sigma * step * y[i, k] * x(i)
                stats[k, 1] += dual_values(loss, a[i, k], upper[i]) - old
                stats[k, 2] += 1
    """
    kind, last, num_outputs = rows.kind, np.uintp(rows.num_features), np.uintp(len(positives))
    bucket_rows, ahead, one = np.uintp(bucket_rows), np.uintp(ahead), np.uintp(1)
    # Addresses, because each use of an array in a tuple takes the compiler as long as ten loads.
    lengths, targets, duals = address_of(samples.lengths), address_of(samples.targets), address_of(samples.duals)
    norms, uppers, left_outs = address_of(samples.norms), address_of(samples.upper), address_of(samples.left_out)
    chunk_of, row_of = address_of(scratch.chunks), address_of(scratch.rows)
    work_copy, gathered = address_of(scratch.work), address_of(scratch.gathered)
    is_alone = most_visits > 0
    overlaps = is_dense(kind) and rows.num_features <= MAX_OVERLAPPED
    is_copied = item_size(kind.like_work) < item_size(REAL)
    block_buckets = BLOCK_ROWS // np.int64(bucket_rows)
    for which in range(len(orders)):
        if are_done[which]:
            continue
        order, place = orders[which], address_of(counts[which])
        first_output, end_output = (which, which + 1) if is_alone else (0, len(positives))
        is_fixed, estimate = False, 0.0
        while True:
            if is_alone:
                shuffle(order, counts[which])
                num_buckets = counts[which, ACTIVE]
                stats[which, GAP], stats[which, MOST], stats[which, LEAST] = 0.0, -math.inf, math.inf
            start, number = fetch_add(place, block_buckets), 0
            while start < num_buckets and (is_alone or (number < max_blocks and stop[0] == 0)):
                number += 1
                end = start + block_buckets if start + block_buckets < num_buckets else num_buckets
                # Taken one ahead, so that it can be asked for.
                next_start = fetch_add(place, block_buckets) if is_alone or number < max_blocks else num_buckets
                for k in range(np.uintp(first_output), np.uintp(end_output)):
                    vector = address_of(vectors) + k * (last + one) * item_size(REAL)
                    # The rows to visit; those of weight 0 are none: their duals are 0 and stay so.
                    count = np.uintp(0)
                    for position in range(start, end):
                        bucket, before = order[position], count
                        chunk, row = np.uintp(bucket_chunk[bucket]), np.uintp(bucket_row[bucket])
                        behind, upper_of = np.uintp(load(lengths, chunk, COUNT)), load(uppers, chunk, PLACE)
                        left_out_of = load(left_outs, chunk, PLACE)
                        behind = row + bucket_rows if row + bucket_rows < behind else behind
                        while row < behind:
                            store(chunk_of, count, chunk, NUMBER)
                            store(row_of, count, row, NUMBER)
                            is_left_out = load(left_out_of, row * num_outputs + k, FLAG) != 0
                            count += np.uintp((upper_of == 0 or load(upper_of, row, REAL) != 0.0) and not is_left_out)
                            row += one
                        if is_alone and count == before:
                            order[position] = ~bucket
                    if k == np.uintp(end_output) - one and ahead < np.uintp(BLOCK_ROWS):
                        # Ask for what the listing and the steps of the next block read of each bucket besides its rows.
                        for position in range(next_start, next_start + block_buckets):
                            if position >= num_buckets:
                                break
                            bucket = order[position]
                            chunk, row = np.uintp(bucket_chunk[bucket]), np.uintp(bucket_row[bucket])
                            entry, entries = row * num_outputs, bucket_rows * num_outputs
                            prefetch(load(left_outs, chunk, PLACE), entry, entries, FLAG)
                            prefetch(load(duals, chunk, PLACE), entry, entries, REAL)
                            prefetch(load(norms, chunk, PLACE), row, bucket_rows, REAL)
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
                    sum_gap, sum_dual, most, least = 0.0, 0.0, -math.inf, math.inf
                    above, below = bounds[k, ABOVE], bounds[k, BELOW]
                    for j in range(ahead if ahead < count else np.uintp(0)):
                        row_prefetch(kind, row_at(rows, load(chunk_of, j, NUMBER), load(row_of, j, NUMBER)))
                    chunk = np.uintp(load(chunk_of, np.uintp(0), NUMBER))
                    row = np.uintp(load(row_of, np.uintp(0), NUMBER))
                    at, product = row_at(rows, chunk, row), 0.0
                    for j in range(count):
                        if j + ahead < count:
                            to_come = row_at(rows, load(chunk_of, j + ahead, NUMBER), load(row_of, j + ahead, NUMBER))
                            row_prefetch(kind, to_come)
                        following = j + one if j + one < count else j
                        next_chunk = np.uintp(load(chunk_of, following, NUMBER))
                        next_row = np.uintp(load(row_of, following, NUMBER))
                        next_at, next_product, cross = row_at(rows, next_chunk, next_row), 0.0, 0.0
                        if not (overlaps and j > 0):
                            product = row_dot(kind, at, work, kind.like_work)
                        norm = load(load(norms, chunk, PLACE), row, REAL)
                        if norm == 0.0:
                            norm = row_cross(kind, at, at) + intercept * intercept
                            store(load(norms, chunk, PLACE), row, norm, REAL)
                        if overlaps:
                            next_product = row_dot(kind, next_at, work, kind.like_work)
                            cross = row_cross(kind, at, next_at)
                        sign, target = sign_and_target(loss, load(targets, chunk, PLACE), row, positives[k])
                        upper, upper_of = samples.uniform_upper, load(uppers, chunk, PLACE)
                        if upper_of != 0:
                            upper = load(upper_of, row, REAL)
                        entry, dual_of = row * num_outputs + k, load(duals, chunk, PLACE)
                        alpha = load(dual_of, entry, REAL)
                        margin = sign * (product + intercept * offset) - target
                        new_alpha, old, new = step_and_values(loss, margin, alpha, sigma * norm, upper)
                        sum_gap += primal_loss(loss, margin, upper) - old + alpha * margin
                        slope = pull(loss, margin, alpha, upper)
                        if is_settled(loss, margin, alpha, upper):
                            if slope > above if alpha == 0.0 else slope < below:
                                store(load(left_outs, chunk, PLACE), entry, np.uint8(1), FLAG)
                        else:
                            most = slope if slope > most else most
                            least = slope if slope < least else least
                        if new_alpha != alpha and not is_fixed:
                            store(dual_of, entry, new_alpha, REAL)
                            factor = sigma * (new_alpha - alpha) * sign
                            next_product += factor * cross
                            row_add(kind, factor, at, work, kind.like_work)
                            if is_copied:
                                row_add(kind, factor, at, gathered, REAL)
                            offset += factor * intercept
                            sum_dual += new - old + target * (new_alpha - alpha)
                        chunk, row, at, product = next_chunk, next_row, next_at, next_product
                    if is_copied:
                        for j in range(last):
                            store(vector, j, load(vector, j, REAL) + load(gathered, j, REAL), REAL)
                            store(gathered, j, 0.0, REAL)
                    store(vector, last, offset, REAL)
                    stats[k, GAP] += sum_gap
                    stats[k, CHANGE] += sum_dual
                    stats[k, VISITS] += np.float64(count)
                    stats[k, MOST] = max(stats[k, MOST], most)
                    stats[k, LEAST] = min(stats[k, LEAST], least)
                for position in range(start, end):
                    if is_alone:
                        break
                    bucket = order[position]
                    left = samples.lengths[bucket_chunk[bucket]] - bucket_row[bucket]
                    processed[bucket_chunk[bucket]] += np.int64(bucket_rows) if left > np.int64(bucket_rows) else left
                start = next_start
            if not is_alone:
                return
            own, bound, squared = stats[which], bounds[which], 0.0
            for column in range(rows.num_features + 1):
                squared += vectors[which, column] * vectors[which, column]
            primal = dual_sums[which] + own[CHANGE] - 0.5 * squared + own[GAP]
            most, least = own[MOST], own[LEAST]
            is_done = own[GAP] <= (1.0 if is_fixed else bound[PER_GAP]) * goal * primal or most < least
            if is_fixed and is_done:
                break
            if is_fixed:
                bound[PER_GAP] = min(max(estimate / own[GAP], LEAST_PER_GAP), FIRST_PER_GAP)
            if stop[0] != 0 or (own[VISITS] >= most_visits and not is_done):
                own[GAP] *= FIRST_PER_GAP / (1.0 if is_fixed else bound[PER_GAP])
                break
            bound[ABOVE] = most if most > 0.0 else math.inf
            bound[BELOW] = least if least < 0.0 else -math.inf
            is_fixed, estimate = is_done, own[GAP]
            if is_fixed:  # those that were left out have a part in the gap
                for position in range(len(order)):
                    bucket = order[position] if order[position] >= 0 else ~order[position]
                    entry = np.uintp(bucket_row[bucket]) * num_outputs + np.uintp(which)
                    store(load(left_outs, np.uintp(bucket_chunk[bucket]), PLACE), entry, np.uint8(0), FLAG)
                    order[position] = bucket
                counts[which, ACTIVE] = len(order)
                bound[ABOVE], bound[BELOW] = math.inf, -math.inf
