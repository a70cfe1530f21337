"""Prediction with a fitted CNN, of arrays and of chunk folders."""

from typing import Any

import numpy as np
from scipy.special import expit, softmax

from chicle_elastic.chunks.views import Array
from estimators.cnn_inputs import require_same_images, validated_images
from estimators.prediction import PredictionMixin


class NetworkPredictionMixin(PredictionMixin):
    """Outputs of the network."""

    image_shape_: tuple[int, ...]
    module_: Any
    scaling_: Any
    device: str
    _target_shape: tuple[int, ...] | None = None

    def _validated(self, X: Any) -> Any:
        return validated_images(self, X, reset=False)[0]

    def _require_same_folder(self, folder: Any) -> None:
        schema = folder.schema
        shape = self.image_shape_
        if schema.sample_shape:
            shape = (1, *schema.sample_shape) if len(schema.sample_shape) == 2 else tuple(schema.sample_shape)
        is_byte = schema.dtype == "uint8"
        require_same_images(self, shape, schema.num_features, is_byte=is_byte, where=f"the chunk folder {folder.path}")

    def _outputs(self, rows: Array) -> Array:
        from chicle_elastic.solvers.engines.predict import logits

        return logits(self.module_, rows, self.image_shape_, scaling=self.scaling_, device=self.device)


class ImagePredictionMixin(NetworkPredictionMixin):
    """Probabilities of the network, and labels from them."""

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...), or ChunkFolder
            Images as in `fit`, of the same shape and dtype.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes), float64
            Softmax of the network's outputs, or where samples have several labels the sigmoid of each; columns in the
            order of `classes_`. The rows of a ChunkFolder come in the order of the data that it was made from.
        """
        return self._by_row("predict_proba", X, self._probabilities)

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

    def _probabilities(self, rows: Array) -> Array:
        outputs = self._logits(rows).astype(np.float64)
        return np.asarray(expit(outputs) if self._has_several else softmax(outputs, axis=1))

    def _scores(self, rows: Array) -> Array:
        outputs = self._logits(rows).astype(np.float64)
        is_one = outputs.shape[1] == 2 and not self._has_several
        return outputs[:, 1] - outputs[:, 0] if is_one else outputs

    def _labels(self, rows: Array) -> Array:
        return self._codes(rows) if self._has_several else super()._labels(rows)

    def _logits(self, rows: Array) -> Array:
        return self._outputs(rows)[:, : len(self.classes_)]  # a module may have outputs of classes that were not there

    @property
    def _has_several(self) -> bool:
        return self._target_shape is not None

    def _codes(self, rows: Array) -> Array:
        return self._codes_of(self._logits(rows), self._has_several)

    @staticmethod
    def _codes_of(outputs: Array, has_several: bool) -> Array:
        return (outputs > 0).astype(np.int64) if has_several else outputs.argmax(axis=1)

    def _score_of_outputs(self, outputs: Array, targets: Array, weights: Array | None) -> float:
        is_right = self._codes_of(outputs, targets.ndim > 1) == targets
        return float(np.average(is_right if is_right.ndim == 1 else is_right.all(axis=1), weights=weights))
