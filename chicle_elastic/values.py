"""Small values that more than one floor speaks of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from chicle_elastic.ids import ChunkId, NodeId

TRAINER, EVERYONE = "trainer", "*"  # parties of messages, beside nodes, which mean the solvers in their tasks
POLICY_PREFIX = "policy:"  # how the name of a policy begins as a party
HISTORY_LENGTH = 32  # iterations whose reports and figures policies see
DEADLINE = "deadline_s"
"""Parameter that policies can set where `Trainer.may_be_cut`: seconds after which the solver of each task ends its work
in an iteration (`Budget.deadline_s`); 0 for no deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkInfo:
    """What the scheduler knows of a chunk: never its bytes."""

    id: ChunkId
    num_rows: int  # samples in it, >= 1
    size_bytes: int  # memory it takes on a node, state included; capacities are counted in these


@dataclass(frozen=True, slots=True, order=True)
class StateVersion:
    """Orders copies of a chunk's state: a committed round beats an older one, then the last merged iteration."""

    round: int = 0  # membership round in which the copy was last committed
    iteration: int = 0  # last *merged* iteration that the state contains; raised only after the merge


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkAccount:
    """What became of one chunk in a job, as the ledger has it."""

    chunk: ChunkId
    rows: int  # samples in it
    owner: NodeId | None  # node that owns it at the end; None while it is missing
    iterations: Mapping[NodeId, int]  # merged iterations that processed it, by the node that did
    # how often its state was started afresh after it had been processed, because its owner was lost. Its samples may
    # have been processed more often than others within an epoch
    replays: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """What one task says of its iteration (a part of `IterationFinished`)."""

    samples: int  # samples it processed
    duration_s: float  # seconds it computed


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """What a runtime says of an iteration beside the reports of its tasks; the same in every task."""

    # `Trainer.figures` of the iteration; those that are not finite are left out
    figures: Mapping[str, float] = field(default_factory=dict)
    epochs: float = 0.0  # passes over the data so far
    elapsed_s: float = 0.0  # seconds since the job began, at the end of the iteration
    # wall seconds from the end of the iteration before to the end of this one, so with the boundary
    duration_s: float = 0.0
    # `Trainer.tunables`, with the values that held in the iteration
    parameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message between tasks, trainer and policies: JSON values, never pickled objects.

    Attributes:
        sender: Name of the task, "trainer", or "policy:" and the name of the policy.
        payload: None, bool, int, float, str, list or dict of these.
    """

    sender: str
    payload: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressedMessage(Message):
    """A message of a policy on its way."""

    to: str  # as in `SendMessage`


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """What has happened to nodes, chunks and checkpoints, as policies see it.

    Attributes:
        kind: "joined", "noticed" (it will be taken away), "left" and "lost" are of a node; "copied" of the link between
            two nodes; "saved" of a checkpoint.
        iteration: The first iteration that began after it.
        node: The node; of a link its target, of a checkpoint empty.
        source: Where copied chunks came from; else empty.
        size_bytes: Of the chunks that were copied, or of the checkpoint.
        duration_s: From the order to copy, or the boundary of the checkpoint, until it was done. Rows are copied while
            iterations run, and known to be there at the end of one: a link is slow where this is many iterations.
    """

    kind: str
    iteration: int
    node: str = ""
    source: str = ""
    size_bytes: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOffer:
    """What a resource manager says that it could give.

    Attributes:
        available: Nodes that it could add now, >= 0; None where it does not say.
        price: What a second of a node costs now, >= 0, in units of the resource manager; None where it does not say.
    """

    available: int | None = None
    price: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What a policy sees at a boundary. Mappings by node have the same nodes: the members of the round that stay.

    Attributes:
        round: The round; a decision is good for this round only.
        iteration: Last merged iteration.
        num_chunks: Chunks that each node owns when those on their way for earlier decisions have arrived.
        samples: Samples in them.
        capacity_bytes: Memory for chunks; None where it is not accounted.
        used_bytes: Memory taken by the chunks that the node owns.
        reports: Reports of the last iterations of each node, oldest first; fewer for a node that joined lately.
        figures: `Trainer.figures` of the last iterations, oldest first: a loss in each, a duality gap only where it was
            certified. A task that has joined lately knows fewer.
        iteration_s: Wall seconds of these iterations, each with the boundary before it.
        epochs: Passes over the data so far.
        now_s: Seconds since the job began; a policy reads no clock.
        parameters: What `SetParameter` may set, with the present values (`Trainer.tunables`).
        min_nodes: Fewer nodes than these pause the job.
        max_nodes: More nodes than these cannot take part; None for no limit.
        available: Nodes that the resource manager could add now; None where it does not say, or there is none.
        wanted: Nodes that were asked for last (`RequestNodes`); as many as there are where none were.
        travelling: Chunks on their way for earlier decisions. `num_chunks` and `samples` have them where they go,
            `used_bytes` where they are; no decision can move them until they have arrived.
        price: What a second of a node costs now, in units of the resource manager; None where it does not say.
        happened: What happened before the last iterations, oldest first; a task that has joined lately knows less.
        messages: What tasks, the trainer and other policies have sent to this policy since it was asked last, the
            newest 4,096 of it.
        memory: What this policy has remembered (`Remember`); None where it has nothing.
        policies: Names of the job's policies, in their order.
    """

    round: int
    iteration: int
    num_chunks: Mapping[NodeId, int]
    samples: Mapping[NodeId, int]
    capacity_bytes: Mapping[NodeId, int | None]
    used_bytes: Mapping[NodeId, int]
    reports: Mapping[NodeId, tuple[TaskReport, ...]]
    figures: tuple[Mapping[str, float], ...] = ()
    iteration_s: tuple[float, ...] = ()
    epochs: float = 0.0
    now_s: float = 0.0
    parameters: Mapping[str, float] = field(default_factory=dict)
    min_nodes: int = 1
    max_nodes: int | None = None
    available: int | None = None
    wanted: int = 0
    travelling: int = 0
    price: float | None = None
    happened: tuple[Happening, ...] = ()
    messages: tuple[Message, ...] = ()
    memory: Any = None
    policies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MoveChunks:
    """Move so many chunks from a node to another one; which ones is drawn at random. Moves add up.

    Attributes:
        source: Who gives them.
        target: Who gets them.
        count: Chunks, >= 0; clipped by the room that the target has.
    """

    source: NodeId
    target: NodeId
    count: int

    @classmethod
    def of(cls, counts: Mapping[tuple[NodeId, NodeId], int]) -> "tuple[MoveChunks, ...]":
        """One for each pair (source, target) of a mapping to numbers of chunks."""
        return tuple(cls(source, target, count) for (source, target), count in counts.items())


