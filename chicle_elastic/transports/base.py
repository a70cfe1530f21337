"""The contract of a transport: whatever passes `tests.harness.transport_contract`.

A transport moves bytes between the registered memory of one agent and a slot of another. It knows neither chunks nor
the store: what a region holds, whether it may be read now, and what its bytes have to look like is the business of the
agents, which agree about it over their links (`links`). Rules that every transport keeps:

* The peer has proven the job secret before it is served, and so has this end.
* Arena, offset and length of a region are checked by its owner before a byte leaves.
* `fetch` is one-sided in meaning: no task is involved on either side, and the owner decides nothing per byte.
* A failed fetch leaves the slot with any bytes whatever, and the transport usable.
* Every wait ends: with the answer, with the time-out, with `disconnect` or with `close`.
* All methods may be called from several threads; fetches run at the same time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from chicle_elastic.errors import ProtocolError, UsageError

FETCH_TIMEOUT_S = 30.0

Check = Callable[[int], object]
"""Told, while a region arrives, how many of its bytes are in the slot so far; raises when they are wrong.

Numbers rise, and the last is the size of the region. It runs in the thread that fetches, right behind the bytes: so a
CRC is summed while they lie in the cache, and the next ones collect in the socket meanwhile (`chunks.arrival`).
"""

PIECE_BYTES = 1 << 18
"""Most bytes between two calls of a check: small enough for a cache, large enough to be worth a call."""


class Memory(Protocol):
    """What can be registered: an `Arena`, or anything else with a descriptor that can be mapped."""

    @property
    def size_bytes(self) -> int:
        """Size of the whole."""

    def fileno(self) -> int:
        """Its descriptor."""


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes in the registered memory of a peer."""

    arena: int
    offset: int  # first byte, from the start of the arena
    size_bytes: int  # how many, >= 1

    @classmethod
    def from_json(cls, content: Any, *, peer: str) -> "Region":
        """The region in JSON values. Raises ProtocolError when it is none."""
        figures = content if isinstance(content, list) else []
        if len(figures) != 3 or any(type(figure) is not int for figure in figures):
            raise ProtocolError(f"{peer} asks for a region that is no list of arena, offset and size: {content!r:.80}")
        return cls(*figures)

    def to_json(self) -> list[int]:
        """As JSON values."""
        return [self.arena, self.offset, self.size_bytes]

    def require_within(self, arena_bytes: int) -> None:
        """Refuse a region that is not inside its arena. Raises ProtocolError when it is not."""
        if self.offset < 0 or self.size_bytes < 1 or self.offset + self.size_bytes > arena_bytes:
            raise ProtocolError(
                f"there are no {self.size_bytes} bytes at offset {self.offset} of arena {self.arena}, which has "
                f"{arena_bytes} bytes; ask the owner again where the chunk lies"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Pull:
    """One region to fetch."""

    region: Region  # what to copy
    into: memoryview  # where to: writable, exactly as long as the region; no other code touches it meanwhile
    check: Check | None = None  # looks at the bytes as they arrive

    def require_fit(self) -> None:
        """Refuse a buffer that does not go with its region. Raises UsageError when it is read-only, or of another
        length."""
        if self.into.readonly or self.into.itemsize != 1 or self.into.nbytes != self.region.size_bytes:
            raise UsageError(
                f"a region of {self.region.size_bytes} bytes cannot be fetched into a "
                f"{'read-only ' if self.into.readonly else ''}buffer of {self.into.nbytes} bytes; reserve a slot for it"
            )

    def judge(self, num_bytes: int) -> Exception | None:
        """What is wrong with the first `num_bytes` bytes, according to the check."""
        try:
            if self.check is not None:
                self.check(num_bytes)
        except Exception as error:  # whatever the check says is the answer to this pull, and no reason to hang up
            return error
        return None
