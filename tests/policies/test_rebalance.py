"""Rebalancing on virtual nodes with speeds: how fast, how well, how quiet."""

import itertools
import math
from statistics import median

import numpy as np
import pytest

from chicle_elastic.ids import NodeId
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.replaying import Replay
from chicle_elastic.values import Observations, TaskReport
from tests.house.sources import ROOT
from tests.policies.speeds import Speeds


def speeds(*costs_s: float, **options) -> Speeds:
    """Nodes n0, n1, ... that rebalance."""
    costs = {f"n{number}": cost for number, cost in enumerate(costs_s)}
    return Speeds(costs, policies=(options.pop("policy", Rebalance()),), **options)


def observe(counts: dict[str, int], sample_s: dict[str, float], **changes) -> Observations:
    """What a policy would see after ten equal iterations."""
    nodes = {NodeId(node): count for node, count in counts.items()}
    report = {node: TaskReport(samples=100, duration_s=100 * sample_s[node]) for node in nodes}
    fields = {
        "round": 1,
        "iteration": 10,
        "num_chunks": nodes,
        "samples": {node: 10 * count for node, count in nodes.items()},
        "capacity_bytes": dict.fromkeys(nodes, None),
        "used_bytes": nodes,
        "reports": {node: (report[node],) * 10 for node in nodes},
    }
    return Observations(**{**fields, **changes})


@pytest.mark.parametrize("costs", [(2.0, 1.0), (1.0, 2.0), (2.0, 1.0, 1.0, 1.0), (1.0, 1.5, 2.0, 3.0)])
def test_ten_iterations_reach_95_percent_of_a_perfect_split(costs):
    """At 32 chunks a node, whoever is slow."""
    assert speeds(*costs).run(10).throughput() >= 0.95


def test_it_ends_when_the_difference_is_below_the_time_of_a_chunk():
    """64 chunks at 2:1 are 21 and 43: 42 chunk times and 43. Then it rests."""
    nodes = speeds(2.0, 1.0).run(40)
    assert nodes.counts == {"n0": 21, "n1": 43}
    num_decisions = nodes.num_decisions
    assert nodes.run(60).num_decisions == num_decisions


def test_others_rest_when_the_slowest_has_nothing_to_give_away():
    """All wait for its last chunk, so it is of no use to be busy with the rest."""
    times = {"n0": 10.0, "n1": 0.3, "n2": 0.1}
    assert Rebalance().decide(observe({"n0": 1, "n1": 20, "n2": 20}, times)) is None
    assert Rebalance().decide(observe({"n0": 2, "n1": 20, "n2": 20}, times)) is not None


def test_short_iterations_are_no_reason():
    """Their fixed part looks like a slow task, and a move takes longer than it could ever save."""
    counts, slow = {"n0": 8, "n1": 8}, {"n0": 2e-4, "n1": 1e-4}
    assert Rebalance().decide(observe(counts, slow)) is None, "16 ms"
    assert Rebalance(min_iteration_s=0.0).decide(observe(counts, slow)) is not None
    assert Rebalance().decide(observe(counts, {node: 2 * cost for node, cost in slow.items()})) is not None, "32 ms"


def test_it_moves_gradually():
    """A part of the surplus at a time, and never so much that the slow one becomes the fast one."""
    nodes = speeds(2.0, 1.0)
    seen = []
    for _ in range(12):
        nodes.run(1)
        seen.append(nodes.counts["n0"])
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) > 2
    assert min(seen) >= 21


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("costs", [(1.0, 1.0), (1.0, 1.0, 1.0, 1.0)])
def test_five_percent_noise_moves_nothing_in_100_iterations(costs, seed):
    """Equal nodes stay as they are."""
    assert speeds(*costs, noise=0.05, seed=seed).run(100).num_decisions == 0


