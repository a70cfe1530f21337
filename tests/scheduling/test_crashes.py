"""Nodes die without notice: what is logged, refused or waited for; `test_histories.py` has them die at any moment."""

import pytest

from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.node_chunks import Phase
from tests.scheduling.stage import Stage, at_a_move, infos, kinds, only


def copied(copy):
    """The acknowledgement of a copy."""
    return events.ChunksCopied(chunks=(copy.chunk,), source=copy.source, target=copy.target, round=copy.round)


def test_a_loss_before_the_first_merge_is_loaded_before_anything_runs():
    """Nothing was computed yet, so nothing is gained by going on without a part of the data."""
    stage = Stage(num_chunks=4, nodes=["a", "b"])
    stage.answer()
    stage.lose("b")
    stage.abort()
    ordered = stage.answer(effects.FormRound)
    assert not only(ordered, effects.StartIteration)
    ordered = stage.answer()
    assert only(ordered, effects.StartIteration)[0].is_complete
    assert stage.ledger.replayed == {}


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
    assert only(ordered, effects.StartIteration) == [effects.StartIteration(round=2, iteration=3, is_complete=True)]


def test_a_round_that_leaves_a_member_out_has_lost_it():
    """The rendezvous knew before the scheduler did; the loss that is told later is a duplicate."""
    stage = Stage(num_chunks=4, nodes=["a", "b"])
    stage.run(2)
    stage.abort()
    stage.take(effects.FormRound)
    stage.tell(events.RoundFormed(round=2, members=(NodeId("a"),)))
    assert len(stage.ledger.missing) == 2
    assert stage.lose("b") == []
    assert "loss of b is ignored: it is not here" in stage.logs


def test_a_round_with_a_stranger_is_asked_again():
    """A node that was lost meanwhile, or never joined."""
    stage = Stage(num_chunks=4, nodes=["a"])
    stage.take(effects.FormRound)
    ordered = stage.tell(events.RoundFormed(round=1, members=(NodeId("a"), NodeId("ghost"))))
    assert ordered == [effects.FormRound(round=2, members=("a",))]


def test_a_leaver_does_not_keep_what_it_was_loading():
    """Another node loads the chunk; the leaver goes when its own has arrived."""
    stage = Stage(num_chunks=2, nodes=["a", "b"])
    stage.answer(effects.FormRound)
    loads = stage.take(effects.LoadChunks)
    [late] = [load for load in loads if load.node == "b"]
    stage.orders += [load for load in loads if load.node == "a"]
    stage.notice("b")
    ordered = stage.answer()
    assert only(ordered, effects.StartIteration)[0].is_complete
    assert not only(ordered, effects.ReleaseNode)
    loaded = events.ChunksLoaded(chunks=late.chunks, node=NodeId("b"), round=late.round)
    assert stage.tell(loaded) == [effects.ReleaseNode(node="b")]


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


def test_late_answers_of_an_earlier_life_are_told_apart_by_their_round():
    """b is lost and comes back while its old answers are still on the way."""
    stage, copy = at_a_move()
    stage.lose("b")
    stage.join("b")
    stage.answer(effects.FormRound)
    [again] = stage.take(effects.CopyChunk)
    late = events.ChunksCopied(chunks=(again.chunk,), source=again.source, target=again.target, round=copy.round)
    assert stage.tell(late) == []
    assert stage.ledger.owner(again.chunk) == "a"
    assert only(stage.tell(copied(again)), effects.CommitChunk)


def test_an_orphan_of_an_earlier_life_is_freed():
    """Where nodes report no inventory, a late answer is the only sign that memory is taken."""
    stage, copy = at_a_move()
    stage.lose("b")
    stage.join("b")
    stage.take(effects.FormRound)
    ordered = stage.tell(copied(copy))
    assert ordered == [effects.FreeChunk(chunk=copy.chunk, node="b", round=3)]
    assert stage.ledger.used_bytes(NodeId("b")) == 1


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
