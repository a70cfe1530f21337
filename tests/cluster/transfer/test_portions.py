"""Portions of what is fetched from one node."""

from chicle_elastic.cluster.transfer.fetcher import PORTION_BYTES, portions


def test_small_things_travel_together_and_large_ones_apart() -> None:
    """In their order, and nothing is left out."""
    sizes = [PORTION_BYTES // 2, PORTION_BYTES // 2, 1, PORTION_BYTES, *[100] * 50]
    cut = list(portions(sizes, lambda size: size))
    assert cut == [sizes[:2], sizes[2:4], sizes[4:]]
    assert list(portions([], len)) == []
