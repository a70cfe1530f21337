"""Virtual nodes: times that are known by hand, everything that may happen to a node, and recordings that replay."""

import json
import random

import pytest

from chicle_elastic.policies.base import Policy
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.policies.shuffle import Shuffle
from chicle_elastic.policies.straggler import Straggler
from chicle_elastic.runtime.simulate.result import SimulationResult
from chicle_elastic.runtime.simulate.scenario import (
    Scenario,
    SimulatedJob,
    SimulatedLoss,
    SimulatedNetwork,
    SimulatedNode,
    SimulatedSupply,
)
from chicle_elastic.runtime.simulate.virtual_cluster import VirtualCluster
from chicle_elastic.values import Decision, Observations, ReleaseNode, RequestNodes
from tests.harness.ledger_check import check_ledger
from tests.harness.text_sink import TextSink, replay

JOB = SimulatedJob(chunks=64, rows_per_chunk=100, row_s=1e-3, iterations=30)
"""An iteration of four nodes takes 1.6 s."""


def simulate(*policies: Policy, job: SimulatedJob = JOB, **parts: object) -> SimulationResult:
    """The result of a scenario of these parts."""
    return VirtualCluster(Scenario(job=job, **parts), policies).run()


def said(result: SimulationResult) -> str:
    """All lines for a person."""
    return "\n".join(line for record in result.history for line in record.events)


def test_rebalance_comes_to_the_ideal_split_of_slow_and_fast_nodes() -> None:
    """Eight nodes at 1.5x and eight at 1x, from an even start: 1.5 units of an iteration, 1.2 at best."""
    nodes = SimulatedNode(name="slow", count=8, speed=1 / 1.5), SimulatedNode(name="fast", count=8)
    job = SimulatedJob(chunks=4_160, iterations=20)
    history = simulate(Rebalance(), nodes=nodes, job=job).history
    units = [1.5 * max(record.seconds.values()) / max(history[0].seconds.values()) for record in history]
    assert set(history[0].num_chunks.values()) == {260}
    assert units[-1] <= 1.03 * 1.2
    assert min(units) >= 1.2


def test_an_iteration_takes_as_long_as_its_slowest_task() -> None:
    """Without noise every second is known: loading, the round, and iterations."""
    job = SimulatedJob(
        chunks=8, rows_per_chunk=100, row_s=1e-3, iteration_s=0.5, iterations=10, chunk_bytes=1000, state_bytes=0
    )
    network = SimulatedNetwork(load_bytes_per_s=1000.0, latency_s=0.25, round_s=2.0)
    nodes = SimulatedNode(name="fast"), SimulatedNode(name="slow", speed=0.5, price=3.0)
    result = simulate(nodes=nodes, job=job, network=network)
    begin_s = 2.0 + 4 * 1.0 + 0.25
    assert [record.time_s for record in result.history] == pytest.approx([begin_s + 1.3 * n for n in range(1, 11)])
    assert result.history[0].seconds == pytest.approx({"fast": 0.4, "slow": 0.8})
    assert result.node_s == pytest.approx(2 * result.time_s)
    assert result.cost == pytest.approx(4 * result.time_s)
    assert (result.has_finished, result.stall_s, result.chunks_moved) == (True, 0.0, 0)


def test_a_node_that_joins_gets_its_share_when_it_has_booted() -> None:
    """It is paid for from its start; its rows are pre-copied, so the stall is that of the states."""
    nodes = SimulatedNode(name="n", count=3), SimulatedNode(name="late", joins_s=10.0, boot_s=5.0)
    result = simulate(nodes=nodes)
    [first] = [record for record in result.history if record.num_chunks.get("late")][:1]
    assert first.time_s > 15.0
    assert first.num_chunks["late"] == 16
    assert result.chunks_moved == 16
    assert result.node_s == pytest.approx(4 * result.time_s - 10.0)
    assert result.longest_stall_s < 0.1


def test_precopied_rows_make_the_stall_of_a_join_short() -> None:
    """A slow network: without pre-copies the boundary waits for the rows."""
    nodes = SimulatedNode(name="n", count=3), SimulatedNode(name="late", joins_s=10.0)
    network = SimulatedNetwork(bytes_per_s=1e6)
    stalls_s = []
    for precopy in (True, False):
        job = SimulatedJob(chunks=64, rows_per_chunk=100, row_s=1e-3, iterations=60, precopy=precopy)
        result = simulate(nodes=nodes, job=job, network=network)
        assert result.history[-1].num_tasks == 4
        stalls_s.append(result.longest_stall_s)
    assert stalls_s[0] < 0.05 * stalls_s[1]
    assert stalls_s[1] > 16 * 2**20 / 1e6


