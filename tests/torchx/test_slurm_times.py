"""Times as Slurm prints them."""

import math

import pytest

from torchx_components.slurm import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93_784.0), ("2:03:04", 7384.0), ("3:04", 184.0), ("0:00", 0.0), ("UNLIMITED", math.inf)],
)
def test_times_are_read(text: str, seconds: float) -> None:
    """With days, without hours, and where there is none."""
    assert seconds_of(text) == seconds
    assert math.isinf(seconds_of("INVALID"))
