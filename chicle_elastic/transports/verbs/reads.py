"""READs of one queue pair: regions cut into pieces, a window of pieces under way, in order.

A reliable queue pair ends its READs in the order in which they were posted. So the pieces of several regions lie in one
queue, the card always has the next ones, and what has arrived is checked while it works on them.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from chicle_elastic.errors import ProtocolError
from chicle_elastic.transports.base import PIECE_BYTES, Pull
from chicle_elastic.transports.verbs.device import Device
from chicle_elastic.transports.verbs.memory import Mapped, MemoryKey, RegisteredMemory, private_memory
from chicle_elastic.transports.verbs.queue_pair import QueuePair

WINDOW = 16  # READs under way; `device.MAX_READS` of them at the card
READ_BYTES = 1 << 20
"""Longest READ into a slot. Through the staging area it is `PIECE_BYTES`, and the area has `WINDOW` of them."""


@dataclass(slots=True, eq=False)
class _Job:
    """A region on its way."""

    pull: Pull  # what to copy
    key: MemoryKey | None  # opens the arena of the peer
    target: tuple[int, int] | None  # address and local key of where it goes, None for the staging area
    error: Exception | None = None  # what is wrong with it
    num_posted: int = 0  # bytes that were asked for
    num_arrived: int = 0  # bytes that are in their place

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is still to come."""
        return self.key is None or self.num_arrived == self.pull.region.size_bytes


@dataclass(slots=True, eq=False)
class _Piece:
    job: _Job
    size_bytes: int
    stage: int | None
    work: int = field(default=0)


class Reads:
    """See the top of the module. For one thread at a time."""

    def __init__(self, pair: QueuePair, device: Device, memory: RegisteredMemory) -> None:
        self._pair, self._device, self._memory = pair, device, memory
        self._jobs: deque[_Job] = deque()
        self._under_way: deque[_Piece] = deque()
        self._read_bytes = min(READ_BYTES, device.port.max_message_bytes)
        self._staging: Mapped | None = None
        self._free_stages: list[int] = []
        self._num_posted = 0

    def add(self, pull: Pull, key: MemoryKey | Exception) -> None:
        """Ask for a region behind those that were asked for before; or note why it cannot be asked for."""
        if isinstance(key, MemoryKey):
            try:
                pull.region.require_within(key.size_bytes)
            except ProtocolError as outside:
                key = outside
        if isinstance(key, Exception):
            self._jobs.append(_Job(pull, None, None, error=key))
        else:
            self._jobs.append(_Job(pull, key, self._memory.place_of(pull.into)))

    def bring(self, turn: Callable[[], None]) -> Exception | None:
        """Wait for the region that was asked for first. Returns what is wrong with it.

        Args:
            turn: Waits until the queue pair has done something, and tells `completed`.
        """
        job = self._jobs[0]
        self._post()
        while not job.is_over:
            turn()
            self._post()
        self._jobs.popleft()
        return job.error

    def completed(self, work: int) -> None:
        """A READ has succeeded. Raises ProtocolError when it is not the one that was posted first."""
        piece = self._under_way.popleft()
        if piece.work != work:
            raise ProtocolError(f"READ {work} ended before READ {piece.work}; the device does not keep their order")
        job = piece.job
        start, end = job.num_arrived, job.num_arrived + piece.size_bytes
        if piece.stage is not None and self._staging is not None:
            place = piece.stage * PIECE_BYTES
            job.pull.into[start:end] = self._staging.view[place : place + piece.size_bytes]
            self._free_stages.append(piece.stage)
        job.num_arrived = end
        for judged in range(start, end, PIECE_BYTES):
            job.error = job.error or job.pull.judge(min(judged + PIECE_BYTES, end))

    def describe(self) -> str:
        """The READ that was posted first of those under way, for messages."""
        region = self._under_way[0].job.pull.region
        return f"a READ of {region.size_bytes} bytes at offset {region.offset} of arena {region.arena}"

    def close(self) -> None:
        """Give the staging area up; the queue pair is closed."""
        if self._staging is not None:
            self._staging.close()
            self._staging = None

    def _post(self) -> None:
        """Fill the window."""
        for job in self._jobs:
            key, size_bytes = job.key, job.pull.region.size_bytes
            while key is not None and job.num_posted < size_bytes:
                if len(self._under_way) >= WINDOW:
                    return
                self._post_piece(job, key, size_bytes - job.num_posted)

    def _post_piece(self, job: _Job, key: MemoryKey, left_bytes: int) -> None:
        if job.target is not None:
            address, local_key = job.target
            piece = _Piece(job, min(left_bytes, self._read_bytes), None)
            address += job.num_posted
        else:
            staging = self._stages()
            stage = self._free_stages.pop()
            piece = _Piece(job, min(left_bytes, PIECE_BYTES), stage)
            address, local_key = staging.address + stage * PIECE_BYTES, staging.local_key
        self._num_posted += 1
        piece.work = self._num_posted & 0xFFFFFFFF
        self._under_way.append(piece)
        self._pair.post_read(
            piece.work,
            address=address,
            size_bytes=piece.size_bytes,
            key=local_key,
            their_address=key.address + job.pull.region.offset + job.num_posted,
            their_key=key.key,
        )
        job.num_posted += piece.size_bytes

    def _stages(self) -> Mapped:
        if self._staging is None:
            self._staging = private_memory(self._device, WINDOW * PIECE_BYTES)
            self._free_stages = list(range(WINDOW))
        return self._staging
