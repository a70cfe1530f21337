"""Where chunks come from, at the start of a job and again after a loss."""

from typing import Protocol

from chicle_elastic.chunks.views import Chunk, DataSchema, StateSpec
from chicle_elastic.ids import ChunkId
from chicle_elastic.values import ChunkInfo


class ChunkSource(Protocol):
    """Something that every chunk of a data set can be built from, bit-identical, at any time."""

    @property
    def schema(self) -> DataSchema:
        """What all chunks have in common."""
        ...

    def infos(self, state: StateSpec) -> tuple[ChunkInfo, ...]:
        """All chunks, by id, with the memory that each takes together with a state of this shape."""
        ...

    def load(self, chunk_id: ChunkId, state: StateSpec) -> Chunk:
        """The chunk with fresh state (zeros)."""
        ...
