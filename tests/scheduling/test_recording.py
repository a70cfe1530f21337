"""A recorded stream is a whole job: it is read back without loss, and folds to the same effects."""

import json
import math
import typing

import numpy as np
import pytest

from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import codec, effects, events
from chicle_elastic.scheduling.effects import Effect
from chicle_elastic.scheduling.events import Event
from chicle_elastic.scheduling.recording import Recorder
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from chicle_elastic.values import (
    AddressedMessage,
    Happening,
    MoveChunks,
    RedrawOwnership,
    ReleaseNode,
    Remember,
    RequestNodes,
    ResourceOffer,
    SendMessage,
    SetParameter,
    StateVersion,
    TaskReport,
    TrainingState,
)
from tests.harness.sim_cluster import SimCluster
from tests.harness.text_sink import TextSink, replay
from tests.scheduling.stage import infos

A, B, ZERO, ONE, TWO = NodeId("a"), NodeId("b"), ChunkId(0), ChunkId(1), ChunkId(2)

EVERY_EVENT = [
    events.ChunksDeclared(chunks=infos(2)),
    events.NodeJoined(node=A, capacity_bytes=None),
    events.LeaveNoticed(node=A),
    events.NodeLost(node=A),
    events.RoundFormed(round=1, members=(A, B)),
    events.InventoryReported(node=A, chunks={ZERO: StateVersion(2, 3)}, round=4),
    events.LoadFailed(chunk=ZERO, node=A, reason='no "file"\n\u00fc'),
    events.CopyFailed(chunk=ZERO, source=A, target=B, round=1, reason=""),
    events.PrecopiesEnded(node=A, whole=(1, 2), failed=(3,)),
    events.HandoverDue(node=A),
    events.ChunksLoaded(chunks=(ZERO, ONE), node=A, round=1),
    events.ChunksCopied(chunks=(ZERO, ONE), source=A, target=B, round=1),
    events.ChunksFreed(chunks=(ZERO, ONE), node=A),
    events.IterationFinished(round=1, iteration=2, reports={A: TaskReport(samples=3, duration_s=1 / 3)}),
    events.IterationFinished(
        round=1, iteration=2, reports={}, training=(TrainingState(figures={"gap": 0.1}, parameters={"rate": 1 / 3}),)
    ),
    events.IterationAborted(round=1, iteration=2, reason="x"),
    events.Proposal(policy="p", round=1, actions=(MoveChunks(A, B, 2), SetParameter("rate", 1 / 3)), reason="x"),
    events.Proposal(
        policy="p", round=1, actions=(RedrawOwnership(0.5), RequestNodes(4), ReleaseNode(A)), reason="x", place=1
    ),
    events.PolicyDisabled(policy="p", reason="raised KeyError: 7"),
    events.ResourcesOffered(offer=ResourceOffer(available=2, price=0.5), number=1, text="x"),
    events.Proposal(
        policy="p",
        round=1,
        actions=(SendMessage("*", {"a": [1, None, "x"]}), Remember(1 / 3)),
        reason="x",
        iteration=7,
        replaced=2,
        is_patient=True,
    ),
    events.CheckpointSaved(iteration=7, size_bytes=8, duration_s=1 / 3),
    events.StopRequested(reason="x"),
]
EVERY_EFFECT = [
    effects.FormRound(round=1, members=(A,)),
    effects.LoadChunks(chunks=(ZERO,), node=A, round=1),
    effects.CopyChunks(chunks=(ZERO,), source=A, target=B, round=1),
    effects.PrecopyChunks(chunks=(ZERO,), source=A, target=B, round=1, numbers=(1,)),
    effects.CommitChunks(chunks=(ZERO,), source=A, target=B, round=1),
    effects.FreeChunks(chunks=(ZERO,), node=A, round=1),
    effects.AttachChunks(node=A, added=(ZERO,), removed=()),
    effects.StartIteration(round=1, iteration=1, is_complete=False, parameters={"rate": 1 / 3}, travelling=2),
    effects.StartIteration(
        round=1,
        iteration=1,
        is_complete=True,
        messages=(AddressedMessage(sender="policy:p", to="a", payload={"x": [1.5]}),),
        memories={"p": {"x": None}},
        happened=(Happening(kind="copied", iteration=1, node="a", source="b", size_bytes=7, duration_s=1 / 3),),
    ),
    effects.NoticeNode(node=A),
    effects.RequestNodes(total=4, reason="x"),
    effects.ReleaseNode(node=A),
    effects.SaveCheckpoint(round=1, iteration=2, nodes=(A, B)),
    effects.PauseJob(reason="x"),
    effects.FinishJob(reason="x"),
    effects.Log(text="x"),
]


