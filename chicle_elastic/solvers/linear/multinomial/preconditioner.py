"""The preconditioner of conjugate gradients: second derivatives of one class at a time, scaled by their diagonal first.

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
from chicle_elastic.solvers.linear.products import cholesky_solve, pack, packed_diagonal, unpack
from chicle_elastic.solvers.linear.progress import NO_NUMBERS, NOTHING

ALL = NO_NUMBERS  # columns of a block


def block_weights(p: Array, upper: Array) -> Array:
    """C_i K / (K - 1) p_ik (1 - p_ik), shape (K, n), from p_i, shape (K, n), and C_i, shape (n,)."""
    K = len(p)
    weights = p * (1.0 - p)
    weights *= upper * (K / (K - 1.0))
    return np.asarray(weights)


def mean_weights(p: Array, upper: Array) -> Array:
    """The mean of these over the classes, shape (1, n)."""
    return np.asarray(upper * (1.0 - np.einsum("kn,kn->n", p, p)) / (len(p) - 1.0))[np.newaxis]


class ClassBlocks:
    """Factors of the blocks, one per class or one for all (see `Preconditioner`), or diagonals, shape (K, D), alone.

    Classes that are not active have no weight, and stay where they are.
    """

    def __init__(self, diagonal: Array, factor: Array, *, is_active: Array, has_intercept: bool) -> None:
        K, D = diagonal.shape
        self._is_active = is_active
        self._has_intercept = has_intercept
        self._diagonal, factors = diagonal, factor.reshape(-1, D * (D + 1) // 2)
        self._mean = factors[0] if len(factors) == 1 else NOTHING
        self._classes = [Preconditioner(diagonal[k], factors[k], ALL, NOTHING) for k in range(K) if len(factors) == K]

    @staticmethod
    def of(blocks: Array, diagonal: Array, ridge: Array, shares: Array) -> tuple[Array, Array]:
        """Find the diagonal, flat, and the factors.

        `blocks` are packed, one per class or one for all, flat; or there are their diagonals. A single block is
        `shares` times that of each class, 1 on average, shape (K,).
        """
        K, D = ridge.shape
        if not len(blocks):
            return (ridge + np.maximum(diagonal.reshape(-1, D), 0.0)).ravel(), NOTHING
        made = [
            Preconditioner.of(block, packed_diagonal(block, D), ALL, NOTHING, ridge[0])
            for block in blocks.reshape(-1, D * (D + 1) // 2)
        ]
        one = np.zeros(D * (D + 1) // 2)
        pack(np.eye(D), one)
        factor = np.concatenate([each.factor if len(each.factor) else one for each in made])
        diagonals = np.array([each.diagonal for each in made])
        if len(made) < K:
            diagonals = ridge + shares[:, None] * (diagonals - ridge[0])
        return diagonals.ravel(), factor

    def solve(self, residual: Array) -> Array:
        """Estimate the direction that the second derivatives take to this, shape (K D,)."""
        r = residual.reshape(self._diagonal.shape)
        r = _projected(r, self._is_active, has_intercept=self._has_intercept)
        scale = 1.0 / np.sqrt(np.where(self._diagonal > 0, self._diagonal, 1.0))
        z = scale * r
        if len(self._mean):  # all classes at once
            z = cholesky_solve(unpack(self._mean, z.shape[1]), z.T).T
        z = scale * z
        for k, each in enumerate(self._classes):
            z[k] = each.solve(r[k])
        return _projected(z, self._is_active, has_intercept=self._has_intercept).ravel()


def joint_block(rows: Array, p: Array, upper: Array, *, has_intercept: bool) -> Array:
    """Second derivatives of the losses by all weights, classes one after the other, packed by rows."""
    n, K = len(rows), len(p)
    rows = np.column_stack([rows, np.full(n, float(has_intercept))])
    D = rows.shape[1]
    spread = (p.T[:, :, np.newaxis] * rows[:, np.newaxis, :]).reshape(n, K * D)
    matrix = -(spread.T * upper) @ spread
    for k in range(K):
        part = slice(k * D, (k + 1) * D)
        matrix[part, part] += (rows.T * (upper * p[k])) @ rows
    packed = np.zeros(K * D * (K * D + 1) // 2)
    pack(np.ascontiguousarray(matrix), packed)
    return packed


def joint_step(packed: Array, residual: Array, is_active: Array, *, has_intercept: bool) -> Array:
    """Return the direction, shape (K, D), that a summed `joint_block` takes to the residual over active classes."""
    K, D = residual.shape
    matrix = unpack(packed, K * D).reshape(K, D, K, D)
    # Where all classes rise together there is no curvature. Any will do, of the size of the others: with that of a
    # jitter columns of 1e6 + 1 take twice the steps.
    diagonals, active = np.einsum("kdld->kld", matrix), np.ix_(is_active, is_active)
    own = np.einsum("kkd->kd", diagonals)[is_active]
    diagonals[active] += own.mean(axis=0) / len(own)
    penalty = np.ones((K, D))
    penalty[:, -1] = 0.0
    r = _projected(residual, is_active, has_intercept=has_intercept)
    solve, _ = exact_solver(matrix.reshape(K * D, K * D), penalty.ravel(), is_rough=True)
    return _projected(solve(r.ravel()).reshape(K, D), is_active, has_intercept=has_intercept)


def _projected(vectors: Array, is_active: Array, *, has_intercept: bool) -> Array:
    """Make the sum over the active classes 0, and the others 0; shape (K, D)."""
    if is_active.all():
        result = vectors - vectors.mean(axis=0)
    else:
        active = vectors[is_active]
        result = np.zeros_like(vectors)
        result[is_active] = active - active.mean(axis=0)
    if not has_intercept:
        result[:, -1] = 0.0
    return result
