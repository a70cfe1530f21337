"""Which slots of which arenas are free: pure bookkeeping, no memory behind it.

A slot is in one of four states:

    FREE      -- reserve -->  RESERVED   bytes are arriving
    RESERVED  -- commit  -->  USED       it holds a chunk
    RESERVED  -- free    -->  FREE       the copy was abandoned
    USED      -- free    -->  FREE       nobody reads it
    USED      -- free    -->  DRAINING   the chunk is gone, but a lease is still out
    DRAINING  -- release -->  FREE       with the last lease

Rules that hold in every state: only a used slot can be leased, a leased slot is never given out again before its last
release, and every slot is counted in exactly one state. Anything else is our own mistake: a `UsageError` that names
the slot.
"""

import heapq
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from chicle_elastic.errors import CapacityError, UsageError


class SlotAddress(NamedTuple):
    """Where a chunk lies on its node.

    Attributes:
        arena: Number of the arena in its store, from 0.
        slot: Number of the slot in its arena, from 0.
    """

    arena: int
    slot: int

    def __str__(self) -> str:
        return f"slot {self.slot} of arena {self.arena}"


class SlotState(Enum):
    """See the top of the module."""

    FREE = "free"
    RESERVED = "reserved"
    USED = "used"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStats:
    """How many slots are in which state; their sum is `total`.

    Attributes:
        leases: Leases that are out, over all slots.
    """

    total: int
    free: int
    reserved: int
    used: int
    draining: int
    leases: int


class SlotAllocator:
    """Gives out the slots of a growing number of arenas, lowest address first. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._states: list[list[SlotState]] = []
        self._counts: Counter[SlotState] = Counter()
        self._free: list[SlotAddress] = []  # a heap
        self._leases: Counter[SlotAddress] = Counter()

    def add_arena(self, num_slots: int) -> int:
        """Add a new arena's slots, all free.

        Returns:
            The number of the arena.
        """
        if num_slots < 1:
            raise UsageError(f"an arena of {num_slots} slots cannot be; give it at least 1")
        arena = len(self._states)
        self._states.append([SlotState.FREE] * num_slots)
        self._counts[SlotState.FREE] += num_slots
        for slot in range(num_slots):
            heapq.heappush(self._free, SlotAddress(arena, slot))
        return arena

    def reserve(self) -> SlotAddress:
        """Take a free slot for bytes that are about to arrive.

        Raises:
            CapacityError: No slot is free; the message says in which states they are.
        """
        if not self._free:
            stats = self.stats()
            raise CapacityError(
                f"all {stats.total} slots are taken ({stats.used} used, {stats.reserved} reserved for copies on their "
                f"way, {stats.draining} freed but still leased by a reader); free chunks or add an arena"
            )
        address = heapq.heappop(self._free)
        self._set(address, SlotState.RESERVED)
        return address

    def commit(self, address: SlotAddress) -> None:
        """The bytes have arrived: a reserved slot becomes used."""
        self._require(address, "commit", SlotState.RESERVED)
        self._set(address, SlotState.USED)

    def allocate(self) -> SlotAddress:
        """Take a free slot that is used at once; see `reserve` for the errors."""
        address = self.reserve()
        self.commit(address)
        return address

    def lease(self, address: SlotAddress) -> None:
        """Count one more reader of a used slot; each lease needs one `release`."""
        self._require(address, "lease", SlotState.USED)
        self._leases[address] += 1

    def release(self, address: SlotAddress) -> None:
        """Give one lease back; the last one makes a slot that was freed meanwhile free for others."""
        self._require(address, "release", SlotState.USED, SlotState.DRAINING)
        if not self._leases[address]:
            raise UsageError(f"cannot release {address}: it is not leased; release each lease once")
        self._leases[address] -= 1
        if not self._leases[address]:
            del self._leases[address]
            if self.state(address) is SlotState.DRAINING:
                self._give_back(address)

    def free(self, address: SlotAddress) -> None:
        """Give up a used or reserved slot. While leased it is only marked, and becomes free with the last release."""
        self._require(address, "free", SlotState.USED, SlotState.RESERVED)
        if self._leases[address]:
            self._set(address, SlotState.DRAINING)
        else:
            self._give_back(address)

    def state(self, address: SlotAddress) -> SlotState:
        """The state of one slot."""
        if not (0 <= address.arena < len(self._states) and 0 <= address.slot < len(self._states[address.arena])):
            sizes = [len(states) for states in self._states]
            raise UsageError(f"there is no {address}; the arenas have {sizes} slots")
        return self._states[address.arena][address.slot]

    def num_leases(self, address: SlotAddress) -> int:
        """Leases of one slot that are out."""
        return self._leases.get(address, 0)

    def stats(self) -> SlotStats:
        """Slots per state."""
        counts = self._counts
        return SlotStats(
            total=counts.total(),
            free=counts[SlotState.FREE],
            reserved=counts[SlotState.RESERVED],
            used=counts[SlotState.USED],
            draining=counts[SlotState.DRAINING],
            leases=self._leases.total(),
        )

    def _require(self, address: SlotAddress, verb: str, *allowed: SlotState) -> None:
        state = self.state(address)
        if state not in allowed:
            wanted = " or ".join(state.value for state in allowed)
            again = "; it was freed before" if verb == "free" else ""
            raise UsageError(f"cannot {verb} {address}: it is {state.value}, not {wanted}{again}")

    def _set(self, address: SlotAddress, state: SlotState) -> None:
        states = self._states[address.arena]
        self._counts[states[address.slot]] -= 1
        self._counts[state] += 1
        states[address.slot] = state

    def _give_back(self, address: SlotAddress) -> None:
        self._set(address, SlotState.FREE)
        heapq.heappush(self._free, address)
