"""Data of the SVM benchmark: three synthetic sets with the shape of well-known ones, and the best possible objective.

No set is the real one: HIGGS-shaped means 28 dense features of which 7 are functions of the others, Criteo-shaped one
value in each of 39 fields with Zipf's vocabularies hashed into a million columns, MNIST-shaped 784 pixels between 0 and
1 that are mostly 0. All come from a seed and are cached in a folder outside of the repository.

The objective is everywhere 0.5 * |w|^2 + C * sum(hinge), without intercept.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

VERSION = 1
"""Raised when a generator changes, so that nothing cached by an older one is used."""
BLOCK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class DataSet:
    """Rows and labels.

    Attributes:
        key: Name that tells apart all parameters of the generator; part of the names of cached files.
        title: Name for people.
        X: ndarray or CSR matrix of shape (num_samples, num_features).
        y: ndarray of shape (num_samples,), int64, class labels.
    """

    key: str
    title: str
    X: Any
    y: np.ndarray

    @property
    def num_samples(self) -> int:
        """Rows of X."""
        return len(self.y)

    def fresh(self) -> Any:
        """X for one fit: a CSR matrix without memory, so that no fit gains from the checks of an earlier one."""
        if not sp.issparse(self.X):
            return self.X
        return sp.csr_matrix((self.X.data, self.X.indices, self.X.indptr), shape=self.X.shape, copy=False)

    def parts(self) -> tuple[np.ndarray, ...]:
        """The arrays that make up X."""
        return (self.X.data, self.X.indices, self.X.indptr) if sp.issparse(self.X) else (self.X,)


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


def criteo_shaped(num_samples: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """CSR float32 with a million columns and 39 equal values per row (fewer where two fields collide); 25% positive."""
    rng = np.random.default_rng(1)
    num_fields, num_features, exponent = 39, 1_000_000, -0.15
    columns = np.empty((num_samples, num_fields), dtype=np.int32)
    for field in range(num_fields):
        vocabulary = round(3 * 3e5 ** (field / (num_fields - 1)))  # 3 to 900,000 values
        uniform = rng.random(num_samples)
        rank = (1 - uniform * (1 - (vocabulary + 1.0) ** exponent)) ** (1 / exponent)  # bounded Pareto
        value = np.minimum(rank.astype(np.int64) - 1, vocabulary - 1)
        hashed = value * 2654435761 + (field + 1) * 40503 * 65537
        hashed ^= hashed >> 15
        hashed *= 2246822519  # wraps around
        hashed ^= hashed >> 13
        columns[:, field] = hashed % num_features
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


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make a data set, and how many rows of it."""

    title: str
    make: Callable[[int], tuple[Any, np.ndarray]]
    rows: int
    quick_rows: int


RECIPES = {
    "higgs": Recipe("HIGGS-shaped, 28 dense", higgs_shaped, 1_000_000, 50_000),
    "criteo": Recipe("Criteo-shaped, 1M sparse", criteo_shaped, 500_000, 5_000),
    "mnist": Recipe("MNIST-shaped, 784 dense", mnist_shaped, 50_000, 1_000),
}


def replace(path: Path, write: Callable[[Path], None]) -> None:
    """Write a cached file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{os.getpid()}-{path.name}")
    write(unfinished)
    unfinished.replace(path)


def load(name: str, folder: Path, *, quick: bool) -> DataSet:
    """A data set of `RECIPES`, from the cache when it is there."""
    recipe = RECIPES[name]
    rows = recipe.quick_rows if quick else recipe.rows
    key = f"{name}-{rows}-v{VERSION}"
    path = folder / f"{key}.npz"
    if not path.exists():
        X, y = recipe.make(rows)
        arrays = {"data": X.data, "indices": X.indices, "indptr": X.indptr} if sp.issparse(X) else {"X": X}
        replace(path, lambda file: np.savez(file, y=y, shape=np.array(X.shape), **arrays))
    with np.load(path) as cached:
        if "X" in cached:
            X = cached["X"]
        else:
            parts = (cached["data"], cached["indices"], cached["indptr"])
            X = sp.csr_matrix(parts, shape=tuple(cached["shape"].tolist()))
        return DataSet(key=key, title=f"{recipe.title}, {rows} rows", X=X, y=cached["y"])


def primal(data: DataSet, coef: np.ndarray, C: float) -> np.ndarray:
    """The objective of each output in float64, computed here and not by any of the libraries.

    Args:
        data: The samples.
        coef: ndarray of shape (outputs, num_features); one output means classes 1 against 0.
        C: Factor of the sum of losses.

    Returns:
        ndarray of shape (outputs,), float64.
    """
    weights = np.asarray(coef, dtype=np.float64)
    classes = np.unique(data.y)
    positive = classes[1:] if len(weights) == 1 else classes
    losses = np.zeros(len(weights))
    for start in range(0, data.num_samples, BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        block = data.X[rows] if sp.issparse(data.X) else data.X[rows].astype(np.float64)
        signs = np.where(data.y[rows, None] == positive, 1.0, -1.0)
        losses += np.maximum(0.0, 1.0 - signs * (block @ weights.T)).sum(axis=0)
    return 0.5 * np.einsum("kd,kd->k", weights, weights) + C * losses


@dataclass(frozen=True, slots=True)
class Reference:
    """The best possible objective of each output lies in [lower, upper]."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]

    @property
    def width(self) -> float:
        """Relative width of the widest interval."""
        return max((high - low) / high for low, high in zip(self.lower, self.upper, strict=True))

    def suboptimality(self, objective: np.ndarray) -> float:
        """(P - P*) / P* of the worst output, with the upper end as P*: a peer gains from the doubt."""
        return float(np.max((objective - np.array(self.upper)) / np.array(self.upper)))


def reference(data: DataSet, C: float, tol: float, folder: Path) -> Reference:
    """The interval from a fit of ours that is certified to `tol`, its ends evaluated by `primal` where they can be.

    Raises:
        SystemExit: The fit did not get there; nothing could be compared with it.
    """
    from estimators import ChicleSVM

    path = folder / f"{data.key}-C{C:.10g}-gap{tol:g}.json"
    if path.exists():
        cached = json.loads(path.read_text(encoding="utf-8"))
        return Reference(tuple(cached["lower"]), tuple(cached["upper"]))
    svm = ChicleSVM(C=C, tol=tol, max_iter=20_000, fit_intercept=False, n_threads=1, random_state=0)
    svm.fit(data.fresh(), data.y)
    if not svm.duality_gap_ <= tol:
        raise SystemExit(f"the reference of {data.title} at C={C:g} has gap {svm.duality_gap_:.1e}, above {tol:g}")
    ends = {"lower": svm.dual_objective_.tolist(), "upper": primal(data, svm.coef_, C).tolist()}
    replace(path, lambda file: file.write_text(json.dumps(ends), encoding="utf-8") and None)
    return Reference(tuple(ends["lower"]), tuple(ends["upper"]))
