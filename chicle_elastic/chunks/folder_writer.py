"""Writes a chunk folder from a stream of rows of unknown length, in bounded memory, all or nothing.

    add      checked, copied -> ExternalShuffle (files under the temporary folder when memory is full)
    finish   how large is a chunk? -> drain the shuffle -> cut -> recode targets -> encode -> chunk files -> manifest
             -> everything on disk (fsync) -> rename the temporary folder to its name -> fsync of its parent

What a data set is (classes, number of features, size) is known at its end only; so chunks are made then.
"""

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.header_reading import crc_of_header
from chicle_elastic.chunks.intake import LARGEST_INT32, Intake
from chicle_elastic.chunks.manifest import CHUNK_PREFIX, MANIFEST_NAME, ChunkFile, Label, Manifest
from chicle_elastic.chunks.rows import bytes_per_row, concatenate_chunks, slice_chunk, take_chunk
from chicle_elastic.chunks.shuffle import ExternalShuffle
from chicle_elastic.chunks.split import choose_chunk_bytes, cut_rows
from chicle_elastic.chunks.target_folder import TargetFolder, write_file
from chicle_elastic.chunks.views import Array, Chunk, CsrRows, DataSchema, Rows
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.ids import ChunkId

DEFAULT_MEMORY_BYTES = 64 << 20


