"""Which reader reads a file: by its first bytes, because names like `a9a.gz` or `train.txt` tell nothing."""

import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from chicle_elastic.chunks.readers.arrays import read_npy, read_npz
from chicle_elastic.chunks.readers.base import Block, NoSamplesError, ReadOptions
from chicle_elastic.chunks.readers.csv import read_csv
from chicle_elastic.chunks.readers.images import (
    GZIP_MAGIC,
    is_cifar,
    is_compressed_idx,
    is_idx,
    read_cifar,
    read_idx,
)
from chicle_elastic.chunks.readers.parquet import read_parquet
from chicle_elastic.chunks.readers.svmlight import read_svmlight
from chicle_elastic.chunks.readers.text import line_blocks, zip_members
from chicle_elastic.errors import DataError, UsageError

Format: TypeAlias = Literal["svmlight", "csv", "npy", "npz", "parquet", "idx", "cifar10"]
FORMATS: tuple[Format, ...] = get_args(Format)

READERS: dict[Format, Callable[[Path, ReadOptions], Iterator[Block]]] = {
    "svmlight": read_svmlight,
    "csv": read_csv,
    "npy": read_npy,
    "npz": read_npz,
    "parquet": read_parquet,
    "idx": read_idx,
    "cifar10": read_cifar,
}

_MAGIC: tuple[tuple[bytes, Format], ...] = ((b"\x93NUMPY", "npy"), (b"PAR1", "parquet"))
_ZIP_MAGIC = b"PK\x03\x04"
_NOT_DATA = (
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd; unpack it (zstd -d)"),
    (b"\x04\x22\x4d\x18", "is compressed with lz4; unpack it (lz4 -d)"),
    (b"\x1f\x9d", "is compressed with compress; unpack it (uncompress)"),
    (b"]\0\0", "is compressed in the old format of lzma; unpack it (unlzma)"),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive; unpack it"),
    (b"version https://git-lfs", "is a pointer of Git LFS and not the data; run git lfs pull"),
    (b"<!doctype", "is a web page and not the data; download the file again"),
    (b"<html", "is a web page and not the data; download the file again"),
    (b"\x89HDF", "is HDF5; save its arrays as npz"),
    (b"\xd0\xcf\x11\xe0", "is a document of Excel or the like; save the sheet as CSV"),
    (b"\x80\x04\x95", "is a pickle, which is never loaded; save its arrays as npz"),
    (b"\x80\x05\x95", "is a pickle, which is never loaded; save its arrays as npz"),
    (b"ARROW1\0", "is Arrow IPC (Feather); save it as Parquet"),
)
_SVMLIGHT_SUFFIXES = {".svm", ".svmlight", ".libsvm"}
_CSV_SUFFIXES = {".csv", ".tsv"}
_SVMLIGHT_LINE = re.compile(rb"\s*[^\s:#]+(\s+(qid:\S+|\d+:[^\s:#]+))*\s*(#.*)?")
_SNIFF_BYTES = 64 << 10
_SNIFF_LINES = 20


def detect_format(path: Path) -> Format:
    """The format of `path` by its first bytes, and for text by its name and first lines.

    Raises NoSamplesError when the file is empty. Raises DataError when the file is of a kind that is known, and not
    read. Raises UsageError when the format cannot be told; also for a pipe, whose first bytes can be read only once.
    Raises OSError when the file cannot be opened.
    """
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; name the files to convert")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: is not a plain file, so its format cannot be looked up first; pass --format")
    with path.open("rb") as file:
        start = file.read(24)
    if not start:
        raise NoSamplesError(f"{path}: the file is empty; nothing to convert")
    for magic, refusal in _NOT_DATA:
        if (start.lower() if magic.startswith(b"<") else start).startswith(magic):
            raise DataError(f"{path}: {refusal}")
    for magic, format_ in _MAGIC:
        if start.startswith(magic):
            return format_
    if is_idx(start) or (start.startswith(GZIP_MAGIC) and is_compressed_idx(path)):
        return "idx"
    if is_cifar(path):
        return "cifar10"
    if start.startswith(_ZIP_MAGIC) and _is_npz(path):
        return "npz"
    suffixes = set(path.suffixes)
    if suffixes & _SVMLIGHT_SUFFIXES:
        return "svmlight"
    if suffixes & _CSV_SUFFIXES:
        return "csv"
    return _text_format(path)


def _is_npz(path: Path) -> bool:
    """Return whether a zip file holds arrays, or cannot be read and has the name of an archive of arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = zip_members(archive)
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return path.suffix == ".npz"
    return not names or any(name.endswith(".npy") for name in names)


def _text_format(path: Path) -> Format:
    first = next(line_blocks(path, block_bytes=_SNIFF_BYTES), None)
    lines = [line for _, line in first.lines() if line.partition(b"#")[0].strip()][:_SNIFF_LINES] if first else []
    if not lines:
        raise NoSamplesError(f"{path}: the file has no samples; nothing to convert")
    if all(_SVMLIGHT_LINE.fullmatch(line) for line in lines) and any(b":" in line for line in lines):
        return "svmlight"
    if all(b"," in line for line in lines):
        return "csv"
    raise UsageError(f"{path}: its first lines are neither svmlight nor comma separated; pass --format")
