"""`python -m tests.rdma.vm [COMMAND ...]`: runs the tests of RDMA, or another command, in a machine with Soft-RoCE.

Without a command, or with one that begins with a dash or with "tests/": pytest in the guest. Where no machine can be
had, it says why and ends with 0: everything else of the project works and is tested without one.
"""

import argparse
import sys
from pathlib import Path

from tests.rdma.vm.image import NoMachineError, ensure_image
from tests.rdma.vm.machine import Machine

ROOT = Path(__file__).parents[3]
# Emulated code is 20 times as slow as this machine, which has other things to do as well.
TIMEOUT_FACTOR = "10"


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.rdma.vm", description=__doc__)
    parser.add_argument("--icount", action="store_true", help="let the guest's clock count instructions")
    parser.add_argument("--memory", type=int, default=1536, metavar="MIB", help="memory of the guest")
    parser.add_argument("--processors", type=int, default=1, metavar="N", help="processors of the guest")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="longest time for all of it")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="by default pytest on tests/rdma")
    arguments = parser.parse_args()
    try:
        image = ensure_image()
    except NoMachineError as error:
        print(f"skipped: no machine for the tests of RDMA: {error}")
        return 0
    machine = Machine(
        image=image,
        memory_mib=arguments.memory,
        timeout_s=arguments.timeout,
        counts_instructions=arguments.icount,
        num_processors=arguments.processors,
    )
    command = [word for word in arguments.command if word != "--"] or ["tests/rdma"]
    if command[0].startswith(("tests/", "-")):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *command]
    elif command[0] == "python":
        command[0] = sys.executable
    return machine.run(command, folder=ROOT, environ={"CHICLE_TEST_TIMEOUT_FACTOR": TIMEOUT_FACTOR})


if __name__ == "__main__":
    sys.exit(main())
