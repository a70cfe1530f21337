"""What every test gets, the watch over leaks, and what some ask for."""

import gc
import importlib.util
import signal
from collections.abc import Generator

import pytest

from tests.leaks import no_leaks
from tests.timeouts import timeout_s

__all__ = ["no_leaks"]

# A shell has what it starts in the background ignore SIGINT; then no test of Ctrl-C would ever end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the objects of all modules out of garbage collections, which take 5 s meanwhile and a second each later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


if importlib.util.find_spec("torch") is None:  # make test-python and its like
    collect_ignore = ["cluster", "loop"]  # whose conftests need it
    NO_TORCH = ("No module named 'torch'", "needs the package 'torch'")

    def skipped_without_torch(report: pytest.CollectReport | pytest.TestReport, where: str) -> None:
        """Skip what failed for want of torch; test_start and test_wheel see to it that fits in process need none."""
        if report.failed and any(words in report.longreprtext for words in NO_TORCH):
            report.outcome, report.longrepr = "skipped", (where, 0, "Skipped: needs torch")

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        collector: pytest.Collector,
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Skip a file or folder whose imports need torch."""
        report = yield
        skipped_without_torch(report, str(collector.path))
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Skip a test that needs torch."""
        report = yield
        skipped_without_torch(report, str(item.path))
        return report


@pytest.fixture
def patient_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C a fit takes the time that it needs to certify its model, however slow the machine is."""
    from chicle_elastic.cluster.local import driver
    from chicle_elastic.runtime import in_process

    monkeypatch.setattr(in_process, "CERTIFY_WITHIN_S", float("inf"))
    monkeypatch.setattr(driver, "STOP_TIMEOUT_S", timeout_s(30))
