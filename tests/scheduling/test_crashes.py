"""Nodes die without notice: what is logged, refused or waited for; `test_histories.py` has them die at any moment."""

from dataclasses import replace

import pytest

from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.node_chunks import Phase
from tests.scheduling.stage import Stage, infos, kinds, only


def test_when_everything_is_lost_everything_is_loaded_before_the_job_goes_on():
    """A partial iteration needs something to compute on, and one chunk is not enough to call that."""
    stage = Stage(num_chunks=4, nodes=["a", "b"])
    stage.run(3)
    stage.join("c")
    stage.lose("a")
    stage.lose("b")
    stage.abort()
    stage.answer(effects.FormRound)
    first, *others = stage.take(effects.LoadChunks)
    assert len(others) == 3
    assert stage.tell(events.ChunksLoaded(chunks=first.chunks, node=first.node, round=first.round)) == []
    stage.orders += others
    ordered = stage.answer()
    [start] = only(ordered, effects.StartIteration)
    assert replace(start, happened=()) == effects.StartIteration(round=2, iteration=3, is_complete=True)


def test_a_round_with_a_stranger_is_asked_again():
    """A node that was lost meanwhile, or never joined."""
    stage = Stage(num_chunks=4, nodes=["a"])
    stage.take(effects.FormRound)
    ordered = stage.tell(events.RoundFormed(round=1, members=(NodeId("a"), NodeId("ghost"))))
    assert ordered == [effects.FormRound(round=2, members=("a",))]


def test_lost_chunks_without_room_pause_the_job():
    """The survivors cannot hold all data; the pause comes at the boundary, with the figures."""
    stage = Stage(num_chunks=8, nodes=["a", "b"], capacity_bytes=5)
    stage.run(2)
    assert stage.lose("b") == []
    stage.abort()
    [pause] = stage.answer()
    assert "4 B needed, 1 B free on the 1 node that stay" in pause.reason
    stage.join("c", capacity_bytes=5)
    ordered = stage.answer()
    assert not only(ordered, effects.StartIteration)[0].is_complete
    assert len(only(ordered, effects.LoadChunks)) == 4


SENSELESS = [
    (events.LeaveNoticed(node=NodeId("z")), "it is not here"),
    (events.NodeLost(node=NodeId("z")), "it is not here"),
    (events.NodeJoined(node=NodeId("a")), "here already"),
    (events.NodeJoined(node=NodeId("z"), capacity_bytes=-1), "capacity must be >= 0"),
    (events.RoundFormed(round=0, members=(NodeId("a"),)), "round 0 is ignored"),
    (events.RoundFormed(round=1, members=(NodeId("a"),)), "round 1 is ignored"),
    (events.InventoryReported(node=NodeId("z"), chunks={}), "it is not here"),
    (events.InventoryReported(node=NodeId("a"), chunks={}, round=0), "inventory of a for round 0 is ignored"),
    (events.ChunksLoaded(chunks=(ChunkId(0),), node=NodeId("a"), round=1), "the ledger knows what the node holds"),
    (events.ChunksLoaded(chunks=(ChunkId(0),), node=NodeId("z"), round=1), "the node is not here"),
    (events.LoadFailed(chunk=ChunkId(0), node=NodeId("a"), reason="late", round=1), "did not have to"),
    (
        events.ChunksCopied(chunks=(ChunkId(0),), source=NodeId("z"), target=NodeId("a"), round=0),
        "the ledger knows what the node holds",
    ),
    (
        events.CopyFailed(chunk=ChunkId(0), source=NodeId("a"), target=NodeId("b"), round=1, reason="late"),
        "did not have to be",
    ),
    (events.ChunksFreed(chunks=(ChunkId(0),), node=NodeId("a")), "did not have to"),
    (events.IterationFinished(round=1, iteration=1, reports={}), "late IterationFinished of iteration 1"),
    (events.IterationAborted(round=1, iteration=1, reason="late"), "late IterationAborted of iteration 1"),
]


@pytest.mark.parametrize(("event", "reason"), SENSELESS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("state", ["running", "forming"])
def test_what_makes_no_sense_is_ignored_with_a_reason(event, reason, state):
    """The book stays as it is, and the job goes on."""
    stage = Stage(num_chunks=2, nodes=["a"])
    stage.run(2)
    if state == "forming":
        stage.abort()
        if isinstance(event, events.RoundFormed) and event.round == 1:
            reason = "round 1 is ignored: the current one is 2"
    before = stage.owned()
    assert stage.tell(event) == []
    assert reason in stage.logs[-1]
    assert stage.owned() == before
    assert stage.scheduler.state.value == state


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (events.IterationFinished(round=1, iteration=3, reports={}), "never started; the last one was 2 in round 1"),
        (events.IterationAborted(round=2, iteration=1, reason="?"), "never started"),
        (events.RoundFormed(round=2, members=(NodeId("a"),)), "only 1 were asked for"),
        (events.ChunksLoaded(chunks=(ChunkId(99),), node=NodeId("a")), "there is no such chunk"),
        (infos(1)[0], "is not an event"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_correct_shell_can_never_say_is_a_protocol_error(event, complaint):
    """And it changes nothing: the job could go on."""
    stage = Stage(num_chunks=2, nodes=["a"])
    stage.run(2)
    with pytest.raises(ProtocolError, match=complaint):
        stage.tell(event)
    assert kinds(stage.finish()) == ["StartIteration"]


def test_an_event_of_several_chunks_with_an_unknown_one_changes_none_of_them():
    """The load of the known chunk is still in flight: its answer is taken when it comes alone."""
    stage = Stage(num_chunks=2, nodes=["a"])
    stage.answer(effects.FormRound)
    first, last = stage.take(effects.LoadChunks)
    with pytest.raises(ProtocolError, match="ChunksLoaded of chunk 99 on a: there is no such chunk"):
        stage.tell(events.ChunksLoaded(chunks=(*first.chunks, ChunkId(99)), node=first.node, round=first.round))
    assert stage.ledger.phase(first.node, *first.chunks) is Phase.LOADING
    loaded = stage.tell(events.ChunksLoaded(chunks=(*first.chunks, *last.chunks), node=first.node, round=first.round))
    assert kinds(loaded) == ["AttachChunks", "StartIteration"]
