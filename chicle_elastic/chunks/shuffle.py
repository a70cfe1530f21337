"""A shuffle of more rows than memory holds; every order of the rows is equally likely.

    add     blocks of rows are kept in memory; when they fill a quarter of it, every row is thrown into one of 64 bucket
            files, independently and uniformly at random
    drain   each bucket in turn is read, its rows are permuted and yielded; one that does not fit a quarter of the
            memory is shuffled by the same means first

Rows that never filled a quarter of the memory need no files. Why it is uniform: independent uniform throws followed by
uniform permutations within the buckets give each order the same probability (Sandelius, "A simple randomization
procedure", 1962). A local shuffle, such as a reservoir that rows pass through, would not: label-sorted data would stay
nearly sorted.

Rows on their way to chunks are chunks already: a bucket file is a sequence of encoded chunks (`layout`) without state.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.headers import HEADER_BYTES, STATE_HEADER_BYTES
from chicle_elastic.chunks.rows import concatenate_chunks, slice_chunk, take_chunk
from chicle_elastic.chunks.views import Chunk

NUM_BUCKETS = 64


class ExternalShuffle:
    """Takes rows, and gives them back in random order.

    Args:
        rng: Decides the order. Same generator, same blocks: same order.
    """

    def __init__(self, folder: Path, rng: np.random.Generator, *, memory_bytes: int) -> None:
        self._folder = folder
        self._rng = rng
        self._memory_bytes = memory_bytes
        self._share_bytes = memory_bytes // 4  # pending rows, their concatenation and their permutation exist at once
        self._pending: list[Chunk] = []
        self._pending_bytes = 0
        self._bucket_bytes = [0] * NUM_BUCKETS
        self._bucket_rows = [0] * NUM_BUCKETS

    def add(self, block: Chunk) -> None:
        """Take some rows; the block belongs to the shuffle from now on."""
        self._pending.append(block)
        self._pending_bytes += block.size_bytes
        if self._pending_bytes > self._share_bytes:
            self._scatter()

    def drain(self) -> Iterator[Chunk]:
        """All rows in random order, in chunks of any size; nothing can be added any more."""
        if not any(self._bucket_rows):
            if self._pending:
                yield self._permuted(self._take_pending())
            return
        self._scatter()
        for bucket in range(NUM_BUCKETS):
            path = self._path(bucket)
            if self._bucket_rows[bucket] == 0:
                continue
            if self._bucket_bytes[bucket] <= self._share_bytes or self._bucket_rows[bucket] == 1:
                rows = concatenate_chunks(list(_read_blocks(path)))
                path.unlink()
                yield self._permuted(rows)
            else:
                inner = ExternalShuffle(path.with_suffix(".d"), self._rng, memory_bytes=self._memory_bytes)
                for block in _read_blocks(path):
                    inner.add(block)
                path.unlink()
                yield from inner.drain()
        self._folder.rmdir()

    def _take_pending(self) -> Chunk:
        rows = concatenate_chunks(self._pending)
        self._pending = []
        self._pending_bytes = 0
        return rows

    def _permuted(self, rows: Chunk) -> Chunk:
        return take_chunk(rows, self._rng.permutation(rows.num_rows))

    def _scatter(self) -> None:
        if not self._pending:
            return
        self._folder.mkdir(exist_ok=True)
        rows = self._take_pending()
        buckets = self._rng.integers(NUM_BUCKETS, size=rows.num_rows)
        rows = take_chunk(rows, np.argsort(buckets, kind="stable"))
        ends = np.cumsum(np.bincount(buckets, minlength=NUM_BUCKETS))
        start = 0
        for bucket, stop in enumerate(ends.tolist()):
            if stop > start:
                self._append(bucket, slice_chunk(rows, start, stop))
            start = stop

    def _append(self, bucket: int, rows: Chunk) -> None:
        content = layout.empty_buffer(layout.encoded_bytes(rows))
        layout.encode(rows, content)
        with self._path(bucket).open("ab") as file:
            file.write(content.data)
        self._bucket_bytes[bucket] += rows.size_bytes
        self._bucket_rows[bucket] += rows.num_rows

    def _path(self, bucket: int) -> Path:
        return self._folder / f"bucket-{bucket:02}"


def _read_blocks(path: Path) -> Iterator[Chunk]:
    with path.open("rb") as file:
        while packed := file.read(HEADER_BYTES):
            size_bytes = layout.read_header(packed, where=str(path)).immutable_bytes + STATE_HEADER_BYTES
            content = layout.empty_buffer(size_bytes)
            content[:HEADER_BYTES] = np.frombuffer(packed, dtype=np.uint8)
            num_read = file.readinto(content[HEADER_BYTES:].data) + HEADER_BYTES
            layout.verify(content[:num_read], where=str(path))
            yield layout.decode(content, where=str(path))
