"""The place of this process among those that run the loop: a task of a cluster, or the only process.

A seat tells the loop when a step begins, and adds up for it. It knows rounds, members and the agent; of the model it
knows that its state travels. To the agent the loop is a task like any other: an iteration is a step of the loop, and
the data set is one empty chunk, because the loop's samples stay where they are and follow from ranks (`schedule`). So
agents, log and launcher are those of every other job.
"""

import contextlib
import gc
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import numpy as np
import torch

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import NO_STATE, Array
from chicle_elastic.clock import Clock
from chicle_elastic.errors import ChicleError, JobFailedError, PeerLostError, ProtocolError, UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.runtime.cluster_task.chunk_loader import ChunkLoader
from chicle_elastic.runtime.cluster_task.control_client import ControlClient
from chicle_elastic.runtime.cluster_task.message_router import MessageRouter
from chicle_elastic.runtime.cluster_task.task import signals_ignored
from chicle_elastic.runtime.collectives.process_group import ProcessGroup
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.torch.checkpoints import LoopCheckpoints
from chicle_elastic.torch.schedule import Row, Standing, holders_of
from chicle_elastic.torch.state import TrainingState, begin_transfer
from chicle_elastic.values import StateVersion, TaskReport

logger = logging.getLogger(__name__)

RESTORED = -1
"""Round of a state that a process has read from the checkpoint of before the job, and that took part in no round."""


class Seat:
    """The seat of a process that no agent has started, which trains alone, in a group of one; another one builds on it.

    Attributes:
        callbacks: Called with the names of all members when there are others.
        members: Names of the nodes that take part, by rank.
        workers: Ranks of the members that have samples in the next step. In the first of a round others receive state.
    """

    def __init__(self, *, node: str = "local", max_nodes: int = 1) -> None:
        self.node, self.max_nodes = node, max_nodes
        self.callbacks: list[Callable[[tuple[str, ...]], object]] = []
        self.members: tuple[str, ...] = (node,)
        self.workers: tuple[int, ...] = (0,)
        self._group = ProcessGroup(round=0, rank=0, size=1)
        self._is_over = False

    @property
    def rank(self) -> int:
        """Rank of this process among the members."""
        return self.members.index(self.node)

    @property
    def is_broken(self) -> bool:
        """Say whether the group of the round is broken or left, so that no sum can come."""
        return self._group.is_broken

    def declare(self, state: TrainingState, *, seed: int, num_samples: int, digest: str) -> None:
        """Tell that this node may join with its state; nodes of another digest, of what all have to build alike, are
        refused."""
        self._tell_members()

    def next(self) -> bool:
        """Return whether a step begins; False when the training is over."""
        return not self._is_over

    def gather(self, row: Row) -> list[Row]:
        """Return the rows of all members, by rank. Raises PeerLostError when a member was lost."""
        return [Row(*values) for values in self._group.all_gather(np.array(row, dtype=np.float64)).tolist()]

    def all_reduce(self, buffer: Array) -> None:
        """Replace `buffer` by the sum over all members, in place. Raises PeerLostError when a member was lost."""
        self._group.all_reduce(buffer)

    def committed(self, rows: Sequence[Row], *, stop_reason: str | None, epochs: float, is_last: bool) -> None:
        """Tell that the step counts, after so many `epochs`; with a reason to stop, the same in every member, the job
        ends here."""
        self._is_over = stop_reason is not None

    def broke(self, reason: str) -> None:
        """Tell that the step was not agreed on, and leave the group."""

    def close(self, failure: str | None = None) -> None:
        """Leave the job, or end it with the traceback of code that has failed on all nodes."""

    def _tell_members(self) -> None:
        for callback in self.callbacks:
            callback(self.members)


