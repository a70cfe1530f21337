"""What every anchor does: it stands between the job and the members, until the job is over.

    the job, or a person    wants so many nodes      (the board in the rendezvous store)
    members                 of Slurm, of Kubernetes, processes of this host: `Members`

The anchor trains nothing and knows no chunk. What it reads of the board is signed by nodes of the job.
"""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from chicle_elastic.cluster.rendezvous.resource_board import NodeOffer, ResourceBoard
from chicle_elastic.errors import PeerLostError
from chicle_elastic.ids import NodeId
from chicle_elastic.resources.managed_nodes import ManagedNodes
from chicle_elastic.resources.managers import ResourceManager
from torchx_components.job_state import MemberState, StateWriter

TURN_S = 0.5
FEW_S = 10.0  # after so long with too few nodes the anchor says what it waits for
END_S = 60.0  # members under notice may take so long to end when the job is over


@dataclass(frozen=True, slots=True)
class Member:
    """A member that has a place to run."""

    name: NodeId  # of the node of the job
    host: str  # where it is, in the words of the scheduler
    since_s: float  # when it was seen first, by the monotonic clock
    is_noticed: bool = False


class Members(ResourceManager, Protocol):
    """A resource manager that starts members of one job; none of its methods waits, but `begin` and `close`."""

    @property
    def members(self) -> Mapping[NodeId, Member]:
        """Those that have a place now, by name; replaced as a whole."""

    @property
    def waiting(self) -> str:
        """What a person can look at while none has come, in words."""

    def begin(self) -> None:
        """Ask for the first members. Raises UsageError when the scheduler refuses them, PeerLostError when there is no
        scheduler, or it does not answer."""

    def notice(self, node: NodeId) -> None:
        """Tell a member that it has to leave."""

    def stop_starting(self) -> None:
        """The job is over: none starts in place of one that ends now."""

    def close(self) -> None:
        """Take back what was asked for, and end the members that are left."""


def serve(
    members: Members,
    board: ResourceBoard,
    *,
    least: int = 1,
    state: StateWriter | None = None,
) -> int:
    """Stand between the job and its members until the job is over; returns the exit code.

    Args:
        members: Has begun.
        state: Where the anchor writes how the job stands; None where no folder is shared.
    """
    managed = ManagedNodes(members)
    began_s = time.monotonic()
    request = scale = notice = offers = 0
    target = 0 if state is None else state.state.wanted
    known: set[NodeId] = set()
    assigned: set[NodeId] = set()
    few_since_s, has_told = began_s, False
    while True:
        time.sleep(TURN_S)
        wanted = board.request()
        if wanted is not None and wanted.number > request:
            request = wanted.number
            print(f"anchor: the job wants {wanted.total} nodes: {wanted.reason}", flush=True)
            managed.request(wanted.total, wanted.reason)
            target = wanted.total
        told = board.scale()
        if told is not None and told.number > scale:
            scale = told.number
            print(f"anchor: {told.total} nodes are wanted from outside", flush=True)
            managed.wanted = None
            members.request(told.total, "from outside")
            _let_go(members, told.total)
            target = told.total
        leaving = board.notice()
        for node in () if leaving is None else leaving.nodes[notice:]:
            print(f"anchor: {node} gets notice, from outside", flush=True)
            members.notice(NodeId(node))
        notice = notice if leaving is None else leaving.number
        here = members.members
        _tell(state, members, target)
        for node in known - here.keys():
            print(f"anchor: {node} is gone", flush=True)
            assigned.discard(node)
            managed.released(node)
        for node in here.keys() - known:
            print(f"anchor: {node} has {here[node].host}", flush=True)
        known = set(here)
        if len(known) >= least:
            few_since_s, has_told = time.monotonic(), False
        elif not has_told and time.monotonic() - few_since_s >= FEW_S:
            has_told = True
            print(f"anchor: {len(known)} of at least {least} nodes are here; {members.waiting}", flush=True)
        staying = [node for node in assigned if node in here and not here[node].is_noticed]
        news = managed.poll(time.monotonic() - began_s, staying)
        assigned.update(news.assigned)
        for revoked in news.revoked:
            members.notice(revoked.node)
        for line in news.lines:
            print(f"anchor: {line}", flush=True)
        if news.offer is not None or news.lines:
            offers += 1
            offer = news.offer
            text = "; ".join(news.lines)
            board.put_offer(NodeOffer(offers, None if offer is None else offer.available, None, text))
        finished = board.finished()
        if finished is not None:
            print(f"anchor: the job is over: {finished.reason}", flush=True)
            _wait_for_end(members, state)
            before, finished = finished, board.finished() or finished
            if finished != before:
                print(f"anchor: {finished.reason}", flush=True)
            if state is not None:
                state.change("failed" if finished.has_failed else "succeeded", finished.reason)
            return int(finished.has_failed)
        if managed.fault is not None:
            if state is not None:
                state.change("failed", managed.fault)
            return 1


def _let_go(members: Members, total: int) -> None:
    """Give the newest members notice until as many stay as are wanted."""
    staying = [member for member in members.members.values() if not member.is_noticed]
    for member in sorted(staying, key=lambda member: member.since_s)[total:]:
        members.notice(member.name)


def _tell(state: StateWriter | None, members: Members, wanted: int) -> None:
    """Write down who is there, where there is a folder to write to."""
    if state is not None:
        state.tell((MemberState(one.name, one.host, one.is_noticed) for one in members.members.values()), wanted)


def _wait_for_end(members: Members, state: StateWriter | None) -> None:
    """Wait until the members have ended by themselves: their scripts may evaluate a model, or write it."""
    began_s, has_told = time.monotonic(), False
    members.stop_starting()
    while left := members.members:
        waited_s = time.monotonic() - began_s
        if waited_s > END_S and all(member.is_noticed for member in left.values()):
            return
        if waited_s > FEW_S and not has_told:
            has_told = True
            print(f"anchor: waits for what the scripts of {', '.join(left)} do after the job", flush=True)
        time.sleep(TURN_S)
        _tell(state, members, 0)
        with contextlib.suppress(PeerLostError):  # how they end does not matter any more
            members.poll(time.monotonic())
