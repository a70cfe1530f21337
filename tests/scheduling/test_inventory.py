"""What nodes report wins over the book."""

from dataclasses import replace

from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import effects, events
from chicle_elastic.values import StateVersion
from tests.scheduling.stage import Stage, at_a_move, only


def forming(num_chunks=4, nodes=("a", "b"), num_iterations=2):
    """A stage that has run, and whose next round is being formed."""
    stage = Stage(num_chunks=num_chunks, nodes=nodes)
    stage.run(num_iterations)
    stage.abort()
    return stage


def versions(stage, node):
    """The report of a node that holds what the book says."""
    held = {chunk: stage.ledger.version(chunk) for chunk in stage.owned()[node]}
    return {chunk: (version.round, version.iteration) for chunk, version in held.items()}


def test_a_chunk_that_is_not_reported_is_missing():
    """Its owner lost it without dying: it is loaded again, and replayed."""
    stage = forming()
    held = versions(stage, "a")
    chunk, _ = held.popitem()
    stage.inventory("a", held)
    assert stage.ledger.missing == (chunk,)
    assert "a does not hold 1 chunk that it owned: missing now" in stage.logs
    ordered = stage.answer()
    assert not only(ordered, effects.StartIteration)[0].is_complete
    stage.finish()
    assert stage.ledger.replayed == {chunk: 1}


def test_a_zombie_saves_chunks_that_nobody_has_taken_over():
    """It was declared dead too early and comes back before its chunks were loaded: nothing is replayed."""
    stage = Stage(num_chunks=4, nodes=["a", "b"])
    stage.run(2)
    held = versions(stage, "b")
    loads = stage.lose("b")
    stage.join("b")
    assert stage.abort() == [effects.FormRound(round=2, members=("a", "b"))]
    stage.inventory("b", held)
    ordered = stage.answer(effects.FormRound)
    start = effects.StartIteration(round=2, iteration=2, is_complete=True, must_rebuild=True)
    assert replace(ordered[-1], happened=()) == start
    assert stage.owned()["b"] == tuple(sorted(held))
    # The loads cannot be called back: what arrives is freed.
    late = loads[0]
    assert stage.tell(events.ChunksLoaded(chunks=late.chunks, node=late.node, round=late.round)) == [
        effects.FreeChunks(chunks=(late.chunks[0],), node=late.node, round=2)
    ]
    assert stage.ledger.replayed == {}


def test_the_model_is_rebuilt_with_state_that_comes_back_after_it_was_left_out():
    """The others have merged an iteration without these chunks, so their model lacks them: until the next merge."""
    stage = Stage(num_chunks=4, nodes=["a", "b"])
    stage.run(2)
    held = versions(stage, "b")
    stage.lose("b")
    stage.abort()
    [alone] = only(stage.answer(effects.FormRound), effects.StartIteration)
    assert not alone.is_complete
    assert not alone.must_rebuild
    stage.join("b")
    stage.finish()
    stage.inventory("b", held)
    [start] = only(stage.answer(effects.FormRound), effects.StartIteration)
    assert start.is_complete
    assert start.must_rebuild
    assert stage.owned()["b"] == tuple(sorted(held))
    assert not only(stage.finish(), effects.StartIteration)[0].must_rebuild


def test_of_several_copies_the_newest_one_wins():
    """Ordered by round first, then by iteration; the others are freed."""
    stage = Stage(num_chunks=1, nodes=["a", "b", "c"], start_nodes=3)
    stage.run(3)
    [owner] = [node for node, chunks in stage.owned().items() if chunks]
    other, third = sorted({"a", "b", "c"} - {owner})
    stage.abort()
    stage.inventory(owner, {0: (1, 2)})
    stage.inventory(other, {0: (2, 1)})
    stage.inventory(third, {0: (1, 9)})
    ordered = stage.answer(effects.FormRound)
    assert ordered == [
        effects.CommitChunks(chunks=(0,), source=NodeId(owner), target=NodeId(other), round=2),
        effects.FreeChunks(chunks=(0,), node=NodeId(owner), round=2),
        effects.FreeChunks(chunks=(0,), node=NodeId(third), round=2),
    ]
    assert stage.ledger.owner(0) == other


def test_a_fresh_load_is_newer_than_what_it_replaced():
    """A node reports round 0 for a copy that no task was told of: the book knows better how old that is."""
    stage = Stage(num_chunks=2, nodes=["a", "b"])
    stage.run(2)
    old = versions(stage, "b")
    [chunk] = old
    stage.lose("b")
    stage.abort()
    stage.answer(effects.LoadChunks)
    stage.join("b")
    stage.inventory("a", {**versions(stage, "a"), chunk: (0, 0)})
    [formed] = stage.take(effects.FormRound)
    assert stage.tell(events.RoundFormed(round=2, members=formed.members)) == [
        effects.FormRound(round=3, members=("a", "b"))
    ]
    stage.inventory("a", {**versions(stage, "a"), chunk: (0, 0)})
    stage.inventory("b", old)
    ordered = stage.answer(effects.FormRound)
    assert only(ordered, effects.FreeChunks) == [effects.FreeChunks(chunks=(chunk,), node="b", round=3)]
    assert stage.ledger.owner(chunk) == "a"
    assert stage.ledger.version(chunk) > StateVersion(*old[chunk])


def test_a_copy_that_was_confirmed_and_is_gone_is_made_again():
    """The owner still has the chunk; b loses its copy before the round is formed."""
    stage, copy = at_a_move()
    stage.join("c")
    stage.tell(events.ChunksCopied(chunks=copy.chunks, source="a", target="b", round=copy.round))
    stage.inventory("b", {})
    ordered = stage.answer()
    assert only(ordered, effects.StartIteration)[0].is_complete
    assert stage.ledger.replayed == {}


def test_chunks_of_another_job_are_ignored():
    """With their number in the log."""
    stage = forming()
    stage.inventory("a", {**versions(stage, "a"), 77: (1, 1)})
    assert "a reports 1 chunk that this job does not have; ignored" in stage.logs
