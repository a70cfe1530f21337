"""What the fit of a regressor needs besides its mathematics: validated input, prediction, R^2, model files."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError
from estimators.checks import (
    Columns,
    set_features,
    validated_features,
    validated_samples,
    validated_weights,
)
from estimators.persistence import SaveMixin
from estimators.prediction import PredictionMixin, products, weights_of
from estimators.streaming import chunks_of, is_folder, require_no_labels, require_same_features, rows_in_order
from estimators.training.data import TrainingData

if TYPE_CHECKING:
    from chicle_elastic.chunks.folder import ChunkFolder


@dataclass(frozen=True, kw_only=True)
class RegressionSet(TrainingData):
    """Validated input of the fit of a regressor."""

    def targets(self) -> Array:
        """Return those of all rows, in their order; shape (n_samples,), float64."""
        if self.features is None:
            return self.read(lambda chunk: chunk.targets)
        return np.asarray(self.hook_arguments["y"], dtype=np.float64)


def regression_set(estimator: Any, X: Any, y: Any, sample_weight: Any, *, max_tasks: int, seed: int) -> RegressionSet:
    """Validate the arguments of `fit`. Raises DataError when a value of X is NaN or infinite, UsageError when all
    weights are 0, or a folder has class labels, ValueError for anything else that scikit-learn refuses.

    Args:
        estimator: The one to fit; `n_features_in_` and, where there are names, `feature_names_in_` are set.
        X, y, sample_weight: Arguments of `fit`.
        max_tasks: Largest number of tasks; with one the chunks lie over the memory of X, with more the rows are
            shuffled.
        seed: Of the shuffle.
    """
    name = type(estimator).__name__
    if is_folder(X):
        require_no_labels(X, y, sample_weight)
        return _from_folder(estimator, X)
    X, y = validated_samples(estimator, X, y, has_real_targets=True)
    weights, metadata = None, None
    if sample_weight is not None:
        weights = validated_weights(sample_weight, X)
        metadata = {"sample_weight": weights}
        require_weight(name, float(weights.sum()))
    columns = Columns.of(X)
    source = ArraySource(
        columns.rows(X),
        y.astype(np.float64, copy=False),
        weights=weights,
        max_tasks=max_tasks,
        chunk_bytes=estimator.chunk_size,
        seed=seed,
    )
    hook_arguments = {"X": X, "y": y, "metadata": metadata}
    return RegressionSet(source=source, columns=columns, features=X, hook_arguments=hook_arguments)


def _from_folder(estimator: Any, folder: "ChunkFolder") -> RegressionSet:
    schema = folder.schema
    if schema.target_dtype == "int32":
        raise UsageError(
            f"{type(estimator).__name__} needs real targets, but those of the chunk folder {folder.path} are class "
            "labels; convert the data with --regression"
        )
    if schema.has_weights:
        require_weight(type(estimator).__name__, _total_weight(folder))
    set_features(estimator, schema.num_features)
    return RegressionSet(source=folder, columns=Columns(schema.num_features))


def _total_weight(folder: "ChunkFolder") -> float:
    """Sum of the sample weights, read chunk by chunk."""
    total = 0.0
    for chunk in chunks_of(folder):
        total += float(np.asarray(chunk.weights).sum())
    return total


def require_weight(name: str, total: float) -> None:
    """Refuse weights that are all 0."""
    if total == 0:
        raise UsageError(f"{name} needs samples of a weight above 0, but all weights are 0; check sample_weight")


class TargetPredictionMixin(PredictionMixin):
    """Predictions of a regressor, and their R^2."""

    def predict(self, X: Any) -> Array:
        """Targets of samples.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or ChunkFolder
            Samples. Of a ChunkFolder one chunk is in memory at a time.

        Returns
        -------
        targets : ndarray of shape (n_samples,), or (n_samples, n_targets) where `fit` had several, float64
            The rows of a ChunkFolder come in the order of the data that it was made from.
        """
        return self._by_row("predict", X, self._foretold)

    def _foretold(self, rows: Any) -> Array:
        """Return the targets of rows."""
        raise NotImplementedError

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """How much better predictions are than the mean of `y`: R^2, of counts the share of the deviance (D^2).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or ChunkFolder
            Samples as in `fit`. A ChunkFolder brings its targets and weights along.
        y : array-like of shape (n_samples,)
            True targets; none for a ChunkFolder.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights; none for a ChunkFolder.

        Returns
        -------
        score : float
            1 at best; 0 for the mean of `y`.
        """
        check_is_fitted(self)
        if is_folder(X):
            require_no_labels(X, y, sample_weight)
            self._require_same_folder(X)
            y = rows_in_order(X, lambda chunk: chunk.targets)
            if X.schema.has_weights:
                sample_weight = rows_in_order(X, lambda chunk: chunk.weights)
        return self._score_of(y, self.predict(X), sample_weight)

    def _score_of(self, y: Any, predicted: Array, sample_weight: Any) -> float:
        return float(r2_score(y, predicted, sample_weight=sample_weight))


class RegressionMixin(TargetPredictionMixin, SaveMixin):
    """Predictions of a linear regressor, and model files."""

    _file_arrays: ClassVar[tuple[str, ...]] = ("coef_", "feature_names_in_")
    _file_required = ("coef_",)
    _file_values: ClassVar[tuple[str, ...]] = (
        "intercept_",
        "objective_",
        "dual_objective_",
        "n_features_in_",
        "n_iter_",
        "duality_gap_",
    )

    _takes_targets: ClassVar[bool] = False
    """Whether `y` may have several columns."""

    coef_: Array
    intercept_: Any
    n_features_in_: int
    n_iter_: int

    def _foretold(self, rows: Any) -> Array:
        """Return the targets of rows."""
        coef, intercept = weights_of(self)
        found = products(rows, np.atleast_2d(coef))
        return self._targets_of((found if coef.ndim == 2 else found[:, 0]) + intercept)

    def _targets_of(self, scores: Array) -> Array:
        """Targets that are foretold where <w, x> + b is `scores`, shape (n,)."""
        return scores

    def _validated(self, X: Any) -> Any:
        return validated_features(self, X)

    def _require_same_folder(self, folder: "ChunkFolder") -> None:
        require_same_features(self, folder)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]  # of BaseEstimator
        tags.input_tags.sparse = tags.array_api_support = True
        tags.target_tags.multi_output = self._takes_targets
        return tags

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {"coef_": (*np.shape(self.intercept_), self.n_features_in_)}
