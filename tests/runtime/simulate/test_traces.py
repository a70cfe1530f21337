"""Traces of spot machines: each format as its study writes it, in small, and what is refused with its line."""

import json
from pathlib import Path

import pytest

from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.simulate.scenario import Scenario, SimulatedJob, SimulatedSupply
from chicle_elastic.runtime.simulate.traces import read_trace
from chicle_elastic.runtime.simulate.virtual_cluster import VirtualCluster

PARCAE = [
    [0, "add", {"nodes": ["node-0", "node-1", "node-2"], "duration": 60000, "liveput_truth_strategy": [8, 4]}],
    [60000, "no-op", {"nodes": [], "duration": 60000}],
    [120000, "remove", {"nodes": ["node-1"], "duration": 60000}],
    [180000, "migration", {"nodes": [], "duration": 60000}],
]
TRACES = {
    "counts of our own, with prices": (
        "# seconds nodes price\n0 4 0.3\n\n60,2,0.5 # fewer\n",
        [(0, 4, 0.3), (60, 2, 0.5)],
    ),
    "counts, several of one moment": ("0,0\n21529,0\n21529,4\n21556,4\n21556,12\n", [(0, 0), (21529, 4), (21556, 12)]),
    "changes of Bamboo and Oobleck": (
        "0,add,node1\n0,add,node2\n60000,add,node3\n60000,remove,node1\n120000,remove,node3\n",
        [(0, 2), (120, 1)],
    ),
    "lines of Parcae": ("\n".join(map(json.dumps, PARCAE)), [(0, 3), (120, 2)]),
    "samples of SkyPilot": (
        json.dumps({"metadata": {"gap_seconds": 300}, "data": [0, 0, 3, 3, 16, 0]}),
        [(0, 0), (600, 3), (1200, 16), (1500, 0)],
    ),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a trace that is not there yet."""
    return tmp_path / "spot.txt"


@pytest.mark.parametrize("what", TRACES)
def test_a_trace_is_known_by_its_text(what: str, path: Path) -> None:
    """Steps that change nothing are left out."""
    text, steps = TRACES[what]
    path.write_text(text, encoding="utf-8")
    assert read_trace(path) == [tuple(map(float, step)) for step in steps]


def test_a_trace_of_counts_may_be_in_milliseconds(path: Path) -> None:
    """As that of Parcae: nothing in it says so."""
    path.write_text("0,1\n0,2\n60000,3\n", encoding="utf-8")
    assert read_trace(path, unit="ms") == [(0.0, 2.0), (60.0, 3.0)]


def test_a_job_may_begin_in_the_middle_of_a_trace(path: Path) -> None:
    """With what there was then."""
    path.write_text("0 4\n60 2\n120 8\n", encoding="utf-8")
    assert read_trace(path, from_s=100.0) == [(0.0, 2.0), (20.0, 8.0)]
    with pytest.raises(UsageError, match="the last step is at second 120, and the job is to begin at 130"):
        read_trace(path, from_s=130.0)


BAD = {
    "no number": ("0 4\n60 x\n", ":2: '60 x' is not `seconds nodes [price]`"),
    "no count": ("0 4\n60\n", ":2: a step is"),
    "out of order": ("0 4\n# comment\n60 2\n30 3\n", ":4: it is before second 60"),
    "fewer than none": ("0 -1\n", ":1: seconds, nodes and price must be >= 0"),
    "nothing": ("# nothing\n", ": the trace has no line"),
    "a change out of order": ("60,add,a\n0,add,b\n", ":2: '0,add,b': it is before second 0.06"),
    "a node that is added twice": ("0,add,a\n5,add,a\n", ":2: '5,add,a': a is added, and is there"),
    "a node that is removed twice": ("0,add,a\n5,remove,b\n", ":2: '5,remove,b': b is removed, and is not there"),
    "another change": ("0,add,a\n5,move,a\n", ":2: '5,move,a' is not `milliseconds,add|remove,name`"),
    "a change without time": ("0,add,a\n,add,b\n", ":2: ',add,b' is not"),
    "a gap between lines": (
        "\n".join(json.dumps(PARCAE[place]) for place in (0, 2)),
        ":2: it begins at 120000 ms, and the line before ends at 60000 ms",
    ),
    "a line that is no JSON": (json.dumps(PARCAE[0]) + "\n[60000,", ":2: the line is not [milliseconds"),
    "a line without nodes": ('[0, "add", {"duration": 1}]', ":1: the line is not [milliseconds"),
    "nodes that are no names": ('[0, "add", {"nodes": [1]}]', ":1: the line is not [milliseconds"),
    "a sample that is missing": (
        '{"metadata": {"gap_seconds": 300}, "data": [1, null, 2]}',
        ": data[1] is None, and not a number of nodes",
    ),
    "samples without their gap": ('{"metadata": {}, "data": [1]}', ": the trace has no metadata.gap_seconds > 0"),
    "samples that are none": ('{"metadata": {"gap_seconds": 300}, "data": 3}', "or no list `data`"),
    "half a file": ('{"metadata": {"gap_seconds": 300}, "data": [1', "spot.txt: "),
}


@pytest.mark.parametrize("what", BAD)
def test_a_trace_that_cannot_be_is_refused_with_its_line(what: str, path: Path) -> None:
    """Nothing of it is used."""
    text, message = BAD[what]
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as raised:
        read_trace(path)
    assert str(path) in str(raised.value)
    assert message in str(raised.value)


def test_a_trace_that_is_not_there_is_refused(path: Path) -> None:
    """With its name."""
    with pytest.raises(UsageError, match=r"spot\.txt: the trace cannot be read"):
        read_trace(path)


def test_a_job_follows_a_trace(path: Path) -> None:
    """Nodes come and go with it, and nothing is lost within the grace period."""
    path.write_text("\n".join(map(json.dumps, PARCAE)), encoding="utf-8")
    supply = SimulatedSupply(steps=tuple(read_trace(path)))
    job = SimulatedJob(chunks=64, rows_per_chunk=1000, row_s=1e-3, iterations=10)
    result = VirtualCluster(Scenario(supply=supply, job=job)).run()
    assert [record.num_tasks for record in (result.history[0], result.history[-1])] == [3, 2]
    assert result.chunks_lost == 0
