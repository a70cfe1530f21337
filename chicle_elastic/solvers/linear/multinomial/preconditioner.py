"""Second derivatives of a softmax: of all weights, or the preconditioner of conjugate gradients, one class at a time.

The second derivatives of P are sum_i C_i (diag(p_i) - p_i p_i^T) (x) x_i x_i^T, and I for the weights. Blocks of single
classes have C_i p_ik (1 - p_ik) there. Directions whose sum over classes is not 0 have no curvature but that of the
penalty; the gradient has no part in them, so residuals and what is made of them are projected to a sum of 0. There the
blocks fall short by what classes have in common; a factor of K / (K - 1) makes them exact where all classes are equally
likely, and with two of them. Where there is no room for a block of each class, one has the mean of all, and each class
a scale of its own.
"""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.newton.directions import Preconditioner, exact_solver
from chicle_elastic.solvers.linear.products import (
    ALL,
    pack,
    packed_diagonal,
    packed_factor,
    packed_solve,
    triangle_ends,
    unpack,
)
from chicle_elastic.solvers.linear.progress import NOTHING


def block_weights(p: Array, upper: Array) -> Array:
    """C_i K / (K - 1) p_ik (1 - p_ik), shape (K, n), from p_i, shape (K, n), and C_i, shape (n,)."""
    K = len(p)
    weights = p * (1.0 - p)
    weights *= upper * (K / (K - 1.0))
    return np.asarray(weights)


def mean_weights(p: Array, upper: Array) -> Array:
    """The mean of these over the classes, shape (1, n)."""
    return np.asarray(upper * (1.0 - np.einsum("kn,kn->n", p, p)) / (len(p) - 1.0))[np.newaxis]


def factored(
    blocks: Array, diagonal: Array, ridge: Array, shares: Array, *, is_rough: bool = False
) -> tuple[Array, Array]:
    """Find the diagonals, shape (K, D), and the number of factors of blocks scaled by these and the factors, flat.

    `blocks` are packed, one per class or one for all, flat; or there are their diagonals. A single block is `shares`
    times that of each class, 1 on average, shape (K,). Factors of rough sums are found in float32, and two values are
    kept in the place of one, as pairs of conjugate gradients are.
    """
    K, D = ridge.shape
    if not len(blocks):
        return ridge + np.maximum(diagonal.reshape(-1, D), 0.0), NOTHING
    packed, dtype = blocks.reshape(-1, D * (D + 1) // 2), np.float32 if is_rough else np.float64
    found = np.zeros(1 + (packed.size + is_rough) // (1 + is_rough))
    found[0], diagonals, factors = len(packed), np.empty((len(packed), D)), found[1:].view(dtype)
    for number, block in enumerate(packed):
        made = Preconditioner.of(block, packed_diagonal(block, D), ALL, NOTHING, ridge[0], is_rough=is_rough)
        diagonals[number], factor = made.diagonal, made.factor
        if not len(factor):
            one = np.zeros(len(block), dtype)
            one[triangle_ends(D) - 1] = 1.0
            factor = packed_factor(one, D)
        factors[number * len(factor) : (number + 1) * len(factor)] = factor
    if len(packed) < K:
        diagonals = ridge + shares[:, None] * (diagonals - ridge[0])
    return diagonals, found


def preconditioned(residual: Array, diagonal: Array, factor: Array) -> Array:
    """Estimate the direction that the second derivatives take to the residual, shape (K, D), from `factored`."""
    K, D = diagonal.shape
    count, size = (int(factor[0]), D * (D + 1) // 2) if len(factor) else (0, 0)
    values = factor[1:] if len(factor) == 1 + count * size else factor[1:].view(np.float32)
    factors = values[: count * size].reshape(count, size)
    scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    z = scale * residual
    if count == K:
        z = np.array([packed_solve(factor, r) for factor, r in zip(factors, z, strict=True)])
    elif count:
        z = packed_solve(factors[0], z.T).T  # all classes at once
    return np.asarray(scale * z)


def joint_block(rows: Array, p: Array, upper: Array) -> Array:
    """Second derivatives of the losses by all weights, classes one after the other, packed by rows."""
    (n, D), K = rows.shape, len(p)
    spread = (p.T[:, :, np.newaxis] * rows[:, np.newaxis, :]).reshape(n, K * D)
    matrix = -(spread.T * upper) @ spread
    for k in range(K):
        part = slice(k * D, (k + 1) * D)
        matrix[part, part] += (rows.T * (upper * p[k])) @ rows
    packed = np.zeros(K * D * (K * D + 1) // 2)
    pack(np.ascontiguousarray(matrix), packed)
    return packed


def joint_step(packed: Array, residual: Array, is_active: Array) -> Array:
    """Return the direction that a summed `joint_block` takes to a residual, shape (K, D), over active classes."""
    K, D = residual.shape
    matrix = unpack(packed, K * D).reshape(K, D, K, D)
    # Where all classes rise together there is no curvature. Any will do, of the size of the others: with that of a
    # jitter columns of 1e6 + 1 take twice the steps.
    diagonals, active = np.einsum("kdld->kld", matrix), np.ix_(is_active, is_active)
    own = np.einsum("kkd->kd", diagonals)[is_active]
    diagonals[active] += own.mean(axis=0) / len(own)
    penalty = np.ones((K, D))
    penalty[:, -1] = 0.0
    solve, _ = exact_solver(matrix.reshape(K * D, K * D), penalty.ravel(), is_rough=True)
    return solve(residual.ravel()).reshape(K, D)