@pytest.mark.parametrize("seed", range(10))
def test_noise_does_not_hide_a_slow_node(seed):
    """2:1 under 5 % noise comes within 91 % of a perfect split, and stays about there."""
    nodes = speeds(2.0, 1.0, noise=0.05, seed=seed).run(15)
    assert nodes.throughput() >= 0.91
    assert nodes.run(85).throughput() >= 0.91
    assert nodes.num_decisions <= 8


@pytest.mark.parametrize("part", [1.0, 0.05], ids=["a pass", "steps of local SGD"])
@pytest.mark.parametrize(("count", "factor"), [(2, 1.5), (2, 3.0), (4, 1.5), (16, 2.0)])
def test_it_follows_a_node_that_becomes_slower(count: int, factor: float, part: float):
    """The first chunks go at the boundary after the second slow iteration where it was quiet before, else after the
    third; ten iterations later all have what they should. So it is when the node is well again."""
    nodes = speeds(*[1.0] * count, part=part).run(30)
    assert nodes.num_decisions == 0
    for cost_s, num_reports in ((factor, 2), (1.0, 3)):
        before = nodes.num_decisions
        nodes.costs_s["n1"] = cost_s
        assert nodes.run(num_reports - 1).num_decisions == before
        assert nodes.run(1).num_decisions == before + 1
        assert nodes.run(13).throughput() >= 0.95


@pytest.mark.parametrize("part", [1.0, 0.05], ids=["a pass", "steps of local SGD"])
def test_a_change_under_noise_is_seen_within_three_iterations(part: float):
    """A node becomes twice as slow, 5 % noise: 20 seeds."""
    for seed in range(20):
        nodes = speeds(1.0, 1.0, 1.0, 1.0, noise=0.05, seed=seed, part=part).run(30)
        assert nodes.num_decisions == 0
        nodes.costs_s["n2"] = 2.0
        assert nodes.run(3).num_decisions >= 1, seed


def hold_up(nodes: Speeds, node: str, num_iterations: int) -> int:
    """Let a neighbour take half of a node for so many iterations; returns the decisions since, the rest until they have
    an effect included."""
    before = nodes.num_decisions
    nodes.costs_s[node] = 2.0
    nodes.run(num_iterations)
    nodes.costs_s[node] = 1.0
    return nodes.run(8).num_decisions - before


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("length", [1, 2])
def test_a_burst_of_two_iterations_moves_nothing(count: int, length: int):
    """However often it comes."""
    nodes = speeds(*[1.0] * count, noise=0.02).run(20)
    assert [hold_up(nodes, f"n{number % count}", length) for number in range(8)] == [0] * 8


def test_a_burst_that_is_as_long_as_one_before_is_no_change():
    """The first one of three iterations cannot be told from a change; later ones can, of whatever node."""
    nodes = speeds(1.0, 1.0, 1.0, 1.0, noise=0.02).run(20)
    for node in ("n1", "n1", "n2", "n3"):
        hold_up(nodes, node, 3)
    [line] = [line for line in nodes.logs if "takes 2x" in line]
    assert "n1 takes" in line


def test_a_change_after_bursts_is_seen_as_soon_as_it_lasts_longer():
    """After bursts of two iterations at the third one."""
    nodes = speeds(1.0, 1.0, 1.0, 1.0, noise=0.02).run(20)
    assert hold_up(nodes, "n1", 2) == hold_up(nodes, "n2", 2) == 0
    nodes.costs_s["n1"] = 2.0
    assert nodes.run(2).num_decisions == 0
    assert nodes.run(1).num_decisions == 1


@pytest.mark.parametrize(("hiccup", "num_reports"), [(1.3, 2), (1.5, 3)])
def test_a_small_hiccup_hides_no_large_change(hiccup: float, num_reports: int):
    """One iteration that took 1.3x as long is no burst like a change to 1.5x; one that took 1.5x is."""
    nodes = speeds(1.0, 1.0).run(15)
    for cost_s, num_iterations in ((hiccup, 1), (1.0, 20), (1.5, num_reports - 1)):
        nodes.costs_s["n1"] = cost_s
        assert nodes.run(num_iterations).num_decisions == 0
    assert nodes.run(1).num_decisions == 1


