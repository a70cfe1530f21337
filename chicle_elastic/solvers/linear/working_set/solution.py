"""How one task solves for the duals of the working set."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy.sparse

from chicle_elastic.chunks.views import Array, Chunk, CsrRows, Rows
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context
from chicle_elastic.solvers.kernels.descent import positives
from chicle_elastic.solvers.linear.agreement import dots, squared
from chicle_elastic.solvers.linear.coordinates import FINEST_GAP, CoordinatePasses
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.objectives import TINY, Loss
from chicle_elastic.solvers.linear.tables import Bounds
from chicle_elastic.solvers.linear.wide.hinge import WideHinge, first_tau
from chicle_elastic.solvers.linear.wide.rows import CopiedRows
from chicle_elastic.solvers.linear.working_set.state import DRIFT, Sums, WorkingSetState
from chicle_elastic.solvers.local_chunk import Gate, LocalChunk
from chicle_elastic.waits import Wait

MOST_RUNS = 20
"""Runs of Newton steps of a SOLVE at most."""
MOST_ITERATIONS = 256
"""Iterations of an only task of a SOLVE at most."""
NEXT_TAU = 0.1
"""First tau of a SOLVE, as a share of the last one of the SOLVE before."""
FIRST_SHARE, LAST_SHARE = 0.03, 0.3
"""Newton steps end when the gap within the set is this share of what it was, or of tol, whichever is more."""
LONG_S = 5.0
"""How long a SOLVE may take without a line."""


def solve(
    state: WorkingSetState,
    w: Array,
    sums: Sums,
    *,
    loss: Loss,
    intercept: float,
    tol: float,
    ctx: Context,
    budget: Budget,
) -> None:
    """Minimise over the duals of the working set; one task does it.

    If all other duals are 0 it does as the only task of a job does, else Newton steps, which take what the others make
    of w into account. Of another loss than the hinge all duals that are not 0 are in the set.

    Args:
        state: With the set.
        w: Shape (num_outputs, D).
        sums: The change of w, the duals and the next taus go there.
        loss: The loss.
        intercept: Value of the intercept column.
        tol: Relative gap to reach.
        ctx: Of the task.
        budget: Of the iteration; what there is at its end is good.
    """
    chunk = _chunk(state, w.shape[1] - 1)
    gate = Gate(ctx.name)
    gate.open(budget.iteration)
    chunks = {chunk.id: LocalChunk(chunk, gate)}
    local = LocalData(chunks, loss=loss, bounds=Bounds(C=1.0, class_weights=None), intercept=intercept, num_threads=1)
    outside = w - [local.rows.weighted_sum(local.signs[k] * local.duals(k)) for k in range(len(w))]
    if loss is Loss.HINGE and squared(outside.ravel()) > DRIFT * DRIFT * squared(w.ravel()):
        _step(state, w, sums, intercept=intercept, tol=tol, is_spent=budget.is_spent)
        sums.solved += 0.5 if budget.is_spent() else 1.0
        return
    goal = max(state.share * tol, FINEST_GAP)
    passes, alone = CoordinatePasses(ctx, local, tol=goal), replace(budget, num_tasks=1, samples=None)
    there = w
    for _ in range(MOST_ITERATIONS):
        there = there + passes.run(there.ravel(), alone).delta.reshape(w.shape)
        if budget.is_spent():
            break
        if passes.is_near:
            rebuilt, found = local.certify(loss, there, has_losses=True, is_known=False)
            primal = 0.5 * dots(there, there) + found[:, 0]
            gap = float(np.max((primal - found[:, 1] + 0.5 * dots(rebuilt, rebuilt)) / np.maximum(primal, TINY)))
            if gap <= goal:
                break
            passes.certified(gap)
            passes.visit_all()
    sums.solved += 0.5 if budget.is_spent() else 1.0
    sums.change += there - w
    sums.duals += chunk.state[:, :, 0]


def _chunk(state: WorkingSetState, num_features: int) -> Chunk:
    """The working set as a chunk whose weights are the C_i."""
    lengths = state.lengths.astype(np.int64)
    rows: Rows = CsrRows(np.cumsum([0, *lengths]), state.columns.astype(np.int32), state.values, num_features)
    if (lengths == num_features).all():
        rows = state.values.reshape(-1, num_features)
    return Chunk(
        id=ChunkId(0),
        rows=rows,
        targets=state.targets.astype(np.int32),
        weights=state.upper,
        row_ids=state.rows.astype(np.int64),
        state=state.duals.reshape(-1, state.num_outputs, 1).copy(),
    )


def _step(
    state: WorkingSetState, w: Array, sums: Sums, *, intercept: float, tol: float, is_spent: Callable[[], bool]
) -> None:
    """Take Newton steps of the hinge, with all other duals as they are."""
    matrix = scipy.sparse.csr_array(
        (state.values, state.columns.astype(np.int32), np.cumsum([0, *state.lengths]).astype(np.int32)),
        shape=(len(state.lengths), w.shape[1] - 1),
    )
    rows, columns = CopiedRows.of_matrix(matrix, intercept)
    norms = np.asarray(matrix.multiply(matrix).sum(axis=1)).reshape(-1) + intercept * intercept
    least_tau = first_tau(norms, state.upper, rows.least_tau)
    duals = state.duals.reshape(-1, state.num_outputs)
    for k in range(state.num_outputs):
        signs = np.where(state.targets == positives(state.num_outputs)[k], 1.0, -1.0)
        alpha = duals[:, k].copy()
        outside = w[k, columns] - rows.weighted_sum(signs * alpha)
        finish = WideHinge(rows, signs, state.upper, alpha, outside=outside, tau=float(state.taus[k]) or least_tau)
        goal = max(FIRST_SHARE * finish.gap, LAST_SHARE * tol * state.primals[k])
        for _ in range(MOST_RUNS):
            if finish.gap <= goal or finish.is_stuck or is_spent():
                break
            finish.run(is_spent, goal)
        sums.change[k, columns] += finish.w - w[k, columns]
        sums.duals[:, k] += finish.alpha
        sums.taus[k] += max(finish.tau * NEXT_TAU, least_tau)


def tells_if_long(state: WorkingSetState) -> Wait:
    """Within this a SOLVE runs: a line says so after `LONG_S`, for all other tasks wait and no iteration ends."""
    text = f"one task solves for the {len(state.lengths):,} rows that are undecided"
    return Wait(f"{text} (up to some minutes, and again until the gap is small)", after_s=LONG_S)
