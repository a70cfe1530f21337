"""How the working set goes on from the sums of a pass. Pure: every task comes to the same.

Coordinate descent on several tasks damps its steps by their number, and where regularisation is weak on wide data it
takes thousands of passes. Which duals are at their bounds it finds soon, though. So at once where all rows are few,
and else after some passes, where more of them would not do, it goes like this (a working set as in Joachims 1999,
"Making large-scale SVM learning practical", but a large one):

    SELECT   Every task evaluates its rows at w, which gives the gap, and says which of them are undecided: those with
             a dual between its bounds, and those whose margin is on the wrong side of 1, or close to it.
    GATHER   Each task sends the undecided rows that are not in the working set yet.
    SOLVE    One task minimises over the duals of the working set, with all others as they are (`passes`), and
             sends the change of w and the duals, which the tasks write into their chunks in the next SELECT.

A dual outside of the set is at a bound where w says that it belongs, by more than a margin, so a few rounds find them
all. The set is part of the progress: if the task that solves is lost, another one solves. SELECT also rebuilds w from
the duals, so w = w(alpha) holds after a loss of chunks, too.

A set with more values than a message may have is not gathered: Newton's method goes on, for good.

Rows go by their numbers in the data set, ascending, whichever task and chunk they are in: the number of tasks may
change between any two passes, and nothing here changes with it.

Sums of a pass, one vector, after HEAD (see `progress`), for r wanted or s chosen rows with v values in all:

    phase     part              length
    SELECT    rebuilt           num_outputs D       w of the duals
              losses, duals     2 num_outputs       sums of losses at w, and of dual values
              codes             num_rows            of each undecided row: its length + 1
    GATHER    found             r                   tasks that had the row
              targets, upper    2 r                 class code, C_i
              duals             num_outputs r
              columns, values   2 v
    SOLVE     solved            1                   tasks that have solved; a half for one that was interrupted
              change            num_outputs D       of w
              duals             num_outputs s
"""

import math
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import squared
from chicle_elastic.solvers.linear.certified import PATIENCE, TINY
from chicle_elastic.solvers.linear.methods import FEW_VALUES, MOST_BLOCK_VALUES
from chicle_elastic.solvers.linear.newton.state import Problem
from chicle_elastic.solvers.linear.objectives import SLIGHT
from chicle_elastic.solvers.linear.progress import HEAD, Head, ProgressState, nothing

WIDTH = 0.05
"""A row counts as undecided where its margin is so far beyond 1, on the side where its dual is right, or nearer.

On four sets of sparse rows 0.3 takes as many iterations; where the values of a set are limited to a tenth of the rows,
0.3 finds too many rows in half of the cases."""


class WorkingSetPhase(IntEnum):
    """Name what the next pass does."""

    DESCEND = 0  # a pass of coordinate descent; there is no working set
    SELECT = 1  # every task evaluates its rows, and says which are undecided
    GATHER = 2  # the tasks send rows that were chosen
    SOLVE = 3  # one task solves for the duals of the working set
    REST = 4  # nothing is left to do
    GIVE_UP = 5  # too many rows are undecided: another method goes on


