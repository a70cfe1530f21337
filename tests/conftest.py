"""What every test gets, the watch over leaks, and what some ask for."""

import signal

import pytest

from tests.leaks import no_leaks
from tests.timeouts import timeout_s

__all__ = ["no_leaks"]

# A shell has what it starts in the background ignore SIGINT; then no test of Ctrl-C would ever end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def patient_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C a fit takes the time that it needs to certify its model, however slow the machine is."""
    from chicle_elastic.cluster.local import driver
    from chicle_elastic.runtime import in_process

    monkeypatch.setattr(in_process, "CERTIFY_WITHIN_S", float("inf"))
    monkeypatch.setattr(driver, "STOP_TIMEOUT_S", timeout_s(30))
