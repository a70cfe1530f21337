"""Parquet files, by the optional pyarrow: one column is the label, the others are the features.

Record batches are read one by one, from buffered streams. What has to be in memory for that is one page and the
dictionary of every column in a row group, up to about 1 MiB a column as pyarrow and Spark write them: it grows with the
number of columns, not with the file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.chunks.readers.base import Block, Origin, ReadOptions
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError, MissingExtraError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_READ_BUFFER_BYTES = 64 << 10


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
        with pq.ParquetFile(path, buffer_size=_READ_BUFFER_BYTES, pre_buffer=False) as file:
            yield from _blocks(path, file, options)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's; pyarrow's own have no number
            raise
        raise DataError(f"{path}: the Parquet file cannot be read ({error}); write it again") from error


def _blocks(path: Path, file: Any, options: ReadOptions) -> Iterator[Block]:
    names = file.schema_arrow.names
    label, weight = _choose(path, names, options)
    features = [name for name in names if name not in (label, weight)]
    if not features:
        raise DataError(f"{path}: no column is left for features besides the label {label!r}; check the file")
    for name in features:
        _check_is_number(path, name, file.schema_arrow.field(name).type)
    file_bytes, num_rows = path.stat().st_size, file.metadata.num_rows
    rows_per_batch = max(1, options.block_bytes // (8 * len(names)))
    start = 0
    for batch in file.iter_batches(batch_size=rows_per_batch, use_threads=False):
        if not batch.num_rows:
            continue
        stop = start + batch.num_rows
        columns = {name: _column(path, name, batch.column(name), start) for name in names}
        yield Block(
            rows=np.stack([columns[name] for name in features], axis=1),
            targets=columns[label],
            weights=None if weight is None else columns[weight],
            origin=Origin(path=path, unit="row", numbers=range(start, stop), column_names=features),
            bytes_read=file_bytes * stop // num_rows,
        )
        start = stop


def _choose(path: Path, names: list[str], options: ReadOptions) -> tuple[str, str | None]:
    """Names of the columns of labels and of weights."""
    if len(set(names)) < len(names):
        raise DataError(f"{path}: column names repeat in {names}; rename the columns")
    label = names[0] if options.label_column is None and names else options.label_column
    for name, option in ((label, "--label-column"), (options.weight_column, "--weight-column")):
        if name is not None and name not in names:
            raise UsageError(f"{path}: there is no column {name!r}, which {option} asks for; columns are {names}")
    if label is None:
        raise DataError(f"{path}: there are no columns; check the file")
    if label == options.weight_column:
        raise UsageError(f"{path}: column {label!r} cannot be both label and weight; pass --label-column")
    return label, options.weight_column


def _check_is_number(path: Path, name: str, kind: "pa.DataType") -> None:
    from pyarrow import types

    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    if not is_number:
        raise DataError(
            f"{path}: column {name!r} is {kind}, not numbers; encode it as numbers, or leave it out of the file"
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
