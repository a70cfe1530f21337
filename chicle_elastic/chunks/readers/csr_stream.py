"""A stored CSR matrix as blocks of rows: `indptr`, `indices` and `data` are read in step and checked on the way."""

from collections.abc import Iterator

import numpy as np

from chicle_elastic.chunks.readers.array_stream import RowStream
from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.errors import DataError

_POINTERS_AT_ONCE = 1 << 14


class CsrStream:
    """The rows of a CSR matrix whose three arrays are streams. Indices that do not ascend are sorted, and entries that
    repeat are added up: SciPy gives both this meaning. Raises DataError when dtypes or lengths do not fit together.
    Also while the blocks are read, for pointers that go back and indices out of range."""

    def __init__(
        self, data: RowStream, indices: RowStream, indptr: RowStream, shape: RowStream, *, block_bytes: int
    ) -> None:
        for stream, kinds in ((data, "biuf"), (indices, "iu"), (indptr, "iu"), (shape, "iu")):
            if stream.dtype.kind not in kinds or len(stream.shape) != 1:
                raise DataError(
                    f"{stream.name}: shape {stream.shape} of {stream.dtype} is not part of a CSR matrix of numbers; "
                    "save it with scipy.sparse.save_npz"
                )
        if shape.shape != (2,):
            raise DataError(f"{shape.name}: {shape.shape[0]} values; the shape of a matrix has two")
        self.num_rows, self._num_features = (int(size) for size in shape.take(2))
        if data.shape != indices.shape or indptr.shape != (self.num_rows + 1,):
            raise DataError(
                f"{indptr.name}: {indptr.shape[0]} pointers, {indices.shape[0]} indices and {data.shape[0]} values do "
                f"not make a CSR matrix of {self.num_rows} rows; save it again"
            )
        self.name = data.name
        self.sample_shape: tuple[int, ...] = ()
        self._data, self._indices, self._indptr = data, indices, indptr
        self._entries_per_block = max(1, block_bytes // (data.dtype.itemsize + indices.dtype.itemsize))

    def blocks(self) -> Iterator[CsrRows]:
        """All rows, in blocks of `CsrRows` that start at entry 0."""
        start = int(self._indptr.take(1)[0])
        if start != 0:
            raise DataError(f"{self._indptr.name}: starts with {start} and not with 0; save the matrix again")
        row = 0
        while row < self.num_rows:
            stops = self._indptr.take(min(_POINTERS_AT_ONCE, self.num_rows - row)).astype(np.int64)
            self._check_stops(stops, start, row)
            while len(stops):
                num_rows = max(1, int(np.searchsorted(stops, start + self._entries_per_block, side="right")))
                yield self._block(np.concatenate([[start], stops[:num_rows]]) - start, row)
                start, stops, row = int(stops[num_rows - 1]), stops[num_rows:], row + num_rows
        if start != self._data.shape[0]:
            raise DataError(
                f"{self._indptr.name}: ends with {start}, but there are {self._data.shape[0]} values; save it again"
            )

    def _check_stops(self, stops: Array, start: int, row: int) -> None:
        steps = np.diff(stops, prepend=start)
        if (steps < 0).any():
            raise DataError(
                f"{self._indptr.name}, row {row + int(np.argmax(steps < 0))}: the pointers go back; save it again"
            )
        if stops[-1] > self._data.shape[0]:
            raise DataError(
                f"{self._indptr.name}: points to entry {stops[-1]}, but there are {self._data.shape[0]} values; "
                "save the matrix again"
            )

    def _block(self, indptr: Array, row: int) -> CsrRows:
        num_entries = int(indptr[-1])
        values = self._data.take(num_entries)
        if values.dtype not in (np.float32, np.float64):
            values = values.astype(np.float64)
        indices = self._indices.take(num_entries).astype(np.int64)
        is_outside = (indices < 0) | (indices >= self._num_features)
        if is_outside.any():
            entry = int(np.argmax(is_outside))
            raise DataError(
                f"{self._indices.name}, row {row + int(np.searchsorted(indptr, entry, side='right')) - 1}: column "
                f"{indices[entry]} is out of range, the matrix has {self._num_features} columns; correct the matrix"
            )
        from scipy.sparse import csr_matrix

        matrix = csr_matrix((values, indices, indptr), shape=(len(indptr) - 1, self._num_features))
        matrix.sum_duplicates()  # sorts, too; looks only where all ascends already
        return CsrRows(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data, self._num_features)
