"""Real agents whose rows travel ahead: faults in the middle of it, and what moves at the boundary."""

import json
import signal

import pytest

from chicle_elastic.cluster.net.event_file import SUFFIX
from tests.cluster.faults.chaos_jobs import end, start, wait_for_members
from tests.harness.chaos_nodes import ChaosNode, ChaosNodes
from tests.harness.faults import Fault, read_fired
from tests.timeouts import comes


def is_missed(members: list[ChaosNode], name: str) -> bool:
    """Whether one of these has written down that a node was lost; a newcomer may be given a state that knows it."""
    return any((lost := member.last("lost")) is not None and lost["who"] == name for member in members)


LEAD, FOLLOWER, NEWCOMER = range(3)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("victim", "step", "action"),
    [
        pytest.param(NEWCOMER, "rows.before_fetch", "kill", id="joiner dies"),
        pytest.param(FOLLOWER, "rows.before_told", "kill", id="source dies"),
        pytest.param(LEAD, "rows.before_told", "kill", id="lead dies as the source"),
        pytest.param(NEWCOMER, "rows.before_fetch", "drop", id="rows do not come"),
    ],
)
def test_a_fault_while_rows_travel_ahead_loses_no_sample(
    nodes: ChaosNodes, victim: int, step: str, action: str
) -> None:
    """A newcomer joins two nodes. Rows that do not come ahead come with their chunks, or from another node."""
    members = start(nodes, 2)
    name = "n2" if victim == NEWCOMER else members[victim].name
    nodes.arm([Fault(name="a", node=name, step=step, action=action)])
    members.append(nodes.start())
    assert comes(lambda: bool(read_fired(nodes.fired)), 30), "the fault never struck"
    dead = members.pop(victim) if action == "kill" else None
    if dead is not None:  # the job may end before anybody has missed it
        assert comes(lambda: is_missed(members, dead.name), 30), members[0].output()
    evidence = end(nodes, members)
    if dead is not None:
        assert dead.exit_code == -signal.SIGKILL
        assert dead.name in evidence.lost


@pytest.mark.chaos
@pytest.mark.parametrize("leaver", [pytest.param(LEAD, id="the lead"), pytest.param(FOLLOWER, id="a follower")])
def test_a_source_that_leaves_while_its_rows_are_read_loses_no_sample(nodes: ChaosNodes, leaver: int) -> None:
    """Its grace period does not wait for them: chunks move while the newcomer still reads the slots they were in."""
    members = start(nodes, 2)
    nodes.arm([Fault(name="a", node="n2", step="rows.before_fetch", action="delay", seconds=4.0)])
    members.append(nodes.start())
    assert comes(lambda: bool(read_fired(nodes.fired)), 30), "the fault never struck"
    source = members.pop(leaver)
    source.send(signal.SIGTERM, to_agent=True)
    assert comes(lambda: not source.is_running, 30), source.output()
    evidence = end(nodes, members)
    assert source.exit_code == 0
    assert not evidence.lost


def events_of(nodes: ChaosNodes, node: ChaosNode, kind: str) -> list[dict]:
    """Return what a node has written down."""
    events = map(json.loads, (nodes.log / f"{node.name}{SUFFIX}").read_text().splitlines())
    return [event for event in events if event["kind"] == kind]


def lines_of(nodes: ChaosNodes, node: ChaosNode) -> list[str]:
    """What the scheduler said for a person, by the event file of a node."""
    return [event["text"] for event in events_of(nodes, node, "log")]


def test_rows_travel_ahead_of_a_join_and_of_a_leave(nodes: ChaosNodes) -> None:
    """Both are said in the log, and the node under notice takes part until it goes."""
    members = start(nodes, 2)
    members.append(nodes.start())
    wait_for_members(nodes, members)
    leaver = members.pop()
    leaver.send(signal.SIGTERM, to_agent=True)
    evidence = end(nodes, members)
    assert leaver.exit_code == 0
    assert not evidence.lost
    ahead = [line for line in lines_of(nodes, members[0]) if line.startswith(f"for {leaver.name}: the rows of")]
    assert len(ahead) == 2, "once when it came, once when it went"


def test_tasks_connect_to_a_newcomer_while_its_rows_travel(nodes: ChaosNodes) -> None:
    """The round before goes on meanwhile, and the next one has these connections: no task is told to connect again."""
    members = start(nodes, 2)
    nodes.arm([Fault(name="a", node="n2", step="rows.before_fetch", action="delay", seconds=4.0)])
    members.append(nodes.start())
    wait_for_members(nodes, members)
    end(nodes, members)
    for node in members:
        told = [event for event in events_of(nodes, node, "connect") if len(event["members"]) == 3]
        assert len(told) == 1
        [joined] = [event for event in events_of(nodes, node, "round") if event["round"] == told[0]["round"]]
        between = [
            event
            for event in events_of(nodes, members[0], "iteration")
            if told[0]["time"] < event["time"] < joined["time"] and event["round"] < joined["round"]
        ]
        assert between, "the tasks were told to connect when the round was called"
