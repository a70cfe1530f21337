"""Tuning: nodes that are not needed any more go, others come, and the learning rate follows."""

import dataclasses

import pytest

from benchmarks.policy_costs import paid
from benchmarks.shapes import higgs_shaped
from chicle_elastic.policies.scale import Scale
from chicle_elastic.policies.shuffle import Shuffle
from chicle_elastic.policies.tune import Tune
from chicle_elastic.values import SetParameter
from tests.policies.seen import falling, released, seen, total_of


def test_half_the_nodes_go_where_the_gap_stalls():
    """And nothing happens where it falls."""
    assert Tune(stall=0.2).decide(seen(16, figures=falling(0.25))) is None
    decision = Tune(stall=0.2).decide(seen(15, figures=falling(0.15)))
    assert decision is not None
    assert total_of(decision.actions) == 8
    assert released(decision.actions) == [f"n{number}" for number in range(14, 7, -1)]
    assert decision.reason == "an iteration on 15 nodes takes 15.0% off duality_gap: 8 do"


@pytest.mark.parametrize(
    ("nodes", "fields", "expected"),
    [(16, {"least": 12}, 12), (3, {}, 2), (1, {}, None), (4, {"least": 4}, None), (2, {"least": 3}, None)],
)
def test_it_keeps_some(nodes, fields, expected):
    """Its own least; it never asks for nodes to have that."""
    decision = Tune(**fields).decide(seen(nodes, figures=falling(0.1)))
    assert (None if decision is None else total_of(decision.actions)) == expected


def test_it_keeps_what_the_job_needs():
    """`min_nodes` of the job."""
    decision = Tune().decide(seen(8, figures=falling(0.1), min_nodes=6))
    assert decision is not None
    assert total_of(decision.actions) == 6


def test_it_measures_anew_after_each_change():
    """Over a whole window with the new nodes, whoever changed them."""
    policy = Tune(window=3)
    for since in range(3):
        assert policy.decide(seen(8, figures=falling(0.1), before=16, since=since)) is None
        assert policy.decide(seen(8, figures=falling(0.1), before=4, since=since)) is None
    assert policy.decide(seen(8, figures=falling(0.1), before=16, since=3)) is not None


def test_near_the_target_nothing_moves():
    """Fewer iterations are left than would show what the change has brought."""
    figures = falling(0.1)
    assert Tune(target=figures[-1] * 0.9**5.9).decide(seen(8, figures=figures)) is None
    assert Tune(target=figures[-1] * 0.9**6.1).decide(seen(8, figures=figures)) is not None


def test_a_solver_that_takes_parts_keeps_its_nodes():
    """What left them could not be seen."""
    assert Tune(figure="loss").decide(seen(8, figures=falling(0.01), name="loss", part=0.1)) is None


def test_more_nodes_instead_of_decay():
    """Twice as many, as far as they are there; asked for once."""
    policy = Tune(on_stall="grow", figure="loss", stall=0.02)
    stalled = {"figures": falling(0.01), "name": "loss", "part": 0.1}
    for fields, expected in (({}, 8), ({"available": 2}, 6), ({"available": 0}, None), ({"wanted": 8}, None)):
        decision = policy.decide(seen(4, **stalled, **fields))
        assert (None if decision is None else total_of(decision.actions)) == expected
    most = dataclasses.replace(policy, most=5).decide(seen(4, **stalled))
    assert most is not None
    assert total_of(most.actions) == 5
    assert policy.decide(seen(4, figures=falling(0.1), name="loss", part=0.1)) is None


@pytest.mark.parametrize(("scaling", "expected"), [("sqrt", 0.2), ("linear", 0.4)])
def test_the_learning_rate_follows_the_tasks(scaling, expected):
    """Set once, and where the trainer has one."""
    policy = Tune(on_stall=None, scaling=scaling, learning_rate=0.1)
    decision = policy.decide(seen(4, parameters={"learning_rate": 0.1}))
    assert decision is not None
    assert decision.actions == (SetParameter("learning_rate", pytest.approx(expected)),)
    assert policy.decide(seen(4, parameters={"learning_rate": expected})) is None
    assert policy.decide(seen(4)) is None


def test_of_two_owners_of_nodes_the_first_one_decides():
    """Scale before Tune: what Tune wants is lost, with one line; alone, Tune gives nodes back."""
    X, y = higgs_shaped(2_000)

    def run(*policies):
        return paid(X, y, C=0.05, num_tasks=4, tol=1e-9, most=12, seed=1, most_tasks=4, policies=policies)

    scale, tune = Scale(time_value=0.0, least=2, alone=None, margin=0.0), Tune(stall=0.99, window=1, least=1)
    bill, history = run(scale, tune)
    events = [event for record in history for event in record.events]
    assert bill.nodes[-1] == 2
    assert sum("Tune does not decide on the number of nodes: Scale does" in event for event in events) == 1
    bill, history = run(tune, Shuffle())
    assert bill.nodes[-1] == 1
    assert list(bill.nodes) == sorted(bill.nodes, reverse=True)
    assert history[-1].figures["duality_gap"] < history[0].figures["duality_gap"]
