"""What all tasks have in common while there is a working set, and where the sums of a pass lie.

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

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.progress import HEAD, ProgressState, nothing

WIDTH = 0.05
"""A row counts as undecided where its margin is so far beyond 1, on the side where its dual is right, or nearer.

On four sets of sparse rows 0.3 takes as many iterations; where the values of a set are limited to a tenth of the rows,
0.3 finds too many rows in half of the cases."""


class WorkingSetPhase(IntEnum):
    """What the next pass does."""

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