class ChunkFolderWriter:
    """Takes rows block by block, shuffles them all, and writes them as a chunk folder. Raises UsageError when the
    target exists and may not be replaced, or an argument cannot work.

        with ChunkFolderWriter("a9a.chunks", kind="csr", dtype="float32") as writer:
            for block in blocks:
                writer.add(block.rows, block.targets)
            folder = writer.finish(classes=(-1, 1), recode=lambda kept: kept > 0)

    Leaving the `with` block without `finish`, by an error or Ctrl-C, leaves nothing behind. Rows get their number in
    the order of `add`, and keep it in `row_ids`. Every order of the rows is equally likely, whatever their number
    (`shuffle.ExternalShuffle`); same seed and same blocks give the same bytes. Memory stays below `memory_bytes`, a
    block and a chunk; the disk of the target needs twice the size of the data for a while.

    Args:
        path: Folder to write; its parent exists.
        dtype: dtype of the features, one of `VALUE_DTYPES`.
        num_features: Columns; None takes them from the rows (CSR: the most that any block has).
        has_weights: Whether every block comes with weights.
        chunk_bytes: Bytes of a chunk at most, header and state not counted; None: by `max_tasks` (docs/design 4).
    """

    def __init__(
        self,
        path: str | Path,
        *,
        kind: Literal["dense", "csr"],
        dtype: str,
        num_features: int | None = None,
        has_weights: bool = False,
        sample_shape: tuple[int, ...] = (),
        chunk_bytes: int | None = None,
        max_tasks: int = 8,
        shuffle_seed: int = 0,
        overwrite: bool = False,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        for name, value in (
            ("num_features", num_features),
            ("chunk_bytes", chunk_bytes),
            ("max_tasks", max_tasks),
            ("memory_bytes", memory_bytes),
        ):
            if value is not None and value < 1:
                raise UsageError(f"{name}={value} cannot be; give a number >= 1")
        self._target = TargetFolder(Path(path), overwrite=overwrite)
        self._intake = Intake(str(path), kind=kind, dtype=dtype, num_features=num_features, has_weights=has_weights)
        self._kind: Literal["dense", "csr"] = kind
        self._dtype = dtype
        self._has_weights = has_weights
        self._sample_shape = sample_shape
        self._chunk_bytes = chunk_bytes
        self._max_tasks = max_tasks
        self._is_open = False
        rng = np.random.default_rng(shuffle_seed)
        self._shuffle = ExternalShuffle(self._target.temporary / "unsorted", rng, memory_bytes=memory_bytes)

    def __enter__(self) -> "ChunkFolderWriter":
        # Also cleans up when Ctrl-C comes between here and the first line of the block.
        self._clean_up = weakref.finalize(self, self._target.clean_up)
        self._target.create()
        self._is_open = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_open = False
        self._clean_up()

    def add(self, rows: Rows, targets: Array, weights: Array | None = None) -> None:
        """Take some rows; they are copied before this returns. Features have to be finite: no later step checks. Raises
        UsageError when kind, dtype or shapes are not those of this writer, DataError when CSR rows are malformed.

        Args:
            rows: ndarray of shape (num_rows, num_features) or `CsrRows`, of the writer's dtype.
            targets: ndarray of shape (num_rows,), numbers; kept as float64 until `finish` says what they are.
            weights: ndarray of shape (num_rows,); kept as float64.
        """
        self._require_open()
        block = self._intake.block(rows, targets, weights)
        if block.num_rows:
            self._shuffle.add(block)

    def finish(
        self,
        *,
        classes: Sequence[Label] = (),
        recode: Callable[[Array], Array] | None = None,
        target_dtype: Literal["int32", "float32", "float64"] | None = None,
        num_features: int | None = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> ChunkFolder:
        """Shuffle, write the chunks, and put the folder in its place. Raises DataError when there were no rows, or a
        target is no class code, CapacityError when the disk is full, UsageError when something has appeared at the
        target meanwhile. Returns the folder, opened.

        Args:
            classes: Labels by class code, numbers or strings; empty for real-valued targets.
            recode: Makes the final targets of the kept ones, chunk by chunk; by default they are only cast.
            target_dtype: dtype of targets; by default int32 for class codes and float64 for real values.
            num_features: CSR: columns, where the end of the data decides.
        """
        self._require_open()
        self._is_open = False
        num_rows = self._intake.num_rows
        if num_rows == 0:
            raise DataError(f"{self._target.path}: there are no rows to write; a data set needs at least one")
        labels = _checked_labels(classes)
        schema = DataSchema(
            kind=self._kind,
            dtype=self._dtype,
            num_rows=num_rows,
            num_features=self._intake.final_num_features(num_features),
            target_dtype=target_dtype or ("int32" if labels else "float64"),
            num_classes=len(labels),
            has_weights=self._has_weights,
            sample_shape=self._sample_shape,
        )
        index_dtype = "int32" if schema.num_features <= LARGEST_INT32 else "int64"
        files = []
        num_written = 0
        for number, part in enumerate(self._parts()):
            chunk = self._final(ChunkId(number), part, schema, index_dtype, recode)
            files.append(self._write_chunk(chunk))
            num_written += chunk.num_rows
            on_progress(num_written, num_rows)
        manifest = Manifest(
            schema=schema,
            index_dtype=index_dtype if schema.kind == "csr" else "",
            weight_dtype="float64" if schema.has_weights else "",
            classes=labels,
            chunks=tuple(files),
        )
        # Parsing it again refuses here what a reader would refuse later.
        text = manifest.to_json()
        Manifest.from_json(text, where=str(self._target.path / MANIFEST_NAME))
        write_file(self._target.temporary / MANIFEST_NAME, text.encode())
        self._target.commit()
        return ChunkFolder(self._target.place)

    def _require_open(self) -> None:
        if not self._is_open:
            raise UsageError(f"{self._target.path} is not open for writing: use a with block, and finish once")

    def _parts(self) -> Iterator[Chunk]:
        chunk_bytes = self._chunk_bytes or choose_chunk_bytes(
            self._intake.total_bytes, self._max_tasks, is_image=self._dtype == "uint8"
        )
        carried: list[Chunk] = []
        for rows in self._shuffle.drain():
            carried.append(rows)
            if sum(part.size_bytes for part in carried) <= chunk_bytes:
                continue
            pool = concatenate_chunks(carried)
            cuts = _cuts(pool, chunk_bytes)
            for start, stop in pairwise(cuts[:-1]):
                yield slice_chunk(pool, start, stop)
            # A copy, so that the last rows do not keep the memory of all of them.
            carried = [take_chunk(pool, np.arange(cuts[-2], cuts[-1]))]
            del pool, rows
        yield concatenate_chunks(carried)

    def _final(
        self,
        chunk_id: ChunkId,
        part: Chunk,
        schema: DataSchema,
        index_dtype: str,
        recode: Callable[[Array], Array] | None,
    ) -> Chunk:
        rows = part.rows
        if isinstance(rows, CsrRows):
            indices = rows.indices.astype(index_dtype, copy=False)
            rows = CsrRows(rows.indptr, indices, rows.values, schema.num_features)
        targets = np.asarray(part.targets if recode is None else recode(part.targets))
        if targets.shape != part.targets.shape:
            raise UsageError(f"recode made {targets.shape} of targets of shape {part.targets.shape}")
        cast = targets.astype(schema.target_dtype)
        is_bad = cast != targets if schema.target_dtype == "int32" else ~np.isfinite(cast)
        if schema.num_classes:
            is_bad |= (targets < 0) | (targets >= schema.num_classes)
        if is_bad.any():
            row = int(np.argmax(is_bad))
            expected = f"a class code from 0 to {schema.num_classes - 1}" if schema.num_classes else schema.target_dtype
            raise DataError(
                f"{self._target.path}: row {part.row_ids[row]}: the target {targets[row].item()!r} is not {expected}"
            )
        return dataclasses.replace(part, id=chunk_id, rows=rows, targets=cast)

    def _write_chunk(self, chunk: Chunk) -> ChunkFile:
        content = layout.empty_buffer(layout.encoded_bytes(chunk))
        layout.encode(chunk, content)
        name = f"{CHUNK_PREFIX}{chunk.id:06}.bin"
        write_file(self._target.temporary / name, content.data)
        return ChunkFile(name=name, size_bytes=len(content), num_rows=chunk.num_rows, crc=crc_of_header(content))


def _cuts(rows: Chunk, chunk_bytes: int) -> list[int]:
    other_bytes = rows.targets.itemsize + rows.row_ids.itemsize + (0 if rows.weights is None else rows.weights.itemsize)
    return cut_rows(bytes_per_row(rows.rows) + other_bytes, rows.num_rows, chunk_bytes)


def _checked_labels(classes: Sequence[Any]) -> tuple[Label, ...]:
    """The labels as values that JSON can hold."""
    labels = tuple(label.item() if isinstance(label, np.generic) else label for label in classes)
    for label in labels:
        if isinstance(label, bool) or not isinstance(label, int | float | str) or label != label:
            raise UsageError(f"the label {label!r} is no number or string, and cannot be stored; rename the classes")
    if len(set(labels)) != len(labels):
        raise UsageError(f"the labels {labels} are not all different; give each class one")
    return labels