@dataclass(slots=True, kw_only=True)
class WorkingSetState(ProgressState):
    """See the module."""

    passes: ClassVar[int] = 1  # of an iteration
    phase: WorkingSetPhase = WorkingSetPhase.SELECT  # of the next pass
    num_outputs: int  # of the model
    D: int  # columns, the intercept included
    num_rows: int  # of the data set
    share: float = 0.9  # share of tol that the gap has to come below before a certificate
    gap: float = np.inf  # largest relative gap over the outputs, as of the last pass that looked; infinity before
    num_passes: int = 0  # of coordinate descent
    next_look: int = 0  # number of passes at which it is asked whether they get on well enough
    # estimated relative gap some passes ago; or that of the last time that the same rows were solved for
    gap_then: float = np.inf
    num_stalls: int = 0  # how many times in a row that brought less than half of it
    is_repeated: bool = False  # the last pass found w anew, and this one looks at it
    turn: int = 0  # which task solves: the one whose rank this is, modulo their number
    dual_values: Array = field(default_factory=nothing)  # sums per output as of the last SELECT, shape (num_outputs,)
    # wanted, wanted_lengths: numbers and lengths of rows that the next pass gathers, shape (r,)
    wanted: Array = field(default_factory=nothing)
    wanted_lengths: Array = field(default_factory=nothing)
    # rows, lengths, targets, upper: number, length, class code and C_i of rows in the working set, shape (s,)
    rows: Array = field(default_factory=nothing)
    lengths: Array = field(default_factory=nothing)
    targets: Array = field(default_factory=nothing)
    upper: Array = field(default_factory=nothing)
    # of the rows in the working set, row by row, shape (s * num_outputs,)
    duals: Array = field(default_factory=nothing)
    # columns, values: of their features, row by row, shape (v,)
    columns: Array = field(default_factory=nothing)
    values: Array = field(default_factory=nothing)

    @property
    def descends(self) -> bool:
        """Say whether the next pass is one of coordinate descent."""
        return self.phase is WorkingSetPhase.DESCEND

    @property
    def is_at_rest(self) -> bool:
        """Say whether nothing is left to do."""
        return self.phase is WorkingSetPhase.REST

    def sums_size(self, problem: Any = None) -> int:
        """Length of the sums of the next pass."""
        if self.descends:
            return self.num_outputs * self.D
        return HEAD + sum(math.prod(shape) for shape in _layout(self).values())

    def forget(self) -> None:
        """Let go of all rows; their duals are in the chunks."""
        self.wanted = self.wanted_lengths = self.rows = self.lengths = self.targets = nothing()
        self.upper = self.duals = self.columns = self.values = nothing()


class Sums(SimpleNamespace):
    """Views of the sums of a pass, by the names of the module."""

    def __init__(self, state: WorkingSetState, buffer: Array) -> None:
        position = HEAD
        for name, shape in _layout(state).items():
            begin, position = position, position + math.prod(shape)
            setattr(self, name, buffer[begin:position].reshape(shape))