def report(duration_s):
    """Of a task, as JSON."""
    return {"samples": 1, "duration_s": duration_s}


def decode_event(data):
    """The event in JSON values, which is the same from their text."""
    event = codec.from_values(data, Event)
    assert codec.decode(json.dumps(data), Event) == event
    return event


def test_the_lists_of_this_test_have_every_kind():
    """A new event or effect is tested too, or this fails."""
    assert {type(event) for event in EVERY_EVENT} == set(typing.get_args(Event))
    assert {type(effect) for effect in EVERY_EFFECT} == set(typing.get_args(Effect))


@pytest.mark.parametrize(
    ("value", "kind"),
    [*((event, Event) for event in EVERY_EVENT), *((effect, Effect) for effect in EVERY_EFFECT)],
    ids=lambda value: type(value).__name__,
)
def test_every_event_and_effect_comes_back_from_json(value, kind):
    """Keys that are no strings, tuples, None and floats included."""
    assert codec.decode(codec.encode(value, kind), kind) == value
    assert codec.from_values(json.loads(codec.encode(value, kind)), kind) == value


def test_a_field_that_is_left_out_takes_its_default():
    """So that older recordings can be read when a field is added; of a version as well."""
    assert decode_event({"type": "NodeJoined", "node": "a"}) == events.NodeJoined(node=A)
    chunks = [[1, {"round": 2}]]
    reported = decode_event({"type": "InventoryReported", "node": "a", "chunks": chunks})
    assert reported.chunks == {ONE: StateVersion(2, 0)}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"type": "NodeLost"}, "missing required field `node` - at `NodeLost`"),
        ({"type": "NodeLost", "node": 3}, r"Expected `str`, got `int` - at `NodeLost\.node`"),
        ({"type": "NodeLost", "node": "a", "x": 1}, "unknown field `x` - at `NodeLost`"),
        ({"type": "SchedulerSettings"}, "has the type 'SchedulerSettings', which is none of ChunksDeclared, "),
        ({"type": ["NodeLost"]}, r"has the type \['NodeLost'\], which is none of"),
        ("NodeLost", "has the type None, which is none of"),
        (
            {"type": "IterationFinished", "round": 1, "iteration": 1, "reports": {"a": report("1")}},
            r"Expected `float`, got `str` - at `IterationFinished.reports\[...\].duration_s`",
        ),
        (
            {"type": "IterationFinished", "round": 1, "iteration": 1, "reports": {"a": report(True)}},
            r"Expected `float`, got `bool` - at `IterationFinished.reports\[...\].duration_s`",
        ),
        ({"type": "NodeJoined", "node": "a", "capacity_bytes": 1.5}, "got `float` - at `NodeJoined.capacity_bytes`"),
        ({"type": "RoundFormed", "round": 1, "members": "ab"}, "`array`, got `str` - at `RoundFormed.members`"),
        ({"type": "RoundFormed", "round": 1, "members": ["a", 7]}, r"got `int` - at `RoundFormed.members\[1\]`"),
        (
            {"type": "InventoryReported", "node": "a", "chunks": [[1]]},
            r"of length 2, got 1 - at `InventoryReported.chunks\[0\]`",
        ),
        (
            {"type": "InventoryReported", "node": "a", "chunks": [[1, {"round": 1, "iteration": None}]]},
            r"Expected `int`, got `null` - at `InventoryReported.chunks\[0\]\[1\].iteration`",
        ),
        (
            {"type": "Proposal", "policy": "", "round": 1, "actions": [{"type": "MoveChunks"}], "reason": ""},
            r"missing required field `source` - at `Proposal.actions\[0\]`",
        ),
        (
            {"type": "IterationFinished", "round": 1, "iteration": 1, "reports": {"a": {"samples": 1}}},
            r"missing required field `duration_s` - at `IterationFinished.reports\[...\]`",
        ),
    ],
)
def test_what_is_no_event_is_refused_with_the_part_that_is_wrong(data, complaint):
    """Nothing is built from it."""
    with pytest.raises(ProtocolError, match=complaint):
        decode_event(data)


