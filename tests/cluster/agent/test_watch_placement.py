"""What a task wrote down while it read, against the scheduler's book: every way in which they can differ."""

import pytest

from chicle_elastic.cluster.agent.placement_check import PlacementCheck
from chicle_elastic.errors import ContractError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.training.ledger_pages import LedgerPage
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.node_chunks import Phase
from chicle_elastic.values import ChunkInfo, StateVersion

HERE, THERE = NodeId("n0"), NodeId("n1")
MERGED = 7
ROWS = 10


def make_ledger() -> Ledger:
    """After iteration 7 of round 1: chunks 0 and 1 are here, 2 is there, 3 is missing."""
    ledger = Ledger()
    ledger.declare([ChunkInfo(id=ChunkId(number), num_rows=ROWS, size_bytes=100) for number in range(4)])
    for node, chunks in ((HERE, (0, 1)), (THERE, (2,))):
        ledger.add_node(node, None)
        for chunk in chunks:
            ledger.hold(node, ChunkId(chunk), Phase.COPYING)
            ledger.adopt_fresh([ChunkId(chunk)], node, round=1)
    ledger.count_merge(1, MERGED)
    return ledger


def page(rows: dict[int, int], *, before: int = MERGED) -> LedgerPage:
    """What the task read in iteration 8."""
    return LedgerPage(
        before=StateVersion(1, before),
        after=StateVersion(1, MERGED + 1),
        chunks=tuple(ChunkId(chunk) for chunk in rows),
        rows=tuple(rows.values()),
    )


def check(*pages: LedgerPage, is_interrupted: bool = False, loaded: int | None = None) -> None:
    """Check the pages of iteration 8."""
    placement = PlacementCheck(HERE)
    if loaded is not None:
        placement.loads([ChunkId(loaded)])
    placement.check(pages, version=StateVersion(1, MERGED + 1), ledger=make_ledger(), is_interrupted=is_interrupted)


def test_each_owned_row_once_is_as_it_should_be() -> None:
    """Chunks of several versions are on several pages."""
    check(page({1: ROWS, 0: ROWS}))
    check(page({0: ROWS}), page({1: ROWS}, before=0), loaded=1)


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ([page({0: ROWS})], "task of n0 skipped chunk 1 in iteration 8"),
        ([], "task of n0 skipped chunk 0 in iteration 8"),
        ([page({0: ROWS, 1: ROWS, 2: ROWS})], "n0 read 10 rows of chunk 2 in iteration 8, .* n1 owns it"),
        ([page({0: ROWS, 1: ROWS, 3: ROWS})], "n0 read 10 rows of chunk 3 in iteration 8, .* no node owns it"),
        ([page({0: ROWS, 1: ROWS, 9: ROWS})], "n0 read 10 rows of chunk 9 in iteration 8, .* no node owns it"),
        ([page({0: ROWS, 1: 2 * ROWS})], "n0 read 20 rows of chunk 1 in iteration 8, .* it has 10 rows"),
        ([page({0: ROWS, 1: ROWS - 1})], "n0 read 9 rows of chunk 1 in iteration 8, .* it has 10 rows"),
        ([page({0: ROWS, 1: ROWS}), page({0: ROWS})], "n0 read 10 rows of chunk 0 again in iteration 8"),
        (
            [page({0: ROWS}), page({1: ROWS}, before=6)],
            "iteration 6 in chunk 1 in iteration 8, .* of iteration 7",
        ),
        (
            [page({0: ROWS}), page({1: ROWS}, before=0)],
            "iteration 0 in chunk 1 in iteration 8, .* of iteration 7",
        ),
    ],
    ids=["skipped", "nothing", "elsewhere", "missing", "unknown", "twice", "part", "again", "stale", "afresh"],
)
def test_what_differs_is_named_with_task_chunk_and_iteration(pages: list[LedgerPage], message: str) -> None:
    """Whoever reads it knows where to look."""
    with pytest.raises(ContractError, match=message):
        check(*pages)


def test_an_interrupted_iteration_may_leave_rows_out_but_not_add_any() -> None:
    """What was not asked to end early has to be whole."""
    check(page({0: 3}), is_interrupted=True)
    with pytest.raises(ContractError, match="chunk 2"):
        check(page({2: 3}), is_interrupted=True)
    with pytest.raises(ContractError, match="11 rows of chunk 0"):
        check(page({0: ROWS + 1}), is_interrupted=True)


def test_state_is_fresh_only_once_and_only_where_it_was_loaded() -> None:
    """A copy from another node that arrives without its state is caught, also where the chunk was loaded long ago."""
    placement, ledger = PlacementCheck(HERE), make_ledger()

    def check_here(*pages: LedgerPage) -> None:
        placement.check(pages, version=StateVersion(1, MERGED + 1), ledger=ledger, is_interrupted=False)

    placement.loads([ChunkId(0)])
    placement.loads([ChunkId(1)])
    placement.copies([ChunkId(1)])
    with pytest.raises(ContractError, match="iteration 0 in chunk 1"):
        check_here(page({0: ROWS, 1: ROWS}, before=0))
    check_here(page({0: ROWS}, before=0), page({1: ROWS}))
    with pytest.raises(ContractError, match="iteration 0 in chunk 0"):
        check_here(page({0: ROWS}, before=0), page({1: ROWS}))


def test_state_that_came_back_is_as_new_as_the_model_that_was_rebuilt_with_it() -> None:
    """A node missed iterations, and nobody else had its chunk: no error, once all state was gone through."""
    ledger = make_ledger()
    ledger.hold(HERE, ChunkId(3), Phase.STRAY)
    ledger.adopt(ChunkId(3), HERE, version=StateVersion(1, MERGED - 1))
    version = StateVersion(2, MERGED + 1)
    rebuilt = LedgerPage(
        before=StateVersion(2, MERGED),
        after=version,
        chunks=(ChunkId(0), ChunkId(1), ChunkId(3)),
        rows=(ROWS, ROWS, ROWS),
    )
    PlacementCheck(HERE).check([rebuilt], version=version, ledger=ledger, is_interrupted=False)
    kept = page({0: ROWS, 1: ROWS, 3: ROWS})
    with pytest.raises(ContractError, match=r"iteration 7 in chunk 3 in iteration 8, .* of iteration 6"):
        PlacementCheck(HERE).check([kept], version=version, ledger=ledger, is_interrupted=False)
