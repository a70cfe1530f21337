"""The bad luck of a simulated cluster: who joins, leaves, crashes, is cut off and comes back, and what fails.

After any event anything may strike, so faults fall into every state and between any two steps. A history has a budget
of them; when it is spent, the weather is calm.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.scheduler import Scheduler
from chicle_elastic.values import (
    Decision,
    MoveChunks,
    Observations,
    PolicyAction,
    Proposal,
    RedrawOwnership,
    ReleaseNode,
    RequestNodes,
    ResourceOffer,
    SetParameter,
)
from tests.harness.sim_truth import SimNode, Truth

MAX_MERGED = 12
"""Iterations after which the weather calms down, whatever is left of the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultProfile:
    """What may happen in a history."""

    is_graceful: bool  # no node is lost and nothing fails
    num_faults: int  # budget of things that strike
    fault_chance: float  # of one of them after any event
    failure_chance: float  # of a load or copy to fail, before the weather calms down
    has_inventories: bool  # nodes report what they hold at each round, and come back with what they held when cut off
    has_policies: bool  # policies are asked at boundaries

    @classmethod
    def draw(cls, rng: random.Random) -> "FaultProfile":
        """A random climate."""
        is_graceful = rng.random() < 0.25
        return cls(
            is_graceful=is_graceful,
            num_faults=rng.randint(0, 14),
            fault_chance=rng.choice((0.05, 0.15, 0.3)),
            failure_chance=0.0 if is_graceful else rng.choice((0.0, 0.0, 0.15)),
            has_inventories=rng.random() < 0.6,
            has_policies=rng.random() < 0.5,
        )


@dataclass(frozen=True)
class RandomPolicy:
    """Moves what its seed says, now and then nonsense; a function of what it sees, like every policy."""

    seed: int
    name: str = "random"

    def decide(self, observations: Observations, /) -> Decision | None:
        """A random decision."""
        rng = random.Random(f"{self.seed} {observations.round} {observations.iteration}")
        if rng.random() < 0.5 or len(observations.num_chunks) < 2:
            return None
        if rng.random() < 0.03:
            raise RuntimeError("bad day")
        source, target = rng.sample(sorted(observations.num_chunks), 2)
        count = rng.randint(0, observations.num_chunks[source] + (rng.random() < 0.03))
        actions: list[PolicyAction] = [MoveChunks(source, target, count)]
        if rng.random() < 0.3:
            actions = [RedrawOwnership(rng.choice((0.1, 0.5, 1.0)))]
        if rng.random() < 0.3:
            actions.append(SetParameter("rate", rng.randint(1, 3)))
        if rng.random() < 0.1:
            actions.append(RequestNodes(rng.randint(1, 9)))
        if rng.random() < 0.05:
            actions.append(ReleaseNode(target))
        return Decision(actions=tuple(actions), reason="the dice say so")


class _Cluster(Protocol):
    """What the weather needs of the cluster that it strikes, a `SimCluster`."""

    fault_profile: FaultProfile
    rng: random.Random
    truth: Truth
    scheduler: Scheduler
    happened: Counter[str]
    capacity_bytes: int | None

    def after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None: ...

    def delay_s(self) -> float: ...

    def deliver(self, event: events.Event) -> None: ...

    def forget_words_of(self, node: SimNode) -> None: ...


