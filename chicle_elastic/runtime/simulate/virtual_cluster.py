"""Virtual nodes that perform effects on a virtual clock: the shell of the scheduler that the simulator is.

A heap has what is going to happen, by its second; the clock jumps from one entry to the next. Two entries of one second
keep the order in which they were made, so a simulation is a function of its scenario.

    iteration   as long as its slowest task computes, and `iteration_s`; samples / (row_s / speed), with noise
    copy        latency, and bytes over the slower of two links; copies that share a link wait for each other. Only the
                state of a chunk whose rows were pre-copied
    pre-copy    the same, on a lane of its own: it delays neither iterations nor boundaries
    load        bytes over the rate of the source, one after the other at each node
    round       `round_s`
    notice      LeaveNoticed; after a part of the grace period HandoverDue, and the iteration under way ends early;
                after all of it the node is lost
    loss        the others know after `detect_s`; an iteration under way is aborted then

Nothing is decided here: the scheduler orders, and asks the policies.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chicle_elastic.clock import VirtualClock
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.cluster_task.policy_runner import HearingPolicy
from chicle_elastic.runtime.simulate.result import SimulationResult
from chicle_elastic.runtime.simulate.scenario import Scenario, SimulatedLoss, SimulatedMachine
from chicle_elastic.runtime.simulate.work import Cost, Ended, Work
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.pending_policies import DecidingPolicy
from chicle_elastic.scheduling.recording import RecordedPolicy, Recorder, RecordingSink
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings, State
from chicle_elastic.values import DEADLINE, POLICY_PREFIX, ResourceOffer, TaskReport

INTERRUPT_SHARE = 0.2
"""Part of the grace period after which tasks end a long iteration early (as in `cluster.agent.node`)."""
LEAST_NOISE = 0.1  # a task takes at least this part of its time, however the noise falls
NOISE, LOSSES = 1, 2  # what chance is drawn for; a part of the seed


@dataclass(slots=True, kw_only=True)
class VirtualNode:
    """A node."""

    name: NodeId
    speed: float  # relative to `row_s`
    bytes_per_s: float  # of its link, each way
    memory_bytes: int | None  # for chunks; None where it is not accounted
    price: float | None  # of a second; None for that of the supply
    grace_s: float  # from a notice to its end
    began_s: float  # since when it is paid for
    ended_s: float | None = None  # until when; None while it is there
    has_joined: bool = False  # whether the scheduler knows it
    is_noticed: bool = False  # whether it was given notice
    # when its links are free again: of copies out and in, of pre-copies out and in, of loads
    lanes_s: dict[str, float] = field(default_factory=dict)
    num_chunks: int = 0  # chunks that its task has been told of
    num_rows: int = 0  # samples in them
    rows: set[ChunkId] = field(default_factory=set)  # chunks whose rows were pre-copied to it

    @property
    def is_there(self) -> bool:
        """Say whether it has not been lost or let go."""
        return self.ended_s is None


@dataclass(slots=True, kw_only=True)
class _Iteration:
    effect: effects.StartIteration
    began_s: float
    samples: dict[NodeId, int]
    seconds: dict[NodeId, float]


class VirtualCluster:
    """One simulation. One class because it is a shell with a method per effect.

    >>> from chicle_elastic import Rebalance
    >>> from chicle_elastic.runtime.simulate.scenario import Scenario, SimulatedJob, SimulatedNode
    >>> from chicle_elastic.runtime.simulate.virtual_cluster import VirtualCluster
    >>> nodes = SimulatedNode(name="fast"), SimulatedNode(name="slow", speed=0.5)
    >>> scenario = Scenario(nodes=nodes, job=SimulatedJob(chunks=90, iterations=20))
    >>> result = VirtualCluster(scenario, (Rebalance(),)).run()
    >>> result.history[-1].num_chunks
    {'fast': 60, 'slow': 30}
    """

    def __init__(
        self,
        scenario: Scenario,
        policies: Sequence[DecidingPolicy] = (),
        *,
        make_work: Callable[[VirtualClock], Work] | None = None,
        sink: RecordingSink | None = None,
    ) -> None:
        self.scenario = scenario
        self.clock = VirtualClock()
        self.work: Work = Cost(scenario.job) if make_work is None else make_work(self.clock)
        job = scenario.job
        settings = SchedulerSettings(
            seed=scenario.seed,
            min_nodes=job.min_nodes,
            max_nodes=job.max_nodes,
            start_nodes=scenario.start_nodes(),
            precopy=job.precopy,
        )
        for policy in policies:
            self.work.mailboxes.add(f"{POLICY_PREFIX}{policy.name}")
        hearing = [HearingPolicy(policy, self.work.mailboxes) for policy in policies]
        self.scheduler = Scheduler(settings, hearing if sink is None else [*map(RecordedPolicy, hearing)])
        self._handler = self.scheduler if sink is None else Recorder(self.scheduler, sink)
        self._policy_names = tuple(policy.name for policy in policies)
        self._nodes: dict[NodeId, VirtualNode] = {}
        self._members: tuple[NodeId, ...] = ()
        self._iteration: _Iteration | None = None
        self._noise = np.random.default_rng([scenario.seed, NOISE])
        self._losses = np.random.default_rng([scenario.seed, LOSSES])
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._num_entries = self._num_supplied = 0
        self._infos = {info.id: info for info in self.work.infos}
        # What one event ordered, together: a link carries it in one go, and one event answers it.
        self._frees: dict[tuple[NodeId, int], list[ChunkId]] = {}
        self._loads: dict[tuple[NodeId, int], list[ChunkId]] = {}
        self._copies: dict[tuple[NodeId, NodeId, int], list[ChunkId]] = {}
        self._precopies: dict[tuple[NodeId, NodeId], list[tuple[ChunkId, int]]] = {}
        self._precopy_numbers: dict[tuple[NodeId, ChunkId], int] = {}
        self._lines: list[str] = []
        self._wanted: int | None = None
        self._offer = ResourceOffer()
        self._num_offers = 0
        self._reason: str | None = None
        self._iteration_ended_s = 0.0
        self._chunks_moved = self._bytes_moved = self._num_aborted = 0
        self._stalls_s: dict[int, float] = {}

    def run(self) -> SimulationResult:
        """Let everything happen, until the job ends, the time is over, or nothing is left to happen."""
        self._at(0.0, self._deliver, events.ChunksDeclared(chunks=self.work.infos))
        self._schedule_nodes()
        end_s = math.inf if self.scenario.job.until_s is None else self.scenario.job.until_s
        while self._queue and self._reason is None:
            if self._queue[0][0] > end_s:
                self.clock.now_s = end_s
                break
            self.clock.now_s, _, act, args = heapq.heappop(self._queue)
            act(*args)
        return self._result()

    # What happens by itself.

    def _schedule_nodes(self) -> None:
        scenario = self.scenario
        for given in scenario.nodes:
            for name in map(NodeId, given.names):
                node = self._node(name, given, price=given.price, began_s=given.joins_s)
                self._at(given.joins_s, self._launch, node, given.boot_s)
                if given.notice_s is not None:
                    self._at(given.notice_s, self._notice, node)
                if given.dies_s is not None:
                    self._at(given.dies_s, self._die, node)
        for loss in scenario.losses:
            self._at(loss.at_s, self._lose_together, loss)
        if scenario.supply is not None:
            for step in scenario.supply.steps:
                self._at(step[0], self._follow_supply)

    def _node(self, name: NodeId, given: SimulatedMachine, *, price: float | None, began_s: float) -> VirtualNode:
        return VirtualNode(
            name=name,
            speed=given.speed,
            bytes_per_s=given.bytes_per_s or self.scenario.network.bytes_per_s,
            memory_bytes=given.memory_bytes,
            price=price,
            grace_s=given.grace_s,
            began_s=began_s,
        )

    def _launch(self, node: VirtualNode, boot_s: float) -> None:
        self._nodes[node.name] = node
        self._at(self.clock.now_s + boot_s, self._join, node)

    def _join(self, node: VirtualNode) -> None:
        if node.is_there:
            node.has_joined = True
            self.work.join(node.name)
            self._deliver(events.NodeJoined(node=node.name, capacity_bytes=node.memory_bytes))

    def _notice(self, node: VirtualNode) -> None:
        if not node.is_there or node.is_noticed:
            return
        node.is_noticed = True
        now_s = self.clock.now_s
        self._at(now_s + INTERRUPT_SHARE * node.grace_s, self._hurry, node)
        self._at(now_s + node.grace_s, self._die, node, 0.0)
        self._deliver(events.LeaveNoticed(node=node.name))

    def _hurry(self, node: VirtualNode) -> None:
        if not node.is_there:
            return
        self._deliver(events.HandoverDue(node=node.name))
        iteration, now_s = self._iteration, self.clock.now_s
        if iteration is not None and self.work.may_be_cut:
            self._cut(iteration, now_s - iteration.began_s)
            self._at(now_s, self._iteration_ends, iteration)

    def _die(self, node: VirtualNode, detect_s: float | None = None) -> None:
        """The node is gone; the others know later."""
        if not node.is_there:
            return
        self._end_node(node)
        if node.has_joined:
            late_s = self.scenario.network.detect_s if detect_s is None else detect_s
            self._at(self.clock.now_s + late_s, self._loss_is_known, node)

    def _loss_is_known(self, node: VirtualNode) -> None:
        self.work.leave(node.name)
        self._deliver(events.NodeLost(node=node.name))
        iteration = self._iteration
        if iteration is not None and node.name in self._members:
            self._iteration = None
            self._num_aborted += 1
            effect, reason = iteration.effect, f"{node.name} was lost"
            self._deliver(events.IterationAborted(round=effect.round, iteration=effect.iteration, reason=reason))
        self._follow_supply()

    def _lose_together(self, loss: SimulatedLoss) -> None:
        nodes = [self._nodes[NodeId(name)] for name in loss.nodes]
        if loss.share is not None:
            there = [node for node in self._nodes.values() if node.is_there and node.has_joined]
            count = min(len(there), math.ceil(loss.share * len(there)))
            nodes = [there[place] for place in sorted(self._losses.permutation(len(there))[:count])]
        for node in nodes:
            self._die(node)

    # Nodes of the supply.

    def _supplied(self) -> list[VirtualNode]:
        return [node for node in self._nodes.values() if node.price is None and node.is_there and not node.is_noticed]

    def _follow_supply(self) -> None:
        """Start nodes that are wanted and can be had, give notice to those that are too many, and say what is left."""
        supply = self.scenario.supply
        if supply is None:
            return
        now_s = self.clock.now_s
        nodes = self._supplied()
        there = supply.nodes_at(now_s)
        for node in nodes[there:]:
            if node.has_joined:
                self._notice(node)
            else:
                self._end_node(node)
        nodes = nodes[:there]
        others = sum(node.price is not None and node.is_there and not node.is_noticed for node in self._nodes.values())
        limits = [limit - others for limit in (self._wanted, self.scenario.job.max_nodes) if limit is not None]
        wanted = max(0, min([there, *limits]))
        for node in reversed(nodes[wanted:]):
            if not node.has_joined:
                self._end_node(node)
        for _ in range(wanted - len(nodes)):
            node = self._node(NodeId(f"{supply.name}-{self._num_supplied}"), supply, price=None, began_s=now_s)
            self._num_supplied += 1
            self._launch(node, supply.boot_s)
        offer = ResourceOffer(available=max(0, there - len(self._supplied())), price=supply.price_at(now_s))
        if offer != self._offer:
            self._offer = offer
            self._num_offers += 1
            self._deliver(events.ResourcesOffered(offer=offer, number=self._num_offers))

    # Effects, in the order of a round.

    def form_round(self, effect: effects.FormRound) -> None:
        """The members meet, if all of them are there; else the loss of one will be known."""
        self._at(self.clock.now_s + self.scenario.network.round_s, self._round_forms, effect)

    def _round_forms(self, effect: effects.FormRound) -> None:
        is_current = self.scheduler.state is State.FORMING and effect.round == self.scheduler.round
        if is_current and all(self._nodes[name].is_there for name in effect.members):
            self._members = effect.members
            self._deliver(events.RoundFormed(round=effect.round, members=effect.members))

    def load_chunks(self, effect: effects.LoadChunks) -> None:
        """The node loads one chunk after the other."""
        self._loads.setdefault((effect.node, effect.round), []).extend(effect.chunks)

    def copy_chunks(self, effect: effects.CopyChunks) -> None:
        """The chunks travel with what else goes from one node to the other."""
        self._copies.setdefault((effect.source, effect.target, effect.round), []).extend(effect.chunks)

    def precopy_chunks(self, effect: effects.PrecopyChunks) -> None:
        """Do as `copy_chunks`, on a lane that delays no other."""
        ordered = list(zip(effect.chunks, effect.numbers, strict=True))
        self._precopies.setdefault((effect.source, effect.target), []).extend(ordered)
        self._precopy_numbers.update(((effect.target, chunk), number) for chunk, number in ordered)

    def commit_chunks(self, effect: effects.CommitChunks) -> None:
        """Count them."""
        self._chunks_moved += len(effect.chunks)

    def free_chunks(self, effect: effects.FreeChunks) -> None:
        """Memory is given back at once."""
        node = self._nodes[effect.node]
        if not node.is_there:
            return
        for chunk in effect.chunks:
            node.rows.discard(chunk)
            self._precopy_numbers.pop((effect.node, chunk), None)
            self.work.free(chunk, effect.node)
        self._frees.setdefault((effect.node, effect.round), []).extend(effect.chunks)

    def attach_chunks(self, effect: effects.AttachChunks) -> None:
        """The task of the node is told."""
        node = self._nodes[effect.node]
        node.num_chunks += len(effect.added) - len(effect.removed)
        for chunks, sign in ((effect.added, 1), (effect.removed, -1)):
            node.num_rows += sign * sum(self._infos[chunk].num_rows for chunk in chunks)
        self.work.attach(effect.node, effect.added, effect.removed)

    def notice_node(self, effect: effects.NoticeNode) -> None:
        """The node may stay as long as it has to, and the job wants no other one in its place."""
        self._nodes[effect.node].is_noticed = True
        staying = sum(node.is_there and not node.is_noticed for node in self._nodes.values())
        self._wanted = staying if self._wanted is None else min(self._wanted, staying)
        self._at(self.clock.now_s, self._follow_supply)

    def request_nodes(self, effect: effects.RequestNodes) -> None:
        """The supply follows, once all that was ordered with this is done."""
        self._wanted = effect.total
        if self.scenario.supply is None:
            self._lines.append(f"the scenario has no supply of nodes: {effect.total} wanted by a policy")
        self._at(self.clock.now_s, self._follow_supply)

    def release_node(self, effect: effects.ReleaseNode) -> None:
        """The node goes, and is paid for no longer."""
        node = self._nodes[effect.node]
        if node.is_there:
            self._end_node(node)
            self.work.leave(node.name)
            self._at(self.clock.now_s, self._follow_supply)

    def save_checkpoint(self, effect: effects.SaveCheckpoint) -> None:
        """Costs nothing: training does not go on meanwhile."""

    def pause_job(self, effect: effects.PauseJob) -> None:
        """Something that happens later may end the pause."""
        self._lines.append(effect.reason)

    def finish_job(self, effect: effects.FinishJob) -> None:
        """The simulation ends."""
        self._reason = effect.reason

    def log(self, effect: effects.Log) -> None:
        """For the record of the next iteration."""
        self._lines.append(effect.text)

    def start_iteration(self, effect: effects.StartIteration) -> None:
        """Every member with chunks computes; the slowest says how long it takes."""
        now_s, job = self.clock.now_s, self.scenario.job
        if self.work.history:
            self._stalls_s[effect.iteration] = now_s - self._iteration_ended_s
        if effect.messages:
            self.work.mailboxes.deliver(effect.messages, effect.iteration)
        rows = {name: self._nodes[name].num_rows for name in self._members if self._nodes[name].num_chunks}
        samples = dict(self.work.begin(effect, rows))
        seconds = {}
        for name, count in samples.items():
            noise = 1.0 + job.noise * self._noise.standard_normal() if job.noise else 1.0
            seconds[name] = count * job.row_s / self._nodes[name].speed * max(LEAST_NOISE, noise)
        iteration = self._iteration = _Iteration(effect=effect, began_s=now_s, samples=samples, seconds=seconds)
        deadline_s = effect.parameters.get(DEADLINE, 0.0)
        if deadline_s > 0 and self.work.may_be_cut:
            self._cut(iteration, deadline_s)
        longest_s = max(seconds.values(), default=0.0)
        self._at(now_s + longest_s + job.iteration_s, self._iteration_ends, iteration)

    def _cut(self, iteration: _Iteration, most_s: float) -> None:
        """Tasks that would take longer end with a part of their samples, one at least."""
        for name, seconds in iteration.seconds.items():
            if seconds > most_s:
                count = max(1, int(iteration.samples[name] * most_s / seconds))
                iteration.seconds[name] = seconds * count / iteration.samples[name]
                iteration.samples[name] = count

    def _iteration_ends(self, iteration: _Iteration) -> None:
        if iteration is not self._iteration or not all(self._nodes[name].is_there for name in self._members):
            return  # it ended early, or a loss will abort it
        self._iteration = None
        effect, now_s = iteration.effect, self.clock.now_s
        self._iteration_ended_s = now_s
        lines, self._lines = tuple(self._lines), []
        stop = self.work.end(
            Ended(
                effect=effect,
                samples=iteration.samples,
                seconds={str(name): seconds for name, seconds in iteration.seconds.items()},
                num_chunks={name: self._nodes[name].num_chunks for name in self._members},
                lines=lines,
                now_s=now_s,
            )
        )
        if stop is not None:
            self._deliver(events.StopRequested(reason=stop))
        reports = {
            name: TaskReport(samples=count, duration_s=iteration.seconds[name])
            for name, count in iteration.samples.items()
        }
        training = (self.work.state_for_policies(effect),) if self._policy_names else ()
        self._deliver(
            events.IterationFinished(round=effect.round, iteration=effect.iteration, reports=reports, training=training)
        )

    # Bytes on their way.

    def _send(self) -> None:
        """Let begin what the last event ordered."""
        for (name, round), chunks in self._take(self._frees):
            self._at(self.clock.now_s, self._freed, name, round, tuple(chunks))
        for (name, round), chunks in self._take(self._loads):
            node = self._nodes[name]
            num_bytes = sum(self._infos[chunk].size_bytes for chunk in chunks)
            begin_s = max(self.clock.now_s, node.lanes_s.get("load", 0.0))
            end_s = node.lanes_s["load"] = begin_s + num_bytes / self.scenario.network.load_bytes_per_s
            self._at(end_s + self.scenario.network.latency_s, self._loaded, node, round, tuple(chunks))
        for (source, target, round), chunks in self._take(self._copies):
            held = self._nodes[target].rows
            num_bytes = sum(
                self.work.state_bytes(chunk) if chunk in held else self._infos[chunk].size_bytes for chunk in chunks
            )
            for chunk in chunks:
                held.discard(chunk)
                self._precopy_numbers.pop((target, chunk), None)
            end_s = self._transfer(self._nodes[source], self._nodes[target], num_bytes, "copy")
            self._at(end_s, self._copied, self._nodes[source], self._nodes[target], round, tuple(chunks), num_bytes)
        for (source, target), orders in self._take(self._precopies):
            num_bytes = sum(self._infos[chunk].size_bytes - self.work.state_bytes(chunk) for chunk, _ in orders)
            end_s = self._transfer(self._nodes[source], self._nodes[target], num_bytes, "precopy")
            self._at(end_s, self._precopied, self._nodes[source], self._nodes[target], tuple(orders), num_bytes)

    def _take(self, ordered: dict[Any, list[Any]]) -> list[tuple[Any, list[Any]]]:
        taken = list(ordered.items())
        ordered.clear()
        return taken

    def _transfer(self, source: VirtualNode, target: VirtualNode, num_bytes: int, lane: str) -> float:
        out, into = f"{lane} out", f"{lane} in"
        begin_s = max(self.clock.now_s, source.lanes_s.get(out, 0.0), target.lanes_s.get(into, 0.0))
        end_s = begin_s + num_bytes / min(source.bytes_per_s, target.bytes_per_s)
        source.lanes_s[out] = target.lanes_s[into] = end_s
        return end_s + self.scenario.network.latency_s

    def _freed(self, name: NodeId, round: int, chunks: tuple[ChunkId, ...]) -> None:
        if self._nodes[name].is_there:
            self._deliver(events.ChunksFreed(chunks=chunks, node=name, round=round))

    def _loaded(self, node: VirtualNode, round: int, chunks: tuple[ChunkId, ...]) -> None:
        if node.is_there:
            for chunk in chunks:
                self.work.load(chunk, node.name)
            self._deliver(events.ChunksLoaded(chunks=chunks, node=node.name, round=round))

    def _copied(
        self, source: VirtualNode, target: VirtualNode, round: int, chunks: tuple[ChunkId, ...], num_bytes: int
    ) -> None:
        if not target.is_there:
            return
        if source.is_there:
            for chunk in chunks:
                self.work.copy(chunk, source.name, target.name)
            self._bytes_moved += num_bytes
            self._deliver(events.ChunksCopied(chunks=chunks, source=source.name, target=target.name, round=round))
            return
        # A connection to a node that is gone breaks when its loss is known.
        assert source.ended_s is not None
        known_s = source.ended_s + self.scenario.network.detect_s
        for chunk in chunks:
            failed = events.CopyFailed(
                chunk=chunk, source=source.name, target=target.name, round=round, reason="the source was lost"
            )
            self._at(max(self.clock.now_s, known_s), self._say, target, failed)

    def _precopied(
        self, source: VirtualNode, target: VirtualNode, orders: tuple[tuple[ChunkId, int], ...], num_bytes: int
    ) -> None:
        if not target.is_there:
            return
        numbers = tuple(number for _, number in orders)
        if not source.is_there:
            self._deliver(events.PrecopiesEnded(node=target.name, failed=numbers))
            return
        self._bytes_moved += num_bytes
        for chunk, number in orders:
            if self._precopy_numbers.get((target.name, chunk)) == number:
                target.rows.add(chunk)
        self._deliver(events.PrecopiesEnded(node=target.name, whole=numbers))

    # Time, and what the scheduler hears.

    def _at(self, time_s: float, act: Callable[..., None], *args: Any) -> None:
        self._num_entries += 1
        heapq.heappush(self._queue, (time_s, self._num_entries, act, args))

    def _say(self, node: VirtualNode, event: events.Event) -> None:
        if node.is_there:
            self._deliver(event)

    def _deliver(self, event: events.Event) -> None:
        for effect in self._handler.handle(event, now=self.clock.now_s):
            effects.dispatch(effect, self)
        self._send()

    def _end_node(self, node: VirtualNode) -> None:
        node.ended_s = self.clock.now_s

    def _result(self) -> SimulationResult:
        now_s = self.clock.now_s
        node_s = cost = 0.0
        for node in self._nodes.values():
            end_s = now_s if node.ended_s is None else node.ended_s
            node_s += end_s - node.began_s
            supply = self.scenario.supply
            if node.price is not None:
                cost += node.price * (end_s - node.began_s)
            elif supply is not None:
                cost += supply.cost(node.began_s, end_s)
        reason = self._reason
        if reason is None and self._queue:
            reason = "the time is over"
        elif reason is None:
            reason = self.scheduler.pause_reason or "too few nodes have come"
        return SimulationResult(
            scenario=self.scenario.name,
            policies=self._policy_names,
            is_real=self.work.is_real,
            has_finished=self._reason is not None,
            reason=reason,
            time_s=now_s,
            node_s=node_s,
            cost=cost,
            aborted=self._num_aborted,
            chunks_moved=self._chunks_moved,
            bytes_moved=self._bytes_moved,
            chunks_lost=sum(self.scheduler.ledger.replayed.values()),
            stall_s=sum(self._stalls_s.values()),
            longest_stall_s=max(self._stalls_s.values(), default=0.0),
            history=self.work.history,
        )
