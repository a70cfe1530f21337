"""Estimators with the face of scikit-learn: `from estimators import ChicleSVM`.

Importing this package costs nothing; scikit-learn is loaded with the first name that is taken from it. From then on
joblib knows the backend "chicle".
"""

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimators.cnn import ChicleCNNClassifier
    from estimators.logistic import ChicleLogisticRegression
    from estimators.own.elastic import ElasticEstimator
    from estimators.regression.base import LinearRegressor
    from estimators.regression.huber import ChicleHuber
    from estimators.regression.lasso import ChicleElasticNet, ChicleLasso
    from estimators.regression.network import ChicleRegressor
    from estimators.regression.poisson import ChiclePoisson
    from estimators.regression.ridge import ChicleRidge, ChicleRidgeClassifier, ChicleRidgeCV
    from estimators.regression.svr import ChicleSVR
    from estimators.search.search_cv import ChicleSearchCV
    from estimators.svm import ChicleSVM

__all__ = [
    "ChicleCNNClassifier",
    "ChicleElasticNet",
    "ChicleHuber",
    "ChicleLasso",
    "ChicleLogisticRegression",
    "ChiclePoisson",
    "ChicleRegressor",
    "ChicleRidge",
    "ChicleRidgeCV",
    "ChicleRidgeClassifier",
    "ChicleSVM",
    "ChicleSVR",
    "ChicleSearchCV",
    "ElasticEstimator",
    "LinearRegressor",
]

_MODULES = {
    "ChicleCNNClassifier": "estimators.cnn",
    "ChicleElasticNet": "estimators.regression.lasso",
    "ChicleHuber": "estimators.regression.huber",
    "ChicleLasso": "estimators.regression.lasso",
    "ChicleLogisticRegression": "estimators.logistic",
    "ChiclePoisson": "estimators.regression.poisson",
    "ChicleRegressor": "estimators.regression.network",
    "ChicleRidge": "estimators.regression.ridge",
    "ChicleRidgeCV": "estimators.regression.ridge",
    "ChicleRidgeClassifier": "estimators.regression.ridge",
    "ChicleSVM": "estimators.svm",
    "ChicleSVR": "estimators.regression.svr",
    "ChicleSearchCV": "estimators.search.search_cv",
    "ElasticEstimator": "estimators.own.elastic",
    "LinearRegressor": "estimators.regression.base",
}

_BACKEND = "estimators.search.backend"


@cache
def _register_backend() -> None:
    """Make `joblib.parallel_config("chicle")` known; what it does is loaded when it is used."""
    from importlib import import_module

    from joblib import register_parallel_backend

    register_parallel_backend("chicle", lambda **kwargs: import_module(_BACKEND).ChicleBackend(**kwargs))


if not TYPE_CHECKING:  # so that mypy refuses a name that is not here

    def __getattr__(name: str) -> Any:
        """Load an estimator when it is asked for (PEP 562)."""
        if name not in _MODULES:
            raise AttributeError(f"module 'estimators' has no attribute {name!r}; it has {', '.join(__all__)}")
        from importlib import import_module

        _register_backend()
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
