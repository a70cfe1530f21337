"""Events, effects and settings as JSON and back, by their type annotations.

An event or effect is an object whose "type" is the name of its class; a mapping is a list of pairs, because its keys
need not be strings; a tuple is a list. A field left out takes its default, so that stories of older versions can be
read when a field is added. Nothing but the classes listed here is ever built from a stream.
"""

import collections.abc
import dataclasses
import math
import numbers
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from chicle_elastic.errors import ProtocolError
from chicle_elastic.scheduling.effects import Effect
from chicle_elastic.scheduling.events import Event

_T = TypeVar("_T")

EVENT_TYPES: Mapping[str, type] = {cls.__name__: cls for cls in typing.get_args(Event)}
EFFECT_TYPES: Mapping[str, type] = {cls.__name__: cls for cls in typing.get_args(Effect)}

_FIELDS: dict[type, tuple[tuple[str, Any, bool], ...]] = {}


def encode(value: Event | Effect) -> dict[str, Any]:
    """An event or effect as JSON values, with its "type"."""
    return {"type": type(value).__name__, **encode_fields(value)}


def encode_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON values."""
    return {name: _encode(getattr(value, name)) for name, _, _ in _fields(type(value))}


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
    if not isinstance(data, dict):
        raise ProtocolError(f"{path} is {_short(data)} and not an object")
    values = {}
    for name, annotation, is_required in _fields(cls):
        if name in data:
            values[name] = _decode(annotation, data[name], f"{path}.{name}")
        elif is_required:
            raise ProtocolError(f"{path} has no {name!r}")
    unknown = data.keys() - values.keys()
    if unknown:
        raise ProtocolError(f"{path} has fields that {cls.__name__} has not: {sorted(unknown)}")
    return cls(**values)


def _fields(cls: type) -> tuple[tuple[str, Any, bool], ...]:
    """(name, annotation, has no default) of each field; worked out once per class."""
    if cls not in _FIELDS:
        hints = typing.get_type_hints(cls)
        _FIELDS[cls] = tuple(
            (
                field.name,
                hints[field.name],
                field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            )
            for field in dataclasses.fields(cls)
        )
    return _FIELDS[cls]


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        if all(type(item) is int for item in value):
            return list(value)  # the long ones
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return [[_encode(key), _encode(item)] for key, item in value.items()]
    if dataclasses.is_dataclass(value):
        return encode_fields(value)
    if isinstance(value, numbers.Real):  # scalars of NumPy, from a shell that counts with it
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    raise TypeError(f"{value!r} of type {type(value).__name__} has no place in a story")


def _decode_tagged(data: Any, known: Mapping[str, type]) -> Any:
    tag = data.get("type") if isinstance(data, dict) else None
    if not isinstance(tag, str) or tag not in known:
        raise ProtocolError(f"{_short(data)} has no type out of {', '.join(known)}")
    return decode_fields(known[tag], {name: item for name, item in data.items() if name != "type"}, tag)


def _decode(annotation: Any, data: Any, path: str) -> Any:
    annotation = getattr(annotation, "__supertype__", annotation)  # ChunkId is an int here, NodeId a str
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is types.UnionType or origin is typing.Union:
        if data is None and type(None) in args:
            return None
        [annotation] = [arg for arg in args if arg is not type(None)]
        return _decode(annotation, data, path)
    if origin is tuple:
        items = _list(data, path)
        if args[-1] is ...:
            kind = getattr(args[0], "__supertype__", args[0])
            if kind in (int, str) and all(type(item) is kind for item in items):
                return tuple(items)  # the long ones: a look at each item is enough
            return tuple(_decode(args[0], item, f"{path}[{index}]") for index, item in enumerate(items))
        if len(items) != len(args):
            raise ProtocolError(f"{path} has {len(items)} items and not {len(args)}")
        return tuple(_decode(arg, item, path) for arg, item in zip(args, items, strict=True))
    if origin is collections.abc.Mapping:
        pairs = [_list(pair, path) for pair in _list(data, path)]
        if any(len(pair) != 2 for pair in pairs):
            raise ProtocolError(f"{path} is not a list of pairs")
        return {_decode(args[0], key, path): _decode(args[1], item, f"{path}[{key}]") for key, item in pairs}
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return decode_fields(annotation, data, path)
    return _scalar(annotation, data, path)


def _scalar(annotation: type, data: Any, path: str) -> Any:
    if annotation is float and type(data) is int:
        return float(data)
    if type(data) is not annotation or (isinstance(data, float) and not math.isfinite(data)):
        raise ProtocolError(f"{path} is {_short(data)} and not a {annotation.__name__}")
    return data


def _list(data: Any, path: str) -> list[Any]:
    if not isinstance(data, list):
        raise ProtocolError(f"{path} is {_short(data)} and not a list")
    return data


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else text[:57] + "..."
