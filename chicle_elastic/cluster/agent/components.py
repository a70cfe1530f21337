"""The components of a node once it knows the job: its membership, its chunk manager, and its effect executor."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from chicle_elastic import __version__
from chicle_elastic.cgroups import memory_headroom
from chicle_elastic.cluster.agent import effect_executor, membership
from chicle_elastic.cluster.agent.effect_executor import EffectExecutor
from chicle_elastic.cluster.agent.group_formation import GroupFormation, host_of_peer
from chicle_elastic.cluster.agent.membership import Identity, Membership
from chicle_elastic.cluster.agent.node_protocols import Launcher, ResourceLink
from chicle_elastic.cluster.agent.store_keeper import StoreKeeper
from chicle_elastic.cluster.consensus.term_store import TermStore
from chicle_elastic.cluster.net.event_file import EventFile
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.fault_points import hit
from chicle_elastic.cluster.net.peers import PeerLinks
from chicle_elastic.cluster.options import NodeOptions
from chicle_elastic.cluster.transfer.chunk_manager import ChunkManager
from chicle_elastic.errors import CapacityError
from chicle_elastic.monitoring.job_metrics import JobMetrics
from chicle_elastic.monitoring.recording_file import RecordingFile
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from chicle_elastic.settings import Settings
from chicle_elastic.store.chunk_store import DEFAULT_ARENA_BYTES, ChunkStore
from chicle_elastic.transports.node_address import NodeAddress
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import TransportSelector
from chicle_elastic.transports.tls import TlsIdentity

HEADROOM_SHARE = 0.8  # the share of the memory left on the host or in the control group that chunks may take by default


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """Holds what the agent of a node has set up for it: options, addresses, secret and limits of the job, its files."""

    loop: EventLoop
    launcher: Launcher
    options: NodeOptions
    term_store: TermStore
    store_keeper: StoreKeeper
    event_file: EventFile
    recording: RecordingFile | None
    control: str  # address of the agent for its task
    address: NodeAddress
    round_store: str
    run_id: str
    secret: JobSecret
    metrics: JobMetrics
    min_nodes: int
    max_nodes: int
    tls: TlsIdentity | None = None
    bulk_tls: TlsIdentity | None = None
    resources: ResourceLink | None = None


class NodeCallbacks(membership.MembershipCallbacks, effect_executor.Host, Protocol):
    """Names the calls by which its components reach the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """See the top of the module."""

    declared: control.Declare  # the job, as the task declared it
    membership: Membership  # the log and the links that this node shares with the others
    memory: ChunkManager
    executor: EffectExecutor
    handlers: Mapping[type, Callable[[Any], object]]

    def describe(self) -> dict[str, Any]:
        """Return the state of the agent as JSON values: its part in the log and the round, and what it waits for."""
        scheduler = self.membership.log.scheduler
        return {
            **self.membership.log.describe(),
            "state": scheduler.state.value,
            "round": scheduler.round,
            "copies": Counter(f"{lease.source} to {lease.target} {lease.state.value}" for lease in scheduler.leases),
            "frees": Counter(node for node, _ in scheduler.ledger.freeing),
            "missing": scheduler.ledger.num_missing,
            "under_way": self.memory.under_way,
        }