class FaultInjector:
    """Strikes a cluster.

    Args:
        cluster: Whose nodes are struck.
    """

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.rng
        self._num_struck = 0
        self._num_underway = 0
        self._num_joined = 0
        graceful: list[Callable[[], None]] = [*[self.join] * 3, *[self._notice] * 2, self._advise, self._babble]
        self._strikes = graceful if cluster.fault_profile.is_graceful else [*graceful, *[self._lose] * 4]

    def is_calm(self) -> bool:
        """Whether nothing will strike any more."""
        is_spent = (
            self._num_struck >= self._cluster.fault_profile.num_faults or self._cluster.truth.merged >= MAX_MERGED
        )
        return is_spent and self._num_underway == 0

    def strike(self) -> None:
        """Perhaps let something happen soon."""
        fault_profile = self._cluster.fault_profile
        if self._num_struck >= fault_profile.num_faults or self._cluster.truth.merged >= MAX_MERGED:
            return
        if self._rng.random() < fault_profile.fault_chance:
            self._num_struck += 1
            self._soon(self._rng.choice(self._strikes))

    def fails(self) -> bool:
        """Whether a load or copy fails now."""
        return not self.is_calm() and self._rng.random() < self._cluster.fault_profile.failure_chance

    def join(self) -> None:
        """A new node joins."""
        name = NodeId(f"n{self._num_joined}")
        self._num_joined += 1
        node = self._cluster.truth.nodes[name] = SimNode(name, self._cluster.capacity_bytes)
        self._announce(node)

    def forget_something(self, node: SimNode) -> None:
        """Perhaps a node finds a chunk destroyed, just before it tells what it holds."""
        whole = sorted(chunk for chunk, copy in node.copies.items() if copy.is_whole)
        fault_profile = self._cluster.fault_profile
        if fault_profile.is_graceful or self.is_calm() or not whole or self._rng.random() > 0.05:
            return
        chunk = self._rng.choice(whole)
        if (chunk, node.name) not in self._cluster.truth.freeing:
            self._cluster.happened["chunk destroyed"] += 1
            del node.copies[chunk]
            node.is_known = False
            node.destroyed.add(chunk)

    def _soon(self, act: Callable[..., None], *args: object, patience: float = 1.0) -> None:
        """Do something after a delay; until then the weather is not calm."""
        self._num_underway += 1

        def strike() -> None:
            self._num_underway -= 1
            act(*args)

        self._cluster.after(patience * self._cluster.delay_s(), strike)

    def _announce(self, node: SimNode) -> None:
        self._cluster.deliver(events.NodeJoined(node=node.name, capacity_bytes=node.capacity_bytes))

    def _present(self) -> SimNode | None:
        nodes = self._cluster.truth.present()
        return self._rng.choice(nodes) if nodes else None

    def _notice(self) -> None:
        node = self._present()
        if node is not None:
            self._cluster.deliver(events.LeaveNoticed(node=node.name))
            if self._rng.random() < 0.5:
                self._soon(self._hand_over, node, node.life, patience=5.0)

    def _hand_over(self, node: SimNode, life: int) -> None:
        """The grace of a node under notice is nearly over."""
        if node.is_present and node.is_noticed and node.life == life:
            self._cluster.deliver(events.HandoverDue(node=node.name))

    def _lose(self) -> None:
        """A node dies, and the scheduler hears of it later. Bad luck likes nodes that are handing something over."""
        truth = self._cluster.truth
        alive = [node for node in truth.present() if node.is_alive]
        if not alive:
            return
        busy = {*truth.copying.values(), *(name for _, name in (*truth.copying, *truth.freeing))}
        aimed = [node for node in alive if node.name in busy] if self._rng.random() < 0.6 else []
        node = self._rng.choice(aimed or alive)
        node.is_alive = False
        self._note_moment(node)
        self._soon(self._loss_is_told, node)

    def _loss_is_told(self, node: SimNode) -> None:
        self._cluster.deliver(events.NodeLost(node=node.name))
        if self._rng.random() < 0.6:
            # Some are back before anybody has taken over, others find that the world has moved on.
            self._soon(self._come_back, node, patience=self._rng.choice((1.0, 1.0, 20.0)))

    def _come_back(self, node: SimNode) -> None:
        """A node that was lost joins again: a zombie with its memory, or a fresh process of the same name."""
        if node.is_present:
            return
        node.life += 1
        node.is_alive = True
        keeps_memory = self._cluster.fault_profile.has_inventories and self._rng.random() < 0.7
        node.destroyed = set()
        node.copies = {chunk: copy for chunk, copy in node.copies.items() if copy.is_whole and keeps_memory}
        node.is_known = not node.copies
        self._cluster.forget_words_of(node)
        self._cluster.happened["zombie" if node.copies else "fresh comeback"] += 1
        self._announce(node)

    def _advise(self) -> None:
        """A slow policy decides from outside, soundly or not."""
        truth = self._cluster.truth
        if not truth.nodes:
            return
        source, target = self._rng.choice(list(truth.nodes)), self._rng.choice(list(truth.nodes))
        self._cluster.deliver(
            Proposal(
                policy="slow",
                round=truth.round - (self._rng.random() < 0.2),
                actions=self._actions(source, target),
                reason="thought about it",
                iteration=self._rng.choice((None, truth.merged, truth.merged - 1)),
                place=self._rng.randint(0, 3),
            )
        )
        offer = ResourceOffer(available=self._num_struck % 3, price=float(self._num_struck % 2))
        # Every agent may tell it, so some come late, and are ignored.
        number = self._num_struck - 2 * (truth.merged % 2)
        self._cluster.deliver(events.ResourcesOffered(offer=offer, number=number, text="offered by the manager"))

    def _actions(self, source: NodeId, target: NodeId) -> tuple[PolicyAction, ...]:
        """What a policy may want, or nearly."""
        wishes: list[PolicyAction] = [
            MoveChunks(source, target, self._rng.randint(-1, 4)),
            SetParameter("rate", self._rng.choice((1.0, 2.0))),
            RedrawOwnership(self._rng.choice((0.0, 0.3, 1.0))),
            RequestNodes(self._rng.randint(0, 5)),
            ReleaseNode(target),
        ]
        return tuple(self._rng.choices(wishes, k=self._rng.choice((1, 1, 2))))

    def _babble(self) -> None:
        """Something late or senseless arrives."""
        truth = self._cluster.truth
        names = [*truth.nodes, NodeId("nobody")]
        source, target = self._rng.choice(names), self._rng.choice(names)
        chunk = self._rng.choice(list(truth.infos))
        late = 0
        babble: list[events.Event] = [
            events.NodeLost(node=NodeId("nobody")),
            events.LeaveNoticed(node=NodeId("nobody")),
            events.RoundFormed(round=late, members=(source,)),
            events.ChunksCopied(chunks=(chunk,), source=source, target=target, round=late),
            events.CopyFailed(chunk=chunk, source=source, target=target, round=late, reason="late"),
            events.ChunksLoaded(chunks=(chunk,), node=target, round=late),
            events.LoadFailed(chunk=chunk, node=target, reason="late", round=late),
            events.ChunksFreed(chunks=(chunk,), node=target, round=late),
            events.InventoryReported(node=NodeId("nobody"), chunks={}),
            events.PrecopiesEnded(node=target, whole=(10**6,), failed=(10**6 + 1,)),
            events.HandoverDue(node=NodeId("nobody")),
            events.PolicyDisabled(policy=self._rng.choice(("slow", "nobody")), reason="raised KeyError: 7"),
        ]
        for round, iteration in truth.laps[:-1]:
            babble.append(events.IterationFinished(round=round, iteration=iteration, reports={}))
            babble.append(events.IterationAborted(round=round, iteration=iteration, reason="late"))
        joined = truth.present()
        if joined:
            babble.append(events.NodeJoined(node=self._rng.choice(joined).name))
        self._cluster.deliver(self._rng.choice(babble))

    def _note_moment(self, node: SimNode) -> None:
        """Remember which delicate moments a death fell into."""
        truth, happened = self._cluster.truth, self._cluster.happened
        happened[f"died while {self._cluster.scheduler.state.value}"] += 1
        for (chunk, target), source in truth.copying.items():
            moment = "between copy and commit" if (chunk, target) in truth.arrived else "while copying"
            if node.name in (source, target):
                happened[f"{'source' if node.name == source else 'target'} died {moment}"] += 1
        for chunk, name in truth.freeing:
            if name == node.name:
                happened["source died between commit and free"] += 1
            elif truth.owner.get(ChunkId(chunk)) == node.name:
                happened["target died between commit and free"] += 1
