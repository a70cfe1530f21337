"""Named steps of the protocol, so that a fault can be made to strike at exactly one of them.

`reach("copy.before_commit", chunk=7)` costs a look at a global and does nothing, unless somebody called `enable`:
`testing` does, in a process that was told to fail. Names are listed here, so that a script with a wrong one is refused
instead of never striking.
"""

from collections.abc import Callable
from typing import Any

from chicle_elastic.errors import UsageError

STEPS = frozenset(
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
    }
)

_SEVERAL = {"ChunkLoaded": "ChunksLoaded", "ChunkCopied": "ChunksCopied", "ChunkFreed": "ChunksFreed"}

Hook = Callable[[str, dict[str, Any]], None]

_hook: Hook | None = None


def reach(step: str, **where: Any) -> None:
    """Say that this process is at `step` now; `where` tells which chunk, round and so on."""
    if _hook is not None:
        _hook(step, where)


def event_name(event: object) -> str:
    """Name of an event for a script: answers about one chunk and about several go by the same."""
    name = type(event).__name__
    return _SEVERAL.get(name, name)


def enable(hook: Hook | None) -> None:
    """Call `hook(step, where)` at every step from now on, in the thread that reaches it; None ends that."""
    global _hook
    _hook = hook


def require_known(step: str) -> None:
    """Refuse the name of a step that no process ever reaches.

    Raises:
        UsageError: With the names that there are.
    """
    if step not in STEPS:
        raise UsageError(f"there is no step {step!r}; the steps are {', '.join(sorted(STEPS))}")
