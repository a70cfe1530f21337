"""NumPy files: an .npy file with the features beside one with the targets, or an .npz archive of both.

An .npz holds `X`, `y` and perhaps `sample_weight`; or a CSR matrix as `scipy.sparse.save_npz` writes it (`data`,
`indices`, `indptr`, `shape`) and `y`. The arrays are read in step, so that memory does not grow with the file.
"""

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from chicle_elastic.chunks.readers.array_stream import RowStream, damage_refused, open_member, open_npy
from chicle_elastic.chunks.readers.base import Block, Origin, ReadOptions
from chicle_elastic.chunks.readers.csr_stream import CsrStream
from chicle_elastic.chunks.views import BFLOAT16, Array, Rows
from chicle_elastic.errors import DataError, UsageError

CSR_MEMBERS = ("data", "indices", "indptr", "shape")
_MAX_FORMAT_BYTES = 4096


def read_npy(path: Path, options: ReadOptions) -> Iterator[Block]:
    """Read dense features from an .npy file and the targets from `options.targets`. Raises UsageError when no file of
    targets is given, DataError when a file is no array, or the shapes do not fit together."""
    if options.targets is None:
        raise UsageError(f"{path}: an .npy file has features only; pass the file of the labels with --targets y.npy")
    with ExitStack() as stack:
        features = DenseStream(open_npy(path, stack.enter_context(path.open("rb"))), options.block_bytes)
        yield from blocks_of(path, features, SideColumns.open(stack, options, archive=None))


def read_npz(path: Path, options: ReadOptions) -> Iterator[Block]:
    """Read dense or CSR features, targets and weights from an .npz archive. Raises DataError when the archive is
    damaged or lacks an array, or the arrays do not fit together."""
    with ExitStack() as stack:
        archive = Archive(path, stack)
        side = SideColumns.open(stack, options, archive=archive)
        features: DenseStream | CsrStream
        if archive.names.issuperset(CSR_MEMBERS):
            archive.check_is_csr()
            features = CsrStream(*(archive.array(name) for name in CSR_MEMBERS), block_bytes=options.block_bytes)
        else:
            features = DenseStream(archive.array("X"), options.block_bytes)
        yield from blocks_of(path, features, side)


