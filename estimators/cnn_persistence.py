"""Model files of networks: one .npz without pickle, as `persistence` describes it, with these fields of the header.

    network       {"module": "module:Class" or null, "settings": arguments, "input_shape": [...]}
    w, buffers    arrays: parameters and buffers of the module, in its own order, float32
    v             momentum, for `partial_fit`

The class itself is not in it: it is imported by its name, or handed to `load`.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from chicle_elastic import __version__
from chicle_elastic.errors import DataError, UsageError
from estimators import persistence

Array: TypeAlias = npt.NDArray[Any]

ARRAYS = ("classes_", "feature_names_in_", "w", "buffers", "v")
REQUIRED = ("classes_", "w", "buffers", "v")
VALUES = ("n_features_in_", "n_iter_", "n_epochs_", "loss_", "is_byte_")


class SaveNetworkMixin:
    """`save` and `load` of `ChicleCNNClassifier`."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, without pickle.

        Parameters
        ----------
        path : str or path-like
            File to write; it appears when it is complete. Runtime, callbacks, an instance given as `module` and a
            `RandomState` instance are not saved.

        Raises
        ------
        UsageError
            Labels, or arguments of the module, are neither numbers nor strings.
        """
        from chicle_elastic.solvers.engines.predict import values_of

        check_is_fitted(self)
        estimator: Any = self
        w, buffers = values_of(estimator.module_)
        found = {
            "classes_": np.asarray(estimator.classes_),
            "feature_names_in_": getattr(estimator, "feature_names_in_", None),
            "w": w,
            "buffers": buffers,
            "v": getattr(estimator, "_momentum", np.zeros_like(w)),
        }
        arrays = {name: np.asarray(array) for name, array in found.items() if array is not None}
        params = estimator.get_params(deep=False)
        module = params.pop("module")
        header = {
            "format": persistence.FORMAT,
            "version": persistence.VERSION,
            "estimator": type(self).__name__,
            "chicle": __version__,
            "params": persistence._params_to_json(params),
            "values": {name: persistence._plain(getattr(self, name)) for name in VALUES},
            "object": [name for name, array in arrays.items() if array.dtype == object],
            **persistence._told(estimator),
            "network": {"module": _name_of(module), "input_shape": list(estimator.image_shape_)},
        }
        try:
            text = json.dumps(header)
        except TypeError as error:
            raise UsageError(
                f"a parameter cannot be written to a model file ({error}); arguments of the module have to be numbers, "
                "strings, lists or dicts of those"
            ) from error
        persistence._write(
            Path(path), text, {name: persistence._without_objects(name, array) for name, array in arrays.items()}
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, module: Any = None) -> Self:
        """Read a model that `save` wrote.

        Parameters
        ----------
        path : str or path-like
            The file.
        module : type or instance of torch.nn.Module, default=None
            The module of the estimator that was saved; None imports it by its name.

        Returns
        -------
        estimator : object
            Fitted; its runtime is the default one.

        Raises
        ------
        DataError
            The file is damaged, of a newer version, or no model at all.
        UsageError
            The file holds another estimator, or the class of its module cannot be imported or is another one.
        """
        from chicle_elastic.solvers.engines.modules import find_class
        from chicle_elastic.solvers.engines.predict import filled_module
        from chicle_elastic.solvers.network import Network

        header, content = persistence._read(Path(path), arrays=ARRAYS, required=REQUIRED, estimator=cls.__name__)
        make: Any = cls
        estimator: Any
        try:
            shape = tuple(header["network"]["input_shape"])
            name = header["network"]["module"]
            if module is None and name is not None:
                module = find_class(Network(module=name, input_shape=shape, num_classes=0))
            estimator = make(module=module, **persistence._params_from_json(header["params"]))
            for key in VALUES:
                setattr(estimator, key, header["values"][key])
            persistence._take_told(estimator, header)
            for key in ("classes_", "feature_names_in_"):
                if key in content:
                    array = content[key]
                    setattr(estimator, key, array.astype(object) if key in header["object"] else array)
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}: the header of the model is damaged ({error!r}); save it again") from error
        estimator.image_shape_ = shape
        estimator._momentum = content["v"]
        if estimator.image_shape is not None:
            estimator.image_shape = tuple(estimator.image_shape)
        try:
            images = _Restored(shape, estimator.classes_)
            estimator.module_ = filled_module(estimator._network(images), content["w"], content["buffers"])
        except (RuntimeError, ValueError) as error:
            raise UsageError(
                f"{path}: the network that was saved does not fit module={name or 'the default one'}: {error}; pass "
                "the module that it was trained with"
            ) from error
        return estimator


@dataclasses.dataclass(frozen=True)
class _Restored:
    """What of an `ImageSet` a network is made from."""

    input_shape: tuple[int, ...]
    classes: Array


def _name_of(module: Any) -> str | None:
    """Where a class is imported from; None for the default one. Of an instance it is said at `load` what it was."""
    if module is None:
        return None
    kind = module if isinstance(module, type) else type(module)
    return f"{kind.__module__}:{kind.__qualname__}"
