"""Deciding costs next to nothing beside an iteration, also at full size.

Work is counted in lines of Python that are run, which is the same on every machine and under any load.
"""

import dataclasses
import sys
from collections import defaultdict

import pytest

from chicle_elastic.scheduling import effects, events
from tests.scheduling.stage import Stage, answer_to, parts

NUM_NODES = 16
MAX_LINES = 600
"""On average per event; about 0.06 ms."""
MAX_LINES_PER_NODE = 280
"""For a change from its first event to the third iteration after it; to list a node's chunks once takes 60 and more."""
FREQUENT = (events.ChunksLoaded, events.ChunksCopied, events.ChunksFreed, events.IterationFinished)


class Meter(Stage):
    """Counts the lines that every event takes, and skips the check of the whole book."""

    def __init__(self, num_chunks, nodes, **settings):
        self.lines = defaultdict(list)
        super().__init__(num_chunks, nodes, **settings)

    def tell(self, event):
        count = 0

        def trace(frame, what, arg):
            nonlocal count
            count += what == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            ordered = self.scheduler.handle(event, now=0.0)
        finally:
            sys.settrace(before)
        self.lines[type(event)].append(count)
        self.orders += [part for effect in ordered for part in parts(effect)]
        return ordered


def lines_per_event(num_chunks):
    """Load, iterate, join, leave, crash on 16 nodes; lines per event on average, by kind, and of all together."""
    stage = Meter(num_chunks, [f"n{number}" for number in range(NUM_NODES)])
    drain(stage)
    for number in range(30):
        if number == 5:
            stage.join("late")
        if number == 10:
            stage.notice("n0")
        if number == 15:
            stage.lose("n1")
            stage.abort()
        else:
            stage.finish()
        drain(stage)
    counts = {kind: sum(lines) / len(lines) for kind, lines in stage.lines.items()}
    every = [count for lines in stage.lines.values() for count in lines]
    assert len(every) > num_chunks
    return counts, sum(every) / len(every)


def test_an_event_takes_few_lines_and_no_more_with_more_chunks():
    """1000 chunks on 16 nodes; what happens often must not cost in proportion to the chunks."""
    few, _ = lines_per_event(250)
    many, mean = lines_per_event(1000)
    assert mean < MAX_LINES
    for kind in FREQUENT:
        assert many[kind] < MAX_LINES, kind
    for kind in (events.ChunksLoaded, events.ChunksFreed):
        assert many[kind] < 1.5 * few[kind], kind


def drain(stage, *, has_inventories=False):
    """Answer everything in the order in which it was asked."""
    position = 0
    orders, stage.orders = stage.orders, []
    while position < len(orders):
        if has_inventories and isinstance(orders[position], effects.FormRound):
            for node in orders[position].members:
                known = events.InventoryReported(node=node, chunks={}, round=orders[position].round, is_as_known=True)
                stage.tell(known)
        event = answer_to(orders[position])
        if event is None:
            stage.orders.append(orders[position])
        else:
            stage.tell(event)
            orders += stage.orders
            stage.orders = []
        position += 1


PER_NODE = 60
"""Chunks of a node, before another one joins."""


def lines_of_changes(num_nodes):
    """Lines that all events of a join, and then of a loss, take on a job of so many nodes; by name."""
    stage = Meter(PER_NODE * num_nodes, [f"n{number}" for number in range(num_nodes)], precopy=True)
    drain(stage, has_inventories=True)
    stage.finish()
    found = {}
    for name, change in (("join", lambda: stage.join("late")), ("loss", lambda: (stage.lose("n1"), stage.abort()))):
        stage.lines.clear()
        change()
        drain(stage, has_inventories=True)
        for _ in range(3):
            stage.finish()
            drain(stage, has_inventories=True)
        found[name] = sum(sum(lines) for lines in stage.lines.values())
    assert stage.counts()["late"] >= PER_NODE
    assert "n1" not in stage.counts()
    return found


@pytest.mark.parametrize("change", ["join", "loss"])
def test_a_change_costs_by_the_nodes_and_by_the_chunks_that_move(change):
    """And not by the chunks there are: what 128 more nodes, with as many chunks each, make it longer by."""
    few, many = (lines_of_changes(num_nodes)[change] for num_nodes in (128, 256))
    assert many - few < 128 * MAX_LINES_PER_NODE


MAX_LINES_PER_MOVE = 220
"""For a chunk that moves to a node that joins, from the order for its rows to its end where it was: 192 of 50 chunks,
147 of 200. Where each has an order of its own, 250 to 290; where each is booked alone, 360 to 390."""


@pytest.mark.parametrize("num_moves", [50, 200])
def test_chunks_that_move_together_are_booked_together(num_moves):
    """Where nodes answer all orders at once."""
    stage = Meter(3 * num_moves, ["n0", "n1"], precopy=True)
    drain(stage, has_inventories=True)
    stage.finish()
    stage.lines.clear()
    stage.join("late")
    stage.finish()
    numbers = tuple(order.numbers[0] for order in stage.take(effects.PrecopyChunks))
    assert len(numbers) == num_moves
    stage.tell(events.PrecopiesEnded(node="late", whole=numbers))
    stage.finish()
    [order] = stage.take(effects.FormRound)
    for node in order.members:
        stage.tell(events.InventoryReported(node=node, chunks={}, round=order.round, is_as_known=True))
    stage.tell(answer_to(order))
    while orders := stage.take(effects.CopyChunks) + stage.take(effects.FreeChunks):
        together = defaultdict(list)
        for answer in map(answer_to, orders):
            together[dataclasses.replace(answer, chunks=())].append(answer)
        for alike, answers in together.items():
            stage.tell(dataclasses.replace(alike, chunks=tuple(chunk for one in answers for chunk in one.chunks)))
    assert stage.counts()["late"] == num_moves
    assert sum(sum(lines) for lines in stage.lines.values()) < MAX_LINES_PER_MOVE * num_moves