class ClusterSeat(Seat):
    """The seat of a task of a cluster. One class because the order of rounds, steps and their ends is its subject.

    Args:
        address: Of the agent.

    Raises:
        ProtocolError: There is no agent at `address`, or one of another release.
        UsageError: A process has one seat, and this one has had it.
    """

    was_taken = False

    def __init__(self, address: str, clock: Clock, *, max_nodes: int) -> None:
        if ClusterSeat.was_taken:
            raise UsageError(
                "a second loop in one process: the job of the agents is that of the first; train in one loop, with "
                "modules in an nn.ModuleDict for example, or start a job for each"
            )
        ClusterSeat.was_taken = True
        self._clock, self._control = clock, ControlClient(address)
        super().__init__(node=str(self._control.welcome.node), max_nodes=max_nodes)
        self._signals = contextlib.ExitStack()
        self._signals.enter_context(signals_ignored())
        self._group.close()  # the first round makes one
        self._order: control.Iterate | None = None
        self._following: control.Iterate | None = None
        self._standing = Standing()
        self._started_s = clock.now()
        self._failure: str | None = None
        self._sender = ThreadPoolExecutor(1, "chicle-state")
        self._sending: list[Future[None]] = []
        self._checkpoints: LoopCheckpoints | None = None

    def declare(self, state: TrainingState, *, seed: int, num_samples: int, digest: str) -> None:
        """Tell the agent."""
        self._state, welcome = state, self._control.welcome
        tell = partial(self._control.saved, is_resumed=welcome.wants_resume)
        settings = welcome.checkpoint
        if welcome.wants_resume and settings is None:
            raise UsageError("--resume needs the checkpoints: give --checkpoint FOLDER, too")
        self._checkpoints = None if settings is None else LoopCheckpoints(settings, state, self.node, tell)
        source = ArraySource(np.zeros((1, 1)), np.zeros(1))  # scheduler and agents need something to place
        infos = source.infos(NO_STATE)
        slot_bytes = self._control.expect(infos)
        loader = ChunkLoader(source, NO_STATE, None, self._control.send)
        self._control.start(loader, MessageRouter(welcome.node, self._control.send))
        self._control.send(
            control.Declare(
                seed=seed,
                num_rows=num_samples,
                rows=(1,),
                size_bytes=(infos[0].size_bytes,),
                slot_bytes=slot_bytes,
                merged=self._checkpoints.newest() if self._checkpoints and welcome.wants_resume else 0,
                data=digest,
                checkpoints="" if settings is None else settings.pace,
                torch=torch.__version__.partition("+")[0],
            )
        )

    def next(self) -> bool:
        """Execute the agent's orders until a step begins. Raises SystemExit when this node leaves, JobFailedError when
        a task has failed, and the job with it."""
        while True:
            message, self._following = self._following or self._control.inbox.get(), None
            match message:
                case (control.Round() as round, ProcessGroup() as group):
                    self._form(round, group)
                case control.Iterate():
                    self._order, self._started_s = message, self._clock.now()
                    if self._group.round == message.round and not self.is_broken:
                        return True
                    self.broke("there is no whole group of this round; the next round makes one")
                case control.Finish():
                    if message.failure is not None:
                        raise JobFailedError(f"{message.reason}\n{message.failure}")
                    return False
                case control.Exit():
                    gc.freeze()  # or Python looks through a million objects of torch's at its end, and others wait
                    raise SystemExit(0)
                case control.Save():
                    if self._checkpoints and self._standing.merged == message.iteration:
                        self._checkpoints.save()
                case control.Attach():
                    pass  # the chunk is empty
                case Exception():
                    raise message
                case _:
                    raise ProtocolError(f"the agent sent {message}, which is no order for a loop")

    def gather(self, row: Row) -> list[Row]:
        """Cast the agent's vote in the row of this member, too; a sum waits until the state is sent, which goes by the
        same connections."""
        for sending in self._sending:
            sending.result()
        seconds = self._clock.now() - self._started_s
        return super().gather(row._replace(has_vote=self._control.has_vote, seconds=seconds))

    def committed(self, rows: Sequence[Row], *, stop_reason: str | None, epochs: float, is_last: bool) -> None:
        """Tell the agent, and save the state where it is time; the next step begins without an order where it may."""
        order, self._order = self._order, None
        assert order is not None
        self._standing = Standing(True, order.iteration, order.round, order.iteration)
        votes, num_samples = int(sum(row.has_vote for row in rows)), sum(row.samples for row in rows)
        if rows[self.rank].has_vote:
            self._control.forget_vote()
        goes_on = order.may_go_on and not votes and stop_reason is None and self._control.inbox.empty()
        self._following = order.following() if goes_on else None
        loss = sum(row.loss for row in rows) / max(1, num_samples)
        ended = control.IterationEnded(
            round=order.round,
            iteration=order.iteration,
            reports={
                node: TaskReport(samples=int(row.samples), duration_s=row.seconds)
                for node, row in zip(map(NodeId, self.members), rows, strict=True)
            },
            votes=votes,
            stop_reason=stop_reason,
            figures={"loss": loss} if num_samples and np.isfinite(loss) else {},
            epochs=epochs,
            duration_s=self._clock.now() - self._started_s,
            is_interrupted=True,  # the empty chunk is never read
            goes_on=goes_on,
        )
        self._control.ended(ended)
        self.workers = tuple(range(len(rows)))
        if self.rank == 0 and stop_reason is None and self._checkpoints:
            self._checkpoints.committed(is_last=is_last)

    def broke(self, reason: str) -> None:
        """Leave the group, then tell the agent."""
        self._leave()
        order, self._order = self._order, None
        if order is not None:
            self._control.report(control.IterationBroke(round=order.round, iteration=order.iteration, reason=reason))

    def close(self, failure: str | None = None) -> None:
        """End what goes on in other threads, then tell the agent."""
        self._leave()
        self._sender.shutdown()
        if self._checkpoints:
            self._checkpoints.close()
        failure = failure or self._failure
        self._control.close(control.Left() if failure is None else control.Failed(traceback=failure))
        self._signals.close()

    def _form(self, order: control.Round, group: ProcessGroup) -> None:
        """Connect to the members of a round, and bring all of them to the newest state."""
        self._leave()
        if order.began and not self._standing.has_begun:
            self._restore(order.began, RESTORED)
        own = self._standing
        version = StateVersion(max(0, own.round), own.iteration)
        own = own._replace(merged=order.merged_by(own.merged, version))
        self._group, is_late = group, False
        try:
            group.connect()
            newest, holders = _gather_standings(group, own)
            if (order.merged and not newest.has_begun) or (newest.round == RESTORED and order.merged > order.began):
                newest, holders = self._restart(order, group)
            rest = begin_transfer(group, holders, self._state)
            ready = control.GroupReady(round=order.round, merged=newest.merged, sums=group.sums)
            # The first step goes on meanwhile.
            is_late = newest.has_begun and self._state.is_alike and len(holders) < group.size
            if is_late:
                self._control.report(ready)
            if is_late and group.rank in holders:
                self._sending = [self._sender.submit(rest)]
            else:
                rest()
        except BaseException as error:
            self._leave()  # the others learn of it by that
            is_of_peers = isinstance(error.__cause__, OSError | ChicleError | None)  # else no memory here
            if not isinstance(error, PeerLostError) or not is_of_peers:
                raise
            if not is_late:  # else the step breaks, which those tell that compute it
                self._control.report(control.GroupBroke(round=order.round, reason=str(error)))
            return
        self._standing = newest._replace(has_begun=True, round=max(0, newest.round))
        self.members = tuple(map(str, order.members))
        self.workers = holders if is_late else tuple(range(group.size))
        if not is_late:
            self._control.report(ready)
        self._tell_members()

    def _restart(self, order: control.Round, group: ProcessGroup) -> tuple[Standing, tuple[int, ...]]:
        """Go back to the newest checkpoint, as no member has the state of the steps that are done; returns its standing
        and who has it. Raises JobFailedError where there is none, and the job ends with it."""
        self._standing = Standing()
        self._restore(self._checkpoints.newest(order.merged) if self._checkpoints else 0, 0)
        newest, holders = _gather_standings(group, self._standing)
        if not newest.has_begun:
            text = "no node that is left has the state of the training, and there is no checkpoint of it"
            self._failure = text if order.merged > order.began else None
            raise JobFailedError(text)
        logger.warning("no node that is left has the state of the training; it goes on from step %d", newest.merged)
        return newest, holders

    def _restore(self, step: int, round: int) -> None:
        if self._checkpoints and self._checkpoints.restore(step):
            self._standing = Standing(True, step, round, step)

    def _leave(self) -> None:
        self._group.break_()
        wait(self._sending)
        self._sending = []
        self._group.close()


def _gather_standings(group: ProcessGroup, own: Standing) -> tuple[Standing, tuple[int, ...]]:
    """Return the newest standing of all members, and who has it."""
    rows = group.all_gather(np.array(own, dtype=np.float64)).tolist()
    standings = [Standing(bool(has_begun), *map(int, rest)) for has_begun, *rest in rows]
    return max(standings), holders_of(standings)
