"""One thread of BLAS while a job computes that makes many small calls of it.

OpenBLAS splits a call of a few microseconds over all cores, and its threads wait for each other spinning. Alone on two
cores such fits took ten times as long; beside another job whose process kept one of the threads waiting, fifty times.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator

import scipy.linalg.blas  # noqa: F401 - SciPy brings a BLAS of its own, which has to be loaded to be found
from threadpoolctl import LibController, ThreadpoolController

from chicle_elastic.solvers.base import Trainer

_lock = threading.Lock()
_before: list[int] = []  # threads of each library outside of any job; meaningful while there is a job
_num_jobs = 0


def blas_threads_of(trainer: Trainer) -> contextlib.AbstractContextManager[None]:
    """Give BLAS one thread meanwhile, unless the trainer wants more; then leave it alone."""
    return contextlib.nullcontext() if trainer.uses_blas_threads else one_blas_thread()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Give BLAS one thread meanwhile. Most libraries have one number of threads per process. So the jobs of a process
    are counted: the last one to end gives the threads back. A library that is built on OpenMP has a number per thread
    of the caller."""
    global _num_jobs
    with _lock:
        own = [library.get_num_threads() for library in _libraries()]
        if _num_jobs == 0:
            _before[:] = own
        _num_jobs += 1
        for library in _libraries():
            _set(library, 1)
    try:
        yield
    finally:
        with _lock:
            _num_jobs -= 1
            for library, of_thread, of_process in zip(_libraries(), own, _before, strict=True):
                if getattr(library, "threading_layer", None) == "openmp":
                    _set(library, of_thread)
                elif _num_jobs == 0:
                    _set(library, of_process)


@functools.cache
def _libraries() -> list[LibController]:
    """BLAS of NumPy and SciPy; to look for them takes milliseconds."""
    found: list[LibController] = ThreadpoolController().select(user_api="blas").lib_controllers
    return found


def _set(library: LibController, num_threads: int) -> None:
    """Set a number of threads from any thread: threadpoolctl 3.8 ignores all but the first one that did."""
    give_up_control = getattr(library, "clear_controlling_thread", lambda force: None)
    give_up_control(force=True)
    library.set_num_threads(num_threads)
    give_up_control(force=True)
