"""The graceful path: start, boundary, join, leave, pause, stop."""

import pytest

from chicle_elastic.errors import ProtocolError, UsageError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings, State
from chicle_elastic.scheduling.text import is_boundary_text
from chicle_elastic.values import MoveChunks
from tests.scheduling.stage import Stage, at_a_move, infos, kinds, only


def test_a_job_can_wait_for_more_nodes_than_it_needs():
    """start_nodes counts at the start only: later the job runs with min_nodes."""
    stage = Stage(min_nodes=1, start_nodes=2)
    assert stage.join("a") == []
    assert stage.join("b") == [effects.FormRound(round=1, members=("a", "b"))]
    stage.run()
    stage.notice("b")
    stage.finish()
    assert only(stage.answer(), effects.StartIteration)


def test_a_joiner_gets_its_share_and_nothing_else_moves():
    """Two chunks from each of two nodes; the rest stays where it was."""
    stage = Stage(num_chunks=12, nodes=["a", "b"])
    stage.run()
    before = stage.owned()
    stage.join("c")
    stage.finish()
    copies = only(stage.answer(), effects.CopyChunks)
    assert [(copy.source, copy.target) for copy in copies] == [("a", "c"), ("a", "c"), ("b", "c"), ("b", "c")]
    after = stage.owned()
    assert set(after["a"]) < set(before["a"])
    assert set(after["b"]) < set(before["b"])
    assert stage.counts() == {"a": 4, "b": 4, "c": 4}


def test_a_joiner_is_filled_once():
    """What a policy moves away from it later is not brought back at the next boundary."""
    stage = Stage(num_chunks=12, nodes=["a", "b"])
    stage.run()
    stage.join("c")
    stage.finish()
    stage.answer()
    moves = {(NodeId("c"), NodeId("b")): 3}
    stage.tell(events.Proposal(policy="p", round=2, actions=MoveChunks.of(moves), reason="c is slow"))
    stage.finish()
    stage.answer()
    assert stage.counts() == {"a": 4, "b": 7, "c": 1}
    assert kinds(stage.finish()) == ["StartIteration"]


def test_a_chunk_that_is_acknowledged_twice_in_one_answer_is_committed_once():
    """No agent says so, but an entry of the log must never end those that fold it."""
    stage, copy = at_a_move(precopy=False)
    ordered = stage.tell(events.ChunksCopied(chunks=copy.chunks * 2, source="a", target="b", round=2))
    assert ordered[0] == effects.CommitChunks(chunks=copy.chunks, source="a", target="b", round=2)
    assert stage.ledger.owner(copy.chunks[0]) == "b"


def test_copy_acknowledge_commit_free_in_this_order():
    """The owner changes at the commit; then the source's copy is freed, for which the iteration does not wait."""
    stage, copy = at_a_move()
    assert stage.ledger.owner(copy.chunks[0]) == "a"
    ordered = stage.tell(events.ChunksCopied(chunks=copy.chunks, source="a", target="b", round=2))
    assert ordered == [
        effects.CommitChunks(chunks=copy.chunks, source="a", target="b", round=2),
        effects.FreeChunks(chunks=copy.chunks, node="a", round=2),
        effects.AttachChunks(node="a", added=(), removed=copy.chunks),
        effects.AttachChunks(node="b", added=copy.chunks, removed=()),
        effects.StartIteration(round=2, iteration=2, is_complete=True, happened=ordered[-1].happened),
    ]
    assert [each.kind for each in ordered[-1].happened] == ["joined", "copied"]
    assert stage.ledger.owner(copy.chunks[0]) == "b"
    assert stage.tell(events.ChunksFreed(chunks=copy.chunks, node="a", round=2)) == []
    assert not stage.ledger.freeing


def test_a_leaver_hands_over_round_robin_and_goes_when_it_is_empty():
    """It is not in the next round, keeps its chunks until they are copied, and is released before the iteration.

    Nothing is freed there: what it holds goes with it.
    """
    stage = Stage(num_chunks=12, nodes=["a", "b", "c"])
    stage.run()
    assert stage.notice("b") == []
    assert stage.finish() == [effects.FormRound(round=2, members=("a", "c"))]
    ordered = stage.answer()
    assert [copy.target for copy in only(ordered, effects.CopyChunks)] == ["a", "a", "c", "c"]
    assert kinds(ordered)[-3:] == ["ReleaseNode", "AttachChunks", "StartIteration"]
    assert not only(ordered, effects.FreeChunks)
    assert stage.counts() == {"a": 6, "c": 6}
    assert not only(ordered, effects.AttachChunks, lambda effect: effect.node == "b")


