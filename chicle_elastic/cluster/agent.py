"""The agent of a node: it starts the task, holds the chunks, and takes part in the job until it ends.

One process, one loop. The agent runs no code of the user: that is in the task, which outlives every change of the
membership. What happens here:

    start      the task is started at once; when it is hot the node looks for the others and joins
    run        `membership` keeps the log, `performer` performs what it orders, `memory` moves chunks
    notice     SIGTERM or SIGUSR1: the node hands its chunks over and leaves with exit code 0; a second one says nothing
               new; at the end of the grace period it leaves at once
    task dies  the node steps out, starts another task, and joins again with the chunks that it holds
    taken for lost (it was silent): it begins another life with the same task
    end        the task's `run` returns; the agent waits for it and ends
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec

from chicle_elastic.cluster.event_file import EventFile
from chicle_elastic.cluster.event_loop import EventLoop
from chicle_elastic.cluster.launch_args import NodeOptions
from chicle_elastic.cluster.node import TASK_END_S, Node
from chicle_elastic.cluster.node_parts import Place
from chicle_elastic.cluster.rendezvous import ChicleRendezvousHandler
from chicle_elastic.cluster.store_host import address_towards, connect_store, open_secret
from chicle_elastic.cluster.term_key import TermKey
from chicle_elastic.cluster.torch_private import SingleTaskAgent
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.cluster_board import ClusterBoard
from chicle_elastic.runtime.channel import new_address

NOTICES = (signal.SIGTERM, signal.SIGUSR1)
STANDING = signal.SIGUSR2
"""Writes where the agent stands into the event file; for whoever looks for the reason of a hang."""
SWITCH_S = 0.0005
"""Python's own 5 ms are a fifth of what a change of the membership takes."""


class ElasticAgent(SingleTaskAgent):
    """An agent for torch's launcher; see the top of the module.

    Args:
        spec: Of torch: what to start, and the rendezvous handler.
        options: Ours.

    Raises:
        UsageError: The rendezvous is not Chicle's.
    """

    def __init__(self, spec: WorkerSpec, *args: Any, options: NodeOptions, **kwargs: Any) -> None:
        super().__init__(spec, *args, **kwargs)
        handler = spec.rdzv_handler
        if not isinstance(handler, ChicleRendezvousHandler):
            raise UsageError(
                f"the agent needs the rendezvous 'chicle' and was given {handler.get_backend()!r}; start it with "
                "python -m chicle_elastic.launch"
            )
        handler.await_calls()  # an agent that fails before its first round must not close the job for all others
        self._options = options
        self._handler = handler
        self._control = new_address()
        self._meeting = threading.Lock()

    def supervise(self) -> RunResult:
        """Run the node until it is finished, has left or has failed.

        Raises:
            ChicleError: The node cannot take part in the job.
        """
        options, handler = self._options, self._handler
        with contextlib.ExitStack() as stack:
            board = stack.enter_context(ClusterBoard(options.log_dir, options.node))
            event_file = stack.enter_context(EventFile(options.log_dir, options.node, tell=board.write))
            secret = open_secret(options.secret_file, endpoint=handler.endpoint)
            term_key = TermKey(
                connect_store(handler.endpoint), endpoint=handler.endpoint, run_id=handler.get_run_id(), secret=secret
            )
            place = Place(
                control=self._control,
                host=address_towards(handler.endpoint),
                endpoint=handler.endpoint,
                run_id=handler.get_run_id(),
                secret=secret,
                min_nodes=handler.min_nodes,
                max_nodes=handler.max_nodes,
            )
            loop = stack.enter_context(EventLoop())
            stack.callback(self.abandon, 1 << 62, "the agent ends")  # before the loop waits for its workers
            stack.callback(self.stop_task)
            node = Node(loop, self, place, options, term_key=term_key, event_file=event_file)
            stack.callback(node.close)
            self.begins(loop, node)
            notice = dict.fromkeys(NOTICES, lambda: loop.soon(node.notice))
            with _quick_turns(), _signals_call({**notice, STANDING: lambda: loop.soon(node.say_standing)}):
                end = node.run()
            if end.is_over:
                handler.set_closed(is_success=end.is_success)  # whoever comes now must not begin it again
            if end.error is not None:
                raise end.error
            ended = self.task_exit(TASK_END_S)
            if end.is_success or ended is None or not ended.is_failed():
                return self.succeeded()
            return self.failed(ended)

    def begins(self, loop: EventLoop, node: Node) -> None:
        """Called before the node runs; for subclasses that watch something of their own in the loop."""

    def task_environment(self) -> Mapping[str, str]:
        """Where the task finds its agent, and how many nodes there may be."""
        return {"CHICLE_CONTROL": self._control, "CHICLE_MAX_NODES": str(self._handler.max_nodes)}

    def meet(self, round: int, members: tuple[NodeId, ...], timeout_s: float) -> None:
        """Take part in a round of torch's rendezvous and wait for the others; in a worker thread.

        Raises:
            RoundTimeoutError: Somebody did not come in time.
            RoundAbandonedError: The round is not wanted any more.
            ChicleError: See `ChicleRendezvousHandler.next_rendezvous`.
        """
        with self._meeting:  # one that was abandoned ends in a moment
            self._handler.expect(round=round, members=members, timeout_s=timeout_s)
            self.rendezvous()

    def abandon(self, round: int, reason: str) -> None:
        """Wait no longer for this round or one before it."""
        self._handler.abandon(round=round, reason=reason)

    def require_open(self) -> None:
        """See that the job is not over.

        Raises:
            JobClosedError: It is.
            StoreLostError: The store is gone.
        """
        self._handler.require_open()


@contextlib.contextmanager
def _quick_turns() -> Iterator[None]:
    """Within this, the loop waits for the interpreter no longer than `SWITCH_S` while workers check what has come."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def _signals_call(calls: Mapping[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Within this, signals call these, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: object) -> None:
        calls[signal.Signals(number)]()

    before = {number: signal.signal(number, handle) for number in calls}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
