"""One node's part in the job, from the start of its task to its end. See `agent` for the whole picture."""

import dataclasses
import logging
import math
from dataclasses import dataclass
from typing import Any

from chicle_elastic.cluster.agent import user_messages
from chicle_elastic.cluster.agent.components import (
    Components,
    NodeContext,
    allocate_store,
    build_components,
    initial_bytes,
)
from chicle_elastic.cluster.agent.effect_executor import FAILURE
from chicle_elastic.cluster.agent.group_formation import host_of_peer
from chicle_elastic.cluster.agent.quorum_timeout import QuorumTimeout
from chicle_elastic.cluster.agent.status_line import JOINING, Status, StatusLine, status_of
from chicle_elastic.cluster.agent.task_supervisor import TaskSupervisor
from chicle_elastic.cluster.consensus.messages import Folded
from chicle_elastic.cluster.net.fault_points import hit
from chicle_elastic.cluster.net.peers import Peer
from chicle_elastic.cluster.transfer.protocol import PLACES
from chicle_elastic.errors import ChicleError, ContractError, ProtocolError, TooFewNodesError
from chicle_elastic.ids import NodeId
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.scheduler import State
from chicle_elastic.settings import Settings
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.transports.selector import TransportSelector
from chicle_elastic.values import ChunkAccount

