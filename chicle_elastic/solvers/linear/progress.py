"""States that all tasks have in common while a fit runs, as one flat vector: by the fields of their dataclasses.

    kind       1                     says which class with which fields the vector is one of
    size       1                     of the head
    head       one each              floats, integers, booleans and enumerations; lengths of arrays; and where there are
                                     parts their number, and the head of each
    arrays                           of the state, and then of each part, in the order of the fields

A vector goes along with the sums of every pass, so an array that the next pass does not need is left out (`kept`). A
checkpoint keeps it: a class with other fields has another kind, so that nothing is read from the wrong place. A task
that has decoded a vector keeps the state behind it, so that it decodes each vector once.
"""

import typing
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum, IntEnum
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.products import CACHED_VALUES

Numbers = npt.NDArray[np.int64]  # the type of an array field of integers below 2^53
ROWS = "rows"  # Metadata of an array field of two dimensions: the name of a scalar before it, how many rows it has
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
    """Layout of one class as values."""

    kind: float  # a number that no class with other fields has, but by chance
    scalars: dict[str, Callable[[float], Any]]  # by name, what makes one of a float
    arrays: dict[str, Array]  # those without a value, by name
    rows: dict[str, str]  # of those of two dimensions, the scalar that says how many rows there are
    parts: tuple[str, Any]  # name and class of its list of parts; ("", None) for none


def _plan(cls: Any) -> _Plan:
    return _cached_plan(cls)  # for mypy a class of states is not hashable


@cache
def _cached_plan(cls: Any) -> _Plan:
    scalars: dict[str, Callable[[float], Any]] = {}
    arrays, parts = {}, ("", None)
    for field in fields(cls):
        if field.type in (Array, Numbers):
            arrays[field.name] = NO_NUMBERS if field.type == Numbers else NOTHING
        elif typing.get_origin(field.type) is list:
            parts = field.name, typing.get_args(field.type)[0]
        else:
            scalars[field.name] = _reader(field.type)
    names = "fields", cls.__qualname__, *scalars, "arrays", *arrays, parts[1] and _plan(parts[1]).kind
    rows = {field.name: field.metadata[ROWS] for field in fields(cls) if ROWS in field.metadata}
    return _Plan(float(zlib.crc32(repr(names).encode())), scalars, arrays, rows, parts)


def _reader(kind: Any) -> Callable[[float], Any]:
    read: Callable[[float], Any] = kind
    return {float(member.value): member for member in kind}.__getitem__ if issubclass(kind, Enum) else read


_last: dict[Any, tuple[Any, Any]] = {}  # by class, the vector that was looked at last and its state
NONE = None, None


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
        """Return what the vector is made of: kind, size and head as one array, and then the other arrays."""
        head, arrays = [_plan(type(self)).kind, 0.0], [NOTHING]
        self._add(head, arrays)
        head[1] = len(head) - 2.0
        arrays[0] = np.array(head)
        return arrays

    def _add(
        self,
        head: list[float],  # OUT
        arrays: list[Array],  # OUT
    ) -> None:
        """Add what the fields hold; a state in place of its vector adds its pieces, and never a vector of its own."""
        plan, kept = _plan(type(self)), self.kept()
        head += [float(getattr(self, name)) for name in plan.scalars]
        for name in plan.arrays:
            value = getattr(self, name) if name in kept else NOTHING
            if value is NOTHING or value is NO_NUMBERS:
                head.append(0.0)
                continue
            pieces = value.pieces() if isinstance(value, ProgressState) else [value.reshape(-1)]
            head.append(float(sum([piece.size for piece in pieces])))
            arrays += [piece for piece in pieces if piece.size]
        name, part = plan.parts
        if part is not None:
            head.append(len(getattr(self, name)))
            for each in getattr(self, name):
                each._add(head, arrays)

    @classmethod
    def is_of(cls, progress: Array) -> bool:
        """Say whether a vector is a state of this class."""
        return len(progress) > 0 and bool(progress[0] == _plan(cls).kind)

    @classmethod
    def decode(cls, progress: Array) -> Self:
        """Make a state of a vector that `encode` made; its arrays are views of the vector."""
        assert cls.is_of(progress), f"no progress of {cls.__name__}"
        end = 2 + int(progress[1])
        return cls._read(progress[:end].tolist(), 2, progress, end)[0]

    @classmethod
    def _read(cls, head: list[float], at: int, vector: Array, begin: int) -> tuple[Self, int, int]:
        """Read the fields from places in the head and in the vector on; returns where others follow, too."""
        plan = _plan(cls)
        first = at + len(plan.scalars)
        found: dict[str, Any] = {
            name: read(value) for (name, read), value in zip(plan.scalars.items(), head[at:first], strict=True)
        }
        found |= plan.arrays
        at = first + len(plan.arrays)
        for name, length in zip(plan.arrays, head[first:at], strict=True):
            if length:
                begin, array = begin + int(length), vector[begin : begin + int(length)]
                if name in plan.rows:
                    array = array.reshape(found[plan.rows[name]], -1)
                found[name] = array.astype(np.int64) if found[name] is NO_NUMBERS else array
        name, part = plan.parts
        if part is not None:
            found[name], number, at = [], int(head[at]), at + 1
            for _ in range(number):
                each, at, begin = part._read(head, at, vector, begin)
                found[name].append(each)
        return cls(**found), at, begin

    @classmethod
    def look(cls, progress: Array) -> Self:
        """Return the state for reading only. That of a long vector is not kept: decoding it takes no time beside a
        pass, and nothing would free the vector.
        """
        vector, state = _last.get(cls, NONE)
        if vector is not progress:
            state = cls.decode(progress)
            _last[cls] = (progress, state) if progress.size <= CACHED_VALUES else NONE
        return state

    @classmethod
    def take(cls, progress: Array) -> Self:
        """Return the state to change it, but not what is in its arrays; no other call returns this one."""
        vector, state = _last.pop(cls, NONE)
        return state if vector is progress else cls.decode(progress)
