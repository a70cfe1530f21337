"""What one task does in a pass of the working set, and how one of them solves for its duals."""

from dataclasses import replace

import numpy as np

from chicle_elastic.chunks.views import Array, Chunk, CsrRows, Rows
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Budget, Context
from chicle_elastic.solvers.linear.agreement import dots, squared
from chicle_elastic.solvers.linear.certified import LEAST_SHARE, MOST_LEFT, MOST_REPEATS, PATIENCE
from chicle_elastic.solvers.linear.coordinates import CoordinatePasses
from chicle_elastic.solvers.linear.local import LocalData, LocalPart
from chicle_elastic.solvers.linear.objectives import SLIGHT, TINY, Loss, dual_values, primal_losses
from chicle_elastic.solvers.linear.tables import Bounds
from chicle_elastic.solvers.linear.working_set.steps import WIDTH, Sums, WorkingSetState
from chicle_elastic.solvers.local_chunk import Gate, LocalChunk
from chicle_elastic.waits import Wait


def write_duals(local: LocalPart, state: WorkingSetState) -> None:
    """Write the duals of local rows in the working set into their chunks."""
    place, mine = _places(state.rows, local.row_ids)
    duals = state.duals.reshape(-1, state.num_outputs)
    for k in range(state.num_outputs if len(mine) else 0):
        alpha = local.duals(k)
        alpha[mine] = duals[place, k]
        local.write_duals(k, alpha)


def select(local: LocalData, state: WorkingSetState, w: Array, sums: Sums) -> None:
    """Evaluate all rows at `w`, shape (num_outputs, D), and say which are undecided."""
    local.pass_over([local], lambda number: None, lambda found: None, must_check=True)
    upper, row_ids = local.upper, local.row_ids
    nearest = np.full(len(upper), -np.inf)  # how far the margin is on the wrong side, over the outputs
    for k in range(state.num_outputs):
        signs, alpha = local.signs[k], local.duals(k)
        margins = signs * local.rows.times(w[k])
        sums.rebuilt[k] += local.rows.weighted_sum(signs * alpha)
        sums.losses[k] += float(primal_losses(local.loss, margins, upper).sum())
        sums.dual_values[k] += float(dual_values(local.loss, alpha, upper).sum())
        has_most = (alpha >= upper) & (local.loss is Loss.HINGE)  # of other losses only a dual of 0 is decided
        wrong = np.where(alpha <= 0, 1.0 - margins, np.where(has_most, margins - 1.0, np.inf))
        np.maximum(nearest, np.where(upper > 0, wrong, -np.inf), out=nearest)
    is_new = nearest > -WIDTH
    is_new[is_new] &= ~np.isin(row_ids[is_new], state.rows)
    has_column = not local.rows.is_sparse or local.intercept != 0  # which is not sent
    sums.codes[row_ids[is_new]] += local.rows.lengths()[is_new] - has_column + 1


def gather(local: LocalPart, state: WorkingSetState, sums: Sums) -> None:
    """Send what is local of the rows that are wanted."""
    place, mine = _places(state.wanted, local.row_ids)
    if not len(mine):
        return
    ends = np.cumsum(state.wanted_lengths.astype(np.int64))
    starts = ends - state.wanted_lengths.astype(np.int64)
    sums.found[place] += 1.0
    sums.targets[place] += local.targets[mine]
    sums.upper[place] += local.upper[mine]
    for k in range(state.num_outputs):
        sums.duals[place, k] += local.duals(k)[mine]
    part = local.rows.csr(mine)[:, :-1]  # without the intercept
    lengths = np.diff(part.indptr)
    where = np.repeat(starts[place] - part.indptr[:-1], lengths) + np.arange(len(part.data))
    sums.columns[where] += part.indices
    sums.values[where] += part.data


def _places(rows: Array, row_ids: Array) -> tuple[Array, Array]:
    """Find which of the local rows are among some (numbers, ascending): their places there, and their own."""
    place = np.searchsorted(rows, row_ids)
    mine = np.flatnonzero(np.append(rows, -1.0)[place] == row_ids)
    return place[mine], mine


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
    there, best, num_vain = w, np.inf, 0
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
        num_vain = num_vain + 1 if best <= passes.last_gap <= SLIGHT else 0
        best = min(best, passes.last_gap)
        if num_vain == PATIENCE:  # what is left is rounding
            break
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
