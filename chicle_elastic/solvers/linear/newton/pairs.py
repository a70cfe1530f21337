"""What a kept preconditioner has learnt since it was made (limited-memory BFGS).

Each product of a run of conjugate gradients shows by how much the gradient changes along a vector. Directions agree
with the last few of these changes, and with the factor elsewhere (Nocedal 1980, "Updating quasi-Newton matrices with
limited storage"). Pairs are one flat vector: changes of w and of the gradient in turn, the oldest first.
"""

from collections.abc import Callable

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import dot
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES

MOST_PAIRS = 6  # Pairs that are kept; with more of them a new block would have paid long ago


def appended(pairs: Array, change: Array, of_gradient: Array) -> Array:
    """Append a pair, and drop the oldest ones if that were too many; of very wide data there are none."""
    size = 2 * len(change)
    most = min(MOST_PAIRS, MOST_BLOCK_VALUES // size)
    if most == 0 or not dot(change, of_gradient) > 0.0:  # of a convex function that is rounding
        return pairs
    return np.concatenate([pairs[max(len(pairs) - (most - 1) * size, 0) :], change, of_gradient])


def solve(pairs: Array, vector: Array, solve_block: Callable[[Array], Array]) -> Array:
    """Multiply with the inverse second derivatives, `solve_block` with that of the factored block: two loops."""
    if not len(pairs):
        return solve_block(vector)
    known = pairs.reshape(-1, 2, len(vector))
    rest, shares = vector.copy(), []
    for change, of_gradient in known[::-1]:
        share = float(change @ rest) / float(change @ of_gradient)
        rest -= share * of_gradient
        shares.append(share)
    found = solve_block(rest)
    for (change, of_gradient), share in zip(known, reversed(shares), strict=True):
        found += (share - float(of_gradient @ found) / float(change @ of_gradient)) * change
    return found
