"""What every benchmark of the linear models knows of data: rows with labels, and a cache outside of the repository."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

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

    @property
    def num_features(self) -> int:
        """Columns of X."""
        return int(self.X.shape[1])

    @property
    def is_sparse(self) -> bool:
        """Whether X is a CSR matrix."""
        return bool(sp.issparse(self.X))

    @property
    def num_classes(self) -> int:
        """Different labels."""
        return len(np.unique(self.y))

    def fresh(self) -> Any:
        """X for one fit: a CSR matrix without memory, so that no fit gains from the checks of an earlier one."""
        if not self.is_sparse:
            return self.X
        return sp.csr_matrix((self.X.data, self.X.indices, self.X.indptr), shape=self.X.shape, copy=False)

    def parts(self) -> tuple[np.ndarray, ...]:
        """The arrays that make up X."""
        return (self.X.data, self.X.indices, self.X.indptr) if self.is_sparse else (self.X,)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make a data set, and how many rows of it."""

    title: str
    make: Callable[[int], tuple[Any, np.ndarray]]
    rows: int
    quick_rows: int
    version: int = 1
    """Raised when the generator changes, so that nothing cached by an older one is used."""


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a cached file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{os.getpid()}-{path.name}")
    write(unfinished)
    unfinished.replace(path)


def replace_text(path: Path, text: str) -> None:
    """Write a cached text whole or not at all."""
    replace(path, lambda file: file.write_text(text, encoding="utf-8"))


def load_recipe(name: str, recipe: Recipe, folder: Path, *, quick: bool) -> DataSet:
    """A generated data set, from the cache when it is there."""
    rows = recipe.quick_rows if quick else recipe.rows
    key = f"{name}-{rows}-v{recipe.version}"
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
