"""The contract of a transport: whatever passes `chicle_elastic.testing.transport_contract`.

A transport moves bytes between the registered memory of one agent and a slot of another. It knows neither chunks nor
the store: what a region holds, whether it may be read now, and what its bytes have to look like is the business of the
agents. Rules that every transport keeps:

* The peer has proven the job secret before it is served, and so has this end.
* Arena, offset and length of a region are checked by its owner before a byte leaves.
* `fetch` is one-sided in meaning: no task is involved on either side, and the owner decides nothing per byte.
* A failed fetch leaves the slot with any bytes whatever, and the transport usable.
* Every wait ends: with the answer, with the time-out, with `disconnect` or with `close`.
* All methods may be called from several threads; fetches run at the same time.
"""

from collections.abc import Callable, Iterator, Sequence
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
        ...

    def fileno(self) -> int:
        """Its descriptor."""
        ...


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes in the registered memory of a peer.

    Attributes:
        arena: Number that `register` gave.
        offset: First byte, from the start of the arena.
        size_bytes: How many, >= 1.
    """

    arena: int
    offset: int
    size_bytes: int

    @classmethod
    def from_json(cls, content: Any, *, peer: str) -> "Region":
        """The region in JSON values.

        Raises:
            ProtocolError: It is none.
        """
        figures = content if isinstance(content, list) else []
        if len(figures) != 3 or any(type(figure) is not int for figure in figures):
            raise ProtocolError(f"{peer} asks for a region that is no list of arena, offset and size: {content!r:.80}")
        return cls(*figures)

    def to_json(self) -> list[int]:
        """As JSON values."""
        return [self.arena, self.offset, self.size_bytes]

    def require_within(self, arena_bytes: int) -> None:
        """Refuse a region that is not inside its arena.

        Raises:
            ProtocolError: It is not.
        """
        if self.offset < 0 or self.size_bytes < 1 or self.offset + self.size_bytes > arena_bytes:
            raise ProtocolError(
                f"there are no {self.size_bytes} bytes at offset {self.offset} of arena {self.arena}, which has "
                f"{arena_bytes} bytes; ask the owner again where the chunk lies"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Pull:
    """One region to fetch.

    Attributes:
        region: What to copy.
        into: Where to: writable, exactly as long as the region; nobody else touches it meanwhile.
        check: Looks at the bytes as they arrive.
    """

    region: Region
    into: memoryview
    check: Check | None = None

    def require_fit(self) -> None:
        """Refuse a buffer that does not go with its region.

        Raises:
            UsageError: It is read-only, or of another length.
        """
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


@dataclass(frozen=True, slots=True)
class Message:
    """A message that came.

    Attributes:
        sender: Name of the sender, as it proved it.
        content: JSON values.
    """

    sender: str
    content: Any


class Transport(Protocol):
    """One way to move bytes. Made with the job secret and the name of its node."""

    scheme: str
    """What the log calls it: "tcp", "shm"."""

    @property
    def address(self) -> str:
        """Where peers reach it."""
        ...

    def register(self, memory: Memory) -> int:
        """Let peers read this memory, for as long as the transport lives.

        Returns:
            The number of the arena: 0, 1, ... in the order of registration.
        """
        ...

    def fetch(
        self,
        address: str,
        region: Region,
        into: memoryview,
        *,
        check: Check | None = None,
        timeout_s: float = FETCH_TIMEOUT_S,
    ) -> None:
        """Copy one region of a peer into a slot.

        Args:
            address: Of the peer's transport.
            region: What to copy.
            into: Writable, exactly as long as the region.
            check: Looks at the bytes as they arrive; what it raises, `fetch` raises.
            timeout_s: For connection and transfer.

        Raises:
            ProtocolError: The peer refuses (no such region), or broke the protocol.
            SecretError: The two ends do not have the same secret.
            PeerLostError: The peer is gone, or silent.
            UsageError: `into` has another length than the region, or cannot be written.
        """
        ...

    def fetch_each(
        self, address: str, pulls: Sequence[Pull], *, timeout_s: float = FETCH_TIMEOUT_S
    ) -> Iterator[tuple[Pull, Exception | None]]:
        """Copy several regions of a peer, one after the other; they are asked for ahead, so that no wire idles.

        Args:
            address: Of the peer's transport.
            pulls: What to copy, and where to.
            timeout_s: For the connection, and for each transfer.

        Yields:
            Every pull, in order, once all of its bytes are there: with None, or with the error that `fetch` would
            raise. When the peer is lost, the pulls that remain all end with that error.

        Raises:
            UsageError: A buffer does not go with its region; nothing was fetched.
        """
        ...

    def send(self, address: str, content: Any, *, timeout_s: float = FETCH_TIMEOUT_S) -> None:
        """Put a message (JSON values) into a peer's inbox. Messages that one thread sends to one peer keep their order.

        Raises:
            ProtocolError: It cannot be sent, or the peer's inbox is full.
            SecretError: The two ends do not have the same secret.
            PeerLostError: The peer is gone, or silent; whether the message arrived is not known.
        """
        ...

    def receive(self, timeout_s: float = 0.0) -> Message | None:
        """The oldest message in the inbox, or None when there is none in time."""
        ...

    def disconnect(self, address: str) -> None:
        """Drop all connections to a peer; fetches from it that are under way end with `PeerLostError`."""
        ...

    def close(self) -> None:
        """End everything and give the registered memory up. May be called again."""
        ...
