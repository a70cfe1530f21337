"""The trainer and the policies of a job, and code of the user's with them: from the driver to the tasks, as pickles.

    driver   trainer and policies  ->  pickles by cloudpickle (`dump`)
             pickles  ->  the sealed memory file of the job, beside its data (`job_spec`)
    task     `staging.map_file`, then the trainer and the policies again (`load`)

What can be imported goes by its name, and the task imports it. What cannot goes by value: classes and functions of a
notebook or a script that is run, lambdas, closures, classes that a function has made, instances of all these.

The author of a pickle runs code in the process that reads it, so nothing that comes from another host, from the
rendezvous store or from a file on a disk is ever unpickled. Here the writer is the driver, and the readers are
processes that were started for it, of the same user on the same machine: the kernel vouches for that at the server's
socket (SO_PEERCRED), through which the descriptor comes. The memory file has no path that other users could open, and
once it is sealed no process can change it, the driver included. This is the only file that may import a pickling
module (pyproject.toml).
"""

import io
import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

from chicle_elastic.cluster.local.culprits import culprit_of
from chicle_elastic.errors import MissingExtraError, UsageError

ADVICE = "make it where it is used, in a method, or leave it out of the pickle by __getstate__"
BUILTIN_CLASSES = (type(None), type(...), type(NotImplemented))


def dump(parts: Mapping[str, Any]) -> tuple[bytes, bool]:
    """Pickle the parts of a job. Raises UsageError when a part holds something that cannot be pickled, such as a lock
    or an open socket; the message has the way to it. Raises MissingExtraError when cloudpickle is not installed.
    Returns their pickles, and whether there is code in them.

    Args:
        parts: By what messages call them, e.g. "trainer".
    """
    file = io.BytesIO()
    with _code_pickler(file) as pickler:
        for name, part in parts.items():
            try:
                pickler.dump(part)
            except Exception as error:  # pickling runs code of the user's
                culprit = culprit_of(part, name.partition(" ")[0], _cannot_be_pickled)
                raise UsageError(
                    f"the {name} {type(part).__qualname__} cannot be sent to the tasks of a cluster, because a "
                    f"{culprit.kind} cannot be pickled: {culprit.path} ({type(error).__name__}: {error}); {ADVICE}"
                ) from error
        return file.getvalue(), pickler.has_code


def _cannot_be_pickled(part: Any) -> bool:
    with _code_pickler(io.BytesIO()) as pickler:
        try:
            pickler.dump(part)
        except Exception:  # pickling runs code of the user's
            return True
    return False


def load(content: bytes, num_parts: int) -> list[Any]:
    """The parts again, in a task; only for bytes that the driver of this job has written. Raises UsageError when one
    cannot be made here, for example because its module cannot be imported."""
    unpickler = pickle.Unpickler(io.BytesIO(content))
    try:
        return [unpickler.load() for _ in range(num_parts)]
    except Exception as error:  # unpickling runs code of the user's
        raise UsageError(
            f"the trainer or a policy cannot be made in the tasks of a cluster ({type(error).__name__}: {error}); what "
            "the driver has imported must be importable there by the same name"
        ) from error


@contextmanager
def _code_pickler(file: io.BytesIO) -> Iterator[Any]:
    """A pickler of cloudpickle's that has the attribute `has_code`: something was pickled by value. Modules that the
    driver has made or loaded by itself, and that no import finds, are taken by value, too."""
    try:
        import cloudpickle
    except ImportError as error:
        raise MissingExtraError.for_package(
            "cloudpickle", extra="cluster", purpose="a local cluster (n_workers=)"
        ) from error
    found: set[str] = set()  # top-level packages that an import finds
    registered: list[ModuleType] = []

    class CodePickler(cloudpickle.Pickler):
        has_code = False

        def reducer_override(self, obj: Any) -> Any:
            is_definition = isinstance(obj, type | FunctionType)
            if is_definition or isinstance(obj, ModuleType):
                self._take_module_of(obj)
            reduced = super().reducer_override(obj)
            if is_definition and reduced is not NotImplemented and obj not in BUILTIN_CLASSES:
                self.has_code = True
            return reduced

        def _take_module_of(self, obj: Any) -> None:
            name = obj.__name__ if isinstance(obj, ModuleType) else obj.__module__
            root = str(name).partition(".")[0]
            module = sys.modules.get(root)
            if (
                root in found
                or not isinstance(module, ModuleType)
                or root in cloudpickle.list_registry_pickle_by_value()
            ):
                return
            if root == "__main__" or _is_found(root):  # cloudpickle takes __main__ by value anyway
                found.add(root)
            else:
                cloudpickle.register_pickle_by_value(module)
                registered.append(module)

    try:
        yield CodePickler(file)
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _is_found(package: str) -> bool:
    """Whether a process with the same `sys.path` can import a top-level package."""
    finders = [getattr(finder, "find_spec", None) for finder in sys.meta_path]
    return any(find is not None and find(package, None) is not None for find in finders)
