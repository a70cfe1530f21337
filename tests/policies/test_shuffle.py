"""Shuffling ownership: counts stay, everything meets everything, CoCoA gains, and no guarantee is broken."""

import numpy as np
import pytest

from benchmarks.policy_jobs import SEED, cocoa_gaps
from benchmarks.shapes import higgs_shaped
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.evaluate.cocoa import CertifiedCocoa
from chicle_elastic.ids import NodeId
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.policies.shuffle import Shuffle, fall_of
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.values import Observations, RedrawOwnership
from tests.policies.speeds import Speeds
from tests.solvers.linear_jobs import assert_optimal, problem, with_changes
from tests.solvers.test_working_set import counts as word_counts


def nodes_of(counts: tuple[int, ...]) -> dict[NodeId, int]:
    """n0, n1, ... with so many chunks."""
    return {NodeId(f"n{number}"): count for number, count in enumerate(counts)}


def observe(
    counts: tuple[int, ...],
    iteration: int,
    *,
    room: int | None = None,
    travelling: int = 0,
    figures: tuple[dict[str, float], ...] = (),
) -> Observations:
    """What a policy sees, with room for so many more chunks on each node."""
    nodes = nodes_of(counts)
    return Observations(
        round=1,
        iteration=iteration,
        num_chunks=nodes,
        samples={node: 10 * count for node, count in nodes.items()},
        capacity_bytes={node: None if room is None else 100 * (count + room) for node, count in nodes.items()},
        used_bytes={node: 100 * count for node, count in nodes.items()},
        reports={},
        travelling=travelling,
        figures=figures,
    )


def share_of(policy: Shuffle, observations: Observations) -> float | None:
    """What the policy redraws."""
    decision = policy.decide(observations)
    if decision is None:
        return None
    [action] = decision.actions
    assert isinstance(action, RedrawOwnership)
    return action.share


def test_no_more_than_its_share_is_on_its_way():
    """And a redraw is not cut into many small ones."""
    policy = Shuffle(share=0.5)
    travelling = {count: share_of(policy, observe((8, 8), 1, travelling=count)) for count in (0, 2, 4, 5, 8, 16)}
    assert travelling == {0: 0.5, 2: 0.375, 4: 0.25, 5: None, 8: None, 16: None}


@pytest.mark.parametrize("counts", [(), (5,), (5, 0), (0, 0)])
def test_where_nobody_can_give_a_chunk_to_another_one_nothing_is_redrawn(counts):
    """An event without effect would cost a boundary."""
    assert share_of(Shuffle(), observe(counts, 1)) is None
    assert share_of(Shuffle(), observe((8, 8), 1, room=0)) is None
    assert share_of(Shuffle(), observe((8, 8), 1, room=1)) == 0.25


def test_it_redraws_every_so_often_until_its_end():
    """And says in its reason what it does."""
    policy = Shuffle(every=3, until=7)
    redrawn = [iteration for iteration in range(1, 12) if policy.decide(observe((8, 8), iteration)) is not None]
    assert redrawn == [3, 6]
    decision = policy.decide(observe((8, 8), 6))
    assert decision is not None
    assert decision.reason == "0.25 of all chunks after 6"
    assert decision == policy.decide(observe((8, 8), 6)), "a policy is pure"


def falling(name: str, *values: float) -> tuple[dict[str, float], ...]:
    """A figure of some iterations; none where it is 0."""
    return tuple({name: value} if value else {} for value in values)


def test_with_patience_it_redraws_only_where_the_figure_falls_slowly():
    """Or is not known; the reason has the figure."""
    policy = Shuffle(patience=0.5)
    for values, is_redrawn in (
        ((8.0, 4.0, 2.0, 1.0), False),
        ((8.0, 2.0, 1.9, 1.8), True),
        ((100.0, 8.0, 7.0, 6.0, 5.0, 4.0), True),
        ((8.0, 0.0, 2.0, 0.0), False),
        ((1.0, 2.0), True),
        ((1.0,), True),
        ((), True),
    ):
        seen = observe((8, 8), 6, figures=falling("duality_gap", *values))
        assert (policy.decide(seen) is not None) == is_redrawn, values
        assert Shuffle().decide(seen) is not None
    decision = policy.decide(observe((8, 8), 6, figures=falling("loss", 4.0, 3.0)))
    assert decision is not None
    assert decision.reason == "0.25 of all chunks after 6, as loss falls by 0.25 of itself per iteration"