@dataclass(frozen=True, slots=True)
class RedrawOwnership:
    """Draw anew who owns a share of each node's chunks; every node has as many as before. Adds up with moves.

    The scheduler draws a sum of random cyclic permutations of the nodes, in each of which every node gives as many
    chunks as it gets. A node without room, or with more chunks than all others, gives and gets fewer.

    Attributes:
        share: Of the chunks of each node, > 0 and <= 1.
    """

    share: float


@dataclass(frozen=True, slots=True)
class RequestNodes:
    """Ask the resource manager for so many nodes in all; clipped to what the job allows. It need not obey.

    Attributes:
        total: Nodes, >= 1.
    """

    total: int


@dataclass(frozen=True, slots=True)
class ReleaseNode:
    """Let a node go, as if a notice had come for it: its chunks are handed over first.

    Attributes:
        node: A member; refused where fewer nodes than `min_nodes` would stay.
    """

    node: NodeId


@dataclass(frozen=True, slots=True)
class SetParameter:
    """Set a parameter of the trainer from the next iteration on; solvers see it in `Budget.parameters`.

    Attributes:
        name: One of `Trainer.tunables`.
        value: Finite.
    """

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message, which arrives before the next iteration begins.

    Attributes:
        to: A node, which means the solver of its task; "trainer"; "policy:" and a name; "*" for all others.
        payload: JSON values, at most 64 KiB as text.
    """

    to: str
    payload: Any


@dataclass(frozen=True, slots=True)
class Remember:
    """Keep a value for this policy (`Observations.memory`), in the place of the one before. It is in the log of all
    agents, so it outlives the node where policies run; a checkpoint does not have it.

    Attributes:
        value: JSON values, at most 64 KiB as text.
    """

    value: Any


PolicyAction: TypeAlias = (
    MoveChunks | RedrawOwnership | RequestNodes | ReleaseNode | SetParameter | SendMessage | Remember
)
"""What a policy can want."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a policy wants, with its reason.

    Attributes:
        actions: Carried out at the next boundary, clipped to what exists and fits.
        reason: In words, for the log: "n2 takes 1.8x the median time per sample; shed 3 of 12 chunks".
    """

    actions: tuple[PolicyAction, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A decision on its way: the same object from where its policy was asked, through the log, into the scheduler."""

    policy: str  # name of the policy
    round: int  # round whose observations it saw
    actions: tuple[PolicyAction, ...]  # of the decision
    reason: str  # in words, for the log
    iteration: int | None = (
        None  # last iteration that it saw; its own moves and memory may be younger. None is not judged
    )
    place: int = 0  # of the policy among those of the job, from 0: where two want different things, the first one wins
    replaced: int = 0  # earlier decisions of the policy that it stands for as well: the log had taken none of them
    # the log would refuse it as things stand: it waits for a boundary that comes anyway, and asks for none
    is_patient: bool = False
