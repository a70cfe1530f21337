"""A recorded stream is a whole job: it is read back without loss, and folds to the same effects."""

import json
import typing

import pytest

from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.codec import EFFECT_TYPES, EVENT_TYPES, decode_effect, decode_event, encode
from chicle_elastic.scheduling.machine import Scheduler, SchedulerSettings
from chicle_elastic.scheduling.story import Recorder, replay
from chicle_elastic.testing.sim_cluster import SimCluster
from chicle_elastic.values import StateVersion, TaskReport
from tests.scheduling.stage import infos

A, B, ZERO, ONE, TWO = NodeId("a"), NodeId("b"), ChunkId(0), ChunkId(1), ChunkId(2)

EVERY_EVENT = [
    events.ChunksDeclared(chunks=infos(2)),
    events.NodeJoined(node=A, capacity_bytes=None, weight=0.1),
    events.LeaveNoticed(node=A),
    events.NodeLost(node=A),
    events.RoundFormed(round=1, members=(A, B)),
    events.InventoryReported(node=A, chunks={ZERO: StateVersion(2, 3)}, round=4),
    events.ChunkLoaded(chunk=ZERO, node=A, round=1),
    events.LoadFailed(chunk=ZERO, node=A, reason='no "file"\n\u00fc'),
    events.ChunkCopied(chunk=ZERO, source=A, target=B, round=1),
    events.CopyFailed(chunk=ZERO, source=A, target=B, round=1, reason=""),
    events.PrecopiesEnded(node=A, whole=(1, 2), failed=(3,)),
    events.HandoverDue(node=A),
    events.ChunkFreed(chunk=ZERO, node=A, round=2),
    events.ChunksLoaded(chunks=(ZERO, ONE), node=A, round=1),
    events.ChunksCopied(chunks=(ZERO, ONE), source=A, target=B, round=1),
    events.ChunksFreed(chunks=(ZERO, ONE), node=A),
    events.IterationFinished(round=1, iteration=2, reports={A: TaskReport(samples=3, duration_s=1 / 3)}),
    events.IterationAborted(round=1, iteration=2, reason="x"),
    events.PolicyDecided(policy="p", generation=1, moves={(A, B): 2}, reason="x"),
    events.PolicyDisabled(policy="p", reason="raised KeyError: 7"),
    events.StopRequested(reason="x"),
]
EVERY_EFFECT = [
    effects.FormRound(round=1, members=(A,)),
    effects.LoadChunk(chunk=ZERO, node=A, round=1),
    effects.CopyChunk(chunk=ZERO, source=A, target=B, round=1),
    effects.PrecopyChunk(chunk=ZERO, source=A, target=B, round=1, number=1),
    effects.CommitChunk(chunk=ZERO, source=A, target=B, round=1),
    effects.FreeChunk(chunk=ZERO, node=A, round=1),
    effects.AttachChunks(node=A, added=(ZERO,), removed=()),
    effects.StartIteration(round=1, iteration=1, is_complete=False),
    effects.ReleaseNode(node=A),
    effects.PauseJob(reason="x"),
    effects.FinishJob(reason="x"),
    effects.Log(text="x"),
]


def test_the_lists_of_this_test_have_every_kind():
    """A new event or effect is tested too, or this fails."""
    assert {type(event) for event in EVERY_EVENT} == set(typing.get_args(events.Event)) == set(EVENT_TYPES.values())
    assert {type(effect) for effect in EVERY_EFFECT} == set(EFFECT_TYPES.values())


@pytest.mark.parametrize("event", EVERY_EVENT, ids=lambda value: type(value).__name__)
def test_every_event_comes_back_from_json(event):
    """Keys that are no strings, tuples, None and floats included."""
    assert decode_event(json.loads(json.dumps(encode(event)))) == event


@pytest.mark.parametrize("effect", EVERY_EFFECT, ids=lambda value: type(value).__name__)
def test_every_effect_comes_back_from_json(effect):
    """Likewise."""
    assert decode_effect(json.loads(json.dumps(encode(effect)))) == effect