def test_a_leaver_without_room_elsewhere_is_kept_and_the_job_paused_with_both_figures():
    """Four chunks to hand over and room for two: two go, two stay with their owner until a node joins."""
    stage = Stage(num_chunks=8, nodes=["a", "b"], capacity_bytes=6)
    stage.run()
    stage.notice("b")
    stage.finish()
    ordered = stage.answer()
    [pause] = only(ordered, effects.PauseJob)
    assert "2 chunks of b" in pause.reason
    assert "2 B needed, 0 B free" in pause.reason
    assert not only(ordered, effects.ReleaseNode)
    assert stage.counts() == {"a": 6, "b": 2}
    assert stage.scheduler.state is State.PAUSED
    assert stage.scheduler.pause_reason == pause.reason
    assert stage.join("c", capacity_bytes=6) == [effects.FormRound(round=3, members=("a", "c"))]
    ordered = stage.answer()
    assert only(ordered, effects.ReleaseNode) == [effects.ReleaseNode(node="b")]
    assert only(ordered, effects.StartIteration)[0].is_complete
    assert stage.ledger.replayed == {}


def test_data_that_does_not_fit_is_not_even_begun_to_load():
    """The pause comes first, with the figures; a node with room for the rest ends it."""
    stage = Stage(num_chunks=8, nodes=["a", "b"], capacity_bytes=3)
    [pause] = stage.answer()
    assert "8 chunks to be loaded: 8 B needed, 6 B free on the 2 nodes" in pause.reason
    stage.join("c", capacity_bytes=2)
    ordered = stage.answer()
    assert len(only(ordered, effects.LoadChunks)) == 8
    assert only(ordered, effects.StartIteration)
    assert max(stage.counts().values()) == 3


def test_no_checkpoint_is_ordered_where_state_is_missing_or_nothing_was_merged():
    """One node is lost while all others are under notice: the checkpoint before is the better one."""
    stage = Stage(num_chunks=4, nodes=["a", "b", "c"])
    stage.run()
    for node in ("a", "b"):
        stage.notice(node)
    stage.lose("c")
    ordered = [*stage.abort(), *stage.answer()]
    assert only(ordered, effects.PauseJob)
    assert not only(ordered, effects.SaveCheckpoint)
    fresh = Stage(num_chunks=4, nodes=["a"], min_nodes=1)
    fresh.answer(effects.FormRound, effects.LoadChunks)
    fresh.notice("a")
    assert only(fresh.abort(), effects.PauseJob)
    assert not only(fresh.orders, effects.SaveCheckpoint)


def test_the_same_pause_is_told_once():
    """Events that change nothing do not repeat the reason."""
    stage = Stage(num_chunks=8, nodes=["a"], capacity_bytes=3)
    stage.answer()
    assert stage.notice("nobody") == []
    assert stage.scheduler.state is State.PAUSED


def test_too_few_nodes_pause_the_job_but_the_leaver_is_drained():
    """Its notice will not wait; the state is saved first, and the job goes on when somebody joins."""
    stage = Stage(num_chunks=6, nodes=["a", "b"], min_nodes=2)
    stage.run()
    stage.notice("b")
    ordered = [*stage.finish(), *stage.answer()]
    assert kinds(ordered)[-4:] == ["ReleaseNode", "AttachChunks", "SaveCheckpoint", "PauseJob"]
    [told] = [order for order in only(ordered, effects.AttachChunks) if order.node == "a"]
    assert len(told.added) == 3, "what is saved is what the task has been told"
    assert only(ordered, effects.SaveCheckpoint) == [effects.SaveCheckpoint(round=1, iteration=1, nodes=("a",))]
    assert not only(ordered, effects.FormRound)
    assert "1 node here to stay, 2 needed (min_nodes)" in stage.scheduler.pause_reason
    assert stage.counts() == {"a": 6}
    assert stage.join("c") == [effects.FormRound(round=2, members=("a", "c"))]
    ordered = stage.answer()
    assert only(ordered, effects.StartIteration)
    moved = {order.node: order for order in only(ordered, effects.AttachChunks)}
    assert moved["a"].removed == moved["c"].added, "also of those that it was told at the pause"
    assert stage.counts() == {"a": 3, "c": 3}


