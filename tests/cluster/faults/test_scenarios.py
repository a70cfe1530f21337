"""Real agents that fail at one step of the protocol: the job goes on, and no sample is lost or counted twice."""

import signal
from typing import Any

import pytest

from tests.cluster.faults.chaos_jobs import end, start
from tests.harness.chaos_nodes import ChaosNodes
from tests.harness.faults import Fault, read_fired
from tests.timeouts import comes


def wait_for_fired(nodes: ChaosNodes, count: int = 1) -> list[dict[str, Any]]:
    """Wait until so many faults have struck."""
    assert comes(lambda: len(read_fired(nodes.fired)) >= count, 30), "the fault never struck"
    return read_fired(nodes.fired)


LEAD, FOLLOWER, NEWCOMER = range(3)
COPIED, ROUND = {"event": "ChunksCopied"}, {"event": "RoundFormed"}
pytestmark = pytest.mark.chaos  # too long for `make test`


@pytest.mark.parametrize(
    ("victim", "step", "where"),
    [
        pytest.param(NEWCOMER, "copy.committed", {}, id="target between copy and commit"),
        pytest.param(FOLLOWER, "log.appended", COPIED, id="source between copy and commit"),
        pytest.param(LEAD, "log.appended", COPIED, id="lead between copy and commit"),
        pytest.param(NEWCOMER, "commit.done", {}, id="target between commit and free"),
        pytest.param(FOLLOWER, "commit.done", {}, id="source between commit and free"),
        pytest.param(LEAD, "commit.done", {}, id="lead between commit and free"),
        pytest.param(LEAD, "free.done", {}, id="lead when it has freed a chunk"),
        pytest.param(LEAD, "round.before_rendezvous", {}, id="lead in a boundary"),
        pytest.param(LEAD, "log.appended", ROUND, id="lead when the round is formed"),
    ],
)
def test_a_node_that_dies_while_another_joins_takes_no_sample_with_it(
    nodes: ChaosNodes, victim: int, step: str, where: dict[str, Any]
) -> None:
    """A newcomer joins two nodes; chunks move, and one of the three is killed in the middle."""
    members = start(nodes, 2)
    name = "n2" if victim == NEWCOMER else members[victim].name
    nodes.arm([Fault(name="a", node=name, step=step, action="kill", where=where)])
    members.append(nodes.start())
    wait_for_fired(nodes)
    dead = members.pop(victim)
    evidence = end(nodes, members)
    assert dead.exit_code == -signal.SIGKILL
    assert dead.name in evidence.lost


@pytest.mark.parametrize("victim", [LEAD, FOLLOWER], ids=["lead", "follower"])
def test_a_node_that_dies_in_an_iteration_is_left_behind(nodes: ChaosNodes, victim: int) -> None:
    """It is killed when its task has just ended one, and the others are in the next."""
    members = start(nodes, 3)
    dead = members.pop(victim)
    nodes.arm([Fault(name="a", node=dead.name, step="iteration.ended", action="kill", occurrence=5)])
    wait_for_fired(nodes)
    evidence = end(nodes, members)
    assert dead.name in evidence.lost


def test_two_nodes_die_at_once(nodes: ChaosNodes) -> None:
    """The lead and a follower, at the same entry of the log; the last one and a newcomer go on."""
    lead, follower, last = start(nodes, 3)
    where = {"event": "NodeJoined"}
    dead = {lead.name, follower.name}
    nodes.arm([Fault(name=name, node=name, step="log.appended", action="kill", where=where) for name in dead])
    newcomer = nodes.start()
    assert {entry["node"] for entry in wait_for_fired(nodes, 2)} == dead
    evidence = end(nodes, [last, newcomer])
    assert dead <= evidence.lost.keys()


@pytest.mark.parametrize("action", ["cut", "drop", "delay"])
def test_a_pull_that_fails_is_made_good(nodes: ChaosNodes, action: str) -> None:
    """The joiner's links are cut, or its first pulls are lost or late: it is a member in the end."""
    members = start(nodes, 2)
    nodes.arm([Fault(name="a", node="n2", step="copy.before_fetch", action=action)])
    newcomer = nodes.start()
    wait_for_fired(nodes)
    end(nodes, [*members, newcomer])


def test_a_lead_that_stands_still_in_a_boundary_is_left_behind_and_joins_again(nodes: ChaosNodes) -> None:
    """It is stopped for longer than the others wait; the state that it comes back with is stale, and loses."""
    members = start(nodes, 2)
    where = {"event": "NodeJoined"}
    lead = members[LEAD].name
    nodes.arm([Fault(name="a", node=lead, step="log.appended", action="stop", where=where, seconds=4.0)])
    newcomer = nodes.start()
    wait_for_fired(nodes)
    assert comes(lambda: members[FOLLOWER].last("lost") is not None, 20)
    evidence = end(nodes, [*members, newcomer])
    assert lead in evidence.lost


def test_a_lead_that_is_cut_off_while_it_calls_a_round_does_not_lead_the_others_astray(nodes: ChaosNodes) -> None:
    """It calls a round that nobody else has heard of; the others, who have lost it, call one of the same number."""
    members = start(nodes, 2)
    nodes.arm([Fault(name="a", node=members[LEAD].name, step="round.before_inventory", action="cut")])
    newcomer = nodes.start()
    wait_for_fired(nodes)
    end(nodes, [*members, newcomer])


def test_a_task_that_dies_while_its_node_is_given_chunks_comes_back(nodes: ChaosNodes) -> None:
    """Orders to load reach a node whose task is dead and whose loss is not in the log yet."""
    members = start(nodes, 3)
    victim, dead = members[FOLLOWER], members[-1]
    where = {"event": "NodeLost"}
    nodes.arm([Fault(name="a", node=victim.name, step="log.appended", action="kill_task", where=where)])
    dead.kill()
    wait_for_fired(nodes)
    end(nodes, members[:-1])


def test_a_node_whose_memory_takes_long_joins_when_it_has_it(nodes: ChaosNodes) -> None:
    """Its task has been hot for long by then, and there is nobody else whose word it could join upon."""
    nodes.arm([Fault(name="slow memory", node="n0", step="memory.before_taken", action="delay", seconds=4.0)])
    members = start(nodes, 1)
    assert [fired["step"] for fired in read_fired(nodes.fired)] == ["memory.before_taken"]
    end(nodes, members)
