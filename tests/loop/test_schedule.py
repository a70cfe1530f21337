"""Which samples members take, what they agree on, and who sends state: over random histories, without any process."""

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from chicle_elastic.torch.schedule import Call, Plan, Position, Row, Standing, cut, failed_of, holders_of, mismatch_of

STEP = Row(Call.STEP, 10)


@pytest.mark.parametrize("is_per_node", [False, True])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_members_share_each_epoch_whatever_their_number_is_at_each_step(is_per_node: bool, local_steps: int) -> None:
    """Every sample is in one share of one step, in the order of the epoch."""
    rng = random.Random(5)
    plan = Plan(num_samples=101, num_epochs=2, batch_size=7, is_per_node=is_per_node, local_steps=local_steps, seed=3)
    position, used = Position(), Counter[tuple[int, int]]()
    while not plan.is_over(position):
        size = rng.randint(1, 9)
        by_rank = plan.batches(position, size)
        order = plan.order(position.epoch)
        assert len(by_rank) == size
        for batches in by_rank:
            assert len(batches) == len(by_rank[0]) <= local_steps
            used.update((position.epoch, int(order[place])) for batch in batches for place in batch)
        for step in zip(*by_rank, strict=True):
            assert sum(map(len, step)) <= 7 * (size if is_per_node else 1)
            assert max(map(len, step)) - min(map(len, step)) <= 1
        after = plan.after(position, size)
        assert after > position
        position = after
    assert used == Counter((epoch, sample) for epoch in range(2) for sample in range(101))


def test_the_order_of_an_epoch_follows_from_seed_and_epoch() -> None:
    """Epochs and seeds have other orders; without a shuffle it is that of the data."""
    plan = Plan(num_samples=50, num_epochs=3, batch_size=5, seed=1)
    assert plan.order(0).tolist() == plan.order(0).tolist() != plan.order(1).tolist()
    assert plan.order(0).tolist() != Plan(num_samples=50, num_epochs=3, batch_size=5, seed=2).order(0).tolist()
    plain = Plan(num_samples=50, num_epochs=3, batch_size=5, is_shuffled=False)
    assert plain.order(2).tolist() == list(range(50))


@pytest.mark.parametrize("number", [1, 3, 8])
def test_a_cut_has_so_many_parts(number: int) -> None:
    """They follow each other, and some are empty where there is too little."""
    parts = cut(4, 9, number)
    assert [place for part in parts for place in part] == [4, 5, 6, 7, 8]
    assert len(parts) == number


@dataclass
class Member:
    """A member without a process: its state is what each sample was counted, and where it stands."""

    name: str
    standing: Standing = field(default_factory=Standing)
    position: Position = field(default_factory=Position)
    counts: Counter[tuple[int, int]] = field(default_factory=Counter)

    def commit(self, round: int, iteration: int, taken: list[tuple[int, int]], after: Position) -> None:
        self.counts.update(taken)
        self.position, self.standing = after, Standing(True, iteration, round, iteration)

    def receive(self, other: "Member") -> None:
        self.counts, self.position, self.standing = other.counts.copy(), other.position, other.standing


def form(members: list[Member], rng: random.Random, kills: bool) -> list[Member] | None:
    """A round: the newest state goes to those that lack it; None when members died while it did."""
    holders = holders_of([member.standing for member in members])
    receivers = [rank for rank in range(len(members)) if rank not in holders]
    states = [(members[rank].counts, members[rank].position) for rank in holders]
    assert all(state == states[0] for state in states)  # so that each may send a part
    newest = members[holders[0]]
    if kills and len(members) > 2 and rng.random() < 0.2:
        members.remove(rng.choice(members))  # the others keep what they had
        return None
    for rank in receivers:
        members[rank].receive(newest)
    for member in members:
        member.standing = newest.standing._replace(has_begun=True)
    return members


@pytest.mark.parametrize("seed", range(200))
def test_each_sample_counts_once_whoever_joins_leaves_and_dies(seed: int) -> None:
    """Members die before, within and after the sum of a step; those that have its sum win."""
    rng = random.Random(seed)
    plan = Plan(num_samples=rng.randint(1, 60), num_epochs=2, batch_size=rng.randint(1, 16), seed=seed)
    members, round, iteration, num_names = [Member("m0"), Member("m1"), Member("m2")], 0, 1, 3
    ledger: Position = Position()
    while True:
        round += 1
        for _ in range(rng.choice((0, 0, 1, 2))):
            members.append(Member(f"m{num_names}"))
            num_names += 1
        rng.shuffle(members)
        if not any(member.standing.has_begun for member in members) and round > 1:
            return  # no member that is left has the state: the job is over, and says so
        if form(members, rng, kills=True) is None:
            continue
        ledger = max(ledger, members[0].position)
        while True:
            position, size = members[0].position, len(members)
            assert all(member.position == position for member in members)
            if plan.is_over(position):
                expected = Counter((epoch, n) for epoch in range(2) for n in range(plan.num_samples))
                assert all(member.counts == expected for member in members)
                return
            order = plan.order(position.epoch)
            shares = [batch for batches in plan.batches(position, size) for batch in batches]
            taken = [(position.epoch, int(order[place])) for share in shares for place in share]
            fate = rng.random()
            dead = rng.sample(members, rng.randint(1, max(1, size - 1))) if fate < 0.3 and size > 1 else []
            if not dead:
                committed = members
            elif fate < 0.1:
                committed = []  # killed before the sum
            else:
                committed = rng.sample(members, rng.randint(0, size))  # within and after: some have it
            for member in committed:
                member.commit(round, iteration, taken, plan.after(position, size))
            if dead:
                members = [member for member in members if member not in dead]
                iteration += any(member in committed for member in members)
                break
            iteration += 1
            if rng.random() < 0.1:
                break  # a node joins or leaves by the front door


def test_a_member_that_was_taken_for_lost_receives_what_the_others_repeated() -> None:
    """The same iteration of a later round is newer."""
    standings = [Standing(True, 6, 2, 6), Standing(True, 7, 4, 7), Standing(True, 7, 3, 7)]
    assert holders_of(standings) == (1,)


def test_models_that_were_only_built_follow_the_first() -> None:
    """They differ, so one member's counts."""
    assert holders_of([Standing(), Standing()]) == (0,)
    assert holders_of([Standing(), Standing(True)]) == (1,)


def test_what_members_call_is_compared() -> None:
    """Members whose code failed are named, as is one that calls something else."""
    assert not mismatch_of([STEP, STEP._replace(samples=3), STEP._replace(call=Call.IDLE)], ["a", "b", "c"])
    assert failed_of([STEP, Row(Call.FAILED, 0), STEP], ["a", "b", "c"]) == ["b"]
    mismatch = mismatch_of([STEP, Row(Call.ALL_REDUCE, 2)], ["a", "b"])
    assert "a calls loop.step over 10 values, but b calls loop.all_reduce over 2 values" in mismatch
    assert mismatch_of([STEP, STEP._replace(num_values=11)], ["a", "b"])


def test_orders_are_permutations() -> None:
    """Of int64, as batches want them."""
    order = Plan(num_samples=9, num_epochs=1, batch_size=2).order(0)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(9))
