"""Data of the SVM benchmark: three synthetic sets with the shape of well-known ones.

No set is the real one: HIGGS-shaped means 28 dense features of which 7 are functions of the others, Criteo-shaped one
value in each of 39 fields with Zipf's vocabularies hashed into a million columns, MNIST-shaped 784 pixels between 0 and
1 that are mostly 0. All come from a seed and are cached in a folder outside of the repository.
"""

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from benchmarks.datasets import BLOCK_ROWS, DataSet, Recipe, load_recipe


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


def criteo_shaped(num_samples: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """CSR float32 with a million columns and 39 equal values per row (fewer where two fields collide); 25% positive."""
    rng = np.random.default_rng(1)
    num_fields, num_features, exponent = 39, 1_000_000, -0.15
    columns = np.empty((num_samples, num_fields), dtype=np.int32)
    for field in range(num_fields):
        vocabulary = round(3 * 3e5 ** (field / (num_fields - 1)))  # 3 to 900,000 values
        value = zipf_values(rng, num_samples, vocabulary, exponent)
        columns[:, field] = hashed(value, field, num_features)
    weights = (0.35 * rng.standard_normal(num_features)).astype(np.float32)
    score = weights[columns].sum(axis=1)
    noisy = score - np.quantile(score, 0.75) + rng.logistic(size=num_samples)
    values = np.full(columns.size, 1 / np.sqrt(num_fields), dtype=np.float32)
    starts = np.arange(0, columns.size + 1, num_fields, dtype=np.int32)
    X = sp.csr_matrix((values, columns.ravel(), starts), shape=(num_samples, num_features))
    X.sum_duplicates()
    return X, (noisy > 0).astype(np.int64)


def mnist_shaped(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """784 float32 features between 0 and 1 around ten prototypes; even against odd, 3% of the labels flipped."""
    rng = np.random.default_rng(2)
    prototypes = np.maximum(rng.standard_normal((10, 24)) @ rng.standard_normal((24, 784)) * 0.3, 0)
    digit = rng.integers(0, 10, num_samples)
    common = 0.12 * rng.standard_normal((30, 784))
    X = np.empty((num_samples, 784), dtype=np.float32)
    for start in range(0, num_samples, BLOCK_ROWS):
        block = X[start : start + BLOCK_ROWS]
        rows = len(block)
        ink = prototypes[digit[start : start + rows]] * rng.gamma(4, 0.25, (rows, 1))
        strokes = rng.standard_normal((rows, 30)) @ common
        block[...] = np.clip(ink + strokes + 0.1 * rng.standard_normal((rows, 784)) - 0.3, 0, 1)
    is_even = digit % 2 == 0
    return X, (is_even ^ (rng.random(num_samples) < 0.03)).astype(np.int64)


RECIPES = {
    "higgs": Recipe("HIGGS-shaped, 28 dense", higgs_shaped, 1_000_000, 50_000),
    "criteo": Recipe("Criteo-shaped, 1M sparse", criteo_shaped, 500_000, 5_000),
    "mnist": Recipe("MNIST-shaped, 784 dense", mnist_shaped, 50_000, 1_000),
}


def load(name: str, folder: Path, *, quick: bool) -> DataSet:
    """A data set of `RECIPES`, from the cache when it is there."""
    return load_recipe(name, RECIPES[name], folder, quick=quick)
