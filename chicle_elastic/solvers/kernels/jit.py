"""How kernels are compiled: lazily, without the GIL, cached on disk where this user may write.

numba is imported when the first kernel module is, that is in the first `fit`, not by `import estimators`.
"""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

from chicle_elastic.settings import Settings

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be reordered (vectorised dot products), but NaN and infinities keep their meaning.
FASTMATH = {"reassoc", "contract", "arcp", "nsz"}

INLINE = {"forceinline": True}
"""Options of the functions of a row. LLVM is told to inline them: a call would pass all fields of all tables, which
takes longer than a row. (numba's own `inline="always"` lost stores through arrays made from addresses.)"""


def kernel(function: Function) -> Function:
    """Compile `function` on its first call; machine code is cached under `CHICLE_CACHE_DIR`.

    numba picks the folder of a cache when a function is decorated, from one global; it is set for just that moment, so
    that numba code of others keeps its own place.
    """
    previous = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_cache_dir())
    try:
        compiled = numba.njit(
            function, nogil=True, cache=True, fastmath=FASTMATH, error_model="numpy", boundscheck=False
        )
    finally:
        numba.config.CACHE_DIR = previous
    return compiled


@functools.cache
def _cache_dir() -> Path:
    """A folder for kernels compiled from exactly these sources.

    numba compares the time and size of the file that a kernel stands in, and of no other: it would take old machine
    code after a change in a file that the kernel's file imports, or after an upgrade (wheels carry a fixed time).
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    folder = Settings.from_environment().kernel_cache_dir() / digest[:16]
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
