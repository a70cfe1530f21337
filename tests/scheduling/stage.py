"""A stage for one scheduler: tests tell it events, and it answers orders the way correct nodes do."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.pending_policies import DecidingPolicy
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from chicle_elastic.values import ChunkInfo, StateVersion, TaskReport
from tests.harness.ledger_check import check_ledger

E = TypeVar("E", bound=effects.Effect)


def infos(num_chunks: int, *, num_rows: int = 10, size_bytes: int = 1) -> tuple[ChunkInfo, ...]:
    """Equal chunks."""
    return tuple(
        ChunkInfo(id=ChunkId(number), num_rows=num_rows, size_bytes=size_bytes) for number in range(num_chunks)
    )


class Stage:
    """A scheduler and the orders that it gave and that nobody answered yet.

    Args:
        num_chunks: Chunks of 10 rows and 1 byte.
        nodes: Join at once, with the given capacity.
        capacity_bytes: Of those nodes.
        settings: As given to the scheduler.
    """

    def __init__(
        self,
        num_chunks: int = 12,
        nodes: Iterable[str] = (),
        *,
        capacity_bytes: int | None = None,
        policies: tuple[DecidingPolicy, ...] = (),
        **settings: Any,
    ) -> None:
        nodes = list(nodes)
        settings.setdefault("start_nodes", max(len(nodes), settings.get("min_nodes", 1)))
        self.scheduler = Scheduler(SchedulerSettings(**settings), policies)
        self.ledger = self.scheduler.ledger
        self.orders: list[effects.Effect] = []
        self.logs: list[str] = []
        if num_chunks:
            self.tell(events.ChunksDeclared(chunks=infos(num_chunks)))
        for node in nodes:
            self.join(node, capacity_bytes=capacity_bytes)

    # Telling.

    def tell(self, event: events.Event) -> list[effects.Effect]:
        """Tell one event; the effects but for log lines, which go to `logs`."""
        ordered = self.scheduler.handle(event, now=0.0)
        check_ledger(self.ledger)
        self.logs += [effect.text for effect in ordered if isinstance(effect, effects.Log)]
        ordered = [part for effect in ordered if not isinstance(effect, effects.Log) for part in parts(effect)]
        self.orders += ordered
        return ordered

    def join(self, node: str, *, capacity_bytes: int | None = None) -> list[effects.Effect]:
        """A node joins."""
        return self.tell(events.NodeJoined(node=NodeId(node), capacity_bytes=capacity_bytes))

    def notice(self, node: str) -> list[effects.Effect]:
        """A node is put under notice."""
        return self.tell(events.LeaveNoticed(node=NodeId(node)))

    def lose(self, node: str) -> list[effects.Effect]:
        """A node is lost, and with it what it was ordered to do."""
        self.orders = [order for order in self.orders if doer(order) != node]
        return self.tell(events.NodeLost(node=NodeId(node)))

    def inventory(self, node: str, chunks: dict[int, tuple[int, int]]) -> list[effects.Effect]:
        """A node reports what it holds: (round, iteration) by chunk."""
        versions = {ChunkId(chunk): StateVersion(*version) for chunk, version in chunks.items()}
        return self.tell(events.InventoryReported(node=NodeId(node), chunks=versions, round=self.scheduler.round))

    # Answering.

    def take(self, kind: type[E]) -> list[E]:
        """Orders of one kind that are not answered, taken away from the stage."""
        taken: list[E] = [order for order in self.orders if isinstance(order, kind)]
        self.orders = [order for order in self.orders if not isinstance(order, kind)]
        return taken

    def answer(self, *kinds: type) -> list[effects.Effect]:
        """Answer orders, and those that follow, until none of these kinds is left.

        Args:
            kinds: Orders to answer; by default all but StartIteration.

        Returns:
            Everything that was ordered meanwhile.
        """
        ordered: list[effects.Effect] = []
        kinds = kinds or (effects.FormRound, effects.LoadChunks, effects.CopyChunks, effects.FreeChunks)
        while pending := [order for order in self.orders if isinstance(order, kinds)]:
            order = pending[0]
            self.orders.remove(order)
            event = answer_to(order)
            if event is not None:
                ordered += self.tell(event)
        return ordered

    def finish(self) -> list[effects.Effect]:
        """The running iteration ends with a merge."""
        [order] = self.take(effects.StartIteration)
        reports = {node: TaskReport(samples=10, duration_s=1.0) for node in self.scheduler.ledger.node_chunks}
        return self.tell(events.IterationFinished(round=order.round, iteration=order.iteration, reports=reports))

    def abort(self) -> list[effects.Effect]:
        """The running iteration ends without a merge."""
        [order] = self.take(effects.StartIteration)
        return self.tell(events.IterationAborted(round=order.round, iteration=order.iteration, reason="test"))

    def run(self, num_iterations: int = 1) -> list[effects.Effect]:
        """Answer everything, and run iterations; the last one is left in flight.

        Returns:
            Everything that was ordered meanwhile.
        """
        ordered = self.answer()
        for _ in range(num_iterations - 1):
            ordered += self.finish()
            ordered += self.answer()
        return ordered

    # Looking.

    def owned(self) -> dict[str, tuple[int, ...]]:
        """Chunks by owner."""
        return {node: self.ledger.owned_by(node) for node in self.ledger.node_chunks}

    def counts(self) -> dict[str, int]:
        """Number of chunks by owner."""
        return {node: len(chunks) for node, chunks in self.owned().items()}


def parts(effect: effects.Effect) -> list[effects.Effect]:
    """An order for several chunks as one for each: a node may answer them one by one."""
    match effect:
        case effects.PrecopyChunks():
            each = zip(effect.chunks, effect.numbers, strict=True)
            return [dataclasses.replace(effect, chunks=(chunk,), numbers=(number,)) for chunk, number in each]
        case effects.LoadChunks() | effects.CopyChunks() | effects.CommitChunks() | effects.FreeChunks():
            return [dataclasses.replace(effect, chunks=(chunk,)) for chunk in effect.chunks]
    return [effect]


def answer_to(order: effects.Effect) -> events.Event | None:
    """What a correct shell says when the order was carried out."""
    match order:
        case effects.FormRound():
            return events.RoundFormed(round=order.round, members=order.members)
        case effects.LoadChunks():
            return events.ChunksLoaded(chunks=order.chunks, node=order.node, round=order.round)
        case effects.CopyChunks():
            return events.ChunksCopied(chunks=order.chunks, source=order.source, target=order.target, round=order.round)
        case effects.PrecopyChunks():
            return events.PrecopiesEnded(node=order.target, whole=order.numbers)
        case effects.FreeChunks():
            return events.ChunksFreed(chunks=order.chunks, node=order.node, round=order.round)
    return None


def doer(order: effects.Effect) -> NodeId | None:
    """Who answers a load, copy or free."""
    return getattr(order, "target", getattr(order, "node", None))


def kinds(ordered: Iterable[effects.Effect]) -> list[str]:
    """Names of the classes, repetitions in a row only once."""
    names: list[str] = []
    for effect in ordered:
        name = type(effect).__name__
        if names[-1:] != [name]:
            names.append(name)
    return names


def only(ordered: Iterable[effects.Effect], kind: type[E], where: Callable[[E], bool] = lambda effect: True) -> list[E]:
    """The effects of one kind."""
    return [effect for effect in ordered if isinstance(effect, kind) and where(effect)]


def at_a_move(**settings: Any) -> tuple[Stage, effects.CopyChunks]:
    """A stage where b has joined a, and one copy to b is in flight."""
    stage = Stage(num_chunks=2, nodes=["a"], **settings)
    stage.run()
    stage.join("b")
    stage.finish()
    stage.answer(effects.FormRound)
    [copy] = stage.take(effects.CopyChunks)
    return stage, copy
