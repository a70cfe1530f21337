"""What policies on nodes read from observations."""

import pytest

from chicle_elastic.policies.pace import fall, iterations_left, leavers, settled, work
from tests.policies.seen import falling, seen


@pytest.mark.parametrize(
    ("before", "since", "expected"), [(None, None, 12), (16, 3, 3), (4, 5, 5), (9, 2, 2), (7, 0, 0)]
)
def test_a_change_of_membership_is_found(before, since, expected):
    """Nodes that came have few reports; where some have left, the others had fewer rows before."""
    assert settled(seen(8, figures=falling(0.1), before=before, since=since)) == expected


def test_a_fall_is_that_of_the_present_nodes():
    """It begins with the figure that the last iteration of others left, and is unknown before the window is full."""
    figures = (1.0, 0.9, 0.5, 0.4, 0.32)
    assert fall(seen(8, figures=figures, before=16, since=2), "duality_gap", 2) == pytest.approx(0.2)
    assert fall(seen(8, figures=figures, before=16, since=2), "duality_gap", 3) is None
    assert fall(seen(8, figures=falling(0.3)), "duality_gap", 3) == pytest.approx(0.3)


def test_a_fall_takes_the_best_figure_so_far():
    """A certified gap goes up at times, and that is no fall, and no reason to divide by nothing."""
    assert fall(seen(8, figures=(1.0, 0.5, 0.25, 0.6, 0.25)), "duality_gap", 2) == 0.0
    assert fall(seen(8, figures=(1.0, 0.5, 0.25, 0.3, 0.125)), "duality_gap", 2) == pytest.approx(1 - 0.5**0.5)


def test_figures_may_be_rare():
    """Certificates are; iterations between them count."""
    observed = seen(4, figures=(None, 1.0, None, None, None, 0.0625, None))
    assert fall(observed, "duality_gap", 3) == pytest.approx(0.5)
    assert iterations_left(observed, "duality_gap", 0.0625 / 8, 3) == pytest.approx(3)


@pytest.mark.parametrize("figures", [(), (None,) * 5, (0.5,), (0.5, 0.0, 0.0, 0.0), (-1.0, -2.0, -3.0, -4.0)])
def test_what_has_no_rate_has_none(figures):
    """No figure, one of them, or one that does not fall to zero."""
    assert fall(seen(4, figures=figures), "duality_gap", 2) is None
    assert iterations_left(seen(4, figures=figures), "duality_gap", 1e-3, 2) is None


def test_work_is_what_nodes_compute_and_wait():
    """In node seconds, and seconds beside those of the slowest node."""
    took = work(seen(8, figures=falling(0.1), waiting_s=0.5), 3)
    assert took is not None
    assert took.node_s == pytest.approx(16)
    assert took.waiting_s == pytest.approx(0.5)
    assert work(seen(8), 3) is None


def test_the_slowest_node_leaves_first_and_then_the_newest():
    """By the number in its name, and not by its letters."""
    observed = seen(12, figures=falling(0.1), slow=3)
    assert leavers(observed, 3) == ["n3", "n11", "n10"]
    assert leavers(observed, 0) == []
