"""Handlers that hold the event loop: which ones, and for how long.

While a handler runs, the agent hears no peer, sends nothing and answers no task. So each should end within
`SLOW_S`; what does not is told of by name, each name at most once in `REST_S`, with what was left out meanwhile.
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SLOW_S = 0.05
ALARMING_S = 0.5
"""From this duration on a line is a warning: a quarter of the silence after which an agent is taken for lost."""
REST_S = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowHandler:
    """What there is to tell of a handler."""

    handler: str
    duration_s: float  # how long it held the loop this time
    num_untold: int  # how often it did so since it was told of last
    longest_s: float  # the longest time among these and this one


@dataclass(slots=True)
class _Record:
    quiet_until_s: float = 0.0
    num_untold: int = 0
    longest_s: float = 0.0


class Watchdog:
    """Judges durations. Everything is called in the loop."""

    def __init__(self, tell: Callable[[SlowHandler], object] | None = None) -> None:
        self._tell = tell
        self._records: dict[str, _Record] = {}

    def ran(self, call: Callable[[], object], began_s: float, ended_s: float) -> None:
        """A handler has ended."""
        duration_s = ended_s - began_s
        if duration_s <= SLOW_S:
            return
        name = name_of(call)
        record = self._records.setdefault(name, _Record())
        record.longest_s = max(record.longest_s, duration_s)
        if ended_s < record.quiet_until_s:
            record.num_untold += 1
            return
        slow = SlowHandler(
            handler=name, duration_s=duration_s, num_untold=record.num_untold, longest_s=record.longest_s
        )
        self._records[name] = _Record(quiet_until_s=ended_s + REST_S)
        logger.log(
            logging.WARNING if slow.longest_s >= ALARMING_S else logging.INFO,
            "%s held the event loop for %.0f ms%s",
            name,
            1e3 * duration_s,
            f", and {slow.num_untold} times before for up to {1e3 * slow.longest_s:.0f} ms" if slow.num_untold else "",
        )
        if self._tell is not None:
            self._tell(slow)


def name_of(call: Any) -> str:
    """The name of a handler; of a `functools.partial`, with those of its arguments that are functions themselves."""
    if isinstance(call, functools.partial):
        inner = [name_of(argument) for argument in call.args if callable(argument)]
        return f"{name_of(call.func)}({', '.join(inner)})" if inner else name_of(call.func)
    return getattr(call, "__qualname__", type(call).__qualname__)
