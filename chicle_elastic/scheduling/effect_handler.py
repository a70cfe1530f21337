"""Lets a shell of the scheduler perform each effect by the method that is named after it.

    for effect in scheduler.handle(event, now=now):
        dispatch(effect, shell)

A shell (the in-process runtime, the agent of a node, the simulators) has a method for each effect; a test compares the
methods of all shells with `METHODS`.
"""

import re
from typing import Any, get_args

from chicle_elastic.scheduling.effects import Effect

METHODS = {kind: re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() for kind in get_args(Effect)}
"""Name of the method by class of the effect: `CopyChunk` is for `copy_chunk`."""


def dispatch(effect: Effect, shell: Any) -> None:
    """Let the shell perform an effect."""
    getattr(shell, METHODS[type(effect)])(effect)
