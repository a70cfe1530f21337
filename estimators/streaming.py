"""Predictions for arrays, and for chunk folders one chunk at a time."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.rows import matrix_of
from chicle_elastic.chunks.views import NO_STATE, Array, Chunk
from chicle_elastic.errors import DataError, UsageError

if TYPE_CHECKING:
    from chicle_elastic.chunks.sources import ChunkSource


def is_folder(X: Any) -> TypeGuard[ChunkFolder]:
    """Whether X is a chunk folder and not something like an array."""
    return isinstance(X, ChunkFolder)


def require_no_labels(folder: ChunkFolder, y: Any, sample_weight: Any) -> None:
    """Refuse labels and weights beside a chunk folder, which has its own. Raises UsageError when `y` or `sample_weight`
    is given."""
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise UsageError(
                f"the chunk folder {folder.path} holds labels and weights of its samples; leave {name} out, or convert "
                "the data with other ones"
            )


def rows_in_order(source: "ChunkSource", function: Callable[[Chunk], Array | None]) -> Array:
    """The values of `function` for all chunks of a source, in the order of global row ids; one chunk at a time."""
    values: Array | None = None
    for chunk in chunks_of(source):
        part = np.asarray(function(chunk))
        if values is None:
            values = np.empty((source.schema.num_rows, *part.shape[1:]), part.dtype)
        values[chunk.row_ids] = part
    assert values is not None, "a source has at least one chunk"
    return values


def accuracy(estimator: Any, folder: ChunkFolder, codes_of: Callable[[Any], Array]) -> float:
    """Weighted share of the samples of a chunk folder whose label is predicted. Returns a number between 0 and 1, NaN
    when all samples weigh 0. Raises DataError when no class is in common.

    Args:
        estimator: Fitted; its `classes_` and the classes of the folder are compared as labels, not as codes.
        folder: Samples, labels and weights.
        codes_of: Takes rows, returns positions in `classes_`.
    """
    labels = list(folder.classes)
    if not set(labels) & set(estimator.classes_.tolist()):
        raise DataError(
            f"the chunk folder {folder.path} has the classes {labels}, and {type(estimator).__name__} was fitted to "
            f"{estimator.classes_.tolist()}: none in common; were the labels converted differently?"
        )
    position = {label: code for code, label in enumerate(labels)}
    code_in_folder = np.array([position.get(label, -1) for label in estimator.classes_.tolist()])
    correct = total = 0.0
    for chunk in chunks_of(folder):
        weights = np.ones(chunk.num_rows) if chunk.weights is None else chunk.weights
        is_right = code_in_folder[codes_of(matrix_of(chunk.rows))] == chunk.targets
        correct += float(weights[is_right].sum())
        total += float(weights.sum())
    return correct / total if total else float("nan")


def chunks_of(source: "ChunkSource") -> Iterator[Chunk]:
    """All chunks of a source, without state; one at a time."""
    return (source.load(info.id, NO_STATE) for info in source.infos(NO_STATE))


def require_same_features(estimator: Any, folder: ChunkFolder) -> None:
    """Raise DataError where a folder has another number of features than the data of the fit."""
    found = folder.schema.num_features
    if found != estimator.n_features_in_:
        raise DataError(
            f"the chunk folder {folder.path} has {found} features, but {type(estimator).__name__} was fitted with "
            f"{estimator.n_features_in_}; convert both data sets with the same number of features"
        )
