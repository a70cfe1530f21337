"""Events, effects, messages and snapshots as JSON and back, by their type annotations: msgspec reads and writes.

    encode(value, kind) -> bytes            decode(text, kind) -> value
    to_values(value, kind) -> JSON values   from_values(values, kind) -> value
    to_raw(value, kind) -> part of another message

`kind` is an annotation: a dataclass, a union of dataclasses, a container of them. A dataclass is an object with its
fields; a member of a union also says its class ("type"). A mapping is an object where its keys are strings or numbers,
else a list of pairs; `dict[K, None]`, an ordered set, is the list of its keys. Chunks with equal dataclasses share a
pair, in which they are a list: a node holds hundreds of chunks, nearly all of one version.

Reading is strict: a field that is missing, unknown or of another type is a `ProtocolError` that names it, and nothing
but the classes of `kind` is ever built. A field with a default may be left out.

msgspec ignores unknown fields of dataclasses and knows no unions of them, so it reads a dataclass as a `Struct` with
the same fields, its *twin*, and converts the twin. Both are C, but for a class that has a union or a list of pairs
inside (docs/design/decisions.md, "One codec").
"""

import collections.abc
import dataclasses
import enum
import functools
import numbers
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from chicle_elastic.errors import ProtocolError
from chicle_elastic.scheduling.together import by_key

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]  # an integer that is not negative; others are refused by `decode`

COMPACT = "compact"
"""`Annotated[kind, COMPACT]`: a dataclass in it is the list of its fields, without their names. For thousands of them
that are read by the release that wrote them."""

_Step: TypeAlias = Callable[[Any], Any]


def encode(value: Any, kind: Any = None, *, is_checked: bool = False, is_finite: bool = False) -> bytes:
    """A value as JSON text. Raises TypeError when there is something in it that messages have no place for, ValueError
    when there is a number in it that is not finite; with `is_checked` also for a value of another type.

    Args:
        is_checked: Make sure that it can be read again, which costs as much as to write it.
        is_finite: The caller knows that all numbers in it are finite, because it was written before (`to_raw`).
    """
    kind = type(value) if kind is None else kind
    dump = _form(kind).dump
    text = _ENCODER.encode(value if dump is None else dump(value))
    if is_checked or (not is_finite and b"null" in text):  # msgspec writes NaN as null, also where a number has to be
        try:
            _decoder(kind).decode(text)
        except msgspec.ValidationError as error:
            raise ValueError(f"{_short(value)} cannot be written: {error} (numbers have to be finite)") from None
    return text


def decode(text: bytes | str, kind: Any) -> Any:
    """The value in JSON text. Raises ProtocolError when it is no JSON, or a field in it is missing, unknown or not of
    its type; the message says which."""
    load = _form(kind).load
    try:
        twin = _decoder(kind).decode(text)
        return twin if load is None else load(twin)
    except msgspec.ValidationError as error:
        raise _refusal(error, kind, _untyped(text)) from None
    except _NO_JSON as error:
        raise _no_json(text, error) from None


def to_values(value: Any, kind: Any = None) -> Any:
    """A value as JSON values: dicts, lists, strings, numbers, truth values and None."""
    return msgspec.json.decode(encode(value, kind))


def to_raw(value: Any, kind: Any = None) -> msgspec.Raw:
    """A value as JSON text that `encode` puts into a message as it is; raises like `encode`."""
    return msgspec.Raw(encode(value, kind))


def from_values(data: Any, kind: Any) -> Any:
    """The value in JSON values; raises like `decode`."""
    load = _form(kind).load
    try:
        twin = msgspec.convert({"it": data}, _holder(kind), str_keys=True).it
        return twin if load is None else load(twin)
    except msgspec.ValidationError as error:
        raise _refusal(error, kind, data) from None


def prepare(kinds: Iterable[Any]) -> None:
    """Work out now what these kinds take, instead of at the first message of each."""
    for kind in kinds:
        _decoder(kind)
        _holder(kind)


class _Form(NamedTuple):
    kind: Any  # what msgspec reads: the annotation, with twins for its dataclasses
    dump: _Step | None = None  # makes what msgspec writes; None where that is the value itself
    load: _Step | None = None  # makes the value from what msgspec has read; None where that is it already


@functools.cache
def _decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(_form(kind).kind)


@functools.cache
def _holder(kind: Any) -> Any:
    """A struct with one value: msgspec keeps what it knows of a class, and forgets what it knows of a union."""
    return msgspec.defstruct("Holder", [("it", _form(kind).kind)])


