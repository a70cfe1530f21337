"""States that all tasks have in common while a fit runs, as one flat vector: by the fields of their dataclasses.

    kind       1                     says which class with which fields the vector is one of
    scalars    one each              floats, integers, booleans and enumerations, in the order of the fields
    lengths    one each              of the arrays, in the order of the fields
    parts      1, where there are    how many there are; then the scalars and lengths of each
    arrays                           of the state, and then of each part

A vector goes along with the sums of every pass, so an array that the next pass does not need is left out (`kept`). A
checkpoint keeps the vector. A class with other fields, or fields in another order, has another kind, so that nothing
is ever
read from the wrong place.
"""

import typing
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from chicle_elastic.chunks.views import Array

Numbers = npt.NDArray[np.int64]
"""The type of an array field of integers below 2^53."""
ROWS = "rows"
"""Metadata of an array field of two dimensions: the name of the scalar that says how many rows it has."""
NOTHING = np.zeros(0)
NO_NUMBERS = np.zeros(0, dtype=np.int64)


def nothing() -> Array:
    """Return an array of no value, as the default of a field."""
    return NOTHING


def no_numbers() -> Numbers:
    """Return an array of no number, as the default of a field."""
    return NO_NUMBERS


@dataclass(frozen=True, slots=True)
class _Plan:
    """Layout of one class as values.

    Attributes:
        scalars: Names of its scalars.
        read: Names of those that are no float, and what makes one of a float.
        arrays: Names of its arrays.
        numbers: Those of integers.
        rows: Of those of two dimensions, the scalar that says how many rows there are.
        empty: Its arrays without a value, by name.
        parts: Name and class of its list of parts; ("", None) for none.
        kind: A number that no class with other fields has, but by chance.
    """

    scalars: tuple[str, ...]
    read: tuple[tuple[str, Callable[[float], Any]], ...]
    arrays: tuple[str, ...]
    numbers: frozenset[str]
    rows: dict[str, str]
    empty: dict[str, Array]
    parts: tuple[str, Any]
    kind: float

    @property
    def width(self) -> int:
        """Scalars and lengths."""
        return len(self.scalars) + len(self.arrays)


def _plan(cls: Any) -> _Plan:
    return _cached_plan(cls)


@cache
def _cached_plan(cls: Any) -> _Plan:
    scalars, arrays, parts = [], [], ("", None)
    for field in fields(cls):
        if field.type in (Array, Numbers):
            arrays.append(field)
        elif typing.get_origin(field.type) is list:
            parts = field.name, typing.get_args(field.type)[0]
        else:
            scalars.append(field)
    names = tuple(field.name for field in scalars), tuple(field.name for field in arrays)
    of_part = 0.0 if parts[1] is None else _plan(parts[1]).kind
    return _Plan(
        scalars=names[0],
        read=tuple((field.name, _reader(field.type)) for field in scalars if field.type is not float),
        arrays=names[1],
        numbers=frozenset(field.name for field in arrays if field.type == Numbers),
        rows={field.name: field.metadata[ROWS] for field in arrays if ROWS in field.metadata},
        empty={field.name: NO_NUMBERS if field.type == Numbers else NOTHING for field in arrays},
        parts=parts,
        kind=float(zlib.crc32(repr((cls.__qualname__, *names, of_part)).encode())),
    )


def _reader(kind: Any) -> Callable[[float], Any]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {float(member.value): member for member in kind}.__getitem__
    read: Callable[[float], Any] = kind
    return read


_seen: dict[Any, tuple[Any, Any]] = {}
"""By class, the vector that was looked at last and its state."""


class ProgressState:
    """Base of a dataclass whose fields are scalars, arrays, and at most one list of parts (states, too)."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def kept(self) -> tuple[str, ...]:
        """Return the names of the arrays that the next pass needs; by default all."""
        return _plan(type(self)).arrays

    def encode(self) -> Array:
        """Make one vector, float64."""
        head, arrays = [_plan(type(self)).kind], [NOTHING]
        _add(self, head, arrays)
        name, part = _plan(type(self)).parts
        if part is not None:
            found = getattr(self, name)
            head.append(len(found))
            for each in found:
                _add(each, head, arrays)
        arrays[0] = np.array(head, dtype=np.float64)
        return np.concatenate(arrays)  # integers become float64 on the way

    @classmethod
    def is_of(cls, progress: Array) -> bool:
        """Say whether a vector is a state of this class."""
        return len(progress) > 0 and bool(progress[0] == _plan(cls).kind)

    @classmethod
    def decode(cls, progress: Array) -> Self:
        """Make a state of a vector that `encode` made; its arrays are views of the vector."""
        plan = _plan(cls)
        name, part = plan.parts
        end, count, width = 1 + plan.width, 0, 0
        if part is not None:
            count, width = int(progress[end]), _plan(part).width
            end += 1 + count * width
        values = progress[:end].tolist()
        assert values[0] == plan.kind, f"no progress of {cls.__name__}"
        found, position = _fields(plan, values[1:], progress, end)
        if part is not None:
            plan, found[name] = _plan(part), []
            for first in range(end - count * width, end, width):
                of_part, position = _fields(plan, values[first : first + width], progress, position)
                found[name].append(part(**of_part))
        return cls(**found)

    @classmethod
    def look(cls, progress: Array) -> Self:
        """Decode for reading only: the state of the vector that was looked at last is kept."""
        vector, state = _seen.get(cls, (None, None))
        if vector is None or vector() is not progress:
            state = cls.decode(progress)
            _seen[cls] = weakref.ref(progress), state
        return state

    @classmethod
    def read(cls, progress: Array, name: str) -> Any:
        """Read one scalar, and nothing else: what is asked for several times in an iteration."""
        plan = _plan(cls)
        place = plan.scalars.index(name)
        return dict(plan.read).get(name, float)(float(progress[1 + place]))

    @classmethod
    def read_parts(cls, progress: Array, name: str) -> Array:
        """Read one scalar of all parts, as float64, and nothing else."""
        part = _plan(_plan(cls).parts[1])
        start = 2 + _plan(cls).width
        rows = progress[start : start + round(progress[start - 1]) * part.width].reshape(-1, part.width)
        return rows[:, part.scalars.index(name)]


def _add(state: ProgressState, head: list[float], arrays: list[Array]) -> None:
    plan, kept = _plan(type(state)), state.kept()
    head += [getattr(state, name) for name in plan.scalars]
    for name in plan.arrays:
        array = getattr(state, name) if name in kept else NOTHING
        head.append(array.size)
        if array.size:
            arrays.append(array.reshape(-1))


def _fields(plan: _Plan, values: list[float], progress: Array, position: int) -> tuple[dict[str, Any], int]:
    """Read fields from scalars and lengths, and arrays from `position` on; return where they end, too."""
    found: dict[str, Any] = dict(zip(plan.scalars, values, strict=False))
    for name, read in plan.read:
        found[name] = read(found[name])
    found.update(plan.empty)
    for name, length in zip(plan.arrays, values[len(plan.scalars) :], strict=False):
        if length:
            end = position + int(length)
            array = progress[position:end]
            if name in plan.rows:
                array = array.reshape(found[plan.rows[name]], -1)
            found[name] = array.astype(np.int64) if name in plan.numbers else array
            position = end
    return found, position
