"""What all tasks have in common while Newton's method runs: one `OutputState` per output, as one flat vector.

    part                length        meaning
    NEWTON              1             says that the vector is one of these
    num_outputs         1
    block_columns       1             see `NewtonPlan`
    row_step            1             see `NewtonPlan`
    has_many_rows       1             see `NewtonPlan`
    share               1             share of tol that the gap of an output has to come below before it rests
    scalars             outputs x S   per output those of `OutputState`, in the order of its fields
    then per output:
    vectors                           those of its phase (`vectors_of`), in that order

D is num_features + 1, and h the number of columns of the block of second derivatives: all, some, or none yet.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import IntEnum

import numpy as np

from chicle_elastic.chunks.views import Array

HEAD = 6
"""Values that come before those of outputs."""
NEWTON = 1.0
"""First value of a progress of this kind."""


def is_newton(progress: Array) -> bool:
    """Whether a progress is one of Newton's method."""
    return len(progress) > 0 and progress[0] == NEWTON


class NewtonPhase(IntEnum):
    """What the next pass does for an output."""

    EVALUATE = 0
    """Losses, gradient and second derivatives along the direction."""
    MULTIPLY = 1
    """A product of the second derivatives with a vector, for conjugate gradients."""
    REST = 2
    """Nothing: its gap is small enough, and that of others is not."""


_NONE = np.zeros(0)
_NO_COLUMNS = np.zeros(0, dtype=np.int64)


def _none() -> Array:
    return _NONE


def _no_columns() -> Array:
    return _NO_COLUMNS


@dataclass(slots=True, kw_only=True)
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
        keeps_block: The next evaluation goes without a block: factor and scale of the last one are good enough.
        is_checked: The product is that of the gradient, to see whether the output may rest.
        num_products: Products of this run of conjugate gradients.
        rz: Squared residual of that run in the norm of the preconditioner.
        goal: Squared residual in the norm of the diagonal at which the run ends.
        direction: Where to go from w, shape (D,). At rest, from `point` to w that is certified.
        gradient: Of the objective at w, shape (D,), of the smooth losses.
        p, x, r, scale: Of conjugate gradients, shape (D,); scale is one over the square root of the diagonal.
        point: Where an output rests, shape (D,).
        factor: Cholesky factor of the block, see `preconditioner`.
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
    keeps_block: bool = False
    is_checked: bool = False
    num_products: int = 0
    rz: float = 0.0
    goal: float = 0.0
    num_factors: int = 0
    num_columns: int = 0
    direction: Array = field(default_factory=_none)
    gradient: Array = field(default_factory=_none)
    p: Array = field(default_factory=_none)
    x: Array = field(default_factory=_none)
    r: Array = field(default_factory=_none)
    scale: Array = field(default_factory=_none)
    point: Array = field(default_factory=_none)
    factor: Array = field(default_factory=_none)
    columns: Array = field(default_factory=_no_columns)


SCALARS = tuple(f.name for f in fields(OutputState) if f.type is not Array)
_CONVERTED: tuple[tuple[str, Callable[[float], float]], ...] = tuple(
    (f.name, f.type) for f in fields(OutputState) if callable(f.type) and f.type not in (float, Array)
)
"""Scalars that are no float, and what makes them of one."""
_SCALARS_OF = operator.attrgetter(*SCALARS)
VECTORS = {
    NewtonPhase.EVALUATE: ("direction", "gradient", "columns"),
    NewtonPhase.MULTIPLY: ("gradient", "p", "x", "r", "scale", "factor", "columns"),
    NewtonPhase.REST: ("direction", "point"),
}


def vectors_of(output: OutputState) -> tuple[str, ...]:
    """Names of the vectors that go on to the next pass."""
    names = VECTORS[output.phase]
    return (*names, "scale", "factor") if output.keeps_block and output.phase is NewtonPhase.EVALUATE else names


@dataclass(slots=True, kw_only=True)
class NewtonState:
    """Of all outputs.

    Attributes:
        block_columns, row_step, has_many_rows: See `NewtonPlan`.
        share: Share of tol below which an output rests.
        outputs: By number.
    """

    block_columns: int
    row_step: int
    has_many_rows: bool
    share: float
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
            self.share,
        ]
        parts = [np.zeros(0)]
        for output in self.outputs:
            vectors = vectors_of(output)
            output.num_factors = len(output.factor) if "factor" in vectors else 0
            output.num_columns = len(output.columns) if "columns" in vectors else 0
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
        _, num_outputs, block_columns, row_step, has_many_rows, share = progress[:HEAD].tolist()
        D = num_parameters // round(num_outputs)
        position = HEAD + round(num_outputs) * len(SCALARS)
        outputs = []
        # Several times an iteration, and so not dearer than it has to be.
        for scalars in progress[HEAD:position].reshape(-1, len(SCALARS)).tolist():
            values = dict(zip(SCALARS, scalars, strict=True))
            for name, kind in _CONVERTED:
                values[name] = kind(values[name])
            output = OutputState(**values)
            sizes = {"factor": output.num_factors, "columns": output.num_columns}
            for name in vectors_of(output):
                if size := sizes.get(name, D):
                    setattr(output, name, progress[position : position + size])
                    position += size
            if output.num_columns:
                output.columns = output.columns.astype(np.int64)
            outputs.append(output)
        return cls(
            block_columns=round(block_columns),
            row_step=round(row_step),
            has_many_rows=bool(has_many_rows),
            share=share,
            outputs=outputs,
        )
