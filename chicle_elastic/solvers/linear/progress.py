"""States that all tasks have in common while a fit runs, and each as one flat vector: by the fields of its dataclass.

    kind       1                     says which class with which fields the vector is one of
    fields     one each              floats, integers, booleans and enumerations; lengths of arrays; numbers of parts
    arrays                           in the order of the fields
    parts                            one after the other, each of them as a vector of its own

A task that joins gets the vector, and a checkpoint keeps it: a class with other fields has another kind, so that
nothing is read from the wrong place. Between passes a task has the state itself, which shares the arrays that a step
leaves as they are with the state before. An array that the next pass does not need is left out of both (`kept`).
"""

import typing
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum, IntEnum
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from chicle_elastic.chunks.views import Array

Numbers = npt.NDArray[np.int64]  # the type of an array field of integers below 2^53
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
    """Layout of one class as values; each field is in one of the tables, in this order."""

    kind: float  # a number that no class with other fields has, but by chance
    scalars: dict[str, Callable[[float], Any]]  # by name, what makes one of a float
    arrays: dict[str, Array]  # those without a value, by name
    parts: dict[str, Any]  # classes of lists of parts, by name


def _plan(cls: Any) -> _Plan:
    return _cached_plan(cls)  # for mypy a class of states is not hashable


@cache
def _cached_plan(cls: Any) -> _Plan:
    scalars: dict[str, Callable[[float], Any]] = {}
    arrays, parts = {}, {}
    for field in fields(cls):
        if field.type in (Array, Numbers):
            arrays[field.name] = NO_NUMBERS if field.type == Numbers else NOTHING
        elif typing.get_origin(field.type) is list:
            [parts[field.name]] = typing.get_args(field.type)
        else:
            scalars[field.name] = _reader(field.type)
    names = cls.__qualname__, *scalars, "arrays", *arrays, "parts", *((name, _plan(parts[name]).kind) for name in parts)
    return _Plan(float(zlib.crc32(repr(names).encode())), scalars, arrays, parts)


def _reader(kind: Any) -> Callable[[float], Any]:
    read: Callable[[float], Any] = kind
    return {float(member.value): member for member in kind}.__getitem__ if issubclass(kind, Enum) else read


class Head(IntEnum):
    """Places in the sums of a pass that come first; what follows is a matter of the state's phase."""

    INTERRUPTED = 0  # tasks that were interrupted: nothing may follow from the sums then
    ROWS = 1  # rows read
    ALONE = 2  # 1 if the task is the only one


HEAD = len(Head)


class ProgressState:
    """Base of a dataclass whose fields are scalars, arrays, and lists of parts (states, too)."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def kept(self) -> tuple[str, ...]:
        """Return the names of the arrays that the next pass needs; by default all."""
        return tuple(_plan(type(self)).arrays)

    def encode(self) -> Array:
        """Make one vector, float64."""
        return np.concatenate(self.pieces())  # integers become float64 on the way

    def pieces(self) -> list[Array]:
        """Return what the vector is made of: kind and fields as one array, and then the other arrays.

        A state in place of its vector adds its pieces, and never a vector of its own.
        """
        plan, kept, arrays = _plan(type(self)), self.kept(), []
        head = [plan.kind, *map(float, attrgetter(*plan.scalars)(self))]
        for name in plan.arrays:
            value = getattr(self, name) if name in kept else NOTHING
            if isinstance(value, ProgressState):
                pieces = value.pieces()
                arrays += pieces
                head.append(float(sum([piece.size for piece in pieces])))
                continue
            head.append(float(value.size))
            if value.size:
                arrays.append(value.reshape(-1))
        for name in plan.parts:
            head.append(float(len(getattr(self, name))))
            arrays += [piece for part in getattr(self, name) for piece in part.pieces()]
        return [np.array(head), *arrays]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        """Make the vector, for what sends or keeps it."""
        return self.encode().astype(dtype or np.float64, copy=False)

    def ready(self) -> Self:
        """Make this state what a task would decode of its vector: arrays are kept ones, and no part of another."""
        plan, kept = _plan(type(self)), self.kept()
        for name, read in plan.scalars.items():
            setattr(self, name, read(getattr(self, name)))
        for name, none in plan.arrays.items():
            value = getattr(self, name)
            if name not in kept or not value.size:
                setattr(self, name, none)
                continue
            value = value if value.ndim == 1 else value.reshape(-1)
            setattr(self, name, value.astype(none.dtype, copy=value.base is not None))
        for name in plan.parts:
            for part in getattr(self, name):
                part.ready()
        return self

    @classmethod
    def is_of(cls, progress: Any) -> bool:
        """Say whether a progress is a state of this class, or its vector."""
        if isinstance(progress, ProgressState):
            return type(progress) is cls
        return len(progress) > 0 and bool(progress[0] == _plan(cls).kind)

    @classmethod
    def decode(cls, progress: Array) -> Self:
        """Make a state of a vector that `encode` made; its arrays are views of the vector."""
        return cls._read(progress, 0)[0]

    @classmethod
    def _read(cls, vector: Array, begin: int) -> tuple[Self, int]:
        """Read a state that begins there; returns where it ends, too."""
        assert cls.is_of(vector[begin:]), f"no progress of {cls.__name__}"
        plan = _plan(cls)
        end = begin + 1 + len(plan.scalars) + len(plan.arrays) + len(plan.parts)
        values = iter(vector[begin + 1 : end].tolist())
        found: dict[str, Any] = {name: read(next(values)) for name, read in plan.scalars.items()}
        for name, none in plan.arrays.items():
            begin, end, found[name] = end, end + int(next(values)), none
            if end > begin:
                array = vector[begin:end]
                found[name] = array.astype(np.int64) if none is NO_NUMBERS else array
        for name, part in plan.parts.items():
            found[name] = []
            for _ in range(int(next(values))):
                each, end = part._read(vector, end)
                found[name].append(each)
        return cls(**found), end

    @classmethod
    def look(cls, progress: Any) -> Self:
        """Return the state for reading only."""
        return progress if isinstance(progress, cls) else cls.decode(progress)

    @classmethod
    def take(cls, progress: Any) -> Self:
        """Return a state of its own to change, but not what is in its arrays."""
        return progress._copied() if isinstance(progress, cls) else cls.decode(progress)

    def _copied(self) -> Self:
        """Return a state with the same arrays, and with parts of its own."""
        plan, found = _plan(type(self)), object.__new__(type(self))
        for name in (*plan.scalars, *plan.arrays):
            setattr(found, name, getattr(self, name))
        for name in plan.parts:
            setattr(found, name, [part._copied() for part in getattr(self, name)])
        return found
