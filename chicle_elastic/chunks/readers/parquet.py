"""Parquet files, by the optional pyarrow: one column is the label, the others are the features.

The checksum of every page that has one is verified; pyarrow and Spark write none unless they are asked to.

Record batches are read one by one, from buffered streams. What has to be in memory for that is one page and the
dictionary of every column in a row group, up to about 1 MiB a column as pyarrow and Spark write them: it grows with the
number of columns, not with the file.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.chunks.readers.base import Block, Origin, ReadOptions
from chicle_elastic.chunks.readers.columns import abbreviated, choose_columns
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import pyarrow as pa

_READ_BUFFER_BYTES = 64 << 10
_LEADING_ROWS = 1000


def read_parquet(path: Path, options: ReadOptions) -> Iterator[Block]:
    """Read a Parquet file.

    Raises:
        MissingExtraError: pyarrow is not installed.
        UsageError: The columns asked for do not exist.
        DataError: The file is damaged, a feature is not a number, or a value is missing.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError.for_package("pyarrow", extra="parquet", purpose="reading Parquet files") from error
    try:
        with pq.ParquetFile(
            path, buffer_size=_READ_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
        ) as file:
            yield from _blocks(path, file, options)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's; pyarrow's own have no number
            raise
        cause = " ".join(str(error).split())  # thrift's have several lines
        raise DataError(f"{path}: the Parquet file cannot be read ({cause}); write it again") from error


def _blocks(path: Path, file: Any, options: ReadOptions) -> Iterator[Block]:
    names = file.schema_arrow.names

    def leading(position: int) -> list[str]:
        if names.count(names[position]) > 1:
            return []
        batch = next(file.iter_batches(batch_size=_LEADING_ROWS, columns=[names[position]], use_threads=False), None)
        return [] if batch is None else [*map(str, batch.column(names[position]).to_pylist())]

    index_names = _pandas_index(file.schema_arrow)
    columns = choose_columns(path, names, len(names), options, leading=leading, index_names=index_names)
    used = [names[position] for position in columns.used]
    if len(set(names)) < len(names) and any(names.count(name) > 1 for name in used):
        raise DataError(f"{path}: column names repeat in {abbreviated(names)}; rename the columns")
    label, features = used[0], used[-len(columns.features) :]
    weight = None if columns.weight is None else names[columns.weight]
    for name in used[1:]:
        _check_is_number(path, name, file.schema_arrow.field(name).type)
    file_bytes, num_rows = path.stat().st_size, file.metadata.num_rows
    rows_per_batch = max(1, options.block_bytes // (8 * len(used)))
    start = 0
    for batch in file.iter_batches(batch_size=rows_per_batch, columns=used, use_threads=False):
        if not batch.num_rows:
            continue
        stop = start + batch.num_rows
        values = {name: _column(path, name, batch.column(name), start) for name in used}
        yield Block(
            rows=np.stack([values[name] for name in features], axis=1),
            targets=values[label],
            weights=None if weight is None else values[weight],
            origin=Origin(path=path, unit="row", numbers=range(start, stop), column_names=features),
            bytes_read=file_bytes * stop // num_rows,
            columns=columns,
        )
        start = stop


def _pandas_index(schema: "pa.Schema") -> list[str]:
    """Names of the columns that pandas noted as the index of its data frame."""
    try:
        noted = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        return [name for name in noted if isinstance(name, str)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _check_is_number(path: Path, name: str, kind: "pa.DataType") -> None:
    from pyarrow import types

    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    if not is_number:
        raise DataError(
            f"{path}: column {name!r} is {kind}, not numbers; encode it as numbers, or leave it out "
            f"with --drop-columns {name!r}"
        )


def _column(path: Path, name: str, column: "pa.Array", first_row: int) -> Array:
    """A column without gaps: numbers as their NumPy dtype, text as str."""
    import pyarrow as pa
    from pyarrow import types

    if column.null_count:
        row = first_row + column.is_null().to_pylist().index(True)
        raise DataError(
            f"{path}, row {row}: column {name!r} has no value; missing values are not supported: fill them in, or drop "
            "the rows"
        )
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if types.is_string(column.type) or types.is_large_string(column.type):
        return np.array(column.to_pylist(), dtype=np.str_)
    if types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    raise DataError(f"{path}: column {name!r} is {column.type}; labels must be numbers or text: convert it")
