"""Agents on a virtual network: real replicas and real schedulers, with random delays, deaths and cut links.

A history is a function of its seed. Links are FIFO; what a dead agent had said may arrive up to any point. A store
grants terms. Tasks meet in all-reduces, which a death leaves ended for some and broken for others. When the weather has
calmed down, the job must come to its end and every agent that is still there must have the same log.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from chicle_elastic.cluster.consensus.election import Role
from chicle_elastic.cluster.consensus.entries import Entry
from chicle_elastic.cluster.consensus.log import LogState
from chicle_elastic.cluster.consensus.messages import (
    Action,
    BreakGroup,
    CheckTerm,
    Claim,
    Expelled,
    Folded,
    Install,
    Installed,
    Message,
    Paused,
    Send,
    Term,
    Vote,
)
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import codec, effects, events
from chicle_elastic.scheduling.scheduler import SchedulerSettings, State
from chicle_elastic.values import ChunkInfo, StateVersion
from tests.cluster.consensus.log_agent import Agent
from tests.cluster.consensus.log_iterations import Laps
from tests.cluster.consensus.log_judge import BrokenPromiseError, judge_end
from tests.cluster.consensus.log_link import Link
from tests.scheduling.stage import parts

MAX_ACTS = 60_000
CHECK_S = 0.25
GRACE_S = 6.0  # longer than any cut lasts: a node under notice leaves by itself where it can
MAX_IDLE = 20
"""Checks after which a job in which nothing else happens is over, or was never begun."""
KEPT = (8, 32, 10_000)
"""Entries that logs keep, so that most newcomers are sent a state in some histories and the entries in others."""


class Net:
    """The agents, the store and the weather.

    Args:
        seed: Of everything.
        faults: Kinds of faults that may strike.
    """

    def __init__(self, seed: int, faults: tuple[str, ...]) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.faults = faults
        self.kept = random.Random(f"kept {seed}").choice(KEPT)
        self.stories: dict[tuple[int, int, int], list[Entry]] = {}
        self.num_first = self.rng.randint(1, 4)
        self.settings = SchedulerSettings(
            seed=seed, start_nodes=self.rng.randint(1, self.num_first), precopy=self.rng.random() < 0.6
        )
        self.chunks = tuple(ChunkInfo(id=ChunkId(n), num_rows=10, size_bytes=1) for n in range(self.rng.randint(1, 6)))
        self.now_s = 0.0
        self.agents: dict[str, Agent] = {}
        self.links: dict[tuple[str, str], Link] = {}
        self.laps = Laps(self)
        self.store: Term | None = None
        self.happened: Counter[str] = Counter()
        self.num_faults = self.rng.randint(0, 9) if faults else 0
        self.num_lives = 0
        self.is_stopped = False
        self.blocked: set[frozenset[NodeId]] = set()
        self.without_store: set[NodeId] = set()
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._num_entries = 0
        self._num_idle = 0

    # Time.

    def after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Do something later."""
        self.at(self.now_s + delay_s, act, *args)

    def at(self, time_s: float, act: Callable[..., None], *args: Any) -> None:
        """Do something at this time."""
        self._num_entries += 1
        heapq.heappush(self._queue, (time_s, self._num_entries, act, args))

    def delay_s(self) -> float:
        """A random delay; some are long."""
        return self.rng.random() * self.rng.choice((0.001, 0.01, 0.01, 0.1))

    def run(self) -> "Net":
        """Live through the history. Raises BrokenPromiseError when a guarantee does not hold."""
        try:
            for number in range(self.num_first):
                self.after(self.delay_s(), self.join, f"n{number}")
            at_s = 0.2
            for _ in range(self.num_faults):
                at_s += self.rng.choice((0.0, 0.001, 0.02, 0.3)) * self.rng.random() * 2
                self.after(at_s, self.strike)
            self.after(CHECK_S, self._check)
            for act_number in range(MAX_ACTS + 1):
                if not self._queue:
                    break
                if act_number == MAX_ACTS:
                    raise BrokenPromiseError("the job comes to an end, and it has not")
                self.now_s, _, act, args = heapq.heappop(self._queue)
                act(*args)
            judge_end(self)
        except Exception as error:
            raise BrokenPromiseError(
                f"{type(error).__name__}: {error} [seed {self.seed}, t={self.now_s:.4f}]"
            ) from error
        return self

    def living(self) -> list[Agent]:
        """Agents that run and have neither left nor finished."""
        return [agent for agent in self.agents.values() if agent.is_alive and not agent.is_gone]

    # The weather.

    def strike(self) -> None:
        """Let one fault happen to somebody."""
        kind = self.rng.choice(self.faults)
        living = self.living()
        if not living:
            return
        victim = self.rng.choice(living)
        if self.rng.random() < 0.4:
            victim = next((agent for agent in living if agent.replica.role is not Role.FOLLOWING), victim)
        staying = [agent for agent in living if not agent.is_noticed and agent is not victim]
        if kind == "join":
            free = [f"n{n}" for n in range(8) if all(agent.node != f"n{n}" for agent in living)]
            if free:
                self.join(self.rng.choice(free))
        elif kind == "cut" and len(living) > 1:
            other = self.rng.choice([agent for agent in living if agent is not victim])
            self._hang_up(victim.life, other.life)
            if (victim.life, other.life) in self.links:
                self.after(self.rng.choice((0.0, 0.1, 1.0)) * self.rng.random(), self._mend, victim, other)
        elif kind == "partition" and len(living) > 1:
            self._part(living)
        elif kind == "pair" and len(living) > 1:
            other = self.rng.choice([agent for agent in living if agent is not victim])
            self._block({frozenset((victim.node, other.node))}, set())
        elif kind == "store":
            self._block(set(), {agent.node for agent in living})
        elif kind == "task":
            self._kill_task(victim)
        elif not staying or (victim.is_noticed and kind == "notice"):
            return
        elif kind == "notice":
            victim.is_noticed = True
            if victim.node not in victim.replica.log.present:
                self.kill(victim)  # it has not joined yet, and ends at once
                victim.is_gone = True
            else:
                self.do(victim, victim.replica.propose, events.LeaveNoticed(node=victim.node))
                self.after(GRACE_S, self._leave_at_last, victim)
        elif kind == "kill":
            self.kill(victim)
        elif kind == "silence":
            victim.paused_until = self.now_s + self.rng.choice((0.3, 3.0))
            self.laps.leave(victim)
            if victim.paused_until > self.now_s + 1:
                for other in living:
                    self.after(0.5 + 0.1 * self.rng.random(), self._hang_up, victim.life, other.life)
        self.happened[kind] += 1
        if victim.replica.role is not Role.FOLLOWING:
            self.happened[f"{kind} of {victim.replica.role.value}"] += 1

    def _leave_at_last(self, agent: Agent) -> None:
        """The grace period is over: the node leaves in any case."""
        if agent.is_alive and not agent.is_gone and not agent.is_finished:
            self.kill(agent)
            agent.is_gone = True

    def _part(self, living: list[Agent]) -> None:
        """Two parts of the network do not reach each other; the store is on one side, on both, or on neither."""
        names = [agent.node for agent in living]
        self.rng.shuffle(names)
        cut = self.rng.randint(1, len(names) - 1)
        parts = names[:cut], names[cut:]
        pairs = {frozenset((one, other)) for one in parts[0] for other in parts[1]}
        self._block(pairs, set(self.rng.choice(((), parts[0], parts[1], names))))

    def _block(self, pairs: set[frozenset[NodeId]], without_store: set[NodeId]) -> None:
        """Cut links between nodes, and nodes from the store, for a while."""
        self.blocked |= pairs
        self.without_store |= without_store
        for one, other in list(self.links):
            if frozenset((self.agents[one].node, self.agents[other].node)) in pairs:
                self._close(one, other)
        self.after(self.rng.choice((0.3, 3.0)) * (0.5 + self.rng.random()), self._heal, pairs, without_store)

    def _heal(self, pairs: set[frozenset[NodeId]], without_store: set[NodeId]) -> None:
        self.blocked -= pairs
        self.without_store -= without_store

    def _check(self) -> None:
        """What agents do again and again: look at reports, make missing links, write their term into the store."""
        self._num_idle = 0 if self._queue else self._num_idle + 1
        if self._num_idle > MAX_IDLE:
            return
        for agent in self.living():
            if not agent.is_alive or agent.paused_until > self.now_s or agent.is_expelled:
                continue
            self.do(agent, agent.replica.check_links)
            replica = agent.replica
            if self.store is not None and replica.role is Role.LEADING and agent.node not in self.without_store:
                if self.store.term < replica.term:
                    self._keep(agent, replica.term, (agent.life, *replica.peers.values()))
                self.do(agent, replica.stored, self.store)
            for life in replica.log.voters.values():
                if not self.agents[life].is_alive or self.agents[life].is_gone:
                    self._refused(agent, self.agents[life])
            if replica.role is not Role.OUT and agent.has_announced:
                for node, life in dict(replica.log.lives).items():
                    other = self.agents[life]
                    key = agent.life, life
                    if node != agent.node and key in self.links and self.links[key].is_over:
                        self._mend(agent, other)
        self.after(CHECK_S, self._check)

    def _keep(self, agent: Agent, term: int, members: tuple[str, ...]) -> None:
        """The store has a new term of an agent."""
        self.store = Term(term=term, lead=agent.life, members=members, electorates=agent.replica.electorates)

    def _hang_up(self, one: str, other: str) -> None:
        self._close(one, other)
        self._close(other, one)

    def join(self, name: str) -> None:
        """A new life of a node begins."""
        self.num_lives += 1
        agent = Agent(self, name, self.num_lives)
        self.agents[agent.life] = agent
        self.after(self.delay_s(), self._arrive, agent)

    def kill(self, agent: Agent) -> None:
        """An agent dies with its task; what it said last may be lost."""
        agent.is_alive = False
        for other in list(self.agents.values()):
            self._close(agent.life, other.life, may_lose=True)
            self._close(other.life, agent.life)
            self.after(self.delay_s(), self._refused, other, agent)
        self.laps.leave(agent)

    def _refused(self, agent: Agent, dead: Agent) -> None:
        """An agent dials a port of an incarnation that has ended, and its host says so."""
        if not agent.is_alive or agent.is_gone:
            return
        if frozenset((agent.node, dead.node)) in self.blocked or agent.paused_until > self.now_s:
            self.after(CHECK_S, self._refused, agent, dead)
            return
        for action in agent.replica.is_dead(dead.life):
            self.perform(agent, [action])

    def _kill_task(self, agent: Agent) -> None:
        if not agent.has_announced or not agent.is_task_alive:
            return
        agent.is_task_alive = False
        agent.task_life += 1
        agent.last_broken_round = agent.replica.log.scheduler.round
        self.laps.leave(agent)
        self.laps.forget(agent)
        self.laps.tell(agent, self._hear_of_death)

    def _hear_of_death(self, agent: Agent) -> None:
        agent.pace.forget()
        agent.last_broken_round = agent.replica.log.scheduler.round
        in_flight = agent.replica.log.in_flight
        if in_flight is not None:
            self.do(agent, agent.replica.iteration_broke, *in_flight, "the task died")
        self.do(agent, agent.replica.propose, events.NodeLost(node=agent.node))
        self.after(0.1 * self.rng.random(), self._respawned, agent)

    def _respawned(self, agent: Agent) -> None:
        if agent.is_alive and not agent.is_gone and not agent.is_noticed:
            agent.is_task_alive = True
            self.do(agent, agent.replica.propose, events.NodeJoined(node=agent.node))

    # Arriving.

    def _arrive(self, agent: Agent) -> None:
        """Find the lead in the store, or become it."""
        if not agent.is_alive or self.is_stopped:
            agent.is_gone = True
            return
        if agent.node in self.without_store:
            self.after(0.05, self._arrive, agent)
            return
        if self.store is None:
            self._keep(agent, 1, (agent.life,))
            self.do(agent, agent.replica.claimed, 1)
            self._announce(agent)
            return
        lead = self.agents.get(self.store.lead)
        if lead is None or not lead.is_alive or lead.is_gone or lead.paused_until > self.now_s:
            if not any(other.has_announced for other in self.living()):
                term = self.store.term + 1  # a job without anybody: the store is free for a new beginning
                self._keep(agent, term, (agent.life,))
                self.do(agent, agent.replica.claimed, term)
                self._announce(agent)
                return
            self.after(0.02, self._arrive, agent)
            return
        self._connect(agent, lead)
        self.after(0.01, self._meet_others, agent)

    def _meet_others(self, agent: Agent) -> None:
        if not agent.is_alive or agent.is_gone:
            return
        if agent.replica.role is Role.OUT:
            return
        if agent.replica.term == 0:
            agent.num_waits += 1
            if agent.num_waits > 50:  # whoever led has handed over: look again
                self._rejoin(agent)
                return
            self.after(0.01, self._meet_others, agent)
            return
        for other in self.living():
            if other is not agent and other.has_announced:
                self._connect(agent, other)
        self._announce(agent)

    def _announce(self, agent: Agent) -> None:
        agent.has_announced = True
        if not agent.replica.log.scheduler.ledger.num_chunks:
            self.do(agent, agent.replica.propose, events.ChunksDeclared(chunks=self.chunks))
        self.do(agent, agent.replica.propose, events.NodeJoined(node=agent.node))

    def _rejoin(self, agent: Agent) -> None:
        """A life that is out ends, and the node begins another."""
        self.kill(agent)
        agent.is_gone = True
        if not agent.is_noticed:
            self.join(agent.node)

    def _connect(self, one: Agent, other: Agent) -> None:
        if frozenset((one.node, other.node)) in self.blocked:
            self.after(0.05, self._connect, one, other)
            return
        if (one.life, other.life) in self.links or any(not end.is_alive or end.is_gone for end in (one, other)):
            return
        if any(
            self.agents[a].node == mine.node and b == yours.life and not link.is_over
            for (a, b), link in self.links.items()
            for mine, yours in ((one, other), (other, one))
        ):
            self.after(0.05, self._connect, one, other)
            return
        for a, b in ((one, other), (other, one)):
            self.links[a.life, b.life] = Link()
            self._deliver_later(a.life, b.life, b.replica.connected, a.node, a.life)

    def _mend(self, one: Agent, other: Agent) -> None:
        """A link that was cut is made again between the same lives, once both ends have seen its end."""
        if any(not end.is_alive or end.is_gone or end.is_expelled or end.is_finished for end in (one, other)):
            return
        keys = (one.life, other.life), (other.life, one.life)
        if frozenset((one.node, other.node)) in self.blocked or any(key not in self.links for key in keys):
            return
        if all(self.links[key].is_open for key in keys):
            return  # made again already
        if not all(self.links[key].is_over for key in keys):
            self.after(0.02, self._mend, one, other)
            return
        for key in keys:
            del self.links[key]
        self.happened["mended"] += 1
        self._connect(one, other)

    # Links.

    def _deliver_later(self, sender: str, receiver: str, tell: Callable[..., Any], *args: Any) -> None:
        link = self.links[sender, receiver]
        if link.is_open:
            link.last_s = max(link.last_s, self.now_s + self.delay_s())
            self.at(link.last_s, self._deliver, sender, receiver, tell, args)

    def _deliver(self, sender: str, receiver: str, tell: Callable[..., Any], args: tuple[Any, ...]) -> None:
        link, agent = self.links[sender, receiver], self.agents[receiver]
        if link.dies_after is not None and self.now_s > link.dies_after and tell != agent.replica.lost:
            return
        if self.wait_for(agent, self._deliver, sender, receiver, tell, args):
            return
        link.is_over = link.is_over or tell == agent.replica.lost
        if agent.is_alive and not agent.is_gone:
            self.do(agent, tell, *args)

    def _close(self, sender: str, receiver: str, *, may_lose: bool = False) -> None:
        """The receiver will see the end of what the sender had said."""
        link = self.links.get((sender, receiver))
        if link is None or not link.is_open:
            return
        if may_lose:
            link.dies_after = self.now_s + self.rng.random() * max(0.0, link.last_s - self.now_s)
        self._deliver_later(sender, receiver, self.agents[receiver].replica.lost, self.agents[sender].node)
        link.is_open = False

    def wait_for(self, agent: Agent, act: Callable[..., None], *args: Any) -> bool:
        """A stopped agent does nothing; what there is to do waits, in its order."""
        if agent.is_waking or (agent.paused_until <= self.now_s and not agent.waiting):
            return False
        agent.waiting.append((act, args))
        if len(agent.waiting) == 1:
            self.at(max(self.now_s, agent.paused_until), self._wake, agent)
        return True

    def _wake(self, agent: Agent) -> None:
        if agent.paused_until > self.now_s:  # stopped again meanwhile
            self.at(agent.paused_until, self._wake, agent)
            return
        agent.is_waking = True
        for act, args in agent.waiting:
            act(*args)
        agent.waiting.clear()
        agent.is_waking = False

    # What replicas do.

    def do(self, agent: Agent, tell: Callable[..., Any], *args: Any, **named: Any) -> None:
        """Tell a replica something and perform what it asks for."""
        if not agent.is_alive:
            return
        actions = tell(*args, **named, now=self.now_s)
        if self.rng.random() < 0.8:  # the end of a turn; otherwise something else comes first
            actions += agent.replica.settle(now=self.now_s)
        else:
            self.after(0.0, self._settle, agent)
        self.perform(agent, actions)

    def perform(self, agent: Agent, actions: list[Action]) -> None:
        """Perform what a replica asks for."""
        for action in actions:
            if isinstance(action, Send):
                self._send(agent, action.to, action.message)
            elif isinstance(action, Folded):
                self._perform(agent, action)
            elif isinstance(action, Installed):
                self.happened["installed"] += 1
                log = agent.replica.log
                term = log.term_before(action.length)
                assert term is not None
                agent.recording = list(self.stories[log.first_term, action.length, term])
            elif isinstance(action, Vote):
                agent.wants_vote = True
            elif isinstance(action, BreakGroup):
                self.laps.leave(agent)
            elif isinstance(action, Claim):
                self.after(self.delay_s(), self._claim, agent, action)
            elif isinstance(action, CheckTerm):
                if not agent.is_looking:
                    agent.is_looking = True
                    self.after(0.05, self._look, agent)
            elif isinstance(action, Paused):
                self.happened["paused" if action.reason else "resumed"] += 1
            elif isinstance(action, Expelled):
                self.happened["expelled"] += 1
                agent.is_expelled = True
                self.after(0.0, self._rejoin, agent)
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, Install):
                state: LogState = codec.decode(bytes(action.message.state["log"]), LogState)
                self.stories[state.first_term, state.length, state.last_term] = agent.recording[: state.length]

    def _settle(self, agent: Agent) -> None:
        if agent.is_alive and not agent.is_gone:
            self.do(agent, agent.replica.settle)

    def _send(self, agent: Agent, to: NodeId, message: Message) -> None:
        life = agent.replica.peers.get(to)
        if life is None:  # an expelled peer: it is told, and forgotten; earlier incarnations had links as well
            *_, life = (key[1] for key in self.links if key[0] == agent.life and self.agents[key[1]].node == to)
        message = codec.decode(codec.encode(message, Message), Message)
        self._deliver_later(agent.life, life, self.agents[life].replica.received, agent.node, message)

    def _claim(self, agent: Agent, claim: Claim) -> None:
        if not agent.is_alive or self.wait_for(agent, self._claim, agent, claim):
            return
        if agent.node in self.without_store:
            self.happened["claims without the store"] += 1
            self.do(agent, agent.replica.store_unreachable)
            return
        assert self.store is not None
        if self.store.term <= claim.known:
            self.happened["terms"] += 1
            self._keep(agent, claim.term, claim.members)
            self.after(self.delay_s(), self._granted, agent, claim.term)
        else:
            self.happened["refused"] += 1
            self.do(agent, agent.replica.refused, self.store)

    def _granted(self, agent: Agent, term: int) -> None:
        if agent.is_alive and not self.wait_for(agent, self._granted, agent, term):
            self.do(agent, agent.replica.claimed, term)

    def _look(self, agent: Agent) -> None:
        if agent.is_alive and not agent.is_gone and not self.wait_for(agent, self._look, agent):
            agent.is_looking = False
            if agent.node in self.without_store:
                self.do(agent, agent.replica.store_unreachable)
                return
            assert self.store is not None
            self.do(agent, agent.replica.looked, self.store)

    # What the scheduler orders.

    def _perform(self, agent: Agent, folded: Folded) -> None:
        assert folded.index == len(agent.recording)
        agent.recording.append(folded.entry)
        if not folded.is_live:
            return
        for effect in itertools.chain.from_iterable(map(parts, folded.effects)):
            if isinstance(effect, effects.FormRound) and agent.node in effect.members:
                inventory = dict.fromkeys(agent.chunks, StateVersion(0, 0))
                self.after(
                    0.0,
                    self._say,
                    agent,
                    events.InventoryReported(node=agent.node, chunks=inventory, round=effect.round),
                )
                if agent.node == effect.members[0]:
                    self.after(self.delay_s(), self._formed, agent, effect)
            elif isinstance(effect, effects.LoadChunks) and effect.node == agent.node:
                self.after(self.delay_s(), self._loaded, agent, effect.chunks[0], effect.round)
            elif isinstance(effect, effects.CopyChunks) and effect.target == agent.node:
                self.after(self.delay_s(), self._copied, agent, effect)
            elif isinstance(effect, effects.PrecopyChunks) and effect.target == agent.node:
                key = "whole" if self.rng.random() < 0.8 else "failed"
                ended = events.PrecopiesEnded(node=agent.node, **{key: effect.numbers})
                self.happened["rows ahead"] += 1
                self.after(self.rng.random() * self.rng.choice((0.01, 0.3)), self._say, agent, ended)
            elif isinstance(effect, effects.FreeChunks) and effect.node == agent.node:
                agent.chunks.discard(effect.chunks[0])
                freed = events.ChunksFreed(chunks=effect.chunks, node=agent.node, round=effect.round)
                self.after(self.delay_s(), self._say, agent, freed)
            elif isinstance(effect, effects.StartIteration):
                self.laps.start(agent, effect)
            elif isinstance(effect, effects.ReleaseNode) and effect.node == agent.node:
                self._go(agent)
            elif isinstance(effect, effects.FinishJob):
                agent.is_finished = True
                self.is_stopped = True

    def _go(self, agent: Agent) -> None:
        self.happened["released"] += 1
        agent.is_gone = True
        for other in list(self.agents.values()):
            self.after(0.0, self._close, agent.life, other.life)
            self.after(0.0, self._close, other.life, agent.life)

    def _say(self, agent: Agent, event: events.Event) -> None:
        if agent.is_alive and not agent.is_gone and not self.wait_for(agent, self._say, agent, event):
            self.do(agent, agent.replica.propose, event)

    def _loaded(self, agent: Agent, chunk: ChunkId, round: int) -> None:
        agent.chunks.add(chunk)
        self._say(agent, events.ChunksLoaded(chunks=(chunk,), node=agent.node, round=round))

    def _copied(self, agent: Agent, effect: effects.CopyChunks) -> None:
        has_source = any(other.node == effect.source and effect.chunks[0] in other.chunks for other in self.living())
        answer: events.Event
        if has_source:
            agent.chunks.add(effect.chunks[0])
            answer = events.ChunksCopied(
                chunks=effect.chunks, source=effect.source, target=effect.target, round=effect.round
            )
        else:
            answer = events.CopyFailed(
                chunk=effect.chunks[0], source=effect.source, target=effect.target, round=effect.round, reason="gone"
            )
        self._say(agent, answer)

    def _formed(self, agent: Agent, effect: effects.FormRound) -> None:
        """Torch's rendezvous: done when all members are alive and have come; the first of them says so."""
        if not agent.is_alive or agent.replica.log.scheduler.round != effect.round:
            return
        if agent.replica.log.asked(effect.round)[1] >= set(effect.members):
            self._say(agent, events.RoundFormed(round=effect.round, members=effect.members))
        elif agent.replica.log.scheduler.state is State.FORMING and agent.replica.role is not Role.OUT:
            self.after(0.01, self._formed, agent, effect)
