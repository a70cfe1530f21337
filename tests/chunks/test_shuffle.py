"""The shuffle beyond memory: every row comes out once, and every order is equally likely."""

import dataclasses
from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks.rows import concatenate_chunks, slice_chunk
from chicle_elastic.chunks.shuffle import ExternalShuffle
from chicle_elastic.chunks.views import NO_STATE, Chunk
from tests.chunks.samples import dense, sample_chunk


def shuffled(folder: Path, rows: Chunk, *, seed: int, block_rows: int, memory_bytes: int) -> Chunk:
    """All rows, added block by block, without their state."""
    rows = dataclasses.replace(rows, state=NO_STATE.zeros(rows.num_rows))
    shuffle = ExternalShuffle(folder / "unsorted", np.random.default_rng(seed), memory_bytes=memory_bytes)
    for start in range(0, rows.num_rows, block_rows):
        shuffle.add(slice_chunk(rows, start, min(start + block_rows, rows.num_rows)))
    return concatenate_chunks(list(shuffle.drain()))


@pytest.mark.parametrize("name", ["dense-float64-weights", "csr-float32-int32"])
@pytest.mark.parametrize(
    "memory_bytes", [1, 2_000, 20_000, 1 << 30], ids=["a row", "buckets of buckets", "buckets", "no files"]
)
def test_every_row_comes_out_once_with_all_that_belongs_to_it(tmp_path: Path, name: str, memory_bytes: int) -> None:
    """Whatever fits into memory; and no file is left."""
    rows = sample_chunk(name, num_rows=150)
    found = shuffled(tmp_path, rows, seed=0, block_rows=20, memory_bytes=memory_bytes)
    order = (found.row_ids - 1) // 3
    assert sorted(order) == list(range(150))
    assert order.tolist() != list(range(150))
    assert np.array_equal(dense(found), dense(rows)[order])
    assert np.array_equal(found.targets, rows.targets[order])
    assert rows.weights is not None
    assert found.weights is not None
    assert np.array_equal(found.weights, rows.weights[order])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("memory_bytes", [2_000, 1 << 30])
def test_a_seed_decides_the_order(tmp_path: Path, memory_bytes: int) -> None:
    """The same one again, another one with another seed."""
    rows = sample_chunk("dense-float32", num_rows=100)
    orders = [
        shuffled(tmp_path, rows, seed=seed, block_rows=30, memory_bytes=memory_bytes).row_ids.tolist()
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]


def chi_squared(counts: Counter[tuple[int, ...]], num_runs: int) -> float:
    """How far the orders of three rows are from equally likely; 5 degrees of freedom."""
    expected = num_runs / 6
    return sum((counts[order] - expected) ** 2 / expected for order in permutations(range(3)))


LIMIT = 25.7  # exceeded once in 10,000 seeds by a uniform shuffle


@pytest.mark.parametrize("memory_bytes", [1, 1 << 30], ids=["through files", "in memory"])
def test_every_order_is_equally_likely(tmp_path: Path, memory_bytes: int) -> None:
    """Three rows in 360 runs; the six orders by a chi-squared test."""
    rows = sample_chunk("dense-float32", num_rows=3)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(360):
        found = shuffled(tmp_path, rows, seed=seed, block_rows=1, memory_bytes=memory_bytes)
        counts[tuple(((found.row_ids - 1) // 3).tolist())] += 1
    assert chi_squared(counts, 360) < LIMIT


def test_the_test_of_orders_can_fail() -> None:
    """A shuffle that passes rows through a reservoir of two never brings the last row to the front."""
    rng = np.random.default_rng(0)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(360):
        reservoir, order = [0, 1], []
        for row in (2,):
            order.append(reservoir.pop(rng.integers(2)))
            reservoir.append(row)
        order += rng.permutation(reservoir).tolist()
        counts[tuple(order)] += 1
    assert chi_squared(counts, 360) > LIMIT


def test_sorted_rows_are_sorted_no_more(tmp_path: Path) -> None:
    """Of 3000 rows through files, every tenth of the output has about a tenth of every tenth of the input."""
    rows = sample_chunk("dense-uint8", num_rows=3000, num_features=1)
    found = shuffled(tmp_path, rows, seed=0, block_rows=250, memory_bytes=40_000)
    tenths = ((found.row_ids - 1) // 3 // 300).reshape(10, 300)
    table = np.array([np.bincount(part, minlength=10) for part in tenths])
    assert table.min() > 30 - 5 * np.sqrt(30)
    assert table.max() < 30 + 5 * np.sqrt(30)
