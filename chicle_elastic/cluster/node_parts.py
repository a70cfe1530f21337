"""What a node is made of once it knows the job: its place in it, its memory, and who performs orders."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from chicle_elastic.cgroups import memory_headroom
from chicle_elastic.cluster import membership, performer
from chicle_elastic.cluster.event_file import EventFile
from chicle_elastic.cluster.event_loop import EventLoop
from chicle_elastic.cluster.launch_args import NodeOptions
from chicle_elastic.cluster.membership import Identity, Membership
from chicle_elastic.cluster.memory import NodeMemory
from chicle_elastic.cluster.performer import Performer
from chicle_elastic.cluster.steps import reach
from chicle_elastic.cluster.term_key import TermKey
from chicle_elastic.errors import CapacityError
from chicle_elastic.runtime import control
from chicle_elastic.scheduling.machine import Scheduler, SchedulerSettings
from chicle_elastic.store.chunk_store import DEFAULT_ARENA_BYTES, ChunkStore
from chicle_elastic.transports.carrier import Carrier
from chicle_elastic.transports.secret import JobSecret

HEADROOM_SHARE = 0.8
"""Of the memory that the host or the control group has left, what chunks may take by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a node runs.

    Attributes:
        control: Where the task finds its agent.
        host: Address of this host, for others.
        endpoint: Of the rendezvous store.
        run_id: Of the job.
        secret: Of the job.
        min_nodes: Fewer pause the job.
        max_nodes: More have to wait.
    """

    control: str
    host: str
    endpoint: str
    run_id: str
    secret: JobSecret
    min_nodes: int
    max_nodes: int


class Users(membership.Users, performer.Host, Protocol):
    """Whoever is told what the parts cannot do by themselves: the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts.

    Attributes:
        declared: The job, as the task declared it.
        membership: Its place among the others.
        memory: Its chunks.
        performer: Performs orders.
        answers: Who takes which message of the task.
    """

    declared: control.Declare
    membership: Membership
    memory: NodeMemory
    performer: Performer
    answers: Mapping[type, Callable[[Any], object]]


def build_parts(
    declared: control.Declare,
    store: ChunkStore,
    *,
    loop: EventLoop,
    place: Place,
    options: NodeOptions,
    carrier: Carrier,
    term_key: TermKey,
    event_file: EventFile,
    is_ready: Callable[[], bool],
    require_open: Callable[[], None],
    tell_task: Callable[..., None],
    users: Users,
) -> Parts:
    """Get ready to meet others.

    Args:
        declared: The job.
        store: For its chunks.
        loop: The loop.
        place: Where this is.
        options: Of the launcher.
        carrier: Transports of this node.
        term_key: The terms in the store.
        event_file: Takes what happens.
        is_ready: Whether the node could join now.
        require_open: Raises JobClosedError when the job has ended; called in a worker thread.
        tell_task: Sends (message, descriptor or None) to the task.
        users: The node.
    """
    node = options.node
    start_nodes = options.start_nodes or place.min_nodes
    settings = SchedulerSettings(seed=declared.seed, min_nodes=place.min_nodes, start_nodes=start_nodes, precopy=True)
    members = Membership(
        loop,
        Identity(
            node=node,
            host=place.host,
            capacity_bytes=store.capacity_bytes,
            max_nodes=place.max_nodes,
            offer=carrier.offer,
            chunks=declared.infos(),
            merged=declared.merged,
            job={
                "seed": declared.seed,
                "chunks": len(declared.rows),
                "rows": declared.num_rows,
                "slot_bytes": declared.slot_bytes,
                "min_nodes": place.min_nodes,
                "max_nodes": place.max_nodes,
                "checkpoints": declared.checkpoints,
                "start_nodes": start_nodes,
            },
        ),
        secret=place.secret,
        term_key=term_key,
        make_scheduler=lambda: Scheduler(settings),
        is_ready=is_ready,
        require_open=require_open,
        users=users,
    )
    memory = NodeMemory(
        loop,
        node=node,
        store=store,
        carrier=carrier,
        sizes=declared.size_bytes,
        say=members.propose,
        tell_task=tell_task,
        tell_peer=lambda to, kind, fields: members.mesh.send(to, kind, **fields),
    )
    performs = Performer(
        loop,
        node=node,
        membership=members,
        memory=memory,
        host=users,
        event_file=event_file,
        endpoint=place.endpoint,
        run_id=place.run_id,
    )
    return Parts(
        declared=declared,
        membership=members,
        memory=memory,
        performer=performs,
        answers={
            control.Loaded: memory.loaded,
            control.LoadFailed: memory.load_failed,
            control.GroupReady: performs.group_ready,
            control.GroupBroke: performs.group_broke,
            control.IterationEnded: performs.iteration_ended,
            control.IterationBroke: performs.iteration_broke,
            control.Saved: performs.saved,
            control.Advice: performs.advised,
            control.PolicyFailed: performs.policy_failed,
        },
    )


def take_memory(expected: control.Expect, loop: EventLoop, options: NodeOptions, place: Place) -> ChunkStore:
    """A store for the chunks of the job. Its first memory is taken by a worker thread, while the task gets ready.

    What goes wrong there is found by `NodeMemory.prepare`.

    Raises:
        CapacityError: There is no room for a single chunk.
    """
    store = ChunkStore(
        slot_bytes=expected.slot_bytes,
        capacity_bytes=capacity_bytes(expected, options.memory_bytes),
        arena_bytes=min(DEFAULT_ARENA_BYTES, expected.num_chunks * expected.slot_bytes),
    )
    num_bytes = first_bytes(expected.num_chunks, expected.slot_bytes, place)

    def take() -> None:
        reach("memory.before_taken")
        store.prepare(num_bytes)

    loop.work(take, lambda _: None)
    return store


def first_bytes(num_chunks: int, slot_bytes: int, place: Place) -> int:
    """What a node takes before it joins: the share of one of the most nodes is the least that it will hold."""
    return num_chunks * slot_bytes // max(1, place.max_nodes)


def capacity_bytes(expected: control.Expect, memory_bytes: int | None) -> int:
    """Memory for chunks.

    Args:
        expected: The job.
        memory_bytes: As the user said; None for what the host has left.

    Raises:
        CapacityError: There is no room for a single chunk.
    """
    # All chunks, and as many on their way: more is never needed.
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