@functools.cache
def _form(annotation: Any, is_compact: bool = False) -> _Form:
    """How values of this annotation are written and read, worked out once. Raises TypeError when there is no place for
    it in messages."""
    kind = annotation
    while hasattr(kind, "__supertype__"):  # ChunkId is an int here, NodeId a str
        kind = kind.__supertype__
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        form = _form(args[0], is_compact or COMPACT in args)
        if COMPACT in args and form.dump is not None:
            raise TypeError(f"a {args[0]} cannot be compact: there is a union or a list of pairs inside")
        limits = tuple(arg for arg in args[1:] if isinstance(arg, msgspec.Meta))
        limited = Annotated[form.kind, *limits] if limits else form.kind
        return form._replace(kind=limited, dump=_converter(form.kind) if COMPACT in args else form.dump)
    if origin in (types.UnionType, typing.Union):
        others = [arg for arg in args if arg is not type(None)]
        return _optional(_form(others[0], is_compact)) if len(others) == 1 else _tagged(others)
    if origin in (list, tuple) and (origin is list or args[1:] == (...,)):
        return _items(annotation, origin, _form(args[0], is_compact))
    if origin is tuple:
        forms = [_form(arg, is_compact) for arg in args]
        if all(form.dump is None and form.load is None for form in forms):
            return _Form(tuple[tuple(form.kind for form in forms)])  # type: ignore[misc]
    if origin is frozenset and _form(args[0]).load is None:
        return _Form(frozenset[_form(args[0]).kind], sorted)  # type: ignore[misc]
    if origin in (dict, collections.abc.Mapping):
        return _mapping(annotation, args[0], args[1], is_compact)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _object(kind, is_compact=is_compact)
    if kind in (bool, int, float, str, Any) or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        return _Form(kind)
    raise TypeError(f"a message has no place for a {annotation}")


def _optional(inner: _Form) -> _Form:
    dump, load = inner.dump, inner.load
    return _Form(
        inner.kind | None if inner.kind is not Any else Any,
        dump and (lambda value: None if value is None else dump(value)),
        load and (lambda twin: None if twin is None else load(twin)),
    )


def _items(annotation: Any, origin: Any, inner: _Form) -> _Form:
    kind = list[inner.kind] if origin is list else tuple[inner.kind, ...]  # type: ignore[name-defined]
    dump, load = inner.dump, inner.load
    if dump is None:
        return _Form(kind, None, load and _converter(annotation))
    assert load is not None
    return _Form(kind, lambda value: [dump(item) for item in value], lambda twin: origin(load(item) for item in twin))


def _mapping(annotation: Any, key_kind: Any, item_kind: Any, is_compact: bool) -> _Form:
    key = _form(key_kind)
    if item_kind in (None, type(None)):
        return _Form(tuple[key.kind, ...], list, dict.fromkeys)  # type: ignore[name-defined]
    item = _form(item_kind, is_compact)
    dump, load = item.dump, item.load
    is_shared = key.kind is int and dataclasses.is_dataclass(item_kind) and not is_compact
    if is_shared and typing.cast(Any, item_kind).__dataclass_params__.frozen:
        assert load is not None
        pair = tuple[int | tuple[int, ...], item.kind]  # type: ignore[name-defined]
        content = operator.attrgetter(*(field.name for field in dataclasses.fields(item_kind)))
        return _Form(tuple[pair, ...], functools.partial(_share, dump, content), functools.partial(_unshare, load))
    if key.kind not in (int, str):
        assert dump is None
        assert load is None
        return _Form(tuple[tuple[key.kind, item.kind], ...], lambda value: list(value.items()), dict)  # type: ignore[name-defined]
    kind = dict[key.kind, item.kind]  # type: ignore[name-defined]
    if dump is None:
        return _Form(kind, None, load and _converter(annotation))
    assert load is not None
    return _Form(
        kind,
        lambda value: {name: dump(part) for name, part in value.items()},
        lambda twin: {name: load(part) for name, part in twin.items()},
    )


def _share(dump: _Step | None, content: _Step, value: Mapping[int, Any]) -> list[Any]:
    keys_of: dict[Any, list[int]] = {}
    for keys in by_key((id(item), key) for key, item in value.items()).values():
        keys_of.setdefault(content(value[keys[0]]), []).extend(keys)  # four times faster than the hash of a dataclass
    groups = sorted(map(sorted, keys_of.values()))
    items = [value[keys[0]] for keys in groups]
    shared = [keys if len(keys) > 1 else keys[0] for keys in groups]
    return list(zip(shared, items if dump is None else map(dump, items), strict=True))


