"""An estimator and its data in a folder: `stage` writes them, `Staged` reads them. The package says what is in it."""

import json
import shutil
import socket
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier

from chicle_elastic import __version__
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.places import absolute_place
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import CapacityError, DataError, UsageError
from chicle_elastic.store.arena import format_size
from estimators.cnn_defaults import with_names
from estimators.persistence import params_from_json, params_to_json
from estimators.streaming import is_folder

FIT_NAME = "fit.json"
FORMAT, VERSION = "chicle-fit", 1
PACKAGE = "estimators"


def stage(estimator: Any, X: Any, y: Any, sample_weight: Any, folder: Path) -> None:
    """Write an estimator and its data. Raises CapacityError when the disk has no room for the data, UsageError when
    something cannot go along, or the folder cannot be written.

    Args:
        estimator: Not fitted yet; `feature_names_in_` is kept where it has them.
        X: ndarray, CSR matrix or `ChunkFolder`.
        y: Labels or targets, shape (n_samples,) or (n_samples, n_targets); None for a ChunkFolder.
        sample_weight: None, or as of `fit`.
        folder: Is made.
    """
    described = _described(estimator)
    arrays: dict[str, Array] = {}
    if is_folder(X):
        described |= {"layout": "folder", "folder": absolute_place(str(X.path))}
    else:
        if sparse.issparse(X):
            X = X.tocsr()
            arrays |= {"X.data": X.data, "X.indices": X.indices, "X.indptr": X.indptr}
            described |= {"layout": "csr", "shape": list(X.shape)}
        else:
            arrays["X"] = np.asarray(X)
            described |= {"layout": "dense"}
        arrays["y"], described["classes"], described["has_object_labels"] = _targets(estimator, y)
        if sample_weight is not None:
            arrays["weights"] = np.asarray(sample_weight, dtype=np.float64)
    try:
        text = json.dumps(described)
        needed_bytes, free_bytes = sum(array.nbytes for array in arrays.values()), shutil.disk_usage(folder.parent).free
        if needed_bytes > free_bytes:
            raise CapacityError(
                f"the data of the fit takes {format_size(needed_bytes)}, and {folder.parent} has "
                f"{format_size(free_bytes)} left; make room there, or choose another folder that all nodes see"
            )
        folder.mkdir(mode=0o700)
        try:
            for name, array in arrays.items():
                np.save(folder / f"{name}.npy", array, allow_pickle=False)
            (folder / FIT_NAME).write_text(text)
        except BaseException:  # the disk has filled since, or Ctrl-C
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        raise UsageError(
            f"the data of the fit cannot be written to {folder} ({error.strerror or error}); make room there, or "
            "choose another folder that all nodes see"
        ) from error
    except TypeError as error:
        raise UsageError(f"{type(estimator).__name__} cannot go to a cluster: {error}") from error


def _described(estimator: Any) -> dict[str, Any]:
    name = type(estimator).__name__
    if getattr(estimator, "_skl_callbacks", ()):
        raise UsageError(
            f"callbacks of {name} cannot be called from a job of a cluster; leave them out, or use LocalCluster"
        )
    if estimator.policy is not None:
        raise UsageError(
            f"the policy of {name} cannot go to a job of a cluster, which gets no objects of this process; leave it "
            "out (jobs rebalance by themselves), or write a module for the component chicle.app"
        )
    if getattr(estimator, "warm_start", False):
        raise UsageError(f"warm_start of {name} cannot go to a job of a cluster; leave it out, or use LocalCluster")
    if getattr(import_module(PACKAGE), name, None) is not type(estimator):
        raise UsageError(f"{name} is none of Chicle's own estimators, which tasks of a cluster make by their names")
    params = estimator.get_params(deep=False)
    module, augment = params.pop("module", None), params.pop("augment", None)
    params = with_names(params, _refuse_code)
    params = params_to_json({**params, "verbose": 0, "logdir": None})
    if not isinstance(estimator.random_state, int | np.integer):  # all tasks have to draw the same
        params["random_state"] = int(np.random.default_rng().integers(np.iinfo(np.int32).max))
    names = getattr(estimator, "feature_names_in_", None)
    return {
        "format": FORMAT,
        "version": VERSION,
        "estimator": name,
        "chicle": __version__,
        "params": params,
        "module": None if module is None else _importable("module", module),
        "augment": None if augment is None else _importable("augment", augment),
        "classes": None,
        "has_object_labels": False,
        "feature_names": None if names is None else list(map(str, names)),
        "folder": None,
    }


