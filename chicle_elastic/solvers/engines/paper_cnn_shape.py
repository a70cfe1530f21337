"""Sizes of images on their way through the default network; for callers that have no torch yet."""

import math
from typing import Any

import numpy as np

LEAST_SIDE = 16
"""Smallest height and width."""


def side_after(side: int) -> int:
    """Height or width after both convolutions and poolings of an image with this one."""
    return ((side - 4) // 2 - 4) // 2


def columns_for(num_features: int, input_shape: tuple[int, ...]) -> Any:
    """Where the features of a flat sample go in an input with more values than that; the others stay zero.

    They fill the smallest square that has room for them, row by row, in the middle of the image: so features that were
    a small square image stay one, and few features are not in a corner that few filters see.

    Args:
        num_features: Features of a sample.
        input_shape: Shape of a sample as the network takes it, (1, height, width) where features are missing.

    Returns:
        Positions in the flattened input, ndarray of shape (num_features,); a slice where nothing is missing.
    """
    if num_features == math.prod(input_shape):
        return slice(None)
    *_, height, width = input_shape
    side = math.isqrt(num_features - 1) + 1
    top, left = (height - side) // 2, (width - side) // 2
    rows, columns = np.divmod(np.arange(num_features), side)
    return (top + rows) * width + left + columns


def square_for(num_features: int) -> int:
    """Side of the smallest square image that the network takes and that has room for so many values."""
    return max(LEAST_SIDE, math.isqrt(num_features - 1) + 1)
