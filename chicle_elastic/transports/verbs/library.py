"""pyverbs, of any release that is known: found when it is asked for, or the exact reason why it cannot be used.

pyverbs 44 (Debian 12) has its constants flat in `pyverbs.enums`; later releases have them in enumerations of
`pyverbs.libibverbs_enums`. Everything else that is used here is the same in both.
"""

import enum
import functools
import importlib
import logging
import re
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

from chicle_elastic.errors import ChicleError

INSTALL = (
    "install python3-pyverbs of your distribution, and make the environment with --system-site-packages "
    "(docs/rdma.md says how)"
)
CREATION = threading.Lock()
"""Held while event files are opened or closed: in pyverbs 44 a new one is found by comparing which are open."""

_CLASSES = {
    "pyverbs.device": ("Context", "get_device_list"),
    "pyverbs.pd": ("PD",),
    "pyverbs.mr": ("MR",),
    "pyverbs.cq": ("CQ", "CompChannel"),
    "pyverbs.qp": ("QP", "QPCap", "QPInitAttr", "QPAttr"),
    "pyverbs.addr": ("AHAttr", "GID", "GlobalRoute"),
    "pyverbs.wr": ("SGE", "SendWR", "RecvWR"),
    "pyverbs.pyverbs_error": ("PyverbsError", "PyverbsRDMAError"),
}


class RdmaUnavailableError(ChicleError, RuntimeError):
    """RDMA cannot be used here; the message says exactly why, and what to do."""


@functools.cache
def load() -> Any:
    """The classes and constants of pyverbs, as attributes of one object. A failure is not remembered. Raises
    RdmaUnavailableError when pyverbs or a library that it needs is missing, or they do not fit."""
    found = SimpleNamespace()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        for module, names in _CLASSES.items():
            loaded = importlib.import_module(module)
            for name in names:
                setattr(found, name, getattr(loaded, name))
        vars(found).update(_constants())
    except (ImportError, AttributeError, SystemError) as error:
        raise RdmaUnavailableError(reason_of(error)) from error
    finally:  # pyverbs sets logging up for the whole process when it is imported, and that is for others to do
        root.handlers[:] = handlers
        root.setLevel(level)
    return found


def reason_of(error: Exception) -> str:
    """Why pyverbs cannot be imported, and what to do."""
    text = str(error)
    missing = getattr(error, "name", None) or ""
    if isinstance(error, ModuleNotFoundError) and missing == "pyverbs":
        return f"pyverbs is not installed; {INSTALL}"
    if isinstance(error, ModuleNotFoundError) and missing.startswith("pyverbs."):
        return f"the pyverbs that is installed has no {missing} for this Python; {INSTALL}, with the Python it is for"
    if wanted := re.search(r"IBVERBS_PRIVATE_(\d+)", text):
        return (
            f"pyverbs wants libibverbs of another release of rdma-core than the one here (private symbols of ABI "
            f"{wanted[1]}); {INSTALL}, which fits"
        )
    if library := re.search(r"(lib\S+\.so[.\d]*): cannot open shared object file", text):
        return f"pyverbs needs {library[1]}, which is not installed; install libibverbs1 and librdmacm1"
    return f"pyverbs cannot be imported ({type(error).__name__}: {text}); {INSTALL}"


def _constants() -> dict[str, int]:
    try:
        module = importlib.import_module("pyverbs.libibverbs_enums")
    except ModuleNotFoundError:
        module = importlib.import_module("pyverbs.enums")
    return constants_of(module)


def constants_of(module: ModuleType | SimpleNamespace) -> dict[str, int]:
    """Constants by name, whether they are in the module or in enumerations of it."""
    flat: dict[str, int] = {}
    for name, value in vars(module).items():
        if isinstance(value, type) and issubclass(value, enum.Enum):
            flat.update({member: int(item.value) for member, item in value.__members__.items()})
        elif name.startswith("IBV_") and isinstance(value, int):
            flat[name] = int(value)
    return flat
