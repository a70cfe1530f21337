"""Answers of a node to orders of the scheduler: those that come together are said together.

Every event gets a place in the log, travels to all agents and is folded by each, which takes the same time whether it
speaks of one chunk or of a hundred. A boundary waits for two answers per chunk that moves: that the copy is there, and
that the other one is given back.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.scheduling.events import Acknowledgement, Event


class Acknowledgements:
    """Collects answers until the loop has nothing else to do at this moment. Everything is called in the loop."""

    def __init__(self, loop: EventLoop, say: Callable[[Event], None]) -> None:
        self._loop, self._say_now = loop, say
        self._waiting: list[Event] = []
        self._kept: list[Event] = []

    @property
    def are_said(self) -> bool:
        """Whether nothing waits to be said."""
        return not (self._waiting or self._kept)

    def say(self, answer: Event) -> None:
        """Say it soon."""
        if not self._waiting:
            self._loop.soon(self._say_all)
        self._waiting.append(answer)

    def keep(self, answer: Event) -> None:
        """Say it when those that are to come have come, too (`release`)."""
        self._kept.append(answer)

    def release(self) -> None:
        """Say soon what was kept."""
        kept, self._kept = self._kept, []
        for answer in kept:
            self.say(answer)

    def _say_all(self) -> None:
        answers, self._waiting = self._waiting, []
        for _, group in itertools.groupby(answers, _what_is_shared):
            self._say_now(_as_one(list(group)))


def _what_is_shared(answer: Event) -> object:
    """Equal for answers that one event can say: those that differ in nothing but their chunks."""
    return dataclasses.replace(answer, chunks=()) if isinstance(answer, Acknowledgement) else object()


def _as_one(answers: list[Any]) -> Event:
    event: Event = answers[0]
    if len(answers) > 1:
        event = dataclasses.replace(answers[0], chunks=tuple(chunk for answer in answers for chunk in answer.chunks))
    return event
