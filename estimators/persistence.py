"""Model files: a fitted estimator as one .npz, without pickle.

    header        a JSON string: {"format": "chicle-model", "version": 1, "estimator": name of the class, "chicle":
                  version of this package, "params": constructor arguments, "values": attributes that are plain numbers,
                  "object": names of the arrays whose dtype was object, "history": records,
                  "transitions": changes of the membership, "ledger": accounts of chunks (both may be missing)}
    other names   the attributes that are arrays

Not in it: `runtime`, `n_workers` and `policy` (they belong to somewhere else), `augment` (code), callbacks, a
`RandomState` instance, the duals of a warm start.
Readers take older versions and refuse newer ones; `tests/golden/models` holds a file of every version. Version 2 of
`ChicleLogisticRegression` says which model of several classes the file holds; before, that was one-vs-rest.
"""

import contextlib
import dataclasses
import functools
import json
import os
import uuid
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from chicle_elastic import __version__
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.job_ledger import JobLedger
from chicle_elastic.monitoring.records import IterationRecord, Transition
from chicle_elastic.values import ChunkAccount
from estimators.containers import as_numpy

FORMAT = "chicle-model"
VERSION = 2
"""Of the files of all estimators: a file of another version is refused."""
ARRAYS = ("coef_", "intercept_", "classes_", "objective_", "dual_objective_", "feature_names_in_", "duals_")
REQUIRED_ARRAYS = ARRAYS[:5]
VALUES = ("n_features_in_", "n_iter_", "duality_gap_")
PARAMS_LEFT_OUT = ("runtime", "n_workers", "policy", "augment")


