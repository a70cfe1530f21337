"""An arena: anonymous memory cut into equal slots, owned by the agent and shared by descriptor.

    byte 0                slot_bytes           2 * slot_bytes                  num_slots * slot_bytes    size_bytes
    | slot 0              | slot 1             | ...                           | rest of the last page   |

The memory is a `memfd`: it has no name in any folder, and the kernel frees it with the last process that holds it, so
there is nothing to sweep after a SIGKILL. Three rules make it safe to share:

* All pages are there from the beginning (`posix_fallocate`): a shortage is a `CapacityError` at creation, never a
  SIGBUS in the middle of an iteration. The size is compared with what the machine and the control groups can give
  first, because running into the limit of a group ends in a SIGKILL, not in an error.
* The file is sealed: no process that gets the descriptor can shrink it under the others, and none attaches to one
  that is not sealed.
* Slots are multiples of 64 bytes and begin at a page, so that everything in them is aligned like in a chunk file.

Linux only; importing this module is harmless everywhere.
"""

import contextlib
import mmap
import os
import sys
import weakref
from pathlib import Path

import numpy as np

from chicle_elastic.cgroups import PROC, memory_headroom
from chicle_elastic.chunks.views import Array
from chicle_elastic.closing import Closing
from chicle_elastic.errors import CapacityError, ProtocolError, UsageError

SLOT_ALIGNMENT = 64
NAME = "chicle-arena"  # shown in /proc/PID/maps


class Arena(Closing):
    """One piece of shared memory with equal slots. Made by `create` or `attach`; a context manager that closes it."""

    def __init__(self, fd: int, *, num_slots: int, slot_bytes: int, flags: int = 0) -> None:
        self.num_slots = num_slots  # number of slots
        self.slot_bytes = slot_bytes  # size of each slot
        self.size_bytes = arena_bytes(num_slots, slot_bytes)  # size of the whole, in pages; the memory that it takes
        self._fd = fd
        # The array holds the map, every view holds the array: the memory is unmapped when the last of them is gone.
        mapped = mmap.mmap(fd, self.size_bytes, flags=mmap.MAP_SHARED | flags)
        self._map = weakref.ref(mapped)
        self._bytes: Array | None = np.frombuffer(mapped, dtype=np.uint8)
        self._close_fd = weakref.finalize(self, os.close, fd)

    @classmethod
    def create(cls, num_slots: int, *, slot_bytes: int, proc: Path = PROC) -> "Arena":
        """Take new memory, all zeros. Raises UsageError for sizes that cannot be, or on another system than Linux,
        CapacityError when the machine, a control group or a limit of this process does not give that much.

        Args:
            num_slots: Number of slots, >= 1.
            slot_bytes: Size of each, a positive multiple of 64.
        """
        if sys.platform != "linux":
            raise UsageError(
                f"an arena needs Linux (memfd), but this is {sys.platform}; fit in process (runtime=None) instead, "
                "which needs no shared memory"
            )
        import fcntl  # not on Windows

        check_sizes(num_slots, slot_bytes)
        size_bytes = arena_bytes(num_slots, slot_bytes)
        what = f"an arena of {num_slots} slots of {slot_bytes} bytes needs {format_size(size_bytes)}"
        remedy = "use fewer slots or more nodes, or raise the limit"
        headroom = memory_headroom(proc)
        if headroom is not None and size_bytes > headroom.num_bytes:
            raise CapacityError(f"{what}, but {headroom.source} leaves {format_size(headroom.num_bytes)}; {remedy}")
        fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            arena = cls(fd, num_slots=num_slots, slot_bytes=slot_bytes)
            # Enters the pages into the map now, and not one by one when others may be waiting; MAP_POPULATE does as
            # much, but keeps all threads of Python waiting meanwhile.
            arena._open_bytes()[:: mmap.PAGESIZE] = 0
            return arena
        except BaseException as error:
            _close_quietly(fd)
            if not isinstance(error, OSError):
                raise
            left = "an unknown amount" if headroom is None else format_size(headroom.num_bytes)
            raise CapacityError(
                f"{what}, and the system refused it ({error.strerror}) although {left} seemed to be left: look at "
                f"the limits of this process (ulimit -v, ulimit -f); {remedy}"
            ) from error

    @classmethod
    def attach(cls, fd: int, *, num_slots: int, slot_bytes: int) -> "Arena":
        """Map an arena that another process owns. Raises ProtocolError when the descriptor is not a sealed arena of
        these sizes, CapacityError when this process has no room to map it.

        Args:
            fd: Its descriptor, as received over a Unix socket. It belongs to the arena from now on, and is closed also
                when attaching fails.
        """
        try:
            check_sizes(num_slots, slot_bytes)
            _check_descriptor(fd, arena_bytes(num_slots, slot_bytes))
            # Pages are there; to enter them into this map now is cheaper than one by one, when others may be waiting.
            return cls(fd, num_slots=num_slots, slot_bytes=slot_bytes, flags=mmap.MAP_POPULATE)
        except BaseException as error:
            _close_quietly(fd)
            if not isinstance(error, OSError):
                raise
            raise CapacityError(
                f"cannot map an arena of {format_size(arena_bytes(num_slots, slot_bytes))} ({error.strerror}); look at "
                "the limits of this process (ulimit -v)"
            ) from error

    def fileno(self) -> int:
        """The descriptor, to pass to a task or a same-host peer."""
        self._open_bytes()
        return self._fd

    @property
    def base_address(self) -> int:
        """Address of byte 0 in this process, for RDMA registration and kernels; the same for as long as it is open."""
        return int(self._open_bytes().ctypes.data)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._bytes is None

    def offset(self, slot: int) -> int:
        """Byte at which `slot` begins. Raises UsageError when there is no such slot."""
        if not 0 <= slot < self.num_slots:
            raise UsageError(f"there is no slot {slot} in an arena of {self.num_slots} slots, counted from 0")
        return slot * self.slot_bytes

    def array(self, slot: int) -> Array:
        """The slot as a writable view: ndarray of shape (slot_bytes,), uint8."""
        start = self.offset(slot)
        return self._open_bytes()[start : start + self.slot_bytes]

    def view(self, slot: int) -> memoryview:
        """The slot as a writable memoryview of `slot_bytes` bytes."""
        return self.array(slot).data

    def close(self) -> bool:
        """Close the descriptor and give the memory back. May be called again.

        Views that are still held stay valid: the memory is unmapped with the last of them. (Unmapping under a view
        would be a crash, and raising here would turn one forgotten array into a failed shutdown.) Returns whether the
        memory is unmapped already; False means that a caller still holds a view.
        """
        self._close_fd()
        self._bytes = None
        return self._map() is None

    def __repr__(self) -> str:
        closed = ", closed" if self.is_closed else ""
        return f"Arena({self.num_slots} slots of {self.slot_bytes} bytes{closed})"

    def _open_bytes(self) -> Array:
        if self._bytes is None:
            raise UsageError("the arena is closed; take views before close() and give them up with it")
        return self._bytes