def test_when_all_leave_their_chunks_stay_until_somebody_comes():
    """There is nowhere to go to, so nobody is released."""
    stage = Stage(num_chunks=4, nodes=["a", "b"])
    stage.run()
    stage.notice("a")
    stage.notice("b")
    ordered = stage.finish()
    assert kinds(ordered) == ["SaveCheckpoint", "PauseJob"]
    assert ordered[0] == effects.SaveCheckpoint(round=1, iteration=1, nodes=("a", "b"))
    assert stage.tell(saved(1, is_resumed=False)) == [], "those that come would not go on from it"
    ordered = stage.join("c") + stage.answer()
    assert not only(ordered, effects.ReleaseNode), "c has the chunks, and not yet the model"
    ordered = stage.finish() + stage.answer()
    assert {order.node for order in only(ordered, effects.ReleaseNode)} == {"a", "b"}
    assert stage.counts() == {"c": 4}


@pytest.mark.parametrize("precopy", [False, True])
def test_when_all_leave_they_go_as_soon_as_a_checkpoint_has_what_they_hold(precopy):
    """Later nodes go on from it. An older one is not enough, nor is one where a node is about to join."""
    stage = Stage(num_chunks=4, nodes=["a", "b"], precopy=precopy)
    stage.run(2)
    stage.notice("a")
    stage.notice("b")
    assert kinds(stage.finish()) == ["SaveCheckpoint", "PauseJob"]
    assert stage.tell(saved(1)) == []
    assert stage.tell(saved(2)) == [effects.ReleaseNode(node=NodeId(node)) for node in ("a", "b")]
    other = Stage(num_chunks=4, nodes=["a"], precopy=precopy)
    other.run()
    other.notice("a")
    other.finish()
    other.join("c")
    assert not only(other.tell(saved(1)), effects.ReleaseNode)


def test_when_all_leave_that_are_saved_they_go_at_once():
    """The checkpoint of this very iteration was told before the notice: none is ordered."""
    stage = Stage(num_chunks=4, nodes=["a", "b"])
    stage.run(2)
    stage.notice("a")
    stage.notice("b")
    stage.tell(saved(2))
    assert kinds(stage.finish()) == ["PauseJob", "ReleaseNode"]


@pytest.mark.parametrize("precopy", [False, True])
def test_when_all_that_trained_leave_those_that_came_get_the_model(precopy):
    """In a round with both, in which those that leave have no chunks; after its iteration they are released."""
    stage = Stage(num_chunks=4, nodes=["a", "b"], precopy=precopy)
    stage.run()
    stage.notice("a")
    stage.notice("b")
    stage.join("c")
    stage.join("d")
    ordered = stage.finish() + stage.answer()
    [formed] = only(ordered, effects.FormRound)
    assert formed.members == ("c", "d", "a", "b")
    assert stage.counts() == {"a": 0, "b": 0, "c": 2, "d": 2}
    told = {order.node: (len(order.added), len(order.removed)) for order in only(ordered, effects.AttachChunks)}
    assert told == {"a": (0, 2), "b": (0, 2), "c": (2, 0), "d": (2, 0)}
    assert len(only(ordered, effects.StartIteration)) == 1
    assert not only(ordered, effects.ReleaseNode)
    ordered = stage.finish() + stage.answer()
    assert only(ordered, effects.FormRound)[0].members == ("c", "d")
    assert {order.node for order in only(ordered, effects.ReleaseNode)} == {"a", "b"}
    assert len(only(ordered, effects.StartIteration)) == 1