def test_a_field_that_is_left_out_takes_its_default():
    """So that older stories can be read when a field is added."""
    assert decode_event({"type": "NodeJoined", "node": "a"}) == events.NodeJoined(node=A)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"type": "NodeLost"}, "NodeLost has no 'node'"),
        ({"type": "NodeLost", "node": 3}, r"NodeLost.node is 3 and not a str"),
        ({"type": "NodeLost", "node": "a", "x": 1}, r"fields that NodeLost has not: \['x'\]"),
        ({"type": "SchedulerSettings"}, "has no type out of"),
        ({"type": ["NodeLost"]}, "has no type out of"),
        ("NodeLost", "has no type out of"),
        ({"type": "NodeJoined", "node": "a", "weight": "1"}, "weight is '1' and not a float"),
        ({"type": "NodeJoined", "node": "a", "weight": True}, "weight is True and not a float"),
        ({"type": "NodeJoined", "node": "a", "capacity_bytes": 1.5}, "capacity_bytes is 1.5 and not a int"),
        ({"type": "RoundFormed", "round": 1, "members": "ab"}, "members is 'ab' and not a list"),
        ({"type": "RoundFormed", "round": 1, "members": ["a", 7]}, r"members\[1\] is 7 and not a str"),
        ({"type": "InventoryReported", "node": "a", "chunks": [[1]]}, "chunks is not a list of pairs"),
        (
            {"type": "InventoryReported", "node": "a", "chunks": [[1, {"round": 1, "iteration": None}]]},
            r"chunks\[1\].iteration is None and not a int",
        ),
        (
            {"type": "PolicyDecided", "policy": "", "generation": 1, "moves": [[["a"], 1]], "reason": ""},
            "moves has 1 items and not 2",
        ),
    ],
)
def test_what_is_no_event_is_refused_with_the_part_that_is_wrong(data, complaint):
    """Nothing is built from it."""
    with pytest.raises(ProtocolError, match=complaint):
        decode_event(data)


def test_what_has_no_place_in_a_story_is_not_written():
    """An event made of something else fails when it is recorded, not when it is read."""
    with pytest.raises(TypeError, match="no place in a story"):
        encode(events.NodeLost(node={"a"}))


@pytest.fixture
def cluster():
    """A history with joins, losses and policies, recorded."""
    worth = (seed for seed in range(300) if has_everything(SimCluster(seed)))
    return next(cluster for seed in worth if len((cluster := SimCluster(seed, is_recorded=True).run()).story) > 60)


def has_everything(cluster):
    """Whether a history is worth being replayed."""
    climate = cluster.climate
    return climate.has_policies and climate.has_inventories and climate.num_faults > 6 and not climate.is_graceful


def test_a_story_folds_to_the_same_effects(cluster, tmp_path):
    """From lines, and from a file."""
    path = tmp_path / "job.story"
    path.write_text("".join(cluster.story), encoding="utf-8")
    told = list(replay(path, cluster.policies))
    assert told == list(replay(cluster.story, cluster.policies))
    assert len(told) == len(cluster.story) - 1 > 50
    assert {type(event) for event, _ in told} >= {events.NodeLost, events.InventoryReported, events.IterationFinished}


def test_a_changed_effect_is_named_with_its_line(cluster):
    """The first divergence, with what was and what is."""
    number = next(n for n, line in enumerate(cluster.story) if '"StartIteration"' in line)
    cluster.story[number] = cluster.story[number].replace('"is_complete":true', '"is_complete":false')
    with pytest.raises(ProtocolError, match=rf"story:{number + 1}: effect \d+ was StartIteration.*False.*True"):
        list(replay(cluster.story, cluster.policies))


def test_a_missing_event_is_found(cluster):
    """Without a join the rest of the story makes no sense, and the first line that differs is named."""
    number = next(n for n, line in enumerate(cluster.story) if '"NodeJoined"' in line)
    del cluster.story[number]
    with pytest.raises(ProtocolError, match=r"story:\d+: "):
        list(replay(cluster.story, cluster.policies))


