"""What is trained on: validated input, as a source of chunks and what the estimator has to know of it."""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy import sparse
from sklearn.utils.multiclass import check_classification_targets

from chicle_elastic.chunks import blocks
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.linear.objectives import upper_bounds
from estimators.checks import Columns, set_features, validated_samples, validated_weights
from estimators.prediction import products
from estimators.streaming import chunks_of, is_folder, require_no_labels
from estimators.training.data import TrainingData
from estimators.training.warm import KeptDuals, fingerprint_of
from estimators.training.weights import class_weight_vector, require_two_classes

if TYPE_CHECKING:
    from chicle_elastic.solvers.linear.newton.trainer import L1Trainer, MultinomialTrainer
    from chicle_elastic.solvers.linear.trainer import LinearTrainer

    ClassifierTrainer: TypeAlias = LinearTrainer | L1Trainer | MultinomialTrainer


MAX_LABEL_RANGE = 1 << 16
"""Labels beyond this are sorted, not counted."""
LABELS_PER_BLOCK = 1 << 15


@dataclass(frozen=True, kw_only=True)
class TrainingSet(TrainingData):
    """Validated input of the fit of a classifier."""

    classes: Array  # ndarray of shape (n_classes,). Labels, sorted; a class code is a position in it.
    class_weights: Array | None  # ndarray of shape (n_classes,), float64, or None. Factor of C per class code.
    # ndarray of shape (n_samples,), int32. Class codes; None where the rows lie in a folder.
    codes: Array | None = None
    weights: Array | None = None  # ndarray of shape (n_samples,), float64, or None. Sample weights.

    def codes_and_weights(self) -> tuple[Array, Array | None]:
        """Return class codes and sample weights by row, each of shape (n_samples,)."""
        if self.codes is not None:
            return self.codes, self.weights
        weights = self.read(lambda chunk: chunk.weights) if self.source.schema.has_weights else None
        return self.read(lambda chunk: chunk.targets), weights

    @cached_property
    def _read(self) -> dict[int, tuple[int, int]]:
        """Keep what checksums of the first rows have read, for those of more rows."""
        return {}

    @cached_property
    def fingerprint(self) -> Hashable:
        """Of all rows."""
        return self.fingerprint_of(self.source.schema.num_rows)

    def fingerprint_of(self, num_rows: int) -> Hashable:
        """Return features and labels of the first rows in short, equal for equal data: checksums of all bytes.

        Those of a folder are in its manifest, for all rows; for others this is None.
        """
        if isinstance(self.source, ChunkFolder):
            is_whole = num_rows == self.source.schema.num_rows
            return (tuple(self.classes.tolist()), self.source.fingerprint()) if is_whole else None
        X, codes = self.features, self.codes_and_weights()[0][:num_rows]
        parts: tuple[Array, ...]
        if sparse.issparse(X):
            end = X.indptr[len(codes)]
            parts = X.indptr[: len(codes) + 1], X.indices[:end], X.data[:end]
        else:
            parts = (X[:num_rows],)
        return tuple(self.classes.tolist()), X.shape[1], fingerprint_of(*parts, codes, read=self._read)

    def begins_with(self, kept: KeptDuals, *, has_more: bool) -> bool:
        """Say whether these are the rows that duals were kept of; with `has_more` others may follow."""
        number = len(kept.upper)
        if number == self.source.schema.num_rows:
            return kept.fingerprint == self.fingerprint
        return has_more and kept.fingerprint == self.fingerprint_of(number)

    def findings(self, estimator: Any, trainer: "ClassifierTrainer", model: Array) -> tuple[str, ...]:
        """See `diagnosis`; it looks at rows in memory only."""
        if self.codes is None:
            return ()
        from estimators.diagnosis import findings

        w = self.columns.full(model)
        return findings(
            self.features,
            self.codes,
            self.classes,
            upper=self.upper_bounds(trainer),
            decision=products(self.features, w[:, :-1]) + trainer.intercept_scaling * w[:, -1],
            names=getattr(estimator, "feature_names_in_", None),
            has_one_label=trainer.has_one_softmax,
        )

    def upper_bounds(self, trainer: "ClassifierTrainer") -> Array:
        """C_i of every row, shape (n_samples,), float64."""
        return upper_bounds(trainer.C, *self.codes_and_weights(), trainer.class_weights)


def training_set(estimator: Any, X: Any, y: Any, sample_weight: Any, *, max_tasks: int, seed: int) -> TrainingSet:
    """Validate the arguments of `fit`. Returns data of at least two classes. Raises DataError when a value of X is NaN
    or infinite, UsageError when weights or classes cannot be used, ValueError for anything else that scikit-learn
    refuses.

    Args:
        estimator: The one to fit; `n_features_in_` and, where there are names, `feature_names_in_` are set.
        X, y, sample_weight: Arguments of `fit`.
        max_tasks: Largest number of tasks; with one the chunks lie over the memory of X, with more the rows are
            shuffled.
        seed: Of the shuffle.
    """
    if is_folder(X):
        require_no_labels(X, y, sample_weight)
        return _from_folder(estimator, X)
    return _from_arrays(estimator, X, y, sample_weight, max_tasks=max_tasks, seed=seed)


