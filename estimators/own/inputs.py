"""What an `ElasticEstimator` trains on and predicts from: arrays or a chunk folder, targets as its trainer has them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.rows import matrix_of
from chicle_elastic.chunks.sources import ArraySource, ChunkSource
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError, UsageError
from estimators.checks import (
    require_finite,
    rows_for_code,
    set_features,
    validated_features,
    validated_rows,
    validated_samples,
    validated_weights,
)
from estimators.inputs import encode_labels
from estimators.streaming import is_folder, require_no_labels, require_same_features, rows_in_order


@dataclass(frozen=True, kw_only=True)
class ElasticSet:
    """Validated input of a fit."""

    source: ChunkSource  # where the runtime takes the chunks from
    classes: Array | None  # ndarray of shape (n_classes,), labels whose codes the targets are; None where they are none
    # `X`, `y` and `metadata` for the hooks of callbacks; empty where there is no X
    hook_arguments: dict[str, Any] = field(default_factory=dict)


def elastic_set(
    estimator: Any, X: Any, y: Any, sample_weight: Any, *, kind: str | None, max_tasks: int, seed: int
) -> ElasticSet:
    """Validate the arguments of `fit`. Raises DataError when a value of X is NaN or infinite, UsageError when a
    classifier has got a folder without class labels, ValueError for anything else that scikit-learn refuses.

    Args:
        estimator: The one to fit; `n_features_in_` and, where there are names, `feature_names_in_` are set.
        X, y, sample_weight: Arguments of `fit`.
        kind: `estimator_type` of the trainer.
        max_tasks: Largest number of tasks.
        seed: Of the shuffle.
    """
    if is_folder(X):
        require_no_labels(X, y, sample_weight)
        return _from_folder(estimator, X, kind)
    classes = None
    if kind in ("classifier", "regressor") or (kind is None and y is not None):
        X, y = validated_samples(estimator, X, y, has_real_targets=kind != "classifier")
    else:
        X, y = validated_rows(estimator, X), None
    X = rows_for_code(X)
    require_finite(estimator, X)  # of large ones, too: no solver of Chicle's looks at them
    targets = np.zeros(X.shape[0]) if y is None else y
    num_classes = 0
    if kind == "classifier":
        check_classification_targets(y)
        classes, targets, _ = encode_labels(y)
        num_classes = len(classes)
    weights = None
    if sample_weight is not None:
        weights = validated_weights(sample_weight, X)
    source = ArraySource(
        X,
        targets if kind == "classifier" else targets.astype(np.float64, copy=False),
        weights=weights,
        num_classes=num_classes,
        max_tasks=max_tasks,
        chunk_bytes=estimator.chunk_size,
        seed=seed,
    )
    metadata = None if weights is None else {"sample_weight": weights}
    return ElasticSet(source=source, classes=classes, hook_arguments={"X": X, "y": y, "metadata": metadata})


def _from_folder(estimator: Any, folder: ChunkFolder, kind: str | None) -> ElasticSet:
    if kind == "classifier" and folder.schema.num_classes == 0:
        raise UsageError(
            f"{estimator._shown_name} is a classifier, and the targets of the chunk folder {folder.path} are real "
            "values; convert the data without --regression"
        )
    set_features(estimator, folder.schema.num_features)
    return ElasticSet(source=folder, classes=np.asarray(folder.classes) if kind == "classifier" else None)


def by_row(estimator: Any, X: Any, function: Callable[[Any], Array]) -> Array:
    """What `function` makes of rows, for all samples; of a folder one chunk is in memory at a time."""
    if is_folder(X):
        require_same_features(estimator, X)
        return rows_in_order(X, lambda chunk: function(matrix_of(chunk.rows)))
    return function(rows_of(estimator, X))


def rows_of(estimator: Any, X: Any) -> Any:
    """Validated samples to predict from, ndarray or CSR matrix."""
    return rows_for_code(validated_features(estimator, X))


def codes_of(estimator: Any, y: Any) -> Array:
    """Codes of labels, as the chunks of the fit had them. Raises DataError for a label that was not among those of the
    fit."""
    labels = check_array(y, ensure_2d=False, dtype=None)
    unknown = np.setdiff1d(labels, estimator.classes_)
    if len(unknown):
        raise DataError(f"y has the label {unknown[0]!r}, and the fit had {estimator.classes_.tolist()}")
    return np.searchsorted(estimator.classes_, labels).astype(np.int32)
