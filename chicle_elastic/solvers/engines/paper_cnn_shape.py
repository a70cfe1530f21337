"""Sizes of images on their way through the default network; for callers that have no torch yet."""

LEAST_SIDE = 16
"""Smallest height and width."""


def side_after(side: int) -> int:
    """Height or width after both convolutions and poolings of an image with this one."""
    return ((side - 4) // 2 - 4) // 2


def square_for(num_features: int) -> int:
    """Side of the smallest square image that the network takes and that has room for so many values."""
    side = LEAST_SIDE
    while side * side < num_features:
        side += 1
    return side
