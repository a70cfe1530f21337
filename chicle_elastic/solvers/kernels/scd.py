"""Stochastic coordinate descent on the dual, over all local chunks (the local solver of CoCoA).

Rows are visited in shuffled buckets of 8: as good as random rows for convergence, and twice as fast, because rows of a
bucket lie side by side. The order runs over *all* local chunks; shuffling within a chunk only costs many more epochs.

Each docstring ends with the plain NumPy form of the kernel; a test runs that very text against the kernel. In it,
`x(i)` is row i with the intercept column appended, `y[i, k]` is +1 where the target is class `positives[k]`, else -1,
`a[i, k]` the dual, `norm[i]` |x(i)|^2, `upper[i]` C_i, `v[k]` = `vectors[k]`; rows `i` come in the order of the call.
"""

from typing import NamedTuple

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.kernels.jit import kernel
from chicle_elastic.solvers.kernels.losses import coordinate_step, dual_value, primal_loss
from chicle_elastic.solvers.kernels.tables import array_at, row_add, row_dot, row_norm

BUCKET_ROWS = 8
BLOCK_BUCKETS = 64
"""Buckets between two looks at the stop flag; all outputs visit a block while its rows are in the cache."""


class SampleTable(NamedTuple):
    """Everything per sample that is not a feature, one entry per chunk.

    Attributes:
        lengths: Rows per chunk, shape (num_chunks,), int64.
        targets: Addresses of class codes (int32).
        duals: Addresses of the duals (float64, outputs side by side); the kernels write there.
        norms: Addresses of |x|^2 with the intercept column (float64).
        upper: Addresses of C_i (float64); 0 where every sample has `uniform_upper`.
        uniform_upper: C.
        like_code, like_real: Empty arrays of int32 and float64.
    """

    lengths: Array
    targets: Array
    duals: Array
    norms: Array
    upper: Array
    uniform_upper: float
    like_code: Array
    like_real: Array


@kernel
def scd_pass(
    loss,
    rows,
    samples,
    bucket_chunk,
    bucket_row,
    order,
    positives,
    intercept,
    sigma,
    stop,
    vectors,  # OUT
    processed,  # OUT
    stats,  # OUT
):
    """One pass of exact coordinate steps over the buckets of `order`, for all outputs.

    Args:
        loss: Number of an `objectives.Loss`.
        rows: `tables.DenseTable` or `tables.CsrTable`.
        samples: `SampleTable`; its duals are written (OUT).
        bucket_chunk: Chunk of each bucket, shape (num_buckets,), int64.
        bucket_row: First row of each bucket in its chunk, shape (num_buckets,), int64.
        order: Buckets to visit, shape (n,), int64.
        positives: Positive class of each output, shape (outputs,), int32.
        intercept: Value of the intercept column; 0 for none.
        sigma: CoCoA's sigma' >= 1.
        stop: uint8 of shape (1,); looked at between blocks.
        vectors: Working vectors w + sigma' * (local change), shape (outputs, num_features + 1), float64.
        processed: Rows processed per chunk are added here, shape (num_chunks,), int64.
        stats: Per output, sums of loss and of gap contributions at the moving vector, shape (outputs, 2), float64.

    NumPy equivalent::

        for i in visited:
            for k in range(outputs):
                margin = y[i, k] * (x(i) @ v[k])
                stats[k, 0] += primal_losses(loss, margin, upper[i])
                stats[k, 1] += primal_losses(loss, margin, upper[i]) - dual_values(loss, a[i, k], upper[i])
                stats[k, 1] += a[i, k] * margin
                step = coordinate_steps(loss, margin, a[i, k], sigma * norm[i], upper[i]) - a[i, k]
                a[i, k] += step
                v[k] += sigma * step * y[i, k] * x(i)
    """
    num_outputs = np.uintp(len(positives))
    last = np.uintp(rows.num_features)
    for start in range(0, len(order), BLOCK_BUCKETS):
        if stop[0] != 0:
            return
        end = min(start + BLOCK_BUCKETS, len(order))
        for k in range(num_outputs):
            vector = vectors[k]
            positive = positives[k]
            sum_loss = 0.0
            sum_gap = 0.0
            for position in range(start, end):
                bucket = np.uintp(order[position])
                chunk = np.uintp(bucket_chunk[bucket])
                length = np.uintp(samples.lengths[chunk])
                targets = array_at(samples.targets[chunk], length, samples.like_code)
                duals = array_at(samples.duals[chunk], length * num_outputs, samples.like_real)
                norms = array_at(samples.norms[chunk], length, samples.like_real)
                has_upper = samples.upper[chunk] != 0
                uppers = array_at(samples.upper[chunk], length, samples.like_real)
                first = np.uintp(bucket_row[bucket])
                for row in range(first, min(first + np.uintp(BUCKET_ROWS), length)):
                    sign = 1.0 if targets[row] == positive else -1.0
                    upper = uppers[row] if has_upper else samples.uniform_upper
                    alpha = duals[row * num_outputs + k]
                    margin = sign * (row_dot(rows, chunk, row, vector) + intercept * vector[last])
                    value = primal_loss(loss, margin, upper)
                    sum_loss += value
                    sum_gap += value - dual_value(loss, alpha, upper) + alpha * margin
                    new_alpha = coordinate_step(loss, margin, alpha, sigma * norms[row], upper)
                    if new_alpha != alpha:
                        duals[row * num_outputs + k] = new_alpha
                        factor = sigma * (new_alpha - alpha) * sign
                        row_add(rows, chunk, row, factor, vector)
                        vector[last] += factor * intercept
            stats[k, 0] += sum_loss
            stats[k, 1] += sum_gap
        for position in range(start, end):
            bucket = order[position]
            chunk_done = bucket_chunk[bucket]
            processed[chunk_done] += min(BUCKET_ROWS, samples.lengths[chunk_done] - bucket_row[bucket])


