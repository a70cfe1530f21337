"""Scaling: as many nodes as they are worth, and no unrest."""

import math

import pytest

from chicle_elastic.policies.scale import Scale
from tests.policies.seen import falling, released, seen, total_of

FAST, SLOW = 0.75, 0.05
"""Shares of the gap that an iteration takes away: as one task would, and as too many tasks do."""


def wanted(policy, observations):
    """Nodes that the policy wants; None where it says nothing."""
    decision = policy.decide(observations)
    return None if decision is None else total_of(decision.actions)


def test_where_nothing_is_lost_it_takes_all_that_a_second_is_worth():
    """K = sqrt(v W / (p o)): 32 at a price of 1, 16 at 4, 8 at 16, 4 at 64."""
    for price, expected in ((1.0, 32), (4.0, 16), (16.0, 8), (64.0, 4)):
        observed = seen(1, figures=falling(FAST, 5), price=price, max_nodes=99)
        assert wanted(Scale(time_value=16.0, alone=None), observed) == expected


def test_no_price_is_a_price_of_one():
    """As no resource manager has one."""
    policy = Scale(time_value=16.0, alone=None)
    assert wanted(policy, seen(2, figures=falling(FAST, 5), max_nodes=99)) == 32


def test_a_slow_fall_says_that_parallelism_costs():
    """The same times and prices, another rate."""
    policy = Scale(time_value=80.0)
    assert wanted(policy, seen(4, figures=falling(FAST, 5))) == 16
    few = wanted(policy, seen(16, figures=falling(SLOW)))
    assert few is not None
    assert few < 10


def test_slower_falls_never_want_more_nodes():
    """Monotone in the rate, and in the price."""
    policy = Scale(time_value=80.0, margin=0.0)
    by_rate = [wanted(policy, seen(16, figures=falling(share))) or 16 for share in (0.6, 0.4, 0.2, 0.1, 0.05, 0.02)]
    assert by_rate == sorted(by_rate, reverse=True)
    by_price = [wanted(policy, seen(16, figures=falling(0.2), price=price)) or 16 for price in (0.1, 1, 5, 20, 100)]
    assert by_price == sorted(by_price, reverse=True)
    assert by_rate[-1] < by_rate[0]
    assert by_price[-1] < by_price[0]


def test_it_gives_back_by_name_and_says_so_to_the_manager():
    """A request for fewer nodes, so that none comes instead, and a release of each."""
    decision = Scale(time_value=0.0, alone=None, least=6, margin=0.0).decide(seen(8, figures=falling(FAST, 5), slow=2))
    assert decision is not None
    assert total_of(decision.actions) == 6
    assert released(decision.actions) == ["n2", "n7"]
    assert "price of 1" in decision.reason


@pytest.mark.parametrize(("least", "min_nodes", "expected"), [(1, 1, 1), (3, 1, 3), (1, 4, 4), (9, 1, 9)])
def test_it_keeps_what_the_job_needs(least, min_nodes, expected):
    """Its own least, which it asks for, and that of the job."""
    observed = seen(8, figures=falling(FAST, 5), price=1e4, min_nodes=min_nodes)
    assert wanted(Scale(alone=None, least=least, margin=0.0), observed) == expected


def test_it_asks_for_what_there_is():
    """Nothing while nothing is available, and no more than that; once, and not again while it waits."""
    policy = Scale(time_value=80.0, alone=None)
    assert wanted(policy, seen(4, figures=falling(FAST, 5), available=0)) is None
    assert wanted(policy, seen(4, figures=falling(FAST, 5), available=3)) == 7
    assert wanted(policy, seen(4, figures=falling(FAST, 5), available=3, wanted=7)) is None
    assert wanted(Scale(time_value=80.0, alone=None, most=6), seen(4, figures=falling(FAST, 5))) == 6


def test_revoked_nodes_are_asked_for_when_they_can_come_again():
    """A revocation leaves it with fewer; until others are offered it has nothing to say."""
    policy = Scale(time_value=80.0, alone=None)
    revoked = {"figures": falling(FAST, 9), "before": 16, "since": 4, "wanted": 16}
    assert wanted(policy, seen(6, available=0, **revoked)) is None
    assert wanted(policy, seen(6, available=4, **revoked)) == 10


def test_more_nodes_than_allowed_go_at_once():
    """Whatever that saves, and however soon the job ends."""
    policy = Scale(most=4, time_value=1e6, alone=None, target=0.5)
    assert wanted(policy, seen(8, figures=falling(0.1, 7))) == 4


def test_it_comes_to_rest():
    """From any number of nodes to one where it stays; small changes of price and rate do not move it."""
    policy = Scale(time_value=80.0)
    for start in range(1, 17):
        observed = seen(start, figures=falling(0.2), price=1.0)
        end = wanted(policy, observed) or start
        # The same drag b with the new number of nodes: the rate follows from it.
        at_rest = seen(end, figures=falling(at(end, 0.2, start)))
        assert wanted(policy, at_rest) is None
        for price in (0.95, 1.05):
            assert wanted(policy, seen(end, figures=falling(at(end, 0.2, start)), price=price)) is None


def at(nodes, share, of_nodes):
    """The fall with so many nodes, where it is `share` with `of_nodes`."""
    drag = max(0.0, (log_of(0.75) / log_of(share) - 1) / of_nodes)
    return 1 - 0.25 ** (1 / (1 + drag * nodes))


def log_of(share):
    """Rate of a fall."""
    return -math.log1p(-share)


def test_near_the_target_nothing_moves():
    """A change would cost more than it saves."""
    figures = falling(0.1, 7)
    observed = seen(16, figures=figures, price=20.0)
    assert wanted(Scale(time_value=80.0), observed) is not None
    assert wanted(Scale(time_value=80.0, target=figures[-1] * 0.99), observed) is None
    assert wanted(Scale(time_value=80.0, target=figures[-1] * 1e-9), observed) is not None


@pytest.mark.parametrize(
    "observed",
    [
        seen(4),
        seen(4, figures=(0.5,)),
        seen(4, figures=(None,) * 6),
        seen(4, figures=(0.5,) * 6),
        seen(8, figures=falling(0.1), before=16, since=1),
    ],
)
def test_it_waits_until_it_knows_enough(observed):
    """No iteration, no figure, no fall, or other nodes a moment ago."""
    assert Scale(time_value=80.0).decide(observed) is None
