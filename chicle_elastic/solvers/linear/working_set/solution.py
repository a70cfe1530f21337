"""How one task solves for the duals of the working set."""

from dataclasses import replace

import numpy as np

from chicle_elastic.chunks.views import Array, Chunk, CsrRows, Rows
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context
from chicle_elastic.solvers.linear.agreement import dots, squared
from chicle_elastic.solvers.linear.certified import LEAST_SHARE, MOST_LEFT, MOST_REPEATS
from chicle_elastic.solvers.linear.coordinates import CoordinatePasses
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.objectives import SLIGHT, TINY
from chicle_elastic.solvers.linear.tables import Bounds
from chicle_elastic.solvers.linear.working_set.steps import Sums, WorkingSetState
from chicle_elastic.solvers.local_chunk import Gate, LocalChunk
from chicle_elastic.waits import Wait


def solve(
    state: WorkingSetState, w: Array, sums: Sums, task: LocalData, *, tol: float, ctx: Context, budget: Budget
) -> None:
    """Minimise over the duals of the working set; one task does it.

    It does as the only task of a job does, and takes what the other rows make of w and of the objective into account.
    Of another loss than the hinge all duals that are not 0 are in the set.
    """
    chunk = _chunk(state, w.shape[1] - 1)
    gate = Gate(ctx.name)
    gate.open(budget.iteration)
    chunks = {chunk.id: LocalChunk(chunk, gate)}
    local = LocalData(chunks, loss=task.loss, bounds=Bounds(C=1.0), intercept=task.intercept)
    goal = max(state.share * tol, SLIGHT)
    outside = w - [local.rows.weighted_sum(local.signs[k] * local.duals(k)) for k in range(len(w))]
    if squared(outside.ravel()) > SLIGHT * SLIGHT * squared(w.ravel()):  # else it is rounding
        of_set = local.dual_sums
        local.outside, local.other_duals = outside, state.dual_values - of_set
        local.forget("dual_sums")
        # Beside duals that stay more is in vain.
        goal = max(LEAST_SHARE * _gap(local, w), MOST_LEFT * tol)
    passes, alone = CoordinatePasses(ctx.rng, local, tol=goal), replace(budget, num_tasks=1, samples=None)
    there = w
    for _ in range(MOST_REPEATS):
        there = there + passes.run(there.ravel(), alone).delta.reshape(w.shape)
        if budget.is_spent():
            break
        if passes.is_near:
            gap = _gap(local, there)
            if gap <= goal:
                break
            passes.certified(gap)
            passes.visit_all()
    sums.solved += 0.5 if budget.is_spent() else 1.0
    sums.change += there - w
    sums.duals += chunk.state[:, :, 0]


def _gap(local: LocalData, w: Array) -> float:
    """Find the largest gap of the set, as a share of P of all rows; w is that of all duals but for rounding."""
    rebuilt, sums = local.certify(local.loss, w, has_losses=True, is_known=False)
    gaps = sums[:, 0] - sums[:, 1] + dots(rebuilt, rebuilt + local.outside)
    primal = gaps + sums[:, 1] + local.other_duals - 0.5 * dots(w, w)
    return float(np.max(gaps / np.maximum(primal, TINY)))


def _chunk(state: WorkingSetState, num_features: int) -> Chunk:
    """Make the working set a chunk whose weights are the C_i."""
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


def tells_if_long(state: WorkingSetState) -> Wait:
    """Within this a SOLVE runs: a line says so, for all other tasks wait and no iteration ends."""
    text = f"one task solves for the {len(state.lengths):,} rows that are undecided"
    return Wait(f"{text} (up to some minutes, and again until the gap is small)")