@kernel
def dual_vectors(
    rows,
    samples,
    begin,
    end,
    positives,
    intercept,
    vectors,  # OUT
):
    """w(alpha) of the chunks `begin` to `end`, added to `vectors`.

    Args:
        rows, samples, positives, intercept: As in `scd_pass`.
        begin, end: Range of chunks.
        vectors: Shape (outputs, num_features + 1), float64.

    NumPy equivalent::

        for i in visited:
            for k in range(outputs):
                v[k] += a[i, k] * y[i, k] * x(i)
    """
    num_outputs = np.uintp(len(positives))
    last = np.uintp(rows.num_features)
    for chunk_number in range(begin, end):
        chunk = np.uintp(chunk_number)
        length = np.uintp(samples.lengths[chunk])
        targets = array_at(samples.targets[chunk], length, samples.like_code)
        duals = array_at(samples.duals[chunk], length * num_outputs, samples.like_real)
        for row in range(length):
            for k in range(num_outputs):
                alpha = duals[row * num_outputs + k]
                if alpha != 0.0:
                    factor = alpha if targets[row] == positives[k] else -alpha
                    row_add(rows, chunk, row, factor, vectors[k])
                    vectors[k, last] += factor * intercept


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
    stats,  # OUT
):
    """Sums of primal losses and dual values at fixed vectors, over the chunks `begin` to `end`.

    Args:
        loss, rows, samples, positives, intercept: As in `scd_pass`.
        begin, end: Range of chunks.
        vectors: Shape (outputs, num_features + 1), float64.
        stats: Per output, the two sums are added here, shape (outputs, 2), float64.

    NumPy equivalent::

        for i in visited:
            for k in range(outputs):
                margin = y[i, k] * (x(i) @ v[k])
                stats[k, 0] += primal_losses(loss, margin, upper[i])
                stats[k, 1] += dual_values(loss, a[i, k], upper[i])
    """
    num_outputs = np.uintp(len(positives))
    last = np.uintp(rows.num_features)
    for chunk_number in range(begin, end):
        chunk = np.uintp(chunk_number)
        length = np.uintp(samples.lengths[chunk])
        targets = array_at(samples.targets[chunk], length, samples.like_code)
        duals = array_at(samples.duals[chunk], length * num_outputs, samples.like_real)
        has_upper = samples.upper[chunk] != 0
        uppers = array_at(samples.upper[chunk], length, samples.like_real)
        for row in range(length):
            upper = uppers[row] if has_upper else samples.uniform_upper
            for k in range(num_outputs):
                sign = 1.0 if targets[row] == positives[k] else -1.0
                margin = sign * (row_dot(rows, chunk, row, vectors[k]) + intercept * vectors[k, last])
                stats[k, 0] += primal_loss(loss, margin, upper)
                stats[k, 1] += dual_value(loss, duals[row * num_outputs + k], upper)


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
        norms: Shape (rows of that chunk,), float64.

    NumPy equivalent::

        for i in visited:
            norms[i] = x(i) @ x(i)
    """
    for row in range(len(norms)):
        norms[row] = row_norm(rows, np.uintp(chunk), np.uintp(row)) + intercept * intercept
