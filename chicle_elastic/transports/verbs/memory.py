"""Memory that the card may reach: arenas by number, for peers to read and for READs to arrive in; staging areas.

Each is mapped a second time here. A map of one's own stays when the owner of an arena closes it, and the card knows
pages and not maps: what it writes through one is seen through the other. So bytes that go to a slot in the map of a
store are sent to the same place of the arena in the map that is registered.
"""

import contextlib
import ctypes
import mmap
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from chicle_elastic.errors import CapacityError, ProtocolError
from chicle_elastic.transports.base import Memory
from chicle_elastic.transports.verbs.device import Device
from chicle_elastic.transports.verbs.failures import QueuePairError
from chicle_elastic.transports.verbs.library import RdmaUnavailableError


@dataclass(frozen=True, slots=True)
class MemoryKey:
    """What a peer has to know to read an arena."""

    key: int  # opens it
    address: int  # of its first byte, in the process of its owner
    size_bytes: int

    @classmethod
    def from_json(cls, content: Any, *, peer: str) -> "MemoryKey":
        """The key in JSON values. Raises ProtocolError when it is none."""
        figures = content if isinstance(content, list) else []
        limits = (1 << 32, 1 << 64, 1 << 64)
        are_right = [
            type(figure) is int and 0 <= figure < limit for figure, limit in zip(figures, limits, strict=False)
        ]
        if len(figures) != 3 or not all(are_right):
            raise ProtocolError(f"{peer} sent a key for its memory that is none: {content!r:.80}")
        return cls(*figures)

    def to_json(self) -> list[int]:
        """As JSON values."""
        return [self.key, self.address, self.size_bytes]


class Mapped:
    """Memory of this process that the card may reach. Raises CapacityError when this process may not lock that much.

    Args:
        fd: Of the file that is mapped; -1 for new memory.
        is_for_peers: Whether they may read it.
    """

    def __init__(self, device: Device, size_bytes: int, *, fd: int = -1, is_for_peers: bool = False) -> None:
        self.size_bytes = size_bytes
        self._map = mmap.mmap(fd, size_bytes)  # shared in both cases: a fork copies nothing that the card writes to
        self._pin: Any = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._pin)
        try:
            self._region = device.register(self.address, size_bytes, is_for_peers=is_for_peers)
        except BaseException:
            self._unmap()
            raise
        self.view = memoryview(self._map)
        self.local_key: int = self._region.lkey
        self.remote_key: int = self._region.rkey

    def close(self) -> None:
        """The card reaches it no more. Nothing may be under way there."""
        self._region.close()
        self.view.release()
        self._unmap()

    def _unmap(self) -> None:
        self._pin = None
        with contextlib.suppress(BufferError):  # a caller still holds a view: unmapped with the last one
            self._map.close()


def private_memory(device: Device, size_bytes: int) -> Mapped:
    """New memory of a connection. Raises QueuePairError when there is none that may be locked, and so no connection."""
    try:
        return Mapped(device, size_bytes)
    except (CapacityError, RdmaUnavailableError) as error:
        raise QueuePairError(f"there is no memory for a queue pair: {error}") from error


@dataclass(frozen=True, slots=True)
class _Arena:
    mapped: Mapped
    owner: weakref.ref[Any]
    owners_address: int

    def place_of(self, address: int, size_bytes: int) -> int | None:
        """Where an address of the owner's map lies in ours; None where it is not in it."""
        owner = self.owner()
        if owner is None or owner.is_closed:  # that address may be anything by now
            return None
        offset = address - self.owners_address
        is_inside = offset >= 0 and offset + size_bytes <= self.mapped.size_bytes
        return self.mapped.address + offset if is_inside else None


class RegisteredMemory:
    """Arenas by number. Thread-safe.

    Args:
        device: The card; it closes what is registered here when its last user has gone.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._arenas: list[Mapped | str] = []
        self._targets: list[_Arena] = []
        device.on_release(self._close)

    def add(self, memory: Memory) -> int:
        """Register an arena; returns its number. One that cannot be registered has a number too: it is refused by it.
        Raises CapacityError when this process may not lock that much, RdmaUnavailableError when the device does not
        take it."""
        fd = os.open(f"/proc/self/fd/{memory.fileno()}", os.O_RDWR | os.O_CLOEXEC)
        mapped: Mapped | str
        failure: Exception | None = None
        try:
            mapped = Mapped(self._device, memory.size_bytes, fd=fd, is_for_peers=True)
        except (CapacityError, RdmaUnavailableError) as error:
            mapped, failure = str(error), error
        finally:
            os.close(fd)
        with self._lock:
            self._arenas.append(mapped)
            address = getattr(memory, "base_address", None)
            if isinstance(mapped, Mapped) and address is not None and hasattr(memory, "is_closed"):
                self._targets.append(_Arena(mapped, weakref.ref(memory), address))
            number = len(self._arenas) - 1
        if failure is not None:
            raise failure
        return number

    def key(self, number: int) -> MemoryKey:
        """For a peer that wants to read an arena. Raises ProtocolError when there is no such arena."""
        with self._lock:
            if not 0 <= number < len(self._arenas):
                raise ProtocolError(
                    f"there is no arena {number} here, {len(self._arenas)} are registered; ask the owner again where "
                    "the chunk lies"
                )
            arena = self._arenas[number]
        if isinstance(arena, str):
            raise ProtocolError(f"arena {number} cannot be read by RDMA: {arena}")
        return MemoryKey(arena.remote_key, arena.address, arena.size_bytes)

    def place_of(self, view: memoryview) -> tuple[int, int] | None:
        """Address and local key under which the card writes into this view; None where it lies in no arena of ours."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        with self._lock:
            for arena in self._targets:
                if (place := arena.place_of(address, view.nbytes)) is not None:
                    return place, arena.mapped.local_key
        return None

    def _close(self) -> None:
        with self._lock:
            for arena in self._arenas:
                if isinstance(arena, Mapped):
                    arena.close()
            self._arenas.clear()
            self._targets.clear()
