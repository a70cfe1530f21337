"""The place of this process among those that run the loop: a task of a cluster, or the only process.

A seat tells the loop when a step begins, and adds up for it. It knows rounds, members and the agent, but no model. To
the agent the loop is a task like any other: an iteration is a step of the loop, and the data set is one empty chunk,
because the loop's samples stay where they are and follow from ranks (`schedule`). So agents, log and launcher are those
of every other job.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.layout import Outside
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import NO_STATE, Array
from chicle_elastic.clock import Clock
from chicle_elastic.errors import JobFailedError, PeerLostError, ProtocolError, UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.runtime.cluster_task.control_client import ControlClient
from chicle_elastic.runtime.cluster_task.message_router import MessageRouter
from chicle_elastic.runtime.cluster_task.send_queue import SendQueue
from chicle_elastic.runtime.cluster_task.task import signals_ignored
from chicle_elastic.runtime.collectives.process_group import ProcessGroup
from chicle_elastic.runtime.collectives.socket_group import GroupNetwork
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.store.arena import SLOT_ALIGNMENT, Arena
from chicle_elastic.torch.schedule import TORN, Row, Standing, Transfers, transfers
from chicle_elastic.values import StateVersion, TaskReport

logger = logging.getLogger(__name__)

ROW = len(Row._fields)
RESTORED = -1
"""Round of a state that a process has read from the checkpoint of before the job, and that took part in no round."""


class LoopUser(Protocol):
    """What a seat asks of the loop."""

    def exchange(self, group: ProcessGroup, plan: Transfers, *, in_place: bool) -> None:
        """Bring the state of the senders to the receivers. Raises PeerLostError when a member was lost."""

    def restore(self, iteration: int) -> bool:
        """Read the checkpoint of this iteration; False where there is none."""

    def restore_newest(self, most: int) -> int:
        """Read the newest checkpoint up to an iteration, and return its iteration; 0 where there is none."""

    def save(self) -> None:
        """The job pauses: save its state, if this process is the one that does."""

    def changed(self, members: tuple[str, ...]) -> None:
        """There are other members from now on."""


class Solo:
    """The seat of a process that no agent has started: it trains alone."""

    node, rank, max_nodes, is_broken = "local", 0, 1, False
    members: tuple[str, ...] = ("local",)
    checkpoint: CheckpointSettings | None = None

    def __init__(self, user: LoopUser) -> None:
        self._user, self._is_over = user, False

    def declare(self, *, seed: int, num_samples: int, digest: str, merged: int) -> None:
        """Restore the checkpoint that was found, and tell who takes part."""
        if merged:
            self._user.restore(merged)
        self._user.changed(self.members)

    def next(self) -> bool:
        """Return whether a step begins; False when the training is over."""
        return not self._is_over

    def gather(self, row: Row) -> list[Row]:
        """Return the rows of all members."""
        return [row]

    def all_reduce(self, buffer: Array) -> None:
        """Leave the buffer as it is: there is no other member."""

    def committed(self, rows: Sequence[Row], *, stop_reason: str | None, epochs: float) -> None:
        """The step counts."""
        self._is_over = stop_reason is not None

    def broke(self, reason: str) -> None:
        """Of `Seat`; nothing can break."""

    def close(self, failure: str | None = None) -> None:
        """Of `Seat`."""


class EmptyChunk:
    """Loads the one chunk that the loop declares: scheduler and agents need something to place. It has one row."""

    outside: Outside | None = None

    def __init__(self, send: Callable[[control.TaskMessage], None]) -> None:
        self._source, self._send = ArraySource(np.zeros((1, 1)), np.zeros(1)), send
        [info] = self._source.infos(NO_STATE)
        self.slot_bytes = -(-info.size_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        self.size_bytes = info.size_bytes

    def order(self, load: control.Load, arena: Arena | None) -> None:
        """Write the chunk into its slot."""
        if arena is None:
            raise ProtocolError(f"the agent has not sent arena {load.arena}")
        chunk = self._source.load(ChunkId(load.chunk), NO_STATE)
        layout.encode(dataclasses.replace(chunk, notes=NO_STATE.fresh_notes(1)), arena.view(load.slot))
        self._send(control.Loaded(chunk=load.chunk, round=load.round))

    def close(self) -> None:
        """Of `Loader`."""


class ClusterSeat:
    """The seat of a task of a cluster. Raises ProtocolError when there is no agent at `address`, or one of another
    release. One class because the order of rounds, steps and their ends is its subject. A process has one:
    raises UsageError for another."""

    was_taken = False

    def __init__(self, user: LoopUser, address: str, clock: Clock, *, max_nodes: int) -> None:
        if ClusterSeat.was_taken:
            raise UsageError(
                "a second loop in one process: the job of the agents is that of the first; train in one loop, with "
                "modules in an nn.ModuleDict for example, or start a job for each"
            )
        ClusterSeat.was_taken = True
        self._user, self._clock, self.max_nodes = user, clock, max_nodes
        self._control = ControlClient(address)
        self._send_queue = SendQueue(self._control.send)
        self._signals = contextlib.ExitStack()
        self._signals.enter_context(signals_ignored())
        self._group: ProcessGroup | None = None
        self._order: control.Iterate | None = None
        self._following: control.Iterate | None = None
        self._standing = Standing()
        self._has_cast_vote = False
        self._began: int | None = None
        self._started_s = clock.now()
        self._is_closed = False
        welcome = self._control.welcome
        self.node, self.rank = str(welcome.node), 0
        self.members: tuple[str, ...] = (self.node,)
        self.checkpoint = welcome.checkpoint
        if self.checkpoint is not None and welcome.wants_resume:
            self.checkpoint = dataclasses.replace(self.checkpoint, resume=True)

    @property
    def is_broken(self) -> bool:
        """Whether a member of the round is known to be lost, so that no sum can come."""
        return self._group is None or self._group.is_broken

    def declare(self, *, seed: int, num_samples: int, digest: str, merged: int) -> None:
        """Tell the agent that this node may join.

        Args:
            digest: Of what all nodes have to build alike; nodes of another digest are refused.
            merged: Iteration of the checkpoint that this process has found; 0 for none.
        """
        chunk = EmptyChunk(self._control.send)
        self._control.send(control.Expect(num_chunks=1, slot_bytes=chunk.slot_bytes))
        self._control.start(chunk, MessageRouter(self._control.welcome.node, self._control.send))
        self._control.send(
            control.Declare(
                seed=seed,
                num_rows=num_samples,
                rows=(1,),
                size_bytes=(chunk.size_bytes,),
                slot_bytes=chunk.slot_bytes,
                merged=merged,
                data=digest,
                checkpoints="" if self.checkpoint is None else self.checkpoint.pace,
            )
        )

    def next(self) -> bool:
        """Execute the agent's orders until a step begins; False when the job is over.

        Raises:
            SystemExit: This node leaves; the exit code is 0.
            JobFailedError: A task has failed, and the job with it.
        """
        order, self._following = self._following, None
        while order is None:
            message = self._control.inbox.get()
            match message:
                case (control.Round() as round, ProcessGroup() as group):
                    self._form(round, group)
                case control.Iterate():
                    order = message
                    if self._group is None or self._group.round != order.round:
                        self._order, order = order, None
                        self.broke("there is no group of this round; the next round makes one")
                case control.Finish():
                    if message.failure is not None:
                        raise JobFailedError(f"{message.reason}\n{message.failure}")
                    return False
                case control.Exit():
                    raise SystemExit(0)
                case control.Save():
                    self._user.save()
                case control.Attach():
                    pass  # the chunk is empty
                case Exception():
                    raise message
                case _:
                    raise ProtocolError(f"the agent sent {message}, which is no order for a loop")
        self._order, self._started_s = order, self._clock.now()
        return True

    def gather(self, row: Row) -> list[Row]:
        """Return the rows of all members, by rank, and cast the agent's vote in that of this one. Raises PeerLostError
        when a member was lost."""
        self._has_cast_vote = self._control.has_vote
        row = row._replace(has_vote=self._has_cast_vote, seconds=self._clock.now() - self._started_s)
        rows = self._whole_group().all_gather(np.array(row, dtype=np.float64))
        return [
            Row(int(r[0]), int(r[1]), int(r[2]), float(r[3]), float(r[4]), bool(r[5]), bool(r[6]))
            for r in rows.tolist()
        ]

    def all_reduce(self, buffer: Array) -> None:
        """Replace `buffer` by the sum over all members, in place. Raises PeerLostError when a member was lost."""
        self._whole_group().all_reduce(buffer)

    def committed(self, rows: Sequence[Row], *, stop_reason: str | None, epochs: float) -> None:
        """Tell the agent that the step counts.

        Args:
            rows: Of all members, by rank.
            stop_reason: Why the job ends here, the same in every member; None to go on.
            epochs: Passes over the data so far.
        """
        order = self._order
        assert order is not None
        self._order = None
        self._standing = Standing(True, order.iteration, order.round, order.iteration)
        votes = sum(row.has_vote for row in rows)
        if self._has_cast_vote:
            self._control.forget_vote()
        goes_on = order.may_go_on and not votes and stop_reason is None and self._control.inbox.empty()
        if goes_on:
            self._control.begin_next()
            self._following = dataclasses.replace(order, iteration=order.iteration + 1, lines=(), must_rebuild=False)
        num_samples = sum(row.samples for row in rows)
        loss = sum(row.loss for row in rows) / max(1, num_samples)
        ended = control.IterationEnded(
            round=order.round,
            iteration=order.iteration,
            reports={
                node: TaskReport(samples=row.samples, duration_s=row.seconds)
                for node, row in zip(self._control_members, rows, strict=True)
            },
            votes=votes,
            stop_reason=stop_reason,
            figures={"loss": loss} if num_samples and np.isfinite(loss) else {},
            epochs=epochs,
            duration_s=self._clock.now() - self._started_s,
            model_address=0,
            ledger=(),
            is_interrupted=True,  # the empty chunk is never read
            goes_on=goes_on,
        )
        (self._send_queue.put if goes_on else self._send)(ended)

    def broke(self, reason: str) -> None:
        """Tell the agent that the step was not agreed on, and leave the group."""
        self._leave()
        order, self._order = self._order, None
        if order is not None:
            self._send(control.IterationBroke(round=order.round, iteration=order.iteration, reason=reason))

    def close(self, failure: str | None = None) -> None:
        """Leave the job, or end it with the traceback of code that has failed on all nodes. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self._leave()
        self._send_queue.close()
        self._control.close(control.Left() if failure is None else control.Failed(traceback=failure))
        self._signals.close()

    def _form(self, order: control.Round, group: ProcessGroup) -> None:
        """Connect to the members of a round, and bring all of them to the newest state."""
        self._leave()
        if self._began is None:
            self._began = order.began
            if order.began and self._user.restore(order.began):
                self._standing = Standing(True, order.began, RESTORED, order.began)
        own = self._standing
        is_other = StateVersion(max(0, own.round), own.iteration) != StateVersion(order.merged_round, order.merged)
        if order.is_return and own.merged >= order.merged and is_other:
            # This node was taken for lost. It may have committed a step that the others have repeated without it.
            own = own._replace(merged=order.merged - 1)
        try:
            network = GroupNetwork.of(**dataclasses.asdict(order.network))
            group.connect((order.host, order.port), prefix=order.prefix, network=network)
            standings = [
                Standing(bool(row[0]), *map(int, row[1:]))
                for row in group.all_gather(np.array(own, dtype=np.float64)).tolist()
            ]
            newest, plan = max(standings), transfers(standings)
            if newest == TORN or (order.merged > order.began and (not newest.has_begun or newest.round == RESTORED)):
                newest, plan = self._restart(order, group)
            in_place = newest.has_begun and not own.has_begun
            if in_place:
                self._standing = TORN
            self._user.exchange(group, plan, in_place=in_place)
        except PeerLostError as error:
            group.close()
            self._send(control.GroupBroke(round=order.round, reason=str(error)))
            return
        except BaseException:
            group.close()  # the others learn of it by that
            raise
        self._standing = newest._replace(has_begun=True, round=max(0, newest.round))
        self._group, self.rank = group, group.rank
        self._control_members = order.members
        self.members = tuple(map(str, order.members))
        self._send(control.GroupReady(round=order.round, merged=max(0, self._standing.merged), model_address=0))
        self._user.changed(self.members)

    def _restart(self, order: control.Round, group: ProcessGroup) -> tuple[Standing, Transfers]:
        """Go back to the newest checkpoint, as no member has the state of the steps that are done; returns its standing
        and who sends it. Raises JobFailedError where there is none, and the job ends with it."""
        found = self._user.restore_newest(order.merged)
        standings = [
            Standing(step > 0, int(step), 0, int(step)) for [step] in group.all_gather(np.array([float(found)]))
        ]
        self._standing = standings[group.rank] if found else TORN
        newest = max(standings)
        if not newest.has_begun:
            text = "no node that is left has the state of the training, and there is no checkpoint of it"
            group.close()
            self.close(text if order.merged > order.began else None)
            raise JobFailedError(text)
        logger.warning("no node that is left has the state of the training; it goes on from step %d", newest.merged)
        return newest, transfers(standings)

    def _whole_group(self) -> ProcessGroup:
        if self._group is None:
            raise PeerLostError(f"{self.node} is in no group; the next round makes one")
        return self._group

    def _send(self, message: control.TaskMessage) -> None:
        self._send_queue.flush()
        self._control.send(message)

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()


Seat: TypeAlias = Solo | ClusterSeat
