"""Parameters of a module, an optimizer and a schedule as those of the estimator: `module__width=32`, as in skorch."""

import functools
import inspect
from typing import Any, Self

from chicle_elastic.errors import UsageError
from estimators.params import Kind, parameters

PREFIX = "module__"
PREFIXES = (PREFIX, "optimizer__", "schedule__")
WHOLE = "module_params"
"""Name that a signature gives to all of them together. Nothing is refused under it before `fit`, as scikit-learn has
it for every name that it sees in a signature."""


def network_parameters(kind: Kind) -> Kind:
    """Give a class the constructor of `parameters`, with `module` by position and with arguments of `PREFIXES`."""
    given: Any = parameters(kind)
    init = given.__init__
    this, *others = inspect.signature(init).parameters.values()
    module = inspect.Parameter("module", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    others = [each for each in others if each.name != "module"]
    names = {each.name for each in others}

    @functools.wraps(init)
    def begin(self: Any, module: Any = None, **params: Any) -> None:
        init(self, module=module, **{name: value for name, value in params.items() if name in names})
        self._take_module_params({name: value for name, value in params.items() if name not in names})

    rest = inspect.Parameter(WHOLE, inspect.Parameter.VAR_KEYWORD)
    vars(begin)["__signature__"] = inspect.Signature([this, module, *others, rest])
    given.__init__ = begin
    return kind


class ModuleParamsMixin:
    """`get_params` and `set_params` that know `module__*`, for cloning and grid search; first among the bases."""

    def _take_module_params(self, params: dict[str, Any]) -> None:
        """Keep keyword arguments of the constructor.

        Raises
        ------
        TypeError
            One begins with none of `PREFIXES`.
        """
        for name, value in params.items():
            if name == WHOLE:
                self._misnamed = value
                continue
            if not name.startswith(PREFIXES) or name in PREFIXES:
                raise TypeError(
                    f"{type(self).__name__}() got an unexpected keyword argument {name!r}; arguments of the module are "
                    f"passed as {PREFIX}{name}, those of optimizer and schedule as optimizer__* and schedule__*"
                )
            setattr(self, name, value)

    def _params_of(self, prefix: str) -> dict[str, Any]:
        """Return the arguments with a prefix, without it."""
        return {name.removeprefix(prefix): value for name, value in vars(self).items() if name.startswith(prefix)}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the estimator, those of module, optimizer and schedule among them."""
        params: dict[str, Any] = super().get_params(deep=deep)  # type: ignore[misc]  # of BaseEstimator
        return params | {name: value for name, value in vars(self).items() if name.startswith(PREFIXES)}

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the estimator, the module, the optimizer and the schedule."""
        of_module = {name: value for name, value in params.items() if name.startswith(PREFIXES) or name == WHOLE}
        rest = {name: value for name, value in params.items() if name not in of_module}
        super().set_params(**rest)  # type: ignore[misc]  # of BaseEstimator
        self._take_module_params(of_module)
        return self

    def _require_class_for_params(self) -> None:
        """Refuse arguments for something that is no class any more, or all of them in one."""
        if hasattr(self, "_misnamed"):
            raise UsageError(f"{WHOLE}={self._misnamed!r} means nothing; pass arguments of the module as {PREFIX}NAME")
        if self._params_of(PREFIX) and not isinstance(getattr(self, "module", None), type | str | None):
            raise UsageError(
                f"module is an instance, so {', '.join(PREFIX + name for name in self._params_of(PREFIX))} would be "
                "ignored; pass the class, or leave them out"
            )
