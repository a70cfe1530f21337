"""Ctrl-C leaves behind what must not be cut in two: an import that cannot be repeated, a compilation."""

import _thread
import signal
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from chicle_elastic.uninterrupted import import_whole, uninterrupted
from tests.programs import run_python
from tests.timeouts import timeout_s

SLOW_MODULE = """
import signal, threading
import waiting
signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # Ctrl-C while this is imported
waiting.go_on.wait()
value = 7
"""
COMPILE = """
import signal, threading
import numpy as np
from numba.core import event
from chicle_elastic.solvers.kernels.jit import kernel

class Interrupt(event.Listener):
    def on_start(self, event):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    def on_end(self, event):
        pass

def total(values):
    found = 0.0
    for value in values:
        found += value
    return found

total = kernel(total)
listener = Interrupt()
event.register("numba:compile", listener)
try:
    total(np.ones(3))
except KeyboardInterrupt:
    print("interrupted")
event.unregister("numba:compile", listener)
print(total(np.ones(3)))
"""


def waits(frame: types.FrameType) -> bool:
    """Say whether `uninterrupted` is in `Condition.wait` of `Event.wait`."""
    names = []
    while frame is not None and len(names) < 3:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names == ["wait", "wait", "uninterrupted"]


@pytest.mark.parametrize("is_before_the_wait", [False, True])
def test_ctrl_c_ends_the_wait_and_not_the_work(is_before_the_wait: bool) -> None:
    """The work is done later. A real SIGINT, or one that has come when the wait begins and so does not end it."""
    go_on, is_done = threading.Event(), threading.Event()

    def work() -> None:
        main = threading.main_thread().ident
        if is_before_the_wait:
            while not waits(sys._current_frames()[main]):
                time.sleep(0.001)
            _thread.interrupt_main()  # as the handler of a signal, without the signal that would end a wait
        else:
            signal.pthread_kill(main, signal.SIGINT)
        go_on.wait(timeout_s(10))
        is_done.set()

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(work)
    assert not is_done.is_set()
    go_on.set()
    assert is_done.wait(timeout_s(10))


def test_what_work_returns_and_raises_comes_back() -> None:
    """As if it had been called; in another thread it is."""
    assert uninterrupted(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        uninterrupted(lambda: 1 / 0)
    idents = []
    thread = threading.Thread(target=lambda: idents.append(uninterrupted(threading.get_ident)))
    thread.start()
    thread.join()
    assert idents == [thread.ident]


def test_a_program_that_does_not_raise_at_ctrl_c_has_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing could be cut."""
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)
    assert uninterrupted(threading.get_ident) == threading.get_ident()


def test_an_import_that_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one who needs the module waits for the rest of it, and it is imported once."""
    (tmp_path / "waiting.py").write_text("import threading\ngo_on = threading.Event()\n")
    (tmp_path / "slow_module.py").write_text(SLOW_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        import_whole("slow_module")
    sys.modules["waiting"].go_on.set()
    assert import_whole("slow_module").value == 7
    assert import_whole("slow_module") is sys.modules["slow_module"]
    with pytest.raises(ImportError, match="no_such_module"):
        import_whole("no_such_module")
    del sys.modules["slow_module"], sys.modules["waiting"]


def test_a_compilation_that_was_interrupted_is_there_the_next_time(tmp_path: Path) -> None:
    """In a process of its own; the kernel is in a file, as numba's cache needs it."""
    script = tmp_path / "compile.py"
    script.write_text(COMPILE)
    run = run_python(
        str(script),
        environ={"CHICLE_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin"},
    )
    assert run.stdout.split() == ["interrupted", "3.0"]