def test_what_holds_up_all_tasks_alike_moves_nothing():
    """Bursts of five iterations of all nodes at once."""
    nodes = speeds(1.0, 1.0, 1.0, 1.0, noise=0.02).run(20)
    for _ in range(6):
        nodes.costs_s = dict.fromkeys(nodes.costs_s, 2.0)
        nodes.run(5)
        nodes.costs_s = dict.fromkeys(nodes.costs_s, 1.0)
        nodes.run(7)
    assert nodes.num_decisions == 0


@pytest.mark.parametrize("correlation", [0.5, 0.8])
def test_noise_that_persists_moves_hardly_anything_and_hides_no_change(correlation: float):
    """Each report resembles the one before it: autoregressive noise of 5 %. By scatter alone chunks would follow
    the noise to and fro, up to fourteen times in a job."""
    num_decisions = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        shocks = 0.05 * math.sqrt(1 - correlation**2) * rng.standard_normal((4, 200))
        noise = np.array(list(itertools.accumulate(shocks.T, lambda state, shock: correlation * state + shock)))[50:]
        nodes = speeds(1.0, 1.0, 1.0, 1.0)
        nodes.noise_of = lambda node, number, noise=noise: 1 + noise[number, int(node[1:])]
        num_decisions += nodes.run(100).num_decisions
        nodes.costs_s["n2"] = 2.0
        before = nodes.num_decisions
        assert nodes.run(3).num_decisions > before
    assert num_decisions <= 2 * 6


def test_equal_times_are_no_noise_at_all():
    """Also where none is assumed: a difference of more than a chunk counts."""
    counts = {"n0": 8, "n1": 8}
    assert Rebalance(noise=0.0).decide(observe(counts, {"n0": 1.0, "n1": 1.0})) is None
    assert Rebalance(noise=0.0).decide(observe(counts, {"n0": 2.0, "n1": 1.0})) is not None


def recorded_noise() -> list[list[float]]:
    """What each task of recorded jobs on real nodes took per sample, over the median of its neighbours in time."""
    ratios = []
    for path in sorted((ROOT / "tests/runtime/simulate/runs").glob("*.gz")):
        taken: dict[NodeId, list[float]] = {}
        for step in Replay(path):
            if isinstance(step.line.event, events.IterationFinished):
                for node, report in step.line.event.reports.items():
                    if report.samples:
                        taken.setdefault(node, []).append(report.duration_s / report.samples)
        for sample_s in taken.values():
            middles_s = [median(sample_s[max(0, number - 10) : number + 11]) for number in range(len(sample_s))]
            if len(sample_s) >= 100:
                ratios += [(np.array(sample_s) / middles_s).tolist()]
    return ratios


@pytest.mark.parametrize("part", [1.0, 0.05], ids=["a pass", "steps of local SGD"])
def test_recorded_noise_moves_nothing_and_hides_no_change(part: float):
    """Twenty jobs of 100 quiet iterations, each with other stretches of the records; then a node is 1.5x slower."""
    records, rng = recorded_noise(), np.random.default_rng(0)
    assert len(records) >= 4
    for _ in range(20):
        nodes = speeds(1.0, 1.0, 1.0, 1.0, part=part)
        stretches = {}
        for node in nodes.costs_s:
            record = records[rng.integers(len(records))]
            stretches[node] = np.roll(record, rng.integers(len(record)))
        nodes.noise_of = lambda node, number, stretches=stretches: stretches[node][number % len(stretches[node])]
        assert nodes.run(100).num_decisions == 0
        nodes.costs_s["n3"] = 1.5
        assert nodes.run(3).num_decisions >= 1


def test_an_iteration_of_local_sgd_is_no_epoch():
    """Tasks that process a twentieth of their rows: the reason and the least duration are of what they do process."""
    nodes = speeds(1.9e-4, 1e-4, part=0.05, chunks_per_node=200).run(20)
    assert nodes.num_decisions == 0, "19 ms of the slow one"
    nodes = speeds(2.2e-4, 1e-4, part=0.05, chunks_per_node=200).run(20)
    [line, *_] = [line for line in nodes.logs if "Rebalance moves" in line]
    assert "and 22 ms for an iteration, the fastest task 10 ms" in line