def _refuse_code(name: str, value: Any) -> None:
    what = "write" if name == "loss" else "give a class, or write"
    raise UsageError(
        f"{name}={value!r} cannot go to a job of a cluster, whose tasks import it: {what} a function to a file beside "
        f"the notebook, say net.py, and give {name}=net.name_of_it"
    )


def _importable(name: str, value: Any) -> str:
    """The name by which nodes import the class of a network, or a function that augments images."""
    if isinstance(value, str):
        return value
    where, path = getattr(value, "__module__", None), getattr(value, "__qualname__", "<instance>")
    is_of_kind = isinstance(value, type) if name == "module" else isinstance(value, FunctionType)
    if not is_of_kind or where in (None, "__main__") or "<" in path:
        what, called = ("class", "Net") if name == "module" else ("function", "flip")
        raise UsageError(
            f"the {name} {value!r} cannot go to a job of a cluster, whose tasks import its {what}: write the {what} to "
            f"a file beside the notebook, say net.py, and give {name}=net.{called}"
        )
    return f"{where}:{path}"


def _targets(estimator: Any, y: Any) -> tuple[Array, list[Any] | None, bool]:
    """Targets as an array of numbers; and the labels that they are codes of, and whether those are objects."""
    y = np.asarray(y)
    if not is_classifier(estimator):
        return y, None, False
    labels, codes = np.unique(y.ravel(), return_inverse=True)
    return codes.astype(np.int32).reshape(y.shape), labels.tolist(), labels.dtype == object


class Staged:
    """What `stage` has written. Raises UsageError when there is nothing, DataError when it is damaged, or of another
    version.

    Args:
        folder: Where.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = folder / FIT_NAME
        try:
            self._described = json.loads(path.read_text())
            version = self._described["version"]
        except FileNotFoundError:
            raise UsageError(
                f"there is no {path}: the folder is none of a fit, or its job is over, or {socket.gethostname()} does "
                "not see it"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged ({error!r})") from error
        if self._described.get("format") != FORMAT or version != VERSION:
            raise DataError(f"{path} is of version {version}, and this Chicle ({__version__}) reads {VERSION}")

    @property
    def name(self) -> str:
        """Of the class of the estimator."""
        return str(self._described["estimator"])

    @property
    def num_rows(self) -> int:
        """Samples."""
        if self._described["layout"] == "folder":
            return int(ChunkFolder(self._described["folder"]).schema.num_rows)
        return len(self._array("y"))

    @property
    def params(self) -> dict[str, Any]:
        """Arguments of its constructor; a class of a network, and a function, by their names, "module:Class"."""
        params = params_from_json(self._described["params"])
        for name in ("module", "augment"):
            if self._described[name] is not None:
                params[name] = self._described[name]
        return {name: tuple(value) if isinstance(value, list) else value for name, value in params.items()}

    def data(self) -> tuple[Any, Array | None, Array | None]:
        """X, y and sample weights; arrays are mapped and not read."""
        described = self._described
        if described["layout"] == "folder":
            return ChunkFolder(described["folder"]), None, None
        if described["layout"] == "csr":
            parts = tuple(self._array(f"X.{name}") for name in ("data", "indices", "indptr"))
            X: Any = sparse.csr_matrix(parts, shape=tuple(described["shape"]), copy=False)
        else:
            X = self._array("X")
        y = self._array("y")
        if described["classes"] is not None:
            labels = np.array(described["classes"], dtype=object if described["has_object_labels"] else None)
            y = labels[y]
        has_weights = (self._folder / "weights.npy").exists()
        return X, y, self._array("weights") if has_weights else None

    @property
    def feature_names(self) -> Array | None:
        """Names of the columns of X, shape (n_features,); None where it had none."""
        names = self._described["feature_names"]
        return None if names is None else np.array(names, dtype=object)

    def _array(self, name: str) -> Array:
        path = self._folder / f"{name}.npy"
        try:
            array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read on {socket.gethostname()} ({error})") from error
        return array


def kind_of(name: str, where: Path) -> Any:
    """The estimator of this name. Raises DataError when it is none of Chicle's; `where` says so."""
    package = import_module(PACKAGE)  # by its name: it imports the estimators, which import this module
    if name not in package.__all__ or not hasattr(getattr(package, name), "load"):
        raise DataError(f"{where} names {name!r}, which is none of Chicle's estimators")
    return getattr(package, name)
