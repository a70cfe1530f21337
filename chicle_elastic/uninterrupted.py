"""Work that Ctrl-C must not cut in two: a thread does it, and whoever waits for it is free at once.

torch and numba cannot be imported again in a process where Ctrl-C has cut off their import, and numba whose compilation
was cut off may fail at the next one. Both take seconds, and parts of them answer no signal at all. So a thread does
such work. Ctrl-C ends the wait and not the work; the next one who needs it finds it done, or waits for the rest.
It is done in a folder that exists, because both libraries ask for the working directory.
"""

import contextvars
import importlib
import signal
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from chicle_elastic.surroundings import in_some_folder

Result = TypeVar("Result")

# Ctrl-C that comes just before a wait begins does not end the wait, and Python raises KeyboardInterrupt after it only.
LOOK_S = 0.5


def uninterrupted(work: Callable[[], Result]) -> Result:
    """What `work` returns or raises; Ctrl-C leaves it behind. Raises KeyboardInterrupt for Ctrl-C while it waited.

    A thread is used only where Ctrl-C would raise an exception in the middle: in the main thread, and where Python
    handles the signal. It is no daemon: at the end of the program Python waits for it, because machine code that is
    made while the process ends crashes it.
    """
    work = in_some_folder()(work)
    if threading.current_thread() is not threading.main_thread() or not callable(signal.getsignal(signal.SIGINT)):
        return work()
    results: list[Result] = []
    errors: list[BaseException] = []
    is_done = threading.Event()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            results.append(context.run(work))
        except BaseException as error:  # the caller gets it
            errors.append(error)
        finally:
            is_done.set()

    threading.Thread(target=run, name="chicle-uninterrupted").start()
    while not is_done.wait(LOOK_S):
        pass
    if errors:
        raise errors.pop()
    return results.pop()


def import_whole(name: str) -> ModuleType:
    """Import a module that cannot be imported twice. Raises ImportError when it is not there, KeyboardInterrupt for
    Ctrl-C, while the import goes on."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return module
    return uninterrupted(lambda: importlib.import_module(name))
