"""The ledger of an estimator: what became of each chunk."""

import pickle

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.job_ledger import JobLedger
from chicle_elastic.values import ChunkAccount

A, B = NodeId("a"), NodeId("b")


def make() -> JobLedger:
    """Two chunks: one stayed, one moved and was started afresh."""
    return JobLedger(
        [
            ChunkAccount(chunk=ChunkId(1), rows=5, owner=B, iterations={A: 2, B: 3}, replays=1),
            ChunkAccount(chunk=ChunkId(0), rows=7, owner=A, iterations={A: 6}, replays=0),
        ]
    )


def test_it_is_a_sequence_by_chunk() -> None:
    """Slices are ledgers, equal ones compare equal, and a pickle is one."""
    ledger = make()
    assert [account.chunk for account in ledger] == [0, 1]
    assert ledger[1].owner == B
    assert ledger[:1] == JobLedger([ledger[0]])
    assert pickle.loads(pickle.dumps(ledger)) == ledger
    assert len(ledger) == 2


def test_columns_have_a_count_for_every_node() -> None:
    """0 where it never had the chunk."""
    assert make().to_dict() == {
        "chunk": [0, 1],
        "rows": [7, 5],
        "owner": ["a", "b"],
        "replays": [0, 1],
        "iterations.a": [6, 2],
        "iterations.b": [0, 3],
    }


def test_it_says_in_a_line_what_happened() -> None:
    """Moved is what more than one node has processed."""
    assert repr(make()) == "JobLedger(2 chunks, 12 samples, 2 nodes, 1 chunks moved, 1 replayed)"
    assert make().replayed == {1: 1}
