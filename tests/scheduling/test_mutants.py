"""A checker that cannot fail proves nothing: each fault built into the scheduler is caught, and by the right rule."""

import dataclasses
import random
import re
from collections import Counter

import numpy as np
import pytest

from chicle_elastic.errors import ProtocolError
from chicle_elastic.scheduling.boundary import Boundary
from chicle_elastic.scheduling.effects import (
    CommitChunks,
    CopyChunks,
    FreeChunks,
    LoadChunks,
    ReleaseNode,
    StartIteration,
)
from chicle_elastic.scheduling.events import ChunksCopied
from chicle_elastic.scheduling.inventory import Inventory
from chicle_elastic.scheduling.leases import Leases
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.loads import Loads
from chicle_elastic.scheduling.members import Members
from chicle_elastic.scheduling.node_chunks import Phase
from chicle_elastic.scheduling.plan import NodeCapacity
from chicle_elastic.scheduling.scheduler import Scheduler, State
from tests.harness.sim_cluster import SimCluster
from tests.harness.sim_truth import ViolationError

MAX_SEEDS = 1200
FIRST_SEED = {"a load of an earlier life counts": 871}
"""Where one history in a thousand shows a fault, the first that does."""


def free_before_commit(self, source, target, chunks, round):
    """The source gives its copies away a moment too early."""
    self._ledger.commit(chunks, target, round=round)
    self._emit(FreeChunks(chunks=tuple(chunks), node=source, round=round))
    self._emit(CommitChunks(chunks=tuple(chunks), source=source, target=target, round=round))


def commit_before_the_copy_arrived(self, orders, *, round, order=Leases.order):
    """An order is taken for its answer."""
    order(self, orders, round=round)
    for chunk, target in orders:
        source = self.in_flight[chunk].source
        self.copied(ChunksCopied(chunks=(chunk,), source=source, target=target, round=round))
        self.settle(round=round, find_target=lambda chunk, lease: None)


def two_owners(self, node, take=Ledger.take_changes):
    """The task of the old owner is not told that a chunk is gone."""
    return take(self, node)[0], ()


def moves_while_running(self, advance=Scheduler._advance):
    """The scheduler does not wait for the boundary to move chunks from a leaver."""
    advance(self)
    if self.state is State.RUNNING:
        self._boundary._move_from_leavers()


def releases_too_early(self):
    """A leaver goes as soon as it is not in the round any more."""
    for node in self._members.leaving:
        if self.state is State.MOVING and not self._members.present[node].in_round:
            self._remove(node)
            self._emit(ReleaseNode(node=node))


def orders_to_the_dead(self, node):
    """A failed copy is tried again at a target that was lost."""
    for chunk, lease in self.in_flight.items():
        if lease.target == node:
            self._emit(CopyChunks(chunks=(chunk,), source=lease.source, target=node, round=lease.round))


def living_chunks_are_restarted(self, orders, *, round, order=Leases.order):
    """A chunk on its way out is loaded at the same time."""
    order(self, orders, round=round)
    for chunk, target in orders:
        self._emit(LoadChunks(chunks=(chunk,), node=target, round=round))


def the_last_copy_is_thrown_away(self, node, lose=Leases.lose):
    """When a source dies, its copy elsewhere is not wanted either."""
    lose(self, node)
    self._change([chunk for chunk, lease in self.in_flight.items() if lease.source_lost], is_abandoned=True)


def restarts_are_hidden(self, chunks, node, *, round):
    """A lost chunk starts afresh, and the ledger does not say so."""
    for chunk in chunks:
        self.adopt(chunk, node, version=type(self.version(chunk))(round, self.merged))


def merges_are_miscounted(self, round, iteration, count=Ledger.count_merge):
    """A chunk lost in the very iteration that was merged after all does not count it."""
    self._lost_in_flight.clear()
    count(self, round, iteration)


def partial_is_called_complete(self, event, *, now, handle=Scheduler.handle):
    """Missing chunks are not mentioned."""
    return [
        dataclasses.replace(effect, is_complete=True) if isinstance(effect, StartIteration) else effect
        for effect in handle(self, event, now=now)
    ]


def copies_are_not_booked(self, node, chunks, phase, hold=Ledger.hold_all):
    """Copies take no memory until they have arrived."""
    hold(self, node, chunks, phase)
    if phase is Phase.COPYING:
        self.node_chunks[node].used_bytes -= sum(info.size_bytes for info in self.infos(chunks))


