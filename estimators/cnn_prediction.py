"""Prediction with a fitted CNN, of arrays and of chunk folders."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from sklearn.utils.validation import check_is_fitted

from estimators import streaming
from estimators.cnn_inputs import require_same_images, validated_images

Array: TypeAlias = npt.NDArray[Any]


class ImagePredictionMixin:
    """Probabilities, labels and accuracy."""

    classes_: Array
    image_shape_: tuple[int, ...]
    module_: Any
    device: str

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...), or ChunkFolder
            Images as in `fit`, of the same shape and dtype.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes), float64
            Softmax of the network's outputs; columns in the order of `classes_`. The rows of a ChunkFolder come in
            the order of the data that it was made from.
        """
        return softmax(self._by_row(X, self._logits).astype(np.float64), axis=1)

    def predict(self, X: Any) -> Array:
        """Class labels of images.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...), or ChunkFolder
            Images as in `fit`, of the same shape and dtype.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            Of the dtype of `classes_`.
        """
        return self._by_row(X, lambda rows: self.classes_[self._codes(rows)])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...), or ChunkFolder
            Images as in `fit`. A ChunkFolder brings its labels and weights along.
        y : array-like of shape (n_samples,)
            True labels; none for a ChunkFolder.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights; none for a ChunkFolder.

        Returns
        -------
        score : float
            Share of the samples (of their weight) whose label is predicted.
        """
        check_is_fitted(self)
        if streaming.is_folder(X):
            streaming.require_no_labels(X, y, sample_weight)
            self._require_same_folder(X)
            return streaming.accuracy(self, X, self._codes)
        score: float = super().score(X, y, sample_weight)  # type: ignore[misc]  # of ClassifierMixin
        return score

    def _by_row(self, X: Any, function: Any) -> Array:
        check_is_fitted(self)
        if streaming.is_folder(X):
            self._require_same_folder(X)
            return streaming.by_row(self, X, function)
        rows, _ = validated_images(self, X, reset=False)
        return np.asarray(function(rows))

    def _logits(self, rows: Array) -> Array:
        from chicle_elastic.solvers.engines.predict import logits

        return logits(self.module_, rows, self.image_shape_, device=self.device)

    def _codes(self, rows: Array) -> Array:
        """Positions in `classes_` of the predicted labels."""
        return self._logits(rows).argmax(axis=1)

    def _require_same_folder(self, folder: Any) -> None:
        schema = folder.schema
        shape = self.image_shape_
        if schema.sample_shape:
            shape = (1, *schema.sample_shape) if len(schema.sample_shape) == 2 else tuple(schema.sample_shape)
        is_byte = schema.dtype == "uint8"
        require_same_images(self, shape, schema.num_features, is_byte=is_byte, where=f"the chunk folder {folder.path}")
