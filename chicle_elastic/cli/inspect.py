"""Show what a folder of chunks holds: shape, classes with their counts, chunks and their sizes.

Without --verify only headers and labels are read. With it every chunk is read and checked against its CRC, and damaged
chunks are listed; the exit code is then 1.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.views import NO_STATE, Array
from chicle_elastic.cli.progress import Progress
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.errors import ChunkCorruptError
from chicle_elastic.ids import ChunkId
from chicle_elastic.scheduling.text import bytes_text

EXIT_DAMAGED = 1
MAX_CLASSES_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What headers and labels say."""

    rows_per_chunk: Array  # ndarray of shape (num_chunks,), int64
    bytes_per_chunk: Array  # size of each file, ndarray of shape (num_chunks,), int64
    num_nonzeros: int  # stored entries of CSR rows; 0 for dense rows
    class_counts: Array  # rows of each class, ndarray of shape (num_classes,), int64
    target_range: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Damage:
    """A chunk that cannot be used, and why."""

    chunk: int
    file: str
    error: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle inspect` takes."""
    parser.add_argument("folder", metavar="FOLDER", help="folder of chunks, or its URL")
    parser.add_argument("--verify", action="store_true", help="read every chunk and check it against its CRC")
    parser.add_argument("--json", action="store_true", help="print one object of JSON instead of tables")


def run(arguments: argparse.Namespace) -> int:
    """Print the table or the JSON."""
    folder = ChunkFolder(arguments.folder)
    damaged = _damaged(folder) if arguments.verify else []
    contents = None if damaged else contents_of(folder)
    if arguments.json:
        print(json.dumps(_as_json(folder, contents, damaged, is_verified=arguments.verify), indent=2))
    else:
        print(_as_text(folder, contents, is_verified=arguments.verify))
    for damage in damaged:
        print(f"chicle: {damage.error}", file=sys.stderr)
    return EXIT_DAMAGED if damaged else 0


def summary(folder: ChunkFolder) -> str:
    """One line: "a9a.chunks: 32,561 rows x 123 features (csr float32), 2 classes, 128 chunks, 5.1 MiB"."""
    schema = folder.schema
    targets = _count(schema.num_classes, "class", "classes") if schema.num_classes else "real targets"
    return (
        f"{folder.path}: {schema.num_rows:,} rows x {schema.num_features:,} features ({schema.kind} {schema.dtype}), "
        f"{targets}, {_count(folder.num_chunks, 'chunk', 'chunks')}, {bytes_text(folder.size_bytes)}"
    )


def _damaged(folder: ChunkFolder) -> list[Damage]:
    """All damaged chunks; a second pass looks for more where the first one finds one."""
    progress = Progress(sys.stderr, MonotonicClock(), label="verifying", total=folder.num_rows, is_bytes=False)
    rows_done = np.cumsum([info.num_rows for info in folder.infos(NO_STATE)])
    with closing(progress):
        try:
            folder.verify(lambda done, total: progress.update(int(rows_done[done - 1]), int(rows_done[done - 1])))
        except ChunkCorruptError as error:
            first = str(error)
        else:
            return []
    damaged = []
    for number in range(folder.num_chunks):
        chunk_id = ChunkId(number)
        try:
            folder.load(chunk_id, NO_STATE)
        except ChunkCorruptError as error:
            damaged.append(Damage(number, folder.file(chunk_id).name, str(error)))
    # Rows that are there twice damage no single chunk.
    return damaged or [Damage(-1, "", first)]


def contents_of(folder: ChunkFolder) -> Contents:
    """Return what the headers and the labels of all chunks say."""
    num_classes = folder.schema.num_classes
    class_counts = np.zeros(num_classes, dtype=np.int64)
    rows, num_nonzeros = [], 0
    lowest, highest = np.inf, -np.inf
    for number in range(folder.num_chunks):
        chunk_id = ChunkId(number)
        header, targets = folder.header(chunk_id), folder.targets(chunk_id)
        lowest, highest = min(lowest, float(targets.min())), max(highest, float(targets.max()))
        if num_classes:
            if lowest < 0 or highest >= num_classes:
                raise ChunkCorruptError(
                    f"{folder.file(chunk_id)}: chunk {number} has class codes beyond the {num_classes} classes of the "
                    "manifest; run chicle inspect --verify"
                )
            class_counts += np.bincount(targets, minlength=num_classes)
        rows.append(header.num_rows)
        num_nonzeros += header.num_nonzeros
    sizes = [info.size_bytes for info in folder.infos(NO_STATE)]
    return Contents(
        rows_per_chunk=np.array(rows),
        bytes_per_chunk=np.array(sizes),
        num_nonzeros=num_nonzeros,
        class_counts=class_counts,
        target_range=(lowest, highest),
    )


def _as_json(
    folder: ChunkFolder, contents: Contents | None, damaged: Sequence[Damage], *, is_verified: bool
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "path": str(folder.path),
        "schema": asdict(folder.schema),
        "num_chunks": folder.num_chunks,
        "size_bytes": folder.size_bytes,
        "is_verified": is_verified,
        "damaged": [asdict(damage) for damage in damaged],
    }
    if contents is not None:
        result |= {
            "num_nonzeros": contents.num_nonzeros,
            "target_range": list(contents.target_range),
            "classes": [
                {"label": label, "num_rows": count}
                for label, count in zip(folder.classes, contents.class_counts.tolist(), strict=True)
            ],
            "rows_per_chunk": _range(contents.rows_per_chunk),
            "bytes_per_chunk": _range(contents.bytes_per_chunk),
        }
    return result


def _as_text(folder: ChunkFolder, contents: Contents | None, *, is_verified: bool) -> str:
    schema = folder.schema
    shape = f", samples of shape {schema.sample_shape}" if schema.sample_shape else ""
    targets = (
        f"{_count(schema.num_classes, 'class', 'classes')} ({schema.target_dtype} codes)"
        if schema.num_classes
        else (f"real values ({schema.target_dtype})")
    )
    facts = [
        ("rows", f"{schema.num_rows:,}"),
        ("features", f"{schema.num_features:,}{shape}"),
        ("kind", f"{'sparse (CSR)' if schema.kind == 'csr' else 'dense'} {schema.dtype}"),
        ("targets", targets),
        ("weights", "one per row" if schema.has_weights else "none"),
        ("chunks", f"{folder.num_chunks:,}"),
        ("size", bytes_text(folder.size_bytes)),
    ]
    if contents is not None:
        facts += _facts_of_contents(folder, contents)
        facts.append(("CRC", f"all {folder.num_chunks:,} chunks are sound" if is_verified else "not read (--verify)"))
    lines = [str(folder.path), *(f"  {name:10} {value}" for name, value in facts)]
    if contents is not None and schema.num_classes:
        lines += class_lines(folder, contents)
    return "\n".join(lines)


def _facts_of_contents(folder: ChunkFolder, contents: Contents) -> list[tuple[str, str]]:
    schema = folder.schema
    rows, sizes = _range(contents.rows_per_chunk), _range(contents.bytes_per_chunk)
    facts = [
        ("a chunk", f"{rows['min']:,} to {rows['max']:,} rows"),
        ("", f"{bytes_text(sizes['min'])} to {bytes_text(sizes['max'])}"),
    ]
    if schema.kind == "csr":
        per_row = contents.num_nonzeros / schema.num_rows
        share = f"{per_row / schema.num_features:.2%}"
        facts.append(("non-zeros", f"{contents.num_nonzeros:,}, {per_row:.1f} a row, {share} of all"))
    if not schema.num_classes:
        facts.append(("", "targets from {:g} to {:g}".format(*contents.target_range)))
    return facts


def class_lines(folder: ChunkFolder, contents: Contents) -> list[str]:
    """A table of the classes: code, label, rows and their share."""
    labels = [str(label) for label in folder.classes[:MAX_CLASSES_SHOWN]]
    width = max(5, *map(len, labels))
    lines = ["", f"  code  {'class':{width}}  {'rows':>12}  {'share':>6}"]
    for code, label in enumerate(labels):
        count = int(contents.class_counts[code])
        lines.append(f"  {code:4}  {label:{width}}  {count:12,}  {count / folder.num_rows:6.1%}")
    if len(folder.classes) > len(labels):
        lines.append(f"  and {len(folder.classes) - len(labels):,} more (--json lists all)")
    return lines


def _range(values: Array) -> dict[str, int]:
    return {"min": int(values.min()), "max": int(values.max())}


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
