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
    CommitChunk,
    CopyChunk,
    FreeChunk,
    LoadChunks,
    ReleaseNode,
    StartIteration,
)
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


def free_before_commit(patch):
    """The source gives its copy away a moment too early."""

    def commit(self, lease, round):
        self._ledger.commit(lease.chunk, lease.target, round=round)
        self._emit(FreeChunk(chunk=lease.chunk, node=lease.source, round=round))
        self._emit(CommitChunk(chunk=lease.chunk, source=lease.source, target=lease.target, round=round))

    patch.setattr(Leases, "_commit", commit)


def commit_before_the_copy_arrived(patch):
    """An order is taken for its answer."""
    order = Leases.order

    def hasty(self, chunk, source, target, *, round):
        order(self, chunk, source, target, round=round)
        self.copied(self.in_flight[chunk])
        self.settle(round=round, find_target=lambda lease: None)

    patch.setattr(Leases, "order", hasty)


def two_owners(patch):
    """The task of the old owner is not told that a chunk is gone."""
    take = Ledger.take_changes
    patch.setattr(Ledger, "take_changes", lambda self, node: (take(self, node)[0], ()))


def stale_state_wins(patch):
    """Whatever a zombie brings along is believed."""
    patch.setattr(Inventory, "_is_better", lambda self, chunk, version: True)


def capacity_ignored(patch):
    """Plans think that there is room everywhere."""
    patch.setattr(NodeCapacity, "can_take", lambda self, info: info.id not in self.holds)


def moves_while_running(patch):
    """The scheduler does not wait for the boundary to move chunks from a leaver."""
    advance = Scheduler._advance

    def eager(self):
        advance(self)
        if self.state is State.RUNNING:
            self._boundary._move_from_leavers()

    patch.setattr(Scheduler, "_advance", eager)


def starts_before_moves_are_done(patch):
    """Copies and frees in flight are forgotten."""
    patch.setattr(Boundary, "_is_moving", lambda self: False)


def starts_before_memory_is_free(patch):
    """Also where chunks are missing for which there may be room then."""
    patch.setattr(Boundary, "_is_done", lambda self: True)


def releases_too_early(patch):
    """A leaver goes as soon as it is not in the round any more."""

    def release(self):
        for node in self._members.leaving:
            if self.state is State.MOVING and not self._members.present[node].in_round:
                for chunk in self.ledger.owned_by(node):
                    self.ledger.lose(chunk, in_flight=False)
                self._leases.lose(node)
                self._loads.lose(node)
                self._inventory.lose(node)
                self._remove(node)
                self._emit(ReleaseNode(node=node))

    patch.setattr(Scheduler, "_release_leavers", release)


def orders_to_the_dead(patch):
    """A failed copy is tried again at a target that was lost."""

    def lose(self, node):
        for lease in self.in_flight.values():
            if lease.target == node:
                self._emit(CopyChunk(chunk=lease.chunk, source=lease.source, target=node, round=lease.round))

    patch.setattr(Leases, "lose", lose)


def lost_chunks_are_forgotten(patch):
    """Nobody loads them again."""
    patch.setattr(Boundary, "load_missing", lambda self: None)


def living_chunks_are_restarted(patch):
    """A chunk on its way out is loaded at the same time."""
    order = Leases.order

    def restless(self, chunk, source, target, *, round):
        order(self, chunk, source, target, round=round)
        self._emit(LoadChunks(chunks=(chunk,), node=target, round=round))

    patch.setattr(Leases, "order", restless)


def the_last_copy_is_thrown_away(patch):
    """When a source dies, its copy elsewhere is not wanted either."""
    lose = Leases.lose

    def hasty(self, node):
        lose(self, node)
        for lease in self.in_flight.values():
            lease.is_abandoned |= lease.source_lost

    patch.setattr(Leases, "lose", hasty)


def restarts_are_hidden(patch):
    """A lost chunk starts afresh, and the ledger does not say so."""

    def adopt_fresh(self, chunks, node, *, round):
        for chunk in chunks:
            self.adopt(chunk, node, version=type(self.version(chunk))(round, self.merged))

    patch.setattr(Ledger, "adopt_fresh", adopt_fresh)


def merges_are_miscounted(patch):
    """A chunk lost in the very iteration that was merged after all does not count it."""
    count = Ledger.count_merge

    def forgetful(self, round, iteration):
        self._lost_in_flight.clear()
        count(self, round, iteration)

    patch.setattr(Ledger, "count_merge", forgetful)