def build_components(
    declared: control.Declare,
    store: ChunkStore,
    context: NodeContext,
    transports: TransportSelector,
    users: NodeCallbacks,
) -> Components:
    """Build the components of a node, which has not joined yet."""
    loop, options = context.loop, context.options
    node = options.node
    start_nodes = options.start_nodes or context.min_nodes
    settings = SchedulerSettings(
        seed=declared.seed,
        min_nodes=context.min_nodes,
        max_nodes=context.max_nodes,
        start_nodes=start_nodes,
        precopy=True,
    )
    members = Membership(
        loop,
        Identity(
            node=node,
            capacity_bytes=store.capacity_bytes,
            max_nodes=context.max_nodes,
            endpoints=transports.endpoints,
            declared=declared.to_event(),
            patience_s=options.patience_s,
            may_begin_anew=options.may_begin_anew,
            job={
                "version": __version__,  # all agents fold one log, and have to come to the same effects
                "seed": declared.seed,
                "chunks": len(declared.rows),
                "rows": declared.num_rows,
                "slot_bytes": declared.slot_bytes,
                "min_nodes": context.min_nodes,
                "max_nodes": context.max_nodes,
                "checkpoints": declared.checkpoints,
                "start_nodes": start_nodes,
            }
            | ({"data": declared.data} if declared.data else {})
            | ({"torch": declared.torch} if declared.torch else {})
            | ({"tls_bulk": True} if context.bulk_tls is not None else {}),
        ),
        make_links=lambda users: PeerLinks(
            loop,
            context.secret,
            node=node,
            address=context.address,
            round_store=context.round_store,
            users=users,
            status=context.metrics.status,
            tls=context.tls,
        ),
        term_store=context.term_store,
        make_scheduler=lambda: Scheduler(settings),
        require_open=context.launcher.require_open,
        users=users,
    )
    if context.recording is not None:
        members.log.record(context.recording)
    memory = ChunkManager(
        loop,
        node=node,
        store=store,
        transports=transports,
        sizes=declared.size_bytes,
        say=members.log.append,
        tell_task=users.tell_task,
        tell_peer=lambda to, kind, fields: members.peer_links.send(to, kind, **fields),
    )
    executor = EffectExecutor(
        loop,
        node=node,
        log=members.log,
        memory=memory,
        host=users,
        meet=context.launcher.meet,
        event_file=context.event_file,
        resources=context.resources,
        formation=GroupFormation(
            node=node,
            address=context.address.for_bulk,
            run_id=context.run_id,
            secret=context.secret,
            patience_s=options.patience_s,
            rdma=transports.rdma_device if Settings.from_environment().sends_model_by_rdma else "",
            address_of=lambda other: host_of_peer(members.peer_links.peers.get(other)),
        ),
    )
    return Components(
        declared=declared,
        membership=members,
        memory=memory,
        executor=executor,
        handlers={
            control.Loaded: memory.loaded,
            control.LoadFailed: memory.load_failed,
            control.GroupReady: executor.group_ready,
            control.GroupBroke: executor.group_broke,
            control.IterationEnded: executor.iteration_ended,
            control.IterationBroke: executor.iteration_broke,
            control.Saved: executor.saved,
            control.Proposal: executor.policy_events.proposed,
            control.PolicyDisabled: members.log.append,
        },
    )


def allocate_store(expected: control.Expect, context: NodeContext) -> ChunkStore:
    """Make the chunk store. A worker thread allocates its first memory while the task gets ready.
    `ChunkManager.prepare` reports a failure of that allocation. Raises CapacityError when there is no room for a single
    chunk."""
    # Arenas of the share that is left to a node when one of those that begin is gone: it needs no other arena then.
    options = context.options
    sharing = max(1, (options.start_nodes or context.min_nodes) - 1)
    share = -(-expected.num_chunks // sharing) * expected.slot_bytes
    store = ChunkStore(
        slot_bytes=expected.slot_bytes,
        capacity_bytes=capacity_bytes(expected, options.memory_bytes),
        arena_bytes=min(DEFAULT_ARENA_BYTES, share),
    )
    num_bytes = initial_bytes(expected.num_chunks, expected.slot_bytes, context)

    def take() -> None:
        hit("memory.before_taken")
        store.prepare(num_bytes)

    context.loop.work(take, lambda _: None)
    return store


def initial_bytes(num_chunks: int, slot_bytes: int, context: NodeContext) -> int:
    """Memory that a node allocates before it joins: its share with `max_nodes` nodes, the least that it will hold."""
    return num_chunks * slot_bytes // max(1, context.max_nodes)


def capacity_bytes(expected: control.Expect, memory_bytes: int | None) -> int:
    """Memory for chunks. Raises CapacityError when there is no room for a single chunk.

    Args:
        memory_bytes: As the user gave it; None for what the host has left.
    """
    # All chunks, and as many in transfer: more is never needed.
    room_bytes = 2 * expected.num_chunks * expected.slot_bytes
    source = "the data set"
    if memory_bytes is not None:
        room_bytes, source = memory_bytes, "--memory"
    elif (headroom := memory_headroom()) is not None:
        room_bytes, source = min(room_bytes, int(HEADROOM_SHARE * headroom.num_bytes)), headroom.source
    if room_bytes < expected.slot_bytes:
        raise CapacityError(
            f"{source} leaves {room_bytes} bytes for chunks, and one chunk needs {expected.slot_bytes}; give the node "
            "more memory, or convert the data with smaller chunks"
        )
    return room_bytes
