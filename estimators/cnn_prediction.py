"""Prediction with a fitted CNN, of arrays and of chunk folders."""

from typing import Any

import numpy as np
from scipy.special import softmax

from chicle_elastic.chunks.views import Array
from estimators.cnn_inputs import require_same_images, validated_images
from estimators.prediction import PredictionMixin


class ImagePredictionMixin(PredictionMixin):
    """Probabilities of the network, and labels from them."""

    image_shape_: tuple[int, ...]
    module_: Any
    scaling_: Any
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
        return self._by_row("predict_proba", X, lambda rows: softmax(self._logits(rows).astype(np.float64), axis=1))

    def decision_function(self, X: Any) -> Array:
        """Outputs of the network, before the softmax.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...), or ChunkFolder
            Images as in `fit`, of the same shape and dtype.

        Returns
        -------
        decision : ndarray of shape (n_samples,) or (n_samples, n_classes), float64
            With two classes how much the second output is above the first; else the outputs, columns in the order of
            `classes_`.
        """
        return self._by_row("decision_function", X, self._scores)

    def _scores(self, rows: Array) -> Array:
        outputs = self._logits(rows).astype(np.float64)
        return outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs

    def _validated(self, X: Any) -> Any:
        return validated_images(self, X, reset=False)[0]

    def _require_same_folder(self, folder: Any) -> None:
        schema = folder.schema
        shape = self.image_shape_
        if schema.sample_shape:
            shape = (1, *schema.sample_shape) if len(schema.sample_shape) == 2 else tuple(schema.sample_shape)
        is_byte = schema.dtype == "uint8"
        require_same_images(self, shape, schema.num_features, is_byte=is_byte, where=f"the chunk folder {folder.path}")

    def _logits(self, rows: Array) -> Array:
        from chicle_elastic.solvers.engines.predict import logits

        found = logits(self.module_, rows, self.image_shape_, scaling=self.scaling_, device=self.device)
        return found[:, : len(self.classes_)]  # a module may have outputs of classes that were not there

    def _codes(self, rows: Array) -> Array:
        return self._logits(rows).argmax(axis=1)