def _unshare(load: _Step, twins: Iterable[tuple[Any, Any]]) -> dict[int, Any]:
    value: dict[int, Any] = {}
    for keys, twin in twins:
        value.update(dict.fromkeys(keys if isinstance(keys, tuple) else (keys,), load(twin)))
    return value


def _tagged(classes: list[type]) -> _Form:
    forms = {cls: _object(cls, is_tagged=True) for cls in classes}
    heads = {cls: f'{{"type":"{cls.__name__}"'.encode() for cls in classes}
    loads = {form.kind: form.load for form in forms.values()}

    def dump(value: Any) -> msgspec.Raw:
        cls = type(value)
        if cls not in forms:
            raise TypeError(f"{_short(value)} has no place among {', '.join(known.__name__ for known in classes)}")
        step = forms[cls].dump
        fields = _ENCODER.encode(value if step is None else step(value))
        return msgspec.Raw(heads[cls] + (b"," if len(fields) > 2 else b"") + fields[1:])

    def load(twin: Any) -> Any:
        step = loads[type(twin)]
        assert step is not None
        return step(twin)

    return _Form(typing.Union[tuple(form.kind for form in forms.values())], dump, load)  # noqa: UP007


def _object(cls: type, *, is_tagged: bool = False, is_compact: bool = False) -> _Form:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = dataclasses.fields(typing.cast(Any, cls))
    forms = {field.name: _form(hints[field.name], is_compact) for field in fields}
    is_native = all(form.dump is None for form in forms.values())
    parts: list[Any] = []
    for field in fields:
        kind, has_default = forms[field.name].kind, field.default is not dataclasses.MISSING
        if not has_default and field.default_factory is dataclasses.MISSING:
            parts.append((field.name, kind))
        elif not is_native:  # its default is no twin, so the dataclass adds it itself
            parts.append((field.name, typing.Union[kind, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007
        elif has_default:
            parts.append((field.name, kind, field.default))
        else:
            parts.append((field.name, kind, msgspec.field(default_factory=typing.cast(Any, field.default_factory))))
    twin_class = msgspec.defstruct(
        cls.__name__,
        parts,
        kw_only=True,
        forbid_unknown_fields=True,
        array_like=is_compact,
        gc=False,  # a twin is never part of a cycle
        tag=cls.__name__ if is_tagged else None,
        tag_field="type" if is_tagged else None,
    )
    if is_native:
        return _Form(twin_class, None, _converter(cls))
    steps = [(name, form.dump, form.load) for name, form in forms.items()]

    def dump(value: Any) -> dict[str, Any]:
        made = {name: getattr(value, name) for name in forms}
        return {name: made[name] if step is None else step(made[name]) for name, step, _ in steps}

    def load(twin: Any) -> Any:
        read = {name: getattr(twin, name) for name in forms}
        return cls(
            **{
                name: read[name] if step is None else step(read[name])
                for name, _, step in steps
                if read[name] is not msgspec.UNSET
            }
        )

    return _Form(twin_class, dump, load)


def _converter(kind: Any) -> _Step:
    return functools.partial(msgspec.convert, type=kind, from_attributes=True)


def _plain(value: Any) -> Any:
    """Turn into JSON values what msgspec does not know by itself."""
    if isinstance(value, numbers.Real):  # scalars of NumPy, from a shell that counts with it
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    raise TypeError(f"{_short(value)} of type {type(value).__name__} has no place in a message")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are no JSON; for a string that is not UTF-8 it is not an error of its own."""


def _refusal(error: msgspec.ValidationError, kind: Any, data: Any) -> ProtocolError:
    """Say what is wrong, with the way to it from the value that was read: "... - at `NodeLost.node`"."""
    what, _, where = str(error).partition(" - at ")
    classes = [arg for arg in typing.get_args(kind) if isinstance(arg, type) and arg is not type(None)]
    where = where.replace("$.it", "$", 1) or "`$`"
    name = getattr(kind, "__name__", str(kind))
    if len(classes) > 1:
        tag = data.get("type") if isinstance(data, dict) else None
        if not isinstance(tag, str) or tag not in {cls.__name__ for cls in classes}:
            known = ", ".join(cls.__name__ for cls in classes)
            return ProtocolError(f"{_short(data)} has the type {_short(tag)}, which is none of {known}")
        name = tag
    return ProtocolError(f"{what} - at {where.replace('$', name, 1)}")


def _untyped(text: bytes | str) -> Any:
    try:
        return msgspec.json.decode(text)
    except _NO_JSON as error:
        raise _no_json(text, error) from None


def _no_json(text: bytes | str, error: Exception) -> ProtocolError:
    return ProtocolError(f"{_short(text)} is no JSON ({error})")


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else text[:57] + "..."
