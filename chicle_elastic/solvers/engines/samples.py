"""What an engine takes its steps over. Knows no torch."""

from dataclasses import dataclass

from chicle_elastic.chunks.views import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredSamples:
    """The samples of an iteration, gathered, in the order in which they are to be used.

    Attributes:
        rows: ndarray of shape (n, values), uint8 or float32, as they are in the data; they are scaled when used
            (`Network.scaling_of`); padded where the network takes more values than there are.
        codes: Class codes, ndarray of shape (n,), int64.
        weights: Factors of the losses, ndarray of shape (n,), float32; None for 1.
    """

    rows: Array
    codes: Array
    weights: Array | None
