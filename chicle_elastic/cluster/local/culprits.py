"""What in an object cannot be pickled, and the way to it in the words of the user: "trainer.augment uses log"."""

import dis
import functools
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

MOST_STEPS = 20


class Culprit(NamedTuple):
    """An object that cannot be pickled although all its parts can."""

    path: str  # how it is reached
    kind: str  # its type, by its full name


def culprit_of(whole: Any, name: str, fails: Callable[[Any], bool]) -> Culprit:
    """The innermost part that cannot be pickled, along the first way to one."""
    path, found, seen = name, whole, {id(whole)}
    for _ in range(MOST_STEPS):
        for step, part in _parts(found):
            if id(part) not in seen and fails(part):
                path, found = path + step, part
                seen.add(id(part))
                break
        else:
            break
    kind = type(found)
    return Culprit(
        path, kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    )


def _parts(whole: Any) -> Iterator[tuple[str, Any]]:
    """What a pickle by value of an object has in it, each with a step of the way."""
    if isinstance(whole, FunctionType):
        yield from _parts_of_function(whole)
    elif isinstance(whole, MethodType):
        yield "", whole.__self__
        yield "", whole.__func__
    elif isinstance(whole, functools.partial):
        yield "", whole.func
        yield from ((f"[{number}]", part) for number, part in enumerate(whole.args))
        yield from ((f"[{name!r}]", part) for name, part in whole.keywords.items())
    elif isinstance(whole, staticmethod | classmethod):
        yield "", whole.__func__
    elif isinstance(whole, property):
        yield from (("", part) for part in (whole.fget, whole.fset, whole.fdel) if part is not None)
    elif isinstance(whole, type):
        yield from ((f".{name}", part) for name, part in vars(whole).items() if name not in ("__dict__", "__weakref__"))
        yield from (("", base) for base in whole.__bases__)
    elif isinstance(whole, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in whole.items())
    elif isinstance(whole, list | tuple | set | frozenset):
        yield from ((f"[{number}]", part) for number, part in enumerate(whole))
    else:
        yield from ((f".{name}", part) for name, part in _attributes(whole).items())
        yield "", type(whole)


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f" uses {name}", cell.cell_contents
        except ValueError:  # not set yet
            continue
    for name in _names_of(function.__code__):
        if name in function.__globals__:
            yield f" uses {name}", function.__globals__[name]
    yield from (("'s default", part) for part in function.__defaults__ or ())
    yield from ((f"'s default of {name}", part) for name, part in (function.__kwdefaults__ or {}).items())
    yield from ((f".{name}", part) for name, part in vars(function).items())


def _names_of(code: CodeType) -> Iterator[str]:
    """Global names that a function looks up, those of functions inside it as well."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


def _attributes(whole: Any) -> dict[str, Any]:
    found = dict(getattr(whole, "__dict__", {}))
    for kind in type(whole).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in found and hasattr(whole, name):
                found[name] = getattr(whole, name)
    return found
