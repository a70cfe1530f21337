"""Parameters of a module as parameters of the estimator: `module__width=32`, as skorch's users know them."""

from typing import Any, Self

from chicle_elastic.errors import UsageError

PREFIX = "module__"
WHOLE = "module_params"
"""Name that a signature gives to all of them together. Nothing is refused under it before `fit`, as scikit-learn has
it for every name that it sees in a signature."""


class ModuleParamsMixin:
    """`get_params` and `set_params` that know `module__*`, for cloning and grid search; first among the bases."""

    def _take_module_params(self, params: dict[str, Any]) -> None:
        """Keep keyword arguments of the constructor.

        Raises
        ------
        TypeError
            One does not begin with `module__`.
        """
        for name, value in params.items():
            if name == WHOLE:
                self._misnamed = value
                continue
            if not name.startswith(PREFIX) or name == PREFIX:
                raise TypeError(
                    f"{type(self).__name__}() got an unexpected keyword argument {name!r}; arguments of the module are "
                    f"passed as {PREFIX}{name}"
                )
            setattr(self, name, value)

    def _module_params(self) -> dict[str, Any]:
        """Arguments of the module's class, without the prefix."""
        return {name.removeprefix(PREFIX): value for name, value in vars(self).items() if name.startswith(PREFIX)}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters of the estimator, those of the module among them.

        Parameters
        ----------
        deep : bool, default=True
            As scikit-learn has it; nothing here has parameters of its own.

        Returns
        -------
        params : dict
            Values by name.
        """
        params: dict[str, Any] = super().get_params(deep=deep)  # type: ignore[misc]  # of BaseEstimator
        return params | {PREFIX + name: value for name, value in self._module_params().items()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the estimator and of the module.

        Parameters
        ----------
        **params : dict
            Values by name.

        Returns
        -------
        self : object
            The estimator.
        """
        of_module = {name: value for name, value in params.items() if name.startswith(PREFIX) or name == WHOLE}
        rest = {name: value for name, value in params.items() if name not in of_module}
        super().set_params(**rest)  # type: ignore[misc]  # of BaseEstimator
        self._take_module_params(of_module)
        return self

    def _require_class_for_params(self) -> None:
        """Refuse arguments for something that is no class any more, or all of them in one."""
        if hasattr(self, "_misnamed"):
            raise UsageError(f"{WHOLE}={self._misnamed!r} means nothing; pass arguments of the module as {PREFIX}NAME")
        if self._module_params() and not isinstance(getattr(self, "module", None), type | str | None):
            raise UsageError(
                f"module is an instance, so {', '.join(PREFIX + name for name in self._module_params())} would be "
                "ignored; pass the class, or leave them out"
            )
