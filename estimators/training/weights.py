"""Weights of classes as scikit-learn takes them, and the refusal of weights that leave nothing to learn."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError

ClassWeight: TypeAlias = "Mapping[Any, float] | Literal['balanced'] | None"


def class_weight_vector(class_weight: ClassWeight, classes: Array, totals: Array) -> Array | None:
    """Weight of each class. Raises UsageError when a weight is not a finite number >= 0, or labels are missing in the
    dict while others in it are unknown.

    Args:
        class_weight: As the parameter of the estimators.
        classes: ndarray of shape (n_classes,). Labels.
        totals: ndarray of shape (n_classes,), float64. Sum of the sample weights of each class; the number of samples
            where there are no weights.

    Returns:
        ndarray of shape (n_classes,), float64; None when all classes weigh 1.
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, str):
        # A class without weight has no samples that could be balanced.
        has_samples = totals > 0
        return np.where(has_samples, totals.sum() / (len(classes) * np.where(has_samples, totals, 1.0)), 1.0)
    labels = classes.tolist()
    unknown = [label for label in class_weight if label not in labels]
    missing = [label for label in labels if label not in class_weight]
    if unknown and missing:
        raise UsageError(
            f"class_weight has no weight for the classes {missing}, but has weights for {unknown}, which are not among "
            f"the labels; use the labels as keys"
        )
    weights = np.array([class_weight.get(label, 1.0) for label in labels], dtype=np.float64)
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise UsageError(f"class_weight={dict(class_weight)!r} must hold finite numbers >= 0")
    return weights


def require_two_classes(name: str, classes: Array, totals: Array, class_weights: Array | None) -> None:
    """Refuse data from which nothing can be told apart. Raises UsageError when there is one class, or no sample has a
    weight above 0. (With samples of one class among those the answer is that class, as in a resample that lost the
    others.)

    Args:
        name: Name of the estimator, for the message.
        classes: ndarray of shape (n_classes,). Labels.
        totals: ndarray of shape (n_classes,), float64. Sum of the sample weights of each class.
        class_weights: ndarray of shape (n_classes,), float64, or None. Factor of each class.
    """
    if len(classes) < 2:
        raise UsageError(
            f"{name} needs samples of at least 2 classes, but the data contains only one class: {classes.tolist()[0]!r}"
        )
    weighted = totals if class_weights is None else totals * class_weights
    if not (weighted > 0).any():
        raise UsageError(
            f"{name} needs samples of a weight above 0, but all samples of the classes {classes.tolist()} weigh 0; "
            "check sample_weight and class_weight"
        )
