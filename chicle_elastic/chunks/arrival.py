"""Verifies a chunk while its bytes arrive.

`layout.verify` reads a whole chunk again after it has come, from memory that is cold by then. Here every piece is
summed up right behind its arrival, while it lies in a cache of the core that received it, so that the check costs next
to nothing beside the transfer. Verdict and errors are those of `layout.verify`.
"""

import zlib
from collections.abc import Callable
from typing import Any

from chicle_elastic.chunks.header_reading import Buffer, bytes_of, read_header, read_state_header, require_crc
from chicle_elastic.chunks.headers import HEADER_BYTES, STATE_HEADER_BYTES, Header, StateHeader
from chicle_elastic.chunks.layout import require_sound_content
from chicle_elastic.errors import ChunkCorruptError, ProtocolError
from chicle_elastic.ids import ChunkId
from chicle_elastic.values import StateVersion


class ArrivingChunk:
    """A chunk of which more and more bytes are there. Called with how many, it checks those that are new. Raises
    ChunkCorruptError when the rows that are there are not those of a chunk, ProtocolError when they are those of
    another chunk.

    Args:
        buffer: Where the bytes arrive, from its beginning; no other code writes there.
        where: Where the bytes come from, for messages.
        crc32: What sums them up, like `zlib.crc32`; faster ones exist.
        has_rows: The immutable part has come before and was right (`finish_rows`): only what is behind it arrives.
    """

    def __init__(
        self,
        buffer: Buffer,
        *,
        chunk_id: ChunkId,
        where: str,
        crc32: Callable[[Any, int], int] = zlib.crc32,
        has_rows: bool = False,
    ) -> None:
        self.header: Header | None = None  # header of the chunk, once it is there
        self.state_header: StateHeader | None = None  # header of its state, once it is there
        self._content = bytes_of(buffer)
        self._chunk_id = chunk_id
        self._where = where
        self._crc32 = crc32
        self._crc = 0
        self._num_summed = 0
        self._has_rows = has_rows
        if has_rows:
            self.header = self._read_header()
            self._num_summed = self.header.immutable_bytes

    def __call__(self, num_bytes: int) -> None:
        """The first `num_bytes` bytes are there; numbers only rise, and the last is the size of the chunk. Raises
        ChunkCorruptError when they are not those of a chunk, or damaged, ProtocolError when they are those of another
        chunk."""
        if self.header is None:
            if num_bytes < HEADER_BYTES:
                return
            self.header = self._read_header()
        if self.state_header is None:
            self._sum_up_to(min(num_bytes, self.header.immutable_bytes))
            if num_bytes < self.header.immutable_bytes + STATE_HEADER_BYTES:
                return
            if not self._has_rows:
                require_sound_content(self._content, self.header, self._crc, where=self._place())
            self.state_header = read_state_header(self._content, self.header, where=self._where)
            self._crc, self._num_summed = 0, self.header.immutable_bytes + STATE_HEADER_BYTES
        size_bytes = self.header.encoded_bytes(self.state_header.spec)
        self._sum_up_to(min(num_bytes, size_bytes))
        if num_bytes >= size_bytes:
            require_crc(self._crc, self.state_header.state_crc, "the state", self._place())

    def finish_rows(self) -> int:
        """All bytes of the immutable part are there and were right, and nothing else was asked for. Returns how many
        these are. Raises ChunkCorruptError when they are damaged, or bytes are missing."""
        header = self.header
        if header is None or self._num_summed < header.immutable_bytes:
            raise ChunkCorruptError(f"{self._place()}: truncated: {self._num_summed} bytes of its rows came")
        require_sound_content(self._content, header, self._crc, where=self._place())
        return header.immutable_bytes

    def finish(self) -> StateVersion:
        """All bytes are there and were right. Returns the version of the state. Raises ChunkCorruptError when bytes are
        missing."""
        header, state_header = self.header, self.state_header
        size_bytes = header.encoded_bytes(state_header.spec) if header and state_header else len(self._content)
        if state_header is None or self._num_summed < size_bytes:
            raise ChunkCorruptError(
                f"{self._place()}: truncated: {self._num_summed} of {size_bytes} bytes came; ask the source again"
            )
        return state_header.version

    def _place(self) -> str:
        return f"{self._where}: chunk {self._chunk_id}"

    def _read_header(self) -> Header:
        header = read_header(self._content, where=self._where)
        if header.chunk_id != self._chunk_id:
            raise ProtocolError(
                f"{self._where}: expected the bytes of chunk {self._chunk_id}, got those of chunk {header.chunk_id}; "
                "ask the source again"
            )
        self._num_summed = HEADER_BYTES
        return header

    def _sum_up_to(self, end: int) -> None:
        if end > self._num_summed:
            self._crc = self._crc32(self._content[self._num_summed : end].data, self._crc)
            self._num_summed = end
