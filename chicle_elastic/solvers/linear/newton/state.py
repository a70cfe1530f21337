"""What all tasks have in common while Newton's method runs: one `OutputState` per output, as one flat vector.

    part                length        meaning
    NEWTON              1             says that the vector is one of these
    num_outputs         1
    block_columns       1             see `NewtonPlan`
    row_step            1             see `NewtonPlan`
    has_many_rows       1             see `NewtonPlan`
    is_cheap            1             see `NewtonPlan`
    resamples           1             see `NewtonPlan`
    share               1             share of tol that the gap of an output has to come below before it rests
    sums_size           1             length of the sums of the next pass
    scalars             outputs x S   per output those of `OutputState`, in the order of its fields
    then per output:
    vectors                           those of its phase (`vectors_of`), in that order

D is num_features + 1, and h the number of columns of the block of second derivatives: all, some, or none yet.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array

HEAD = 9
"""Values that come before those of outputs."""
NEWTON = 5.0
"""First value of a progress of this kind. It changes with the order of the values: a run whose checkpoint has an
earlier order (1.0) begins Newton's method anew from its w."""


def is_newton(progress: Array) -> bool:
    """Whether a progress is one of Newton's method."""
    return len(progress) > 0 and progress[0] == NEWTON


def gaps(progress: Array) -> Array:
    """`OutputState.gap` of all outputs, without the rest of the state; shape (outputs,)."""
    return _column(progress, "gap")


def is_at_rest(progress: Array) -> bool:
    """`NewtonState.is_at_rest`, without the rest of the state."""
    return bool((_column(progress, "phase") == NewtonPhase.REST).all())


def has_newton_duals(progress: Array) -> bool:
    """Whether `OutputState.has_newton_duals` is true of any output."""
    return bool(_column(progress, "has_newton_duals").any())


def sums_size(progress: Array) -> int:
    """Length of the sums of the next pass."""
    return round(float(progress[HEAD - 1]))


def _column(progress: Array, name: str) -> Array:
    end = HEAD + round(float(progress[1])) * len(SCALARS)
    return progress[HEAD:end].reshape(-1, len(SCALARS))[:, SCALARS.index(name)]


class NewtonPhase(IntEnum):
    """What the next pass does for an output."""

    EVALUATE = 0
    """Losses, gradient and second derivatives along the direction."""
    MULTIPLY = 1
    """A product of the second derivatives with a vector, for conjugate gradients."""
    REST = 2
    """Nothing: its gap is small enough, and that of others is not."""


class Block(IntEnum):
    """Which second derivatives an evaluation adds up."""

    KEPT = 0
    """None: factor and scale of the last ones are good enough."""
    SAMPLED = 1
    """Of a sample of the rows, see `NewtonPlan.row_step`."""
    ROUGH = 2
    """Of all rows, in float32 where the rows are dense."""
    EXACT = 3
    """Of all rows, in float64."""


_NONE = np.zeros(0)
_NO_COLUMNS = np.zeros(0, dtype=np.int64)


def _none() -> Array:
    return _NONE


def _no_columns() -> Array:
    return _NO_COLUMNS


@dataclass(slots=True)
class OutputState:
    """Where one output is.

    Attributes:
        phase: What the next pass does.
        gap: Relative gap of w and the duals that belong to it, as of the last evaluation; infinite before the first.
        value: The objective at w, of the smooth losses; infinite where it is not known.
        tau, next_tau: Proximal parameter of the present centers, and that of the next ones in case this pass is good
            enough to move them; in units of 1 / C_i. Of the hinge only.
        old_tau: Not 0 where the centers move before this pass, to the duals of w with this tau.
        serial: Steps taken so far.
        t: Share of its direction that the last step took; NaN where w came about in another way.
        num_inner: Newton steps since the centers moved.
        num_rejected: Directions along which nothing was good enough, since the centers moved or a step was taken.
        is_least_squares: No step was taken yet, and the first one is that of least squares.
        keeps_duals: The duals in the chunks were good enough from the beginning, and are not to be written.
        has_newton_duals: The output rests with the duals of one Newton step on, see `steps`.
        block: What the next evaluation adds up of the second derivatives.
        is_exact: The direction solves the Newton equations of w, but for rounding.
        last_block: What the last ones that were added up were; KEPT before the first.
        bend: Second derivative of the losses along the gradient, by |gradient|^2, as of the last block.
        num_products: Products of this run of conjugate gradients.
        length: Share of the vector of the last product that became part of the solution.
        rz: Squared residual of that run in the norm of the preconditioner.
        goal: Squared residual in the norm of the diagonal at which the run ends.
        direction: Where to go from w, shape (D,). At rest, from `point` to w that is certified.
        gradient: Of the objective at w, shape (D,), of the smooth losses.
        p, x, r, scale: Of conjugate gradients, shape (D,); scale is one over the square root of the diagonal.
        point: Where an output rests, shape (D,).
        factor: Cholesky factor of the block, see `preconditioner`.
        pairs: Changes of w and of the gradient in the steps since the block, or vectors and products of the last run of
            conjugate gradients, see `pairs`; flat.
        met: Vectors and products of this run; flat.
        columns: Columns of the block, int64; empty for all.
    """

    phase: NewtonPhase = NewtonPhase.EVALUATE
    gap: float = np.inf
    value: float = np.inf
    tau: float = 0.0
    next_tau: float = 0.0
    old_tau: float = 0.0
    serial: int = 0
    t: float = 0.0
    num_inner: int = 0
    num_rejected: int = 0
    is_least_squares: bool = False
    keeps_duals: bool = False
    has_newton_duals: bool = False
    block: Block = Block.EXACT
    is_exact: bool = False
    last_block: Block = Block.KEPT
    bend: float = np.inf
    num_products: int = 0
    length: float = 0.0
    rz: float = 0.0
    goal: float = 0.0
    num_factors: int = 0
    num_columns: int = 0
    num_pair_values: int = 0
    num_met_values: int = 0
    direction: Array = field(default_factory=_none)
    gradient: Array = field(default_factory=_none)
    p: Array = field(default_factory=_none)
    x: Array = field(default_factory=_none)
    r: Array = field(default_factory=_none)
    scale: Array = field(default_factory=_none)
    point: Array = field(default_factory=_none)
    factor: Array = field(default_factory=_none)
    pairs: Array = field(default_factory=_none)
    met: Array = field(default_factory=_none)
    columns: Array = field(default_factory=_no_columns)

    def rest(self, w: Array, direction: Array) -> None:
        """The end of a direction is what is certified; `w`, shape (D,), becomes that."""
        self.phase, self.point, self.direction = NewtonPhase.REST, w.copy(), direction
        w += direction


