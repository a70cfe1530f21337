"""Events, effects and settings as JSON and back, by their type annotations.

An event or effect is an object whose "type" is the name of its class; a mapping is a list of pairs, because its keys
need not be strings; a tuple is a list. Chunks with equal dataclasses share a pair, in which they are a list: a node
holds hundreds of chunks, nearly all of one version. A field left out takes its default, so that stories of older
versions can be read when a field is added. Nothing but the classes listed here is ever built from a stream.
"""

import collections.abc
import dataclasses
import functools
import math
import numbers
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from chicle_elastic.errors import ProtocolError
from chicle_elastic.scheduling.effects import Effect
from chicle_elastic.scheduling.events import Event

_T = TypeVar("_T")

EVENT_TYPES: Mapping[str, type] = {cls.__name__: cls for cls in typing.get_args(Event)}
EFFECT_TYPES: Mapping[str, type] = {cls.__name__: cls for cls in typing.get_args(Effect)}
AS_THEY_ARE = frozenset({int, str, float, bool, type(None)})
"""Types whose values JSON has."""


def prepare(kinds: Iterable[type]) -> None:
    """Work out now what coding these dataclasses takes, instead of at the first of each."""
    for kind in kinds:
        _decoder(typing.cast(Any, kind))
        _names(typing.cast(Any, kind))


def encode(value: Event | Effect) -> dict[str, Any]:
    """An event or effect as JSON values, with its "type"."""
    return {"type": type(value).__name__, **encode_fields(value)}


def encode_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON values."""
    values = {name: getattr(value, name) for name in _names(typing.cast(Any, type(value)))}
    return {name: item if type(item) in AS_THEY_ARE else _encode(item) for name, item in values.items()}


def decode_event(data: Any) -> Event:
    """The event in JSON values.

    Raises:
        ProtocolError: It is no event; the message says which part is wrong.
    """
    return typing.cast(Event, _decode_tagged(data, EVENT_TYPES))


def decode_effect(data: Any) -> Effect:
    """The effect in JSON values.

    Raises:
        ProtocolError: It is no effect; the message says which part is wrong.
    """
    return typing.cast(Effect, _decode_tagged(data, EFFECT_TYPES))


def decode_fields(cls: type[_T], data: Any, path: str) -> _T:
    """A dataclass from the JSON values of its fields.

    Args:
        cls: The dataclass.
        data: Supposed to be an object with its fields.
        path: What it is, for the message.

    Raises:
        ProtocolError: A field is missing, unknown, or not of its type.
    """
    try:
        decoded: _T = _decoder(typing.cast(Any, cls))(data)
    except _MisfitError as error:
        raise ProtocolError(f"{path}{error.where} {error.what}") from None
    return decoded


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        if all(type(item) is int for item in value):
            return list(value)  # the long ones
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return _encode_pairs(value)
    if dataclasses.is_dataclass(value):
        return encode_fields(value)
    if isinstance(value, numbers.Real):  # scalars of NumPy, from a shell that counts with it
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    raise TypeError(f"{value!r} of type {type(value).__name__} has no place in a story")


def _encode_pairs(pairs: Mapping[Any, Any]) -> list[Any]:
    first_key, first = next(iter(pairs.items()), (None, None))
    if type(first_key) is not int or not dataclasses.is_dataclass(first):
        return [[_encode(key), _encode(item)] for key, item in pairs.items()]
    chunks_of: dict[Any, list[int]] = {}
    for chunk, item in pairs.items():
        chunks_of.setdefault(item, []).append(_encode(chunk))
    return [[chunks if len(chunks) > 1 else chunks[0], _encode(item)] for item, chunks in chunks_of.items()]


def _decode_tagged(data: Any, known: Mapping[str, type]) -> Any:
    tag = data.get("type") if isinstance(data, dict) else None
    if not isinstance(tag, str) or tag not in known:
        raise ProtocolError(f"{_short(data)} has no type out of {', '.join(known)}")
    return decode_fields(known[tag], {name: item for name, item in data.items() if name != "type"}, tag)


class _MisfitError(Exception):
    """JSON that is not of the type that it should be.

    Attributes:
        what: What is wrong.
        where: The way to it from the value that is decoded, e.g. ".reports[n1].samples"; made while it is raised, so
            that nothing is spent on it where all is well.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.where = ""

    def below(self, part: str) -> "_MisfitError":
        """The same, seen from one level above."""
        self.where = part + self.where
        return self


@functools.cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


