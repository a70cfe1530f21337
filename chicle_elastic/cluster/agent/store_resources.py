"""An agent whose resource manager serves the rendezvous store: requests and offers go through it (`resource_board`)."""

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from chicle_elastic.cluster.agent.node import Node
from chicle_elastic.cluster.agent.node_agent import NOTICES, signals_call
from chicle_elastic.cluster.agent.process_agent import ProcessAgent
from chicle_elastic.cluster.agent.task_end import TaskEnd
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.worker_lanes import Lane
from chicle_elastic.cluster.rendezvous.resource_board import Finished, NodeRequest, ResourceBoard
from chicle_elastic.errors import ChicleError
from chicle_elastic.scheduling import effects, events
from chicle_elastic.values import ResourceOffer

MOST_REASON = 4000  # characters; the end of a traceback says most
OFFERS_S = 2.0  # how often an agent looks for another offer

logger = logging.getLogger(__name__)


class StoreResourceLink:
    """The way to a resource manager through the store; `ResourceLink`."""

    def __init__(self, board: ResourceBoard) -> None:
        self.offer: events.ResourcesOffered | None = None  # the last offer that came; None before the first one
        self._board = board
        self._loop: EventLoop | None = None

    def begin(self, loop: EventLoop) -> None:
        """From now on look for offers, in the loop's workers."""
        self._loop = loop
        self._look()

    def request(self, effect: effects.RequestNodes) -> None:
        """Write what the job wants."""
        request = NodeRequest(effect.number, effect.total, effect.reason)
        self._work(lambda: self._board.put_request(request), lambda _: None)

    def finish(self, reason: str, *, has_failed: bool) -> None:
        """Write that the job is over."""
        self._work(lambda: self._board.put_finished(Finished(reason[-MOST_REASON:], has_failed)), lambda _: None)

    def _look(self) -> None:
        self._work(self._board.offer, self._hear)
        if self._loop is not None:
            self._loop.later(OFFERS_S, self._look)

    def _hear(self, offer: Any) -> None:
        if offer is not None and (self.offer is None or offer.number > self.offer.number):
            given = ResourceOffer(available=offer.available, price=offer.price)
            self.offer = events.ResourcesOffered(offer=given, number=offer.number, text=offer.text)

    def _work(self, do: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """In a worker; a store that does not answer is asked again with the next request or look."""

        def done(future: "Future[Any]") -> None:
            try:
                then(future.result())
            except ChicleError as error:
                logger.warning("the resource manager cannot be reached: %s", error)

        if self._loop is not None:
            self._loop.work(do, done, lane=Lane.STORE)


class StoreManagedAgent(ProcessAgent):
    """An agent of a job whose resource manager serves the store. Arguments as of `NodeAgent`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._board = ResourceBoard(self._entry.store, secret=self._entry.secret)
        self.resources = self._link = StoreResourceLink(self._board)

    def begins(self, loop: EventLoop, node: Node) -> None:
        """Look for offers, too."""
        super().begins(loop, node)
        self._link.begin(loop)

    def script_end(self) -> TaskEnd | None:
        """Write that it failed, or that a signal ends it, too: the anchor has heard that the job is done."""
        fault = "a signal has ended its agent"
        try:
            ended = super().script_end()
            fault = str(ended) if ended is not None and ended.is_failed() else ""
            return ended
        finally:
            quiet = signals_call(dict.fromkeys(NOTICES, lambda: None))  # who sends one repeats it
            with quiet, contextlib.suppress(ChicleError):  # the exit code of this agent says it as well
                if fault:
                    reason = f"the job is done, and the script of {self._options.node} failed after it: {fault}"
                    self._board.put_finished(Finished(reason[-MOST_REASON:], has_failed=True))
