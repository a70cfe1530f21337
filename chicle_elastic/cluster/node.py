"""One node's part in the job, from the start of its task to its end. See `agent` for the whole picture."""

import dataclasses
import logging
import math
from dataclasses import dataclass
from typing import Any

from chicle_elastic.cluster import parcels
from chicle_elastic.cluster.event_file import EventFile
from chicle_elastic.cluster.event_loop import EventLoop
from chicle_elastic.cluster.launch_args import NodeOptions
from chicle_elastic.cluster.log_messages import Folded
from chicle_elastic.cluster.mesh import Peer
from chicle_elastic.cluster.node_parts import Parts, Place, build_parts, first_bytes, take_memory
from chicle_elastic.cluster.patience import Patience
from chicle_elastic.cluster.performer import FAILURE
from chicle_elastic.cluster.standing import describe
from chicle_elastic.cluster.steps import reach
from chicle_elastic.cluster.store_host import parse_endpoint
from chicle_elastic.cluster.task_side import TaskSide
from chicle_elastic.cluster.term_key import TermKey
from chicle_elastic.cluster.torch_part import Torch
from chicle_elastic.errors import ChicleError, ContractError, ProtocolError, TooFewNodesError
from chicle_elastic.ids import NodeId
from chicle_elastic.runtime import control
from chicle_elastic.scheduling import events
from chicle_elastic.settings import Settings
from chicle_elastic.store.chunk_store import ChunkStore
from chicle_elastic.transports.carrier import Carrier
from chicle_elastic.values import ChunkAccount

