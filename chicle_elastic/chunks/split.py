"""How large a chunk is, and where a sequence of rows is cut into chunks."""

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError

CHUNK_BYTES = 1 << 20
IMAGE_CHUNK_BYTES = 200 << 10
MIN_CHUNKS_PER_TASK = 16
ROW_MULTIPLE = 8  # kernels visit rows in buckets of this many; a chunk of whole buckets wastes none


def choose_chunk_bytes(total_bytes: int, max_tasks: int, *, is_image: bool = False) -> int:
    """Size of a chunk: 1 MiB (200 KiB for images), but so small that each task has 16 or more (docs/design 4). Raises
    UsageError when `max_tasks` is not positive. Returns bytes, >= 1. A chunk holds at least one row, however large."""
    if max_tasks < 1:
        raise UsageError(f"max_tasks={max_tasks} cannot be; a job has at least one task")
    largest = IMAGE_CHUNK_BYTES if is_image else CHUNK_BYTES
    return max(1, min(largest, total_bytes // (MIN_CHUNKS_PER_TASK * max_tasks)))


def cut_rows(bytes_per_row: Array | int, num_rows: int, chunk_bytes: int) -> list[int]:
    """Cut rows into chunks of at most `chunk_bytes`, in their order. Returns num_chunks + 1 cuts: chunk `i` is the rows
    `cuts[i]` to `cuts[i + 1] - 1`. Raises UsageError when `chunk_bytes` is not positive.

    A chunk has at least one row, and whole buckets of 8 rows where it has room for one (the last one takes the rest).
    Rows of different lengths are cut by their bytes and not by their number: a slot of an arena has to hold the
    largest chunk.

    Args:
        bytes_per_row: ndarray of shape (num_rows,), int64; or one int where all are alike.
        num_rows: Rows to cut, >= 1.
    """
    if chunk_bytes < 1:
        raise UsageError(f"chunks of {chunk_bytes} bytes cannot be; give a size >= 1, or None for the default")
    if not isinstance(bytes_per_row, np.ndarray):
        step = _whole_buckets(max(1, chunk_bytes // max(1, bytes_per_row)))
        return [*range(0, num_rows, step), num_rows]
    ends = np.cumsum(bytes_per_row, dtype=np.int64)
    cuts = [0]
    while cuts[-1] < num_rows:
        start = cuts[-1]
        begin_bytes = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, begin_bytes + chunk_bytes, side="right"))
        cuts.append(stop if stop == num_rows else start + _whole_buckets(max(1, stop - start)))
    return cuts


def _whole_buckets(num_rows: int) -> int:
    return num_rows - num_rows % ROW_MULTIPLE if num_rows >= ROW_MULTIPLE else num_rows
