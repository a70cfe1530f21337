"""Training data in shared memory files: the driver writes it once, the tasks of a local cluster map it.

The files (memfd) have no name, so nothing is left of them when their last holder ends, however that ends. They hold
chunks as `chunks.layout` writes them, without state, one after the other; JSON says where what lies. Each is written
once and then sealed: all tasks read the same rows there, and a node has only the state of its own.

The first file is sealed before nodes start. It has arrays, and as many chunks as nodes warm up with: they get ready,
and meet, while the others are filled. Those are several because the kernel lets one writer at a time into a file.
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
from chicle_elastic.chunks.headers import Header, aligned
from chicle_elastic.chunks.places import absolute_place
from chicle_elastic.chunks.sources import ArraySource, ChunkSource
from chicle_elastic.chunks.views import NO_STATE, Array, Chunk, DataSchema, StateSpec
from chicle_elastic.closing import Closing
from chicle_elastic.errors import CapacityError, UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.runtime.cluster_task.warmup import WARMUP_BYTES
from chicle_elastic.settings import available_cores
from chicle_elastic.store.arena import format_size
from chicle_elastic.values import ChunkInfo

SEALS = 0x0002 | 0x0004 | 0x0008  # F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, which fcntl has on Linux only
WHERE = "the memory file of the driver"
NUM_FILES = 4  # after the first
REMEDY = "convert the data to a chunk folder, which is read in place, or train on fewer rows"


class StagedFiles(Closing):
    """Shared memory files while they are written. A context manager that closes this process's descriptors.

    Their readers may have the descriptors before `seal`, and refuse a file until then.
    """

    def __init__(self) -> None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.fds = list[int]()
        try:
            for _ in range(1 + NUM_FILES):
                self.fds.append(os.memfd_create("chicle-data", flags))
        except OSError:  # no descriptor is left
            self.close()
            raise
        self._ends = [0] * len(self.fds)
        self._headroom = memory_headroom()
        self._left: list[Callable[[], None]] = []

    def add(self, content: Array) -> int:
        """Append bytes to the first file; returns where they begin, a multiple of 64. Raises CapacityError when there
        is no memory left."""
        view = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
        [start, *_] = self.reserve([len(view)])
        self.write(0, start, view)
        return start

    def reserve(self, sizes: Sequence[int]) -> list[int]:
        """Set bytes aside at the ends of the first files, zeros until they are written. Raises CapacityError when the
        machine or a control group does not have so much memory left for all files. Returns where they begin in each,
        multiples of 64."""
        starts, headroom = [aligned(end) for end in self._ends], self._headroom
        ends = [start + size for start, size in itertools.zip_longest(starts, sizes, fillvalue=0)]
        if headroom is not None and sum(ends) > headroom.num_bytes:
            raise CapacityError(
                f"the training data needs {format_size(sum(ends))} of shared memory, but {headroom.source} "
                f"leaves {format_size(headroom.num_bytes)}; {REMEDY}"
            )
        self._ends = ends
        return starts

    def put_off(self, write: Callable[[], None]) -> None:
        """Have `fill` call something that writes what was reserved."""
        self._left.append(write)

    def write(self, file: int, start: int, content: Array) -> None:
        """Write bytes where they were reserved. From any thread. Raises CapacityError when there is no memory left.

        Args:
            content: ndarray of shape (num_bytes,), uint8.
        """
        view, done = content.data, 0
        try:
            while done < len(view):
                done += os.pwrite(self.fds[file], view[done:], start + done)
        except OSError as error:
            raise CapacityError(
                f"no shared memory for the training data, which takes {format_size(sum(self._ends))} "
                f"({error.strerror}); {REMEDY}"
            ) from error

    def seal(self, file: int) -> None:
        """End a file: no process can change it from now on, so that a task can trust what it maps."""
        import fcntl  # not on Windows

        os.ftruncate(self.fds[file], max(1, self._ends[file]))
        fcntl.fcntl(self.fds[file], fcntl.F_ADD_SEALS, SEALS)

    def fill(self) -> None:
        """Write all that was put off, and seal all files but the first. Raises CapacityError when there is no memory
        left, and whatever the writers raise."""
        for write in self._left:
            write()
        for file in range(1, len(self.fds)):
            self.seal(file)

    def close(self) -> None:
        """Close the descriptors; the files live on with others. May be called again."""
        while self.fds:
            os.close(self.fds.pop())


def describe_source(source: ChunkSource, files: StagedFiles) -> dict[str, Any]:
    """Say in JSON where the chunks of a source are; those of a chunk folder stay where they are, others are written
    here or by `StagedFiles.fill`. Raises CapacityError when there is no memory for them, UsageError, here or in `fill`,
    when a chunk is larger than its source says."""
    if isinstance(source, ChunkFolder):
        return {"folder": absolute_place(str(source.path)), "is_mapped": not source.copies_rows}
    infos, num_ahead = source.infos(NO_STATE), 0
    ends, offsets, numbers = [0] * len(files.fds), [], []
    for info in infos:
        is_ahead = type(source) is ArraySource and ends[0] < WARMUP_BYTES  # a chunk of another may take its time
        num_ahead += is_ahead
        numbers.append(0 if is_ahead else 1 + info.id % NUM_FILES)
        offsets.append(ends[numbers[-1]])
        ends[numbers[-1]] += aligned(info.size_bytes)
    starts = files.reserve(ends)
    places = [
        [number, starts[number] + offset, info.size_bytes, info.num_rows]
        for number, offset, info in zip(numbers, offsets, infos, strict=True)
    ]
    _write_chunks(source, files, infos[:num_ahead], places)
    files.put_off(functools.partial(_write_chunks, source, files, infos[num_ahead:], places))
    return {"schema": asdict(source.schema), "places": places}


def _write_chunks(source: ChunkSource, files: StagedFiles, infos: Sequence[ChunkInfo], places: list[list[int]]) -> None:
    """Write chunks to their places, by all cores where the source is known to stand it."""
    left, errors = iter(infos), list[BaseException]()
    ours = source if type(source) is ArraySource else None  # another one need not stand several threads

    def work() -> None:
        try:
            load = functools.partial(source.load, state=NO_STATE) if ours is None else ours.loader()
            for info in left:
                file, start, *_ = places[info.id]
                for offset, content in layout.parts(load(info.id)):
                    if offset + len(content) > info.size_bytes:  # it would be written over the next chunk
                        raise UsageError(
                            f"chunk {info.id} of {source!r} takes more than the {info.size_bytes} bytes that its "
                            "infos() says; size_bytes has to be that of layout.encode"
                        )
                    files.write(file, start + offset, content)
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


def open_source(described: Mapping[str, Any], memory: "MappedFiles") -> ChunkSource:
    """The source that `describe_source` has described, over the mapped files. Raises DataError when the chunk folder is
    not there any more, or damaged."""
    if "folder" in described:
        folder = ChunkFolder(described["folder"])
        return (described.get("is_mapped") and folder.mapped()) or folder
    schema = {**described["schema"], "sample_shape": tuple(described["schema"]["sample_shape"])}
    return StagedSource(DataSchema(**schema), described["places"], memory)


def describe_array(array: Array, files: StagedFiles) -> dict[str, Any]:
    """Write an array, and say in JSON where it is."""
    return {"start": files.add(array), "dtype": array.dtype.str, "shape": list(array.shape)}


def open_array(described: Mapping[str, Any], memory: "MappedFiles") -> Array:
    """The array that `describe_array` has written; read-only."""
    dtype, shape = np.dtype(described["dtype"]), tuple(described["shape"])
    start = described["start"]
    return memory[0][start : start + dtype.itemsize * int(np.prod(shape))].view(dtype).reshape(shape)


def map_file(fd: int) -> Array:
    """Map a whole file as bytes, read-only; the mapping outlives the descriptor. Raises UsageError when it is no memory
    file that `StagedFiles.seal` has sealed, which any process could still change, or belongs to another user."""
    import fcntl  # not on Windows

    try:
        is_sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS
    except OSError:  # it is no memory file
        is_sealed = False
    if not is_sealed or os.fstat(fd).st_uid != os.geteuid():
        raise UsageError(f"{WHERE} is not sealed, or belongs to another user, so nothing of it is used; fit again")
    return np.frombuffer(mmap.mmap(fd, 0, prot=mmap.PROT_READ), dtype=np.uint8)


class MappedFiles:
    """The files in a task, by number: the first one at once, others when they are first asked for. From any thread.
    Raises UsageError as `map_file` does.

    Args:
        fds: Open until the last file was asked for.
        wait: Called before the others are mapped; returns when they are whole.
    """

    def __init__(self, fds: Sequence[int], wait: Callable[[], None]) -> None:
        self._fds, self._wait = fds, wait
        self._files = [map_file(fds[0])]
        self._lock = threading.Lock()

    def __getitem__(self, file: int) -> Array:
        if file >= len(self._files):  # the first one is for threads that need not wait
            with self._lock:
                if len(self._files) == 1:
                    self._wait()
                    self._files += [map_file(fd) for fd in self._fds[1:]]
        return self._files[file]


class StagedSource:
    """Chunks in mapped files. `places`: file, start, size in bytes without state, and rows of each, by chunk id."""

    copies_rows, is_shared = False, True

    def __init__(self, schema: DataSchema, places: list[list[int]], memory: MappedFiles) -> None:
        self.schema = schema
        self._places = places
        self._memory = memory
        self._views: dict[ChunkId, Chunk] = {}
        self._header: Header | None = None

    def infos(self, state: StateSpec) -> tuple[ChunkInfo, ...]:
        """All chunks, by id from 0, with the bytes that each takes together with `state`."""
        return tuple(
            ChunkInfo(
                id=ChunkId(number), num_rows=num_rows, size_bytes=size_bytes + aligned(state.size_bytes(num_rows))
            )
            for number, (_, _, size_bytes, num_rows) in enumerate(self._places)
        )

    def header_outside(self, chunk_id: ChunkId) -> Header | None:
        """Return the header of a slot for the chunk, whose rows need not be here yet. None where it follows from no
        chunk that nodes begin with."""
        if self._places[0][0]:
            return None
        if self._header is None:
            self._header = Header.of(self.load(ChunkId(0), NO_STATE)).outside()
        return replace(self._header, chunk_id=chunk_id, num_rows=self._places[chunk_id][-1])

    def load(self, chunk_id: ChunkId, state: StateSpec) -> Chunk:
        """The chunk as views of the file, with fresh state. Raises UsageError when there is no such chunk."""
        if not 0 <= chunk_id < len(self._places):
            raise UsageError(f"there is no chunk {chunk_id}; the driver has staged {len(self._places)} chunks")
        chunk = self._views.get(chunk_id)
        if chunk is None:  # a task asks for the same chunk when it loads it and whenever it finds it in a slot
            file, start, size_bytes, _ = self._places[chunk_id]
            chunk = self._views[chunk_id] = layout.decode(self._memory[file][start : start + size_bytes], where=WHERE)
        return replace(chunk, state=state.zeros(chunk.num_rows))