def test_a_chunk_that_went_and_came_back_is_told_as_removed_and_added():
    """At one boundary it may pass through another node: its memory is another one now."""
    stage = Stage(num_chunks=1, nodes=["a"])
    stage.run()
    stage.join("b")
    stage.notice("a")
    stage.finish()
    stage.answer(effects.FormRound)
    [copy] = stage.take(effects.CopyChunks)
    stage.notice("b")
    stage.join("c")
    stage.tell(events.ChunksCopied(chunks=copy.chunks, source="a", target="b", round=2))
    ordered = stage.answer()
    # b is under notice by now: its copy is not taken, and a's chunk goes to c.
    assert only(ordered, effects.CommitChunks) == [effects.CommitChunks(chunks=(0,), source="a", target="c", round=3)]
    assert stage.owned() == {"a": (), "c": (0,)}, "a alone has the model"


def test_a_failed_copy_is_tried_again_and_then_goes_elsewhere():
    """Ownership stays with the source all the time; every step is logged."""
    stage = Stage(num_chunks=4, nodes=["a", "b", "c"], max_copy_attempts=2)
    stage.run()
    leaver = max(stage.counts(), key=stage.counts().get)
    stage.notice(leaver)
    stage.finish()
    stage.answer(effects.FormRound)
    first, *others = stage.take(effects.CopyChunks)
    stage.orders += others

    def fail(copy):
        event = events.CopyFailed(
            chunk=copy.chunks[0], source=copy.source, target=copy.target, round=copy.round, reason="bad CRC"
        )
        [order] = stage.tell(event)
        stage.orders.remove(order)
        assert stage.ledger.owner(copy.chunks[0]) == leaver
        return order

    again = fail(first)
    assert (again.chunks[0], again.target) == (first.chunks[0], first.target)
    elsewhere = fail(again)
    assert elsewhere.chunks[0] == first.chunks[0]
    assert elsewhere.target not in (leaver, first.target)
    assert any("bad CRC" in line and "attempt 2 of 2" in line for line in stage.logs)
    stage.orders.append(elsewhere)
    assert only(stage.answer(), effects.StartIteration)
    assert stage.ledger.owner(first.chunks[0]) == elsewhere.target


def test_a_leaver_whose_chunk_nobody_can_copy_is_kept_with_the_reason():
    """The job is paused; when a node joins, it is tried again."""
    stage = Stage(num_chunks=2, nodes=["a", "b"], max_copy_attempts=1)
    stage.run()
    stage.notice("b")
    stage.finish()
    stage.answer(effects.FormRound)
    [copy] = stage.take(effects.CopyChunks)
    [save, pause] = stage.tell(
        events.CopyFailed(chunk=copy.chunks[0], source="b", target="a", round=2, reason="no route to host")
    )
    assert save == effects.SaveCheckpoint(round=2, iteration=1, nodes=("a", "b"))
    assert "b cannot leave" in pause.reason
    assert "no route to host" in pause.reason
    stage.join("c")
    ordered = stage.answer()
    assert only(ordered, effects.ReleaseNode)
    assert only(ordered, effects.StartIteration)


def test_a_failed_load_is_tried_elsewhere_first_and_pauses_the_job_in_the_end():
    """The reason names chunk, nodes and cause; a join starts afresh."""
    stage = Stage(num_chunks=1, nodes=["a", "b"], max_load_attempts=3)
    stage.answer(effects.FormRound)
    tried = []
    for _ in range(3):
        [load] = stage.take(effects.LoadChunks)
        tried.append(load.node)
        stage.tell(events.LoadFailed(chunk=load.chunks[0], node=load.node, reason="no such file", round=load.round))
    assert set(tried[:2]) == {"a", "b"}
    assert "chunk 0 could not be loaded in 3 attempts by" in stage.scheduler.pause_reason
    assert "no such file" in stage.scheduler.pause_reason
    stage.join("c")
    assert only(stage.answer(), effects.StartIteration)


def test_a_stop_waits_for_the_boundary():
    """The running iteration ends first; then the job is over, and nothing is ordered any more."""
    stage = Stage(nodes=["a"])
    stage.run()
    assert stage.tell(events.StopRequested(reason="gap 9e-4 <= tol")) == []
    assert stage.finish() == [effects.FinishJob(reason="gap 9e-4 <= tol")]
    assert stage.join("b") == []
    assert stage.scheduler.state is State.FINISHED


