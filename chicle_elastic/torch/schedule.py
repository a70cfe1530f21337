"""Decide what the members of an elastic loop do: which samples, what was agreed on, and who sends state to whom.

Theory of operation. Every member holds the same `Position`. The order of an epoch's samples follows from (seed, epoch,
number of samples), so no member tells another which samples it takes:

    step       the next samples of the order, cut over the members by rank (`Plan.batches`)
    commit     the step counts when a member has the sum of all members; the position moves on (`Plan.after`)
    break      a member was lost before that: the position stays, and the members of the next round cut the same samples
    round      members tell their `Standing`; the newest one wins, and its holders send their state (`holders_of`)

So a step that was not agreed on is done again, and a member that committed one which another one missed has the newer
standing, and the other one receives it. All of this is pure: no torch, no socket, no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from chicle_elastic.chunks.views import Array


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Position:
    """How far the training has come; the same in every member that has committed the same steps."""

    epoch: int = 0  # epochs that are done
    offset: int = 0  # samples of this epoch's order that committed steps have used
    step: int = 0  # committed steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which samples a step takes, and how they are cut over the members.

    Attributes:
        batch_size: Samples of an optimizer step: of all members together, or of each with `is_per_node`.
        local_steps: Optimizer steps that a member takes between two sums, >= 1.
    """

    num_samples: int
    num_epochs: int
    batch_size: int
    is_per_node: bool = False
    local_steps: int = 1
    seed: int = 0
    is_shuffled: bool = True

    def order(self, epoch: int) -> Array:
        """Return the order of the samples in an epoch: ndarray of shape (num_samples,), int64."""
        if not self.is_shuffled:
            return np.arange(self.num_samples)
        return np.random.default_rng([self.seed, epoch]).permutation(self.num_samples)

    def is_over(self, position: Position) -> bool:
        """Say whether all epochs are done."""
        return position.epoch >= self.num_epochs

    def batches(self, position: Position, size: int) -> list[list[range]]:
        """Return the places in the epoch's order that each member takes until the next sum: by rank, a range for each
        optimizer step; some may be empty. There are fewer steps at the end of an epoch."""
        per_step, stop = self._span(position, size)
        steps = [cut(begin, min(begin + per_step, stop), size) for begin in range(position.offset, stop, per_step)]
        return [list(parts) for parts in zip(*steps, strict=True)]

    def after(self, position: Position, size: int) -> Position:
        """Return the position after the step is committed by `size` members."""
        _, stop = self._span(position, size)
        passes, offset = divmod(stop, self.num_samples)
        return Position(epoch=position.epoch + passes, offset=offset, step=position.step + 1)

    def _span(self, position: Position, size: int) -> tuple[int, int]:
        """Return the samples of a step of all members, and where the samples until the next sum end."""
        per_step = self.batch_size * (size if self.is_per_node else 1)
        return per_step, min(position.offset + per_step * self.local_steps, self.num_samples)


def cut(start: int, stop: int, number: int) -> list[range]:
    """Cut the range from `start` to `stop` into `number` ranges whose lengths differ by at most 1."""
    bounds = [start + (stop - start) * part // number for part in range(number + 1)]
    return [range(bounds[part], bounds[part + 1]) for part in range(number)]


class Standing(NamedTuple):
    """What state a member has; the greatest one wins."""

    has_begun: bool = False  # its state is that of the job; False for a process that has only built its model
    merged: int = 0  # last committed iteration, as the agents' log counts them
    # Round and iteration in which it was committed. A member that was taken for lost may have committed an iteration
    # that the others repeated in another round.
    round: int = 0
    iteration: int = 0


def holders_of(standings: Sequence[Standing]) -> tuple[int, ...]:
    """Return the ranks that have the newest state, which they send to all others: those of the greatest standing; the
    first one where none has begun, as models that have only been built differ."""
    newest = max(standings)
    holders = tuple(rank for rank, standing in enumerate(standings) if standing == newest)
    return holders if newest.has_begun else holders[:1]


class Call(IntEnum):
    """What a member takes part in; the numbers travel."""

    STEP = 1  # the sum of a step
    ALL_REDUCE = 2  # a sum that the user's code asks for
    FAILED = 3  # the user's code has raised an exception
    IDLE = 4  # the sum of a step, or zeros for what others ask for: they have samples left, and this member has none


class Row(NamedTuple):
    """What a member tells all others before a sum, in the numbers as which it travels."""

    call: float
    num_values: float = 0  # that it is about to add up
    samples: float = 0  # that it has processed since the last sum
    loss: float = 0.0  # sum over these samples
    seconds: float = 0.0  # that it computed
    has_vote: float = False  # its agent wants to stop at this boundary
    wants_stop: float = False  # the user's code asks for the end of the training


def failed_of(rows: Sequence[Row], members: Sequence[str]) -> list[str]:
    """Return the members whose code has raised; the members by rank."""
    return [member for member, row in zip(members, rows, strict=True) if row.call == Call.FAILED]


def mismatch_of(rows: Sequence[Row], members: Sequence[str]) -> str:
    """Say why the members cannot add up, in words; empty where all are about to add up the same."""
    which = next((rank for rank, row in enumerate(rows) if row.call != Call.IDLE), 0)
    first = rows[which]
    for member, row in zip(members, rows, strict=True):
        is_alike = row.call in (first.call, Call.IDLE) and row.num_values == first.num_values
        if not is_alike and (row.call, first.call) != (Call.IDLE, Call.ALL_REDUCE):
            names = ("step", "all_reduce")
            texts = (f"loop.{names[r.call == Call.ALL_REDUCE]} over {r.num_values:.0f} values" for r in (first, row))
            return f"{members[which]} calls {next(texts)}, but {member} calls {next(texts)}"
    return ""
