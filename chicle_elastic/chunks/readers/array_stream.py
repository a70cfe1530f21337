"""The rows of one stored array, in order, a few at a time: an .npy file, a member of an .npz archive, an IDX file.

C-ordered arrays are read as a stream, which works inside a compressed archive too and keeps the memory of the process
bounded where a memory map would count every page it has touched. Only a Fortran-ordered .npy file is mapped: its rows
lie scattered, and arrays that pandas made are often stored so.
"""

import contextlib
import errno
import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np

from chicle_elastic.chunks.views import BFLOAT16, Array
from chicle_elastic.errors import DataError

MAX_ROW_BYTES = 256 << 20  # a header that claims a longer row is taken for a damaged one


@contextlib.contextmanager
def damage_refused(name: str) -> Iterator[None]:
    """Turn what NumPy, zipfile and the decompressors raise on damaged bytes into a DataError about `name`. They raise
    whatever comes up (SyntaxError from a header, KeyError, struct.error, ...), so nearly everything is caught; only a
    library call belongs into the block. Errors of the system, such as a broken disk, pass."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        # zipfile seeks to where a damaged directory points: EINVAL. Decompressors raise OSError without a number.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise DataError(f"{name}: not readable ({error or type(error).__name__}); save or fetch it again") from error


class StoredRows:
    """The rows of a C-ordered array behind a file handle, which the caller closes; they are taken in order."""

    def __init__(self, handle: IO[bytes], name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        if row_bytes > MAX_ROW_BYTES:
            raise DataError(
                f"{name}: one row of shape {shape[1:]} takes {row_bytes} bytes, more than the {MAX_ROW_BYTES} that are "
                "read at once; check the file"
            )
        self.name, self.shape, self.dtype = name, shape, dtype
        self._handle = handle
        self._rows_left = shape[0]

    def take(self, num_rows: int) -> Array:
        """Return the next `num_rows` rows, shape (num_rows, *shape[1:]), in the byte order of this machine. Raises
        DataError when they are missing, or more bytes follow the last one."""
        shape = (num_rows, *self.shape[1:])
        data = bytearray(math.prod(shape) * self.dtype.itemsize)
        view, filled = memoryview(data), 0
        with damage_refused(self.name):
            while filled < len(data) and (count := self._handle.readinto(view[filled:])):  # type: ignore[attr-defined]
                filled += count
        if filled < len(data):
            raise DataError(
                f"{self.name}: the array is cut short, its header says shape {self.shape} of {self.dtype} but "
                f"{len(data) - filled} of the next {len(data)} bytes are missing; save it again"
            )
        self._rows_left -= num_rows
        if not self._rows_left:
            with damage_refused(self.name):
                rest = self._handle.read(1)
            if rest:
                raise DataError(
                    f"{self.name}: more bytes follow the array of shape {self.shape}; save one array in a file"
                )
        return np.frombuffer(data, dtype=self.dtype).reshape(shape).astype(self.dtype.newbyteorder("="), copy=False)


class MappedRows:
    """An .npy file of any order, memory-mapped for one block at a time.

    Every `take` maps the file anew: pages count as memory of the process for as long as their mapping lives. What is
    left is up to 2 MiB a column, since Linux maps neighbouring pages along.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._next_row = 0
        mapped = self._map()
        self.shape: tuple[int, ...] = mapped.shape
        self.dtype = mapped.dtype

    def take(self, num_rows: int) -> Array:
        """Return a copy of the next `num_rows` rows, as `StoredRows.take`."""
        rows = self._map()[self._next_row : self._next_row + num_rows]
        self._next_row += num_rows
        return np.array(rows, order="C")  # a copy, never a view that would keep the mapping

    def _map(self) -> Array:
        with damage_refused(self.name):
            mapped: Array = np.load(self._path, mmap_mode="r", allow_pickle=False)
        return mapped


RowStream: TypeAlias = StoredRows | MappedRows


def open_npy(path: Path, handle: IO[bytes]) -> RowStream:
    """The array of the .npy file `path`, opened as `handle`. Raises DataError when the file is not an .npy file, or
    holds Python objects."""
    shape, is_fortran, dtype = _header(handle, str(path))
    return MappedRows(path) if is_fortran and len(shape) > 1 else StoredRows(handle, str(path), shape, dtype)


def open_member(handle: IO[bytes], name: str) -> RowStream:
    """The array behind `handle`, a member of an .npz archive that messages call `name`. Raises DataError when the
    member is not an array, holds Python objects, or is Fortran-ordered."""
    shape, is_fortran, dtype = _header(handle, name)
    if is_fortran and len(shape) > 1:
        raise DataError(
            f"{name}: stored in Fortran order, so that its rows cannot be read one after the other; "
            "save np.ascontiguousarray of it, or save it as an .npy file"
        )
    return StoredRows(handle, name, shape, dtype)


def _header(handle: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    with damage_refused(name):
        version = np.lib.format.read_magic(handle)
        if version == (1, 0):
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(handle)
        elif version == (2, 0):
            shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(handle)
        else:
            raise ValueError(f"version {version} of the format is for structured arrays")
    if dtype.hasobject:
        raise DataError(f"{name}: holds Python objects, which are never loaded; save numbers, or text as a str array")
    if dtype != BFLOAT16 and (dtype.names is not None or dtype.kind not in "biufcSU"):
        raise DataError(f"{name}: arrays of dtype {dtype} are not supported; save plain numbers")
    if not shape or min(shape) < 0:
        raise DataError(f"{name}: shape {shape} is not that of an array of samples")
    return shape, is_fortran, dtype