INTERRUPT_SHARE = 0.2
"""Part of the grace period after which a node under notice has all tasks end a long iteration early."""
TURN_S = 1.0
FAREWELL_S = 3.0
REST_S = 0.2  # time that a node waits when it has handed all chunks over: other nodes of its host are inside a boundary
TASK_END_S = 30.0
READY_S, READY_LAST_S = 0.05, 1.0  # how often to look whether this node can join: ever later

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a node ends."""

    is_success: bool
    is_over: bool = False
    is_noticed: bool = False  # a further notice changes nothing
    awaits_task: bool = True  # the task ends by itself, and how it ends counts; otherwise the agent kills it
    error: ChicleError | None = None  # why the node could not go on, unless its task has failed


class Node:
    """See the top of the module. One class because the way of a node from start to end is one sequence; what can stand
    alone is in `components`."""

    def __init__(self, context: NodeContext) -> None:
        loop, options, event_file = context.loop, context.options, context.event_file
        self._loop, self._context, self._options, self._events = loop, context, options, event_file
        self._launcher, self._store_keeper, self._node = context.launcher, context.store_keeper, options.node
        self._transports = TransportSelector(
            context.secret,
            name=self._node,
            tcp_address=context.address.for_bulk.to_listen(),
            advertise=context.address.for_bulk.advertise,
            rdma=Settings.from_environment().rdma,
            tls=context.bulk_tls,
            tell=lambda peer, reason: loop.soon(lambda: event_file.write("transport", peer=peer, reason=reason)),
        )
        self._task = TaskSupervisor(
            loop,
            context.control,
            context.launcher,
            welcome=control.Welcome(
                node=self._node,
                wants_ledger=options.log_dir is not None,
                checkpoint=options.checkpoint,
                wants_resume=options.wants_resume,
            ),
            on_message=self._on_task_message,
            on_gone=self._task_is_gone,
        )
        write = logger.info if options.has_json_log else None
        self._status_line = StatusLine(loop, self._node, self._status, write=write) if options.shows_status else None
        self._quorum_timeout = QuorumTimeout(loop, options.patience_s, self._give_up)
        self._store: ChunkStore | None = None
        self._components: Components | None = None
        self._job: int | None = None
        self._is_ready = False
        self._is_noticed = False
        self._grace_ends_s = math.inf
        self._is_interrupting = False
        self._is_leaving = False
        self._is_over = False
        self._has_job_failed = False
        self._pause_reason: str | None = None
        self._wants_rejoin = False
        self._finished: set[NodeId] = set()
        self._end: End | None = None

    def run(self) -> End:
        """Run to the end."""
        self._events.write("started")
        self._task.start()
        while self._end is None:
            self._loop.turn(TURN_S)
        self._loop.turn(0.0)  # lines of the event file, which wait until no other node waits for this one
        self._say_goodbye()
        return self._end

    def close(self) -> None:
        """Close all links and free the memory."""
        if self._status_line is not None:
            self._status_line.close()
        if self._components is not None:
            self._components.membership.close()
        self._task.close()
        self._transports.close()
        if self._store is not None:
            self._store.close()

    def notice(self, grace_s: float | None = None) -> None:
        """A resource manager takes this node away, in `grace_s` or that of `--grace`; ignores a second notice."""
        hit("notice.received")
        if self._is_noticed or self._end is not None:
            return
        self._is_noticed = True
        grace_s = self._options.grace_s if grace_s is None else grace_s
        logger.warning("node %s is under notice: it hands its chunks over and leaves within %g s", self._node, grace_s)
        self._events.write("notice", grace_s=grace_s)
        if self._components is None or self._node not in self._components.membership.log.snapshot().present:
            self._leave("it had not joined yet")
            return
        self._grace_ends_s = self._loop.now() + grace_s
        self._components.membership.log.append(events.LeaveNoticed(node=self._node))
        self._loop.later(INTERRUPT_SHARE * grace_s, self._interrupt_all)
        self._loop.later(grace_s, lambda: self._leave("the grace period is over"))

    def write_debug_state(self) -> None:
        """Write the debug state into the event file. In the loop."""
        if self._components is not None:
            self._events.write(
                "standing",
                is_hot=self._is_ready,
                is_ready=self.can_join(),
                store=self._store_keeper.describe(),
                **self._components.describe(),
            )

    def stop(self, reason: str) -> None:
        """The driver wants the job to end at the next boundary, and interrupts the iteration. In the loop."""
        if self._end is not None:
            return
        if self._components is None or self._node not in self._components.membership.log.snapshot().present:
            self._leave(reason)
            return
        self._components.membership.log.append(events.StopRequested(reason=reason))
        self._interrupt()

    # Messages of the task.

    def _on_task_message(self, message: control.Message) -> None:
        if isinstance(message, control.Expect):
            self._on_expect(message)
        elif isinstance(message, control.Declare):
            self._on_declare(message)
        elif isinstance(message, control.Failed):
            self._on_failed(message)
        elif self._components is None:
            return
        elif isinstance(message, control.UserMessage):
            user_messages.forward(message, self._components.membership)
        elif type(message) in self._components.handlers:
            self._components.handlers[type(message)](message)

    def _on_expect(self, expected: control.Expect) -> None:
        try:
            if self._store is None:  # not `or`: a store without chunks is false
                self._store = allocate_store(expected, self._context)
        except ChicleError as error:
            self.failed(error)

    def _on_declare(self, declare: control.Declare) -> None:
        if self._store is None or self._store.slot_bytes != declare.slot_bytes:
            self.failed(ProtocolError("the task declares other chunks than it announced in its message Expect"))
            return
        if self._is_leaving:  # the job ended, or this node left, while a task was started again
            self._task.send(control.Exit())
            return
        hit("task.ready", pid=self._task.pid)
        self._is_ready = True
        self._events.write("hot", pid=self._task.pid)
        if self._components is None:
            self._components = build_components(declare, self._store, self._context, self._transports, self)
            # Before the node joins: the others would wait for its memory, and in vain if it has none.
            num_bytes = initial_bytes(len(declare.rows), declare.slot_bytes, self._context)
            self._components.memory.prepare(num_bytes, ready=self._announce, failed=self.failed)
            self._components.membership.begin()
            self._show_status()
        elif not declare.is_same_job(self._components.declared):
            self.failed(ProtocolError("the restarted task declares another job; it has to declare the same one"))
        else:
            self._components.membership.set_declared(declare.to_event())
            self._components.memory.task_is_there()
            self._announce()

    def _on_failed(self, message: control.Failed) -> None:
        """User code raised: the job ends, and all nodes learn the reason from the log."""
        logger.error("the task of %s has failed\n%s", self._node, message.traceback)
        self._events.write("failed", traceback=message.traceback)
        if self._components is not None and self._components.membership.log.snapshot().is_live:
            membership = self._components.membership
            membership.log.append(events.StopRequested(reason=f"{FAILURE}{self._node}\n{message.traceback}"))
            # Others may be in an iteration that cannot end without this task: they learn the reason at the boundary.
            self._components.executor.task_died()
            self._loop.later(FAREWELL_S, lambda: self._finish(End(is_success=False)))
        else:
            self._finish(End(is_success=False))

    def _task_is_gone(self, has_said_goodbye: bool) -> None:
        self._is_ready = False
        if self._end is not None or self._task.has_failed is not None:
            return
        if self._is_leaving:
            self._finish(End(is_success=not self._has_job_failed, is_over=self._is_over))
            return
        logger.error("the task of %s died%s", self._node, self._launcher.memory_kills.words)
        self._events.write("task_died", restarts_left=self._launcher.restarts_left)
        if self._components is not None:
            self._components.executor.task_died()
            self._components.memory.forget_task()
            self._components.membership.task_is_gone()
        if self._launcher.restarts_left <= 0 or has_said_goodbye:
            self._finish(End(is_success=False))
        else:
            self._task.start(is_restart=True)

    # Called by the membership (`membership.MembershipCallbacks`).

    def can_join(self) -> bool:
        """Say whether the task is ready, and no operation of an earlier incarnation is under way."""
        is_quiet = self._components is not None and self._components.memory.is_quiet
        return self._is_ready and is_quiet and not self._is_noticed and not self._is_leaving

    def folded(self, folded: Folded) -> None:
        """The log has folded an entry."""
        if isinstance(folded.entry.event, events.RoundFormed):
            self._is_interrupting = False
        self._look_at_quorum()
        self._built.executor.folded(folded)
        event = folded.entry.event
        is_iteration = isinstance(event, events.IterationFinished)
        if not is_iteration or self._built.membership.log.scheduler.state is not State.RUNNING:
            self._show_status()
        if isinstance(event, events.NodeJoined) and event.node == self._node and folded.is_live and not self._is_ready:
            self._built.membership.task_is_gone()  # the task died after the node was announced and before it joined

    def installed(self, length: int) -> None:
        """The log was installed from a snapshot."""
        self._events.write("installed", length=length)

    def vote(self) -> None:
        """The task of this node is to vote."""
        self._built.executor.transitions.suspected()
        self._task.send(control.Vote())

    def break_group(self, reason: str) -> None:
        """The task of this node is to abort its iteration."""
        self._events.write("break", reason=reason)
        # The solver first: it polls the flag while it computes, and reaches the broken group afterwards.
        self._task.send(control.Interrupt())
        self._task.send(control.Break(round=self._built.membership.log.scheduler.round))

    def expelled(self, reason: str) -> None:
        """This incarnation was declared dead: clean up, then rejoin as a new one."""
        self._events.write("expelled", reason=reason)
        components = self._built
        if self._is_noticed:
            self._leave("the other nodes have declared it dead")
            return
        round = components.membership.log.scheduler.round
        self._task.send(control.Interrupt())
        self._task.send(control.Break(round=round))
        components.memory.end_life(components.executor.versions())
        self._wants_rejoin = True
        self._rejoin()

    def paused(self, reason: str | None) -> None:
        """This node reaches too few others to go on; without a reason it goes on again."""
        self._events.write("paused" if reason else "resumed", **({"reason": reason} if reason else {}))
        self._pause_reason = reason
        self._say_pause("goes on" if reason is None else f"pauses: {reason}")
        self._look_at_quorum()
        self._show_status()

    def job_paused(self, reason: str) -> None:
        """Say so; end the job where no other node is to come."""
        self._say_pause(f"the job is paused: {reason}")
        log = self._built.membership.log
        most = self._options.all_nodes
        if most is not None and len(log.snapshot().present) >= most:
            stop = events.StopRequested(reason=f"{FAILURE}the job cannot go on with its nodes\n{reason}")
            self._loop.soon(lambda: log.append(stop))  # not inside of the caller, who folds an entry

    def _say_pause(self, what: str) -> None:
        """Into the log, loudly only where no status line says the same."""
        logger.log(logging.WARNING if self._status_line is None else logging.INFO, "%s: %s", self._node, what)

    def enters(self, job: int) -> bool:
        """This node is about to join; it discards the chunks of a job of which no node survived."""
        known, self._job = self._job, job
        if known != job:
            self._events.write("job", job=job)
        if known in (None, job):
            return True
        self._built.memory.forget_task()
        self._built.memory.clear()
        self._is_ready = False
        self._task.replace()
        return False

    def peer_up(self, peer: Peer) -> None:
        """There is a link to another agent."""
        self._built.memory.peer_up(peer.node)

    def peer_down(self, peer: Peer, reason: str) -> None:
        """An agent is gone."""
        self._events.write("peer_down", who=peer.node, reason=reason)
        if peer.node in self._built.membership.log.snapshot().present:
            self._built.executor.transitions.suspected(f"{peer.node} is gone", heard_s=peer.heard_s)
        self._built.memory.peer_down(peer)

    def peer_says(self, peer: Peer, message: dict[str, Any]) -> None:
        """A message that is not about the log."""
        kind = message["kind"]
        if kind == PLACES:
            self._built.memory.places(peer, message)
        elif kind == "hurry":
            self._interrupt()
        elif kind == "finished":
            self._finished.add(peer.node)
        elif kind == user_messages.KIND:
            self._task.send(user_messages.unpack(peer, message))
        else:
            raise ProtocolError(f"{peer.life} sent a message of the unknown kind {kind!r}")

    def failed(self, error: ChicleError) -> None:
        """This agent cannot go on."""
        logger.error("node %s gives up: %s", self._node, error)
        self._events.write("error", error=type(error).__name__, reason=str(error))
        self._finish(End(is_success=False, error=error))

    def breached(self, error: ContractError) -> None:
        """The task broke the contract, e.g. did not process a chunk it owns: the job ends, as when user code raises."""
        if self._has_job_failed:
            return
        self._has_job_failed = True
        logger.error("the job cannot go on: %s", error)
        self._events.write("error", error=type(error).__name__, reason=str(error))
        self._built.membership.log.append(events.StopRequested(reason=f"{FAILURE}{self._node}\nContractError: {error}"))
        self._loop.later(FAREWELL_S, lambda: self._finish(End(is_success=False, error=error)))

    # Called by the effect executor (`effect_executor.Host`).

    def tell_task(self, message: control.AgentMessage, fd: int | None = None) -> None:
        """Send a message to the task."""
        self._task.send(message, fd)

    def iteration_begins(self) -> None:
        """The task has begun an iteration; the interrupt may have hit the previous one at its end, so send it again."""
        if self._is_interrupting:
            self._task.send(control.Interrupt())

    def round_store(self, node: NodeId) -> str | None:
        """Endpoint of the round store of a node; None where there is no link to the node."""
        if node == self._node:
            return self._context.round_store
        peer = self._built.membership.peer_links.peers.get(node)
        return None if peer is None else peer.round_store

    def released(self) -> None:
        """The scheduler has released this node."""
        membership, own = self._built.membership, self._context.address.for_bulk.advertise
        if not membership.log.snapshot().present:
            self._leave("no node stays, and the job is saved")
            return
        has_neighbours = any(host_of_peer(peer) == own for peer in membership.peer_links.peers.values())
        rest_s = REST_S if has_neighbours and self._loop.now() + FAREWELL_S < self._grace_ends_s else 0.0
        self._leave("its chunks are handed over", after_s=rest_s)

    def finished(self, reason: str, merged: int, accounts: tuple[ChunkAccount, ...]) -> None:
        """The job is over: the task's `run` returns."""
        self._built.membership.stop()
        self._built.membership.peer_links.broadcast("finished")
        is_leaving = self._is_leaving
        self._is_leaving = self._is_over = True
        is_failure = self._has_job_failed = reason.startswith(FAILURE)
        if self._task.has_failed is not None:
            self._finish(End(is_success=False, is_over=True))
        elif not is_leaving:  # the script of a leaving node must not go on: it ends inside `run`
            first_line, _, traceback = reason.partition("\n")
            failure = traceback if is_failure else None
            self._task.send(control.Finish(reason=first_line, merged=merged, failure=failure, accounts=accounts))

    # How.

    @property
    def _built(self) -> Components:
        """The components, in calls that come only after they were built."""
        assert self._components is not None
        return self._components

    def _announce(self, after_s: float = READY_S) -> None:
        """Join as soon as the task, the memory and the links are ready; a link and each message of the log make this
        node try as well (`membership`)."""
        if self._components is None or self._is_leaving or not self._is_ready or self._end is not None:
            return
        self._components.membership.announce()
        if self._node not in self._components.membership.log.snapshot().present:
            self._loop.later(after_s, lambda: self._announce(min(2 * after_s, READY_LAST_S)))

    def _rejoin(self) -> None:
        if not self._wants_rejoin or self._is_leaving or self._end is not None:
            return
        if not self._built.memory.is_quiet:
            self._loop.later(READY_S, self._rejoin)
            return
        self._wants_rejoin = False
        self._built.executor.begin_life()
        self._built.membership.begin()
        self._show_status()

    def _show_status(self) -> None:
        if self._status_line is not None and not self._is_leaving and self._end is None:
            self._status_line.show()

    def _status(self) -> Status | None:
        log = self._built.membership.log
        if log.is_paused:
            return Status(f"paused: {self._pause_reason}", True)
        max_nodes = self._context.max_nodes
        status = status_of(log.scheduler, log.snapshot().present, node=self._node, max_nodes=max_nodes)
        if status is not None and status.text == JOINING and self._store_keeper.is_away:
            return Status(f"{JOINING}; {self._store_keeper.describe()}", True)
        return status

    def _look_at_quorum(self) -> None:
        log = self._built.membership.log
        cannot_connect = self._built.executor.cannot_connect is not None
        self._quorum_timeout.look(is_short=log.scheduler.is_short_of_nodes or log.is_paused or cannot_connect)

    def _give_up(self) -> None:
        """The job has had too few nodes for too long, or this node has reached too few of them."""
        log = self._built.membership.log
        if log.is_paused and not self._is_leaving:
            missing = set(log.snapshot().electorate) - self._built.membership.peer_links.peers.keys() - {self._node}
            self.failed(
                TooFewNodesError(
                    f"this node has not reached {', '.join(sorted(missing))} for {self._options.patience_s:g} s, and "
                    "too few of the others to go on without them; the job may go on without this node: mend the "
                    "network, or raise --patience"
                )
            )
            return
        here = ", ".join(log.snapshot().present)
        addresses = self._built.executor.cannot_connect
        if self._is_leaving:
            return
        if not log.scheduler.is_short_of_nodes and addresses is not None:
            self.failed(
                TooFewNodesError(
                    f"the tasks could not connect to each other for {self._options.patience_s:g} s ({addresses}); open "
                    "the ports between these addresses (--port-range), or choose other ones (--interface, --advertise)"
                )
            )
        if log.scheduler.is_short_of_nodes:
            self.failed(
                TooFewNodesError(
                    f"the job has had fewer nodes than the {log.scheduler.needed_nodes} that it needs for "
                    f"{self._options.patience_s:g} s (here: {here}); start more nodes in time, raise "
                    "--patience, or lower the MIN of --nnodes"
                )
            )

    def _interrupt_all(self) -> None:
        """The iteration is long and the grace period short: have all tasks end it early."""
        if self._end is None and not self._is_leaving:
            self._events.write("hurry")
            self._built.membership.log.append(events.HandoverDue(node=self._node))
            self._built.membership.peer_links.broadcast("hurry")
            self._interrupt()

    def _interrupt(self) -> None:
        """Have the task of this node end its iterations early until the next round."""
        self._is_interrupting = True
        if self._built.membership.log.snapshot().is_awaiting:
            self._task.send(control.Interrupt())

    def _leave(self, reason: str, *, after_s: float = 0.0) -> None:
        """End the task, then the agent."""
        if self._is_leaving or self._end is not None:
            return
        hit("leave.before_exit")
        logger.warning("node %s leaves: %s", self._node, reason)
        self._events.write("leaving", reason=reason, rest_s=after_s)
        self._is_leaving = True
        if self._components is not None:
            self._components.membership.stop()
        if self._task.is_connected:
            self._loop.later(after_s, lambda: self._task.send(control.Exit()))
            self._loop.later(TASK_END_S, lambda: self._finish(End(is_success=True)))
        else:  # it has not begun anything that could be ended in order
            self._finish(End(is_success=True, awaits_task=False))

    def _finish(self, end: End) -> None:
        if self._end is None:
            self._end = dataclasses.replace(end, is_noticed=self._is_noticed)

    def _say_goodbye(self) -> None:
        """Wait until the other agents have read the last messages of this one."""
        self._events.write("ended", is_success=self._end is not None and self._end.is_success)
        if self._components is None:
            return
        membership = self._components.membership
        membership.stop()
        until_s = self._loop.now() + FAREWELL_S
        # An agent that hangs up before the others know that the job is over looks lost to them.
        others = set(membership.log.snapshot().present) - {self._node} if self._is_over else set()
        while (others & membership.peer_links.peers.keys()) - self._finished and self._loop.now() < until_s:
            self._loop.turn(0.05)
        while not membership.peer_links.say_goodbye() and self._loop.now() < until_s:
            self._loop.turn(0.05)
