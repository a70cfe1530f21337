"""Fitted estimators of scikit-learn made of ours, with equal predictions."""

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from chicle_elastic.errors import UsageError

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import LinearSVC

SHARED_PARAMS = ("C", "fit_intercept", "intercept_scaling", "class_weight", "random_state")
FITTED = ("classes_", "n_features_in_", "feature_names_in_", "n_iter_")


def to_linear_svc(estimator: Any) -> "LinearSVC":
    """A fitted `LinearSVC` with the weights of a fitted `ChicleSVM`.

    Raises:
        UsageError: Penalty or loss is none of LinearSVC's.
    """
    from sklearn.svm import LinearSVC

    check_is_fitted(estimator)
    for name, value in (("penalty", "elasticnet"), ("loss", "modified_huber")):
        if getattr(estimator, name) == value:
            raise UsageError(f"LinearSVC has no {name}={value!r}; copy coef_ and intercept_, or save the model")
    penalty = {"penalty": "l1", "dual": False} if estimator.penalty == "l1" else {}
    svc = LinearSVC(loss=estimator.loss, **penalty, **_params(estimator))
    _copy_fitted(estimator, svc)
    svc.coef_, svc.intercept_ = estimator.coef_.copy(), estimator.intercept_.copy()
    return svc


def to_logistic_regression(estimator: Any) -> "LogisticRegression | OneVsRestClassifier":
    """A fitted `LogisticRegression`, or one per class, with the weights of a fitted `ChicleLogisticRegression`."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import LabelBinarizer

    check_is_fitted(estimator)
    if getattr(estimator, "multi_class_", "ovr") == "multinomial":
        softmax = LogisticRegression(**_params(estimator))
        _copy_fitted(estimator, softmax)
        softmax.coef_, softmax.intercept_ = estimator.coef_.copy(), estimator.intercept_.copy()
        return softmax
    params = _params(estimator)
    if len(estimator.classes_) > 2:
        del params["class_weight"]  # its keys are not the labels 0 and 1 of the parts
    unfitted = LogisticRegression(**_solver(estimator), **params)
    parts = []
    for coef, intercept in zip(estimator.coef_, estimator.intercept_, strict=True):
        part = LogisticRegression(**unfitted.get_params())
        _copy_fitted(estimator, part)
        part.coef_, part.intercept_ = coef[np.newaxis].copy(), np.array([intercept])
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    for part in parts:
        part.classes_ = np.array([0, 1])
    ovr = OneVsRestClassifier(unfitted)
    ovr.estimators_ = parts
    ovr.label_binarizer_ = LabelBinarizer(sparse_output=True).fit(estimator.classes_)
    _copy_fitted(estimator, ovr, but=("n_iter_",))
    return ovr


def _solver(estimator: Any) -> dict[str, Any]:
    """The solver that minimises the same function, so that a second fit would come to the same model.

    Of two classes only liblinear penalises the intercept, as coordinate descent does.
    """
    from sklearn.linear_model import LogisticRegression

    if not estimator.l1_ratio:
        return {"solver": "liblinear" if estimator.algorithm == "cocoa" else "lbfgs"}
    named = {} if LogisticRegression().l1_ratio is not None else {"penalty": "elasticnet"}  # before 1.8
    return {"solver": "saga", "l1_ratio": estimator.l1_ratio, **named}


def _params(estimator: Any) -> dict[str, Any]:
    params = estimator.get_params(deep=False)
    return {name: params[name] for name in SHARED_PARAMS}


def _copy_fitted(source: Any, target: Any, but: tuple[str, ...] = ()) -> None:
    for name in FITTED:
        if name not in but and hasattr(source, name):
            setattr(target, name, getattr(source, name))