def _layout(state: WorkingSetState) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parts, in order."""
    K, D, r = state.num_outputs, state.D, (len(state.wanted),)
    if state.phase is WorkingSetPhase.SELECT:
        return {"rebuilt": (K, D), "losses": (K,), "dual_values": (K,), "codes": (state.num_rows,)}
    if state.phase is WorkingSetPhase.GATHER:
        v = (int(state.wanted_lengths.sum()),)
        return {"found": r, "targets": r, "upper": r, "duals": (*r, K), "columns": v, "values": v}
    if state.phase is WorkingSetPhase.SOLVE:
        return {"solved": (1,), "change": (K, D), "duals": (len(state.rows), K)}
    return {}


PASSES_BETWEEN = 4  # passes of coordinate descent over which their pace is measured, after as many at first
FINE_GAP = 1e-6
"""Relative gap below which no method that begins anew is better off. With 0 the hinge on counts, tol=1e-10, ends at
1.5e-3 in place of 2e-10."""


def reopen(state: WorkingSetState, problem: Problem, model: Array) -> None:
    """Go on after a certificate that was not good enough."""
    state.share *= 0.5
    state.phase = WorkingSetPhase.SELECT


def descended(state: WorkingSetState, gap: float, tol: float) -> None:
    """Decide after a pass of coordinate descent, with this estimate of the relative gap, whether to go on so."""
    state.num_passes += 1
    state.gap = gap
    if state.num_passes == state.next_look - PASSES_BETWEEN:
        state.gap_then = gap
    if state.num_passes < state.next_look:
        return
    factor, foreseen = min(gap / max(state.gap_then, TINY), 1.0), gap
    for _ in range(PATIENCE):
        foreseen *= factor
    if foreseen <= tol:
        state.next_look, state.gap_then = state.num_passes + PASSES_BETWEEN, gap
    else:
        state.phase = WorkingSetPhase.SELECT


def advance(state: WorkingSetState, problem: Problem, model: Array, sums: Array, weight: float) -> Array:
    """Go on from the sums of a pass (see `state`, which is changed) other than DESCEND; returns the new w."""
    if sums[Head.INTERRUPTED] > 0 or state.is_at_rest:  # the pass is made again
        return model
    parts = Sums(state, sums)
    if state.phase is WorkingSetPhase.SELECT:
        return _selected(state, model, parts, problem.tol)
    if state.phase is WorkingSetPhase.GATHER:
        _gathered(state, parts)
        return model
    if not parts.solved[0]:  # the task whose turn it was has no chunks, and so no part in an iteration
        state.turn += 1
        return model
    if parts.solved[0] < 1:  # it was interrupted, so that what it brought says nothing
        state.gap_then = np.inf
    state.duals = parts.duals.ravel().copy()
    state.phase = WorkingSetPhase.SELECT
    return model + parts.change.ravel()


def _selected(state: WorkingSetState, model: Array, parts: Sums, tol: float) -> Array:
    rebuilt = parts.rebuilt.ravel()
    has_drifted = squared(rebuilt - model) > SLIGHT * SLIGHT * squared(model)
    if has_drifted and not state.is_repeated:
        state.is_repeated = True
        return rebuilt.copy()
    state.is_repeated = False
    half_norms = np.array([0.5 * squared(w) for w in parts.rebuilt])
    kept = rebuilt if has_drifted else model  # whose losses these are
    primals = np.array([0.5 * squared(w) for w in kept.reshape(parts.rebuilt.shape)]) + parts.losses
    state.gap = float(np.max((primals - (parts.dual_values - half_norms)) / np.maximum(primals, TINY)))
    state.dual_values = parts.dual_values.copy()
    if state.gap <= state.share * tol:
        state.phase = WorkingSetPhase.REST
        return kept.copy()
    _choose(state, parts.codes)
    return kept.copy()


def _choose(state: WorkingSetState, codes: Array) -> None:
    """Want the rows that are undecided, if they are not too many."""
    undecided = np.flatnonzero(codes)
    lengths = codes[undecided] - 1
    # Values of a working set at most: 64 MiB with their columns. At first all rows may be undecided.
    most = MOST_BLOCK_VALUES if state.num_passes else FEW_VALUES
    if float(lengths.sum()) <= most - len(state.values) and (len(undecided) or len(state.rows)):
        has_stalled = not len(undecided) and state.gap > max(0.5 * state.gap_then, FINE_GAP)
        state.num_stalls, state.gap_then = state.num_stalls + 1 if has_stalled else 0, state.gap
        state.wanted, state.wanted_lengths = undecided.astype(np.float64), lengths
        state.phase = WorkingSetPhase.GATHER if len(undecided) else WorkingSetPhase.SOLVE
        return
    if len(state.rows):  # more and more rows: some that were gathered may long be decided
        state.forget()
        return
    state.next_look, state.gap_then = 2 * PASSES_BETWEEN, state.gap
    state.phase = WorkingSetPhase.GIVE_UP if state.num_passes else WorkingSetPhase.DESCEND


def _gathered(state: WorkingSetState, parts: Sums) -> None:
    """Merge the rows that came into the working set, in the order of their numbers."""
    if not (parts.found == 1).all():  # rows are under way, or were lost and have come back with other duals
        state.wanted = state.wanted_lengths = np.zeros(0)
        state.phase = WorkingSetPhase.SELECT
        return
    rows = np.concatenate([state.rows, state.wanted])
    order = np.argsort(rows, kind="stable")
    lengths = np.concatenate([state.lengths, state.wanted_lengths])
    values, columns = np.concatenate([state.values, parts.values]), np.concatenate([state.columns, parts.columns])
    ends = np.cumsum([0, *lengths]).astype(np.int64)
    matrix = scipy.sparse.csr_array((values, columns.astype(np.int64), ends), shape=(len(rows), state.D))[order]
    state.columns, state.values = matrix.indices.astype(np.float64), matrix.data
    state.rows, state.lengths = rows[order], lengths[order]
    state.targets = np.concatenate([state.targets, parts.targets])[order]
    state.upper = np.concatenate([state.upper, parts.upper])[order]
    old = state.duals.reshape(-1, state.num_outputs)
    state.duals = np.concatenate([old, parts.duals])[order].ravel()
    state.wanted = state.wanted_lengths = np.zeros(0)
    state.phase = WorkingSetPhase.SOLVE
