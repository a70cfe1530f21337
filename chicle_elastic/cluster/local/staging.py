"""Training data in a shared memory file: the driver writes it once, the tasks of a local cluster map it.

The file (memfd) has no name, so nothing is left of it when its last holder ends, however that ends. It holds chunks as
`chunks.layout` writes them, without state, one after the other, and arrays before and behind them; JSON says where what
lies. It is written once and then sealed: all tasks read the same rows there, and a node has only the state of its own.
"""

import functools
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from chicle_elastic.cgroups import memory_headroom
from chicle_elastic.chunks import layout
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.headers import aligned
from chicle_elastic.chunks.places import absolute_place
from chicle_elastic.chunks.sources import ArraySource, ChunkSource
from chicle_elastic.chunks.views import NO_STATE, Array, Chunk, DataSchema, StateSpec
from chicle_elastic.closing import Closing
from chicle_elastic.errors import CapacityError, UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.settings import available_cores
from chicle_elastic.store.arena import format_size
from chicle_elastic.values import ChunkInfo

SEALS = 0x0002 | 0x0004 | 0x0008  # F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, which fcntl has on Linux only
WHERE = "the memory file of the driver"
REMEDY = "convert the data to a chunk folder, which is read in place, or train on fewer rows"


class StagedFile(Closing):
    """A shared memory file while it is written. A context manager that closes this process's descriptor.

    Its readers may have the descriptor before `fill`, and refuse the file until that has sealed it.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("chicle-data", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.num_bytes = 0
        self._headroom = memory_headroom()
        self._left: list[Callable[[], None]] = []

    def add(self, content: Array) -> int:
        """Append bytes; returns where they begin, a multiple of 64. Raises CapacityError when there is no memory
        left."""
        view = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
        start = self.reserve(len(view))
        self.write(start, view)
        return start

    def reserve(self, num_bytes: int) -> int:
        """Set bytes aside, zeros until they are written; returns where they begin, a multiple of 64. Raises
        CapacityError when the machine or a control group does not have so much memory left for the whole file."""
        start, headroom = aligned(self.num_bytes), self._headroom
        if headroom is not None and start + num_bytes > headroom.num_bytes:
            raise CapacityError(
                f"the training data needs {format_size(start + num_bytes)} of shared memory, but {headroom.source} "
                f"leaves {format_size(headroom.num_bytes)}; {REMEDY}"
            )
        self.num_bytes = start + num_bytes
        return start

    def put_off(self, write: Callable[[], None]) -> None:
        """Have `fill` call something that writes what was reserved."""
        self._left.append(write)

    def write(self, start: int, content: Array) -> None:
        """Write bytes where they were reserved. From any thread. Raises CapacityError when there is no memory left.

        Args:
            content: ndarray of shape (num_bytes,), uint8.
        """
        view, done = content.data, 0
        try:
            while done < len(view):
                done += os.pwrite(self.fd, view[done:], start + done)
        except OSError as error:
            raise CapacityError(
                f"no shared memory for the training data, which takes {format_size(self.num_bytes)}, after "
                f"{format_size(start + done)} ({error.strerror}); {REMEDY}"
            ) from error

    def fill(self) -> None:
        """Write all that was put off, and seal the file: no process can change it from now on, so that a task can trust
        what it maps. Raises CapacityError when there is no memory left, and whatever the writers raise."""
        import fcntl  # not on Windows

        for write in self._left:
            write()

        os.ftruncate(self.fd, max(1, self.num_bytes))
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)

    def close(self) -> None:
        """Close the descriptor; the file lives on with others. May be called again."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def describe_source(source: ChunkSource, file: StagedFile) -> dict[str, Any]:
    """Say in JSON where the chunks of a source are; those of a chunk folder stay where they are, others are written by
    `StagedFile.fill`. Raises CapacityError when there is no memory for them; `fill` raises UsageError when a chunk is
    larger than its source says."""
    if isinstance(source, ChunkFolder):
        headroom, size_bytes = memory_headroom(), sum(info.size_bytes for info in source.infos(NO_STATE))
        is_too_large = headroom is not None and size_bytes > headroom.num_bytes
        is_mapped = not source.copies_rows or (is_too_large and source.mapped() is not None)
        return {"folder": absolute_place(str(source.path)), "is_mapped": is_mapped}
    infos = source.infos(NO_STATE)
    sizes = [aligned(info.size_bytes) for info in infos]
    starts = itertools.accumulate(sizes, initial=file.reserve(sum(sizes)))
    places = [[start, info.size_bytes, info.num_rows] for start, info in zip(starts, infos, strict=False)]

    file.put_off(functools.partial(_write_chunks, source, file, infos, places))
    return {"schema": asdict(source.schema), "places": places}


