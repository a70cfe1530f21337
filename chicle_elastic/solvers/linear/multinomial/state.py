"""What all tasks have in common while a multinomial regression runs, and the layout of the sums of a pass.

Notation of `objective`: K classes, d features, D = d + 1 with the intercept. h columns have second derivatives in a
block per class: all D (narrow data), or some features (`columns`) and the intercept. As one flat vector the progress is

    part        length              meaning
    scalars     SCALARS             see `MultinomialState`, in the order of its fields
    totals      K                   sum_i C_i y_i
    masses      K                   sum_i of the weights of each class in its block, as of the last evaluation
    class_sums  K d                 sum_i C_i y_i x_i^T
    columns     num_columns         features of the blocks of wide data, ascending
    direction   K D                 where to go from W, b; these three as far as the phase asks for them
    residual    K D                 what conjugate gradients have left of the gradient; of a joint block all of it
    conjugate   K D                 their last vector
    blocks      num_block_values    second derivatives by class, packed by rows, and of wide data the diagonals (K D) in
                                    front of them; for one pass only, in which each task makes a factor of them
"""

import operator
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array

HEAD = 3
"""Values that every sum begins with: tasks that were interrupted; rows read; tasks without a preconditioner."""
SHARES = (0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01, 0.003, 0.001)
"""Shares of a direction that a pass looks at once the whole of it was too long."""


class MultinomialPhase(IntEnum):
    """What the next pass sums up."""

    LOOK = 0
    """Weights and features of each class; where W is 0, all that the first step needs."""
    EVALUATE = 1
    """Loss and gradient at the end of the direction, and second derivatives where there is a joint block."""
    BLOCKS = 2
    """Second derivatives of each class, for the preconditioner."""
    MULTIPLY = 3
    """The product of the second derivatives with a vector, for conjugate gradients."""
    SEARCH = 4
    """Losses along the direction, the whole of which was too long."""
    REST = 5
    """Nothing: W is good enough, and a certificate follows."""


class Roughness(IntEnum):
    """What is summed up in float32, of dense rows that are no float64. Certificates never are."""

    NOTHING = 0
    PRODUCTS = 1
    """Second derivatives, which decide how fast it goes, and not where it ends."""
    ALL = 2
    """The gradient, too."""


_NONE = np.zeros(0)


def _none() -> Array:
    return _NONE