def test_a_node_under_notice_hands_its_chunks_over_and_is_paid_no_longer() -> None:
    """Nothing is lost, and every sample is processed in every iteration."""
    nodes = SimulatedNode(name="n", count=3), SimulatedNode(name="leaver", notice_s=10.0, grace_s=20.0)
    result = simulate(nodes=nodes)
    assert "under notice: leaver" in said(result)
    assert result.chunks_lost == result.aborted == 0
    assert result.history[-1].num_tasks == 3
    assert {record.samples for record in result.history} == {6400}
    assert 3 * result.time_s + 10.0 < result.node_s < 3 * result.time_s + 30.0


def test_a_long_iteration_ends_early_when_the_grace_period_is_short() -> None:
    """Else the node would be taken away with all that it has."""
    nodes = SimulatedNode(name="n", count=3), SimulatedNode(name="leaver", notice_s=100.0, grace_s=10.0)
    job = SimulatedJob(chunks=64, rows_per_chunk=10_000, row_s=1e-3, iterations=5)
    result = simulate(nodes=nodes, job=job)
    assert result.chunks_lost == result.aborted == 0
    assert min(record.samples for record in result.history) < 640_000
    assert result.history[-1].num_tasks == 3


def test_a_node_that_is_too_slow_to_leave_is_lost_at_the_end_of_its_grace() -> None:
    """Its link is so slow that its chunks do not get away in time."""
    leaver = SimulatedNode(name="leaver", notice_s=10.0, grace_s=2.0, bytes_per_s=1e5)
    result = simulate(nodes=(SimulatedNode(name="n", count=3), leaver))
    assert "leaver was lost" in said(result)
    assert result.chunks_lost > 0
    assert result.has_finished


def test_a_node_that_dies_aborts_the_iteration_once_its_loss_is_known() -> None:
    """The others load its chunks and go on."""
    nodes = SimulatedNode(name="n", count=3), SimulatedNode(name="victim", dies_s=10.0)
    result = simulate(nodes=nodes, network=SimulatedNetwork(detect_s=4.0))
    assert (result.aborted, result.chunks_lost, result.has_finished) == (1, 16, True)
    assert 4.0 < result.longest_stall_s < 7.0
    assert result.history[-1].samples == 6400
    assert result.node_s == pytest.approx(3 * result.time_s + 10.0)


def test_nodes_that_are_lost_together_are_drawn_by_the_seed() -> None:
    """Half of them, without notice."""
    losses = (SimulatedLoss(at_s=10.0, share=0.5),)
    survivors = set()
    for seed in range(8):
        result = simulate(nodes=(SimulatedNode(name="n", count=4),), losses=losses, seed=seed)
        assert result.history[-1].num_tasks == 2
        assert result.aborted == 1
        survivors.add(tuple(result.history[-1].num_chunks))
    assert len(survivors) > 1


def test_a_job_whose_nodes_are_all_lost_says_what_it_waits_for() -> None:
    """It ends with the last thing that happens."""
    result = simulate(nodes=(SimulatedNode(name="n", count=2, dies_s=9.0),))
    assert not result.has_finished
    assert "1 needed (min_nodes)" in result.reason


def test_a_simulation_ends_when_its_time_is_over() -> None:
    """Nodes are paid for until then."""
    job = SimulatedJob(chunks=64, until_s=20.0)
    result = simulate(nodes=(SimulatedNode(name="n", count=2),), job=job)
    assert (result.has_finished, result.reason, result.time_s, result.node_s) == (False, "the time is over", 20.0, 40.0)


def test_memory_of_nodes_is_respected() -> None:
    """A small node has no more chunks than fit."""
    small = SimulatedNode(name="small", memory_bytes=5 << 20)
    result = simulate(nodes=(SimulatedNode(name="n", count=3), small))
    assert result.history[-1].num_chunks["small"] == 5


def test_straggler_cuts_iterations_at_its_deadline() -> None:
    """A slow node does a part of its samples; it has none to give away, because no other policy moves chunks."""
    nodes = SimulatedNode(name="n", count=3), SimulatedNode(name="slow", speed=0.1)
    result = simulate(Straggler(), nodes=nodes)
    assert result.history[-1].samples < 6400
    assert max(result.history[-1].seconds.values()) < 0.3 * max(result.history[0].seconds.values())


# Nodes of a supply.


def test_a_job_has_what_the_supply_has() -> None:
    """Nodes boot and join; when there are fewer, the newest are given notice and go."""
    steps = (0, 4, 1.0), (10, 6, 1.0), (25, 2, 3.0)
    supply = SimulatedSupply(steps=steps, boot_s=2.0, grace_s=10.0)
    result = simulate(supply=supply)
    tasks = [record.num_tasks for record in result.history]
    assert max(tasks) == 6
    assert tasks[-1] == 2
    assert set(result.history[-1].num_chunks) == {"spot-0", "spot-1"}
    assert result.chunks_lost == 0
    assert result.cost > result.node_s