def _write_chunks(source: ChunkSource, file: StagedFile, infos: Sequence[ChunkInfo], places: list[list[int]]) -> None:
    """Write all chunks to their places, by all cores where the source is known to stand it."""
    left, errors = iter(infos), list[BaseException]()
    ours = source if type(source) is ArraySource else None  # another one need not stand several threads

    def work() -> None:
        try:
            load = functools.partial(source.load, state=NO_STATE) if ours is None else ours.loader()
            for info in left:
                for offset, content in layout.parts(load(info.id)):
                    if offset + len(content) > info.size_bytes:  # it would be written over the next chunk
                        raise UsageError(
                            f"chunk {info.id} of {source!r} takes more than the {info.size_bytes} bytes that its "
                            "infos() says; size_bytes has to be that of layout.encode"
                        )
                    file.write(places[info.id][0] + offset, content)
                if errors:
                    return
        except BaseException as error:
            errors.append(error)

    _in_threads(work, 1 if ours is None else available_cores(), errors)


def _in_threads(work: Callable[[], None], num_threads: int, errors: list[BaseException]) -> None:
    """Do work that ends itself at the first error; Ctrl-C in a pool of `concurrent.futures` can end in a wait
    forever."""
    threads = [threading.Thread(target=work, name="chicle-stage", daemon=True) for _ in range(num_threads)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:
        errors.append(error)
        raise
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if errors:
        raise errors[0]


def open_source(described: Mapping[str, Any], memory: Array) -> ChunkSource:
    """The source that `describe_source` has described, over the mapped file. Raises DataError when the chunk folder is
    not there any more, or damaged."""
    if "folder" in described:
        folder = ChunkFolder(described["folder"])
        return (described.get("is_mapped") and folder.mapped()) or folder
    schema = {**described["schema"], "sample_shape": tuple(described["schema"]["sample_shape"])}
    return StagedSource(DataSchema(**schema), described["places"], memory)


def describe_array(array: Array, file: StagedFile) -> dict[str, Any]:
    """Write an array, and say in JSON where it is."""
    return {"start": file.add(array), "dtype": array.dtype.str, "shape": list(array.shape)}


def open_array(described: Mapping[str, Any], memory: Array) -> Array:
    """The array that `describe_array` has written; read-only."""
    dtype, shape = np.dtype(described["dtype"]), tuple(described["shape"])
    start = described["start"]
    return memory[start : start + dtype.itemsize * int(np.prod(shape))].view(dtype).reshape(shape)


def require_sealed(fd: int) -> None:
    """Refuse a file that any process could still change, or that another user has made. Raises UsageError when it is no
    memory file that `StagedFile.fill` has sealed."""
    import fcntl  # not on Windows

    try:
        is_sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS
    except OSError:  # it is no memory file
        is_sealed = False
    if not is_sealed or os.fstat(fd).st_uid != os.geteuid():
        raise UsageError(f"{WHERE} is not sealed, or belongs to another user, so nothing of it is used; fit again")


def map_file(fd: int) -> Array:
    """The whole file as bytes, read-only; the mapping outlives the descriptor."""
    return np.frombuffer(mmap.mmap(fd, 0, prot=mmap.PROT_READ), dtype=np.uint8)


class StagedSource:
    """Chunks in a mapped file. `places`: start, size in bytes without state, and rows of each, by chunk id."""

    copies_rows, is_shared = False, True

    def __init__(self, schema: DataSchema, places: list[list[int]], memory: Array) -> None:
        self.schema = schema
        self._places = places
        self._memory = memory
        self._views: dict[ChunkId, Chunk] = {}

    def infos(self, state: StateSpec) -> tuple[ChunkInfo, ...]:
        """All chunks, by id from 0, with the bytes that each takes together with `state`."""
        return tuple(
            ChunkInfo(
                id=ChunkId(number), num_rows=num_rows, size_bytes=size_bytes + aligned(state.size_bytes(num_rows))
            )
            for number, (_, size_bytes, num_rows) in enumerate(self._places)
        )

    def load(self, chunk_id: ChunkId, state: StateSpec) -> Chunk:
        """The chunk as views of the file, with fresh state. Raises UsageError when there is no such chunk."""
        if not 0 <= chunk_id < len(self._places):
            raise UsageError(f"there is no chunk {chunk_id}; the driver has staged {len(self._places)} chunks")
        chunk = self._views.get(chunk_id)
        if chunk is None:  # a task asks for the same chunk when it loads it and whenever it finds it in a slot
            start, size_bytes, _ = self._places[chunk_id]
            chunk = self._views[chunk_id] = layout.decode(self._memory[start : start + size_bytes], where=WHERE)
        return replace(chunk, state=state.zeros(chunk.num_rows))
