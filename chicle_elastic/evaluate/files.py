"""What the files of a folder are taken for, by their names and first bytes, and their first rows as data sets.

    HIGGS        CSV without a header, 29 columns: a label 0 or 1 first, as UCI has it; or last
    Criteo       40 columns between tabs: a label, 13 counts (as log(1 + count)), 26 categories, hashed;
                 each row is scaled to length 1
    svmlight     `label index:value ...`
    CIFAR-10     binary version (*.bin), or batches of the Python version
    IDX          images of MNIST or Fashion-MNIST, with their labels beside them

Text may be compressed (.gz). Of each file as many rows are read as are asked for, and no more. Batches of the Python
version of CIFAR-10 are pickles, which could run any code. They are not loaded: the pixels and labels are found in the
list of their operations (`pickletools`), none of which is executed.
"""

import gzip
import itertools
import pickletools
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from chicle_elastic.chunks.readers.base import Block, ReadOptions
from chicle_elastic.chunks.readers.images import (
    CIFAR_RECORD_BYTES,
    CIFAR_SHAPE,
    is_compressed_idx,
    is_idx,
    read_cifar,
    read_idx,
)
from chicle_elastic.chunks.readers.svmlight import read_svmlight
from chicle_elastic.chunks.views import CsrRows
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.evaluate.datasets import DataSet
from chicle_elastic.evaluate.image_data import ImageData
from chicle_elastic.evaluate.shapes import hashed, unit_rows