def test_a_certified_gap_counts_more_than_its_estimate():
    """And nothing is made of figures that it does not know, or that are below 0."""
    mixed = ({"duality_gap": 4.0}, {"duality_gap_estimate": 9.0}, {"duality_gap_estimate": 8.0}, {"duality_gap": 0.5})
    assert fall_of(mixed) == ("duality_gap", 0.5)
    assert fall_of(mixed[:3]) == ("duality_gap_estimate", pytest.approx(1 / 9))
    assert fall_of(falling("accuracy", 0.5, 0.6)) is None
    assert fall_of(falling("loss", -1.0, -2.0)) is None


@pytest.mark.parametrize(("share", "travel", "is_first"), [(0.25, 0, False), (0.25, 4, True), (1.0, 1, True)])
def test_rebalancing_comes_to_the_same_split_while_chunks_travel(share, travel, is_first):
    """On a cluster rows take some iterations, and the two policies act meanwhile; what travels is not moved twice."""
    policies = (Shuffle(share=share), Rebalance()) if is_first else (Rebalance(), Shuffle(share=share))
    both = Speeds({"n0": 2.0, "n1": 1.0}, policies=policies, travel=travel).run(100)
    alone = Speeds({"n0": 2.0, "n1": 1.0}, policies=(Rebalance(),), travel=travel).run(100)
    assert abs(both.counts["n0"] - alone.counts["n0"]) <= 1
    assert alone.num_decisions <= 4
    assert sum("Shuffle redraws" in line for line in both.logs) > 10


def test_cocoa_needs_a_fraction_of_the_iterations():
    """8 tasks, lambda = 0.01 n, columns that are functions of others: a quarter of the chunks is enough (77 -> 22)."""
    X, y = higgs_shaped(10_000)
    fixed, quarter = (
        len(cocoa_gaps(X, y, C=0.01, num_tasks=8, tol=1e-3, most=100, policies=policies))
        for policies in ((), (Shuffle(),))
    )
    assert quarter <= fixed / 2


def test_patience_redraws_less_often_and_still_saves_iterations():
    """The same job: 77 iterations without, 20 with a redraw after each, and 31 with 7 redraws."""
    X, y = higgs_shaped(10_000)
    policy = Shuffle(share=1.0, patience=0.1)
    source = ArraySource(X, y.astype(np.int32), max_tasks=8, seed=SEED)
    job = Job(
        trainer=CertifiedCocoa(C=0.01, tol=1e-3), source=source, max_iterations=100, seed=SEED, policies=(policy,)
    )
    history = InProcess(num_tasks=8).run(job).history
    num_redraws = sum("Shuffle redraws" in event for record in history for event in record.events)
    assert 1 <= num_redraws <= len(history) / 2
    assert len(history) <= 50


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_newtons_method_finds_the_same_optimum(loss):
    """Rows that move in the middle of a run of another method change nothing but rounding."""
    data = problem()
    trainer = with_changes(data_trainer(), loss=loss)
    fixed = data.run(trainer)
    shuffled = data.run(trainer, InProcess(num_tasks=4), policies=(Shuffle(share=1.0),))
    assert_optimal(data, trainer, shuffled)
    np.testing.assert_allclose(shuffled.model, fixed.model, rtol=1e-3, atol=1e-4)


def test_a_working_set_survives_rows_that_move():
    """Tasks gather, solve and write back rows that have another owner in each phase."""
    data = word_counts()
    trainer = with_changes(data_trainer(), tol=1e-6)
    assert_optimal(data, trainer, data.run(trainer, InProcess(num_tasks=4), policies=(Shuffle(share=1.0),)))


def data_trainer():
    """A small gap."""
    return LinearTrainer(C=0.5, tol=1e-8)
