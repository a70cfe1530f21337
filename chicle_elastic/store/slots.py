"""Where chunks lie in the arenas of a node, and how full these are."""

from dataclasses import dataclass
from typing import NamedTuple


class SlotAddress(NamedTuple):
    """Where a chunk lies on its node."""

    arena: int  # number of the arena in its store, from 0
    slot: int  # number of the slot in its arena, from 0

    def __str__(self) -> str:
        return f"slot {self.slot} of arena {self.arena}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStats:
    """How many slots are in which state (see `slot_table`); their sum is `total`."""

    total: int
    free: int
    reserved: int
    used: int
