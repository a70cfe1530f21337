"""Prediction with a fitted model, of samples in memory and of chunk folders."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import check_is_fitted

from chicle_elastic.chunks.rows import float_blocks, matrix_of
from chicle_elastic.chunks.views import Array
from estimators.containers import as_numpy, like, require_same_library

if TYPE_CHECKING:
    from chicle_elastic.chunks.folder import ChunkFolder


class PredictionMixin:
    """Labels and accuracy, made of the class codes that a model predicts; what samples are is for the subclass."""

    classes_: Array

    def predict(self, X: Any) -> Array:
        """Class labels of samples.

        Parameters
        ----------
        X : array-like, sparse matrix where `fit` takes one, or ChunkFolder
            Samples as in `fit`.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            Of the dtype of `classes_`. The rows of a ChunkFolder come in the order of the data that it was made from.
        """
        return self._by_row("predict", X, self._labels)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy.

        Parameters
        ----------
        X : array-like, sparse matrix where `fit` takes one, or ChunkFolder
            Samples as in `fit`. A ChunkFolder brings its labels and weights along.
        y : array-like of shape (n_samples,)
            True labels; none for a ChunkFolder.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights; none for a ChunkFolder.

        Returns
        -------
        score : float
            Share of the samples (of their weight) whose label is predicted.
        """
        from estimators import streaming

        check_is_fitted(self)
        if streaming.is_folder(X):
            streaming.require_no_labels(X, y, sample_weight)
            self._require_same_folder(X)
            return streaming.accuracy(self, X, self._codes)
        score: float = super().score(X, y, sample_weight)  # type: ignore[misc]  # of ClassifierMixin
        return score

    def _by_row(self, method: str, X: Any, function: Callable[[Any], Array]) -> Array:
        """Apply `function` to the rows of all samples, for `method`; the result has the library of X.

        A folder has one chunk in memory at a time.
        """
        from estimators import streaming

        check_is_fitted(self)
        if streaming.is_folder(X):
            self._require_same_folder(X)
            return streaming.rows_in_order(X, lambda chunk: function(matrix_of(chunk.rows)))
        require_same_library(self, X, method)
        return like(X, function(self._validated(X)))

    def _labels(self, rows: Any) -> Array:
        labels: Array = self.classes_[self._codes(rows)]
        return labels

    def _validated(self, X: Any) -> Any:
        """Rows of samples in memory, refused where they are not like those of the fit."""
        raise NotImplementedError

    def _require_same_folder(self, folder: "ChunkFolder") -> None:
        """Refuse a folder whose samples are not like those of the fit."""
        raise NotImplementedError

    def _codes(self, rows: Any) -> Array:
        """Positions in `classes_` of the predicted labels."""
        raise NotImplementedError


class LinearPredictionMixin(PredictionMixin):
    """Decision values of a linear model, and labels from them."""

    coef_: Array
    intercept_: Array
    n_features_in_: int
    n_iter_: int

    def decision_function(self, X: Any) -> Array:
        """Signed distance of samples to the hyperplanes, times |coef|.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or ChunkFolder
            Samples. Of a ChunkFolder one chunk is in memory at a time.

        Returns
        -------
        scores : ndarray of shape (n_samples,) or (n_samples, n_classes), float64
            One column per class, for two classes the score of the second one only. The rows of a ChunkFolder come in
            the order of the data that it was made from.
        """
        return self._by_row("decision_function", X, self._scores)

    def _validated(self, X: Any) -> Any:
        from estimators.checks import validated_features

        return validated_features(self, X)

    def _require_same_folder(self, folder: "ChunkFolder") -> None:
        from estimators.streaming import require_same_features

        require_same_features(self, folder)

    def _scores(self, rows: Any) -> Array:
        """Decision values of dense or CSR rows; shape (n,) for two classes, else (n, n_classes)."""
        coef, intercept = weights_of(self)
        scores = products(rows, coef) + intercept
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def _codes(self, rows: Any) -> Array:
        scores = self._scores(rows)
        return (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]  # of BaseEstimator
        tags.input_tags.sparse = tags.array_api_support = True
        return tags


def weights_of(estimator: Any) -> tuple[Array, Any]:
    """Return `coef_` and `intercept_` as NumPy's; one that is missing is 0."""
    return tuple(as_numpy(name, getattr(estimator, name, 0.0)) for name in ("coef_", "intercept_"))


def products(rows: Any, coef: Array) -> Array:
    """`rows @ coef.T` in float64, shape (n, outputs); of other dense rows a block at a time is converted, never all."""
    if issparse(rows) or rows.dtype == np.float64:
        return np.asarray(rows @ coef.T)
    return np.concatenate([block @ coef.T for block in float_blocks(rows)])
