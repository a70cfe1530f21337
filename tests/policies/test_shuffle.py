"""Shuffling ownership: counts stay, everything meets everything, CoCoA gains, and no guarantee is broken."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.policy_jobs import cocoa_gaps
from benchmarks.svm_data import higgs_shaped
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.policies.shuffle import KEPT, MOST_PARTS, Shuffle, redraw
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.scheduling.scheduler import Scheduler
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.testing.sim_cluster import SimCluster
from chicle_elastic.values import Observations
from tests.policies.speeds import Speeds
from tests.solvers.linear_jobs import assert_optimal, problem, with_changes
from tests.solvers.test_working_set import counts as word_counts

TRIALS = 300


def nodes_of(counts: tuple[int, ...]) -> dict[NodeId, int]:
    """n0, n1, ... with so many chunks."""
    return {NodeId(f"n{number}"): count for number, count in enumerate(counts)}


def observe(counts: tuple[int, ...], iteration: int, *, room: int | None = None) -> Observations:
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
    )


def flows(moves: dict[tuple[NodeId, NodeId], int]) -> tuple[Counter[NodeId], Counter[NodeId]]:
    """Chunks that leave and reach each node."""
    out: Counter[NodeId] = Counter()
    coming: Counter[NodeId] = Counter()
    for (source, target), count in moves.items():
        out[source] += count
        coming[target] += count
    return out, coming


@pytest.mark.parametrize("counts", [(32,) * 4, (10, 40, 7, 1, 0), (1, 1), (2, 2), (5,), (), (3000, 1, 3000)])
@pytest.mark.parametrize("share", [0.05, 0.25, 1.0])
def test_every_node_gets_as_many_as_it_gives(counts, share):
    """Whatever the others have; no node gives its last chunk, or one to itself."""
    nodes = nodes_of(counts)
    for seed in range(20):
        moves = redraw(nodes, share, np.random.default_rng(seed))
        out, coming = flows(moves)
        assert out == coming
        assert all(count >= 1 and source != target for (source, target), count in moves.items())
        assert all(count <= nodes[node] - nodes[node] // KEPT for node, count in out.items())
        assert all(count < nodes[node] for node, count in out.items())
        assert len(moves) <= len(nodes) * (MOST_PARTS + len(nodes) + 1)


def test_nodes_give_away_their_share():
    """To each of the others about as much, and on average also where a share is less than a chunk."""
    moves = redraw(nodes_of((64,) * 5), 0.5, np.random.default_rng(0))
    assert set(flows(moves)[0].values()) == {32}
    total: Counter[tuple[NodeId, NodeId]] = Counter()
    for seed in range(TRIALS):
        total.update(redraw(nodes_of((4,) * 5), 0.125, np.random.default_rng(seed)))
    assert len(total) == 20
    given = sum(total.values()) / (TRIALS * 20)
    assert 0.1 < given < 0.14, "0.125 but for chance; and a node that is to give one away finds no other one, at times"


def test_a_share_goes_to_all_others_alike():
    """A chunk that moves is with each other node equally often."""
    total: Counter[tuple[NodeId, NodeId]] = Counter()
    for seed in range(TRIALS):
        total.update(redraw(nodes_of((8,) * 4), 0.5, np.random.default_rng(seed)))
    expected = 4 * TRIALS / 3
    assert all(abs(count - expected) < 0.15 * expected for count in total.values())


def test_no_node_is_asked_to_hold_more_than_fits():
    """Chunks that leave are freed only after the others have come."""
    for room in (0, 1, 3):
        decision = Shuffle(share=1.0).decide(observe((8, 8, 8), 1, room=room))
        actions = () if decision is None else decision.actions
        out = flows({(move.source, move.target): move.count for move in actions})[0]
        assert max(out.values(), default=0) == room


def test_it_redraws_every_so_often_until_its_end():
    """And says in its reason what it does."""
    policy = Shuffle(every=3, until=7)
    redrawn = [iteration for iteration in range(1, 12) if policy.decide(observe((8, 8), iteration)) is not None]
    assert redrawn == [3, 6]
    decision = policy.decide(observe((8, 8), 6))
    assert decision is not None
    assert decision.reason == "redraw the owners of 4 of 16 chunks after 6"
    assert decision == policy.decide(observe((8, 8), 6)), "a policy is pure"


def test_a_job_meets_all_partitions_and_keeps_its_counts():
    """Which chunks move is drawn anew each time: soon each has been on each node."""
    nodes = Speeds({f"n{number}": 1.0 for number in range(4)}, policies=(Shuffle(share=0.5),), chunks_per_node=16)
    seen: set[tuple[str, int]] = set()
    for _ in range(40):
        nodes.run(1)
        assert set(nodes.counts.values()) == {16}
        seen |= {(node, chunk) for node, chunks in nodes.stage.owned().items() for chunk in chunks}
    assert len(seen) == 4 * 64


@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("is_first", [True, False])
def test_rebalancing_comes_to_the_same_split(share, is_first):
    """At 2:1, in either order of the two policies; with a large share it takes some boundaries more."""
    both = (Shuffle(share=share), Rebalance()) if is_first else (Rebalance(), Shuffle(share=share))
    alone = Speeds({"n0": 2.0, "n1": 1.0}, policies=(Rebalance(),)).run(40)
    assert abs(Speeds({"n0": 2.0, "n1": 1.0}, policies=both).run(40).counts["n0"] - alone.counts["n0"]) <= 1


@pytest.mark.parametrize("block", range(4))
def test_no_history_of_a_cluster_breaks_a_guarantee(block):
    """Nodes join, leave and die, memory is full, copies fail: the ledger is judged after every event."""

    def make_scheduler(settings, policies):
        return Scheduler(settings, (*policies, Shuffle(share=0.5)))

    num_redraws = 0
    for seed in range(60 * block, 60 * block + 60):
        lines: list[str] = []
        SimCluster(seed, make_scheduler=make_scheduler, tell=lines.append).run()
        num_redraws += sum("Shuffle moves" in line for line in lines)
    assert num_redraws > 20


def test_cocoa_needs_a_fraction_of_the_iterations():
    """8 tasks, lambda = 0.01 n, columns that are functions of others: a quarter of the chunks is enough (77 -> 22)."""
    X, y = higgs_shaped(10_000)
    fixed, quarter = (
        len(cocoa_gaps(X, y, C=0.01, num_tasks=8, tol=1e-3, most=100, policies=policies))
        for policies in ((), (Shuffle(),))
    )
    assert quarter <= fixed / 2


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


def test_equal_jobs_remain_equal():
    """In process, to the last bit."""
    data = problem()
    first, second = (data.run(data_trainer(), InProcess(num_tasks=4), policies=(Shuffle(),)).model for _ in range(2))
    assert np.array_equal(first, second)


def data_trainer():
    """A small gap."""
    return LinearTrainer(C=0.5, tol=1e-8)


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"share": 0.0}, r"share=0.0\): it must be > 0 and <= 1"),
        ({"share": 1.5}, "share=1.5"),
        ({"share": float("nan")}, "share=nan"),
        ({"share": "half"}, "share='half'"),
        ({"share": True}, "share=True"),
        ({"every": 0}, r"every=0\): it must be an integer >= 1"),
        ({"every": 0.5}, "every=0.5"),
        ({"every": None}, "every=None"),
        ({"until": 0}, "until=0"),
        ({"until": 2.5}, "until=2.5"),
    ],
)
def test_bad_parameters_are_refused_with_the_value(params, complaint):
    """Before anything runs, and by `set_params` as by the class."""
    with pytest.raises(UsageError, match=complaint):
        Shuffle(**params)
    with pytest.raises(UsageError, match=complaint):
        Shuffle().set_params(**params)
