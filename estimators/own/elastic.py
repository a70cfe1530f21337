"""An estimator around an algorithm of the user's: `ElasticEstimator(MyTrainer())`."""

import warnings
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from sklearn.base import _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, TransformerTags, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import Trainer
from estimators.own.params import TrainerParamsMixin
from estimators.params import Count, JobParams, parameters
from estimators.run import end_interrupted, run_job
from estimators.watch import CallbackSupportMixin

if TYPE_CHECKING:
    from chicle_elastic.runtime.training.job import Outcome
    from estimators.own.inputs import ElasticSet

KINDS = ("classifier", "regressor", "clusterer", "transformer")


def _offers(name: str) -> Callable[["ElasticEstimator"], bool]:
    """For `available_if`: whether the trainer has the method."""
    return lambda estimator: callable(getattr(estimator.trainer, name, None))


def _can_score(estimator: "ElasticEstimator") -> bool:
    return _offers("score")(estimator) or (
        _offers("predict")(estimator) and estimator._kind() in ("classifier", "regressor")
    )


@parameters
class ElasticEstimator(TrainerParamsMixin, CallbackSupportMixin, JobParams):
    """Estimator that fits with a `chicle_elastic.Trainer` of your own, in this process or on nodes.

    `fit` cuts the data into chunks, runs the job and keeps its model. What the estimator can do besides follows from
    the trainer, whose class may have

    ==========================  ========================================================================================
    ``estimator_type``          "classifier": `y` are labels, and chunks have their codes from 0, in sorted order;
                                "regressor": `y` are real numbers; "clusterer" and "transformer": `y` is not looked at.
                                Without it `y` are real numbers, or there is none.
    ``predict(model, X)``       `predict`; of a classifier it returns codes, and the estimator labels.
    ``transform(model, X)``     `transform` and `fit_transform`.
    ``predict_proba``,          the same of the estimator.
    ``decision_function``
    ``score(model, X, y)``      `score`, larger is better; without it accuracy of a classifier and R^2 of a regressor.
    ==========================  ========================================================================================

    These methods get the model, a vector as of `Trainer.init`, and rows of X, ndarray or CSR matrix; they return one
    value or row for each row. `score` gets `y` as the chunks have it.

    Parameters
    ----------
    trainer : Trainer
        The algorithm, an instance. Fields of a dataclass are parameters: `trainer__NAME`, in a grid search too.
    max_iter : int, default=100
        Iterations after which the fit ends anyway.
    random_state : int, RandomState instance or None, default=None
        Of the first model, the order of rows in chunks, and the generators of the solvers.
    verbose : int, default=0
        1 shows a bar on a terminal and in a notebook, and a line now and then elsewhere; 2 a line per iteration.

    Attributes
    ----------
    model_ : ndarray of shape (n_parameters,)
        The model of the last iteration.
    trainer_ : Trainer
        The one that has fitted it.
    n_iter_ : int
        Iterations.
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted; of a classifier only.

    Examples
    --------
    The mean of all rows, which `transform` subtracts:

    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> from chicle_elastic import Action, Solver, Trainer, Update, Verdict
    >>> from estimators import ElasticEstimator
    >>> @dataclass(frozen=True)
    ... class Centering(Trainer):
    ...     factor: float = 1.0
    ...     def init(self, schema, rng):
    ...         return np.zeros(schema.num_features)
    ...     def solver(self, ctx):
    ...         return SumSolver(ctx)
    ...     def merge(self, model, weighted_sum, total_weight):
    ...         return weighted_sum / total_weight
    ...     def verdict(self, model, report):
    ...         return Verdict(action=Action.STOP, reason="one pass is enough")
    ...     def transform(self, model, X):
    ...         return X - self.factor * model
    >>> class SumSolver(Solver):
    ...     def solve(self, model, budget):
    ...         rows = np.concatenate([chunk.read().rows for chunk in self.chunks.values()])
    ...         return Update(delta=rows.mean(axis=0), samples=len(rows), weight=len(rows))
    >>> X = np.arange(40.0).reshape(20, 2)
    >>> centering = ElasticEstimator(Centering()).fit(X)
    >>> centering.n_iter_, float(centering.transform(X).mean())
    (1, 0.0)
    >>> centering.set_params(trainer__factor=0.5).trainer
    Centering(factor=0.5)
    """

    trainer: Annotated[Trainer, object] = field(kw_only=False)  # `_require_trainer` says what is wrong with it
    max_iter: Count = 100
    model_: Array = field(init=False)
    trainer_: Trainer = field(init=False)
    classes_: Array = field(init=False)
    n_features_in_: int = field(init=False)
    n_iter_: int = field(init=False)

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Run the job of the trainer.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or ChunkFolder
            Samples, float32 or float64 in the chunks; sparse ones are `CsrRows` there. A
            `chicle_elastic.chunks.folder.ChunkFolder` brings its targets and weights along.
        y : array-like of shape (n_samples,), default=None
            Labels or numbers, see ``estimator_type``; none for a ChunkFolder.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights >= 0, which the chunks have; what they mean is up to the solver. None for a ChunkFolder.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ContractError
            The solver broke the contract of chunks, or reported a metric that the trainer does not name.
        DataError
            A value of X is NaN or infinite.
        UsageError
            `trainer` is no instance of a Trainer, the runtime takes no trainer, or a cluster cannot get it.
        ValueError
            X, y or a parameter cannot be used.
        KeyboardInterrupt
            Ctrl-C; the attributes are set, as after fewer iterations, unless the first one had not ended.

        Warns
        -----
        ConvergenceWarning
            The trainer has a `verdict` of its own, which did not end the job within `max_iter` iterations.
        RuntimeWarning
            A policy is disabled, because it raised, decided nonsense or did not answer.
        """
        from estimators.own.inputs import elastic_set
        from estimators.place import runtime_of

        self._require_trainer()
        runtime = runtime_of(self)
        if hasattr(runtime, "submit"):
            raise UsageError(
                f"{type(runtime).__name__} fits Chicle's own estimators, whose names its nodes know; "
                f"{self._shown_name} goes to a LocalCluster, or into a module that calls cluster_runtime().run(job), "
                "for the component chicle.app"
            )
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        data = elastic_set(self, X, y, sample_weight, kind=self._kind(), max_tasks=runtime.most_tasks(), seed=seed)
        outcome = run_job(self, runtime, self.trainer, data, seed)
        self._set_attributes(data, outcome)
        if outcome.is_interrupted:
            end_interrupted(self, "its attributes are those of the last one")
        has_rule = type(self.trainer).verdict is not Trainer.verdict
        if has_rule and self.n_iter_ >= self.max_iter and outcome.reason.startswith("all "):
            warnings.warn(
                f"{self._shown_name} has not ended by itself: all max_iter={self.max_iter} iterations are used, and "
                "its verdict never said STOP; raise max_iter, or look at history_",
                ConvergenceWarning,
                stacklevel=3,  # the caller of fit, behind the decorator
            )
        return self

    @available_if(_offers("predict"))
    def predict(self, X: Any) -> Array:
        """Return the predictions of `trainer.predict`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or ChunkFolder
            Samples as in `fit`.

        Returns
        -------
        predictions : ndarray of shape (n_samples, ...)
            Labels of a classifier, else what `trainer.predict` returns. The rows of a ChunkFolder come in the order of
            the data that it was made from.
        """
        codes = self._by_row("predict", X)
        if self._kind() != "classifier":
            return codes
        is_code = codes.dtype.kind in "iu"
        if codes.size and not (is_code and codes.min() >= 0 and codes.max() < len(self.classes_)):
            raise UsageError(
                f"{self._shown_name}.predict of a classifier has to return codes, integers from 0 to "
                f"{len(self.classes_) - 1}, and returned {codes.dtype} values such as {codes.ravel()[:3].tolist()}"
            )
        return self.classes_[codes]

    @available_if(_offers("predict_proba"))
    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of `trainer.predict_proba`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or ChunkFolder
            Samples as in `fit`.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
            Columns in the order of `classes_`.
        """
        return self._by_row("predict_proba", X)

    @available_if(_offers("decision_function"))
    def decision_function(self, X: Any) -> Array:
        """Return the values of `trainer.decision_function`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or ChunkFolder
            Samples as in `fit`.

        Returns
        -------
        decision : ndarray of shape (n_samples,) or (n_samples, n_classes)
            As the trainer has it.
        """
        return self._by_row("decision_function", X)

    @available_if(_offers("transform"))
    def transform(self, X: Any) -> Array:
        """Transform samples by `trainer.transform`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or ChunkFolder
            Samples as in `fit`.

        Returns
        -------
        transformed : ndarray of shape (n_samples, ...)
            What `trainer.transform` returns.
        """
        return self._by_row("transform", X)

    @available_if(_offers("transform"))
    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Array:
        """Fit, then transform the same samples.

        Parameters
        ----------
        X, y, **fit_params
            As of `fit`.

        Returns
        -------
        transformed : ndarray of shape (n_samples, ...)
            What `trainer.transform` returns.
        """
        return self.fit(X, y, **fit_params).transform(X)

    @available_if(_can_score)
    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return how good the model is; larger is better.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Samples as in `fit`.
        y : array-like of shape (n_samples,), default=None
            Labels or numbers as in `fit`.
        sample_weight : array-like of shape (n_samples,), default=None
            For accuracy and R^2; a `score` of the trainer takes none.

        Returns
        -------
        score : float
            `trainer.score(model, X, y)` where the trainer has it; else the accuracy of a classifier, or R^2.
        """
        from estimators.own.inputs import codes_of, rows_of

        check_is_fitted(self, "model_")
        if not _offers("score")(self):
            measure = accuracy_score if self._kind() == "classifier" else r2_score
            return float(measure(y, self.predict(X), sample_weight=sample_weight))
        if sample_weight is not None:
            raise UsageError(f"{self._shown_name}.score takes no sample_weight; leave it out")
        targets = codes_of(self, y) if self._kind() == "classifier" and y is not None else y
        return float(self.trainer_.score(self.model_, rows_of(self, X), targets))  # type: ignore[attr-defined]

    # How.

    @property
    def _shown_name(self) -> str:
        """In messages, lines and folders: the user knows the trainer."""
        return type(self.trainer).__name__

    def _kind(self) -> str | None:
        kind: str | None = getattr(self.trainer, "estimator_type", None)
        return kind

    def _require_trainer(self) -> None:
        trainer = self.trainer
        if isinstance(trainer, type):
            raise UsageError(f"ElasticEstimator(trainer={trainer.__name__}): pass an instance, {trainer.__name__}(...)")
        if not isinstance(trainer, Trainer):
            raise UsageError(
                f"ElasticEstimator(trainer={trainer!r}): it has to be a chicle_elastic.Trainer, which this "
                f"{type(trainer).__name__} is not"
            )
        if self._kind() not in (*KINDS, None):
            raise UsageError(f"{self._shown_name}.estimator_type is {self._kind()!r}; it has to be one of {KINDS}")

    def _by_row(self, name: str, X: Any) -> Array:
        """Call a method of the trainer with the rows; a folder has one chunk in memory at a time."""
        from estimators.own.inputs import by_row

        check_is_fitted(self, "model_")
        method = getattr(self.trainer_, name)

        def checked(rows: Any) -> Array:
            found = np.asarray(method(self.model_, rows))
            if found.ndim == 0 or len(found) != rows.shape[0]:
                raise UsageError(
                    f"{self._shown_name}.{name} has to return a value or a row for each of {rows.shape[0]} rows, and "
                    f"returned shape {found.shape}"
                )
            return found

        return by_row(self, X, checked)

    def _predicting_attributes(
        self, trainer: Trainer, data: "ElasticSet", model: Array, num_iterations: int
    ) -> dict[str, Any]:
        """Return the attributes that predict with this model."""
        found = {"model_": np.array(model), "trainer_": trainer, "n_iter_": num_iterations}
        return found if data.classes is None else {**found, "classes_": data.classes}

    def _set_attributes(self, data: "ElasticSet", outcome: "Outcome") -> None:
        self.__dict__.pop("classes_", None)
        num_iterations = outcome.history[-1].iteration if outcome.history else 0
        for name, value in self._predicting_attributes(self.trainer, data, outcome.model, num_iterations).items():
            setattr(self, name, value)
        self.history_, self.ledger_ = outcome.history, outcome.ledger

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        kind = self._kind()
        tags.input_tags.sparse = True
        tags.target_tags.required = kind in ("classifier", "regressor")
        tags.estimator_type = None if kind == "transformer" else kind
        tags.classifier_tags = ClassifierTags() if kind == "classifier" else None
        tags.regressor_tags = RegressorTags() if kind == "regressor" else None
        tags.transformer_tags = TransformerTags() if _offers("transform")(self) else None
        return tags
