"""Fitted estimators of scikit-learn made of ours, with equal predictions.

A linear estimator names its twin (`_twin`); parameters and attributes of the same name mean the same in both, but for
those that say when a fit stops.
"""

from copy import copy
from importlib import import_module
from typing import Any

import numpy as np
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils._param_validation import InvalidParameterError
from sklearn.utils.validation import check_is_fitted

from chicle_elastic.errors import UsageError
from estimators.containers import as_numpy
from estimators.prediction import weights_of

UNLIKE = ("tol", "max_iter", "verbose", "warm_start", "multi_class")
"""Parameters that mean something else there, and keep their defaults."""
MODEL = ("coef_", "intercept_", "scale_", "outliers_", "alpha_", "best_score_", "cv_results_")
FITTED = ("classes_", "n_features_in_", "feature_names_in_", "n_iter_")
INSTEAD = "keep this one (save() writes it to a file), or copy coef_ and intercept_"


def to_sklearn(estimator: Any) -> Any:
    """Return a fitted estimator of scikit-learn with the weights of a fitted linear estimator. Raises UsageError when
    scikit-learn has no such estimator, or not with these parameters."""
    check_is_fitted(estimator)
    twin = _unfitted(estimator)
    is_softmax = getattr(estimator, "multi_class_", "ovr") == "multinomial"
    if type(twin).__name__ == "LogisticRegression" and len(estimator.classes_) > 2 and not is_softmax:
        return _one_for_each_class(estimator, twin)
    _copy_attributes(estimator, twin, MODEL + FITTED)
    match type(twin).__name__:  # what else it predicts with
        case "PoissonRegressor":
            twin._base_loss = twin._get_loss()
        case "RidgeClassifier":
            twin._label_binarizer = LabelBinarizer(neg_label=-1).fit(estimator.classes_)
    return twin


def _unfitted(estimator: Any) -> Any:
    if not estimator._twin:
        raise UsageError(f"scikit-learn has no estimator like {type(estimator).__name__}; {INSTEAD}")
    module, _, name = estimator._twin.rpartition(".")
    kind = getattr(import_module(module), name)
    known = kind().get_params().keys() - {*UNLIKE}
    params = {name: value for name, value in estimator.get_params(deep=False).items() if name in known}
    if name == "LogisticRegression":
        del params["l1_ratio"]
        params |= _solver(estimator, kind)
    twin = kind(**params)
    try:
        twin._validate_params()
    except InvalidParameterError as error:
        raise UsageError(f"{type(estimator).__name__} has no twin in scikit-learn: {error} So {INSTEAD}") from error
    return twin


def _solver(estimator: Any, kind: Any) -> dict[str, Any]:
    """The solver that minimises the same function, so that a second fit would come to the same model.

    Of two classes only liblinear penalises the intercept, as coordinate descent does.
    """
    if getattr(estimator, "multi_class_", "ovr") == "multinomial":
        return {}
    if not estimator.l1_ratio:
        return {"solver": "liblinear" if estimator.algorithm == "cocoa" else "lbfgs"}
    named = {} if kind().l1_ratio is not None else {"penalty": "elasticnet"}  # before 1.8
    return {"solver": "saga", "l1_ratio": estimator.l1_ratio, **named}


def _one_for_each_class(estimator: Any, unfitted: Any) -> Any:
    """Return a `OneVsRestClassifier` of the outputs."""
    from sklearn.multiclass import OneVsRestClassifier

    unfitted.set_params(class_weight=None)  # its keys are not the labels 0 and 1 of the parts
    ovr = OneVsRestClassifier(unfitted)
    ovr.estimators_ = []
    for coef, intercept in zip(*weights_of(estimator), strict=True):
        part = copy(unfitted)
        _copy_attributes(estimator, part, FITTED)
        part.coef_, part.intercept_, part.classes_ = coef[np.newaxis].copy(), np.array([intercept]), np.array([0, 1])
        ovr.estimators_.append(part)
    ovr.label_binarizer_ = LabelBinarizer(sparse_output=True).fit(estimator.classes_)
    _copy_attributes(estimator, ovr, FITTED[:3])
    return ovr


def _copy_attributes(source: Any, twin: Any, names: tuple[str, ...]) -> None:
    for name in names:
        is_property = isinstance(getattr(type(twin), name, None), property)  # as some classes_ before 1.9
        if hasattr(source, name) and not is_property:
            setattr(twin, name, copy(as_numpy(name, getattr(source, name))))
