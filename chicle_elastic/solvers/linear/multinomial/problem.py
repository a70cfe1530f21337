"""The softmax as a problem of `newton`: one output with the weights of all classes, which the loss ties together.

w is W and, as the last column, b, shape (K, D), flat (see `objective`). Scores of all classes may rise together, and
the penalty has W where they do not: directions have a sum of 0 over the classes, as has the gradient.

On little data the second derivatives of all weights are summed up, and steps are exact. Else the preconditioner has
those of each class by itself, or of their mean: all together would be K^2 blocks, with fewer passes
that take far longer. Where W is 0 all samples have the shares of the classes as their probabilities, so loss, gradient
and second derivatives follow from the look at the data, with a single block.

The second derivatives of P are sum_i C_i (diag(p_i) - p_i p_i^T) (x) x_i x_i^T, and I for the weights. Blocks of single
classes have C_i p_ik (1 - p_ik) there. Directions whose sum over classes is not 0 have no curvature but that of the
penalty; the gradient has no part in them, so residuals and what is made of them are projected to a sum of 0. There the
blocks fall short by what classes have in common; a factor of K / (K - 1) makes them exact where all classes are equally
likely, and with two of them. Where there is no room for a block of each class, one has the mean of all, and each class
a scale of its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot, solve_positive, squared
from chicle_elastic.solvers.linear.losses import RegressionLoss, SmoothLoss
from chicle_elastic.solvers.linear.methods import most_block_columns
from chicle_elastic.solvers.linear.multinomial import objective
from chicle_elastic.solvers.linear.newton.directions import Preconditioner, exact_solver
from chicle_elastic.solvers.linear.newton.state import (
    KEPT_PRODUCTS,
    Block,
    Evaluation,
    NewtonPhase,
    NewtonState,
    OutputState,
    Problem,
    Sum,
)
from chicle_elastic.solvers.linear.objectives import TINY
from chicle_elastic.solvers.linear.products import (
    ALL,
    pack,
    packed_diagonal,
    packed_factor,
    packed_solve,
    symmetric,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxProblem(Problem):
    """Minimise 1/2 |W|^2 and the losses of all classes."""

    # says what kind of loss it is; that of two classes is of the same kind
    loss: RegressionLoss = field(default_factory=SmoothLoss)

    def is_active(self, output: OutputState) -> Array:
        """Say which classes have weight, shape (K,), bool; without intercepts those without one are like all others."""
        totals = self.by_class(output.linear)[:, -1]
        return totals > 0 if self.has_free_intercept else np.ones(len(totals), dtype=bool)

    def num_blocks(self, state: NewtonState, output: OutputState | None = None) -> int:
        """Say of what a message has the second derivatives: of each class, of their mean, or diagonals alone (0).

        A warm start whose blocks would take long begins with the mean, as a new fit does: it takes a K-th of the time.
        """
        is_short = output is not None and output.num_spared > 0
        return 1 if is_short else num_blocks(self.num_classes, state.D // self.num_classes)

    def block_size(self, state: NewtonState) -> int:
        """Return the length of one block of second derivatives."""
        D = state.D // self.num_classes
        return D * (D + 1) // 2 if state.is_exact or self.num_blocks(state) else D

    def look_size(self, state: NewtonState, output: OutputState) -> int:
        """Length of sum C y (x, 1)^T and, where W is 0, of the second derivatives with C as weights."""
        return state.D + (output.block is not Block.KEPT) * self.block_size(state)

    def sizes(self, state: NewtonState, output: OutputState) -> tuple[int, int, int]:
        """See `Problem`; `beside` has the second derivatives by the intercepts, (K, K)."""
        K, D = self.num_classes, state.D
        if output.block is Block.KEPT:
            return 0, 0, K * K
        if state.is_exact:
            return D * (D + 1) // 2, 0, K * K
        num_blocks = self.num_blocks(state, output)
        return num_blocks * self.block_size(state), 0 if num_blocks else D, K * K

    def looked(self, state: NewtonState, output: OutputState, w: Array, sums: Array) -> tuple[Array, Evaluation | None]:
        """Begin with W centred, and where it is 0 with the shares of the classes as probabilities."""
        K, is_cold, block = self.num_classes, output.block is not Block.KEPT, sums[state.D :]
        output.linear = sums[: state.D].copy()
        if is_cold or not len(output.factor):
            output.block = state.first_block
        output.phase = NewtonPhase.EVALUATE
        linear, is_active = self.by_class(output.linear), self.is_active(output)
        W = self._centred(w, is_active)
        total = dot(linear[:, -1], np.ones(K))
        num_products = state.D // (K * KEPT_PRODUCTS * state.row_step)  # that take as long as a block of each class
        if output.is_first and not is_cold and num_products > state.kept_products and self.num_blocks(state) == K:
            output.num_spared = num_products
        if not is_cold or not total > 0:
            return W.ravel(), None
        shares = linear[:, -1] / total if self.has_free_intercept else np.full(K, 1.0 / K)
        logs = np.array([math.log(share) if share > 0 else 0.0 for share in shares.tolist()])
        if self.has_free_intercept:
            W[is_active, -1] = logs[is_active]
            W = self._centred(W, is_active)
        scalars = np.zeros(len(Sum))
        scalars[[Sum.ROUND, Sum.LOSS]] = -dot(linear[:, -1], logs) if self.has_free_intercept else total * math.log(K)
        scalars[Sum.DUALS] = total * objective.entropy_of(shares)
        v = linear - shares[:, None] * np.add.reduce(linear, axis=0)
        v[:, -1] = 0.0
        spread = np.diag(shares) - shares[:, None] * shares
        second = diagonal = NOTHING
        if state.is_exact:
            second = np.zeros(state.D * (state.D + 1) // 2)
            pack(np.kron(spread, symmetric(block, state.D // K)), second)
        elif self.num_blocks(state):
            second = dot(shares, 1.0 - shares) / (K - 1.0) * block
        else:
            diagonal = dot(shares, 1.0 - shares) / (K - 1.0) * block
        step = np.zeros(state.D + 2)
        return W.ravel(), Evaluation(
            scalars, v.ravel(), NOTHING, second, diagonal, total * spread.ravel(), NOTHING, NOTHING, step
        )

    def _centred(self, w: Array, is_active: Array) -> Array:
        """Return the same probabilities with the least penalty: the sum over classes is 0. Others are left out."""
        W = self.by_class(w)
        # Classes that are left out had no weight in the last fit.
        result = self._projected(np.where(W <= 0.5 * objective.LEFT_OUT, 0.0, W), is_active)
        result[~is_active, -1] = objective.LEFT_OUT
        return result

    def _projected(self, vectors: Array, is_active: Array) -> Array:
        """Make the sum over the active classes 0, and the others 0; shape (K, D)."""
        counts = is_active[:, None]
        result = np.where(counts, self.by_class(vectors), 0.0)
        result -= counts * (np.add.reduce(result, axis=0) / max(np.count_nonzero(is_active), 1))
        if not self.has_free_intercept:
            result[:, -1] = 0.0
        return result

    def _within(self, output: OutputState, solve: Callable[[Array], Array]) -> Callable[[Array], Array]:
        """Return what solves for vectors, flat, between two projections."""
        is_active = self.is_active(output)
        return lambda g: self._projected(solve(self._projected(g, is_active)), is_active).ravel()

    def steepness_at(
        self, state: NewtonState, output: OutputState, w: Array, gradient: Array, found: Evaluation
    ) -> float:
        """Return the duality gap, that after a step of the intercepts if it is smaller."""
        loss, entropy = found.scalars[[Sum.LOSS, Sum.DUALS]].tolist()
        known = loss, entropy, self.by_class(output.linear), self.has_free_intercept
        primal, dual = objective.primal_and_dual(self.by_class(w), -self.by_class(found.v), *known)
        left, _ = self._intercepts_moved(output, gradient, found)
        return left if left <= primal - dual else primal - dual

    def resting(self, output: OutputState, w: Array, gradient: Array, found: Evaluation) -> Array:
        """Take a last step of the intercepts, where that leaves less of the gap."""
        output.residual = NOTHING  # what follows begins with a look; a certificate is kept for long
        output.diagonal = output.diagonal if output.keeps_factor else NOTHING
        left, step = self._intercepts_moved(output, gradient, found)
        if left > output.steepness:
            return w
        W = self.by_class(w).copy()
        W[:, -1] += step
        return W.ravel()

    def _intercepts_moved(self, output: OutputState, gradient: Array, found: Evaluation) -> tuple[float, Array]:
        """Find the Newton step of the intercepts alone, whose sum is 0, and about what it leaves of the gap.

        Samples move from one class to another, and features with them, which are taken to be their means.
        """
        g, linear, is_active = self.by_class(gradient), self.by_class(output.linear), self.is_active(output)
        step, K = np.zeros(len(g)), len(g)
        if not self.has_free_intercept:
            return math.inf, step
        residual = g[:, -1]
        inner = found.beside.reshape(K, K)[is_active][:, is_active]
        scale = float(np.diagonal(inner).max(initial=0.0))
        if scale > 0:  # all intercepts may rise together
            moved = solve_positive(inner + scale / len(inner), -residual[is_active])
            step[is_active] = moved - dot(moved, np.ones(len(moved))) / len(moved)
        sums = np.add.reduce(linear, axis=0)
        means = sums[:-1] / max(float(sums[-1]), TINY)
        left = 0.5 * squared((g[:, :-1] - residual[:, None] * means).ravel()) - 0.5 * dot(residual, step)
        return left, step

    def solver(
        self, state: NewtonState, output: OutputState, second: Array, ridge: Array, *, is_rough: bool
    ) -> tuple[Callable[[Array], Array], Array]:
        """See `joint_step`."""
        is_active = self.is_active(output)
        return self._within(output, lambda r: joint_step(second, r, is_active)), np.zeros((state.D, 0))

    def preconditioner(self, state: NewtonState, output: OutputState) -> Callable[[Array], Array]:
        """See `preconditioned`."""
        diagonal = self.by_class(output.diagonal)
        return self._within(output, lambda r: preconditioned(r, diagonal, output.factor))

    def precondition(
        self, state: NewtonState, output: OutputState, diagonal: Array, found: Evaluation, ridge: Array
    ) -> None:
        """See `factored`."""
        curvatures = np.maximum(np.diagonal(found.beside.reshape(self.num_classes, -1)), 0.0)
        shares = curvatures / max(float(curvatures.mean()), TINY)
        diagonals, output.factor = factored(
            found.second, diagonal, self.by_class(ridge), shares, is_rough=state.is_rough
        )
        output.diagonal = diagonals.ravel()


def num_blocks(num_classes: int, D: int) -> int:
    """Say how many blocks of D columns a message has room for: one for each class, one for all of them, or none."""
    return next((number for number in (num_classes, 1) if most_block_columns(number) >= D), 0)