@functools.cache
def _decoder(annotation: Any) -> Callable[[Any], Any]:
    """What makes a value of this type out of JSON values, worked out once per type."""
    kind = getattr(annotation, "__supertype__", annotation)  # ChunkId is an int here, NodeId a str
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType or origin is typing.Union:
        [inner] = [arg for arg in args if arg is not type(None)]
        return functools.partial(_decode_optional, _decoder(inner))
    if origin is tuple and args[-1] is ...:
        return _items_decoder(args[0])
    if origin is tuple:
        return functools.partial(_decode_tuple, tuple(map(_decoder, args)))
    if origin is collections.abc.Mapping and dataclasses.is_dataclass(args[1]):
        return functools.partial(_decode_shared, _items_decoder(args[0]), _decoder(typing.cast(Any, args[1])))
    if origin is collections.abc.Mapping:
        return functools.partial(_decode_pairs, _decoder(args[0]), _decoder(args[1]))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _object_decoder(kind)
    return functools.partial(_decode_scalar, kind)


def _object_decoder(cls: type) -> Callable[[Any], Any]:
    hints = typing.get_type_hints(cls)
    decoders = {field.name: _decoder(hints[field.name]) for field in dataclasses.fields(cls)}
    required = {
        field.name
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    plain = {name: getattr(hints[name], "__supertype__", hints[name]) for name in decoders}
    is_plain = all(kind in (int, str, bool) for kind in plain.values())

    def decode(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _MisfitError(f"is {_short(data)} and not an object")
        if is_plain and len(data) == len(plain) and all(type(item) is plain.get(name) for name, item in data.items()):
            return cls(**data)  # state versions by the hundred: a look at each field is enough
        if not required <= data.keys():
            missing = next(name for name in decoders if name in required and name not in data)
            raise _MisfitError(f"has no {missing!r}")
        values = {}
        for name, item in data.items():
            if name not in decoders:
                raise _MisfitError(f"has fields that {cls.__name__} has not: {sorted(data.keys() - decoders.keys())}")
            try:
                values[name] = decoders[name](item)
            except _MisfitError as error:
                raise error.below(f".{name}") from None
        return cls(**values)

    return decode


def _decode_optional(decode: Callable[[Any], Any], data: Any) -> Any:
    return None if data is None else decode(data)


def _items_decoder(annotation: Any) -> Callable[[Any], Any]:
    plain = getattr(annotation, "__supertype__", annotation)
    return functools.partial(_decode_items, _decoder(annotation), plain if plain in (int, str) else None)


def _decode_items(decode: Callable[[Any], Any], plain: type | None, data: Any) -> Any:
    items = _list(data)
    if plain is not None and all(type(item) is plain for item in items):
        return tuple(items)  # the long ones: a look at each item is enough
    return tuple(_decode_at(decode, item, index) for index, item in enumerate(items))


def _decode_tuple(decoders: tuple[Callable[[Any], Any], ...], data: Any) -> Any:
    items = _list(data)
    if len(items) != len(decoders):
        raise _MisfitError(f"has {len(items)} items and not {len(decoders)}")
    return tuple(decode(item) for decode, item in zip(decoders, items, strict=True))


def _decode_pairs(decode_key: Callable[[Any], Any], decode: Callable[[Any], Any], data: Any) -> Any:
    return {decode_key(key): _decode_at(decode, item, key) for key, item in _pairs(data)}


def _decode_shared(decode_keys: Callable[[Any], Any], decode: Callable[[Any], Any], data: Any) -> Any:
    values: dict[Any, Any] = {}
    for keys, item in _pairs(data):
        keys = keys if isinstance(keys, list) else [keys]
        values.update(dict.fromkeys(decode_keys(keys), _decode_at(decode, item, keys[0] if keys else "")))
    return values


def _pairs(data: Any) -> list[Any]:
    pairs = [_list(pair) for pair in _list(data)]
    if any(len(pair) != 2 for pair in pairs):
        raise _MisfitError("is not a list of pairs")
    return pairs


def _decode_at(decode: Callable[[Any], Any], data: Any, key: Any) -> Any:
    try:
        return decode(data)
    except _MisfitError as error:
        raise error.below(f"[{key}]") from None


def _decode_scalar(kind: Any, data: Any) -> Any:
    if type(data) is kind and (kind is not float or math.isfinite(data)):
        return data
    if kind is float and type(data) is int and abs(data) <= sys.float_info.max:
        return float(data)
    raise _MisfitError(f"is {_short(data)} and not a {kind.__name__}")


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise _MisfitError(f"is {_short(data)} and not a list")
    return data


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else text[:57] + "..."
