"""The line about kernels that are compiled: one for each wait, none where there is none."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chicle_elastic.solvers import kernel_cache as cache
from chicle_elastic.solvers.kernels.jit import WORDS, CompileWatch
from chicle_elastic.testing.virtual_clock import VirtualClock
from tests.programs import run_python
from tests.timeouts import comes

OURS = "chicle_elastic.solvers.kernels.descent"


def an_event(module: str | None = OURS) -> Any:
    """What numba says of the compilation of a function of a module."""
    return SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=SimpleNamespace(__module__=module))})


def is_told_within(caplog: pytest.LogCaptureFixture, num_lines: int) -> bool:
    """Whether so many lines have come, after a moment."""
    comes(lambda: len(caplog.messages) >= num_lines, 10, poll_s=0.001)
    return caplog.messages == [WORDS] * num_lines


@pytest.fixture(autouse=True)
def lines_are_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the environment of the tests says."""
    monkeypatch.delenv("CHICLE_WAITS", raising=False)
    caplog.set_level("INFO", logger="chicle")


def test_kernels_that_follow_each_other_are_one_wait(caplog: pytest.LogCaptureFixture) -> None:
    """Also where one is compiled for another one; the time before the first one counts."""
    clock = VirtualClock()
    watch = CompileWatch(patience_s=100.0, clock=clock)
    clock.advance(60.0)
    watch.on_start(an_event())
    clock.advance(50.0)
    watch.on_start(an_event())
    watch.on_end(an_event())
    watch.on_end(an_event())
    assert not caplog.messages
    for _ in range(3):
        watch.on_start(an_event())
        assert is_told_within(caplog, 1)
        clock.advance(50.0)
        watch.on_end(an_event())
    assert caplog.messages == [WORDS]


@pytest.mark.parametrize(("patience_s", "is_told"), [(0.02, True), (100.0, False)])
def test_a_wait_much_later_is_one_of_its_own(
    caplog: pytest.LogCaptureFixture, patience_s: float, is_told: bool
) -> None:
    """The first fit on sparse data, say, after many on dense data; what was compiled long ago is no part of it."""
    clock = VirtualClock()
    watch = CompileWatch(patience_s=patience_s, clock=clock)
    for num_lines in (1, 2):
        clock.advance(101.0)
        watch.on_start(an_event())
        assert not is_told or is_told_within(caplog, num_lines)
        watch.on_end(an_event())
    assert len(caplog.messages) == (2 if is_told else 0)


@pytest.mark.parametrize("module", ["mine", None])
def test_what_others_compile_is_not_told(caplog: pytest.LogCaptureFixture, module: str | None) -> None:
    """The user knows that, or has another library to thank."""
    watch = CompileWatch(patience_s=0.0)
    watch.on_start(an_event(module))
    assert watch._wait is None
    watch.on_end(an_event(module))
    watch.on_start(an_event())
    assert is_told_within(caplog, 1)
    watch.on_end(an_event())


def test_a_cold_cache_is_told_and_a_warm_one_is_not(tmp_path: Path) -> None:
    """By numba's own events, with no patience; and whoever asks without numba sees the same."""
    program = """
import sys
from chicle_elastic.testing.virtual_clock import VirtualClock
from chicle_elastic.solvers import kernel_cache as cache
print(cache.is_cold(), "numba" in sys.modules)
import numpy as np
from chicle_elastic.solvers.kernels import jit, lenet
from numba.core import event
event.register("numba:compile", jit.CompileWatch(patience_s=0.0))
lenet.step(*np.ones((3, 8), np.float32), np.float32(1), np.float32(1))
"""
    cold, warm = (run_python("-c", program, CHICLE_CACHE_DIR=str(tmp_path), CHICLE_WAITS="on") for _ in range(2))
    assert cold.stdout == "True False\n"
    assert set(cold.stderr.splitlines()) == {f"chicle: {WORDS}"}
    assert (warm.stdout, warm.stderr) == ("False False\n", "")
    assert cache.cache_dir().is_dir()