class SaveMixin:
    """Save a linear model to a file, load it, or turn it into an estimator of scikit-learn."""

    # class of scikit-learn with the same parameters and predictions, with its module; empty for none
    _twin: ClassVar[str] = ""
    _file_arrays: ClassVar[tuple[str, ...]] = ARRAYS  # attributes that are arrays
    _file_required: ClassVar[tuple[str, ...]] = REQUIRED_ARRAYS  # those of them that every fit has
    _file_values: ClassVar[tuple[str, ...]] = VALUES  # attributes that are plain values

    @classmethod
    @functools.cache  # every fit asks, and inspecting a signature takes as long as the checks of a small X
    def _get_param_names(cls) -> list[str]:
        names: list[str] = super()._get_param_names()  # type: ignore[misc]
        return names

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, without pickle.

        Parameters
        ----------
        path : str or path-like
            File to write; it appears when it is complete. Runtime, callbacks and a `RandomState` instance are not
            saved.

        Raises
        ------
        UsageError
            A parameter, labels, or keys of `class_weight`, are neither numbers nor strings.
        """
        check_is_fitted(self)
        params = self.get_params(deep=False)  # type: ignore[attr-defined]
        found = {name: as_numpy(name, getattr(self, name, None)) for name in (*self._file_arrays, *self._file_values)}
        values = [name for name in self._file_values if not isinstance(found[name], np.ndarray)]  # one target
        write_model(path, self, params, {name: found[name] for name in found if name not in values}, values=values)

    def to_sklearn(self) -> Any:
        """Return a fitted estimator of scikit-learn with equal predictions, for tools that know its class.

        Returns
        -------
        estimator : object
            Of the class that minimises the same function, as `Ridge` of :class:`ChicleRidge`, with the same parameters
            and weights; `tol` and `max_iter` mean something else there and have their defaults.

        Raises
        ------
        UsageError
            scikit-learn has no such estimator, or not with these parameters.
        """
        from estimators.export import to_sklearn

        return to_sklearn(self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote.

        Parameters
        ----------
        path : str or path-like
            The file.

        Returns
        -------
        estimator : object
            Fitted; its runtime is the default one.

        Raises
        ------
        DataError
            The file is damaged, of another version, or no model at all.
        UsageError
            The file holds another estimator.
        """
        header, arrays = read_model(
            Path(path),
            estimator=cls.__name__,
            arrays=(*cls._file_arrays, *cls._file_values),
            required=cls._file_required,
        )
        try:
            estimator = cls(**params_from_json(header["params"]))
            set_attributes(estimator, header, [name for name in cls._file_values if name not in arrays], arrays)
        except (KeyError, TypeError) as error:
            raise unreadable(path, header, error) from error
        for name, shape in estimator._shapes().items():  # before a prediction fails on them
            if getattr(estimator, name).shape != shape:
                raise DataError(
                    f"{path}: {name} has shape {getattr(estimator, name).shape}, and the rest of the file is about "
                    f"{shape}; save the model again"
                )
        return estimator

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes that arrays have to have, by what else is known."""
        estimator: Any = self
        num_classes = max(2, len(estimator.classes_))
        outputs = 1 if num_classes == 2 else num_classes
        return {"coef_": (outputs, estimator.n_features_in_), "intercept_": (outputs,), "classes_": (num_classes,)}


def write_model(
    path: str | os.PathLike[str],
    estimator: Any,
    params: dict[str, Any],
    found: dict[str, Any],
    *,
    values: Sequence[str],
    **more: Any,
) -> None:
    """Write a fitted estimator: constructor arguments, arrays (None is left out), attributes that are plain `values`.
    Raises UsageError when a parameter or an array holds something else than numbers and strings."""
    arrays = {name: np.asarray(array) for name, array in found.items() if array is not None}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "estimator": type(estimator).__name__,
        "chicle": __version__,
        "params": params_to_json(params),
        "values": {name: _plain(getattr(estimator, name)) for name in values},
        "object": [name for name, array in arrays.items() if array.dtype == object],
        "history": [dataclasses.asdict(record) for record in estimator.history_],
        "methods": list(estimator.history_.methods.items()),
        "transitions": [dataclasses.asdict(transition) for transition in estimator.history_.transitions],
        "ledger": [dataclasses.asdict(account) for account in estimator.ledger_],
        **more,
    }
    for name, value in header["params"].items():
        try:
            json.dumps(value, default=_plain_item)
        except TypeError as error:
            raise UsageError(
                f"{type(estimator).__name__} cannot be saved with {name}={value!r:.60}, because a model file has room "
                f"for numbers, strings, lists and dicts of those; set_params({name}=None) before save() leaves it out, "
                "and what was fitted stays"
            ) from error
    text = json.dumps(header, default=_plain_item)
    _write(Path(path), text, {name: _without_objects(name, array) for name, array in arrays.items()})


def unreadable(path: str | os.PathLike[str], header: dict[str, Any], error: Exception) -> DataError:
    """Return what to raise where a header lacks something, or has what this version does not know."""
    return DataError(
        f"{path}: the header of the model is damaged, or too new ({error!r}): chicle-elastic {header.get('chicle')} "
        f"wrote it, and this is {__version__}; load it with the other, or save it again"
    )


def set_attributes(estimator: Any, header: dict[str, Any], values: Sequence[str], arrays: dict[str, Array]) -> None:
    """Set these attributes, and what became of the fit."""
    for name in values:
        setattr(estimator, name, header["values"][name])
    for name, array in arrays.items():
        setattr(estimator, name, array.astype(object) if name in header["object"] else array)
    history = History(IterationRecord(**{**it, "events": tuple(it["events"])}) for it in header["history"])
    for transition in header["transitions"]:
        history.note(Transition.of(transition))
    history.methods = {int(first): method for first, method in header["methods"]}
    estimator.history_ = history
    estimator.ledger_ = JobLedger(ChunkAccount(**account) for account in header["ledger"])


def _write(path: Path, header: str, arrays: dict[str, Array]) -> None:
    """Write under a temporary name beside the file, then rename: no reader sees half a model."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        file = temporary.open("xb")
    except OSError as error:  # it names the file of the user, who knows no other one
        raise type(error)(error.errno, f"the model cannot be saved: {error.strerror}", str(path)) from None
    try:
        with file:
            # No array of objects is left, so that nothing is pickled.
            np.savez(file, **{"header": np.array(header), **arrays})  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def read_model(
    path: Path,
    *,
    estimator: str,
    arrays: Sequence[str],
    required: Sequence[str],
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Header and arrays of a model file, the header checked for format, version and estimator."""
    with path.open("rb") as file:
        try:
            content = _read_arrays(file)
            header = json.loads(str(content["header"]))
        except Exception as error:  # zipfile and NumPy raise a dozen kinds of errors on bytes that are not theirs
            raise DataError(f"{path} is damaged, or not a model that save() wrote ({error}); save it again") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DataError(f"{path} is not a model that save() wrote")
    found = header.get("estimator")
    if found != estimator:
        raise UsageError(f"{path} holds a {found}, not a {estimator}; use {found}.load")
    if header.get("version") != VERSION:
        raise DataError(
            f"{path} is a model of format version {header.get('version')}, which chicle-elastic "
            f"{header.get('chicle')} wrote; this one ({__version__}) reads version {VERSION}: load it with the other"
        )
    missing = {*required} - {*content}
    if missing:
        raise DataError(f"{path}: the model lacks {', '.join(sorted(missing))}; save it again")
    return header, {name: content[name] for name in arrays if name in content}


def _read_arrays(file: BinaryIO) -> dict[str, Array]:
    """All arrays of an .npz; checksums first, so that NumPy sees only what was once written."""
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
    file.seek(0)
    with np.load(file, allow_pickle=False) as content:
        return {name: content[name] for name in content.files}


def _without_objects(name: str, array: Array) -> Array:
    """The array, strings as a string dtype."""
    if array.dtype != object:
        return array
    if not all(isinstance(value, str) for value in array):
        kinds = sorted({type(value).__name__ for value in array})
        raise UsageError(f"{name} holds {', '.join(kinds)}; a model file keeps numbers and strings only")
    return array.astype(str)


def params_to_json(params: dict[str, Any]) -> dict[str, Any]:
    """Constructor arguments as JSON values; a dict with keys that need not be strings becomes a list of pairs."""
    plain = {name: _plain(value) for name, value in params.items() if name not in PARAMS_LEFT_OUT}
    weights = plain.get("class_weight")  # regressors have none
    if isinstance(weights, dict):
        plain["class_weight"] = [[_plain(label), _plain(weight)] for label, weight in weights.items()]
        if not all(isinstance(label, str | int | float) for label, _ in plain["class_weight"]):
            raise UsageError(f"the keys of class_weight={weights!r} must be numbers or strings to be saved")
    if plain.get("logdir") is not None:
        plain["logdir"] = os.fspath(plain["logdir"])
    if isinstance(plain.get("random_state"), np.random.RandomState):
        plain["random_state"] = None
    return plain


def params_from_json(params: dict[str, Any]) -> dict[str, Any]:
    """Constructor arguments from the header."""
    weights = params.get("class_weight")
    return {**params, "class_weight": dict(weights)} if isinstance(weights, list) else params


def _plain_item(value: Any) -> Any:
    """Return numbers of NumPy among others as Python's; everything else is not JSON."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _plain(value: Any) -> Any:
    """NumPy's numbers, and arrays of them, as Python's."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value
