"""Pages of the ledger: what a task writes down of an iteration, also of one that only others could merge."""

import pytest

from chicle_elastic.ids import ChunkId
from chicle_elastic.runtime.training.ledger_pages import LedgerPages
from chicle_elastic.values import StateVersion

LOADED, MERGED = StateVersion(0, 0), StateVersion(2, 6)
READS = {ChunkId(1): 10, ChunkId(4): 7, ChunkId(5): 10}


@pytest.fixture
def pages() -> LedgerPages:
    """Of a task with two chunks of one version, and one that was loaded."""
    pages = LedgerPages()
    for chunk in READS:
        pages.attach(chunk, LOADED if chunk == 4 else MERGED)
    return pages


def test_chunks_of_one_version_share_a_page(pages: LedgerPages) -> None:
    """Rows are those that were counted."""
    attempt = StateVersion(3, 7)
    written = pages.write(READS, attempt)
    assert {page.before: dict(zip(page.chunks, page.rows, strict=True)) for page in written} == {
        MERGED: {1: 10, 5: 10},
        LOADED: {4: 7},
    }
    assert {page.after for page in written} == {attempt}


def test_an_iteration_that_others_have_merged_is_written_once_that_is_known(pages: LedgerPages) -> None:
    """Sums are exchanged by everybody with everybody: when a member dies, one survivor may have all and another not."""
    attempt = StateVersion(3, 7)
    unmerged = pages.write_unmerged(READS, attempt)
    assert {page.after for page in unmerged} == {None}
    merged = pages.merged_by_others(attempt)
    assert {page.after for page in merged} == {attempt}
    assert [(page.before, page.chunks, page.rows) for page in merged] == [
        (page.before, page.chunks, page.rows) for page in unmerged
    ]
    assert pages.merged_by_others(attempt) == ()


@pytest.mark.parametrize("merged", [StateVersion(3, 6), StateVersion(3, 8), StateVersion(4, 7)])
def test_an_iteration_that_nobody_has_merged_is_not_written(pages: LedgerPages, merged: StateVersion) -> None:
    """Nor is one that this task was away for: others have repeated the iteration in a round of their own."""
    pages.write_unmerged(READS, StateVersion(3, 7))
    assert pages.merged_by_others(merged) == ()


def test_an_attempt_is_forgotten_with_the_next_iteration(pages: LedgerPages) -> None:
    """Whatever was merged before it is in the model."""
    pages.write_unmerged(READS, StateVersion(3, 7))
    pages.write(READS, StateVersion(4, 7))
    assert pages.merged_by_others(StateVersion(3, 7)) == ()