@pytest.mark.parametrize(
    ("line", "text", "complaint"),
    [
        (0, "", "story:1: not a line of a story"),
        (0, '{"format":"x","version":1,"settings":{},"policies":[]}', "the format is 'x'"),
        (0, '{"format":"chicle story","version":2,"settings":{},"policies":[]}', "version 2; this release reads"),
        (
            0,
            '{"format":"chicle story","version":1,"settings":{"seed":-1},"policies":["random","Rebalance"]}',
            "seed=-1",
        ),
        (0, '{"format":"chicle story","version":1,"settings":{},"policies":["other"]}', r"policies \['other'\]"),
        (1, '{"now":0.0,"event":{"type":"Nod', "story:2: not a line of a story .*was the file cut off"),
        (1, '{"now":NaN,"event":{},"effects":[]}', "story:2: .*NaN is not JSON"),
        (1, '{"now":"0","event":{"type":"NodeLost","node":"a"},"effects":[]}', "story:2: now is '0'"),
        (1, '{"now":0.0,"event":{"type":"NodeLost","node":"a"},"effects":7}', "story:2: effects are not a list"),
        (1, "[]", "story:2: expected an object with effects, event, now"),
    ],
)
def test_a_damaged_story_is_refused_with_file_and_line(cluster, line, text, complaint):
    """Cut off, of another version, of another program."""
    cluster.story[line] = text
    with pytest.raises(ProtocolError, match=complaint):
        list(replay(cluster.story, cluster.policies))


def test_an_empty_file_is_no_story(tmp_path):
    """The message has its name."""
    path = tmp_path / "empty.story"
    path.touch()
    with pytest.raises(ProtocolError, match=r"empty.story:1: not a line of a story"):
        list(replay(path))


def test_a_recorder_is_a_scheduler():
    """Same effects, and a line for each event."""
    lines = []
    recorder = Recorder(Scheduler(SchedulerSettings(seed=3)), lines.append)
    plain = Scheduler(SchedulerSettings(seed=3))
    for event in (events.ChunksDeclared(chunks=infos(3)), events.NodeJoined(node=A)):
        assert recorder.handle(event, now=1.0) == plain.handle(event, now=1.0)
    assert len(lines) == 3
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines)


@pytest.mark.parametrize(
    "chunks",
    [
        [[1, {"round": 2, "iteration": 3.5}]],
        [[1, {"round": 2, "iteration": True}]],
        [[1, {"round": 2, "iteration": 3, "more": 4}]],
        [["1", {"round": 2, "iteration": 3}]],
        [[[0, "1"], {"round": 2, "iteration": 3}]],
        [[[0, [1]], {"round": 2, "iteration": 3}]],
        [[[0, 1], {"round": 2, "iteration": None}]],
        [[1, [2, 3]]],
        [[1]],
        7,
    ],
)
def test_an_inventory_with_anything_else_in_it_is_refused(chunks):
    """However long mappings of versions are read."""
    data = encode(events.InventoryReported(node=A, chunks={ZERO: StateVersion(2, 3), ONE: StateVersion(4, 5)}))
    assert decode_event(data).chunks == {ZERO: StateVersion(2, 3), ONE: StateVersion(4, 5)}
    with pytest.raises(ProtocolError, match=r"InventoryReported\.chunks"):
        decode_event(data | {"chunks": chunks})


def test_chunks_of_one_version_are_written_together():
    """A node holds hundreds of them. Older stories, which have a pair for each, are read as well."""
    same, other = StateVersion(2, 3), StateVersion(4, 5)
    event = events.InventoryReported(node=A, chunks={ZERO: same, ONE: other, TWO: StateVersion(2, 3)})
    data = encode(event)
    assert data["chunks"] == [[[0, 2], {"round": 2, "iteration": 3}], [1, {"round": 4, "iteration": 5}]]
    assert decode_event(json.loads(json.dumps(data))) == event
    pairs = [[0, {"round": 2, "iteration": 3}], [1, {"round": 4, "iteration": 5}], [2, {"round": 2, "iteration": 3}]]
    assert decode_event(data | {"chunks": pairs}) == event
    assert decode_event(data | {"chunks": [[[], {"round": 2, "iteration": 3}]]}).chunks == {}


def test_a_version_that_says_less_has_the_rest_by_default():
    """Fields may come with later releases."""
    data = encode(events.InventoryReported(node=A, chunks={}))
    assert decode_event(data | {"chunks": [[1, {"round": 2}]]}).chunks == {ONE: StateVersion(2, 0)}
