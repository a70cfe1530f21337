"""What one task does in a pass of the working set."""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.local import LocalData, LocalPart
from chicle_elastic.solvers.linear.objectives import Loss, dual_values, primal_losses
from chicle_elastic.solvers.linear.working_set.steps import WIDTH, Sums, WorkingSetState


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
    """Find the places of local rows among some (numbers, ascending), and which of them are there."""
    place = np.searchsorted(rows, row_ids)
    mine = np.flatnonzero(np.append(rows, -1.0)[place] == row_ids)
    return place[mine], mine
