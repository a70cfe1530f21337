"""Parquet files, by the optional pyarrow: one column is the label, the others are the features.

A column of lists (embeddings) is a feature for each place of its lists, which have one length.

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

from chicle_elastic.chunks.readers.arrow import column_values, list_values, require_numbers
from chicle_elastic.chunks.readers.base import Block, Origin, ReadOptions
from chicle_elastic.chunks.readers.columns import abbreviated, choose_columns
from chicle_elastic.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import pyarrow as pa

_READ_BUFFER_BYTES = 64 << 10
_LEADING_ROWS = 1000


def read_parquet(path: Path, options: ReadOptions) -> Iterator[Block]:
    """Read a Parquet file. Raises MissingExtraError when pyarrow is not installed, UsageError when the columns asked
    for do not exist, DataError when the file is damaged, a feature is not a number, or a value is missing."""
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
    kinds = {name: file.schema_arrow.field(name).type for name in used}
    for name in used[1:]:
        remedy = f"encode it as numbers, or leave it out with --drop-columns {name!r}"
        require_numbers(path, name, kinds[name], remedy)
    for name in used[: -len(features)]:
        if list_values(kinds[name]) is not None:
            raise DataError(f"{path}: column {name!r} is {kinds[name]}; labels and weights are one value for each row")
    file_bytes, num_rows = path.stat().st_size, file.metadata.num_rows
    rows_per_batch = max(1, options.block_bytes // (8 * (len(used) + _values_in_lists(file))))
    start, widths = 0, dict.fromkeys(used)
    for batch in file.iter_batches(batch_size=rows_per_batch, columns=used, use_threads=False):
        if not batch.num_rows:
            continue
        stop = start + batch.num_rows
        values = {name: column_values(path, name, batch.column(name), start, widths[name]) for name in used}
        widths = {name: part.shape[1] if part.ndim > 1 else None for name, part in values.items()}
        yield Block(
            rows=np.column_stack([values[name] for name in features]),
            targets=values[label],
            weights=None if weight is None else values[weight],
            origin=Origin(
                path=path, unit="row", numbers=range(start, stop), column_names=_feature_names(features, widths)
            ),
            bytes_read=file_bytes * stop // num_rows,
            columns=columns,
        )
        start = stop


def _feature_names(columns: list[str], widths: dict[str, int | None]) -> list[str]:
    """Return a name for each feature: that of its column, and behind it the place in lists."""
    places = {
        name: [""] if width is None else [f"[{place}]" for place in range(width)] for name, width in widths.items()
    }
    return [name + place for name in columns for place in places[name]]


def _values_in_lists(file: Any) -> int:
    """Return the number of values that columns of lists have in a row of the first row group, on average."""
    if not file.metadata.num_row_groups:
        return 0
    group = file.metadata.row_group(0)
    are_lists = [file.schema.column(place).max_repetition_level > 0 for place in range(group.num_columns)]
    counts = [group.column(place).num_values for place in np.flatnonzero(are_lists).tolist()]
    return int(sum(counts) // max(group.num_rows, 1))


def _pandas_index(schema: "pa.Schema") -> list[str]:
    try:
        noted = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        return [name for name in noted if isinstance(name, str)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
