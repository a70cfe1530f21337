"""What a network is trained on and predicts from: samples in any of their forms, as rows of uint8 or float32."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.model_selection import train_test_split
from sklearn.utils import check_array, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.rows import as_floats
from chicle_elastic.chunks.sources import ArraySource, ChunkSource
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.solvers.network import square_for
from estimators.checks import validated_weights
from estimators.cnn_defaults import Moments
from estimators.containers import as_matrix, as_vector
from estimators.inputs import encode_labels
from estimators.streaming import chunks_of, is_folder, require_no_labels
from estimators.training.weights import class_weight_vector, require_two_classes

if TYPE_CHECKING:
    from chicle_elastic.solvers.network import Scaling


DTYPES = (np.float32, np.uint8)
"""dtypes of images that are kept; everything else becomes the first."""


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Validated input of a fit.

    Attributes:
        source: Where the runtime takes the chunks from.
        classes: ndarray of shape (n_classes,). Labels, sorted; a class code is a position in it, and a column where
            samples have several. None where targets are numbers.
        class_weights: ndarray of shape (n_classes,), float64, or None. Factor of the loss per class code.
        mean_weight: Mean factor of the samples.
        input_shape: Shape of a sample as the network takes it.
        is_byte: Whether images are uint8, and are scaled when they are used.
        target_shape: Shape of the target of a sample; None where it is a class code. See `Network`.
        scaling: Of their values, by the mean and the deviation of all; None where the network takes them as they are.
        validation: Rows, targets and weights (or None) that are held out.
        hook_arguments: `X`, `y` and `metadata` for the hooks of callbacks.
    """

    source: ChunkSource
    classes: Array | None
    class_weights: Array | None = None
    mean_weight: float
    input_shape: tuple[int, ...]
    is_byte: bool
    target_shape: tuple[int, ...] | None = None
    scaling: "Scaling | None" = None
    validation: tuple[Array, Array, Array | None] | None = None
    hook_arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def num_outputs(self) -> int:
        """Outputs that the network has to have."""
        return int(np.prod(self.target_shape or ())) if self.classes is None else len(self.classes)


def image_set(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    *,
    classes: Any,
    is_partial: bool,
    reset: bool,
    max_tasks: int,
    seed: int,
) -> ImageSet:
    """Validate the arguments of `fit` and `partial_fit`.

    Args:
        estimator: The one to fit; with `reset`, `n_features_in_` (and `feature_names_in_`) are set.
        X, y, sample_weight: Arguments of `fit`.
        classes: Labels that there are; None takes those of `y`.
        is_partial: Whether these are not all samples of the fit, so that none is held out.
        reset: Whether the shape of the images is taken from X; else it has to be that of before.
        max_tasks: Largest number of tasks.
        seed: Of shuffle and validation split.

    Raises:
        DataError: Images have another shape or dtype than those of before.
        UsageError: Shapes, labels or weights cannot be used.
        ValueError: Anything else that scikit-learn refuses.
    """
    if is_folder(X):
        return _from_folder(estimator, X, y, sample_weight, classes=classes, reset=reset)
    rows, shape = validated_images(estimator, X, y=y, reset=reset)
    if y is None:
        raise ValueError("This estimator requires y to be passed, but the target y is None.")
    weights = None if sample_weight is None else validated_weights(sample_weight, rows)
    hooks = {"X": X, "y": y, "metadata": None if weights is None else {"sample_weight": weights}}
    class_weights, target_shape = None, None
    found: Array | None
    if is_classifier(estimator) and _num_columns(y) < 2:
        labels = _labels(y, len(rows))
        found, targets, _ = (
            encode_labels(labels) if classes is None else _encode_as(estimator, labels, np.unique(classes))
        )
        totals = _totals(targets, weights, len(found))
        class_weights = class_weight_vector(estimator.class_weight, found, totals)
        if classes is None:
            require_two_classes(type(estimator).__name__, found, totals, class_weights)
    else:
        targets = _numbers(estimator, y, len(rows))
        target_shape = targets.shape[1:]
        found = np.arange(targets.shape[1]) if is_classifier(estimator) else None
    if not reset and target_shape != estimator._target_shape:
        raise DataError(
            f"y has targets of shape {target_shape} (None: one label), and {type(estimator).__name__} was fitted with "
            f"{estimator._target_shape}"
        )
    validation = None
    if estimator.early_stopping and not is_partial:
        kept, held_out = _split(estimator, targets, target_shape is None, seed)
        validation = (rows[held_out], targets[held_out], None if weights is None else weights[held_out])
        rows, targets, weights = rows[kept], targets[kept], None if weights is None else weights[kept]
    num_classes = None if found is None or target_shape is not None else len(found)
    source = ArraySource(
        np.hstack([rows, targets.view(rows.dtype)]) if target_shape else rows,
        np.zeros(len(rows), np.float32) if target_shape else targets,
        weights=weights,
        num_classes=num_classes,
        max_tasks=max_tasks,
        chunk_bytes=estimator.chunk_size,
        seed=seed,
    )
    moments = _moments(estimator)
    if moments is not None:
        moments.add(rows)
    return ImageSet(
        source=source,
        classes=found,
        class_weights=class_weights,
        mean_weight=_mean_weight(_totals(targets, weights, num_classes), class_weights, len(rows)),
        input_shape=shape,
        is_byte=rows.dtype == np.uint8,
        target_shape=target_shape,
        scaling=None if moments is None else moments.scaling(),
        validation=validation,
        hook_arguments=hooks,
    )