def test_what_has_no_place_in_a_recording_is_not_written():
    """An event made of something else fails when it is recorded, not when it is read."""
    with pytest.raises(TypeError, match="no place in a message"):
        codec.encode(events.NodeLost(node=object()), Event)
    with pytest.raises(TypeError, match="no place among ChunksDeclared"):
        codec.encode(effects.Log(text="x"), Event)
    with pytest.raises(ValueError, match=r"Expected `str`, got `array` - at `\$.node`"):
        codec.encode(events.NodeLost(node={"a"}), Event, is_checked=True)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_neither_written_nor_read(number):
    """JSON has none; msgspec alone would write null."""
    event = events.IterationFinished(round=1, iteration=1, reports={A: TaskReport(samples=1, duration_s=number)})
    with pytest.raises(ValueError, match=r"duration_s.*numbers have to be finite"):
        codec.encode(event, Event)
    reports = {A: TaskReport(samples=1, duration_s=0.5)}
    text = codec.encode(events.IterationFinished(round=1, iteration=1, reports=reports), Event)
    for other in (b"NaN", b"Infinity", b"1e999", b"null"):
        with pytest.raises(ProtocolError):
            codec.decode(text.replace(b"0.5", other), Event)


@pytest.mark.parametrize(
    "text", [b'{"type":"NodeLost","node":"\xff"}', b"\xff", b"[" * 100_000, b"", b'{"type":"NodeLost"']
)
def test_bytes_that_are_no_json_are_refused(text):
    """Also a string in it that is not UTF-8, and more brackets than Python can count."""
    with pytest.raises(ProtocolError, match="is no JSON"):
        codec.decode(text, Event)
    with pytest.raises(ProtocolError):
        codec.decode(text, events.NodeLost)


def test_numbers_of_numpy_are_numbers():
    """A shell may count with them."""
    reports = {A: TaskReport(samples=np.int64(7), duration_s=np.float64(0.5))}
    event = events.IterationFinished(round=1, iteration=1, reports=reports)
    assert codec.decode(codec.encode(event, Event), Event).reports == {A: TaskReport(samples=7, duration_s=0.5)}


@pytest.fixture
def cluster():
    """A history with joins, losses and policies, recorded."""
    worth = (seed for seed in range(300) if has_everything(SimCluster(seed)))
    return next(cluster for seed in worth if len((cluster := SimCluster(seed, is_recorded=True).run()).recording) > 60)


def has_everything(cluster):
    """Whether a history is worth being replayed."""
    fault_profile = cluster.fault_profile
    return (
        fault_profile.has_policies
        and fault_profile.has_inventories
        and fault_profile.num_faults > 6
        and not fault_profile.is_graceful
    )


def test_a_recording_folds_to_the_same_effects(cluster, tmp_path):
    """From lines, and from a file."""
    path = tmp_path / "job.recording"
    path.write_text("".join(cluster.recording), encoding="utf-8")
    told = list(replay(path, cluster.policies))
    assert told == list(replay(cluster.recording, cluster.policies))
    assert len(told) == len(cluster.recording) - 1 > 50
    assert {type(event) for event, _ in told} >= {events.NodeLost, events.InventoryReported, events.IterationFinished}


def test_a_changed_effect_is_named_with_its_line(cluster):
    """The first divergence, with what was and what is."""
    number = next(n for n, line in enumerate(cluster.recording) if '"StartIteration"' in line)
    cluster.recording[number] = cluster.recording[number].replace('"is_complete":true', '"is_complete":false')
    with pytest.raises(
        ProtocolError,
        match=rf"recording:{number + 1}: entry {number}, \w+ at .*: effect \d+ was StartIteration.*False.*True",
    ):
        list(replay(cluster.recording, cluster.policies))


