"""A data set on disk or at a URL: a folder of chunk files (`layout`) and `manifest.json` (`manifest`)."""

import copy
import dataclasses
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.header_reading import Buffer, bytes_of, crc_of_header, read_header
from chicle_elastic.chunks.headers import HEADER_BYTES, Header, aligned
from chicle_elastic.chunks.manifest import MANIFEST_NAME, ChunkFile, Label, Manifest
from chicle_elastic.chunks.places import Place, UrlPath, place_of
from chicle_elastic.chunks.views import NO_STATE, Array, Chunk, DataSchema, MappedFile, SchemaOfFiles, StateSpec
from chicle_elastic.errors import CapacityError, ChunkCorruptError, DataError, UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.values import ChunkInfo


class ChunkFolder:
    """A data set, as `chicle convert` writes it. It is a `ChunkSource`, and `fit` takes it in place of X and y.

    Opening it reads the manifest and looks at the files, not into them; a chunk is checked whenever it is loaded.
    Iterating over the folder loads one chunk after the other, without state.

    Attributes:
        is_shared: Whether the rows of chunks stay in their files (see `mapped`), so that no task has to bring them to
            another one.

    Args:
        path: The folder, relative to the working directory of now; or the URL of a copy of it, e.g.
            s3://bucket/data, of a file system that fsspec knows. From there each chunk comes by one request.

    Raises:
        DataError: There is no manifest, it cannot be read, or it does not fit the files; the message names the file.
        ChunkCorruptError: A chunk file is missing, or has another size than the manifest says.
        UnreachablePlaceError: The URL does not answer, or refuses.
        MissingExtraError: A package for the URL is not installed.
    """

    def __init__(self, path: str | Path | UrlPath) -> None:
        self.is_shared = False
        self._sound: dict[ChunkId, tuple[int, ...]] = {}
        self.path = path if isinstance(path, UrlPath) else place_of(str(path), purpose="a chunk folder")
        try:
            self.manifest = _read_manifest(self.path)
            self._schema, sizes = self.manifest.schema, _sizes_of_files(self.path)
        except OSError as error:
            raise _unreadable(error.filename or self.path, error) from error
        for number, file in enumerate(self.manifest.chunks):
            _check_file(self.path, number, file, sizes.get(file.name))
        # The model is made before the first chunk is loaded, so the schema is held against one chunk right here.
        self.header(ChunkId(0))

    @property
    def schema(self) -> DataSchema:
        """What all chunks have in common."""
        return self._schema

    @property
    def copies_rows(self) -> bool:
        """Whether a chunk that is loaded takes memory: not if it is mapped."""
        return not self.is_shared

    def mapped(self) -> "ChunkFolder | None":
        """Return the same folder with chunks whose rows stay in their files; None for the folder of a URL.

        Their pages come and go as memory is needed, so that data larger than memory can be trained on at the rate of
        the disk. A file that is cut short meanwhile ends the process (SIGBUS); one that is removed or replaced stays.
        """
        if isinstance(self.path, UrlPath):
            return None
        folder = copy.copy(self)
        folder.is_shared, folder._sound = True, {}
        own = {field.name: getattr(self.schema, field.name) for field in dataclasses.fields(self.schema)}
        folder._schema = SchemaOfFiles(**own)
        return folder

    @property
    def classes(self) -> tuple[Label, ...]:
        """Labels by class code; empty for real-valued targets."""
        return self.manifest.classes

    @property
    def num_rows(self) -> int:
        """Samples in all chunks."""
        return self.schema.num_rows

    @property
    def num_chunks(self) -> int:
        """Chunks in the folder."""
        return len(self.manifest.chunks)

    @property
    def size_bytes(self) -> int:
        """Size of all chunk files."""
        return sum(file.size_bytes for file in self.manifest.chunks)

    def __len__(self) -> int:
        return self.num_chunks

    def __array__(self, *_: object, **__: object) -> Array:
        raise UsageError(
            f"the chunk folder {self.path} is no array, and its rows cannot be picked one by one, as cross-validation "
            "and grid search do: fit estimators on folders of their own (chicle convert), or load the rows as an array"
        )

    def __iter__(self) -> Iterator[Chunk]:
        for number in range(self.num_chunks):
            yield self.load(ChunkId(number), NO_STATE)

    def __repr__(self) -> str:
        schema = self.schema
        shape = f"{schema.num_rows} x {schema.num_features} {schema.kind} {schema.dtype}"
        return f"ChunkFolder({str(self.path)!r}: {shape}, {self.num_chunks} chunks)"

    def fingerprint(self) -> str:
        """Equal for folders with the same chunks and labels; differs for others."""
        return hashlib.sha256(self.manifest.to_json().encode()).hexdigest()

    def file(self, chunk_id: ChunkId) -> Place:
        """Path or URL of a chunk's file."""
        return self.path / self._entry(chunk_id).name

    def infos(self, state: StateSpec) -> tuple[ChunkInfo, ...]:
        """All chunks, by id from 0, with the bytes that each takes together with `state`."""
        return tuple(
            ChunkInfo(id=ChunkId(number), num_rows=file.num_rows, size_bytes=_size_with(file, state))
            for number, file in enumerate(self.manifest.chunks)
        )

    def header(self, chunk_id: ChunkId) -> Header:
        """The header of a chunk, read from its file and compared with the manifest. Raises ChunkCorruptError when it is
        damaged, or says something else than the manifest, DataError when the file is gone, or cannot be read."""
        packed = np.zeros(HEADER_BYTES, dtype=np.uint8)
        num_read = _read_fully(self.file(chunk_id), packed)
        return self._checked_header(packed[:num_read], chunk_id)

    def targets(self, chunk_id: ChunkId) -> Array:
        """The targets of a chunk, shape (num_rows,), as they stand in its file; nothing but the header is checked.

        Raises:
            ChunkCorruptError, DataError: As in `header`.
        """
        (section,) = (section for section in self.header(chunk_id).sections if section.name == "targets")
        targets = np.empty(section.length, np.dtype(section.dtype).newbyteorder("<"))
        num_read = _read_fully(self.file(chunk_id), targets.view(np.uint8), start=section.offset)
        return targets[: num_read // targets.itemsize]

    def load(self, chunk_id: ChunkId, state: StateSpec) -> Chunk:
        """The chunk in memory of its own, or with rows in its file if it is mapped; checked, with fresh state. Raises
        ChunkCorruptError when the file is damaged, or is not the one that the manifest describes, CapacityError when
        there is not enough memory for it, DataError when the file is gone, or cannot be read."""
        if self.is_shared:
            return self._map(chunk_id, state)
        size_bytes = _size_with(self._entry(chunk_id), state)
        try:
            buffer = layout.empty_buffer(size_bytes)
        except MemoryError as error:
            raise CapacityError(
                f"{self.file(chunk_id)}: chunk {chunk_id} takes {size_bytes} bytes with its state, and there is no "
                "memory left for it; convert the data with smaller chunks, or use more nodes"
            ) from error
        self.load_into(chunk_id, buffer, state)
        return layout.decode(buffer, where=str(self.file(chunk_id)))

    def _map(self, chunk_id: ChunkId, state: StateSpec) -> Chunk:
        path = self.file(chunk_id)
        where = str(path)
        try:
            status = os.stat(where)
            content = MappedFile(Path(where), np.uint8, mode="r")
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise _unreadable(path, error if isinstance(error, OSError) else OSError(str(error))) from error
        file = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        if self._sound.get(chunk_id) != file:
            layout.verify(content, where=where)
            self._checked_header(content, chunk_id)
            self._check_content(layout.decode(content, where=where), where)
            self._sound[chunk_id] = file
        chunk = layout.decode(content, where=where)
        return dataclasses.replace(chunk, state=state.zeros(chunk.num_rows), notes=state.fresh_notes(chunk.num_rows))

    def load_into(self, chunk_id: ChunkId, buffer: Buffer, state: StateSpec) -> int:
        """Read a chunk into a slot, check it there, and give it fresh state.

        Args:
            buffer: Writable, as large as `infos` says.

        Returns:
            Bytes that it takes.

        Raises:
            ChunkCorruptError, CapacityError, DataError: As in `load`; then the buffer holds no chunk.
        """
        entry = self._entry(chunk_id)
        where = str(self.file(chunk_id))
        content = bytes_of(buffer)
        needed = _size_with(entry, state)
        if len(content) < needed:
            raise CapacityError(
                f"{where}: chunk {chunk_id} takes {needed} bytes with its state, and the buffer has {len(content)}; "
                "raise slot_bytes, or convert with smaller chunks"
            )
        try:
            num_read = _read_fully(self.file(chunk_id), content[: entry.size_bytes])
            layout.verify(content[:num_read], where=where)
            self._checked_header(content, chunk_id)
            self._check_content(layout.decode(content[:num_read], where=where), where)
            return layout.attach_state(content, state, where=where)
        except BaseException:
            content[:HEADER_BYTES] = 0  # no reader takes damaged bytes for a chunk
            raise

    def verify(self, on_progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Load every chunk once, and check that each row of the data set is in exactly one of them. Raises
        ChunkCorruptError when a chunk is damaged; or a row is missing or there twice."""
        is_seen = np.zeros(self.num_rows, dtype=bool)
        for done, chunk in enumerate(self, start=1):
            ids, counts = np.unique(chunk.row_ids, return_counts=True)
            is_repeated = is_seen[ids] | (counts > 1)
            if is_repeated.any():
                raise ChunkCorruptError(
                    f"{self.file(chunk.id)}: chunk {chunk.id} holds row {ids[is_repeated][0]}, which is there twice; "
                    "convert the data again"
                )
            is_seen[ids] = True
            on_progress(done, self.num_chunks)

    def _entry(self, chunk_id: ChunkId) -> ChunkFile:
        if not 0 <= chunk_id < self.num_chunks:
            raise UsageError(f"there is no chunk {chunk_id}; the chunk folder {self.path} has {self.num_chunks} chunks")
        return self.manifest.chunks[chunk_id]

    def _checked_header(self, content: Buffer, chunk_id: ChunkId) -> Header:
        entry, schema = self._entry(chunk_id), self.schema
        header = read_header(content, where=str(self.file(chunk_id)))
        for field, found, expected in (
            ("the chunk id", header.chunk_id, chunk_id),
            ("the number of rows", header.num_rows, entry.num_rows),
            ("the size in bytes", header.encoded_bytes(NO_STATE), entry.size_bytes),
            ("the kind", header.kind, schema.kind),
            ("the dtype", header.value_dtype, schema.dtype),
            ("the number of features", header.num_features, schema.num_features),
            ("the dtype of indices", header.index_dtype, self.manifest.index_dtype),
            ("the dtype of targets", header.target_dtype, schema.target_dtype),
            ("the dtype of weights", header.weight_dtype, self.manifest.weight_dtype),
            ("the CRC", f"{crc_of_header(content):08x}", f"{entry.crc:08x}"),
        ):
            if found != expected:
                raise ChunkCorruptError(
                    f"{self.file(chunk_id)}: chunk {chunk_id}: {field} is {found!r}, but {MANIFEST_NAME} says "
                    f"{expected!r}; file and manifest do not belong together: convert the data again"
                )
        return header

    def _check_content(self, chunk: Chunk, where: str) -> None:
        """Refuse numbers that arrays are indexed with and that are out of range, whichever program wrote them."""
        num_classes = self.schema.num_classes
        for field, values, end in (
            ("row id", chunk.row_ids, self.num_rows),
            ("class code", chunk.targets, num_classes),
        ):
            lowest, highest = values.min(), values.max()
            if end and (lowest < 0 or highest >= end):
                found = lowest if lowest < 0 else highest
                raise ChunkCorruptError(
                    f"{where}: chunk {chunk.id} holds the {field} {found}, but {MANIFEST_NAME} allows 0 to {end - 1}; "
                    "convert the data again"
                )


def _read_manifest(folder: Place) -> Manifest:
    path = folder / MANIFEST_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "there is no such folder" if not folder.is_dir() else f"it has no {MANIFEST_NAME}"
        raise DataError(f"{folder} is no chunk folder: {what}; make one with: chicle convert DATA {folder}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: this is no text ({error}); restore the file, or convert the data again") from error
    return Manifest.from_json(text, where=str(path))


def _sizes_of_files(folder: Place) -> Mapping[str, int | None]:
    """Size of every regular file in the folder, by name; None for what is no file, or leads out of the folder."""
    if isinstance(folder, UrlPath):
        return folder.sizes()
    sizes: dict[str, int | None] = {}
    root = os.path.realpath(folder)
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                target = os.path.realpath(entry.path)
                is_inside = os.path.commonpath([root, target]) == root
                status = os.stat(target) if is_inside and os.path.exists(target) else status
            sizes[entry.name] = status.st_size if stat.S_ISREG(status.st_mode) else None
    return sizes


def _check_file(folder: Place, number: int, file: ChunkFile, size_bytes: int | None) -> None:
    path = folder / file.name
    if size_bytes is None:
        is_there = isinstance(path, Path) and os.path.lexists(path)
        problem = "is no regular file within the folder" if is_there else "is missing"
        raise ChunkCorruptError(f"{path}: the file of chunk {number} {problem}; copy or convert the data again")
    if size_bytes != file.size_bytes:
        raise ChunkCorruptError(
            f"{path}: the file of chunk {number} has {size_bytes} bytes, but {MANIFEST_NAME} says {file.size_bytes}; "
            "copy or convert the data again"
        )


def _size_with(file: ChunkFile, state: StateSpec) -> int:
    return file.size_bytes + aligned(state.size_bytes(file.num_rows))


def _read_fully(path: Place, content: Array, *, start: int = 0) -> int:
    """Fill `content` from a file; returns the bytes read, fewer only where the file ends."""
    view, done = content.data, 0
    try:
        if isinstance(path, UrlPath):
            read = path.read_bytes(start, start + len(view))
            view[: len(read)] = read
            return len(read)
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            while done < len(view) and (count := file.readinto(view[done:])):
                done += count
    except OSError as error:
        raise _unreadable(path, error) from error
    return done


def _unreadable(path: Place | str, error: OSError) -> DataError:
    """Return the error about a file that was removed or moved, or that the disk cannot read."""
    return DataError(
        f"{path}: it cannot be read ({error.strerror or error}); bring the chunk folder back, open it where it is now, "
        "or convert the data again"
    )
