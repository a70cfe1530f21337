"""In which order a task uses its samples within an epoch, and which ones are left.

Every sample has a random key that depends on the seed, the epoch and its chunk only; a task uses its samples in the
order of their keys. So all tasks are equally far in all their chunks, and a chunk that changes hands in the middle of
an epoch goes on where it was, among chunks that are just as far.

What was used is in the chunk's state: the number of the iteration that used the sample last. It is used in this epoch
when that iteration is one of this epoch's and was merged. So a new epoch needs no reset, an iteration that was cut off
before its merge leaves nothing behind once `forget` has been called, and a chunk that was restored from its source is
unused.
"""

from collections.abc import Mapping

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.local_chunk import LocalChunk
from chicle_elastic.solvers.model_vector import Place


def sample_keys(seed: int, epoch: int, chunk: ChunkId, num_rows: int) -> Array:
    """Random keys in [0, 1) of the samples of a chunk, ndarray of shape (num_rows,), float64."""
    return np.random.default_rng([seed, epoch, chunk]).random(num_rows)


def is_unused(state: Array, place: Place) -> Array:
    """Which samples of a chunk are left in this epoch.

    Args:
        state: Of the chunk, shape (num_rows, 1, 1), int32.
        place: Where the training is.

    Returns:
        ndarray of shape (num_rows,), bool.
    """
    used = state[:, 0, 0]
    return np.asarray((used < place.first) | (used > place.merged))


def forget(state: Array, merged: int) -> None:
    """Take back what iterations after the last merged one have marked: their updates are lost."""
    state[state > merged] = 0


class EpochOrder:
    """The unused samples of one task, in order.

    Args:
        seed: Of the job.

    Attributes:
        chunks: Chunks that `positions` counts.
        positions: Chunk of each unused sample, shape (num_unused,), int32.
        rows: Its row there, shape (num_unused,), int32.
        num_used: How many of these have been used since `build`.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._epoch = 0
        self._keys: dict[ChunkId, Array] = {}
        self.chunks: list[ChunkId] = []
        self.positions: Array = np.empty(0, dtype=np.int32)
        self.rows: Array = np.empty(0, dtype=np.int32)
        self.num_used = 0

    @property
    def num_left(self) -> int:
        """Unused samples."""
        return len(self.rows) - self.num_used

    def build(self, chunks: Mapping[ChunkId, LocalChunk], place: Place) -> None:
        """Look which samples are unused; called inside an iteration, because state is read."""
        if place.epoch != self._epoch:
            self._keys, self._epoch = {}, place.epoch
        self._keys = {chunk: keys for chunk, keys in self._keys.items() if chunk in chunks}
        self.chunks = list(chunks)
        rows, positions, keys = [], [], []
        for position, (chunk_id, chunk) in enumerate(chunks.items()):
            if chunk_id not in self._keys:
                self._keys[chunk_id] = sample_keys(self._seed, place.epoch, chunk_id, chunk.num_rows)
            left = np.flatnonzero(is_unused(chunk.peek().state, place)).astype(np.int32)
            rows.append(left)
            positions.append(np.full(len(left), position, dtype=np.int32))
            keys.append(self._keys[chunk_id][left])
        order = np.argsort(np.concatenate(keys), kind="stable")
        self.rows, self.positions = np.concatenate(rows)[order], np.concatenate(positions)[order]
        self.num_used = 0

    def next(self, count: int) -> tuple[Array, Array]:
        """Positions (of chunks) and rows of the next samples, at most `count`."""
        span = slice(self.num_used, self.num_used + count)
        return self.positions[span], self.rows[span]
