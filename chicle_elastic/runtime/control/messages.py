"""What an agent and the task of its node say to each other.

The task runs the user's code; the agent runs none. They are two processes on one host, joined by the control channel
(`channel`): frames of JSON over a Unix socket, and file descriptors beside them. The life of a task:

    task                                  agent
    Hello            connected       ->
                                     <-   Welcome        its name; Arena for each arena, also later
    Expect           job known       ->                  take memory, meanwhile
    Declare          imports done    ->                  the node is hot and may join
                                     <-   Load           get a chunk from its source into a reserved slot
    Loaded           or LoadFailed   ->                  (a thread of its own: also while an iteration runs)
                                     <-   Ahead          rows are here of chunks that may come; no answer
                                     <-   Connect        likely members of the next round: begin to connect
                                     <-   Round          they have met: the next round begins
    GroupReady       or GroupBroke   ->
                                     <-   Attach         what is local now, and what is not any more
                                     <-   Iterate
                                     <-   Vote, Interrupt, Break   at any time
    IterationEnded   or IterationBroke ->                exactly one per iteration
                                     <-   Finish         the job is over: `run` returns, then the task says Left
                                     <-   Exit           this node leaves: the process ends with exit code 0
    Saved            now and then    ->                  a checkpoint is complete
    Proposal, PolicyDisabled         ->                  at any time, from the task of rank 0 (`advice`)
                                     <-   Transition     for the history; once more when all samples are there again
    Failed           user code raised ->                 the process ends with the exception

Rules. The agent says `Attach` before the `Iterate` or `Finish` that it is for, and only at a boundary (before `Finish`
it is what has changed hands since the last iteration: a job can end in the middle of moves). Messages are
handled in order, except `Vote`, `Interrupt` and `Break`, which take effect at once, whatever iteration the task is
in. The end of the channel ends the task: there are no orphans.

An iteration begins with an `Iterate`, or without one: a task that was told `Iterate(may_go_on=True)` begins the next
iteration by itself as long as no task votes, nothing breaks and the trainer does not stop, and says so
(`IterationEnded.goes_on`). So the agent's record may lag behind its task, and an iteration waits for no agent; an
`Iterate` never names an iteration that the task has begun. Between `IterationEnded` without `goes_on` and the next
`Iterate` a task touches no chunk.

The first frame of each side carries `VERSION`, and another one is refused. Numbers are finite: JSON has no others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.records import Transition
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.runtime.training.ledger_pages import LedgerPage
from chicle_elastic.scheduling.effects import StartIteration
from chicle_elastic.scheduling.events import ChunksDeclared
from chicle_elastic.scheduling.events import PolicyDisabled as PolicyDisabled
from chicle_elastic.values import ChunkAccount, ChunkInfo, StateVersion, TaskReport
from chicle_elastic.values import Proposal as Proposal  # the agent appends it to the log as it is

VERSION = 18  # of this list of messages; raised with every change of it


# Values inside of messages.


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a chunk lies: in this slot of this arena, both counted from 0."""

    chunk: ChunkId
    arena: int
    slot: int


