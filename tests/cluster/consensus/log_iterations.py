"""Iterations on the virtual network: a death leaves an all-reduce ended for some tasks and broken for others.

Tasks go on by themselves where they may, so what an agent hears of its task comes late, but in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chicle_elastic.cluster.consensus.election import Role
from chicle_elastic.cluster.consensus.entries import Ended
from chicle_elastic.runtime.control.messages import Iterate
from chicle_elastic.scheduling import effects, events
from chicle_elastic.values import TaskReport
from tests.cluster.consensus.log_judge import BrokenPromiseError

if TYPE_CHECKING:
    from tests.cluster.consensus.log_agent import Agent
    from tests.cluster.consensus.log_net import Net

CALM_LAPS = 3

Key = tuple[int, int, int]
"""First term of the log (a job that begins again is another one), round, iteration."""


@dataclass(slots=True)
class Lap:
    """One all-reduce: who has entered with which vote and may go on after it, and who knows how it went."""

    members: tuple[str, ...]
    votes: dict[str, int] = field(default_factory=dict)
    outcome: Ended | None = None
    is_broken: bool = False
    told: set[str] = field(default_factory=set)
    free: set[str] = field(default_factory=set)


class Laps:
    """All iterations of a history."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._laps: dict[Key, Lap] = {}
        self._broken_rounds: set[tuple[int, int]] = set()
        self._calm_laps = 0

    def start(self, agent: Agent, effect: effects.StartIteration) -> None:
        """The agent's task is told to iterate."""
        log = agent.replica.log
        key = (log.first_term, effect.round, effect.iteration)
        if agent.node not in log.members or log.in_flight != key[1:]:
            return
        if key not in self._laps:
            lives = tuple(log.lives[node] for node in log.members if node in log.lives)
            self._laps[key] = Lap(members=lives, is_broken=len(lives) < len(log.members))
        may_go_on = log.is_steady and self._net.rng.random() < 0.9
        order = Iterate(round=key[1], iteration=key[2], is_complete=True, num_tasks=1, may_go_on=may_go_on)
        self._say(agent, agent.pace.start(order))

    def tell(self, agent: Agent, act: Callable[..., None], *args: Any) -> None:
        """The agent hears something of its task, after all that was said before; also when the task is dead by then."""
        agent.unheard.append((act, args))
        self._net.after(self._net.delay_s(), self._hear, agent)

    def _hear(self, agent: Agent) -> None:
        if not self._net.wait_for(agent, self._hear, agent) and agent.is_alive and not agent.is_gone:
            act, args = agent.unheard.popleft()  # the oldest, whichever of them has come
            act(agent, *args)

    def _say(self, agent: Agent, order: Iterate | None) -> None:
        """The agent tells its task to iterate."""
        if order is not None:
            key = (agent.replica.log.first_term, order.round, order.iteration)
            self._net.after(self._net.delay_s(), self._ordered, agent, key, agent.task_life, order.may_go_on)

    def _ordered(self, agent: Agent, key: Key, task_life: int, may_go_on: bool) -> None:
        if self._net.wait_for(agent, self._ordered, agent, key, task_life, may_go_on) or not agent.is_alive:
            return
        if not agent.is_task_alive or task_life != agent.task_life or key[1] <= agent.last_broken_round:
            self._net.do(agent, agent.replica.iteration_broke, *key[1:], "the task is not here")
        else:
            self._enter(agent, key, task_life, may_go_on)

    def leave(self, agent: Agent) -> None:
        """The agent's task closes its sockets: what it is in breaks for those that have not got the sum."""
        net = self._net
        for key, lap in self._laps.items():
            if agent.life not in lap.members or agent.life in lap.told:
                continue
            self._broken_rounds.add(key[:2])
            if lap.is_broken:
                if agent.life in lap.votes:
                    net.after(net.delay_s(), self._tell_broken, agent, key)
                continue
            lap.is_broken = True
            for life in lap.members:
                gets_the_sum = lap.outcome is not None and net.rng.random() < 0.5 and life != agent.life
                if life in lap.votes and life not in lap.told and not gets_the_sum:
                    net.after(net.delay_s(), self._tell_broken, net.agents[life], key)

    def forget(self, agent: Agent) -> None:
        """The task is dead: it will tell nothing."""
        for lap in self._laps.values():
            lap.told.add(agent.life)

    def _enter(self, agent: Agent, key: Key, task_life: int, may_go_on: bool) -> None:
        if self._net.wait_for(agent, self._enter, agent, key, task_life, may_go_on) or not agent.is_alive:
            return
        lap = self._laps[key]
        if not agent.is_task_alive or task_life != agent.task_life:
            return
        if agent.life in lap.votes:
            raise BrokenPromiseError(f"a task begins an iteration once, and {agent.life} begins {key} again")
        if may_go_on:
            lap.free.add(agent.life)  # of this lap: the order for the next one may come before it has ended
        if lap.is_broken or key[:2] in self._broken_rounds:
            self._tell_broken(agent, key)
        else:
            lap.votes[agent.life] = int(agent.wants_vote)
            if len(lap.votes) == len(lap.members):
                self._all_entered(key)

    def _all_entered(self, key: Key) -> None:
        net, lap = self._net, self._laps[key]
        if lap.is_broken:
            return
        members = {net.agents[life].node for life in lap.members}
        if any(pair <= members for pair in net.blocked):  # their sum hangs for as long as that
            net.happened["hung"] += 1
            net.after(0.05, self._all_entered, key)
            return
        nodes = [net.agents[life].node for life in lap.members]
        reports = {node: TaskReport(samples=10, duration_s=0.01 * (1 + net.rng.random())) for node in nodes}
        lap.outcome = Ended(round=key[1], iteration=key[2], reports=reports)
        for life in lap.members:
            net.after(net.delay_s(), self._leave_with_sum, net.agents[life], key)

    def _leave_with_sum(self, agent: Agent, key: Key) -> None:
        lap = self._laps[key]
        if self._net.wait_for(agent, self._leave_with_sum, agent, key):
            return
        if agent.life in lap.told or not agent.is_alive or not agent.is_task_alive or lap.outcome is None:
            return
        lap.told.add(agent.life)
        votes = sum(lap.votes.values())
        if votes:
            agent.wants_vote = False
        agent.merged.add(key[1:])
        goes_on = not votes and agent.life in lap.free and self._net.rng.random() < 0.9
        self.tell(agent, self._hear_of_end, lap.outcome, votes, goes_on)
        if goes_on:
            self._net.happened["went on"] += 1
            following = (key[0], key[1], key[2] + 1)
            self._laps.setdefault(following, Lap(members=lap.members))
            self._net.after(self._net.delay_s(), self._enter, agent, following, agent.task_life, True)

    def _hear_of_end(self, agent: Agent, ended: Ended, votes: int, goes_on: bool) -> None:
        log = agent.replica.log
        if log.in_flight is not None and log.in_flight != (ended.round, ended.iteration):
            self._net.happened["log ahead of task"] += 1
        if not goes_on:
            agent.pace.waits(ended.round, ended.iteration)
        self._net.do(agent, agent.replica.iteration_ended, ended, votes=votes, goes_on=goes_on)
        self._say(agent, agent.pace.overdue(ended.iteration, log.in_flight))
        self._stop_in_calm(agent)

    def _tell_broken(self, agent: Agent, key: Key) -> None:
        lap = self._laps[key]
        if self._net.wait_for(agent, self._tell_broken, agent, key):
            return
        if agent.life in lap.told or not agent.is_alive or not agent.is_task_alive:
            return
        lap.told.add(agent.life)
        merged = None
        if lap.outcome is not None and self._net.rng.random() < 0.3:
            merged = lap.outcome
            agent.merged.add(key[1:])
        self._net.happened["broke after the merge" if merged else "broke"] += 1
        self.tell(agent, self._hear_of_break, key, merged)

    def _hear_of_break(self, agent: Agent, key: Key, merged: Ended | None) -> None:
        agent.pace.waits(*key[1:])
        in_flight = agent.replica.log.in_flight
        if merged is not None:
            self._net.do(agent, agent.replica.iteration_broke, *key[1:], "connection reset", merged=merged)
        elif in_flight is not None and in_flight[0] == key[1]:
            self._net.do(agent, agent.replica.iteration_broke, *in_flight, "connection reset")

    def _stop_in_calm(self, agent: Agent) -> None:
        """After the weather and some more laps, the job is asked to stop."""
        net = self._net
        if net.now_s < 3.0 + 0.5 * net.num_faults or agent.replica.role is not Role.LEADING or net.is_stopped:
            return
        if net.blocked or net.without_store:
            return
        self._calm_laps = (self._calm_laps + 1) % 50
        if self._calm_laps == CALM_LAPS:
            net.do(agent, agent.replica.propose, events.StopRequested(reason="seen enough"))