HIGGS_COLUMNS, CRITEO_COUNTS, CRITEO_COLUMNS = 29, 13, 40
HASHED_COLUMNS = 1 << 18  # of Criteo's categories
TEST_SHARE = 6  # every so manieth image is for the test where no file says which are


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Hold what a folder has: data sets, and a line for each of its files."""

    rows: tuple[DataSet, ...]  # for CoCoA, two classes each
    images: tuple[tuple[str, ImageData], ...]  # for local SGD, with their titles
    lines: tuple[str, ...]


def read_folder(folder: Path, most: int) -> Taken:
    """Read what there is, `most` rows of each file. Raises UsageError when there is no such folder."""
    if not folder.is_dir():
        raise UsageError(f"--data {folder}: there is no such folder")
    rows: list[DataSet] = []
    parts: dict[str, list[tuple[Path, np.ndarray, np.ndarray]]] = {}
    lines = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder)
        try:
            kind, read = _kind(path)
            if read is None:
                lines.append(f"{name}: {kind}")
                continue
            found = read(path, most)
        except (DataError, UsageError, OSError, EOFError, zlib.error, ValueError) as error:
            lines.append(f"{name}: left out: {error}")
            continue
        if isinstance(found, DataSet):
            rows.append(found)
            lines.append(f"{name}: taken for {kind}, {len(found.y)} rows")
        else:
            parts.setdefault(kind, []).append((path, *found))
            lines.append(f"{name}: taken for {kind}, {len(found[1])} images")
    images = tuple((f"{kind} of {folder.name}", _split(files)) for kind, files in parts.items())
    return Taken(rows=tuple(rows), images=images, lines=tuple(lines))


Reader = Callable[[Path, int], Any]


def _kind(path: Path) -> tuple[str, Reader | None]:
    """Say what a file is taken for, and what reads it, None where it belongs to another one; a DataError where it is
    taken for nothing.
    """
    with path.open("rb") as file:
        start = file.read(4)
    if is_idx(start) or is_compressed_idx(path):
        if "labels" in path.name:
            return "labels of the images beside it", None
        return "IDX images", _images(read_idx)
    if path.suffix == ".bin":
        if path.stat().st_size % CIFAR_RECORD_BYTES or not path.stat().st_size:
            raise DataError(
                f"its {path.stat().st_size} bytes are no whole number of CIFAR-10's records of {CIFAR_RECORD_BYTES}; "
                "get it again, if it is one of CIFAR-10's binary version"
            )
        return "CIFAR-10 images", _images(read_cifar)
    if start[:1] == b"\x80":
        if "meta" in path.name:
            return "left out: the names of CIFAR-10's classes, which are not needed", None
        return "CIFAR-10 images", _python_batch
    first = next(_lines(path), "")
    cells = first.split("\t")
    if len(cells) == CRITEO_COLUMNS:
        return "clicks in Criteo's format", _criteo
    if len(cells) == CRITEO_COLUMNS - 1:
        raise DataError(f"{len(cells)} columns: Criteo's test.txt has no labels; take train.txt, which has 40")
    cells = first.split(",")
    if len(cells) == HIGGS_COLUMNS:
        return "HIGGS" + (" with the label last" if not _is_label(cells[0]) else ""), _higgs
    words = first.split()
    if len(words) > 1 and _is_number(words[0]) and all(word.count(":") == 1 for word in words[1:]):
        return "svmlight", _svmlight
    raise DataError(
        f"it begins with {first[:40]!r}, which is none of HIGGS (29 columns and commas), Criteo (40 columns and tabs), "
        "svmlight, CIFAR-10 and IDX; `chicle convert` reads other formats"
    )


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text. Raises DataError when it is no text, or a compressed one is damaged."""
    number = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            for line in file:
                number += 1
                yield line.rstrip("\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"the compressed data is damaged or cut off behind line {number} ({error}); get it again"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError("it is no text, and no image file that is known") from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_label(text: str) -> bool:
    return _is_number(text) and float(text) in (0.0, 1.0)


def _data_set(path: Path, title: str, X: Any, label: np.ndarray) -> DataSet:
    classes = np.unique(label)
    if len(classes) < 2:
        raise DataError(f"its first {len(label)} rows have one class, {classes[0]:g}; name more with --rows")
    y = (label == classes[-1]).astype(np.int64)
    rest = "" if len(classes) == 2 else f", {classes[-1]:g} against the rest"
    key = f"{path.name.split('.')[0]}-{path.stat().st_size}-{len(y)}-{title.replace(' ', '')}"
    return DataSet(key, f"{path.name} ({title}), {len(y)} rows{rest}", X, y)


def _table(path: Path, most: int, delimiter: str, width: int) -> Iterator[list[str]]:
    """Cells of the first rows. Raises DataError when a row has another number of them, with its line."""
    for number, line in enumerate(itertools.islice(_lines(path), most), start=1):
        cells = line.split(delimiter)
        if len(cells) != width:
            raise DataError(f"line {number} has {len(cells)} columns, and the first one {width}")
        yield cells


def _higgs(path: Path, most: int) -> DataSet:
    cells = list(_table(path, most, ",", HIGGS_COLUMNS))
    try:
        table = np.array(cells, dtype=np.float64)
    except ValueError as error:
        raise DataError(f"a cell is no number: {error}") from error
    first = bool(np.isin(table[:, 0], (0.0, 1.0)).all())
    label, X = (table[:, 0], table[:, 1:]) if first else (table[:, -1], table[:, :-1])
    if not np.isin(label, (0.0, 1.0)).all():
        raise DataError("neither its first nor its last column has labels 0 and 1 alone; HIGGS has them first")
    deviation = X.std(axis=0)
    X = ((X - X.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)).astype(np.float32)
    return _data_set(path, "HIGGS", X, label)


def _criteo(path: Path, most: int) -> DataSet:
    labels: list[float] = []
    counts, words = [], []
    for cells in _table(path, most, "\t", CRITEO_COLUMNS):
        if not _is_label(cells[0]):
            raise DataError(f"row {len(labels) + 1} has the label {cells[0]!r}; Criteo's are 0 and 1")
        labels.append(float(cells[0]))
        counts.append([max(float(cell or 0), 0.0) for cell in cells[1 : 1 + CRITEO_COUNTS]])
        words.append([int(cell, 16) if cell else -1 for cell in cells[1 + CRITEO_COUNTS :]])
    fields = np.array(words, dtype=np.int64)
    columns = [hashed(fields[:, field], field, HASHED_COLUMNS) for field in range(fields.shape[1])]
    indices = np.stack(columns, axis=1).astype(np.int32) + CRITEO_COUNTS
    numbers = np.tile(np.arange(CRITEO_COUNTS, dtype=np.int32), (len(labels), 1))
    values = np.concatenate([np.log1p(np.array(counts)), np.ones(indices.shape)], axis=1).astype(np.float32)
    indptr = np.arange(len(labels) + 1) * values.shape[1]
    shape = (len(labels), HASHED_COLUMNS + CRITEO_COUNTS)
    X = sp.csr_matrix((values.ravel(), np.concatenate([numbers, indices], axis=1).ravel(), indptr), shape=shape)
    X.sum_duplicates()
    X.eliminate_zeros()
    return _data_set(path, "Criteo, rows of unit length", unit_rows(X), np.array(labels))


def _svmlight(path: Path, most: int) -> DataSet:
    blocks = _first(read_svmlight(path, ReadOptions(zero_based=None)), most)
    found = [block.rows for block in blocks if isinstance(block.rows, CsrRows)]
    width = max(rows.num_features for rows in found)
    parts = [
        sp.csr_matrix((rows.values, rows.indices, rows.indptr), shape=(len(rows.indptr) - 1, width)) for rows in found
    ]
    X = sp.csr_matrix(sp.vstack(parts))[:most]
    label = np.concatenate([block.targets for block in blocks])[:most]
    return _data_set(path, "svmlight", X, label)


def _first(blocks: Iterator[Block], most: int) -> list[Block]:
    """Blocks until there are so many rows."""
    found: list[Block] = []
    count = 0
    for block in blocks:
        found.append(block)
        count += len(block.targets)
        if count >= most:
            break
    if not found:
        raise DataError("it has no rows")
    return found


def _images(read: Callable[[Path, ReadOptions], Iterator[Block]]) -> Reader:
    def read_images(path: Path, most: int) -> tuple[np.ndarray, np.ndarray]:
        blocks = _first(read(path, ReadOptions(block_bytes=1 << 22)), most)
        X = np.concatenate([np.asarray(block.rows) for block in blocks])[:most]
        return X.reshape(len(X), *blocks[0].sample_shape), np.concatenate([block.targets for block in blocks])[:most]

    return read_images


def _python_batch(path: Path, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The longest string in a batch are its pixels, and the numbers behind the word "labels" its labels."""
    pixels, labels, key = b"", list[int](), ""
    try:
        for code, argument, _ in pickletools.genops(path.read_bytes()):
            if isinstance(argument, str | bytes):
                text = argument.encode("latin-1") if isinstance(argument, str) else argument
                if code.name not in ("BINPUT", "LONG_BINPUT", "GLOBAL"):
                    pixels, key = max(pixels, text, key=len), text[:20].decode("latin-1")
            elif key == "labels" and isinstance(argument, int) and code.name.startswith("BININT"):
                labels.append(argument)
    except (ValueError, UnicodeError) as error:
        raise DataError(f"it is a damaged pickle ({error}); get it again") from error
    size = int(np.prod(CIFAR_SHAPE))
    if not labels or len(pixels) != size * len(labels):
        raise DataError("it is a pickle, and no batch of CIFAR-10; nothing of it was run: name arrays, text or images")
    data = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, *CIFAR_SHAPE)
    return data[:most], np.array(labels[:most], dtype=np.int64)


def _split(files: Sequence[tuple[Path, np.ndarray, np.ndarray]]) -> ImageData:
    """Files whose names say so are for the test, else every sixth image."""
    tests = [number for number, (path, _, _) in enumerate(files) if path.name.startswith(("test", "t10k"))]
    if tests and len(tests) < len(files):
        train = [file for number, file in enumerate(files) if number not in tests]
        test = [files[number] for number in tests]
        X, y = (np.concatenate([file[part] for file in train]) for part in (1, 2))
        return ImageData(X, y, *(np.concatenate([file[part] for file in test]) for part in (1, 2)))
    X, y = (np.concatenate([file[part] for file in files]) for part in (1, 2))
    is_test = np.arange(len(y)) % TEST_SHARE == 0
    return ImageData(X[~is_test], y[~is_test], X[is_test], y[is_test])