# What a task says.


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The task is there. Comes first."""

    pid: int
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """The job is known, the task not hot yet: the agent takes memory meanwhile. Comes once, after `Welcome`."""

    num_chunks: int  # of the data set
    slot_bytes: int  # size of a slot that holds any of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Declare:
    """The task is hot: everything is imported. Comes once, after `Expect`."""

    seed: int  # of the job
    num_rows: int  # samples in the data set
    rows: tuple[int, ...]  # samples in each chunk, by chunk id from 0
    size_bytes: tuple[int, ...]  # bytes of each chunk with header and state
    slot_bytes: int  # size of a slot that holds any of them
    merged: int = 0  # iteration of the checkpoint that this task would go on from; 0 for none
    data: str = ""  # digest of the chunk folder that is read; empty for other data
    torch: str = ""  # release of torch that the task has loaded; empty for none
    checkpoints: str = ""  # when checkpoints are written, in words; empty for never. The same in every task
    parameters: Mapping[str, float] = field(default_factory=dict)  # what policies had set in that checkpoint, by name

    def is_same_job(self, other: "Declare") -> bool:
        """Whether both declare the same job; each may have found another checkpoint of it."""
        return replace(self, merged=other.merged, parameters=other.parameters) == other

    def to_event(self) -> ChunksDeclared:
        """The data set for the log. Chunks are counted as in a job with stores: every one takes a whole slot."""
        infos = tuple(
            ChunkInfo(id=ChunkId(number), num_rows=num_rows, size_bytes=self.slot_bytes)
            for number, num_rows in enumerate(self.rows)
        )
        return ChunksDeclared(chunks=infos, merged=self.merged, parameters=self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Answers `Load`: the chunk lies in its slot, sealed; the agent may commit it."""

    chunk: ChunkId
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailed:
    """Answers `Load`: the slot holds nothing of use."""

    chunk: ChunkId
    round: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReady:
    """Answers `Round`: the members are connected and have the newest model, or receive it amid the next iteration."""

    round: int
    merged: int  # last merged iteration in that model
    model_address: int = 0  # as in `IterationEnded`
    sums: str = ""  # by what updates are summed: "tcp", "rdma" or "nccl"; "" in a group of one
    # of the iteration that this task could not merge, and the task that had this model could
    ledger: tuple[LedgerPage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBroke:
    """Answers `Round`, or follows `IterationEnded` without `stop_reason`: the members are not connected (any more)."""

    round: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationEnded:
    """The iteration is merged. But for the last six, every task says the same."""

    round: int
    iteration: int
    reports: Mapping[NodeId, TaskReport]  # of every member that has chunks
    votes: int  # tasks that want to stop at this boundary to let the agents confer; with 0 the agents go on at once
    stop_reason: str | None  # why the trainer ends the job here; None to go on
    figures: Mapping[str, float]  # what the trainer says of the model; figures that are not finite are left out
    epochs: float  # passes over the data so far
    duration_s: float  # from the beginning of the iteration to this message
    model_address: int = 0  # address of the model in the task, which never changes; 0 where no agent reads it
    ledger: tuple[LedgerPage, ...] = ()  # what this task read
    # the group broke between merge and verdict: others may have come to a verdict that ends the job, and `stop_reason`
    # does not say so. `GroupBroke` follows
    is_cut_off: bool = False
    goes_on: bool = False  # the task has begun the next iteration by itself; only without votes and `stop_reason`
    # rows may be left out: an `Interrupt` came before its solver was done, or that is how its trainer has it
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationBroke:
    """This task has not merged the iteration, because its group broke. Another task may have."""

    round: int
    iteration: int
    reason: str
    ledger: tuple[LedgerPage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """A message of solver or trainer for a party that is not in this task."""

    sender: str  # name of the task, or "trainer"
    to: str  # a task, "trainer" or "policy:NAME" (which are in the task of rank 0), or "*" (everyone in other tasks)
    payload: str  # JSON text


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint is complete; the task that completed it says so."""

    iteration: int  # last merged iteration in it
    size_bytes: int  # of all its files
    duration_s: float  # from the boundary to its end; training went on meanwhile
    has_policies: bool  # some policy may want to know
    is_resumed: bool  # nodes that come when none is left go on from it


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The job is over in this task; the end of the channel that follows is no fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Code of the user, or ours in this task, raised: the job cannot go on. The process ends."""

    traceback: str  # as text


# What an agent says.


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Answers `Hello`."""

    node: NodeId  # name of the node and so of the task
    wants_ledger: bool = True  # whether the pages of the ledger are to be sent
    # where and when checkpoints are written, unless the job says so itself; None for nowhere
    checkpoint: CheckpointSettings | None = None
    wants_resume: bool = False  # go on from the newest checkpoint, also where the job says where they are
    is_restart: bool = False  # the task of before has died; the job may go on without what this one cannot reach
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """An arena of the node; its file descriptor comes with this message. Before the first use of a slot in it."""

    index: int
    num_slots: int
    slot_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Get a chunk from its source into a slot that is reserved for it."""

    chunk: ChunkId
    arena: int
    slot: int
    round: int
    merged: int  # last merged iteration
    # iteration that the job goes on from; 0 where it begins. As long as `merged` is no later, a chunk gets the state of
    # that checkpoint, or that which the caller of the job gave; later its state is fresh
    began: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Precopied:
    """Rows of these chunks are in their slots: probably there will be an `Attach` of them. What is read is a guess."""

    chunks: tuple[Placement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """The chunks of this node, as of the next iteration. A chunk in both lists has moved within the node."""

    added: tuple[Placement, ...]
    removed: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundNetwork:
    """How the members of a round connect."""

    bind: str  # address that this task listens on (`transports.node_address`)
    advertise: str  # address that it tells the others
    first_port: int = 0  # the lowest port that it may listen on; 0 for any
    last_port: int = 0  # the highest; 0 for any
    # text of the secret of the round, derived from the job's: the members' proof to each other
    key: str = field(repr=False)
    rdma: str = ""  # the device that the model may go by; "" for none


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """Begin to connect to the members of a round that is foreseen or called; the connections of the `Connect` before,
    if its round has not begun, are given up."""

    round: int
    rank: int  # position of this node in `members`
    members: tuple[NodeId, ...]  # all of them, by rank
    host: str  # where the store of the round is, which the agent of the first member serves
    port: int
    prefix: str  # of all keys of this round in the store; no other round has it
    network: RoundNetwork  # how the members connect


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Leave the group of the round before: the members of this one have met, which the last `Connect` has named."""

    round: int
    members: tuple[NodeId, ...]  # all of them, by rank
    has_losses: bool  # something was lost or cut off since the last merge: the model is rebuilt from the state first
    merged: int = 0  # as in `Load`
    merged_round: int = 0  # round in which the log has this iteration as merged; 0 for none
    began: int = 0  # as in `Load`
    is_return: bool = False  # this node was taken for lost, and comes back with the task that it had
    capacity_bytes: tuple[int | None, ...]  # memory for chunks of each member, by rank; for policies, as what follows
    chunk_bytes: int  # what a chunk takes of it
    min_nodes: int = 1  # fewer nodes than these pause the job
    max_nodes: int | None = None  # more than these cannot take part
    disabled: tuple[str, ...] = ()  # policies that are heard no more
    memories: Mapping[str, Any] = field(default_factory=dict)  # what policies have remembered, by name

    def merged_by(self, merged: int, version: StateVersion) -> int:
        """Return the iteration that a task takes part with, of that which it has merged last. A task that was taken
        for lost may have received the complete sum of an iteration that the others have aborted, and may have repeated
        in another round since: that one does not count."""
        is_other = version != StateVersion(self.merged_round, self.merged)
        return self.merged - 1 if self.is_return and merged >= self.merged and is_other else merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterate(StartIteration):
    """Compute an iteration, merge, judge: the order of the scheduler, and what else the task has to know."""

    num_tasks: int  # members that own chunks, the K of CoCoA; the same in every task
    # what happened at the boundary before, in words, for the history; the same in every task
    lines: tuple[str, ...] = ()
    # unless something stops the tasks at the boundary after it, the next iteration follows for certain, with the same
    # `is_complete` and `num_tasks`, no chunk moved and nothing to say: begin it at once, and so on
    may_go_on: bool = False

    def following(self) -> "Iterate":
        """Return the order of the next iteration, as a task gives it to itself."""
        nothing: dict[str, Any] = {"lines": (), "messages": (), "memories": {}, "happened": ()}
        return replace(self, iteration=self.iteration + 1, must_rebuild=False, **nothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Vote for a stop at the end of this iteration, in its all-reduce; forgotten with the next `Round`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """End this iteration early, with what is done: set the solver's stop flag. Work done is merged as usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Cut this task off from the members of a round, so that whatever waits for a silent one ends."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """A message for a party in this task: a `UserMessage` of another task."""

    sender: str
    to: str
    payload: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """The job pauses, perhaps for good: write this task's part of a checkpoint, if the job has a place for one."""

    round: int  # current round
    iteration: int  # last merged iteration
    merged_round: int  # round in which it was merged
    # those that own chunks and so write a part, by rank; the first also writes what all tasks share
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The job is over; `run` returns its outcome in every task that has the last model. The others just end."""

    reason: str  # in words
    merged: int  # iteration of the last model
    failure: str | None = None  # traceback of the task that failed, if that is why: `run` raises then
    accounts: tuple[ChunkAccount, ...] = ()  # what became of each chunk, for the outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """This node leaves the job: end the process, exit code 0."""


Answer: TypeAlias = Loaded | LoadFailed | GroupReady | GroupBroke | IterationEnded | IterationBroke
Word: TypeAlias = UserMessage | Saved | Proposal | PolicyDisabled
TaskMessage: TypeAlias = Hello | Expect | Declare | Answer | Word | Left | Failed
Order: TypeAlias = (
    Load | Precopied | Attach | Connect | Round | Iterate | Vote | Interrupt | Break | Save | Finish | Exit
)
AgentMessage: TypeAlias = Welcome | Arena | Order | Deliver | Transition
Message: TypeAlias = TaskMessage | AgentMessage