@dataclass(slots=True)
class MultinomialState:
    """Where the run is.

    Attributes:
        phase: What the next pass sums up.
        num_classes, D: K and D.
        num_all_rows: Of the data set.
        is_joint: There is one block, of all K D weights: so little data that an exact step costs less than products do.
        block_columns: h at most.
        block_rows: Rows of a block that are about enough, so that some are drawn where there are more; 0 for all.
        kept_products: Products of a run of conjugate gradients up to which the next one has the same blocks.
        roughness: See `Roughness`.
        is_cold: W is 0, so that all samples have the same probabilities.
        needs_blocks: Products are not begun before blocks are summed up again.
        num_rows: Rows that were looked at.
        block_serial: Number of the blocks that the preconditioner is made of.
        num_blocks: Blocks in the progress: 0, K, or 1 of which those of all classes are multiples.
        num_block_values: Length of these, with their diagonals.
        num_columns: Features of the blocks of wide data, once they are chosen.
        value: The objective at W, b; infinite where it is not known.
        gap: Duality gap there.
        share: Share of tol below which the run rests.
        reach: Share of the direction that is evaluated next.
        num_products: Products of this run of conjugate gradients.
        length: How far its last product led along `conjugate`.
        decrease: By how much the quadratic model has fallen in this run.
        rz, first_rz: Squared residual in the norm of the preconditioner, before the last and before the first product.
        num_stalls: Evaluations in a row that did not bring the gap down.
        totals, masses, class_sums, columns, direction, residual, conjugate, blocks: See the layout.
    """

    phase: MultinomialPhase
    num_classes: int
    D: int
    num_all_rows: int
    is_joint: bool
    block_columns: int
    block_rows: int
    kept_products: int
    roughness: Roughness
    is_cold: bool = False
    needs_blocks: bool = True
    num_rows: float = 0.0
    block_serial: int = 0
    num_blocks: int = 0
    num_block_values: int = 0
    num_columns: int = 0
    value: float = np.inf
    gap: float = np.inf
    share: float = 0.5
    reach: float = 1.0
    num_products: int = 0
    length: float = 0.0
    decrease: float = 0.0
    rz: float = 0.0
    first_rz: float = 0.0
    num_stalls: int = 0
    totals: Array = field(default_factory=_none)
    masses: Array = field(default_factory=_none)
    class_sums: Array = field(default_factory=_none)
    columns: Array = field(default_factory=_none)
    direction: Array = field(default_factory=_none)
    residual: Array = field(default_factory=_none)
    conjugate: Array = field(default_factory=_none)
    blocks: Array = field(default_factory=_none)

    @property
    def is_narrow(self) -> bool:
        """Whether blocks have all columns."""
        return self.block_columns >= self.D

    @property
    def h(self) -> int:
        """Columns of a block; 0 before those of wide data are chosen."""
        return self.D if self.is_narrow else self.num_columns + 1 if self.num_columns else 0

    def is_active(self, *, has_intercept: bool) -> Array:
        """Which classes have weight, shape (K,), bool; without intercepts those without one are like all others."""
        return self.totals > 0 if has_intercept else np.ones(self.num_classes, dtype=bool)

    def size_of_blocks(self, num_blocks: int) -> int:
        """Values of so many blocks, with their diagonals where they have not all columns."""
        if self.is_joint:
            size = self.num_classes * self.D
            return size * (size + 1) // 2
        return num_blocks * (self.h * (self.h + 1) // 2 + (0 if self.is_narrow else self.D))

    @property
    def sums_size(self) -> int:
        """Length of the sums of this pass.

        LOOK:      HEAD, sum C y (K), sum C y x^T (K d), and where W is 0 a block of sum C x x^T; of wide data its
                   diagonal, in any case
        EVALUATE:  HEAD, loss, entropy, second derivatives of the intercepts (K K), gradient (K D), and where there is a
                   joint block the direction (K D) and that block
        BLOCKS:    HEAD, K blocks
        MULTIPLY:  HEAD, <r, z>, the vector p (K D), second derivatives times p (K D)
        SEARCH:    HEAD, losses at each of SHARES
        REST:      HEAD
        """
        K, D = self.num_classes, self.D
        if self.phase is MultinomialPhase.LOOK:
            has_block = (self.is_cold and not self.is_joint) or not self.is_narrow
            return HEAD + K * D + (self.size_of_blocks(1) if has_block else 0)
        if self.phase is MultinomialPhase.EVALUATE:
            return HEAD + 2 + K * K + K * D + (K * D + self.size_of_blocks(1) if self.is_joint else 0)
        if self.phase is MultinomialPhase.BLOCKS:
            return HEAD + self.size_of_blocks(K)
        if self.phase is MultinomialPhase.MULTIPLY:
            return HEAD + 1 + 2 * K * D
        return HEAD + (len(SHARES) if self.phase is MultinomialPhase.SEARCH else 0)

    def encode(self) -> Array:
        """As one vector, float64."""
        scalars = np.array(_SCALARS_OF(self), dtype=np.float64)
        return np.concatenate([scalars, *(getattr(self, name).reshape(-1) for name in self._sizes())])

    def _sizes(self) -> dict[str, int]:
        """Lengths of the vectors that go on to the next pass, in order."""
        K, D = self.num_classes, self.D
        is_looking = self.phase is MultinomialPhase.LOOK
        sizes = {} if is_looking else {"totals": K, "masses": K, "class_sums": K * (D - 1)}
        sizes["columns"] = self.num_columns
        for name in self._directions():
            sizes[name] = K * D
        sizes["blocks"] = self.num_block_values
        return sizes

    def _directions(self) -> tuple[str, ...]:
        """Which vectors of the shape of the model go on to the next pass."""
        if self.phase is MultinomialPhase.MULTIPLY:
            return ("direction", "residual", "conjugate")
        if self.phase is MultinomialPhase.BLOCKS:
            return ("residual",)
        if self.phase is MultinomialPhase.EVALUATE and self.num_blocks:  # tasks find the direction themselves
            return ("residual",)
        return ("direction",) if self.phase in (MultinomialPhase.EVALUATE, MultinomialPhase.SEARCH) else ()

    @classmethod
    def decode(cls, progress: Array, *, has_vectors: bool = True) -> "MultinomialState":
        """From such a vector; the arrays are views of it, and left out where nothing but scalars is asked for."""
        first = len(SCALARS)
        state = cls(*(kind(value) for kind, value in zip(_KINDS, progress[:first].tolist(), strict=True)))
        if not has_vectors:
            return state
        K, D = state.num_classes, state.D
        for name, size in state._sizes().items():
            vector = progress[first : first + size]
            first += size
            if name in ("direction", "residual", "conjugate"):
                vector = vector.reshape(K, D)
            elif name == "class_sums":
                vector = vector.reshape(K, D - 1)
            elif name == "columns":
                vector = vector.astype(np.int64)
            setattr(state, name, vector)
        return state


SCALARS = tuple(f.name for f in fields(MultinomialState) if f.type is not Array)
_SCALARS_OF = operator.attrgetter(*SCALARS)
_KINDS: tuple[Any, ...] = tuple(f.type for f in fields(MultinomialState) if f.type is not Array)
"""Makes a scalar of a float."""
_PLACES = {name: place for place, name in enumerate(SCALARS)}


def phase_of(progress: Array) -> MultinomialPhase:
    """What the next pass sums up: asked several times an iteration, and so not dearer than it has to be."""
    return MultinomialPhase(progress[_PLACES["phase"]])


def gap_and_value_of(progress: Array) -> tuple[float, float]:
    """Duality gap and objective at W, b."""
    return float(progress[_PLACES["gap"]]), float(progress[_PLACES["value"]])
