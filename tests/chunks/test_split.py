"""How large a chunk is, and where rows are cut."""

from itertools import pairwise

import numpy as np
import pytest

from chicle_elastic.chunks.split import choose_chunk_bytes, cut_rows
from chicle_elastic.errors import UsageError

MIB = 1 << 20


@pytest.mark.parametrize(
    ("total_bytes", "max_tasks", "is_image", "expected"),
    [
        (1000 * MIB, 1, False, MIB),
        (1000 * MIB, 1, True, 200 << 10),
        (16 * MIB, 1, False, MIB),
        (16 * MIB, 4, False, MIB // 4),
        (1600, 4, True, 25),
        (10, 4, False, 1),
    ],
)
def test_a_chunk_is_1_mib_but_every_task_gets_at_least_16(
    total_bytes: int, max_tasks: int, is_image: bool, expected: int
) -> None:
    """The rule of docs/design 4, for large and small data."""
    assert choose_chunk_bytes(total_bytes, max_tasks, is_image=is_image) == expected


@pytest.mark.parametrize("seed", range(30))
def test_cuts_cover_all_rows_and_keep_to_the_size(seed: int) -> None:
    """For rows of very different lengths; only a chunk of one row may be larger."""
    rng = np.random.default_rng(seed)
    num_rows = int(rng.integers(1, 300))
    sizes = rng.integers(1, 1 + int(rng.integers(1, 500)), size=num_rows)
    chunk_bytes = int(rng.integers(1, 3000))
    cuts = cut_rows(sizes, num_rows, chunk_bytes)
    lengths = np.diff(cuts)
    assert (cuts[0], cuts[-1]) == (0, num_rows)
    assert (lengths >= 1).all()
    for start, stop in pairwise(cuts):
        assert stop - start == 1 or sizes[start:stop].sum() <= chunk_bytes
    assert ((lengths[:-1] % 8 == 0) | (lengths[:-1] < 8)).all()


@pytest.mark.parametrize("num_rows", [1, 7, 8, 9, 100])
@pytest.mark.parametrize("chunk_bytes", [1, 30, 80, 100, 10_000])
def test_rows_of_one_size_are_cut_alike_either_way(num_rows: int, chunk_bytes: int) -> None:
    """The short way for dense rows agrees with the general one, but for whole buckets in the last chunk."""
    uniform = cut_rows(10, num_rows, chunk_bytes)
    general = cut_rows(np.full(num_rows, 10), num_rows, chunk_bytes)
    assert uniform[-1] == general[-1] == num_rows
    assert (np.diff(uniform) * 10 <= max(chunk_bytes, 10)).all()
    assert list(uniform[: len(general) - 1]) == list(general[:-1])


def test_a_size_that_cannot_be_is_refused() -> None:
    """Zero bytes, and no task."""
    with pytest.raises(UsageError, match="chunks of 0 bytes"):
        cut_rows(10, 5, 0)
    with pytest.raises(UsageError, match="max_tasks=0"):
        choose_chunk_bytes(100, 0)