SCALARS = tuple(f.name for f in fields(OutputState) if f.type is not Array)
_KINDS: dict[Any, Callable[[float], Any]] = {
    int: int,
    bool: bool,
    NewtonPhase: {float(phase): phase for phase in NewtonPhase}.__getitem__,
    Block: {float(block): block for block in Block}.__getitem__,
}
_CONVERTED: tuple[tuple[int, Callable[[float], Any]], ...] = tuple(
    (number, _KINDS[f.type])
    for number, f in enumerate(f for f in fields(OutputState) if f.type is not Array)
    if f.type is not float
)
"""Numbers of the scalars that are no float, and what makes them of one."""
_SCALARS_OF = operator.attrgetter(*SCALARS)
VECTORS = {
    NewtonPhase.EVALUATE: ("direction", "gradient", "columns"),
    NewtonPhase.MULTIPLY: ("gradient", "p", "x", "r", "scale", "factor", "pairs", "met", "columns"),
    NewtonPhase.REST: ("direction", "point"),
}


def vectors_of(output: OutputState) -> tuple[str, ...]:
    """Names of the vectors that go on to the next pass."""
    names = VECTORS[output.phase]
    is_kept = output.phase is NewtonPhase.EVALUATE and output.block is Block.KEPT
    return (*names, "scale", "factor", "pairs") if is_kept else names


@dataclass(slots=True, kw_only=True)
class NewtonState:
    """Of all outputs.

    Attributes:
        block_columns, row_step, has_many_rows, is_cheap, resamples: See `NewtonPlan`.
        share: Share of tol below which an output rests.
        sums_size: Length of the sums of the next pass.
        outputs: By number.
    """

    block_columns: int
    row_step: int
    has_many_rows: bool
    is_cheap: bool
    resamples: bool = False
    share: float
    sums_size: int = 0
    outputs: list[OutputState]

    @property
    def is_at_rest(self) -> bool:
        """Whether no output has anything left to do."""
        return all(output.phase is NewtonPhase.REST for output in self.outputs)

    def encode(self) -> Array:
        """As one vector, float64."""
        head: list[float] = [
            NEWTON,
            len(self.outputs),
            self.block_columns,
            self.row_step,
            self.has_many_rows,
            self.is_cheap,
            self.resamples,
            self.share,
            self.sums_size,
        ]
        parts = [np.zeros(0)]
        for output in self.outputs:
            vectors = vectors_of(output)
            output.num_factors = len(output.factor) if "factor" in vectors else 0
            output.num_columns = len(output.columns) if "columns" in vectors else 0
            output.num_pair_values = len(output.pairs) if "pairs" in vectors else 0
            output.num_met_values = len(output.met) if "met" in vectors else 0
            head += _SCALARS_OF(output)
            parts += [getattr(output, name) for name in vectors]
        parts[0] = np.array(head, dtype=np.float64)
        return np.concatenate(parts)  # columns become float64 on the way

    @classmethod
    def decode(cls, progress: Array, num_parameters: int) -> "NewtonState":
        """From such a vector; the arrays are views of it.

        Args:
            progress: As `encode` made it.
            num_parameters: Length of the model.
        """
        _, num_outputs, block_columns, row_step, *flags, share, size = progress[:HEAD].tolist()
        has_many_rows, is_cheap, resamples = map(bool, flags)
        D = num_parameters // round(num_outputs)
        position = HEAD + round(num_outputs) * len(SCALARS)
        outputs = []
        # Several times an iteration, and so not dearer than it has to be: each kind is converted by columns.
        columns = progress[HEAD:position].reshape(-1, len(SCALARS)).T.tolist()
        for number, kind in _CONVERTED:
            columns[number] = list(map(kind, columns[number]))
        for scalars in zip(*columns, strict=True):
            output = OutputState(*scalars)
            lengths = {
                "factor": output.num_factors,
                "columns": output.num_columns,
                "pairs": output.num_pair_values,
                "met": output.num_met_values,
            }
            for name in vectors_of(output):
                if length := lengths.get(name, D):
                    setattr(output, name, progress[position : position + length])
                    position += length
            if output.num_columns:
                output.columns = output.columns.astype(np.int64)
            outputs.append(output)
        return cls(
            block_columns=round(block_columns),
            row_step=round(row_step),
            has_many_rows=has_many_rows,
            is_cheap=is_cheap,
            resamples=resamples,
            share=share,
            sums_size=round(size),
            outputs=outputs,
        )
