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
    """Where the last fit ended.

    Attributes:
        fingerprint: Of features and labels.
        slopes: ndarray of shape (n_samples, n_outputs), float64. alpha_i / C_i of each output. A new C, other weights
            and even another loss change the C_i and leave the slopes nearly as they were: a dual at its bound stays at
            its bound.
    """

    fingerprint: Hashable
    slopes: Array

    @classmethod
    def of(cls, fingerprint: Hashable, duals: Array, upper: Array) -> "KeptDuals":
        """Keep `duals` of shape (n_samples, n_outputs), whose bounds C_i are `upper` of shape (n_samples,)."""
        return cls(fingerprint=fingerprint, slopes=dual_slopes(duals, upper[:, np.newaxis]))

    def state(self, loss: str, upper: Array) -> Array:
        """Chunk state to begin with, shape (n_samples, n_outputs, 1), feasible for the bounds `upper`."""
        return duals_from_slopes(Loss.named(loss), self.slopes, upper[:, np.newaxis])[:, :, np.newaxis]


def fingerprint_of(*arrays: Array) -> Hashable:
    """Shapes, dtypes and checksums of every byte of C-contiguous arrays."""
    return tuple((array.shape, array.dtype.str, zlib.crc32(array.reshape(-1).view(np.uint8).data)) for array in arrays)