def validated_images(estimator: Any, X: Any, *, y: Any = None, reset: bool) -> tuple[Array, tuple[int, ...]]:
    """Images as rows, and the shape in which the network takes one.

    Args:
        estimator: With `image_shape`, `module` and, without `reset`, the attributes of a fit.
        X: Array-like of shape (n_samples, ...). Images; see `ChicleCNNClassifier.fit`.
        y: Labels, for scikit-learn's checks that X and y belong together.
        reset: Whether this is the first look at the images.

    Returns:
        The rows, ndarray of shape (n_samples, n_features), uint8 or float32, C-contiguous, in the memory of X where
        that is possible; and the shape.

    Raises:
        DataError: Images have another shape or dtype than those of the fit.
        UsageError: The shape of X is none of images.
        ValueError: Anything else that scikit-learn refuses.
    """
    X = as_matrix(f"{type(estimator).__name__}: X", X)
    X = as_floats(X) if isinstance(X, np.ndarray) else X
    if not sparse.issparse(X) and _num_axes(X) > 2:
        images = check_array(X, dtype=DTYPES, allow_nd=True, order="C", input_name="X", estimator=estimator)
        if y is not None:
            check_consistent_length(images, y)
        shape = _image_shape(estimator, images.shape)
        rows = images.reshape(len(images), -1)
        if reset:
            estimator.n_features_in_ = rows.shape[1]
            estimator.__dict__.pop("feature_names_in_", None)
    else:
        extra = {} if y is None else {"y": y, "multi_output": _num_columns(y) > 0}
        checked = validate_data(estimator, X, reset=reset, dtype=DTYPES, order="C", **extra)
        rows = checked if y is None else checked[0]
        shape = _flat_shape(estimator, rows.shape[1]) if reset else estimator.image_shape_
    if not reset:
        require_same_images(estimator, shape, rows.shape[1], is_byte=rows.dtype == np.uint8, where="X")
    return rows, shape


def require_same_images(
    estimator: Any, shape: tuple[int, ...], num_features: int, *, is_byte: bool, where: str
) -> None:
    """Refuse images that are not like those of the fit.

    Raises:
        DataError: With both shapes or dtypes.
    """
    name = type(estimator).__name__
    if shape != estimator.image_shape_ or num_features != estimator.n_features_in_:
        raise DataError(
            f"{where} has images of shape {shape} ({num_features} features), but {name} was fitted with "
            f"{estimator.image_shape_} ({estimator.n_features_in_} features); crop or resize them to that"
        )
    if is_byte != estimator.is_byte_:
        here, there = ("uint8", "float32") if is_byte else ("float32", "uint8")
        raise DataError(
            f"{where} has the dtype {here}, but {name} was fitted with {there} (what becomes of a value was fitted to "
            "those); use one of them for both"
        )


