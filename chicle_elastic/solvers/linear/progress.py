"""States that all tasks have in common while a fit runs, as one flat vector: by the fields of their dataclasses.

    kind       1                     says which class with which fields the vector is one of
    size       1                     of the head
    head       one each              floats, integers, booleans and enumerations, lengths of arrays, and numbers of
                                     parts with the heads of these, in the order of the fields
    arrays                           in that order, too

A vector goes along with the sums of every pass, so an array that the next pass does not need is left out (`kept`). A
checkpoint keeps it: a class with other fields has another kind, so that nothing is read from the wrong place. A task
that has decoded a vector keeps the state behind it, so that it decodes each vector once.
"""

import typing
import zlib
from collections.abc import Iterator
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
    # of each field its name, and its array without a value, the class of its parts, or what makes a scalar of a float
    fields: tuple[tuple[str, Any], ...]
    rows: dict[str, str]  # of arrays of two dimensions, the scalar that says how many rows there are


def _plan(cls: Any) -> _Plan:
    return _cached_plan(cls)  # for mypy a class of states is not hashable


@cache
def _cached_plan(cls: Any) -> _Plan:
    found = tuple((field.name, _reader(field.type)) for field in fields(cls))
    names = [(name, _plan(read).kind if _has_parts(read) else isinstance(read, np.ndarray)) for name, read in found]
    rows = {field.name: field.metadata[ROWS] for field in fields(cls) if ROWS in field.metadata}
    return _Plan(kind=float(zlib.crc32(repr((cls.__qualname__, names)).encode())), fields=found, rows=rows)


def _reader(kind: Any) -> Any:
    if kind in (Array, Numbers):
        return NO_NUMBERS if kind == Numbers else NOTHING
    if typing.get_origin(kind) is list:
        return typing.get_args(kind)[0]
    return {float(each.value): each for each in kind}.__getitem__ if issubclass(kind, Enum) else kind


def _has_parts(read: Any) -> bool:
    return isinstance(read, type) and issubclass(read, ProgressState)


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
        return tuple(name for name, read in _plan(type(self)).fields if isinstance(read, np.ndarray))

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
        kept = self.kept()
        for name, read in _plan(type(self)).fields:
            value = getattr(self, name)
            if isinstance(read, np.ndarray):
                pieces = value.pieces() if isinstance(value, ProgressState) else [value.reshape(-1)]
                pieces = [piece for piece in pieces if piece.size] if name in kept else []
                head.append(float(sum(piece.size for piece in pieces)))
                arrays += pieces
            elif isinstance(value, list):
                head.append(len(value))
                for part in value:
                    part._add(head, arrays)
            else:
                head.append(float(value))

    @classmethod
    def is_of(cls, progress: Array) -> bool:
        """Say whether a vector is a state of this class."""
        return len(progress) > 0 and bool(progress[0] == _plan(cls).kind)

    @classmethod
    def decode(cls, progress: Array) -> Self:
        """Make a state of a vector that `encode` made; its arrays are views of the vector."""
        assert cls.is_of(progress), f"no progress of {cls.__name__}"
        begin = 2 + int(progress[1])
        return cls._read(iter(progress[2:begin].tolist()), progress, [begin])

    @classmethod
    def _read(cls, head: Iterator[float], vector: Array, place: list[int]) -> Self:
        """Read the fields; `place` is where the next array begins, and goes on."""
        plan = _plan(cls)
        found: dict[str, Any] = {}
        for name, read in plan.fields:
            value = next(head)
            if isinstance(read, np.ndarray):
                array, begin = read, place[0]
                if value:
                    place[0] += int(value)
                    array = vector[begin : place[0]]
                    if name in plan.rows:
                        array = array.reshape(found[plan.rows[name]], -1)
                    elif read is NO_NUMBERS:
                        array = array.astype(np.int64)
                found[name] = array
            elif _has_parts(read):
                found[name] = [read._read(head, vector, place) for _ in range(int(value))]
            else:
                found[name] = read(value)
        return cls(**found)

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
