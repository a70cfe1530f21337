"""The agent of a node: it starts the task, holds the chunks, and takes part in the job until it ends.

One process, one event loop. The agent runs no user code: that runs in the task, which outlives every change of the
membership. What the agent does:

    start          it starts the task at once; when the task is ready the agent finds the others and joins
    run            `membership` keeps the log, `executor` executes its effects, `memory` moves chunks
    notice         SIGTERM, SIGUSR1 or the metadata server of a cloud (`net/cloud_notices.py`): the node hands its
                   chunks over and leaves with exit code 0; a second notice changes nothing; at the end of the grace
                   period the node leaves at once
    task dies      the node leaves the membership, starts another task, and rejoins with the chunks that it holds
    declared dead  (it was silent): it rejoins as a new incarnation, with the same task
    end            the task's `run` returns; the agent waits for the task and ends
"""

import contextlib
import dataclasses
import functools
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from chicle_elastic.cgroups import MemoryKills
from chicle_elastic.cluster.agent.components import NodeContext
from chicle_elastic.cluster.agent.node import TASK_END_S, Node
from chicle_elastic.cluster.agent.node_protocols import Launcher, ResourceLink
from chicle_elastic.cluster.agent.store_keeper import StoreKeeper
from chicle_elastic.cluster.agent.task_end import TaskEnd
from chicle_elastic.cluster.consensus.term_store import TermStore
from chicle_elastic.cluster.net.cloud_notices import NoticeWatch, grace_of
from chicle_elastic.cluster.net.event_file import EventFile
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.metrics_server import MetricsServer
from chicle_elastic.cluster.options import END_S, PROGRAM, NodeOptions
from chicle_elastic.cluster.rendezvous.errors import JobClosedError, StoreUnreachableError
from chicle_elastic.cluster.rendezvous.job_entry import JobEntry
from chicle_elastic.cluster.rendezvous.own_address import choose_address, store_listens_on
from chicle_elastic.cluster.rendezvous.secret_watch import SecretWatch
from chicle_elastic.cluster.rendezvous.store import StoreServer, format_endpoint
from chicle_elastic.errors import ChicleError, UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.cluster_board import ClusterBoard
from chicle_elastic.monitoring.job_metrics import JobMetrics
from chicle_elastic.monitoring.json_log import json_log
from chicle_elastic.monitoring.openmetrics import CONTENT_TYPE, text_of
from chicle_elastic.monitoring.recording_file import RecordingFile, new_recording
from chicle_elastic.runtime.control.channel import new_address
from chicle_elastic.settings import Settings
from chicle_elastic.start_signals import hand_over
from chicle_elastic.transports.tls import TlsIdentity

EXIT_FAILED = 1
EXIT_USAGE = 2
NOTICES = (signal.SIGTERM, signal.SIGUSR1)
DEBUG_STATE_SIGNAL = signal.SIGUSR2  # makes the agent write its debug state into the event file, to diagnose a hang
STOP_S = 5.0  # how long a task may take to end at the end of its agent, before it is killed
KEPT_ROUNDS = 2
"""Rounds whose keys stay in the round store: tasks may still connect in the last one when the next is called."""
CLOSE_S = 2.0  # how long an agent tries to store that the job is over: the store may be starting again
CLOSE_RETRY_S = 0.2
SWITCH_S = 0.0005  # Python's default switch interval of 5 ms is a fifth of what a change of the membership takes

logger = logging.getLogger(__name__)


