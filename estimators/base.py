"""The base of the linear classifiers: their parameters, how a fit begins, and the attributes.

The way of the data: validated once, class codes, chunks over the caller's memory (`inputs`), a `Job` for the runtime
(`linear`), attributes from its `Outcome`. The mathematics is in `chicle_elastic.solvers`; nothing is decided here.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from scipy import sparse
from sklearn.base import ClassifierMixin, _fit_context

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.linear.methods import most_block_columns
from estimators.checks import require_auto
from estimators.linear import LinearEstimator
from estimators.params import Above0, ClassWeight, Count, parameters
from estimators.persistence import SaveMixin
from estimators.prediction import LinearPredictionMixin, weights_of

if TYPE_CHECKING:
    from chicle_elastic.runtime.training.job import Outcome, Runtime
    from estimators.inputs import ClassifierTrainer, TrainingSet
    from estimators.training.warm import KeptDuals


@parameters
class LinearClassifier(LinearPredictionMixin, SaveMixin, ClassifierMixin, LinearEstimator, metaclass=ABCMeta):
    """Linear classifier, trained until its duality gap is small.

    Parameters
    ----------
    C : float, default=1.0
        Factor of the sum of losses, > 0. Smaller values regularise more and converge faster.
    tol : float, default=1e-3
        Relative duality gap (P - D) / P of every output at which the fit stops: the objective P is then certified to be
        at most ``tol * P`` above the best possible one. With 0 a fit ends at `max_iter`.
    max_iter : int, default=1000
        Most iterations. In an iteration every sample is visited at least once; a single task may make several passes
        on little data, and so may a Newton step. A fit that ends here in a run of Newton's method has a true gap, but
        `coef_` is not that of the duals; with ``max_iter=1`` such a run has only looked at ``coef_ = 0``.
    fit_intercept : bool, default=True
        Whether there is an intercept.
    intercept_scaling : float, default=1.0
        Value of the constant feature; the larger, the less the intercept is penalised.
    class_weight : dict or "balanced", default=None
        Factor of C per class label. "balanced" takes n_samples / (n_classes * number of samples of the class), with
        sample weights in place of counts where there are some.
    random_state : int, RandomState instance or None, default=None
        Seed of the order of samples.
    n_threads : int, default=None
        Most threads per task; fewer are used on small data. None takes the cores that this process may use.
        BLAS has one thread meanwhile, and its own number again afterwards.
    store_duals : bool, default=False
        Whether to keep `duals_`, which there are with an l2 penalty only.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features), float64
        Weights of the features; one row for two classes. With an l1 penalty most of them may be 0.
    sparse_coef_ : sparse matrix of the same shape, float64
        The same as CSR.
    intercept_ : ndarray of shape (1,) or (n_classes,), float64
        Intercepts.
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    duality_gap_ : float
        Largest (P - D) / P of the outputs, evaluated in float64 at the returned model.
    """

    C: Above0 = 1.0
    algorithm: Literal["auto", "newton", "cocoa"] = "auto"
    intercept_scaling: Above0 = 1.0
    class_weight: ClassWeight = None
    warm_start: bool = False
    n_threads: Count | None = None
    store_duals: bool = False

    @abstractmethod
    def _loss_name(self) -> str:
        """Return the name of an `objectives.Loss`."""

    def _advice(self) -> str:
        return "lower C"

    def _l1_share(self) -> float:
        """Share of the l1 penalty, 0 to 1; 0 is the l2 penalty alone. Raises UsageError when the parameters do not
        allow it."""
        return 0.0

    def _penalises_intercept(self) -> bool:
        """Say whether the weight of the intercept column is penalised like the others."""
        return True

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or ChunkFolder
            Samples. float16 to float64, bfloat16, uint8, int8 and bool are used as they are (sparse ones as float32 or
            float64), without a copy where they are C-contiguous or CSR, and so are tensors on the CPU. A
            `chicle_elastic.chunks.folder.ChunkFolder` brings its labels and weights along.
        y : array-like of shape (n_samples,)
            Labels; none for a ChunkFolder.
        sample_weight : array-like of shape (n_samples,) or float, default=None
            Factor of C per sample, >= 0. Samples of weight 0 change nothing but `classes_`, which holds every label of
            `y`; none for a ChunkFolder.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        DataError
            A value of X is NaN or infinite, or so large that squares overflow; the message names its column.
        ValueError
            X, y or a parameter cannot be used.
        KeyboardInterrupt
            Ctrl-C; the attributes are those of the best certified model, or of the last one where there is none yet.

        Warns
        -----
        ConvergenceWarning
            The duality gap is above `tol` after `max_iter` iterations, or Ctrl-C has ended the fit; it names
            what is conspicuous about the data.
        RuntimeWarning
            A policy is disabled, because it raised, decided nonsense or did not answer.
        """
        from estimators.inputs import training_set
        from estimators.place import runtime_of

        if self._l1_share() and self.store_duals:
            raise UsageError(
                "store_duals=True keeps the duals that coef_ of an l2 penalty is made of, and an l1 penalty has none; "
                "leave store_duals=False"
            )
        return self._fit_job(training_set, runtime_of(self), X, y, sample_weight)

    def _is_slower_on_tasks(self) -> bool:
        if (
            "coordinate descent" in self.history_.method or not self._l1_share()
        ):  # most other steps are those of one task
            return "coordinate descent" in self.history_.method
        # So many weights that a working set has no room for them; one task goes without.
        most_weights = np.count_nonzero(self.coef_, axis=1).max()
        return bool(most_weights >= most_block_columns(self._num_objectives()))

    def _begun(self, training: "TrainingSet", runtime: "Runtime") -> tuple[Any, Mapping[str, Any]]:
        trainer: Any = self._trainer(training, runtime)
        beginning = self._beginning(trainer, training)
        identity, before = getattr(self, "_kept_newton", (None, None))
        is_warm = any(beginning.get(name) is not None for name in ("initial_model", "initial_state"))
        if self.warm_start and hasattr(trainer, "before"):
            trainer = replace(trainer, before=(before,) * (is_warm and identity == trainer.identity()))
        return trainer, beginning

    def _trainer(self, training: "TrainingSet", runtime: "Runtime") -> "ClassifierTrainer":
        from chicle_elastic.solvers.linear.losses import margin_loss
        from chicle_elastic.solvers.linear.newton.trainer import L1Trainer
        from chicle_elastic.solvers.linear.objectives import Loss
        from chicle_elastic.solvers.linear.trainer import LinearTrainer
        from estimators.place import threads_of

        class_weights, l1_ratio = training.class_weights, self._l1_share()
        shared: dict[str, Any] = {
            "loss": self._loss_name(),
            "C": float(self.C),
            "tol": float(self.tol),
            "class_weights": None if class_weights is None else tuple(class_weights.tolist()),
        }
        shared["penalises_intercept"] = self._penalises_intercept() or not self.fit_intercept
        shared["intercept_scaling"] = float(self.intercept_scaling) if self._penalises_intercept() else 1.0
        if not self.fit_intercept:
            shared["intercept_scaling"] = 0.0
        if not l1_ratio:
            num_threads = threads_of(runtime) if self.n_threads is None else int(self.n_threads)
            return LinearTrainer(**shared, num_threads=num_threads, algorithm=self.algorithm)
        require_auto(self, "an l1 penalty")
        return L1Trainer(**{**shared, "loss": margin_loss(Loss.named(shared["loss"])), "l1_ratio": l1_ratio})

    def _beginning(self, trainer: "ClassifierTrainer", training: "TrainingSet") -> dict[str, Any]:
        """Return further arguments of `run_job`: the state to begin with, and whether it is kept."""
        if self._l1_share():
            return {"initial_model": self._initial_model(trainer, training)}
        # Duals tell all weights but that of an intercept that is not penalised.
        is_free = self.fit_intercept and not self._penalises_intercept()
        return {
            "initial_model": self._initial_model(trainer, training) if is_free else None,
            "initial_state": self._initial_state(trainer, training, has_w=is_free),
            "keep_state": bool(self.warm_start or self.store_duals),
        }

    def _initial_model(self, trainer: "ClassifierTrainer", training: "TrainingSet") -> Array | None:
        """Weights of the last fit, when that had the same features and classes, shape (outputs * (features + 1),)."""
        found, intercept = weights_of(self)
        classes, num_outputs = training.classes, len(training.classes) if len(training.classes) > 2 else 1
        is_of_others = not np.array_equal(getattr(self, "classes_", classes), classes)
        if not self.warm_start or is_of_others or np.shape(found) != (num_outputs, self.n_features_in_):
            return None
        intercept = np.broadcast_to(intercept, num_outputs)  # coef_ set by hand may lack it
        whole = np.column_stack([found, intercept / (trainer.intercept_scaling or np.inf)])
        return training.columns.of_fit(whole)

    def _initial_state(self, trainer: "ClassifierTrainer", training: "TrainingSet", *, has_w: bool) -> Array | None:
        """Duals of the last fit, when there were some and they are of these rows, or of the first of them."""
        kept: KeptDuals | None = getattr(self, "_kept_duals", None) if self.warm_start else None
        if kept is None or not training.begins_with(kept, has_more=not has_w):  # w does as well for other rows
            return None
        return kept.state(self._loss_name(), training.upper_bounds(trainer))

    def _predicting_attributes(
        self, trainer: "ClassifierTrainer", training: "TrainingSet", model: Array, num_iterations: int
    ) -> dict[str, Any]:
        """Return the attributes that predict with this model."""
        w = training.columns.full(model)
        return {
            "classes_": training.classes,
            "coef_": w[:, :-1].copy(),
            "intercept_": w[:, -1] * trainer.intercept_scaling,
            "n_iter_": num_iterations,
        }

    def _objective_of(self, values: Any) -> Array:
        return np.resize(values, self._num_objectives())

    def _set_attributes(self, trainer: "ClassifierTrainer", training: "TrainingSet", outcome: "Outcome") -> None:
        from chicle_elastic.solvers.linear.newton.state import NewtonState
        from estimators.training.warm import KeptDuals

        super()._set_attributes(trainer, training, outcome)
        self.__dict__.pop("duals_", None)
        self.__dict__.pop("_kept_duals", None)
        self.__dict__.pop("_kept_newton", None)
        state = None if outcome.certificate is None else trainer.look(outcome.certificate.progress)
        if isinstance(state, NewtonState) and any(output.keeps_factor for output in state.outputs):
            self._kept_newton = trainer.identity(), state.ready()  # views of an outcome would keep all of it
        if outcome.state is not None:
            duals = outcome.state[:, :, 0]
            if self.store_duals:
                self.duals_ = duals
            if self.warm_start:
                self._kept_duals = KeptDuals.of(training.fingerprint, duals, training.upper_bounds(trainer))

    @property
    def sparse_coef_(self) -> Any:
        """`coef_` as a CSR matrix of shape (1, n_features) or (n_classes, n_features), float64."""
        return sparse.csr_matrix(weights_of(self)[0])

    def _num_objectives(self) -> int:
        """Problems that were solved: one per output, where the loss is not one of all outputs."""
        return len(self.coef_)

    def __getstate__(self) -> dict[str, Any]:
        # As large as the training set in samples, and of use only where that is: not for a pickle.
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in ("_kept_duals", "_kept_newton")}