class Archive:
    """An open .npz file whose arrays are read as streams."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self._stack = stack
        with damage_refused(str(path)):
            self._zip = stack.enter_context(zipfile.ZipFile(path))
        self.names = {name.removesuffix(".npy") for name in self._zip.namelist()}

    def array(self, name: str) -> RowStream:
        """The array `name`; raises DataError where there is none."""
        if name not in self.names:
            raise DataError(
                f"{self.path}: there is no array {name!r} among {sorted(self.names)}; needed are X and y, or "
                f"{', '.join(CSR_MEMBERS)} and y (sample_weight may be added)"
            )
        return open_member(self._open(name), f"{self.path}[{name}]")

    def check_is_csr(self) -> None:
        """Raise DataError where `scipy.sparse.save_npz` noted another format than CSR; CSC has the same arrays."""
        if "format" not in self.names:
            return
        if self._zip.getinfo("format.npy").file_size > _MAX_FORMAT_BYTES:
            raise DataError(f"{self.path}[format]: not the name of a sparse format; save it with scipy.sparse.save_npz")
        with damage_refused(f"{self.path}[format]"):
            found = np.lib.format.read_array(self._open("format"), allow_pickle=False).item()
        if found not in (b"csr", "csr"):
            raise DataError(f"{self.path}: a sparse matrix of format {found!r}; save matrix.tocsr()")

    def _open(self, name: str) -> IO[bytes]:
        with damage_refused(f"{self.path}[{name}]"):
            return self._stack.enter_context(self._zip.open(f"{name}.npy"))


class DenseStream:
    """Dense features as blocks of rows; samples of several dimensions are flattened."""

    def __init__(self, rows: RowStream, block_bytes: int) -> None:
        if rows.dtype.kind not in "biuf" and rows.dtype != BFLOAT16:
            raise DataError(f"{rows.name}: features of dtype {rows.dtype}; real numbers are needed")
        if len(rows.shape) < 2:
            raise DataError(
                f"{rows.name}: shape {rows.shape}; features need one row per sample: reshape to (rows, columns)"
            )
        self.name = rows.name
        self.num_rows = rows.shape[0]
        self.sample_shape = rows.shape[1:] if len(rows.shape) > 2 else ()
        self._rows = rows
        self._num_features = int(np.prod(rows.shape[1:], dtype=np.int64))
        self._rows_per_block = max(1, block_bytes // max(1, self._num_features * rows.dtype.itemsize))

    def blocks(self) -> Iterator[Rows]:
        """All rows, in blocks of ndarray of shape (num_rows, num_features)."""
        for start in range(0, self.num_rows, self._rows_per_block):
            num_rows = min(self._rows_per_block, self.num_rows - start)
            yield self._rows.take(num_rows).reshape(num_rows, self._num_features)


@dataclass(frozen=True, slots=True)
class SideColumns:
    """Targets and weights, read in step with the features."""

    targets: RowStream
    weights: RowStream | None = None

    @classmethod
    def open(cls, stack: ExitStack, options: ReadOptions, *, archive: Archive | None) -> "SideColumns":
        """Open the files that the options name, or the arrays of an archive. Raises DataError where they cannot be."""

        def stream(path: Path | None, name: str, *, is_optional: bool) -> RowStream | None:
            if path is not None:
                return open_npy(path, stack.enter_context(path.open("rb")))
            if archive is None or (is_optional and name not in archive.names):
                return None
            return archive.array(name)

        targets = stream(options.targets, "y", is_optional=False)
        assert targets is not None, "read_npy checks that there is a file of targets"
        if targets.dtype.kind not in "biufSU":
            raise DataError(f"{targets.name}: targets of dtype {targets.dtype}; numbers or text are needed")
        weights = stream(options.weights, "sample_weight", is_optional=True)
        if weights is not None and weights.dtype.kind not in "biuf":
            raise DataError(f"{weights.name}: weights of dtype {weights.dtype}; real numbers are needed")
        return cls(targets, weights)

    def check(self, num_rows: int, features: str) -> None:
        """Raise DataError where there is not one value for each row."""
        for stream in (self.targets, self.weights):
            if stream is not None and stream.shape not in {(num_rows,), (num_rows, 1)}:
                raise DataError(
                    f"{stream.name}: shape {stream.shape}, but {features} has {num_rows} rows; "
                    f"one value per row is needed, shape ({num_rows},)"
                )

    def take(self, num_rows: int) -> tuple[Array, Array | None]:
        """Return the targets and the weights of the next rows."""
        targets = self.targets.take(num_rows).reshape(num_rows)
        if targets.dtype.kind == "S":
            try:
                targets = np.char.decode(targets, "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{self.targets.name}: labels are not UTF-8 text ({error}); save a str array"
                ) from error
        return targets, None if self.weights is None else self.weights.take(num_rows).reshape(num_rows)


def blocks_of(path: Path, features: DenseStream | CsrStream, side: SideColumns) -> Iterator[Block]:
    """Read features and side columns in step. Raises DataError when they do not fit together."""
    side.check(features.num_rows, features.name)
    file_bytes = path.stat().st_size
    start = 0
    for rows in features.blocks():
        stop = start + rows.shape[0]
        targets, weights = side.take(stop - start)
        yield Block(
            rows=rows,
            targets=targets,
            weights=weights,
            origin=Origin(path=path, unit="row", numbers=range(start, stop)),
            bytes_read=file_bytes * stop // features.num_rows,
            sample_shape=features.sample_shape,
        )
        start = stop
