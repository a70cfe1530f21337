"""Compact JSON for values of a known type: what a snapshot is made of.

`codec` writes fields with their names, because stories are kept for years and gain fields. Here the reader has the same
annotations as the writer, so names are left out: a dataclass is the list of its fields, a mapping the list of its
pairs, in its order, and a `dict[K, None]` (an ordered set) the list of its keys. An enum is its value.
"""

import collections
import collections.abc
import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from chicle_elastic.errors import ProtocolError


class Coder(NamedTuple):
    """Both directions for one type.

    Attributes:
        encode: The value as JSON values.
        decode: The value in JSON values; raises `ProtocolError` where they are not of the type.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


@functools.cache
def coder_of(annotation: Any) -> Coder:
    """The coder of a type: scalars, enums, dataclasses, and the containers of the scheduler's books.

    Raises:
        TypeError: There is none for this annotation.
    """
    kind = getattr(annotation, "__supertype__", annotation)  # ChunkId is an int here, NodeId a str
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union) and type(None) in args and len(args) == 2:
        [inner] = [arg for arg in args if arg is not type(None)]
        return _optional(coder_of(inner))
    if origin in (dict, collections.abc.Mapping):
        return (
            _keys(coder_of(args[0])) if args[1] in (None, type(None)) else _pairs(coder_of(args[0]), coder_of(args[1]))
        )
    if origin in (list, tuple, collections.deque) and (origin is not tuple or args[1:] == (...,)):
        return _items(origin, coder_of(args[0]))
    if origin is frozenset:
        item = coder_of(args[0])
        return Coder(lambda value: [item.encode(one) for one in sorted(value)], _items(frozenset, item).decode)
    if origin is tuple:
        return _fields(lambda *fields: fields, tuple(coder_of(arg) for arg in args), iter, str(annotation))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return Coder(lambda value: value.value, functools.partial(_decode_enum, kind))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if kind in (bool, int, float, str):
        return Coder(kind, functools.partial(_decode_scalar, kind))
    raise TypeError(f"a snapshot has no place for a {annotation}")


def _optional(inner: Coder) -> Coder:
    return Coder(
        lambda value: None if value is None else inner.encode(value),
        lambda data: None if data is None else inner.decode(data),
    )


def _items(make: Callable[[Any], Any], item: Coder) -> Coder:
    return Coder(
        lambda value: [item.encode(one) for one in value],
        lambda data: make([item.decode(one) for one in _list(data)]),
    )


def _keys(key: Coder) -> Coder:
    return Coder(
        lambda value: [key.encode(one) for one in value],
        lambda data: {key.decode(one): None for one in _list(data)},
    )


def _pairs(key: Coder, item: Coder) -> Coder:
    def decode(data: Any) -> Any:
        pairs = [_list(pair, 2) for pair in _list(data)]
        return {key.decode(first): item.decode(second) for first, second in pairs}

    return Coder(lambda value: [[key.encode(first), item.encode(second)] for first, second in value.items()], decode)


def _dataclass(kind: type) -> Coder:
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    has_keywords_only = all(field.kw_only for field in dataclasses.fields(kind))

    def make(*values: Any) -> Any:
        return kind(**dict(zip(names, values, strict=True))) if has_keywords_only else kind(*values)

    coders = tuple(coder_of(hints[name]) for name in names)
    return _fields(make, coders, lambda value: (getattr(value, name) for name in names), kind.__name__)


def _fields(
    make: Callable[..., Any], coders: tuple[Coder, ...], parts: Callable[[Any], typing.Iterable[Any]], name: str
) -> Coder:
    def decode(data: Any) -> Any:
        if not isinstance(data, list) or len(data) != len(coders):
            raise ProtocolError(f"a snapshot has {str(data)[:60]} for a {name} of {len(coders)} fields")
        return make(*(coder.decode(part) for coder, part in zip(coders, data, strict=True)))

    return Coder(
        lambda value: [coder.encode(part) for coder, part in zip(coders, parts(value), strict=True)],
        decode,
    )


def _decode_enum(kind: type[enum.Enum], data: Any) -> enum.Enum:
    try:
        return kind(data)
    except ValueError as error:
        raise ProtocolError(f"a snapshot says {error}") from error


def _decode_scalar(kind: type, data: Any) -> Any:
    if kind is float and type(data) is int:
        return float(data)
    if type(data) is not kind or (isinstance(data, float) and not math.isfinite(data)):
        raise ProtocolError(f"a snapshot has {str(data)[:60]!r} where a {kind.__name__} belongs")
    return data


def _list(data: Any, length: int | None = None) -> list[Any]:
    if not isinstance(data, list) or (length is not None and len(data) != length):
        raise ProtocolError(f"a snapshot has {str(data)[:60]!r} where a list belongs")
    return data
