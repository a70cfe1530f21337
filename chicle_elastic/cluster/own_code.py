"""Code of a user that no import finds, such as a module class from a notebook: from the driver to the tasks.

    driver   the class, and what it uses of the notebook's other cells  ->  text of a Python module (`collect`)
             text  ->  the sealed memory file of the job, beside its data (`local_job`)
    task     checksum  ->  a module of that name in sys.modules (`load`), from which the class is imported by name

The memory file has no name, and only the driver and the processes of the job have its descriptor; sealed, nobody can
change it any more. So what is run is what the driver wrote. It is text, compiled here, and nothing is unpickled.
"""

import ast
import hashlib
import importlib.abc
import importlib.util
import inspect
import linecache
import sys
import textwrap
from types import FunctionType, ModuleType
from typing import Any

from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import Trainer

PREFIX = "chicle_own_code_"
ADVICE = "write the class to a file of its own and import it"
CONSTANTS = (bool, int, float, str, bytes, type(None), type(...))


def portable(trainer: Trainer) -> tuple[Trainer, str, str]:
    """A trainer that tasks can make, and the code that they need for it.

    Args:
        trainer: With a method `own_class` that returns a class which no import finds, and `with_class_at`; others are
            returned as they are.

    Returns:
        The trainer, the name of the module that it names, and its text; both empty where nothing is needed.

    Raises:
        UsageError: The code cannot be found, or needs something that is no code.
    """
    own_class = getattr(trainer, "own_class", None)
    kind = own_class() if own_class is not None else None
    if kind is None:
        return trainer, "", ""
    text = collect(kind)
    name = PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16]
    described: Any = trainer
    return described.with_class_at(f"{name}:{kind.__qualname__}"), name, text


def load(name: str, text: str) -> ModuleType:
    """Make a module of code that the driver of this job has written.

    Raises:
        UsageError: The text is not the one that the name was made of.
    """
    if name != PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16]:
        raise UsageError(f"the code of {name} is not what its driver wrote; start the job again")
    spec = importlib.util.spec_from_loader(name, _TextLoader(name, text))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def collect(kind: type) -> str:
    """Text of a module that defines a class, with everything that the class uses of its own module.

    Classes and functions of the same module are taken along, imported names are imported again, and plain constants
    are written down.

    Raises:
        UsageError: The source of the class cannot be found, or it uses an object that is none of these.
    """
    if "<locals>" in kind.__qualname__ or "." in kind.__qualname__:
        raise UsageError(
            f"{kind.__qualname__} is defined inside something else, so that the tasks of a cluster cannot make it; "
            f"define it at the top, or {ADVICE}"
        )
    found = _Collector(vars(sys.modules[kind.__module__]), kind.__module__)
    found.add(kind, kind.__name__)
    return found.text()


class _Collector:
    """Follows names from definition to definition within one module."""

    def __init__(self, namespace: dict[str, Any], module: str) -> None:
        self._namespace, self._module = namespace, module
        self._seen: set[str] = set()
        self._imports: list[str] = []
        self._texts: list[str] = []

    def add(self, value: Any, name: str) -> None:
        """Take a value along, under the name that it is used by."""
        if name in self._seen:
            return
        self._seen.add(name)
        if isinstance(value, ModuleType):
            self._imports.append(f"import {value.__name__} as {name}")
        elif isinstance(value, type | FunctionType) and value.__module__ == self._module:
            self._add_definition(value, name)
        elif hasattr(value, "__module__") and _is_importable(value):
            self._imports.append(f"from {value.__module__} import {value.__qualname__} as {name}")
        elif _is_constant(value):
            self._texts.append(f"{name} = {value!r}")
        else:
            raise UsageError(
                f"{name} is a {type(value).__qualname__}, which cannot travel to the tasks of a cluster as code; make "
                f"it inside of what uses it, or {ADVICE}"
            )

    def text(self) -> str:
        """The module: imports, then definitions, those that others need first."""
        return "\n".join(["from __future__ import annotations", *self._imports, "", *self._texts, ""])

    def _add_definition(self, value: type | FunctionType, name: str) -> None:
        source = source_of(value)
        for used in _used_names(source):
            if used in self._namespace:  # or a local name, a builtin, or an error that the driver would have as well
                self.add(self._namespace[used], used)
        self._texts.append(source)
        if value.__name__ != name:
            self._texts.append(f"{name} = {value.__name__}")


def source_of(value: type | FunctionType) -> str:
    """Source of a class or function, of a notebook's cell too.

    Raises:
        UsageError: It cannot be found.
    """
    try:
        return textwrap.dedent(inspect.getsource(value))
    except (OSError, TypeError):  # a class of a notebook: Python looks for the file of __main__, which is none
        for member in vars(value).values():
            code = getattr(inspect.unwrap(member) if callable(member) else member, "__code__", None)
            found = None if code is None else _definition(code.co_filename, value.__name__)
            if found is not None:
                return found
    raise UsageError(f"the source of {value.__qualname__} cannot be found, so that it cannot be sent; {ADVICE}")


def _definition(filename: str, name: str) -> str | None:
    """The last definition of a class in a file, or in the cell that Python keeps under such a name."""
    lines = linecache.getlines(filename)
    if not lines:
        return None
    for node in reversed(ast.parse("".join(lines)).body):
        if isinstance(node, ast.ClassDef) and node.name == name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return "".join(lines[first - 1 : node.end_lineno])
    return None


def _used_names(source: str) -> list[str]:
    names = [node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return list(dict.fromkeys(names))


def _is_importable(value: Any) -> bool:
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__qualname__", "")
    return module is not None and module.__name__ != "__main__" and getattr(module, name, None) is value


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_constant, value))
    if isinstance(value, dict):
        return all(_is_constant(key) and _is_constant(item) for key, item in value.items())
    return isinstance(value, CONSTANTS)


class _TextLoader(importlib.abc.InspectLoader):
    """A loader of one text; Python compiles and runs it as it does with a file."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text

    def get_source(self, fullname: str) -> str:
        """The text."""
        return self._text
