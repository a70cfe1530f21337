"""Model files of networks: one .npz without pickle, as `persistence` describes it, with these fields of the header.

    network       {"module": "module:Class" or null, "input_shape": [...], "scaling": {"scale": ..., "shift": ...,
                  "padding": ...}, "state_of": optimizer and its settings as JSON, or missing, "target_shape": of
                  targets that are no class codes; null, or missing, for those}
    w, buffers    arrays: parameters and buffers of the module, in its own order, float32
    v             momentum, for `partial_fit`

The class itself is not in it: it is imported by its name, or handed to `load`.

Version 1 had no "scaling": bytes went from -1 to 1, and all others were taken as they are.
"""

import dataclasses
import math
import os
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from chicle_elastic.errors import UsageError
from estimators import persistence
from estimators.cnn_defaults import with_names

ARRAYS = ("classes_", "feature_names_in_", "w", "buffers", "v")
REQUIRED = ("w", "buffers", "v")
VALUES = (
    *("n_features_in_", "n_iter_", "n_epochs_", "loss_", "is_byte_"),
    *("learning_rate_", "local_steps_", "_samples_seen"),
)


class SaveNetworkMixin:
    """`save` and `load` of the estimators of networks."""

    _samples_seen: int

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, without pickle.

        Parameters
        ----------
        path : str or path-like
            File to write; it appears when it is complete. Runtime, callbacks, `augment`, instances and functions
            without a name that can be imported, and a `RandomState` instance are not saved.

        Raises
        ------
        UsageError
            Labels, or arguments of the module, are neither numbers nor strings.
        """
        from chicle_elastic.solvers.engines.predict import values_of

        check_is_fitted(self)
        estimator: Any = self
        w, buffers = values_of(estimator.module_)
        arrays = {
            "classes_": getattr(estimator, "classes_", None),
            "feature_names_in_": getattr(estimator, "feature_names_in_", None),
            "w": w,
            "buffers": buffers,
            "v": getattr(estimator, "_momentum", np.zeros_like(w)),
        }
        params = with_names(estimator.get_params(deep=False), lambda name, value: None)
        network = {
            "module": _name_of(params.pop("module")),
            "input_shape": list(estimator.image_shape_),
            "scaling": dataclasses.asdict(estimator.scaling_),
            "state_of": getattr(estimator, "_state_of", None),
            "target_shape": estimator._target_shape,
        }
        persistence.write_model(path, estimator, params, arrays, values=VALUES, network=network)

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
            The file is damaged, of another version, or no model at all.
        UsageError
            The file holds another estimator, or the class of its module cannot be imported or is another one.
        """
        from torch import nn

        from chicle_elastic.solvers.engines.predict import filled_module
        from chicle_elastic.solvers.network import Scaling, imported
        from estimators.cnn_fit import network_of

        make: Any = cls
        required = ("classes_", *REQUIRED) if is_classifier(make()) else REQUIRED
        header, content = persistence.read_model(Path(path), arrays=ARRAYS, required=required, estimator=cls.__name__)
        estimator: Any
        try:
            shape = tuple(header["network"]["input_shape"])
            name = header["network"]["module"]
            if module is None and name is not None:
                module = imported(name, f"the module class {name!r}")
                if not (isinstance(module, type) and issubclass(module, nn.Module)):  # a file may name any callable
                    raise UsageError(f"{path}: module={name} is no class of networks, so it is not called")
            params = persistence.params_from_json(header["params"])
            estimator = make(module=module, **params)
            attributes = {key: content[key] for key in ARRAYS[:2] if key in content}
            persistence.set_attributes(estimator, header, VALUES, attributes)
            estimator.scaling_ = Scaling(**header["network"]["scaling"])
        except (KeyError, TypeError) as error:
            raise persistence.unreadable(path, header, error) from error
        estimator.image_shape_ = shape
        estimator._momentum = content["v"]
        if header["network"].get("state_of"):
            estimator._state_of = header["network"]["state_of"]
        if estimator.image_shape is not None:
            estimator.image_shape = tuple(estimator.image_shape)
        try:
            target_shape = header["network"].get("target_shape")
            estimator._target_shape = None if target_shape is None else tuple(target_shape)
            classes = getattr(estimator, "classes_", None)
            num_outputs = math.prod(estimator._target_shape or ()) if classes is None else len(classes)
            images = _Restored(shape, num_outputs, estimator._target_shape)
            network = network_of(estimator, images, estimator.scaling_)
            estimator.module_ = filled_module(network, content["w"], content["buffers"])
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
    num_outputs: int
    target_shape: tuple[int, ...] | None


def _name_of(module: Any) -> str | None:
    """Where a class is imported from; None for the default one. Of an instance it is said at `load` what it was."""
    if module is None:
        return None
    kind = module if isinstance(module, type) else type(module)
    return f"{kind.__module__}:{kind.__qualname__}"