def _num_axes(X: Any) -> int:
    ndim = getattr(X, "ndim", None)
    return int(np.asarray(X).ndim if ndim is None else ndim)


def _image_shape(estimator: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """(channels, height, width) of images of three or four axes."""
    if len(shape) > 4:
        raise UsageError(
            f"X has {len(shape)} axes; images come as (n, channels, height, width), (n, height, width), or flat"
        )
    found = shape[1:] if len(shape) == 4 else (1, *shape[1:])
    wanted = _wanted_shape(estimator)
    if wanted is not None and wanted != found:
        raise UsageError(f"X has images of shape {found}, but image_shape={estimator.image_shape} was given; drop it")
    if estimator.module is None and found[2] <= 4 < min(found[:2]):
        raise UsageError(
            f"X has images of shape {found}, which looks like channels last; images come as (n, channels, height, "
            "width): pass X.transpose(0, 3, 1, 2)"
        )
    return found


def _flat_shape(estimator: Any, num_features: int) -> tuple[int, ...]:
    """Shape in which the network takes flat samples."""
    wanted = _wanted_shape(estimator)
    if wanted is None:
        side = square_for(num_features)
        return (1, side, side) if estimator.module is None else (num_features,)
    if int(np.prod(wanted)) != num_features:
        raise UsageError(
            f"image_shape={estimator.image_shape} has {int(np.prod(wanted))} values, but X has {num_features} features"
        )
    return wanted


def _wanted_shape(estimator: Any) -> tuple[int, ...] | None:
    """`image_shape` with its channels; None where it is not given."""
    given = estimator.image_shape
    if given is None:
        return None
    shape = tuple(int(length) for length in given)
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise UsageError(f"image_shape={given!r} cannot be; say (height, width) or (channels, height, width)")
    return shape if len(shape) == 3 else (1, *shape)


def _moments(estimator: Any) -> Moments | None:
    """Where to put the values of all images together; None where they are not scaled by them."""
    is_wanted = estimator.module is None if estimator.standardize == "auto" else bool(estimator.standardize)
    return Moments() if is_wanted else None


def _num_columns(y: Any) -> int:
    """Columns of targets that are a table; 0 for a list."""
    shape = tuple(getattr(y, "shape", ())) or np.asarray(y).shape
    return int(shape[1]) if len(shape) == 2 else 0


def _numbers(estimator: Any, y: Any, num_rows: int) -> Array:
    """Targets that are numbers, or 0 and 1 for each of several labels; shape (n,) or (n, k), float32."""
    y = y.toarray() if sparse.issparse(y) else as_matrix("y", y) if _num_columns(y) else as_vector("y", y)
    targets: Array = check_array(y, dtype=np.float32, ensure_2d=False, order="C", input_name="y", estimator=estimator)
    check_consistent_length(np.empty(num_rows), targets)
    if not is_classifier(estimator):
        return targets
    if not np.isin(targets, (0, 1)).all():
        raise UsageError(
            f"y has {targets.shape[1]} columns, so each is 0 or 1 for a label, and there are other values; pass one "
            "column of labels, or numbers to ChicleRegressor"
        )
    if estimator.class_weight is not None:
        raise UsageError(
            f"class_weight={estimator.class_weight!r} is for one label per sample; for several give "
            "loss=nn.BCEWithLogitsLoss(pos_weight=...)"
        )
    return targets


def _labels(y: Any, num_rows: int) -> Array:
    labels = column_or_1d(as_vector("y", y), warn=True)
    check_consistent_length(np.empty(num_rows), labels)
    if labels.dtype.kind not in "iub":
        check_classification_targets(labels)
    return np.asarray(labels)


def _encode_as(estimator: Any, labels: Array, classes: Array) -> tuple[Array, Array, Array]:
    """Codes of labels among given classes."""
    codes = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    is_unknown = classes[codes] != labels
    if is_unknown.any():
        unknown = np.unique(labels[is_unknown]).tolist()
        raise UsageError(
            f"y has the labels {unknown}, which are not among the classes {classes.tolist()} of "
            f"{type(estimator).__name__}; pass all labels as classes in the first partial_fit"
        )
    return classes, codes.astype(np.int32), np.bincount(codes, minlength=len(classes))


def _split(estimator: Any, targets: Array, are_codes: bool, seed: int) -> tuple[Array, Array]:
    """Rows to train on and rows to hold out, stratified by class codes."""
    try:
        kept, held_out = train_test_split(
            np.arange(len(targets)),
            test_size=estimator.validation_fraction,
            random_state=seed,
            stratify=targets if are_codes else None,
        )
    except ValueError as error:
        raise UsageError(
            f"validation_fraction={estimator.validation_fraction} of {len(targets)} samples cannot be held out for "
            f"early_stopping ({error}); use more samples, or another fraction"
        ) from error
    return np.sort(kept), np.sort(held_out)


def _totals(targets: Array, weights: Array | None, num_classes: int | None) -> Array:
    """Return the weight of the samples of each class, or of all of them where targets are no codes; float64."""
    codes = np.zeros(len(targets), np.intp) if num_classes is None else targets
    return np.bincount(codes, weights=weights, minlength=num_classes or 1).astype(np.float64)


def _mean_weight(totals: Array, class_weights: Array | None, num_rows: int) -> float:
    weighted = totals if class_weights is None else totals * class_weights
    mean = float(weighted.sum()) / num_rows
    if not mean > 0:
        raise UsageError("all samples weigh 0, so there is nothing to learn; check sample_weight and class_weight")
    return mean


def _from_folder(
    estimator: Any, folder: ChunkFolder, y: Any, sample_weight: Any, *, classes: Any, reset: bool
) -> ImageSet:
    require_no_labels(folder, y, sample_weight)
    schema, name = folder.schema, type(estimator).__name__
    has_codes = is_classifier(estimator)
    if (schema.num_classes > 0) != has_codes or schema.kind != "dense" or schema.dtype not in ("float32", "uint8"):
        raise UsageError(
            f"{name} needs {'class labels' if has_codes else 'real targets'} and dense images of uint8 or float32, but "
            f"the chunk folder {folder.path} has {schema.num_classes} classes and {schema.kind} {schema.dtype}; "
            f"convert it with --dtype{'' if has_codes else ' and --regression'}"
        )
    if estimator.early_stopping:
        raise UsageError(
            "early_stopping holds out a part of X, and a ChunkFolder is trained on as a whole; turn it off, or convert "
            "the validation data to a folder of its own and score it"
        )
    labels = np.asarray(folder.classes) if has_codes else None
    if labels is not None and classes is not None and labels.tolist() != np.unique(classes).tolist():
        raise UsageError(f"the chunk folder {folder.path} has the classes {labels.tolist()}, and {classes} are needed")
    if schema.sample_shape:
        shape = _image_shape(estimator, (schema.num_rows, *schema.sample_shape))
    else:
        shape = _flat_shape(estimator, schema.num_features)
    if reset:
        estimator.n_features_in_ = schema.num_features
        estimator.__dict__.pop("feature_names_in_", None)
    else:
        where = f"the chunk folder {folder.path}"
        require_same_images(estimator, shape, schema.num_features, is_byte=schema.dtype == "uint8", where=where)
    num_classes = None if labels is None else len(labels)
    totals, moments = np.zeros(num_classes or 1), _moments(estimator)
    for chunk in chunks_of(folder):
        if moments is not None:
            moments.add(np.asarray(chunk.rows))
        totals += _totals(chunk.targets, chunk.weights, num_classes)
    class_weights = None
    if labels is not None:
        class_weights = class_weight_vector(estimator.class_weight, labels, totals)
        require_two_classes(name, labels, totals, class_weights)
    return ImageSet(
        source=folder,
        classes=labels,
        class_weights=class_weights,
        mean_weight=_mean_weight(totals, class_weights, schema.num_rows),
        input_shape=shape,
        is_byte=schema.dtype == "uint8",
        target_shape=None if has_codes else (),
        scaling=None if moments is None else moments.scaling(),
    )