@pytest.mark.parametrize("state", ["waiting", "forming", "moving", "paused"])
def test_a_stop_at_a_boundary_is_at_once(state):
    """Wherever the job stands."""
    stage = Stage(nodes=["a"], capacity_bytes=2 if state == "paused" else None, start_nodes=1 + (state == "waiting"))
    if state in ("moving", "paused"):
        stage.answer(effects.FormRound)
    assert stage.scheduler.state.value == state
    assert stage.tell(events.StopRequested(reason="enough")) == [effects.FinishJob(reason="enough")]


def test_what_a_boundary_cost_is_logged():
    """Seconds come in by the door, as `now`."""
    scheduler = Scheduler(SchedulerSettings())
    scheduler.handle(events.ChunksDeclared(chunks=infos(1)), now=10.0)
    scheduler.handle(events.NodeJoined(node=NodeId("a")), now=10.0)
    scheduler.handle(events.RoundFormed(round=1, members=(NodeId("a"),)), now=10.25)
    *_, log, _ = scheduler.handle(events.ChunksLoaded(chunks=(ChunkId(0),), node=NodeId("a"), round=1), now=10.5)
    assert log.text == "boundary before iteration 1 took 500.0 ms, 250.0 ms of it to form round 1"
    assert is_boundary_text(log.text)


def test_the_choice_of_chunks_depends_on_the_seed_alone():
    """The same events give the same effects; another seed draws other chunks."""

    def recording(seed):
        stage = Stage(num_chunks=20, nodes=["a", "b"], seed=seed)
        stage.run()
        stage.join("c")
        return [*stage.finish(), *stage.answer()]

    assert recording(1) == recording(1)
    assert recording(1) != recording(2)


@pytest.mark.parametrize(
    "settings",
    [{"seed": -1}, {"min_nodes": 0}, {"min_nodes": 3, "start_nodes": 2}, {"max_copy_attempts": 0}],
)
def test_settings_that_cannot_work_are_refused(settings):
    """The message names the argument and its value."""
    with pytest.raises(UsageError, match=next(iter(settings))):
        SchedulerSettings(**settings)


@pytest.mark.parametrize(
    ("chunks", "merged", "complaint"),
    [
        ((), 0, "0 chunks"),
        (infos(1) + infos(1), 0, "1 different"),
        (infos(1, num_rows=0), 0, "num_rows >= 1"),
        (infos(2), -1, "iteration -1"),
    ],
)
def test_a_data_set_that_cannot_be_is_a_protocol_error(chunks, merged, complaint):
    """And nothing is declared by it."""
    stage = Stage(num_chunks=0)
    with pytest.raises(ProtocolError, match=complaint):
        stage.tell(events.ChunksDeclared(chunks=chunks, merged=merged))
    assert stage.ledger.num_chunks == 0


def test_chunks_are_declared_once():
    """Again and the same is a duplicate; others are a fault of the shell."""
    stage = Stage(num_chunks=3)
    assert stage.tell(events.ChunksDeclared(chunks=infos(3))) == []
    with pytest.raises(ProtocolError, match="declared before"):
        stage.tell(events.ChunksDeclared(chunks=infos(4)))


def test_a_job_goes_on_from_the_iteration_that_was_declared_first():
    """Versions and numbers count on from there, all chunks are loaded before, and another checkpoint is not used."""
    stage = Stage(0, ["a", "b"])
    stage.tell(events.ChunksDeclared(chunks=infos(6), merged=40))
    stage.tell(events.ChunksDeclared(chunks=infos(6), merged=50))
    assert any("checkpoint 50 is not used" in line for line in stage.logs)
    stage.answer(effects.FormRound)
    assert not stage.take(effects.StartIteration), "loads are waited for"
    ordered = stage.run()
    [start] = only(ordered, effects.StartIteration)
    assert (start.iteration, start.is_complete) == (41, True)
    assert {stage.ledger.version(info.id).iteration for info in infos(6)} == {40}
    stage.finish()
    assert {stage.ledger.version(info.id).iteration for info in infos(6)} == {41}
    assert {sum(account.iterations.values()) for account in stage.ledger.accounts()} == {1}


def saved(iteration, *, is_resumed=True):
    """A checkpoint is complete."""
    return events.CheckpointSaved(iteration=iteration, size_bytes=1, duration_s=1.0, is_resumed=is_resumed)
