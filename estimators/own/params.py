"""Fields of a trainer as parameters of the estimator: `trainer__tol=1e-3`, for cloning and grid search."""

import dataclasses
from typing import Any, Self

from chicle_elastic.errors import UsageError

PREFIX = "trainer__"


class TrainerParamsMixin:
    """`get_params` and `set_params` that know the fields of a dataclass; first among the bases.

    A trainer with `get_params` and `set_params` of its own needs none of it.
    """

    trainer: Any

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the estimator, with `deep` those of trainer and policy as well."""
        params: dict[str, Any] = super().get_params(deep=deep)  # type: ignore[misc]  # of BaseEstimator
        if deep and not hasattr(self.trainer, "get_params"):
            params |= {PREFIX + name: getattr(self.trainer, name) for name in self._trainer_fields()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the estimator; fields of the trainer make a new one, which may refuse a value."""
        is_own = hasattr(params.get("trainer", self.trainer), "set_params")
        fields = {} if is_own else {name: value for name, value in params.items() if name.startswith(PREFIX)}
        super().set_params(**{name: value for name, value in params.items() if name not in fields})  # type: ignore[misc]
        if fields:
            changes = {name.removeprefix(PREFIX): value for name, value in fields.items()}
            known = self._trainer_fields()
            unknown = [name for name in changes if name not in known]
            if unknown:
                kind = type(self.trainer).__name__
                has = f"its fields are {', '.join(known)}" if known else "it is no dataclass with fields"
                raise UsageError(f"{kind} has no parameter {unknown[0]!r}; {has}")
            self.trainer = dataclasses.replace(self.trainer, **changes)
        return self

    def _trainer_fields(self) -> tuple[str, ...]:
        trainer = self.trainer
        if isinstance(trainer, type) or not dataclasses.is_dataclass(trainer):
            return ()
        return tuple(field.name for field in dataclasses.fields(trainer) if field.init)
