"""How long tests wait before they call something stuck: the one place to stretch that on a slow machine."""

import os
import time
from collections.abc import Callable

POLL_S = 0.01


def timeout_s(seconds: float) -> float:
    """`seconds`, times `CHICLE_TEST_TIMEOUT_FACTOR` (default 1).

    For time-outs that a passing test never reaches; never for a figure that a test asserts.
    """
    return seconds * float(os.environ.get("CHICLE_TEST_TIMEOUT_FACTOR", "1"))


def comes(is_so: Callable[[], object], seconds: float = 60.0, *, poll_s: float = POLL_S) -> bool:
    """Wait for what another process or thread brings about; return whether it came within `timeout_s(seconds)`."""
    end_s = time.monotonic() + timeout_s(seconds)
    while not is_so():
        if time.monotonic() > end_s:
            return False
        time.sleep(poll_s)
    return True
