"""What a CNN is trained on and predicts from: images in any of their forms, as rows of uint8 or float32."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
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
        classes: ndarray of shape (n_classes,). Labels, sorted; a class code is a position in it.
        class_weights: ndarray of shape (n_classes,), float64, or None. Factor of the loss per class code.
        mean_weight: Mean factor of the samples.
        input_shape: Shape of a sample as the network takes it.
        is_byte: Whether images are uint8, and are scaled when they are used.
        scaling: Of their values, by the mean and the deviation of all; None where the network takes them as they are.
        validation: Rows, codes and weights (or None) that are held out.
        hook_arguments: `X`, `y` and `metadata` for the hooks of callbacks.
    """

    source: ChunkSource
    classes: Array
    class_weights: Array | None
    mean_weight: float
    input_shape: tuple[int, ...]
    is_byte: bool
    scaling: "Scaling | None" = None
    validation: tuple[Array, Array, Array | None] | None = None
    hook_arguments: dict[str, Any] = field(default_factory=dict)


def image_set(
    estimator: Any, X: Any, y: Any, sample_weight: Any, *, classes: Any, reset: bool, max_tasks: int, seed: int
) -> ImageSet:
    """Validate the arguments of `fit` and `partial_fit`.

    Args:
        estimator: The one to fit; with `reset`, `n_features_in_` (and `feature_names_in_`) are set.
        X, y, sample_weight: Arguments of `fit`.
        classes: Labels that there are; None takes those of `y`.
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
    labels = _labels(y, len(rows))
    found, codes, _ = encode_labels(labels) if classes is None else _encode_as(estimator, labels, np.unique(classes))
    weights = None
    if sample_weight is not None:
        weights = validated_weights(sample_weight, rows)
    hooks = {"X": X, "y": y, "metadata": None if weights is None else {"sample_weight": weights}}
    totals = np.bincount(codes, weights=weights, minlength=len(found)).astype(np.float64)
    class_weights = class_weight_vector(estimator.class_weight, found, totals)
    if classes is None:
        require_two_classes(type(estimator).__name__, found, totals, class_weights)
    validation = None
    if estimator.early_stopping and classes is None:
        kept, held_out = _split(estimator, codes, seed)
        validation = (rows[held_out], codes[held_out], None if weights is None else weights[held_out])
        rows, codes, weights = rows[kept], codes[kept], None if weights is None else weights[kept]
    source = ArraySource(
        rows,
        codes,
        weights=weights,
        num_classes=len(found),
        max_tasks=max_tasks,
        chunk_bytes=estimator.chunk_size,
        seed=seed,
    )
    totals = np.bincount(codes, weights=weights, minlength=len(found)).astype(np.float64)
    moments = _moments(estimator)
    if moments is not None:
        moments.add(rows)
    return ImageSet(
        source=source,
        classes=found,
        class_weights=class_weights,
        mean_weight=_mean_weight(totals, class_weights, len(codes)),
        input_shape=shape,
        is_byte=rows.dtype == np.uint8,
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
        extra = {} if y is None else {"y": y}
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


def _labels(y: Any, num_rows: int) -> Array:
    if y is None:
        raise ValueError("This estimator requires y to be passed, but the target y is None.")
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


def _split(estimator: Any, codes: Array, seed: int) -> tuple[Array, Array]:
    """Rows to train on and rows to hold out, stratified."""
    try:
        kept, held_out = train_test_split(
            np.arange(len(codes)), test_size=estimator.validation_fraction, random_state=seed, stratify=codes
        )
    except ValueError as error:
        raise UsageError(
            f"validation_fraction={estimator.validation_fraction} of {len(codes)} samples cannot be held out for "
            f"early_stopping ({error}); use more samples, or another fraction"
        ) from error
    return np.sort(kept), np.sort(held_out)


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
    if schema.num_classes == 0 or schema.kind != "dense" or schema.dtype not in ("float32", "uint8"):
        raise UsageError(
            f"{name} needs class labels and dense images of uint8 or float32, but the chunk folder {folder.path} has "
            f"{schema.num_classes} classes and {schema.kind} {schema.dtype}; convert it with --dtype"
        )
    if estimator.early_stopping:
        raise UsageError(
            "early_stopping holds out a part of X, and a ChunkFolder is trained on as a whole; turn it off, or convert "
            "the validation data to a folder of its own and score it"
        )
    labels = np.asarray(folder.classes)
    if classes is not None and labels.tolist() != np.unique(classes).tolist():
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
    totals, moments = np.zeros(len(labels)), _moments(estimator)
    for chunk in chunks_of(folder):
        if moments is not None:
            moments.add(np.asarray(chunk.rows))
        totals += np.bincount(chunk.targets, weights=chunk.weights, minlength=len(labels))
    class_weights = class_weight_vector(estimator.class_weight, labels, totals)
    require_two_classes(name, labels, totals, class_weights)
    return ImageSet(
        source=folder,
        classes=labels,
        class_weights=class_weights,
        mean_weight=_mean_weight(totals, class_weights, schema.num_rows),
        input_shape=shape,
        is_byte=schema.dtype == "uint8",
        scaling=None if moments is None else moments.scaling(),
    )
