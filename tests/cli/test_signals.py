"""Signals end a command in order: cleaned up once, and not interrupted while cleaning."""

import contextlib
import os
import signal
import threading

import pytest

from chicle_elastic.cli.signals import DEAF_S, orderly_end
from chicle_elastic.testing.virtual_clock import VirtualClock


def test_ctrl_c_interrupts_and_a_second_one_does_not_disturb_the_cleanup() -> None:
    """Impatient people press it twice."""
    cleaned = []

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("the first one must interrupt")
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt), orderly_end():
        work()
    assert cleaned


def test_a_signal_that_got_lost_can_be_sent_again() -> None:
    """An exception in a finaliser is dropped by Python; a later signal ends the command all the same."""
    clock = VirtualClock()

    def work() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        clock.advance(DEAF_S / 2)
        os.kill(os.getpid(), signal.SIGINT)
        clock.advance(DEAF_S)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the last one must interrupt")

    with pytest.raises(KeyboardInterrupt), orderly_end(clock):
        work()
    assert clock.now() == 1.5 * DEAF_S


def test_sigterm_ends_with_143() -> None:
    """128 + 15, as a shell reports it."""
    with pytest.raises(SystemExit) as caught, orderly_end():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 143


def test_the_handlers_from_before_are_back_afterwards() -> None:
    """Whether it ended well or not."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with orderly_end():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    with pytest.raises(KeyboardInterrupt), orderly_end():
        os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_sigint_ignored_from_outside_stays_ignored() -> None:
    """A shell starts jobs in the background so."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with orderly_end():
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_elsewhere_than_in_the_main_thread_nothing_changes() -> None:
    """Python allows handlers there only; the command still runs."""
    ran = []

    def work() -> None:
        with orderly_end():
            ran.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ran == [True]