def arena_bytes(num_slots: int, slot_bytes: int) -> int:
    """Memory that an arena takes: whole pages."""
    return -(-num_slots * slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def check_sizes(num_slots: int, slot_bytes: int) -> None:
    """Refuse sizes that cannot be. Raises UsageError when there is no slot, or slots are not positive multiples of 64
    bytes."""
    if num_slots < 1:
        raise UsageError(f"an arena of {num_slots} slots cannot be; give it at least 1")
    if slot_bytes < 1 or slot_bytes % SLOT_ALIGNMENT:
        raise UsageError(f"slot_bytes={slot_bytes} cannot be; it must be a positive multiple of {SLOT_ALIGNMENT}")


def _check_descriptor(fd: int, size_bytes: int) -> None:
    """Refuse what is not a sealed memfd of exactly this size: its owner could take the memory away (SIGBUS)."""
    if sys.platform != "linux":
        raise UsageError(f"an arena needs Linux (memfd), but this is {sys.platform}")
    import fcntl  # not on Windows

    required = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError(
            f"descriptor {fd} is no memory file ({error.strerror}); use the one that the owner's agent sent"
        ) from error
    if seals & required != required:
        raise ProtocolError(
            f"descriptor {fd} is a memory file that can still shrink (its seals are {seals:#x}, an arena has "
            f"{required:#x}); do not use it, a peer could take the memory away"
        )
    actual_bytes = os.fstat(fd).st_size
    if actual_bytes != size_bytes:
        raise ProtocolError(
            f"descriptor {fd} holds {actual_bytes} bytes, but the announced arena has {size_bytes}; "
            "both sides must use the num_slots and slot_bytes of the owner"
        )


def _close_quietly(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


def format_size(num_bytes: int) -> str:
    """Bytes for a message, e.g. "9.2 MiB"."""
    return f"{num_bytes / 2**20:.1f} MiB" if num_bytes < 10 * 2**30 else f"{num_bytes / 2**30:.1f} GiB"
