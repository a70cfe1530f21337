"""How kernels are compiled: lazily, without the GIL, cached on disk where this user may write.

numba is imported when the first kernel module is, that is in the first `fit`, not by `import estimators`. Ctrl-C cuts
off neither its import nor a compilation (`uninterrupted`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numba
from numba.core import event as numba_event

from chicle_elastic.clock import Clock, MonotonicClock
from chicle_elastic.solvers.kernels.disk_cache import cache_of
from chicle_elastic.uninterrupted import uninterrupted
from chicle_elastic.waits import PATIENCE_S, Wait

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be reordered (vectorised dot products), but NaN and infinities keep their meaning.
FASTMATH = {"reassoc", "contract", "arcp", "nsz"}

LEAN = {"no_cfunc_wrapper": True, "_nrt": False}
"""Options of all: no entry for C, and no memory of their own, so that no reference to an array has to be counted."""
INLINE = {"forceinline": True, **LEAN}
"""Options of the functions of a row, which LLVM is told to inline. Each takes 15 ms to compile, however short it is."""

WORDS = "compiling kernels for this processor (once for this kind of data; a second or two)"


def kernel(function: Function) -> Function:
    """Compile `function` on its first call; machine code is cached under `CHICLE_CACHE_DIR`."""
    compiled = numba.njit(function, nogil=True, fastmath=FASTMATH, error_model="numpy", boundscheck=False, **LEAN)
    if (cache := cache_of(function)) is not None:
        compiled._cache = cache
    # numba calls this by its name for types that it has not seen yet: it loads machine code, or makes it.
    compile_for = compiled._compile_for_args
    compiled._compile_for_args = lambda *args, **named: uninterrupted(partial(compile_for, *args, **named))
    return compiled


class CompileWatch(numba_event.Listener):
    """Explains the wait for kernels that are compiled, after `patience_s` without a word.

    numba tells it of compilations that found nothing in the cache; they run one at a time, under one lock. Those that
    follow each other are one wait, and so is what came before the first one: the import of numba.
    """

    def __init__(self, *, patience_s: float = PATIENCE_S, clock: Clock | None = None) -> None:
        self._patience_s = patience_s
        self._clock = clock or MonotonicClock()
        self._depth = 0
        self._wait: Wait | None = None
        self._since_s = self._ended_s = self._clock.now()

    def on_start(self, event: numba_event.Event) -> None:
        """A function begins to be compiled, perhaps for another one that is."""
        if not _is_ours(event):
            return
        self._depth += 1
        if self._depth > 1:
            return
        now_s = self._clock.now()
        if now_s - self._ended_s > self._patience_s:
            self._since_s, self._wait = now_s, None
        if self._wait is None or not self._wait.is_told:
            self._wait = Wait(WORDS, after_s=self._patience_s - (now_s - self._since_s)).start()

    def on_end(self, event: numba_event.Event) -> None:
        """It is compiled, or cannot be."""
        if not _is_ours(event):
            return
        self._depth -= 1
        if self._depth == 0 and self._wait is not None:
            self._wait.stop()
            self._ended_s = self._clock.now()


def _is_ours(event: numba_event.Event) -> bool:
    return str(event.data["dispatcher"].py_func.__module__).startswith(__package__)


numba_event.register("numba:compile", CompileWatch())