def test_the_end_of_an_epoch_says_nothing():
    """Few samples have to bear what an iteration takes beside them: 10 ms here, at equal speeds."""
    usual = [TaskReport(samples=100, duration_s=0.11)] * 8
    last = [TaskReport(samples=4, duration_s=0.014)] * 2
    reports = {NodeId("n0"): (*usual, *last), NodeId("n1"): (*usual, *[TaskReport(samples=4, duration_s=0.004)] * 2)}
    assert Rebalance().decide(observe({"n0": 8, "n1": 8}, {"n0": 1.0, "n1": 1.0}, reports=reports)) is None


def test_it_follows_slow_drift():
    """1 % slower with every iteration, up to 2x: it is never far behind."""
    nodes = speeds(1.0, 1.0, 1.0).run(10)
    while nodes.costs_s["n0"] < 2.0:
        nodes.costs_s["n0"] *= 1.01
        nodes.run(1)
        assert nodes.throughput() >= 0.88
    assert nodes.run(15).throughput() >= 0.95


def test_a_full_node_is_asked_to_take_no_more():
    """The fast one has room for two chunks; nobody votes for a boundary to try a third."""
    nodes = speeds(2.0, 1.0, chunks_per_node=8, capacity_bytes=10).run(40)
    assert nodes.counts == {"n0": 6, "n1": 10}
    assert nodes.num_decisions <= 2


def test_nobody_is_left_without_chunks():
    """A node that has none has no time per sample, and could never show that it is fast again."""
    assert speeds(100.0, 1.0, chunks_per_node=4).run(30).counts["n0"] == 1


def test_iterations_of_nodes_that_were_lost_say_nothing_of_the_time_of_one():
    """Six of eight nodes were lost four iterations ago: those that are left process four times the rows since."""
    reports = {
        NodeId(node): tuple(TaskReport(samples=count, duration_s=count * cost) for count in [100] * 6 + [400] * 4)
        for node, cost in (("a", 1e-4), ("b", 2e-4))
    }
    samples = dict.fromkeys(reports, 400)
    decision = Rebalance(min_iteration_s=0.05).decide(
        observe({"a": 40, "b": 40}, {"a": 1.0, "b": 1.0}, reports=reports, samples=samples)
    )
    assert decision is not None, "an iteration takes 0.08 s"
    assert "80 ms" in decision.reason


def test_few_reports_are_no_reason():
    """A node that has just come is not judged, and the others are not judged by it."""
    seen = observe({"n0": 8, "n1": 8}, {"n0": 2.0, "n1": 1.0})
    assert Rebalance().decide(seen) is not None
    short = {**seen.reports, NodeId("n0"): seen.reports[NodeId("n0")][:2]}
    assert Rebalance().decide(observe({"n0": 8, "n1": 8}, {"n0": 2.0, "n1": 1.0}, reports=short)) is None


def test_an_interrupted_iteration_says_nothing():
    """No samples, no time per sample."""
    reports = {NodeId(node): (TaskReport(samples=0, duration_s=1.0),) * 10 for node in ("n0", "n1")}
    assert Rebalance().decide(observe({"n0": 8, "n1": 8}, {"n0": 2.0, "n1": 1.0}, reports=reports)) is None


def test_the_reason_names_the_slow_node_with_figures():
    """It is logged, and shown in TensorBoard, in those words."""
    decision = Rebalance().decide(observe({"n0": 8, "n1": 8, "n2": 8}, {"n0": 2.0, "n1": 1.0, "n2": 1.0}))
    assert decision is not None
    assert decision.reason.startswith("n0 takes 2x the median time per sample and 1.6e+05 ms for an iteration")
    assert "of its 8 chunks" in decision.reason
