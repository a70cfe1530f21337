"""A regressor that is a network of torch, trained as the classifier is."""

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import RegressorMixin, _fit_context

from chicle_elastic.chunks.views import Array
from estimators.cnn import NetworkEstimator
from estimators.cnn_params import network_parameters
from estimators.cnn_prediction import NetworkPredictionMixin
from estimators.regression.common import TargetPredictionMixin


@network_parameters
class ChicleRegressor(NetworkPredictionMixin, TargetPredictionMixin, RegressorMixin, NetworkEstimator):
    """Regressor that is a network of torch, trained by local SGD on the mean squared error or another loss.

    It is fitted as `ChicleCNNClassifier` is, and has its parameters. Targets are used as they are: large ones want to
    be scaled, as by `sklearn.compose.TransformedTargetRegressor`.

    Parameters
    ----------
    **module_params : dict
        Arguments of the classes of module, optimizer and scheduler, as `module__NAME`, `optimizer__NAME` and
        `schedule__NAME`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from torch import nn
    >>> from estimators import ChicleRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> network = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> model = ChicleRegressor(network, standardize=True, random_state=0).fit(X, y / y.std())
    >>> bool(model.score(X, y / y.std()) > 0.3)
    True
    """

    if TYPE_CHECKING:

        def __init__(self, module: Any = None, **params: Any) -> None: ...

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on some samples, from where the last call ended, momentum included.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...), or ChunkFolder
            Samples, as in `fit`.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Numbers, as in `fit`.
        sample_weight : array-like of shape (n_samples,), default=None
            Factors of the loss, relative to their mean.

        Returns
        -------
        self : object
            The estimator.

        Raises
        ------
        UsageError
            `schedule` is not "linear" and has to know how many epochs there will be; and as in `fit`.
        """
        self._validate_params()  # the decorator looks in the first call alone, and they may have changed
        return self._fit(X, y, sample_weight, epochs=1, is_warm=hasattr(self, "module_"), is_partial=True)

    def _foretold(self, rows: Any) -> Array:
        return self._outputs(rows).reshape(len(rows), *(self._target_shape or ())).astype(np.float64)

    def _score_of_outputs(self, outputs: Array, targets: Array, weights: Array | None) -> float:
        return self._score_of(targets, outputs.reshape(targets.shape), weights)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