class Ask(Policy):
    """Asks for so many nodes, or lets one go, after an iteration; remembers what it saw."""

    def __init__(self, total: int, after: int = 5) -> None:
        self.total, self.after = total, after
        self.seen: list[Observations] = []

    def decide(self, observations: Observations, /) -> Decision | None:
        """Once."""
        self.seen.append(observations)
        if observations.iteration != self.after:
            return None
        last = sorted(observations.num_chunks)[-1]
        action = RequestNodes(self.total) if self.total else ReleaseNode(last)
        return Decision(actions=(action,), reason="the test says so")


def test_a_policy_gets_the_nodes_that_it_asks_for_up_to_those_that_there_are() -> None:
    """It sees prices and what there is; the others are left alone."""
    named = (SimulatedNode(name="own", count=2),)
    supply = SimulatedSupply(steps=((0, 0, 0.5), (15, 3, 0.25)), boot_s=2.0)
    policy = Ask(total=4)
    result = simulate(policy, nodes=named, supply=supply)
    assert "Ask wants 4 nodes" in said(result)
    assert result.history[-1].num_tasks == 4
    first, last = policy.seen[0], policy.seen[-1]
    assert (first.price, first.available) == (0.5, 0)
    assert (last.price, last.available) == (0.25, 1)


def test_a_node_that_a_policy_lets_go_is_not_replaced() -> None:
    """The supply has more, and the job wants no other one in its place."""
    policy = Ask(total=0)
    result = simulate(policy, supply=SimulatedSupply(steps=((0, 3),)))
    assert [record.num_tasks for record in (result.history[0], result.history[-1])] == [3, 2]
    assert policy.seen[-1].available == 1


def test_no_more_nodes_than_the_job_may_have_are_started() -> None:
    """`max_nodes` holds for the supply, too."""
    job = SimulatedJob(chunks=64, iterations=5, max_nodes=3)
    result = simulate(job=job, supply=SimulatedSupply(steps=((0, 8),)))
    assert result.history[-1].num_tasks == 3
    assert result.node_s == pytest.approx(3 * result.time_s)


# The same seed, and replay.


def drawn(seed: int) -> Scenario:
    """A scenario with everything in it."""
    rng = random.Random(seed)
    nodes = [SimulatedNode(name="own", count=rng.randint(1, 3), speed=rng.uniform(0.3, 3.0))]
    for number in range(rng.randint(0, 5)):
        joins_s, boot_s = rng.choice((0.0, rng.uniform(0, 30))), rng.choice((0.0, rng.uniform(0, 5)))
        ready_s = joins_s + boot_s
        notice_s = rng.choice((None, ready_s + rng.uniform(0.1, 20)))
        grace_s = rng.uniform(0.0, 10.0)
        dies_s = rng.choice((None, (ready_s + 0.1 if notice_s is None else notice_s) + rng.uniform(0.1, 1.0) * grace_s))
        nodes.append(
            SimulatedNode(
                name=f"n{number}",
                speed=rng.uniform(0.3, 3.0),
                joins_s=joins_s,
                boot_s=boot_s,
                notice_s=notice_s,
                grace_s=grace_s,
                dies_s=None if grace_s == 0 else dies_s,
                memory_bytes=rng.choice((None, 40_000)),
            )
        )
    steps = tuple((10.0 * place, rng.randint(0, 4), rng.random()) for place in range(5))
    return Scenario(
        seed=seed,
        nodes=tuple(nodes),
        losses=(SimulatedLoss(at_s=rng.uniform(1, 30), share=rng.random() or 1.0),) if rng.random() < 0.5 else (),
        supply=SimulatedSupply(steps=steps, boot_s=rng.uniform(0, 3), grace_s=rng.uniform(0, 3)),
        network=SimulatedNetwork(
            bytes_per_s=10.0 ** rng.uniform(3, 7), load_bytes_per_s=1e5, detect_s=rng.uniform(0, 2)
        ),
        job=SimulatedJob(
            chunks=24,
            rows_per_chunk=100,
            row_s=1e-3,
            chunk_bytes=2000,
            state_bytes=200,
            iterations=40,
            noise=0.1,
            precopy=rng.random() < 0.7,
            until_s=500.0,
        ),
    )


def test_random_scenarios_replay_with_equal_effects_and_equal_bytes() -> None:
    """The ledger holds after every simulation; a graceful one loses nothing."""
    for seed in range(32):
        policies = ((), (Rebalance(),), (Rebalance(), Shuffle(share=0.3)), (Straggler(), Rebalance()))[seed % 4]
        scenario = drawn(seed)
        lines: list[str] = []
        cluster = VirtualCluster(scenario, policies, sink=TextSink(lines.append))
        result = cluster.run()
        check_ledger(cluster.scheduler.ledger)
        assert sum(1 for _ in replay(lines)) == len(lines) - 1
        again = VirtualCluster(scenario, policies).run()
        assert json.dumps(again.to_dict()) == json.dumps(result.to_dict())
        assert result.history or not result.has_finished
