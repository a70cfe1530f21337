"""Generators of data like the paper's: HIGGS and a click log as Criteo's. None is real; all come from a seed.

HIGGS-shaped: 28 dense columns, of which 7 are functions of the others. Click logs: counts over three orders of
magnitude beside hashed categories.
"""

from functools import cache

import numpy as np
import scipy.sparse as sp

from chicle_elastic.evaluate.datasets import BLOCK_ROWS, DataSet

NUM_COUNTS, NUM_LOG_COUNTS, NUM_CATEGORIES = 8, 5, 26  # 13 and 26 as in the Criteo challenge
NUM_HEAVY_COUNTS, MOST_COUNTS = 3, 5000


def higgs_shaped(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """28 standardised float32 features; two classes of equal size that overlap much."""
    rng = np.random.default_rng(0)
    mixing = 0.25 * rng.standard_normal((21, 21)) + np.eye(21)
    X = np.empty((num_samples, 28), dtype=np.float32)
    for start in range(0, num_samples, BLOCK_ROWS):
        block = X[start : start + BLOCK_ROWS]
        low = rng.standard_normal((len(block), 21)) @ mixing
        low[:, ::4] = np.exp(0.5 * low[:, ::4])  # skewed, like momenta
        block[:, :21] = low
        block[:, 21] = np.hypot(low[:, 0], low[:, 1])
        block[:, 22] = np.hypot(low[:, 2], low[:, 3])
        block[:, 23] = low[:, 4] * low[:, 5]
        block[:, 24] = np.abs(low[:, 6] - low[:, 7])
        block[:, 25] = np.sqrt(np.abs(low[:, 8] * low[:, 9]))
        block[:, 26] = np.maximum(low[:, 10], low[:, 11])
        block[:, 27] = low[:, 12] ** 2
    X -= X.mean(axis=0, dtype=np.float64).astype(np.float32)
    X /= X.std(axis=0, dtype=np.float64).astype(np.float32)
    linear = X @ (0.12 * rng.standard_normal(28)).astype(np.float32)
    score = linear + 0.5 * X[:, 1] * X[:, 2] - 0.4 * np.abs(X[:, 24]) + 0.4 * X[:, 5] * X[:, 21]
    noisy = score - np.median(score) + 1.2 * rng.logistic(size=num_samples)
    return X, (noisy > 0).astype(np.int64)


@cache
def higgs(num_samples: int) -> DataSet:
    """Return the same as a data set, made once."""
    X, y = higgs_shaped(num_samples)
    return DataSet(f"higgs-{num_samples}", f"HIGGS-shaped, {num_samples} rows", X, y)


@cache
def click_data(num_samples: int) -> DataSet:
    """Return a click log as a data set, made once: with the logarithms of all counts, and rows of unit length."""
    X, y = click_log(num_samples, 1 << 18)
    is_raw = X.indices < NUM_COUNTS
    X.data[is_raw] = np.log1p(X.data[is_raw])
    return DataSet(f"clicks-unit-{num_samples}", f"Criteo-shaped, {num_samples} rows", unit_rows(X), y)


def unit_rows(X: sp.csr_matrix) -> sp.csr_matrix:
    """Return X with rows of Euclidean length 1; rows of zeros as they are. The steps of CoCoA are as short as the
    longest row wants: on 20,000 rows 16 tasks come to a gap of 1e-3 in 13 iterations, and stand at 1.3e-3 after 300 if
    only the logarithms are taken, at 0.13 after 60 with raw counts."""
    lengths = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    return sp.csr_matrix(sp.diags(1.0 / np.where(lengths > 0, lengths, 1.0)) @ X, dtype=X.dtype)


def zipf_values(rng: np.random.Generator, num_samples: int, vocabulary: int, exponent: float) -> np.ndarray:
    """Numbers from 0 to `vocabulary` - 1, small ones more often: a bounded Pareto distribution, cut to integers.

    Args:
        rng: Source of chance.
        num_samples: How many.
        vocabulary: Different values at most.
        exponent: Not 0; frequencies fall about as rank ** (exponent - 1).

    Returns:
        ndarray of shape (num_samples,), int64.
    """
    uniform = rng.random(num_samples)
    rank = (1 - uniform * (1 - (vocabulary + 1.0) ** exponent)) ** (1 / exponent)
    return np.minimum(rank.astype(np.int64) - 1, vocabulary - 1)


def hashed(value: np.ndarray, field: int, num_columns: int) -> np.ndarray:
    """Column of each value (int64) of a categorical field: the hashing trick, in which values and fields collide."""
    code = value * 2654435761 + (field + 1) * 40503 * 65537
    code ^= code >> 15
    code *= 2246822519  # wraps around
    code ^= code >> 13
    return code % num_columns


def click_log(num_samples: int, num_features: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """CSR float32: 8 raw counts, 5 counts as log(1 + count), 26 hashed categories; 15% clicks.

    Counts come first, and nothing is scaled, which is the point: three raw counts have tails that reach hundreds and
    thousands, one of them Pareto's, and five stay below a hundred. About a third of all counts are 0 and not stored.
    The true weights are sparse, and a click depends on the logarithms of all counts.
    """
    rng = np.random.default_rng(3)
    activity = rng.standard_normal(num_samples)
    num_numeric = NUM_COUNTS + NUM_LOG_COUNTS
    counts = np.empty((num_samples, num_numeric))
    for column in range(num_numeric):
        noise = 0.5 * activity + np.sqrt(0.75) * rng.standard_normal(num_samples)
        is_heavy = column < NUM_HEAVY_COUNTS or column >= NUM_COUNTS
        if column % 5 == 1:  # Pareto
            counts[:, column] = np.floor((1 - rng.random(num_samples)) ** (-1 / 1.2) * np.exp(0.3 * noise))
        else:  # log-normal
            spread = rng.uniform(1, 1.7) if is_heavy else rng.uniform(0.4, 0.8)
            counts[:, column] = np.floor(np.exp(rng.uniform(0.5, 2) + spread * noise))
        counts[:, column] = np.minimum(counts[:, column], MOST_COUNTS if is_heavy else 100)
    counts[rng.random(counts.shape) < rng.uniform(0, 0.3, num_numeric)] = 0  # missing
    logs = np.log1p(counts)
    numeric = counts.astype(np.float32)
    numeric[:, NUM_COUNTS:] = logs[:, NUM_COUNTS:]

    columns = np.empty((num_samples, NUM_CATEGORIES), dtype=np.int32)
    for field in range(NUM_CATEGORIES):
        vocabulary = round(3 * 1e5 ** (field / (NUM_CATEGORIES - 1)))  # 3 to 300,000 values
        value = zipf_values(rng, num_samples, vocabulary, exponent=-0.2)
        columns[:, field] = num_numeric + hashed(value, field, num_features - num_numeric)
    weights = rng.standard_normal(num_features) * (rng.random(num_features) < 0.2)
    score = logs @ (0.3 * rng.standard_normal(num_numeric)) + weights[columns].sum(axis=1)
    noisy = score + rng.logistic(size=num_samples)

    rows = np.repeat(np.arange(num_samples), num_numeric + NUM_CATEGORIES)
    places = np.hstack([np.tile(np.arange(num_numeric, dtype=np.int32), (num_samples, 1)), columns])
    values = np.hstack([numeric, np.ones(columns.shape, dtype=np.float32)])
    X = sp.csr_matrix((values.ravel(), (rows, places.ravel())), shape=(num_samples, num_features))
    X.eliminate_zeros()
    return X, (noisy > np.quantile(noisy, 0.85)).astype(np.int64)
