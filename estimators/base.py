"""The base of the linear classifiers: the one way through `fit`, prediction, and the attributes.

The way of the data: validated once, class codes, chunks over the caller's memory (`inputs`), a `Job` for the runtime,
attributes from its `Outcome`. The mathematics is in `chicle_elastic.solvers`; nothing is decided here.
"""

import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Mapping
from functools import partial
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from scipy import sparse
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, Options, StrOptions

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.solvers.linear.certified import STUCK, largest_ratio
from chicle_elastic.solvers.linear.methods import most_block_columns
from estimators.checks import LeanEstimator, require_auto, require_finite_model, require_moderate
from estimators.containers import set_attributes_like
from estimators.persistence import SaveMixin
from estimators.prediction import LinearPredictionMixin, weights_of
from estimators.run import end_interrupted, fit_linear, gap_words
from estimators.watch import CallbackSupportMixin

if TYPE_CHECKING:
    from chicle_elastic.policies.base import Policy
    from chicle_elastic.runtime.training.job import Outcome, Runtime
    from estimators.inputs import ClassifierTrainer, TrainingSet
    from estimators.warm import KeptDuals


class LinearClassifier(
    LinearPredictionMixin, SaveMixin, ClassifierMixin, CallbackSupportMixin, LeanEstimator, metaclass=ABCMeta
):
    """Linear classifier, trained until its duality gap is small.

    Its parameters and attributes are described where they are meant to be read, in the estimators.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "C": [Interval(Real, 0.0, None, closed="neither")],
        "algorithm": [StrOptions({"auto", "newton", "cocoa"})],
        "tol": [Interval(Real, 0.0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "fit_intercept": ["boolean"],
        "intercept_scaling": [Interval(Real, 0.0, None, closed="neither")],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "warm_start": ["boolean"],
        "n_threads": [Interval(Integral, 1, None, closed="left"), None],
        "chunk_size": [Interval(Integral, 1, None, closed="left"), None],
        "runtime": [HasMethods(["run", "most_tasks"]), None],
        "n_workers": [Interval(Integral, 1, None, closed="left"), Options(Integral, {-1}), tuple, None],
        "policy": [HasMethods(["decide"]), tuple, None],
        "logdir": [str, PathLike, None],
        "store_duals": ["boolean"],
    }

    classes_: Array
    coef_: Array
    intercept_: Array
    n_features_in_: int
    n_iter_: int

    def __init__(
        self,
        *,
        C: float = 1.0,
        algorithm: Literal["auto", "newton", "cocoa"] = "auto",
        tol: float = 1e-3,
        max_iter: int = 1000,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        random_state: Any = None,
        verbose: int = 0,
        warm_start: bool = False,
        n_threads: int | None = None,
        chunk_size: int | None = None,
        runtime: "Runtime | None" = None,
        n_workers: int | tuple[int, int] | None = None,
        policy: "Policy | tuple[Policy, ...] | None" = None,
        logdir: str | PathLike[str] | None = None,
        store_duals: bool = False,
    ) -> None:
        self.C = C
        self.algorithm = algorithm
        self.tol = tol
        self.max_iter = max_iter
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.class_weight = class_weight
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start
        self.n_threads = n_threads
        self.chunk_size = chunk_size
        self.runtime = runtime
        self.n_workers = n_workers
        self.policy = policy
        self.logdir = logdir
        self.store_duals = store_duals

    @abstractmethod
    def _loss_name(self) -> str:
        """Return the name of an `objectives.Loss`."""

    @abstractmethod
    def _advice(self) -> tuple[str, ...]:
        """Return remedies for a fit that has not converged, beyond those of every linear estimator."""

    def _l1_share(self) -> float:
        """Share of the l1 penalty, 0 to 1; 0 is the l2 penalty alone.

        Raises:
            UsageError: The parameters do not allow it.
        """
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
        runtime = runtime_of(self)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        training = training_set(self, X, y, sample_weight, max_tasks=runtime.most_tasks(), seed=seed)
        if hasattr(runtime, "submit"):  # no objects of this process go there
            from estimators.submitted.fit import fit_elsewhere

            fit_elsewhere(self, runtime, getattr(training, "features", X), y, sample_weight)
            set_attributes_like(self, X)
            return self
        require_moderate(self, training.hook_arguments, is_first=True)
        trainer = self._trainer(training, runtime)
        try:
            beginning = self._beginning(trainer, training)
            outcome = fit_linear(self, runtime, trainer, training, seed, is_warm=self.warm_start, **beginning)
        except DataError:
            training.require_finite(self)  # says it with names of columns
            raise
        require_finite_model(self, outcome.model, training.hook_arguments)
        self._set_attributes(trainer, training, outcome)
        if outcome.is_interrupted:
            end_interrupted(self, gap_words(self.duality_gap_, self.tol))
        if (self.n_iter_ >= self.max_iter or outcome.reason == STUCK) and not self.duality_gap_ <= self.tol:
            require_moderate(self, training.hook_arguments)
            warnings.warn(
                self._not_converged(training.findings(self, trainer, outcome.model), outcome.reason),
                ConvergenceWarning,
                stacklevel=3,  # the caller of fit, behind the decorator
            )
        set_attributes_like(self, X)
        return self

    def _not_converged(self, findings: tuple[str, ...] = (), reason: str = "") -> str:
        """How far the fit came, on how many tasks, what the data looks like, and what to do."""
        counts = self.history_.column("num_tasks")
        fewest, most = int(counts.min()), int(counts.max())
        tasks = "" if most == 1 else f" on {most} tasks" if fewest == most else f" on {fewest} to {most} tasks"
        if np.isnan(self.duality_gap_):
            state = "no duality gap is certified, because the samples of lost nodes have not been reloaded yet"
        else:
            state = f"the relative duality gap is {self.duality_gap_:.1e}, above tol={self.tol:g}"
        descends = "coordinate descent" in self.history_.method  # most other steps are those of one task
        if self._l1_share():  # so many weights that a working set has no room for them; one task goes without
            descends |= np.count_nonzero(self.coef_, axis=1).max() >= most_block_columns(self._num_objectives())
        fewer_tasks = ["use fewer tasks"] if most > 1 and descends else []
        more = "raise tol" if reason == STUCK else "raise max_iter or tol"
        remedies = ["scale the features (StandardScaler)", *fewer_tasks, more, "lower C"]
        *others, last = [*remedies, *self._advice()]
        looks = f" The data looks like this: {'; '.join(findings)}." if findings else ""
        after = f"{self.n_iter_} iterations" if reason == STUCK else f"max_iter={self.max_iter} iterations"
        stuck = f", and {STUCK}" if reason == STUCK else ""
        return (
            f"{type(self).__name__} has not converged: after {after}{tasks} {state}{stuck}."
            f"{looks} To converge: {', '.join(others)}, or {last}."
        )

    def _trainer(self, training: "TrainingSet", runtime: "Runtime") -> "ClassifierTrainer":
        from chicle_elastic.solvers.linear.newton.margins import margin_loss
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

    def _set_attributes(self, trainer: "ClassifierTrainer", training: "TrainingSet", outcome: "Outcome") -> None:
        from estimators.warm import KeptDuals
        from estimators.watch import methods_of

        attributes = self._predicting_attributes(trainer, training, outcome.model, len(outcome.history))
        for name, value in attributes.items():
            setattr(self, name, value)
        self.history_, self.ledger_ = outcome.history, outcome.ledger
        if not self.history_.methods:
            self.history_.methods = methods_of(outcome.history, partial(trainer.method, training.source.schema))
        if outcome.certificate is None:  # samples were lost and not yet restored: nothing can be certified
            self.objective_ = self.dual_objective_ = np.full(self._num_objectives(), np.nan)
            self.duality_gap_ = np.nan
        else:
            primal, dual = trainer.primal_and_dual(outcome.model, outcome.certificate)
            self.objective_, self.dual_objective_ = np.atleast_1d(primal), np.atleast_1d(dual)
            self.duality_gap_ = largest_ratio(primal - dual, primal, trainer.floor(outcome.certificate))
        self.__dict__.pop("duals_", None)
        self.__dict__.pop("_kept_duals", None)
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
        return {name: value for name, value in state.items() if name != "_kept_duals"}
