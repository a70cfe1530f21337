"""How many bytes of chunks have changed nodes since the last iteration, and how many of these no task has waited for.

Chunks that were lost and loaded again are counted as well.

Every agent folds the same orders, so each counts those of all nodes. A chunk counts when another node owns it. Hidden
is the part of it that was copied ahead, while tasks computed: its immutable part. How large that is only a node knows
that has the chunk; so the share is that of a chunk here, which is much the same in all chunks of a data set.
"""

from collections.abc import Callable

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import effects, events


class MovedBytes:
    """Counts. Everything is called in the loop.

    Args:
        immutable_share: Share of a chunk that pre-copy copies, 0 to 1, by the chunks of this node.
    """

    def __init__(self, size_of: Callable[[ChunkId], int], immutable_share: Callable[[], float]) -> None:
        self._size_of, self._immutable_share = size_of, immutable_share
        self._ordered: dict[int, tuple[ChunkId, NodeId]] = {}
        self._ahead: set[tuple[ChunkId, NodeId]] = set()
        self._moved = self._ahead_bytes = self._reloaded = 0

    def ordered(self, order: effects.PrecopyChunks) -> None:
        """Chunks are to be copied ahead."""
        self._ordered.update(zip(order.numbers, ((chunk, order.target) for chunk in order.chunks), strict=True))

    def ended(self, event: events.PrecopiesEnded) -> None:
        """Chunks have been copied ahead."""
        for number in event.failed:
            self._ordered.pop(number, None)
        self._ahead.update(self._ordered.pop(number) for number in event.whole if number in self._ordered)

    def committed(self, order: effects.CommitChunks) -> None:
        """Chunks have another owner."""
        for chunk in order.chunks:
            size = self._size_of(chunk)
            self._moved += size
            if (chunk, order.target) in self._ahead:
                self._ahead.discard((chunk, order.target))
                self._ahead_bytes += size

    def reloaded(self, event: events.ChunksLoaded) -> None:
        """Chunks that were lost with a node have come from their source once more."""
        self._reloaded += len(event.chunks)

    def freed(self, order: effects.FreeChunks) -> None:
        """What lies there is given back."""
        self._ahead.difference_update((chunk, order.node) for chunk in order.chunks)

    def forget(self) -> None:
        """A new incarnation folds the log from its beginning."""
        self._ordered.clear()
        self._ahead.clear()

    def since_last(self) -> dict[str, int]:
        """`moved_bytes`, `hidden_bytes` and `reloaded_chunks` since the last call."""
        moved, ahead, reloaded = self._moved, self._ahead_bytes, self._reloaded
        self._moved = self._ahead_bytes = self._reloaded = 0
        hidden = round(ahead * self._immutable_share()) if ahead else 0
        return {"moved_bytes": moved, "hidden_bytes": hidden, "reloaded_chunks": reloaded}