def _from_arrays(estimator: Any, X: Any, y: Any, sample_weight: Any, *, max_tasks: int, seed: int) -> TrainingSet:
    X, y = validated_samples(estimator, X, y)
    if y.dtype.kind not in "iub":  # whole numbers are classes, and finding that out would sort them
        check_classification_targets(y)
    classes, codes, counts = encode_labels(y)
    weights, metadata = None, None
    if sample_weight is not None:
        weights = validated_weights(sample_weight, X)
        metadata = {"sample_weight": weights}
    totals = counts if weights is None else np.bincount(codes, weights=weights, minlength=len(classes))
    columns = Columns.of(X)
    return TrainingSet(
        source=ArraySource(
            columns.rows(X),
            codes,
            weights=weights,
            num_classes=len(classes),
            max_tasks=max_tasks,
            chunk_bytes=estimator.chunk_size,
            seed=seed,
        ),
        columns=columns,
        classes=classes,
        class_weights=_checked_class_weights(estimator, classes, totals),
        hook_arguments={"X": X, "y": y, "metadata": metadata},
        features=X,
        codes=codes,
        weights=weights,
    )


def encode_labels(y: Array) -> tuple[Array, Array, Array]:
    """`np.unique` with inverse and counts, without sorting where labels are whole numbers in a narrow range.

    Args:
        y: ndarray of shape (n_samples,). Labels of any type.

    Returns:
        `classes`: ndarray of shape (n_classes,). Sorted, of the dtype of `y`.
        `codes`: ndarray of shape (n_samples,), int32. `classes[codes]` is `y`.
        `counts`: ndarray of shape (n_classes,), int64. Samples of each class.
    """
    if y.dtype.kind in "iuf" and len(y) > 0:
        encoded = _encode_whole_numbers(y)
        if encoded is not None:
            return encoded
    classes, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    return classes, codes.reshape(-1).astype(np.int32), counts


def _encode_whole_numbers(y: Array) -> tuple[Array, Array, Array] | None:
    """The same for whole numbers of at most `MAX_LABEL_RANGE`, of either sign; None for others.

    Block by block: a temporary array as long as y costs more than what is done with it, and y comes from memory once.
    """
    codes = blocks.zeros((len(y),), "int32")
    low, counts = 0, np.zeros(2, dtype=np.int64)  # counts[i] is of label low + i
    for start in range(0, len(y), LABELS_PER_BLOCK):
        block, part = y[start : start + LABELS_PER_BLOCK], codes[start : start + LABELS_PER_BLOCK]
        block_low, block_high = block.min(), block.max()
        if not (block_low >= -MAX_LABEL_RANGE and block_high <= MAX_LABEL_RANGE):
            return None
        np.copyto(part, block, casting="unsafe")
        if y.dtype.kind == "f" and not np.array_equal(part, block):
            return None
        before, after = max(0, low - int(block_low)), max(0, int(block_high) - low + 1 - len(counts))
        if before or after:
            none = [np.zeros(number, dtype=np.int64) for number in (before, after)]
            counts, low = np.concatenate([none[0], counts, none[1]]), low - before
        if block_low >= 0 and block_high <= 1:  # at a tenth of the cost
            num_ones = np.count_nonzero(part)
            counts[-low] += len(part) - num_ones
            counts[1 - low] += num_ones
        else:
            counts += np.bincount(part - np.int32(low), minlength=len(counts))
    is_there = counts > 0
    classes = np.flatnonzero(is_there) + low
    if not np.array_equal(classes, np.arange(len(classes))):
        numbers = np.cumsum(is_there, dtype=np.int32) - np.int32(1)
        for start in range(0, len(y), LABELS_PER_BLOCK):
            part = codes[start : start + LABELS_PER_BLOCK]
            part[...] = numbers[part - low]
    return classes.astype(y.dtype), codes, counts[is_there]


def _from_folder(estimator: Any, folder: ChunkFolder) -> TrainingSet:
    schema = folder.schema
    if schema.num_classes == 0:
        raise UsageError(
            f"{type(estimator).__name__} needs class labels, but the targets of the chunk folder {folder.path} are "
            "real values; convert the data without --regression"
        )
    classes = np.asarray(folder.classes)
    set_features(estimator, schema.num_features)
    totals = np.ones(len(classes))
    if schema.has_weights or estimator.class_weight is not None:
        totals = _class_totals(folder, len(classes))
    return TrainingSet(
        source=folder,
        columns=Columns(schema.num_features),
        classes=classes,
        class_weights=_checked_class_weights(estimator, classes, totals),
    )


def _checked_class_weights(estimator: Any, classes: Array, totals: Array) -> Array | None:
    """Weight of each class, or None; refuses one class alone, and weights that are all 0."""
    name = type(estimator).__name__
    require_two_classes(name, classes, totals, None)
    class_weights = class_weight_vector(estimator.class_weight, classes, totals)
    require_two_classes(name, classes, totals, class_weights)
    return class_weights


def _class_totals(folder: ChunkFolder, num_classes: int) -> Array:
    """Sum of the sample weights of each class, read chunk by chunk; shape (num_classes,), float64."""
    totals = np.zeros(num_classes)
    for chunk in chunks_of(folder):
        totals += np.bincount(chunk.targets, weights=chunk.weights, minlength=num_classes)
    return totals
