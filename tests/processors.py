"""Run the tests of solvers and estimators under each OpenBLAS kernel that this processor can run.

    python -m tests.processors [--short] [arguments of pytest]

OpenBLAS and numba choose code by the processor, so every processor rounds in its own way. OPENBLAS_CORETYPE and
NUMBA_CPU_NAME make this processor round as older ones do. Each kernel gets a process of its own without any inherited
OPENBLAS_*. That process, and each worker of pytest-xdist, checks that NumPy and SciPy got the kernel: this module is
the plugin of pytest that does so. A kernel that is left out is named with its reason: it cannot run here, or, with
--short, it is the one that OpenBLAS takes in this environment, with which `make test` runs the same tests.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

SOLVERS, ESTIMATORS = "tests/solvers", "tests/estimators"
EXPECTED = "CHICLE_TEST_PROCESSOR"
"""The environment variable with the architecture that has to be found, or the processor that numba has to take."""

KERNELS = {
    "Prescott": {"pni"},
    "Nehalem": {"sse4_2"},
    "Sandybridge": {"avx"},
    "Haswell": {"avx2", "fma"},
    "Zen": {"avx2", "fma"},
    "SkylakeX": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "Cooperlake": {"avx512f", "avx512_bf16"},
    "SapphireRapids": {"avx512_bf16", "amx_bf16"},
}
"""The flags of /proc/cpuinfo without which a kernel may end its process with an illegal instruction."""

SHORT = ("Nehalem", "Haswell", "SkylakeX")
OTHER_NAMES = {"Katmai": "Prescott"}
"""A build without kernels of their own for processors before Prescott calls Prescott's by the oldest of their names."""


def architectures() -> list[str]:
    """Return the architectures that the OpenBLAS libraries of NumPy and SciPy report, each once."""
    import numpy  # noqa: F401
    import scipy.linalg  # noqa: F401
    import threadpoolctl

    found = [library for library in threadpoolctl.threadpool_info() if library["internal_api"] == "openblas"]
    return sorted({OTHER_NAMES.get(library["architecture"], library["architecture"]) for library in found})


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run tests on any code but the expected one."""
    import numba

    expected = os.environ[EXPECTED]
    found = [numba.config.CPU_NAME] if "NUMBA_CPU_NAME" in os.environ else architectures()
    if found != [expected]:
        raise pytest.UsageError(f"tests of {expected} got {', '.join(found) or 'no OpenBLAS'}")


def kernels_found(environ: dict[str, str]) -> list[str]:
    """Return the architectures that a process with this environment finds."""
    program = "import json; from tests.processors import architectures; print(json.dumps(architectures()))"
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, env=environ, check=True, capture_output=True).stdout
    return list(json.loads(found))


def why_skipped(kernel: str, *, is_short: bool) -> str:
    """Return the reason that a kernel is left out; "" if it is not."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text(encoding="utf-8").split()) if cpuinfo.exists() else set()
    if missing := KERNELS[kernel] - flags:
        return f"the processor lacks {', '.join(sorted(missing))}"
    if is_short and kernels_found(dict(os.environ)) == [kernel]:
        return "make test runs the same tests with it here"
    found = kernels_found(environment(OPENBLAS_CORETYPE=kernel))
    return "" if found == [kernel] else f"not in this build of OpenBLAS, which reports {', '.join(found) or 'nothing'}"


def environment(**variables: str) -> dict[str, str]:
    """Return the environment without OpenBLAS's variables, with these instead."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS_", "NUMBA_"))}
    return inherited | variables


def run(tests: list[str], **variables: str) -> tuple[bool, float]:
    """Run pytest in a process of its own with these variables; return whether it passed, and its seconds."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-p", "tests.processors", "--ignore-glob", "*cluster.py", *tests]
    return subprocess.run(command, env=environment(**variables)).returncode == 0, time.monotonic() - began


def main() -> int:
    """Run the tests with each kernel; return 1 if any of them failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--short",
        action="store_true",
        help=f"only solvers, and of {', '.join(SHORT)} those that make test does not run",
    )
    arguments, others = parser.parse_known_args()
    tests = [*others, *([SOLVERS] if arguments.short else [SOLVERS, ESTIMATORS])]
    report, has_failed = [], False

    def add(name: str, is_passed: bool, seconds: float) -> None:
        nonlocal has_failed
        has_failed |= not is_passed
        report.append(f"{name}: {'passed' if is_passed else 'FAILED'} in {seconds:.0f} s")

    for kernel in SHORT if arguments.short else KERNELS:
        if reason := why_skipped(kernel, is_short=arguments.short):
            report.append(f"{kernel}: skipped, {reason}")
            continue
        print(f"OpenBLAS kernel {kernel}:", flush=True)
        add(kernel, *run(tests, OPENBLAS_CORETYPE=kernel, **{EXPECTED: kernel}))
    if not arguments.short:
        print("numba's code for any x86-64:", flush=True)
        with tempfile.TemporaryDirectory() as cache:
            add("numba generic", *run(tests, NUMBA_CPU_NAME="generic", CHICLE_CACHE_DIR=cache, **{EXPECTED: "generic"}))
    print(*report, sep="\n")
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