def test_a_missing_event_is_found(cluster):
    """Without a join the rest of the recording makes no sense, and the first line that differs is named."""
    number = next(n for n, line in enumerate(cluster.recording) if '"NodeJoined"' in line)
    del cluster.recording[number]
    with pytest.raises(ProtocolError, match=r"recording:\d+: "):
        list(replay(cluster.recording, cluster.policies))


def header(format="chicle recording", version=8, settings=None, policies=()):
    """The first line of a recording."""
    return json.dumps({"format": format, "version": version, "settings": settings or {}, "policies": policies})


def entry(**changes):
    """A line of a recording, whose event is a loss."""
    return json.dumps({"now": 0.0, "event": {"type": "NodeLost", "node": "a"}, "effects": []} | changes)


@pytest.mark.parametrize(
    ("line", "text", "complaint"),
    [
        (0, "", "recording:1: not a line of a recording"),
        (0, header(format="x"), "found 'x' version 8, and this release reads 'chicle recording' version 8"),
        (0, header(format="chicle story", version=1), "found 'chicle story' version 1, and this"),
        (0, header(version=9), "version 9, and this release reads"),
        (0, header(settings={"seed": -1}, policies=["random", "Rebalance"]), "seed=-1"),
        (0, header(policies=["other"]), r"policies \('other',\)"),
        (1, entry()[:29], "recording:2: not a line of a recording: .*was the file cut off"),
        (1, entry(now=math.nan), "recording:2: not a line of a recording: .* is no JSON"),
        (1, entry(now="0"), "recording:2: .*Expected `float`, got `str` - at `Line.now`"),
        (1, entry(effects=7), "recording:2: .*Expected `array`, got `int` - at `Line.effects`"),
        (1, "[]", "recording:2: .*Expected `object`, got `array`"),
    ],
)
def test_a_damaged_recording_is_refused_with_file_and_line(cluster, line, text, complaint):
    """Cut off, of another version, of another program."""
    cluster.recording[line] = text
    with pytest.raises(ProtocolError, match=complaint):
        list(replay(cluster.recording, cluster.policies))


def test_an_empty_file_is_no_recording(tmp_path):
    """The message has its name."""
    path = tmp_path / "empty.recording"
    path.touch()
    with pytest.raises(ProtocolError, match=r"empty.recording:1: not a line of a recording"):
        list(replay(path))


def test_a_recorder_is_a_scheduler():
    """Same effects, and a line for each event."""
    lines = []
    recorder = Recorder(Scheduler(SchedulerSettings(seed=3)), TextSink(lines.append))
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
    reported = events.InventoryReported(node=A, chunks={ZERO: StateVersion(2, 3), ONE: StateVersion(4, 5)})
    data = codec.to_values(reported, Event)
    assert decode_event(data).chunks == {ZERO: StateVersion(2, 3), ONE: StateVersion(4, 5)}
    with pytest.raises(ProtocolError, match=r"InventoryReported\.chunks"):
        decode_event(data | {"chunks": chunks})


def test_chunks_of_one_version_are_written_together():
    """A node holds hundreds of them. Older recordings, which have a pair for each, are read as well."""
    same, other = StateVersion(2, 3), StateVersion(4, 5)
    event = events.InventoryReported(node=A, chunks={ZERO: same, ONE: other, TWO: StateVersion(2, 3)})
    data = codec.to_values(event, Event)
    assert data["chunks"] == [[[0, 2], {"round": 2, "iteration": 3}], [1, {"round": 4, "iteration": 5}]]
    assert codec.decode(json.dumps(data), Event) == event
    pairs = [[0, {"round": 2, "iteration": 3}], [1, {"round": 4, "iteration": 5}], [2, {"round": 2, "iteration": 3}]]
    assert decode_event(data | {"chunks": pairs}) == event
    assert decode_event(data | {"chunks": [[[], {"round": 2, "iteration": 3}]]}).chunks == {}
