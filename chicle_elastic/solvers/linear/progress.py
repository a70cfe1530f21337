"""States that all tasks have in common while a fit runs, as one flat vector: by the fields of their dataclasses.

    kind       1                     says which class with which fields the vector is one of
    scalars    one each              floats, integers, booleans and enumerations, in the order of the fields
    lengths    one each              of the arrays, in the order of the fields
    parts      1, where there are    how many there are; then the scalars and lengths of each
    arrays                           of the state, and then of each part

A vector goes along with the sums of every pass, so an array that the next pass does not need is left out (`kept`). A
checkpoint keeps it: a class with other fields has another kind, so that nothing is read from the wrong place. A task
that has made a vector keeps the state behind it, so that it decodes only what comes from elsewhere.
"""

import typing
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.products import CACHED_VALUES

Numbers = npt.NDArray[np.int64]  # the type of an array field of integers below 2^53
ROWS = "rows"  # Metadata of an array field of two dimensions: the name of the scalar that says how many rows it has
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

    read: dict[str, Callable[[float], Any]]  # by name of its scalars, what makes one of a float
    empty: dict[str, Array]  # its arrays without a value, by name
    rows: dict[str, str]  # of those of two dimensions, the scalar that says how many rows there are
    parts: tuple[str, Any]  # name and class of its list of parts; ("", None) for none
    kind: float  # a number that no class with other fields has, but by chance

    @property
    def width(self) -> int:
        """Scalars and lengths."""
        return len(self.read) + len(self.empty)


def _plan(cls: Any) -> _Plan:
    return _cached_plan(cls)  # for mypy a class of states is not hashable


@cache
def _cached_plan(cls: Any) -> _Plan:
    read, empty, parts = {}, {}, ("", None)
    rows: dict[str, str] = {}
    for field in fields(cls):
        if field.type in (Array, Numbers):
            empty[field.name] = NO_NUMBERS if field.type == Numbers else NOTHING
            rows |= {field.name: field.metadata[ROWS]} if ROWS in field.metadata else {}
        elif typing.get_origin(field.type) is list:
            parts = field.name, typing.get_args(field.type)[0]
        else:
            read[field.name] = _reader(field.type)
    of_part = 0.0 if parts[1] is None else _plan(parts[1]).kind
    names = cls.__qualname__, tuple(read), tuple(empty), of_part
    return _Plan(read=read, empty=empty, rows=rows, parts=parts, kind=float(zlib.crc32(repr(names).encode())))


def _reader(kind: Any) -> Callable[[float], Any]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {float(member.value): member for member in kind}.__getitem__
    read: Callable[[float], Any] = kind
    return read


_last: dict[Any, tuple[Any, Any]] = {}  # by class, the vector that was made or looked at last and its state
NONE = None, None


class ProgressState:
    """Base of a dataclass whose fields are scalars, arrays, and at most one list of parts (states, too)."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def kept(self) -> tuple[str, ...]:
        """Return the names of the arrays that the next pass needs; by default all."""
        return tuple(_plan(type(self)).empty)

    def encode(self) -> Array:
        """Make one vector, float64. The state is kept with it, and is left as `decode` would have it."""
        head, arrays = self._pieces()
        vector = np.concatenate(arrays)  # integers become float64 on the way
        _fill(self, head, vector)
        _keep(vector, self)
        return vector

    def head(self) -> list[float]:
        """Return what a vector has before its arrays."""
        return self._pieces()[0]

    def _pieces(self) -> tuple[list[float], list[Array]]:
        """Return the head, and all arrays of the vector, of which the head is the first."""
        plan = _plan(type(self))
        head, arrays = [plan.kind], [NOTHING]
        _add(plan, self, head, arrays)
        name, part = plan.parts
        if part is not None:
            found, of_part = getattr(self, name), _plan(part)
            head.append(len(found))
            for each in found:
                _add(of_part, each, head, arrays)
        arrays[0] = np.array(head, dtype=np.float64)
        return head, arrays

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
        head = progress[:end].tolist()
        assert head[0] == plan.kind, f"no progress of {cls.__name__}"
        found = _fields(plan, head[1:])
        if part is not None:
            found[name] = [part(**_fields(_plan(part), head[end - k * width :])) for k in range(count, 0, -1)]
        state = cls(**found)
        _fill(state, head, progress)
        return state

    @classmethod
    def look(cls, progress: Array) -> Self:
        """Return the state for reading only."""
        vector, state = _last.get(cls, NONE)
        if vector is not progress:
            state = cls.decode(progress)
            _keep(progress, state)
        return state

    @classmethod
    def take(cls, progress: Array) -> Self:
        """Return the state to change it, but not what is in its arrays; nobody else gets this one."""
        vector, state = _last.pop(cls, NONE)
        return state if vector is progress else cls.decode(progress)


def _keep(vector: Array, state: ProgressState) -> None:
    """Keep the state of a short vector; decoding a long one takes no time beside a pass, and nobody gives it back."""
    _last[type(state)] = (vector, state) if vector.size <= CACHED_VALUES else NONE


def _add(
    plan: _Plan,
    state: ProgressState,
    head: list[float],  # OUT
    arrays: list[Array],  # OUT
) -> None:
    """Add scalars and lengths to the head, and those arrays that are kept to the others.

    The vector of another state is written piece by piece where that state stands in place of it, and never by itself.
    """
    kept = state.kept()
    head += [float(getattr(state, name)) for name in plan.read]
    for name in plan.empty:
        value = getattr(state, name) if name in kept else NOTHING
        if value is NOTHING or value is NO_NUMBERS:
            head.append(0.0)
            continue
        pieces = value._pieces()[1] if isinstance(value, ProgressState) else [value.reshape(-1)]
        head.append(sum(piece.size for piece in pieces))
        arrays += [piece for piece in pieces if piece.size]


def _fields(plan: _Plan, values: list[float]) -> dict[str, Any]:
    """Read the scalars; arrays are empty."""
    return {name: read(value) for (name, read), value in zip(plan.read.items(), values, strict=False)} | plan.empty


def _fill(state: ProgressState, head: list[float], vector: Array) -> None:
    """Have all arrays of a state be views of its vector, which begins with the head."""
    plan = _plan(type(state))
    name, part = plan.parts
    all_of_them = [(state, plan)]
    if part is not None:
        all_of_them += [(each, _plan(part)) for each in getattr(state, name)]
    first, end = 1, len(head)
    for each, plan in all_of_them:
        lengths = head[first + len(plan.read) : first + plan.width]
        for (field, array), length in zip(plan.empty.items(), lengths, strict=True):
            if length:
                begin, end = end, end + int(length)
                array = vector[begin:end]
                if field in plan.rows:
                    array = array.reshape(getattr(each, plan.rows[field]), -1)
                elif plan.empty[field] is NO_NUMBERS:
                    array = array.astype(np.int64)
            setattr(each, field, array)
        first += plan.width + (each is state)
