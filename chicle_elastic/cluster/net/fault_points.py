"""Named fault points of the protocol, so that a test can inject a fault at exactly one of them.

`hit("copy.before_commit", chunk=7)` reads one global and does nothing, unless `enable` was called: the tests do so
in a process that is to fail. All names are listed here, so that a fault script with an unknown name is refused instead
of never injecting its fault.
"""

from collections.abc import Callable
from typing import Any

FAULT_POINTS = frozenset(
    {
        "task.spawned",
        "memory.before_taken",
        "task.ready",
        "join.before_announce",
        "join.announced",
        "log.appended",
        "lead.before_claim",
        "lead.claimed",
        "round.before_inventory",
        "round.before_rendezvous",
        "round.formed",
        "rows.before_told",
        "rows.before_fetch",
        "rows.arrived",
        "copy.before_fetch",
        "copy.before_commit",
        "copy.committed",
        "commit.done",
        "free.before",
        "free.done",
        "load.before_commit",
        "iteration.before_start",
        "iteration.ended",
        "notice.received",
        "leave.before_exit",
        "link.heard",
    }
)

Hook = Callable[[str, dict[str, Any]], None]

_hook: Hook | None = None


def hit(step: str, **where: Any) -> None:
    """Report that this process has reached the fault point `step`; `where` tells which chunk, round and so on."""
    if _hook is not None:
        _hook(step, where)


def enable(hook: Hook | None) -> None:
    """Call `hook(step, where)` at every fault point from now on, in the thread that reaches it; None ends that."""
    global _hook
    _hook = hook
