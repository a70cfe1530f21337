"""What comes into a chunk folder: blocks of rows are checked, copied and numbered."""

import dataclasses
from typing import Literal

import numpy as np

from chicle_elastic.chunks.headers import CSR_VALUE_DTYPES
from chicle_elastic.chunks.rows import csr_fault
from chicle_elastic.chunks.views import NO_STATE, VALUE_DTYPES, Array, Chunk, CsrRows, Rows, dtype_of
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.ids import ChunkId

LARGEST_INT32 = 2**31 - 1


class Intake:
    """Makes blocks of one data set, which have the same kind, dtype and columns. Raises UsageError when chunks cannot
    hold rows of this kind and dtype."""

    def __init__(
        self,
        where: str,
        *,
        kind: Literal["dense", "csr"],
        dtype: str,
        num_features: int | None,
        has_weights: bool,
    ) -> None:
        allowed = CSR_VALUE_DTYPES if kind == "csr" else VALUE_DTYPES
        if kind not in ("dense", "csr") or dtype not in allowed:
            raise UsageError(f"chunks of kind={kind!r} and dtype={dtype!r} cannot be; the dtype is one of {allowed}")
        self.num_rows = 0  # rows so far
        self.total_bytes = 0  # bytes of them
        self._where = where
        self._kind = kind
        self._dtype = dtype_of(dtype)
        self._num_features = num_features
        self._most_columns = 0
        self._has_weights = has_weights

    def block(self, rows: Rows, targets: Array, weights: Array | None) -> Chunk:
        """Copies of some rows as a chunk without state; targets and weights become float64. Raises UsageError when
        kind, dtype or shapes are not those of this data set, DataError when CSR rows are malformed."""
        self._check_rows(rows)
        num_rows = int(rows.shape[0])
        self._check_values("targets", targets, num_rows, is_wanted=True)
        self._check_values("weights", weights, num_rows, is_wanted=self._has_weights)
        block = Chunk(
            id=ChunkId(0),
            rows=_copied(rows),
            targets=np.array(targets, dtype=np.float64),
            weights=None if weights is None else np.array(weights, dtype=np.float64),
            row_ids=np.arange(self.num_rows, self.num_rows + num_rows, dtype=np.int64),
            state=NO_STATE.zeros(num_rows),
        )
        self.num_rows += num_rows
        self.total_bytes += block.size_bytes
        self._most_columns = max(self._most_columns, block.num_features)
        return block

    def final_num_features(self, wanted: int | None) -> int:
        """Columns of the whole data set; `wanted` is what the end of the data says, if it says anything. Raises
        UsageError when rows have more columns than that, or none."""
        found = self._num_features or wanted or self._most_columns
        if wanted is not None and (wanted != found or wanted < self._most_columns):
            known = self._num_features or self._most_columns
            raise UsageError(f"{self._where}: num_features={wanted} cannot be; the rows have {known} columns")
        if found < 1:
            raise UsageError(f"{self._where}: no row has a column, so there is nothing to learn from; check the input")
        return found

    def _check_rows(self, rows: Rows) -> None:
        kind = "csr" if isinstance(rows, CsrRows) else "dense"
        if kind != self._kind or rows.dtype != self._dtype:
            raise UsageError(
                f"{self._where}: these rows are {kind} {rows.dtype}, but the folder is being made for {self._kind} "
                f"{self._dtype}"
            )
        num_features = int(rows.shape[1])
        if isinstance(rows, CsrRows):
            limited = dataclasses.replace(rows, num_features=self._num_features or num_features)
            if (fault := csr_fault(limited)) is not None:
                raise DataError(f"{self._where}: the rows from number {self.num_rows} on cannot be used: {fault}")
        else:
            self._num_features = self._num_features or num_features
            if num_features != self._num_features:
                raise UsageError(f"{self._where}: these rows have {num_features} features, not {self._num_features}")

    def _check_values(self, name: str, values: Array | None, num_rows: int, *, is_wanted: bool) -> None:
        found = None if values is None else values.shape
        expected = (num_rows,) if is_wanted else None
        if found != expected:
            raise UsageError(f"{self._where}: the {name} of {num_rows} rows have the shape {found}, not {expected}")


def _copied(rows: Rows) -> Rows:
    if not isinstance(rows, CsrRows):
        return np.array(rows, order="C")
    start, stop = int(rows.indptr[0]), int(rows.indptr[-1])
    index_dtype = np.int32 if rows.num_features <= LARGEST_INT32 else np.int64
    return CsrRows(
        indptr=(rows.indptr - rows.indptr[0]).astype(np.int64),
        indices=np.array(rows.indices[start:stop], dtype=index_dtype),
        values=np.array(rows.values[start:stop]),
        num_features=rows.num_features,
    )
