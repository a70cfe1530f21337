"""Estimators of torch networks, trained by local SGD on uni-tasks; the classifier among them."""

import json
import math
import warnings
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DivergedError, MissingExtraError, UsageError
from chicle_elastic.uninterrupted import import_whole
from chicle_elastic.waits import Wait
from estimators.cnn_defaults import MOST_LOCAL_STEPS
from estimators.cnn_params import ModuleParamsMixin, network_parameters
from estimators.cnn_persistence import SaveNetworkMixin
from estimators.cnn_prediction import ImagePredictionMixin
from estimators.params import Above0, AtLeast0, ClassWeight, Count, JobParams, Share, ShareBelow1, parameters
from estimators.run import end_interrupted
from estimators.watch import CallbackSupportMixin

if TYPE_CHECKING:
    from chicle_elastic.solvers.network import Network
    from estimators.cnn_inputs import ImageSet


GUESSING = 0.97
"""A mean loss above this share of that of guessing is as good as guessing."""


@parameters
class NetworkEstimator(ModuleParamsMixin, SaveNetworkMixin, CallbackSupportMixin, JobParams):
    """Estimator of a torch network; long by the documentation of its parameters.

    On one task this is SGD with momentum and small batches; on K tasks each takes `local_steps` steps on its own
    samples, then weights and momentum are averaged. Needs torch: ``pip install 'chicle-elastic[cnn]'``.

    Parameters
    ----------
    module : type, instance of torch.nn.Module, or None, default=None
        The network. None is that of the paper: two convolutions (6 and 16 filters of 5 x 5) with ReLU and max-pooling,
        three fully connected layers. A class is made with the arguments `module__*`; an instance is copied, and trained
        from the weights that it has. It has to give one output per class or target, without softmax or sigmoid.
    image_shape : tuple of int, default=None
        (height, width) or (channels, height, width) of the samples of a 2-D X. Without it the default network gets
        them row by row as a square, in the middle of zeros up to the smallest square that it takes; other modules get
        them flat.
    max_epochs : int, default=10
        Passes over the data.
    batch_size : int, default=8
        Samples of a step, L.
    local_steps : int or "auto", default="auto"
        Steps between two averages, H; with 1 this is mini-batch SGD. "auto" is 16, and on several tasks and little data
        so few that a fit has a hundred averages, but at least 4; with one task, which has nothing to average, a
        hundredth of the steps of the fit, from 16 to 128. `local_steps_` tells.
    learning_rate : float or "auto", default="auto"
        For one task; see `lr_scaling`. "auto" is 1 / (3 sqrt(steps of the fit)), at least 0.001 and at most 0.01, for
        the `batch_size` and `momentum` of the defaults; it grows with sqrt(batch_size) and with 1 - momentum. Of
        Adam it is 0.001, and grows with sqrt(batch_size); another class has its own. A function's first group has it,
        and all groups keep their ratio. In `partial_fit` the steps are those of all calls so far.
    momentum : float, default=0.9
        Of each step by "sgd"; of Adam and AdamW the first beta. Other classes, and functions, have settings of their
        own.
    optimizer : {"sgd", "adam", "adamw"}, type or callable, default="sgd"
        What a step does. A class of torch.optim is made with `optimizer__*`; a function gets the module and returns the
        optimizer, with groups of parameters if it likes. Tasks average its state with the weights, so it moves and is
        saved with the model.
    weight_decay : float, default=0.0
        Factor of the weights in the gradient; of AdamW of the weights themselves, as in torch. A function as
        `optimizer` sets its own.
    lr_scaling : {"sqrt", "linear", "none"}, default="sqrt"
        How the learning rate grows with the number of tasks, also when that changes during the fit. The paper has the
        square root; "linear" is beyond it.
    decay : float, default=0.2
        Part of the fit, at its end, over which the learning rate falls to zero, so that what is left of the
        noise of single steps is averaged away; 0 keeps it constant, as the paper has it, and so does `partial_fit`.
    schedule : {"linear", "cosine"}, type or callable, default="linear"
        How the learning rate falls; with ``decay=1.0`` from the beginning on. Or a class of torch.optim.lr_scheduler,
        made with `schedule__*`, or a function that makes one of an optimizer; `decay` then means nothing.
    schedule_each : {"epoch", "step"}, default="epoch"
        When such a scheduler steps: after each epoch, or each step of one task; the learning rate is read at the
        beginning of each iteration.
    max_grad_norm : float or None, default=None
        Gradients of a step with a larger norm are scaled down to it, as `torch.nn.utils.clip_grad_norm_` does.
    loss : callable or None, default=None
        Takes outputs of the network and targets, returns their mean loss, as ``nn.CrossEntropyLoss(
        label_smoothing=0.1)`` or a function does; with weights it is asked for the loss of each sample
        (``reduction="none"``). None is the cross-entropy of class codes, that of each label by itself where a sample
        has several, and the mean squared error of numbers.
    outer_momentum : float or "auto", default="auto"
        Nesterov momentum of the averaged changes, beyond the paper, so that many tasks need about as few epochs as one.
        "auto" takes as much as the number of tasks asks for, also when that changes during the fit: none for one task,
        0.57 for 2, 0.73 for 4, 0.9 for 16 and more; and none where `local_steps` are fewer than `momentum` remembers
        (10 with 0.9), as in mini-batch SGD. 0 is the paper's local SGD.
    outer_learning_rate : float, default=0.7
        Goes with `outer_momentum`; one task does without it unless that is a number.
    standardize : bool or "auto", default="auto"
        Whether the network gets images with mean 0 and standard deviation 1, over all values of all images of the fit.
        "auto" does so for the default network, which therefore learns images of any range alike. Without it uint8
        images go from -1 to 1, and others are taken as they are.
    augment : callable or None, default=None
        What becomes of the images of a step, in training only: ``augment(images, generator)`` gets them as the network
        takes them, a float32 tensor of shape ``(n, *image_shape_)`` after `standardize`, which it may write to, and a
        `torch.Generator` on their device; it returns a tensor of the same shape and dtype. What it draws from the
        generator, or from torch's own, follows from `random_state`. It goes along to the nodes of a `LocalCluster`.
    early_stopping : bool, default=False
        Hold out a part of the samples, score each epoch on it, stop when that does not improve, and keep the best.
    validation_fraction : float, default=0.1
        The part, with `early_stopping`.
    n_iter_no_change : int, default=5
        Epochs without improvement that end the fit, with `early_stopping`.
    tol : float, default=1e-4
        Improvement of the score that counts, with `early_stopping`.
    random_state : int, RandomState instance or None, default=None
        Of first weights, order of samples, dropout and splits.
    verbose : int, default=0
        1 shows a bar on a terminal, or a line per epoch; 2 a line per iteration.
    warm_start : bool, default=False
        Begin with the weights of the last fit.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:N", or several of each node, which share each batch: "cuda:0,cuda:1". CUDA, several
        devices, and NCCL between nodes that each have a GPU, are experimental (``make test-gpu``).
    kernels : {"auto", "fused", "onednn", "native"}, default="auto"
        How a CPU computes a step. "fused" are kernels of our own, for the default network; the others are torch's.
        "auto" takes the first where it can, and else "onednn". A step takes as many of the task's cores as its counted
        operations are worth. Results differ by rounding.
    precision : {"float32", "bf16"}, default="float32"
        "bf16" computes the products of a step in bfloat16 (`torch.autocast`), which is faster on devices that have it
        and slower elsewhere; weights, loss and optimizer, and predictions, stay float32.
    compile : bool or str, default=False
        Whether the steps of the module are compiled by `torch.compile`, some seconds per task; a string is a backend.

    Attributes
    ----------
    module_ : torch.nn.Module
        The trained network, on the CPU.
    image_shape_ : tuple of int
        Shape of a sample as the network takes it.
    is_byte_ : bool
        Whether it was fitted with uint8 images.
    scaling_ : chicle_elastic.solvers.network.Scaling
        `module_` gets ``X * scaling_.scale + scaling_.shift``; see `standardize`.
    local_steps_ : int
        Steps between two averages of the last fit.
    learning_rate_ : float
        That of one task in the last fit.
    n_epochs_ : int
        Epochs of the last fit.
    n_iter_ : int
        Iterations of the last fit, of `local_steps` steps on each task.
    loss_ : float
        Mean training loss of the last epoch.
    validation_scores_ : list of float
        Score of the samples held out, per epoch; only with `early_stopping`.
    best_validation_score_ : float
        The best of them, which `module_` has; only with `early_stopping`.
    """

    module: Any = None
    image_shape: Annotated[tuple[int, ...], tuple, list] | None = None
    max_epochs: Count = 10
    batch_size: Count = 8
    local_steps: Count | Literal["auto"] = "auto"
    learning_rate: Literal["auto"] | Above0 = "auto"
    momentum: ShareBelow1 = 0.9
    # `optimizer_of` says why another one will not do
    optimizer: Annotated[Any, StrOptions({"sgd", "adam", "adamw"}), str, object] = "sgd"
    weight_decay: AtLeast0 = 0.0
    lr_scaling: Literal["sqrt", "linear", "none"] = "sqrt"
    decay: Share = 0.2
    schedule: Annotated[Any, StrOptions({"linear", "cosine"}), str, callable] = "linear"
    schedule_each: Literal["epoch", "step"] = "epoch"
    max_grad_norm: Above0 | None = None
    loss: Annotated[Any, str, callable, None] = None
    outer_momentum: Literal["auto"] | ShareBelow1 = "auto"
    outer_learning_rate: Above0 = 0.7
    standardize: Literal["auto"] | bool = "auto"
    augment: Annotated[Any, callable, None] = None
    early_stopping: bool = False
    validation_fraction: Annotated[float, Interval(Real, 0.0, 1.0, closed="neither")] = 0.1
    n_iter_no_change: Count = 5
    tol: AtLeast0 = 1e-4
    warm_start: bool = False
    device: str = "cpu"
    kernels: Literal["auto", "fused", "onednn", "native"] = "auto"
    precision: Literal["float32", "bf16"] = "float32"
    compile: bool | str = False

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the network.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...), or ChunkFolder
            Images: (n_samples, channels, height, width), (n_samples, height, width), or flat (see `image_shape`).
            uint8 images stay bytes until they are used; all others become float32. What the network gets of them,
            `standardize` says. A `chicle_elastic.chunks.folder.ChunkFolder` brings its targets and weights along.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Labels or numbers; with several columns those of a classifier are 0 and 1, and X is copied. None for a
            ChunkFolder.
        sample_weight : array-like of shape (n_samples,), default=None
            Factors of the loss, relative to their mean; none for a ChunkFolder.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        DivergedError
            The loss, or a weight at the end, is not finite; the message has iteration and learning rate, and the log
            step and samples. A model of before is kept.
        MissingExtraError
            torch is not installed.
        UsageError
            The network does not fit images or targets, `augment` does not return such images, or the device is not
            there.
        ValueError
            X, y or a parameter cannot be used.
        KeyboardInterrupt
            Ctrl-C; the attributes are set, as after fewer iterations.

        Warns
        -----
        ConvergenceWarning
            The last epoch's mean loss is near that of guessing, or Ctrl-C has ended the fit.
        RuntimeWarning
            A policy is disabled, because it raised, decided nonsense or did not answer.
        UserWarning
            The module returns probabilities, and logits are expected.
        """
        is_warm = self.warm_start and hasattr(self, "module_")
        return self._fit(X, y, sample_weight, epochs=int(self.max_epochs), is_warm=is_warm, is_partial=False)

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        epochs: int,
        is_warm: bool,
        is_partial: bool,
        classes: Any = None,
    ) -> Self:
        if is_partial and self.schedule != "linear":
            raise UsageError(
                f"schedule={self.schedule!r} lets the learning rate fall over all epochs, and partial_fit does not "
                "know how many there will be; leave schedule out (the rate stays constant then), or call fit"
            )
        _require_torch()
        from estimators.cnn_fit import network_of, run_job, trainer_of, try_augmentation, warn_of_probabilities
        from estimators.cnn_inputs import image_set
        from estimators.place import runtime_of, threads_of

        self._require_class_for_params()
        runtime = runtime_of(self)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        goes_on = is_warm and is_partial
        if goes_on and classes is not None and np.unique(classes).tolist() != self.classes_.tolist():
            raise UsageError(f"classes={classes!r} are not those of the first call, {self.classes_.tolist()}")
        images = image_set(
            self,
            X,
            y,
            sample_weight,
            classes=getattr(self, "classes_", None) if goes_on else classes,
            is_partial=is_partial,
            reset=not goes_on,
            max_tasks=runtime.most_tasks(),
            seed=seed,
        )
        scaling = images.scaling
        if is_warm and self.is_byte_ == images.is_byte:
            scaling = self.scaling_  # the weights to begin with are for values that are scaled like this
        network = network_of(self, images, scaling)
        num_samples = images.source.schema.num_rows * epochs + (self._samples_seen if goes_on else 0)
        # Calls of partial_fit go on with one model, whose layout follows from the local steps: those of one task.
        most_tasks = 1 if is_partial else runtime.most_tasks()
        trainer = trainer_of(
            self,
            network,
            images,
            seed=seed,
            epochs=epochs,
            num_samples=num_samples,
            most_tasks=most_tasks,
            num_threads=threads_of(runtime),
        )
        if is_partial:
            trainer = replace(trainer, decay=0.0)
            if self.local_steps == "auto":  # the next call may have several tasks
                trainer = replace(trainer, local_steps=MOST_LOCAL_STEPS)
        if self.outer_momentum == "auto" and runtime.most_tasks() == 1:
            trainer = replace(trainer, outer_momentum=0.0)  # no room in the model for what one task never has
        engine = trainer.engine()  # so that a module that does not fit is refused here, and not in a task
        if self.learning_rate == "auto" and engine.rate is not None:
            trainer = replace(trainer, learning_rate=engine.rate)
        trainer.scaled_rate(1)  # so that a scheduler that does not fit is refused here, too
        layout = trainer.layout(engine.layout)
        try_augmentation(engine, trainer, images)
        has_codes = network.target_shape is None
        if not goes_on and not is_warm and self.module is not None and has_codes:  # once is enough for a module
            warn_of_probabilities(engine.module, network, images, has_loss=self.loss is not None)
        identity = trainer.identity()
        state_of = json.dumps([identity[name] for name in ("model_version", "optimizer", "optimizer_settings")])
        has_state = goes_on and getattr(self, "_state_of", state_of) == state_of
        first = self._first_model(engine, layout, images, is_warm=is_warm, has_momentum=has_state)
        if hasattr(runtime, "submit"):  # no objects of this process go there
            from estimators.submitted.fit import fit_elsewhere

            if is_partial:
                raise UsageError("partial_fit cannot run as a job of a cluster, which fits once; use LocalCluster")
            fit_elsewhere(self, runtime, X, y, sample_weight)
            return self
        outcome, best = run_job(self, runtime, trainer, images, layout, seed=seed, first=first)
        self.history_, self.ledger_ = outcome.history, outcome.ledger
        last = outcome.history[-1].figures.get("loss", 0.0) if outcome.history else 0.0
        if not math.isfinite(last):  # what was fitted before stays
            raise DivergedError(outcome.reason)
        model = outcome.model if best is None else best
        if not np.isfinite(layout.w(model)).all():  # by the last step, or by gradients of a loss that was finite
            raise DivergedError(
                f"weights of the network are not finite numbers after {len(outcome.history)} iterations, and the loss "
                f"was; lower learning_rate (it was {trainer.learning_rate:g}), set max_grad_norm, or look at the loss"
            )
        for name, value in self._predicting_attributes(network, images, layout, model).items():
            setattr(self, name, value)
        self._momentum, self._state_of = layout.v(outcome.model).copy(), state_of
        self._samples_seen = num_samples
        self.learning_rate_, self.local_steps_ = trainer.learning_rate, trainer.local_steps
        self.n_iter_ = len(outcome.history)
        ends = [record for record in outcome.history if "epoch" in record.figures]
        self.n_epochs_ = len(ends)
        self.loss_ = ends[-1].figures["epoch_loss"] if ends else math.nan
        if outcome.is_interrupted:
            end_interrupted(self, f"it has {self.n_epochs_} of {epochs} epochs behind it")
        guess = math.log(max(2, network.num_classes))
        if has_codes and not is_partial and self.loss is None and self.loss_ > GUESSING * guess:
            warnings.warn(
                f"{type(self).__name__} has hardly learned: the mean loss of its last epoch is {self.loss_:.3g}, and "
                f"guessing among {network.num_classes} classes gives {guess:.3g}. Try another learning_rate (it was "
                f"{trainer.learning_rate:.2g}), more max_epochs, or standardize=True; and look whether y belongs to X.",
                ConvergenceWarning,
                stacklevel=4,
            )
        return self

    def _first_model(
        self, engine: Any, layout: Any, images: "ImageSet", *, is_warm: bool, has_momentum: bool
    ) -> Array | None:
        """Return the model to begin with; None leaves it to the trainer."""
        from chicle_elastic.solvers.engines.predict import values_of

        if not is_warm and isinstance(self.module, type | None):
            return None
        w, buffers = values_of(self.module_) if is_warm else engine.initial()
        if (len(w), len(buffers)) != (layout.num_weights, layout.num_buffers):
            raise UsageError(
                f"warm_start cannot go on with a network of {len(w)} parameters, because X and y now need one of "
                f"{layout.num_weights}; fit a new estimator, or turn warm_start off"
            )
        v = self._momentum if has_momentum and hasattr(self, "_momentum") else None
        if v is not None and len(v) != len(layout.v(np.empty(layout.size, np.float32))):
            v = None  # of another optimizer
        begun: Array = layout.begin(w, buffers, num_rows=images.source.schema.num_rows, v=v)
        return begun

    def _predicting_attributes(
        self, network: "Network", images: "ImageSet", layout: Any, model: Array
    ) -> dict[str, Any]:
        """Return the attributes that predict with this model."""
        from chicle_elastic.solvers.engines.predict import filled_module

        return {
            **({} if images.classes is None else {"classes_": images.classes}),
            "_target_shape": images.target_shape,
            "image_shape_": images.input_shape,
            "is_byte_": images.is_byte,
            "scaling_": network.scaling_of(is_byte=images.is_byte),
            "module_": filled_module(network, layout.w(model), layout.buffers(model)),
        }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


@network_parameters
class ChicleCNNClassifier(ImagePredictionMixin, ClassifierMixin, NetworkEstimator):
    """Classifier of images by a small convolutional network, trained by local SGD on the cross-entropy.

    On one task this is SGD with momentum and small batches; on K tasks each takes `local_steps` steps on its own
    samples, then weights and momentum are averaged. Needs torch: ``pip install 'chicle-elastic[cnn]'``.

    Parameters
    ----------
    class_weight : dict, "balanced" or None, default=None
        Factor of the loss per class; not for samples with several labels.
    **module_params : dict
        Arguments of the classes of module, optimizer and scheduler, as `module__NAME`, `optimizer__NAME` and
        `schedule__NAME`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted; with several per sample their columns.

    References
    ----------
    Kaufmann et al., "Addressing Algorithmic Bottlenecks in Elastic Machine Learning with Chicle".

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from estimators import ChicleCNNClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = ChicleCNNClassifier(max_epochs=2, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    class_weight: ClassWeight = None

    if TYPE_CHECKING:

        def __init__(self, module: Any = None, **params: Any) -> None: ...

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on some samples, from where the last call ended, momentum included.

        The images of the first call decide how all are scaled (`standardize`).

        Parameters
        ----------
        X : array-like of shape (n_samples, ...), or ChunkFolder
            Images, as in `fit`.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Labels, as in `fit`; none for a ChunkFolder.
        classes : array-like of shape (n_classes,), default=None
            All labels that there will ever be; needed in the first call, unless y has all of them.
        sample_weight : array-like of shape (n_samples,), default=None
            Factors of the loss, relative to their mean.

        Returns
        -------
        self : object
            The estimator.

        Raises
        ------
        UsageError
            A label is none of `classes_`, or `schedule` is not "linear" and has to know how many epochs there will be;
            and as in `fit`.
        """
        self._validate_params()  # the decorator looks in the first call alone, and they may have changed
        return self._fit(
            X, y, sample_weight, epochs=1, is_warm=hasattr(self, "module_"), is_partial=True, classes=classes
        )


def _require_torch() -> None:
    try:
        with Wait("importing torch (some seconds, once)"):
            import_whole("torch")
    except ImportError as error:
        raise MissingExtraError.for_package("torch", extra="cnn", purpose="ChicleCNNClassifier") from error
