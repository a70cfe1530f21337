"""Memory for many samples at once."""

import itertools
import math
import mmap
import sys
from collections.abc import Sequence

import numpy as np

from chicle_elastic.chunks.views import Array

LARGE_PAGE_BYTES = 1 << 21
LEAST_LARGE_BYTES = 1 << 19
ALIGNMENT = 128  # two cache lines: processors fetch them in pairs


def zeros(shape: tuple[int, ...], dtype: str) -> Array:
    """An array of zeros, C-contiguous; a large one lies in large pages where the system has them. A fit touches a few
    bytes of each sample, in random order and for the first time. In pages of 4 KiB the faults and the searches for
    addresses took as long as a pass over the data."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if sys.platform != "linux" or size < LEAST_LARGE_BYTES:
        return np.zeros(shape, dtype=dtype)
    # A page more than is needed, of which only the aligned part is ever touched.
    length = (-(-size // LARGE_PAGE_BYTES) + 1) * LARGE_PAGE_BYTES
    try:
        memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without large pages, or a limit of address space
        return np.zeros(shape, dtype=dtype)
    data = np.frombuffer(memory, dtype=np.uint8)
    start = -data.ctypes.data % LARGE_PAGE_BYTES
    return data[start : start + size].view(dtype).reshape(shape)


def aligned_zeros(shape: tuple[int, ...], dtype: str) -> Array:
    """An array of zeros, C-contiguous, that shares no cache line with anything else. So vectors of values seldom cross
    one, and threads that write next to each other do not take it from one another."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    data = np.zeros(-(-size // ALIGNMENT) * ALIGNMENT + ALIGNMENT, dtype=np.uint8)
    start = -data.ctypes.data % ALIGNMENT
    return data[start : start + size].view(dtype).reshape(shape)


def zeros_per_chunk(lengths: Sequence[int], shape: tuple[int, ...], dtype: str) -> list[Array]:
    """One array of zeros per chunk, side by side in one block of memory, which is given back with its last array.
    Returns arrays of shape (length, *shape), C-contiguous."""
    block = zeros((sum(lengths), *shape), dtype)
    ends = itertools.accumulate(lengths)
    return [block[end - length : end] for length, end in zip(lengths, ends, strict=True)]
