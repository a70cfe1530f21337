"""Files of images: IDX, as MNIST and Fashion-MNIST come, and the binary version of CIFAR-10.

IDX     magic 00 00 TYPE NDIM, then NDIM big-endian u32 lengths, then the values row by row; one file has the images
        and another one the labels. Usually compressed (.gz).
CIFAR   records of 3073 bytes without a header: a label 0 to 9, then 3 x 32 x 32 bytes, channel by channel.

Both are read as a stream, and images keep their shape: (28, 28), (3, 32, 32).
"""

import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast

import numpy as np

from chicle_elastic.chunks.readers.array_stream import StoredRows, damage_refused
from chicle_elastic.chunks.readers.arrays import DenseStream, SideColumns, blocks_of
from chicle_elastic.chunks.readers.base import Block, Origin, ReadOptions
from chicle_elastic.errors import DataError, UsageError

GZIP_MAGIC = b"\x1f\x8b"
IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_IDX_DIMENSIONS = 4

CIFAR_SHAPE = (3, 32, 32)
CIFAR_RECORD_BYTES = 1 + 3 * 32 * 32
CIFAR_CLASSES = 10


def is_idx(start: bytes) -> bool:
    """Whether a file that begins like this (4 bytes are enough) is IDX."""
    return len(start) >= 4 and start[:2] == b"\0\0" and start[2] in IDX_DTYPES and 1 <= start[3] <= MAX_IDX_DIMENSIONS


def is_compressed_idx(path: Path) -> bool:
    """Whether a gzip file holds IDX; False for one that cannot be read."""
    try:
        with gzip.open(path) as file:
            return is_idx(file.read(4))
    except (OSError, EOFError, zlib.error):
        return False


def is_cifar(path: Path) -> bool:
    """Whether a file is one of CIFAR-10's by its name (.bin) and size; there is no magic."""
    size = path.stat().st_size
    return path.suffix == ".bin" and size > 0 and size % CIFAR_RECORD_BYTES == 0


def read_idx(path: Path, options: ReadOptions) -> Iterator[Block]:
    """Read images from an IDX file, and labels from `options.targets` or from the file beside it that belongs to it.
    Raises UsageError when there is no file of labels, DataError when a file is no IDX, or is cut short, or the two do
    not belong together."""
    with ExitStack() as stack:
        images = open_idx(path, stack)
        if len(images.shape) < 2:
            raise DataError(f"{path}: shape {images.shape}; this is a file of labels, name the one of the images")
        labels = open_idx(_labels_of(path, options), stack)
        if labels.shape != images.shape[:1]:
            raise DataError(
                f"{labels.name}: labels of shape {labels.shape}, but {path} has {images.shape[0]} images; pass the "
                "file that belongs to them with --targets"
            )
        yield from blocks_of(path, DenseStream(images, options.block_bytes), SideColumns(labels))


def read_cifar(path: Path, options: ReadOptions) -> Iterator[Block]:
    """Read a file of CIFAR-10's binary version, such as data_batch_1.bin. Raises DataError when it is cut short, or a
    label is none of CIFAR-10's."""
    per_block = max(1, options.block_bytes // CIFAR_RECORD_BYTES)
    start = 0
    with path.open("rb") as file:
        while piece := file.read(per_block * CIFAR_RECORD_BYTES):
            count, rest = divmod(len(piece), CIFAR_RECORD_BYTES)
            if rest:
                raise DataError(
                    f"{path}: {rest} bytes are left behind row {start + count - 1}, and a row has "
                    f"{CIFAR_RECORD_BYTES}; the file is cut short, or is not CIFAR-10 (binary version)"
                )
            records = np.frombuffer(piece, dtype=np.uint8).reshape(count, CIFAR_RECORD_BYTES)
            labels = records[:, 0].astype(np.int64)
            if labels.max() >= CIFAR_CLASSES:
                row = int(np.argmax(labels >= CIFAR_CLASSES))
                raise DataError(
                    f"{path}, row {start + row}: the label is {labels[row]}, and CIFAR-10 has 0 to "
                    f"{CIFAR_CLASSES - 1}; this is another file"
                )
            yield Block(
                rows=np.ascontiguousarray(records[:, 1:]),
                targets=labels,
                origin=Origin(path=path, unit="row", numbers=range(start, start + count)),
                bytes_read=file.tell(),
                sample_shape=CIFAR_SHAPE,
            )
            start += count


def open_idx(path: Path, stack: ExitStack) -> StoredRows:
    """Open the array of an IDX file, plain or compressed. Raises DataError when it is no IDX file, OSError when it
    cannot be opened."""
    file: IO[bytes] = stack.enter_context(path.open("rb"))
    is_compressed = file.read(2) == GZIP_MAGIC
    file.seek(0)
    if is_compressed:
        file = cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=file)))
    with damage_refused(str(path)):
        start = file.read(4)
        lengths = file.read(4 * start[3]) if is_idx(start) else b""
    if not is_idx(start):
        raise DataError(f"{path}: no IDX file (it begins with {start.hex(' ')}); MNIST's files begin with 00 00 08")
    shape = struct.unpack(f">{start[3]}I", lengths.ljust(4 * start[3], b"\0"))
    if 0 in shape:
        raise DataError(f"{path}: shape {shape} cannot be; the header is damaged, or there are no samples")
    return StoredRows(file, str(path), shape, np.dtype(IDX_DTYPES[start[2]]))


def _labels_of(path: Path, options: ReadOptions) -> Path:
    if options.targets is not None:
        return options.targets
    name = path.name.replace("images", "labels").replace("idx3", "idx1").replace("idx4", "idx1")
    beside = [path.with_name(name), path.with_name(name.removesuffix(".gz")), path.with_name(f"{name}.gz")]
    for candidate in beside:
        if candidate != path and candidate.is_file():
            return candidate
    raise UsageError(f"{path}: an IDX file of images has no labels, and there is no {name} beside it; pass --targets")
