"""Logistic regression."""

from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chicle_elastic.errors import UsageError
from estimators.base import Array, LinearClassifier
from estimators.checks import require_auto
from estimators.params import Share, parameters
from estimators.persistence import VALUES

if TYPE_CHECKING:
    from chicle_elastic.runtime.training.job import Outcome, Runtime
    from estimators.inputs import ClassifierTrainer, TrainingSet


@parameters
class ChicleLogisticRegression(LinearClassifier):
    """Logistic regression with a certified duality gap, on one machine or many.

    It is used like :class:`sklearn.linear_model.LogisticRegression` and minimises the same function: for two classes ::

        C * sum(weight * log(1 + exp(-y * (X @ coef + intercept))))
            + l1_ratio * sum(|coef|) + (1 - l1_ratio) / 2 * sum(coef**2)

    and for more of them one softmax has all classes. Intercepts are not penalised. With ``l1_ratio > 0`` many weights
    are exactly 0. Every difference:

    ======================  ==================================================  ============================
    what                    ChicleLogisticRegression                            LogisticRegression
    ======================  ==================================================  ============================
    more than two classes   multinomial; one-vs-rest with                       multinomial
                            ``multi_class="ovr"`` or ``l1_ratio > 0``, where
                            probabilities are the sigmoids of the outputs,
                            divided by their sum
    intercept               penalised with ``algorithm="cocoa"`` only, as one   penalised with liblinear
                            more feature of constant value                      only
                            `intercept_scaling`
    ``tol``                 relative duality gap (P - D) / P of the worst       measure of the solver, 1e-4
                            output, certified before the fit stops; 1e-3
    ``max_iter``            iterations, each of at least one pass over the      iterations of the solver; 100
                            data; 1000
    method                  coordinate descent or Newton's method, as the data  ``solver``, ``dual``
                            asks for; no parameters
    ``warm_start``          keeps the duals, of the same data only; ``coef_``   keeps ``coef_``
                            of a multinomial model and with ``l1_ratio > 0``
    ``random_state``        decides the order of samples; equal seeds and       for some solvers
                            ``n_threads=1`` give bit-identical models
    weights of 0            a class without weight has probability 0, and an    finite intercepts
                            intercept of -1e30 (1e30, if it is the first of
                            two)
    dtype                   floats and bytes stay as they are; all              ``coef_`` has the dtype of X
                            attributes are float64
    ``n_iter_``             one int                                             ndarray
    only in one             ``n_threads``, ``chunk_size``, ``runtime``,         ``sparsify``, ``densify``,
                            ``n_workers``, ``policy``, ``logdir``,              arrays on a device
                            ``store_duals``, ``fit(ChunkFolder(path))``,
                            ``save``, ``load``, ``to_sklearn``,
                            ``sparse_coef_``
    ======================  ==================================================  ============================

    Parameters
    ----------
    l1_ratio : float, default=0.0
        Share of the l1 penalty, from 0 to 1: with 1 it is the penalty, with 0 the l2 penalty is, in between both are.
    multi_class : {"auto", "multinomial", "ovr"}, default="auto"
        Model of more than two classes: one softmax of them all ("multinomial"), or each class against the rest ("ovr").
        "auto" takes the softmax, and with ``l1_ratio > 0``, where there is none, the other. Two classes have the same
        model whatever it is.
    algorithm : {"auto", "newton", "cocoa"}, default="auto"
        "cocoa" is the algorithm of the Chicle paper: coordinate descent on every node, whose changes are added up,
        whatever that takes; it penalises the intercept, as ``solver="liblinear"`` of scikit-learn does. "newton" is
        Newton's method on chunks. "auto" chooses, and ``history_.methods`` says what and why. A multinomial model and
        one with ``l1_ratio > 0`` have methods of their own.
    intercept_scaling : float, default=1.0
        Value of the constant feature with ``algorithm="cocoa"``; the larger, the less the intercept is penalised. It
        makes no difference elsewhere.
    warm_start : bool, default=False
        Begin with `coef_` and `intercept_` of the last `fit`, if that was of the same kind, and features and classes
        are as many and the same; that helps along a path of `C`, and where rows were added. Of two classes and of
        one-vs-rest with ``l1_ratio=0`` the duals are kept as well, for features and labels that are the same, byte by
        byte. `C` and all weights may change in between. The duals stay out of pickles and copies. Other data silently
        starts afresh.
    n_threads : int, default=None
        Most threads per task; fewer are used on small data. None takes the cores that this process may use. A model
        with ``l1_ratio > 0`` uses one. BLAS has one meanwhile, and its own number again afterwards.

    Attributes
    ----------
    multi_class_ : {"binary", "multinomial", "ovr"}
        The model that was fitted, whatever `multi_class` is by now.
    objective_ : ndarray of shape (1,) or (n_classes,), float64
        Primal objective P of each output, the function above. Of a multinomial model there is one, ``0.5 * |coef_|^2 +
        C * sum(weight * log_loss)``.
    dual_objective_ : ndarray of shape (1,) or (n_classes,), float64
        Dual objective D <= P of each of these.
    duals_ : ndarray of shape (n_samples, 1) or (n_samples, n_classes), float64
        Dual variables alpha >= 0 with ``coef_[k] = sum(duals_[i, k] * y_ik * x_i)``, y_ik = 1 or -1, if the fit
        converged; else they are those of `dual_objective_`. Of a multinomial model they have a sign, ``C * weight *
        (y_ik - p_ik)`` for y_ik = 1 or 0 and (nearly) the probabilities p_ik of the model; then ``coef_[k]`` is
        ``sum(duals_[i, k] * x_i)`` but for the gap. Only with `store_duals`. The rows are those of X.

    See Also
    --------
    ChicleSVM : The same with the losses of support vector machines.
    sklearn.linear_model.LogisticRegression : On small data and one machine it is as good or faster.

    Notes
    -----
    A multinomial model is found by Newton's method, most often with conjugate gradients. Of other models the number of
    rows, columns, classes and tasks decides between coordinate descent (CoCoA), Newton's method on sums over all tasks,
    and a working set; times never do. The page on linear models has the table.

    More weights than a working set has room for, 2047 for two classes, are no trouble on one task with sparse rows. On
    several tasks they take turns, and the fit may end with a warning.

    References
    ----------
    Yu, Huang and Lin 2011, "Dual coordinate descent methods for logistic regression and maximum entropy models".
    Dembo, Eisenstat and Steihaug 1982, "Inexact Newton methods".
    Ma et al. 2015, "Adding vs. averaging in distributed primal-dual optimization".
    Yuan, Ho and Lin 2012, "An improved GLMNET for l1-regularized logistic regression".

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from estimators import ChicleLogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ChicleLogisticRegression(random_state=0).fit(X, y)
    >>> model.predict_proba(X[:1]).shape
    (1, 3)
    >>> ChicleLogisticRegression(C=0.2, l1_ratio=1.0).fit(X, y).sparse_coef_.nnz
    4
    """

    _twin = "sklearn.linear_model.LogisticRegression"
    _file_values = (*VALUES, "multi_class_")

    l1_ratio: Share = 0.0
    multi_class: Literal["auto", "multinomial", "ovr"] = "auto"
    multi_class_: str = field(init=False)

    @property
    def penalty(self) -> str:
        """Return the name of the penalty, for which `sklearn.feature_selection.SelectFromModel` asks."""
        return "l1" if self.l1_ratio == 1 else "l2" if self.l1_ratio == 0 else "elasticnet"

    def _loss_name(self) -> str:
        return "logistic"

    def _l1_share(self) -> float:
        return float(self.l1_ratio)

    def _penalises_intercept(self) -> bool:
        return self.algorithm == "cocoa"

    def _is_multinomial(self, num_classes: int) -> bool:
        """Return True for one softmax of all classes, which two classes never have.

        Raises:
            UsageError: It is asked for with an l1 penalty.
        """
        if num_classes <= 2 or self.multi_class == "ovr":
            return False
        if self.l1_ratio and self.multi_class == "multinomial":
            raise UsageError(
                f"multi_class='multinomial' has no l1 penalty, got l1_ratio={self.l1_ratio:g} and {num_classes} "
                "classes; set l1_ratio=0, or multi_class='ovr', which has one"
            )
        return not self.l1_ratio

    def _trainer(self, training: "TrainingSet", runtime: "Runtime") -> "ClassifierTrainer":
        if not self._is_multinomial(len(training.classes)):
            return super()._trainer(training, runtime)
        from chicle_elastic.solvers.linear.newton.trainer import MultinomialTrainer
        from estimators.place import threads_of

        require_auto(self, "a multinomial model (there is multi_class='ovr')")
        class_weights = training.class_weights
        return MultinomialTrainer(
            C=float(self.C),
            tol=float(self.tol),
            has_intercept=bool(self.fit_intercept),
            num_threads=threads_of(runtime) if self.n_threads is None else int(self.n_threads),
            class_weights=None if class_weights is None else tuple(class_weights.tolist()),
        )

    def _beginning(self, trainer: "ClassifierTrainer", training: "TrainingSet") -> dict[str, Any]:
        if not trainer.has_one_softmax:
            return super()._beginning(trainer, training)
        return {"initial_model": self._initial_model(trainer, training)}

    def _initial_model(self, trainer: "ClassifierTrainer", training: "TrainingSet") -> Array | None:
        if trainer.has_one_softmax != (getattr(self, "multi_class_", "ovr") == "multinomial"):
            return None  # weights of another kind of model
        return super()._initial_model(trainer, training)

    def _predicting_attributes(
        self, trainer: "ClassifierTrainer", training: "TrainingSet", model: Array, num_iterations: int
    ) -> dict[str, Any]:
        kind = "multinomial" if trainer.has_one_softmax else "ovr" if len(training.classes) > 2 else "binary"
        return {**super()._predicting_attributes(trainer, training, model, num_iterations), "multi_class_": kind}

    def _num_objectives(self) -> int:
        return 1 if self.multi_class_ == "multinomial" else super()._num_objectives()

    def _set_attributes(self, trainer: "ClassifierTrainer", training: "TrainingSet", outcome: "Outcome") -> None:
        super()._set_attributes(trainer, training, outcome)
        if trainer.has_one_softmax and self.store_duals:
            self.duals_ = _duals_of(self, training, training.upper_bounds(trainer))

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or ChunkFolder
            Samples, as in `decision_function`.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes), float64
            Columns in the order of `classes_`; rows add up to 1.
        """
        return self._by_row("predict_proba", X, lambda rows: np.exp(self._log_probabilities(rows)))

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithm of the probability of each class.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or ChunkFolder
            Samples, as in `decision_function`.

        Returns
        -------
        log_probabilities : ndarray of shape (n_samples, n_classes), float64
            Exact where the probability itself is too small for a float.
        """
        return self._by_row("predict_log_proba", X, self._log_probabilities)

    def _log_probabilities(self, rows: Any) -> Array:
        scores = self._scores(rows)
        if scores.ndim == 1:
            return -np.logaddexp(0.0, np.column_stack([scores, -scores]))
        if getattr(self, "multi_class_", "ovr") == "multinomial":  # a model whose coef_ was set by hand has none
            return _log_softmax(scores)
        log_sigmoids = -np.logaddexp(0.0, -scores)
        log_sums: Array = np.logaddexp.reduce(log_sigmoids, axis=1, keepdims=True)
        return log_sigmoids - log_sums


def _log_softmax(scores: Array) -> Array:
    """Logarithms of probabilities, shape (n, n_classes), exact where the probability is too small for a float."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _duals_of(estimator: Any, training: "TrainingSet", upper: Array) -> Array:
    """Dual variables C_i (y_i - p_i) of every row, made feasible as for the certificate; shape (n, n_classes).

    Args:
        estimator: Fitted.
        training: What it was fitted to.
        upper: C_i, shape (n,), float64.
    """
    from chicle_elastic.solvers.linear.multinomial.objective import mixture

    codes, _ = training.codes_and_weights()
    p = np.exp(_log_softmax(training.by_row(estimator._scores)))
    targets = np.zeros_like(p)
    targets[np.arange(len(codes)), codes] = 1.0
    if estimator.fit_intercept:
        share, common = mixture(upper @ (p - targets), upper @ targets)
        p = (1.0 - share) * p + share * common
    return np.asarray(upper[:, np.newaxis] * (targets - p))
