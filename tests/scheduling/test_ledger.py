"""The book stays consistent, counts what was processed, and says so when it is not."""

import pytest

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.ledger import ChunkEntry, Ledger
from chicle_elastic.scheduling.node_chunks import Phase
from chicle_elastic.values import StateVersion
from tests.harness.ledger_check import InvariantError, check_ledger
from tests.scheduling.stage import infos

A, B = NodeId("a"), NodeId("b")
ZERO, ONE = ChunkId(0), ChunkId(1)


@pytest.fixture
def ledger():
    """Two chunks of 10 rows and 7 bytes on two nodes; a owns chunk 0, chunk 1 is missing."""
    ledger = Ledger()
    ledger.declare(infos(2, size_bytes=7))
    ledger.add_node(A, 20)
    ledger.add_node(B, None)
    ledger.hold(A, ZERO, Phase.LOADED)
    ledger.adopt_fresh([ZERO], A, round=1)
    check_ledger(ledger)
    return ledger


def test_accounts_say_who_processed_a_chunk_how_often(ledger):
    """Across moves and losses; an iteration that a lost node still took part in is its own."""
    ledger.count_merge(1, 1)
    ledger.count_merge(1, 2)
    ledger.hold(B, ZERO, Phase.COPYING)
    ledger.commit([ZERO], B, round=2)
    ledger.count_merge(2, 3)
    ledger.lose(B, [ZERO], in_flight=True)
    ledger.count_merge(2, 4)
    account = ledger.accounts()[ZERO]
    assert account.iterations == {A: 2, B: 2}
    assert (account.chunk, account.rows, account.owner, account.replays) == (ZERO, 10, None, 0)
    ledger.hold(A, ZERO, Phase.LOADED)
    ledger.adopt_fresh([ZERO], A, round=3)
    ledger.count_merge(3, 5)
    account = ledger.accounts()[ZERO]
    assert account.iterations == {A: 3, B: 2}
    assert (account.owner, account.replays) == (A, 1)
    assert [sum(account.iterations.values()) for account in ledger.accounts() if account.chunk == ZERO] == [5]


def test_versions_order_by_committed_round_and_then_by_merge(ledger):
    """A merge raises the version of what is owned; a commit raises its round; a loss freezes it."""
    assert ledger.version(ZERO) == StateVersion(1, 0)
    ledger.count_merge(1, 1)
    assert ledger.version(ZERO) == StateVersion(1, 1)
    ledger.hold(B, ZERO, Phase.COPYING)
    ledger.commit([ZERO], B, round=2)
    assert ledger.version(ZERO) == StateVersion(2, 1)
    ledger.lose(B, [ZERO], in_flight=False)
    ledger.count_merge(2, 2)
    assert ledger.version(ZERO) == StateVersion(2, 1)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("one owner", lambda book: book.node_chunks[B].copies.update({ZERO: Phase.OWNED})),
        ("bytes add up", lambda book: setattr(book.node_chunks[A], "used_bytes", 6)),
        ("rows add up", lambda book: setattr(book.node_chunks[A], "num_rows", 0)),
        ("within capacity", lambda book: setattr(book.node_chunks[A], "capacity_bytes", 6)),
        ("owned list", lambda book: book.node_chunks[A].owned.clear()),
        ("owner holds", lambda book: book._entries.update({ZERO: ChunkEntry()})),
        ("missing or owned", lambda book: book._missing.clear()),
        ("frees add up", lambda book: book.freeing.update({(A, ZERO): 1})),
    ],
)
def test_a_damaged_book_is_found_by_name(ledger, name, damage):
    """The check can fail, for each invariant that it tests."""
    damage(ledger)
    if name == "one owner":  # the sums are right, only the ownership is not
        ledger.node_chunks[B].used_bytes += 7
        ledger.node_chunks[B].num_rows += 10
        ledger.node_chunks[B].owned[ZERO] = None
    with pytest.raises(InvariantError, match=name):
        check_ledger(ledger)