def partial_is_called_complete(patch):
    """Missing chunks are not mentioned."""
    handle = Scheduler.handle

    def boast(self, event, *, now):
        for effect in handle(self, event, now=now):
            yield dataclasses.replace(effect, is_complete=True) if isinstance(effect, StartIteration) else effect

    patch.setattr(Scheduler, "handle", lambda self, event, *, now: list(boast(self, event, now=now)))


def copies_are_not_booked(patch):
    """A copy takes no memory until it has arrived."""
    hold = Ledger.hold

    def frugal(self, node, chunk, phase):
        hold(self, node, chunk, phase)
        if phase is Phase.COPYING:
            self.node_chunks[node].used_bytes -= self.info(chunk).size_bytes

    patch.setattr(Ledger, "hold", frugal)


def a_load_of_an_earlier_life_counts(patch):
    """Answers are not told apart by their round."""
    patch.setattr(Loads, "is_answer", lambda self, chunk, node, round: chunk in self._rounds.get(node, ()))


def rounds_are_not_renewed(patch):
    """Once there is a round, it is the last one."""
    patch.setattr(Members, "round_is_due", lambda self: self.round == 0)


def dice_are_thrown(patch):
    """Random choices come from the operating system."""
    dice = random.SystemRandom()
    patch.setattr(Boundary, "_rng", lambda self, purpose, number=0: np.random.default_rng(dice.getrandbits(64)))


def state_that_comes_back_is_not_summed(patch):
    """The model of the others lacks the state that a node brings back, and stays like that."""
    adopt = Ledger.adopt

    def forgetful(self, chunk, node, *, version):
        before = self.must_rebuild
        adopt(self, chunk, node, version=version)
        self.must_rebuild = before

    patch.setattr(Ledger, "adopt", forgetful)


def the_model_is_let_go(patch):
    """All that trained leave before those that came have the model."""
    patch.setattr(Members, "keepers", property(lambda self: ()))


MUTANTS = {
    free_before_commit: "an owner's copy is not freed",
    commit_before_the_copy_arrived: "the new owner holds the chunk",
    two_owners: "^one owner per chunk|^nothing is attached twice",
    stale_state_wins: "the state is the newest one",
    capacity_ignored: "capacities hold|within capacity",
    moves_while_running: "nothing moves while an iteration runs",
    starts_before_memory_is_free: "an iteration that lacks chunks waits",
    starts_before_moves_are_done: "no copy is in flight when an iteration starts|one copy at a time",
    releases_too_early: "a released node owns nothing",
    orders_to_the_dead: "no effect for a dead or released node",
    lost_chunks_are_forgotten: "a pause has a true reason|the job goes on|comes to an end",
    living_chunks_are_restarted: "a chunk that has an owner is not restarted",
    the_last_copy_is_thrown_away: "the last copy of a state is not thrown away",
    restarts_are_hidden: "restarts are written down",
    merges_are_miscounted: "the ledger counts iterations",
    partial_is_called_complete: "is_complete says the truth",
    copies_are_not_booked: "bytes add up|the book counts all memory",
    a_load_of_an_earlier_life_counts: "the book counts all memory|an owner holds its chunk|the new owner holds",
    rounds_are_not_renewed: "a pause has a true reason|a node under notice takes no part|every owned chunk is attached",
    state_that_comes_back_is_not_summed: "state that comes back is in the model",
    the_model_is_let_go: "no node takes the model away",
    dice_are_thrown: "effect 1 was",
}


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_broken_scheduler_is_caught(mutate, monkeypatch):
    """Within a few hundred histories, by the rule that the fault breaks; other rules may be broken on the way."""
    mutate(monkeypatch)
    broken = Counter()
    for seed in range(MAX_SEEDS):
        try:
            cluster = SimCluster(seed, is_recorded=mutate is dice_are_thrown).run()
            if cluster.recording:
                cluster.check_replay()
        except (ViolationError, ProtocolError) as error:
            if re.search(MUTANTS[mutate], str(error)):
                return
            broken[str(error).split(":")[0]] += 1
    pytest.fail(f"{mutate.__name__} broke no rule {MUTANTS[mutate]!r} in {MAX_SEEDS} histories, only {broken}")