def dice_are_thrown(self, purpose, number=0):
    """Random choices come from the operating system."""
    return np.random.default_rng(random.SystemRandom().getrandbits(64))


def state_that_comes_back_is_not_summed(self, chunk, node, *, version, adopt=Ledger.adopt):
    """The model of the others lacks the state that a node brings back, and stays like that."""
    before = self.must_rebuild
    adopt(self, chunk, node, version=version)
    self.must_rebuild = before


MUTANTS = {
    "free before commit": (Leases, "_commit", free_before_commit, "an owner's copy is not freed"),
    "commit before the copy": (Leases, "order", commit_before_the_copy_arrived, "the new owner holds the chunk"),
    "two owners": (Ledger, "take_changes", two_owners, "^one owner per chunk|^nothing is attached twice"),
    "all that a zombie brings along is believed": (
        *(Inventory, "_is_better", lambda self, chunk, version: True),
        "the state is the newest one",
    ),
    "plans see room everywhere": (
        *(NodeCapacity, "can_take", lambda self, info: info.id not in self.holds),
        "capacities hold|within capacity",
    ),
    "moves while running": (Scheduler, "_advance", moves_while_running, "nothing moves while an iteration runs"),
    "starts before memory is free for what is missing": (
        *(Boundary, "_is_done", lambda self: True),
        "an iteration that lacks chunks waits",
    ),
    "copies and frees in flight are forgotten": (
        *(Boundary, "_is_moving", lambda self: False),
        "no copy is in flight when an iteration starts|one copy at a time",
    ),
    "releases too early": (Scheduler, "_release_leavers", releases_too_early, "a released node owns nothing"),
    "orders to the dead": (Leases, "lose", orders_to_the_dead, "no effect for a dead or released node"),
    "lost chunks are not loaded again": (
        *(Boundary, "load_missing", lambda self: None),
        "a pause has a true reason|the job goes on|comes to an end",
    ),
    "living chunks are restarted": (
        *(Leases, "order", living_chunks_are_restarted),
        "a chunk that has an owner is not restarted",
    ),
    "the last copy is thrown away": (
        *(Leases, "lose", the_last_copy_is_thrown_away),
        "the last copy of a state is not thrown away",
    ),
    "restarts are hidden": (Ledger, "adopt_fresh", restarts_are_hidden, "restarts are written down"),
    "merges are miscounted": (Ledger, "count_merge", merges_are_miscounted, "the ledger counts iterations"),
    "partial is called complete": (Scheduler, "handle", partial_is_called_complete, "is_complete says the truth"),
    "copies are not booked": (Ledger, "hold_all", copies_are_not_booked, "bytes add up|the book counts all memory"),
    "a load of an earlier life counts": (
        *(Loads, "is_answer", lambda self, chunk, node, round: chunk in self._rounds.get(node, ())),
        "the book counts all memory|an owner holds its chunk|the new owner holds",
    ),
    "the first round is the last one": (
        *(Members, "round_is_due", lambda self: self.round == 0),
        "a pause has a true reason|a node under notice takes no part|every owned chunk is attached",
    ),
    "state that comes back is not summed": (
        *(Ledger, "adopt", state_that_comes_back_is_not_summed),
        "state that comes back is in the model",
    ),
    "all that have the model leave": (
        *(Members, "keepers", property(lambda self: ())),
        "no node takes the model away",
    ),
    "dice are thrown": (Boundary, "_rng", dice_are_thrown, "effect 1 was"),
}
"""Class, attribute and what takes its place, and the rule that it breaks."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_scheduler_is_caught(name, monkeypatch):
    """Within a few hundred histories, by the rule that the fault breaks; other rules may be broken on the way."""
    *place, rule = MUTANTS[name]
    monkeypatch.setattr(*place)
    broken = Counter()
    first = FIRST_SEED.get(name, 0)
    for seed in range(first, first + MAX_SEEDS):
        try:
            cluster = SimCluster(seed, is_recorded=name == "dice are thrown").run()
            if cluster.recording:
                cluster.check_replay()
        except (ViolationError, ProtocolError) as error:
            if re.search(rule, str(error)):
                return
            broken[str(error).split(":")[0]] += 1
    pytest.fail(f"{name}: no rule {rule!r} is broken in {MAX_SEEDS} histories, only {broken}")
