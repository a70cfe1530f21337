"""How long tests wait before they call something stuck: the one place to stretch that on a slow machine."""

import os


def timeout_s(seconds: float) -> float:
    """`seconds`, times `CHICLE_TEST_TIMEOUT_FACTOR` (default 1).

    For time-outs that a passing test never reaches; never for a figure that a test asserts.
    """
    return seconds * float(os.environ.get("CHICLE_TEST_TIMEOUT_FACTOR", "1"))