HURRY_SHARE = 0.2
"""Part of the grace period after which an iteration that goes on and on is interrupted."""
TURN_S = 1.0
FAREWELL_S = 3.0
REST_S = 0.2
"""Time that a node waits when it has handed everything over: others on its host are in the middle of a boundary."""
TASK_END_S = 30.0
READY_S = 0.05

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a node ends.

    Attributes:
        is_success: It has finished or left in order.
        is_over: The job is over.
        error: Why it could not go on, unless its task has failed.
    """

    is_success: bool
    is_over: bool = False
    error: ChicleError | None = None


class Node:
    """See the top of the module.

    Args:
        loop: The loop.
        torch: Starts tasks, and meets others.
        place: Where this is.
        options: Of the launcher.
        term_key: The terms in the store.
        event_file: Takes what happens.
    """

    def __init__(
        self,
        loop: EventLoop,
        torch: Torch,
        place: Place,
        options: NodeOptions,
        *,
        term_key: TermKey,
        event_file: EventFile,
    ) -> None:
        self._loop, self._torch, self._place, self._options = loop, torch, place, options
        self._node = options.node
        self._term_key, self._events = term_key, event_file
        self._carrier = Carrier(
            place.secret,
            name=self._node,
            tcp_address=f"tcp://{f'[{place.host}]' if ':' in place.host else place.host}:0",
            rdma=Settings.from_environment().rdma,
        )
        host, port = parse_endpoint(place.endpoint)
        self._task = TaskSide(
            loop,
            place.control,
            torch,
            welcome=control.Welcome(
                node=self._node,
                wants_ledger=options.log_dir is not None,
                checkpoint=options.checkpoint,
                wants_resume=options.wants_resume,
                store_host=host,
                store_port=port,
            ),
            on_message=self._task_says,
            on_gone=self._task_is_gone,
        )
        self._patience = Patience(loop, options.patience_s, self._give_up)
        self._store: ChunkStore | None = None
        self._parts: Parts | None = None
        self._job: int | None = None
        self._is_hot = False
        self._is_noticed = False
        self._grace_ends_s = math.inf
        self._is_hurried = False
        self._is_leaving = False
        self._is_over = False
        self._has_job_failed = False
        self._wants_life = False
        self._finished: set[NodeId] = set()
        self._end: End | None = None

    def run(self) -> End:
        """Run to the end."""
        self._events.write("started")
        self._task.start()
        while self._end is None:
            self._loop.turn(TURN_S)
        self._say_goodbye()
        return self._end

    def close(self) -> None:
        """Hang up everywhere and give the memory back."""
        if self._parts is not None:
            self._parts.membership.close()
        self._task.close()
        self._carrier.close()
        if self._store is not None:
            self._store.close()

    def notice(self) -> None:
        """This node will be taken away. A second notice only confirms the first. From the loop."""
        reach("notice.received")
        if self._is_noticed or self._end is not None:
            return
        self._is_noticed = True
        grace_s = self._options.grace_s
        logger.warning("%s is under notice: it hands its chunks over and leaves within %g s", self._node, grace_s)
        self._events.write("notice", grace_s=grace_s)
        if self._parts is None or self._node not in self._parts.membership.replica.log.present:
            self._leave("it had not joined yet")
            return
        self._grace_ends_s = self._loop.now() + grace_s
        self._parts.membership.propose(events.LeaveNoticed(node=self._node))
        self._loop.later(HURRY_SHARE * grace_s, self._hurry)
        self._loop.later(grace_s, lambda: self._leave("the grace period is over"))

    def say_standing(self) -> None:
        """Write down where this node stands. From the loop."""
        if self._parts is not None:
            self._events.write("standing", is_hot=self._is_hot, is_ready=self._is_ready(), **describe(self._parts))

    def stop(self, reason: str) -> None:
        """Whoever drives the job wants it to end at the next boundary, and soon. From the loop."""
        if self._end is not None:
            return
        if self._parts is None or self._node not in self._parts.membership.replica.log.present:
            self._leave(reason)
            return
        self._parts.membership.propose(events.StopRequested(reason=reason))
        self._interrupt()

    # What the task says.

    def _task_says(self, message: control.Message) -> None:
        if isinstance(message, control.Expect):
            self._on_expect(message)
        elif isinstance(message, control.Declare):
            self._on_declare(message)
        elif isinstance(message, control.Failed):
            self._on_failed(message)
        elif self._parts is None:
            return
        elif isinstance(message, control.Post):
            parcels.pass_on(message, self._parts.membership)
        elif type(message) in self._parts.answers:
            self._parts.answers[type(message)](message)

    def _on_expect(self, expected: control.Expect) -> None:
        try:
            if self._store is None:  # not `or`: a store without chunks is false
                self._store = take_memory(expected, self._loop, self._options, self._place)
        except ChicleError as error:
            self.failed(error)

    def _on_declare(self, declare: control.Declare) -> None:
        if self._store is None or self._store.slot_bytes != declare.slot_bytes:
            self.failed(ProtocolError("the task declares other chunks than it let expect"))
            return
        reach("task.ready", pid=self._task.pid)
        self._is_hot = True
        self._events.write("hot", pid=self._task.pid)
        if self._parts is None:
            self._parts = self._build(declare, self._store)
            # Before the node joins: the others would wait for it, and for nothing where there is no memory.
            num_bytes = first_bytes(len(declare.rows), declare.slot_bytes, self._place)
            self._parts.memory.prepare(num_bytes, ready=self._announce, failed=self.failed)
            self._parts.membership.begin()
        elif dataclasses.replace(declare, merged=self._parts.declared.merged) != self._parts.declared:
            self.failed(ProtocolError("the task was started again and declares another job; it has to be the same"))
        else:
            self._parts.membership.would_go_on_from(declare.merged)
            self._parts.memory.task_is_there()
            self._announce()

    def _on_failed(self, message: control.Failed) -> None:
        """Code of the user raised: the job ends, and everybody is told why."""
        logger.error("the task has failed\n%s", message.traceback)
        self._events.write("failed", traceback=message.traceback)
        if self._parts is not None and self._parts.membership.replica.own.is_live:
            membership = self._parts.membership
            membership.propose(events.StopRequested(reason=f"{FAILURE}{self._node}\n{message.traceback}"))
            # Others may be in an iteration that cannot end without this task: at the boundary after it they are told.
            self._parts.performer.task_died()
            self._loop.later(FAREWELL_S, lambda: self._finish(End(is_success=False)))
        else:
            self._finish(End(is_success=False))

    def _task_is_gone(self, has_said_goodbye: bool) -> None:
        self._is_hot = False
        if self._end is not None or self._task.has_failed is not None:
            return
        if self._is_leaving:
            self._finish(End(is_success=not self._has_job_failed, is_over=self._is_over))
            return
        logger.error("the task of %s died", self._node)
        self._events.write("task_died", restarts_left=self._torch.restarts_left)
        if self._parts is not None:
            self._parts.performer.task_died()
            self._parts.memory.forget_task()
            self._parts.membership.task_is_gone()
        if self._torch.restarts_left <= 0 or has_said_goodbye:
            self._finish(End(is_success=False))
        else:
            self._task.start(is_restart=True)

    # What the membership tells (`membership.Users`).

    def folded(self, folded: Folded) -> None:
        """An entry was folded."""
        if isinstance(folded.entry.event, events.RoundFormed):
            self._is_hurried = False
        self._patience.look(is_short=self._joined.membership.replica.log.scheduler.is_short_of_nodes)
        self._joined.performer.folded(folded)
        event = folded.entry.event
        if isinstance(event, events.NodeJoined) and event.node == self._node and folded.is_live and not self._is_hot:
            self._joined.membership.task_is_gone()  # it died when it was announced, and not there yet

    def installed(self, length: int) -> None:
        """The log goes on from a state."""
        self._events.write("installed", length=length)

    def vote(self) -> None:
        """The own task is to vote."""
        self._joined.performer.transitions.suspected()
        self._task.tell(control.Vote())

    def break_group(self, reason: str) -> None:
        """The own task is to end its iteration."""
        self._events.write("break", reason=reason)
        # The solver first: it looks at the flag while it computes, and comes to the broken group then.
        self._task.tell(control.Interrupt())
        self._task.tell(control.Break(round=self._joined.membership.replica.log.scheduler.round))

    def expelled(self, reason: str) -> None:
        """This life was taken for lost: clean up, then begin another one."""
        self._events.write("expelled", reason=reason)
        parts = self._joined
        if self._is_noticed:
            self._leave("it was taken for lost")
            return
        round = parts.membership.replica.log.scheduler.round
        self._task.tell(control.Interrupt())
        self._task.tell(control.Break(round=round))
        parts.performer.abandon_rendezvous(reason)
        parts.memory.end_life(parts.performer.versions())
        self._wants_life = True
        self._begin_next_life()

    def enters(self, job: int) -> bool:
        """This node is about to join; what it has of a job that nobody survived is of no use in another one."""
        known, self._job = self._job, job
        if known != job:
            self._events.write("job", job=job)
        if known in (None, job):
            return True
        self._joined.memory.forget_task()
        self._joined.memory.clear()
        self._is_hot = False
        self._task.replace()
        return False

    def peer_up(self, peer: Peer) -> None:
        """There is a link to another agent."""
        self._joined.memory.peer_up(peer.node)

    def peer_down(self, peer: Peer, reason: str) -> None:
        """An agent is gone."""
        self._events.write("peer_down", who=peer.node, reason=reason)
        if peer.node in self._joined.membership.replica.log.present:
            self._joined.performer.transitions.suspected(f"{peer.node} is gone", heard_s=peer.heard_s)
        self._joined.memory.peer_down(peer)

    def peer_says(self, peer: Peer, message: dict[str, Any]) -> None:
        """A message that is not about the log."""
        kind = message["kind"]
        if kind == "places":
            self._joined.memory.places(peer, message)
        elif kind == "rows":
            self._joined.memory.rows.places(peer, message)
        elif kind == "hurry":
            self._interrupt()
        elif kind == "finished":
            self._finished.add(peer.node)
        elif kind == parcels.KIND:
            self._task.tell(parcels.unpack(peer, message))
        else:
            raise ProtocolError(f"{peer.life} says {kind!r}, which is nothing that agents say")

    def failed(self, error: ChicleError) -> None:
        """This agent cannot go on."""
        logger.error("%s gives up: %s", self._node, error)
        self._events.write("error", error=type(error).__name__, reason=str(error))
        self._finish(End(is_success=False, error=error))

    def breached(self, error: ContractError) -> None:
        """The task did not process what it owns: the job ends, as when code of the user raises."""
        if self._has_job_failed:
            return
        self._has_job_failed = True
        logger.error("the job cannot go on: %s", error)
        self._events.write("error", error=type(error).__name__, reason=str(error))
        self._joined.membership.propose(events.StopRequested(reason=f"{FAILURE}{self._node}\nContractError: {error}"))
        self._loop.later(FAREWELL_S, lambda: self._finish(End(is_success=False, error=error)))

    # What the performer asks for (`performer.Host`).

    def tell_task(self, message: control.AgentMessage) -> None:
        """Send a message to the task."""
        self._task.tell(message)

    def iteration_begins(self) -> None:
        """The task is in another iteration; the one before may have ended just when it was to be interrupted."""
        if self._is_hurried:
            self._task.tell(control.Interrupt())

    def meet(self, round: int, members: tuple[NodeId, ...], timeout_s: float) -> None:
        """Take part in a rendezvous."""
        self._torch.meet(round, members, timeout_s)

    def abandon(self, round: int, reason: str) -> None:
        """Wait no longer for a rendezvous."""
        self._torch.abandon(round, reason)

    def released(self) -> None:
        """This node may go."""
        rest_s = REST_S if self._loop.now() + FAREWELL_S < self._grace_ends_s else 0.0
        self._leave("its chunks are handed over", after_s=rest_s)

    def finished(self, reason: str, merged: int, accounts: tuple[ChunkAccount, ...]) -> None:
        """The job is over: the task's `run` returns."""
        self._joined.membership.stop()
        self._joined.membership.mesh.broadcast("finished")
        is_leaving = self._is_leaving
        self._is_leaving = self._is_over = True
        is_failure = self._has_job_failed = reason.startswith(FAILURE)
        if self._task.has_failed is not None:
            self._finish(End(is_success=False, is_over=True))
        elif not is_leaving:  # else its script must not go on: it ends inside `run`
            first_line, _, traceback = reason.partition("\n")
            failure = traceback if is_failure else None
            self._task.tell(control.Finish(reason=first_line, merged=merged, failure=failure, accounts=accounts))

    # How.

    @property
    def _joined(self) -> Parts:
        """The parts, where they must be there."""
        assert self._parts is not None
        return self._parts

    def _build(self, declare: control.Declare, store: ChunkStore) -> Parts:
        return build_parts(
            declare,
            store,
            loop=self._loop,
            place=self._place,
            options=self._options,
            carrier=self._carrier,
            term_key=self._term_key,
            event_file=self._events,
            is_ready=self._is_ready,
            require_open=self._torch.require_open,
            tell_task=self._task.tell,
            users=self,
        )

    def _is_ready(self) -> bool:
        """Whether the task is hot, and nothing of an earlier life is under way."""
        is_quiet = self._parts is not None and self._parts.memory.is_quiet
        return self._is_hot and is_quiet and not self._is_noticed and not self._is_leaving

    def _announce(self) -> None:
        """Join as soon as everything is ready."""
        if self._parts is None or self._is_leaving or not self._is_hot or self._end is not None:
            return
        self._parts.membership.announce()
        if self._node not in self._parts.membership.replica.log.present:
            self._loop.later(READY_S, self._announce)

    def _begin_next_life(self) -> None:
        if not self._wants_life or self._is_leaving or self._end is not None:
            return
        if not self._joined.memory.is_quiet:
            self._loop.later(READY_S, self._begin_next_life)
            return
        self._wants_life = False
        self._joined.performer.begin_life()
        self._joined.membership.begin()

    def _give_up(self) -> None:
        """There were too few nodes for too long."""
        log = self._joined.membership.replica.log
        if log.scheduler.is_short_of_nodes and not self._is_leaving:
            self.failed(
                TooFewNodesError(
                    f"the job has had fewer nodes than the {log.scheduler.needed_nodes} that it needs for "
                    f"{self._options.patience_s:g} s (here: {', '.join(log.present)}); start more nodes in time, raise "
                    "--patience, or lower the MIN of --nnodes"
                )
            )

    def _hurry(self) -> None:
        """The iteration goes on and on, and the grace period is short: all tasks end it early."""
        if self._end is None and not self._is_leaving:
            self._events.write("hurry")
            self._joined.membership.propose(events.HandoverDue(node=self._node))
            self._joined.membership.mesh.broadcast("hurry")
            self._interrupt()

    def _interrupt(self) -> None:
        """End iterations early until the next round."""
        self._is_hurried = True
        if self._joined.membership.replica.own.is_awaiting:
            self._task.tell(control.Interrupt())

    def _leave(self, reason: str, *, after_s: float = 0.0) -> None:
        """The task ends, then the agent."""
        if self._is_leaving or self._end is not None:
            return
        reach("leave.before_exit")
        logger.warning("%s leaves: %s", self._node, reason)
        self._events.write("leaving", reason=reason)
        self._is_leaving = True
        if self._parts is not None:
            self._parts.membership.stop()
        if self._task.pid:
            self._loop.later(after_s, lambda: self._task.tell(control.Exit()))
            self._loop.later(TASK_END_S, lambda: self._finish(End(is_success=True)))
        else:
            self._finish(End(is_success=True))

    def _finish(self, end: End) -> None:
        if self._end is None:
            self._end = end

    def _say_goodbye(self) -> None:
        """Let the others read what was said last."""
        self._events.write("ended", is_success=self._end is not None and self._end.is_success)
        if self._parts is None:
            return
        membership = self._parts.membership
        membership.stop()
        until_s = self._loop.now() + FAREWELL_S
        # Whoever hangs up before the others know that the job is over looks lost to them.
        others = set(membership.replica.log.present) - {self._node} if self._is_over else set()
        while (others & membership.mesh.peers.keys()) - self._finished and self._loop.now() < until_s:
            self._loop.turn(0.05)
        while not membership.mesh.say_goodbye() and self._loop.now() < until_s:
            self._loop.turn(0.05)
