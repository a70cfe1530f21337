"""What must be true at the end of every history."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from chicle_elastic.cluster.consensus.entries import Entry
from chicle_elastic.cluster.consensus.log import Log
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.scheduler import Scheduler, State
from tests.harness.ledger_check import check_ledger

if TYPE_CHECKING:
    from tests.cluster.consensus.log_agent import Agent
    from tests.cluster.consensus.log_net import Net


class BrokenPromiseError(AssertionError):
    """A guarantee of the log does not hold; the message has the seed."""


def judge_end(net: Net) -> None:
    """Compare the logs of all that are still there. Raises BrokenPromiseError when something is not as promised."""
    living = net.living()
    if not living:
        raise BrokenPromiseError("somebody stays")
    if all(_never_began(agent, net.settings.start_nodes or 1) for agent in living):
        net.happened["never began"] += 1
        return
    finished = [agent for agent in living if agent.is_finished]
    waiting = [
        _describe(agent)
        for agent in living
        if agent.has_announced and not agent.is_finished and not _came_too_late(agent)
    ]
    if not finished or waiting:
        raise BrokenPromiseError(f"everybody comes to the end: {waiting}, {dict(net.happened)}")
    longest = max((agent.recording for agent in finished), key=len)
    for agent in finished:
        if agent.recording != longest[: len(agent.recording)]:
            raise BrokenPromiseError(f"all logs are the same: that of {agent.life} is not")
        _judge_state(net, agent)
    if set(net.faults) <= {"join", "notice"}:
        _judge_leavers(net, longest)
    ends = Counter(
        (entry.event.round, entry.event.iteration)
        for entry in longest
        if isinstance(entry.event, events.IterationFinished)
    )
    if any(count > 1 for count in ends.values()):
        raise BrokenPromiseError(f"an iteration ends once: {ends}")
    # Where nobody is cut off, nobody has to be expelled with something that the others do not know.
    is_whole = set(net.faults) <= {"join", "kill"}
    expelled = [agent for agent in net.agents.values() if agent.is_expelled and is_whole]
    for agent in (*finished, *expelled):
        forgotten = agent.merged - ends.keys()
        if forgotten:
            raise BrokenPromiseError(f"what was merged is not forgotten: {agent.life} merged {forgotten}")
    proposals = Counter((entry.origin, entry.number) for entry in longest if entry.origin)
    if any(count > 1 for count in proposals.values()):
        raise BrokenPromiseError("a proposal has one place")
    check_ledger(finished[0].replica.log.scheduler.ledger)


def _judge_state(net: Net, agent: Agent) -> None:
    """Whoever went on from a state has come to what the whole log comes to, and nobody keeps more than it should."""
    log = agent.replica.log
    if len(log) != len(agent.recording) or len(log.entries) > 2 * net.kept:
        raise BrokenPromiseError(f"a log keeps its end: {agent.life} has {len(log.entries)} of {len(agent.recording)}")
    if log.start:
        whole = Log(Scheduler(net.settings))
        for entry in agent.recording:
            whole.append(entry)
        if whole.state() != log.state():
            raise BrokenPromiseError(f"a state stands for the entries before it: that of {agent.life} does not")


def _judge_leavers(net: Net, entries: list[Entry]) -> None:
    """Where nobody is ever lost, whoever left had a beginning of the log."""
    for agent in net.agents.values():
        mine = agent.recording
        if agent.is_gone and mine[:1] == entries[:1] and mine != entries[: len(mine)]:
            raise BrokenPromiseError(f"who left had the same log: {agent.life} had not")


def _came_too_late(agent: Agent) -> bool:
    """It was about to join when the job ended, or joined afterwards; real agents are told so by the store."""
    if agent.replica.log.scheduler.state is not State.FINISHED:
        return False
    joined = [
        number
        for number, entry in enumerate(agent.recording)
        if entry.origin == agent.life and isinstance(entry.event, events.NodeJoined)
    ]
    ends = [n for n, entry in enumerate(agent.recording) if isinstance(entry.event, events.IterationFinished)]
    return not agent.replica.own.is_live or not joined or joined[-1] > ends[-1]


def _never_began(agent: Agent, start_nodes: int) -> bool:
    log = agent.replica.log
    return log.scheduler.state is State.WAITING and len(log.present) < start_nodes


def _describe(agent: Agent) -> tuple[object, ...]:
    replica = agent.replica
    return agent.life, replica.role.value, replica.term, replica.lead, len(replica.log), replica.log.scheduler.state
