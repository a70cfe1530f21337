"""The memory that peers may read: registered arenas, by number."""

import contextlib
import mmap
import os
import sys
import threading

from chicle_elastic.errors import ProtocolError, UsageError
from chicle_elastic.transports.base import Memory, Region


class Registry:
    """Arenas that were registered, with a read-only descriptor and map of their own.

    Its own, because the number of a descriptor that its owner has closed is given to the next file: serving from it
    would send the bytes of something else. Read-only, because peers have nothing to write.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arenas: list[tuple[int, memoryview]] = []
        self._maps: list[mmap.mmap] = []

    def add(self, memory: Memory) -> int:
        """Register an arena; returns its number. Raises UsageError when not on Linux."""
        if sys.platform != "linux":
            raise UsageError(f"transports need Linux, but this is {sys.platform}; fit in process instead")
        fd = os.open(f"/proc/self/fd/{memory.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            mapped = mmap.mmap(fd, memory.size_bytes, prot=mmap.PROT_READ)
        except BaseException:
            os.close(fd)
            raise
        with self._lock:
            self._arenas.append((fd, memoryview(mapped)))
            self._maps.append(mapped)
            return len(self._arenas) - 1

    def view(self, region: Region) -> memoryview:
        """The bytes of a region, read-only; release it after use. Raises ProtocolError when there is no such region."""
        _, content = self._arena(region.arena)
        region.require_within(len(content))
        return content[region.offset : region.offset + region.size_bytes]

    def descriptor(self, arena: int) -> tuple[int, int]:
        """Read-only descriptor and size in bytes of an arena. Raises ProtocolError when there is no such arena."""
        fd, content = self._arena(arena)
        return fd, len(content)

    def close(self) -> None:
        """Give all of it up. May be called again."""
        with self._lock:
            for fd, content in self._arenas:
                os.close(fd)
                content.release()
            for mapped in self._maps:
                with contextlib.suppress(BufferError):  # still being sent from: unmapped with its last view
                    mapped.close()
            self._arenas.clear()
            self._maps.clear()

    def _arena(self, number: int) -> tuple[int, memoryview]:
        with self._lock:
            if not 0 <= number < len(self._arenas):
                raise ProtocolError(
                    f"there is no arena {number} here, {len(self._arenas)} are registered; ask the owner again where "
                    "the chunk lies"
                )
            return self._arenas[number]
