"""What a warm start keeps: the slopes of the duals, and a fingerprint of the data that they belong to.

Duals are only ever a better or worse place to begin: they are made feasible for the new problem and w is computed from
them over the new data, so a fingerprint that matched by accident would cost iterations and never correctness.
"""

import zlib
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.objectives import Loss, dual_slopes, duals_from_slopes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDuals:
    """Where the last fit ended."""

    fingerprint: Hashable  # of features and labels
    # ndarray of shape (n_samples, n_outputs), float64. alpha_i / C_i of each output. Other weights and another loss
    # leave them nearly as they were, and so does a new C for the hinge: a dual at its bound stays there.
    slopes: Array
    upper: Array  # ndarray of shape (n_samples,), float64. The C_i.

    @classmethod
    def of(cls, fingerprint: Hashable, duals: Array, upper: Array) -> "KeptDuals":
        """Keep `duals` of shape (n_samples, n_outputs), whose bounds C_i are `upper` of shape (n_samples,)."""
        return cls(fingerprint=fingerprint, slopes=dual_slopes(duals, upper[:, np.newaxis]), upper=upper.copy())

    def state(self, loss: str, upper: Array) -> Array:
        """Chunk state to begin with, shape (n_samples, n_outputs, 1), feasible for the bounds `upper`.

        Rows that were added at the end begin with duals of 0, so that w is the one of the last fit.
        Smooth losses keep alpha itself where C_i grows, and with it w, which hardly changes along a path of C: Newton's
        method needs a third of the iterations of a cold start then, and two and a half times as many with the slopes.
        Where C_i falls the slopes are better, because alphas that are cut off at their new bounds give a bad w.
        """
        found, slopes = Loss.named(loss), np.zeros((len(upper), self.slopes.shape[1]))
        slopes[: len(self.upper)] = self.slopes
        if found is not Loss.HINGE:
            before = np.append(self.upper, upper[len(self.upper) :])
            slopes *= np.divide(before, upper, out=np.ones_like(upper), where=upper > before)[:, np.newaxis]
        return duals_from_slopes(found, slopes, upper[:, np.newaxis])[:, :, np.newaxis]


def fingerprint_of(*arrays: Array, read: dict[int, tuple[int, int]]) -> Hashable:
    """Return shapes, dtypes and checksums of every byte of C-contiguous arrays.

    `read` keeps of each array how many bytes were read and their checksum, with which more rows of the arrays go on.
    """
    found = []
    for number, array in enumerate(arrays):
        values = array.reshape(-1).view(np.uint8).data
        begin, checksum = read.get(number, (0, 0))
        if begin > len(values):
            begin = checksum = 0
        read[number] = len(values), zlib.crc32(values[begin:], checksum)
        found.append((array.shape, array.dtype.str, read[number][1]))
    return tuple(found)
