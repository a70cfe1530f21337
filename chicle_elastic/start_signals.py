"""Signals in the first seconds of a command, before it can do anything in order.

A command of the cluster imports for seconds. A signal that arrives meanwhile must end it: as the first process of
a container it has no default for SIGTERM, and the kernel drops a signal that it does not handle. So an entry point
calls `install` before it imports anything else, and what runs later installs handlers of its own and calls `hand_over`.
Nothing is there yet that would have to be cleaned up, so the handler ends the process at once.

Python itself takes some 50 ms until it runs the entry point. `env --block-signal=TERM python -m ...` covers them: a
blocked signal waits until `install` unblocks it.
"""

import ctypes
import os
import signal
from collections.abc import Mapping, Sequence
from types import FrameType

LEAVE_OPTION = "--leave-exit-code"
PR_SET_PDEATHSIG = 1

_has_handed_over = False


def install(program: str, exit_codes: Mapping[signal.Signals, int]) -> None:
    """End this process at each of these signals, with this exit code, until `hand_over`; SIGUSR2 does nothing."""
    global _has_handed_over
    _has_handed_over = False

    def end(number: int, frame: FrameType | None) -> None:
        if _has_handed_over:
            return
        name = signal.Signals(number).name
        os.write(2, f"{program}: ended by {name} while it was starting\n".encode())
        os._exit(exit_codes[signal.Signals(number)])

    for number in exit_codes:
        signal.signal(number, end)
    signal.signal(signal.SIGUSR2, lambda number, frame: None)  # asks an agent for its state, and would end this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, exit_codes)


def hand_over() -> None:
    """From now on the handlers of `install` do nothing, where no others have replaced them."""
    global _has_handed_over
    _has_handed_over = True


def die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(1)


def of_node(argv: Sequence[str]) -> dict[signal.Signals, int]:
    """The exit codes of a node by its command line: a notice is one that the node has left on.

    Args:
        argv: Not parsed yet; a value that is no exit code counts as 0 here, and the parser will refuse it.
    """
    code = 0
    for index, word in enumerate(argv):
        name, _, value = word.partition("=")
        if name == LEAVE_OPTION:
            text = value or (argv[index + 1] if index + 1 < len(argv) else "")
            code = int(text) if text.isdecimal() and int(text) < 256 else 0
    return {signal.SIGTERM: code, signal.SIGUSR1: code, signal.SIGINT: 128 + signal.SIGINT}
