"""Images, estimators and folders for the tests of ChicleCNNClassifier."""

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.folder_writer import ChunkFolderWriter
from chicle_elastic.chunks.views import Array
from estimators import ChicleCNNClassifier
from tests.solvers import nets

FAST: dict[str, Any] = {
    "learning_rate": 0.03,
    "batch_size": 16,
    "max_epochs": 3,
    "random_state": 0,
    "kernels": "onednn",
}


def bars(num_rows: int = 240, *, seed: int = 0) -> tuple[Array, Array]:
    """`nets.images` with labels that are words."""
    X, y = nets.images(num_rows, seed=seed)
    return X, np.array(["left", "middle", "right"])[y]


def digits(num_rows: int = 600) -> tuple[Array, Array]:
    """Some of scikit-learn's digits, flat, from 0 to 1."""
    X, y = load_digits(return_X_y=True)
    return (X[:num_rows] / 16).astype(np.float32), y[:num_rows]


def tiny(**params: Any) -> ChicleCNNClassifier:
    """An estimator of a small network for `bars`."""
    return ChicleCNNClassifier(**{"module": nets.Tiny, **FAST, **params})


def paper(**params: Any) -> ChicleCNNClassifier:
    """An estimator of the default network."""
    return ChicleCNNClassifier(**{**FAST, **params})


def folder(path: Path, X: Array, y: Array, *, has_shape: bool = True) -> ChunkFolder:
    """Images in a chunk folder."""
    classes, codes = np.unique(y, return_inverse=True)
    rows = np.ascontiguousarray(X.reshape(len(X), -1))
    shape = X.shape[1:] if has_shape else ()
    with ChunkFolderWriter(path, kind="dense", dtype=X.dtype.name, sample_shape=shape, max_tasks=2) as writer:
        writer.add(rows, codes.astype(float))
        return writer.finish(classes=tuple(classes.tolist()), recode=lambda kept: kept)