class NodeAgent(Launcher):
    """The agent of a node; see the top of the module. Subclasses start its task, each in another way: they are the
    node's `Launcher`."""

    def __init__(self, *, entry: JobEntry, options: NodeOptions, command: Sequence[str], restarts: int) -> None:
        self.has_left = False
        self.restarts_left = restarts  # how often the agent may still restart the task after a crash
        self.memory_kills = MemoryKills()
        self.resources: ResourceLink | None = None
        self._entry, self._options, self._command = entry, options, tuple(command)
        self._control = new_address()
        self._meeting = threading.Lock()
        self._round_store: StoreServer | None = None
        self._loop: EventLoop  # from `run_node` on

    def run_node(self) -> TaskEnd | None:
        """Run the node until it is finished, has left or has failed. Raises ChicleError when the node cannot take part
        in the job, or its task has failed and does not end. Returns the end of a task that has failed for good, None
        where the node has finished or left."""
        options, entry, store = self._options, self._entry, self._entry.store
        with contextlib.ExitStack() as stack:
            board = stack.enter_context(ClusterBoard(options.log_dir, options.node, command=self._command))
            metrics = JobMetrics(options.node, entry.run_id)
            if options.has_json_log:
                stack.enter_context(json_log(metrics))
            server = MetricsServer(options.metrics, functools.partial(text_of, metrics), content_type=CONTENT_TYPE)
            url = stack.enter_context(server).url
            told = [metrics.take] if options.log_dir is None else [metrics.take, board.write]
            tell = functools.partial(_tell_all, told)
            event_file = stack.enter_context(EventFile(options.log_dir, options.node, tell=tell))
            if url is not None:
                event_file.write("metrics", url=url)
            secret = entry.secret
            stack.enter_context(SecretWatch(secret, options.secret_file, store, owner=options.node))
            tls = None if options.tls is None else TlsIdentity(options.tls)
            listens = store_listens_on(store)
            address = choose_address(options.address, endpoint=store.endpoint, listens=listens)
            term_store = TermStore(store, run_id=entry.run_id, secret=secret)
            self._round_store = stack.enter_context(
                StoreServer(format_endpoint(address.advertise, 0), bind=address.bind, ports=address.ports)
            )
            stack.callback(self.stop_task)  # after the loop: one of its workers may have been about to start the task
            loop = self._loop = stack.enter_context(
                EventLoop(tell_slow=lambda slow: event_file.write("slow_handler", **dataclasses.asdict(slow)))
            )
            restore = (term_store.publish_again, entry.restore)
            keeper = StoreKeeper(loop, store, restore=restore, event_file=event_file)
            stack.callback(keeper.close)
            keeper.start()
            recording: RecordingFile | None = None
            if options.log_dir is not None:
                recording = stack.enter_context(new_recording(options.log_dir, options.node))
            context = NodeContext(
                loop=loop,
                launcher=self,
                options=options,
                term_store=term_store,
                store_keeper=keeper,
                event_file=event_file,
                recording=recording,
                control=self._control,
                address=address,
                round_store=self._round_store.endpoint,
                run_id=entry.run_id,
                secret=secret,
                metrics=metrics,
                min_nodes=entry.min_nodes,
                max_nodes=entry.max_nodes,
                tls=tls,
                bulk_tls=tls if options.has_tls_bulk else None,
                resources=self.resources,
            )
            node = Node(context)
            stack.callback(node.close)
            self.begins(loop, node)
            if options.notices is not None:
                watch = NoticeWatch(
                    options.notices,
                    lambda notice: loop.soon(lambda: node.notice(grace_of(notice, reserve_s=END_S))),
                    wall_clock=time.time,
                    url=Settings.from_environment().metadata_url,
                )
                stack.callback(watch.close)
                watch.start()
            notice = dict.fromkeys(NOTICES, lambda: loop.soon(node.notice))
            with (
                _quick_turns(),
                signals_call({**notice, DEBUG_STATE_SIGNAL: lambda: loop.soon(node.write_debug_state)}),
            ):
                hand_over()  # no task ran before: until now a signal has ended this process at once
                end = node.run()
            self.has_left = end.is_noticed and end.is_success and not end.is_over
            if end.is_over:
                self._close_job(is_success=end.is_success)
            else:
                _mark_ended(term_store)
            if end.error is not None:
                raise end.error
            if not end.awaits_task:
                return None
            call = interrupt if not end.is_noticed else lambda _: None  # Slurm repeats a notice for seconds
            with signals_call({number: functools.partial(call, number) for number in NOTICES}):
                ended = self.script_end() if end.is_success and end.is_over else self.task_exit(TASK_END_S)
            if end.is_success and (ended is None or not end.is_over):
                return None
            if ended is None:
                raise ChicleError(f"the task has failed, and did not end within {TASK_END_S:g} s; now it is killed")
            return ended if ended.is_failed() else None

    def begins(self, loop: EventLoop, node: Node) -> None:
        """Called before the node runs; for subclasses that watch further descriptors in the loop."""

    def task_exit(self, timeout_s: float = 0.0) -> TaskEnd | None:
        """Return how the task ended, or None when it still runs after `timeout_s` seconds, or none was started. Only
        after the loop with a time."""
        raise NotImplementedError

    def script_end(self) -> TaskEnd | None:
        """Wait for the end of the task, after that of the job. Returns how it ended where a script may have done more,
        such as to save the model."""
        self.task_exit(TASK_END_S)
        return None

    def stop_task(self) -> None:
        """End the task by a signal, after `STOP_S` by SIGKILL, once the loop has ended."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.task_exit() is None:
                self.signal_task(number)
                self.task_exit(STOP_S)

    def meet(self, round: int, members: tuple[NodeId, ...]) -> None:
        """Take part in a rendezvous, which waits for no other member; in a worker thread."""
        with self._meeting:
            if self._round_store is not None and members[0] == self._options.node:
                self._round_store.prune(self._entry.run_id, before=round - KEPT_ROUNDS + 1)

    def require_open(self) -> None:
        """Check that the job is not over. Raises JobClosedError when the job is over, StoreUnreachableError when the
        store does not answer."""
        self._entry.require_open()

    def _close_job(self, *, is_success: bool) -> None:
        """Store that the job is over: a node that comes now must not begin it again."""
        end_s = time.monotonic() + CLOSE_S
        while True:
            try:
                self._entry.set_closed(is_success=is_success)
                return
            except StoreUnreachableError as error:
                if time.monotonic() > end_s:
                    logger.warning("the job is over, and the store cannot be told; end its process, too: %s", error)
                    return
                time.sleep(CLOSE_RETRY_S)


def _tell_all(told: Sequence[Callable[[Mapping[str, Any]], object]], line: Mapping[str, Any]) -> None:
    for tell in told:
        tell(line)


def _mark_ended(term_store: TermStore) -> None:
    """Store that this agent has ended, so that others can begin the job anew when it was the last; a moment at most."""

    def mark() -> None:
        with contextlib.suppress(StoreUnreachableError):
            term_store.mark_ended()

    thread = threading.Thread(target=mark, name="chicle-farewell", daemon=True)
    thread.start()
    thread.join(CLOSE_S)


@contextlib.contextmanager
def _quick_turns() -> Iterator[None]:
    """Within this, the loop waits for the GIL no longer than `SWITCH_S` while worker threads check received chunks."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def signals_call(calls: Mapping[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Within this, each signal calls its function, if this is the main thread."""
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


def interrupt(number: signal.Signals) -> None:
    """Raise KeyboardInterrupt, with the signal."""
    raise KeyboardInterrupt(number)


def exit_code_of_error(error: ChicleError) -> int:
    """Print an error that ends an agent, and return the exit code."""
    print(f"{PROGRAM}: {error}", file=sys.stderr)
    if isinstance(error, JobClosedError) and error.is_success:
        return 0  # for a resource manager, a node that came after the end of the job has not failed
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
