"""The ground truth of a simulated cluster: what nodes really hold, and whether an effect is allowed to happen.

Written from the guarantees and not from the scheduler's book, so that the two can disagree. Content is *stateful*: a
copy counts the merged iterations that its state has seen, so a stale, restarted or doubled copy shows as a wrong count.
`Truth.told` learns every event before the scheduler does, `Truth.judge` sees every effect before it is performed, and
`Truth.compare` holds the book against the memory of the nodes; each raises `ViolationError` with the rule's name.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.ledger import NEVER, Ledger
from chicle_elastic.scheduling.scheduler import SchedulerSettings
from chicle_elastic.values import ChunkInfo, StateVersion


class ViolationError(AssertionError):
    """A guarantee was broken; the message begins with its name."""


@dataclass(slots=True)
class SimCopy:
    """A chunk in the memory of a node."""

    is_whole: bool = False  # false while bytes still arrive
    counter: int = 0  # merged iterations that its state has seen
    version: StateVersion = NEVER  # what the node would report


@dataclass(slots=True)
class SimNode:
    """A virtual node."""

    name: NodeId  # its id
    capacity_bytes: int | None  # memory for chunks
    copies: dict[ChunkId, SimCopy] = field(default_factory=dict)  # what it holds
    attached: set[ChunkId] = field(default_factory=set)  # what its task was told of
    life: int = 0  # counts how often it joined
    is_alive: bool = True  # false from the moment it dies, whichever nodes know
    is_present: bool = False  # the scheduler was told that it joined, and neither told that it was lost nor released it
    is_noticed: bool = False  # the scheduler was told that it has to leave
    is_known: bool = True  # the scheduler was told what it holds in this life
    joined_round: int = 0  # round that was current or asked for when it joined
    destroyed: set[ChunkId] = field(default_factory=set)  # chunks that it lost without dying, and did not report so yet
    is_due: bool = False  # the scheduler was told that it cannot wait for rows to travel ahead
    has_model: bool = False  # the scheduler was told of an iteration that its task has merged


@dataclass(slots=True)
class SimIteration:
    """An iteration in flight: who takes part, with which chunks, and who is known to be gone."""

    round: int
    iteration: int
    chunks: dict[NodeId, frozenset[ChunkId]]
    gone: set[NodeId] = field(default_factory=set)


class Truth:
    """What is, whatever anybody believes.

    One class because each guarantee is judged from the same record of what happened.

    Args:
        chunks: The data set.
        copies_ahead: Rows travel ahead, so that a node under notice takes part until they have come.
    """

    def __init__(self, chunks: tuple[ChunkInfo, ...], *, copies_ahead: bool = False) -> None:
        self.copies_ahead = copies_ahead
        self.infos: Mapping[ChunkId, ChunkInfo] = {info.id: info for info in chunks}
        self.nodes: dict[NodeId, SimNode] = {}
        self.owner: dict[ChunkId, NodeId] = {}
        self.expected: dict[ChunkId, int] = dict.fromkeys(self.infos, 0)
        self.processed: dict[ChunkId, int] = dict.fromkeys(self.infos, 0)
        self.newest: dict[ChunkId, StateVersion] = dict.fromkeys(self.infos, NEVER)
        self.reloaded: set[ChunkId] = set()
        self.before_restart: dict[ChunkId, int] = {}
        self.restarts: Counter[ChunkId] = Counter()
        self.merged = self._saved = 0
        self.result: SimIteration | None = None
        self.laps: list[tuple[int, int]] = []
        self.round = 0
        self.members: tuple[NodeId, ...] = ()
        self._is_forming = False
        self.copying: dict[tuple[ChunkId, NodeId], NodeId] = {}
        self.freeing: set[tuple[ChunkId, NodeId]] = set()
        self.given_up: set[tuple[ChunkId, NodeId]] = set()
        self.arrived: set[tuple[ChunkId, NodeId]] = set()
        self.must_stop = False
        self.refused: set[int] = set()
        self.has_come_back = False

    @property
    def is_saved(self) -> bool:
        """Whether what nodes hold is in a checkpoint, which those go on from that come when none is left."""
        return 0 < self.merged == self._saved

    def used_bytes(self, node: SimNode) -> int:
        """Bytes of everything in its memory, arriving chunks included."""
        return sum(self.infos[chunk].size_bytes for chunk in node.copies)

    def present(self) -> list[SimNode]:
        """Nodes that the scheduler may count on."""
        return [node for node in self.nodes.values() if node.is_present]

    def merge(self, there: Collection[SimNode]) -> None:
        """The updates of the iteration in flight are merged: every chunk that took part has seen one more.

        Args:
            there: Members that live to see it.
        """
        assert self.result is not None
        self.has_come_back = False
        for name, chunks in self.result.chunks.items():
            node = self.nodes[name]
            for chunk in chunks:
                self.expected[chunk] += 1
                self.newest[chunk] = StateVersion(self.result.round, self.result.iteration)
                self.reloaded.discard(chunk)
                self.before_restart.pop(chunk, None)
                if node in there:
                    copy = node.copies[chunk]
                    copy.counter += 1
                    copy.version = StateVersion(self.result.round, self.result.iteration)

    # Events, before the scheduler learns them.

    def told(self, event: events.Event) -> None:
        """Remember what the scheduler is about to know."""
        match event:
            case events.NodeJoined():
                node = self.nodes[event.node]
                if not node.is_present:
                    node.is_present = True
                    node.joined_round = self.round
                    self.given_up = {key for key in self.given_up if key[1] != event.node}
            case events.LeaveNoticed() if event.node in self.nodes:
                self.nodes[event.node].is_noticed = True
            case events.NodeLost() if event.node in self.nodes:
                # Without a member of its own the round cannot be formed any more, whatever is said of it later.
                self._is_forming = self._is_forming and event.node not in self.members
                self._lost(self.nodes[event.node])
            case events.RoundFormed() if event.round == self.round and self._is_forming:
                self._is_forming = False
                for node in self.present():
                    # A notice that came while the round formed: the node was to be a member as long as rows are copied.
                    is_staying = not node.is_noticed or (self.copies_ahead and not node.is_due)
                    if node.name in self.members and node.name not in event.members and is_staying:
                        self._lost(node)
                self.members = event.members
            case events.InventoryReported() if event.node in self.nodes and self.nodes[event.node].is_present:
                node = self.nodes[event.node]
                if event.round == self.round and node.joined_round < self.round:
                    owned = {chunk for chunk, owner in self.owner.items() if owner == event.node}
                    told = event.chunks.keys() | (owned if event.is_as_known else set())
                    node.destroyed &= told
                    node.is_known = not node.destroyed
                    for chunk in owned - told:
                        self._disown(chunk)
            case events.HandoverDue() if event.node in self.nodes:
                self.nodes[event.node].is_due = True
            case events.ChunksCopied():
                for chunk in event.chunks:
                    self.copying.pop((chunk, event.target), None)
            case events.CopyFailed():
                self.copying.pop((event.chunk, event.target), None)
            case events.ChunksLoaded():
                self.reloaded.update(event.chunks)  # from now on fresh copies may have taken the place of lost ones
            case events.ChunksFreed():
                self.freeing.difference_update((chunk, event.node) for chunk in event.chunks)
            case events.IterationFinished() if self._ends_lap(event):
                assert self.result is not None
                for chunks in self.result.chunks.values():
                    for chunk in chunks:
                        self.processed[chunk] += 1
                self.merged = event.iteration
                for name in self.result.chunks.keys() - self.result.gone:
                    self.nodes[name].has_model = True
                self.result = None
            case events.IterationAborted() if self._ends_lap(event):
                self.result = None
            case events.CheckpointSaved():
                self._saved = max(self._saved, event.iteration)
            case events.StopRequested():
                self.must_stop = True

    def _ends_lap(self, event: events.IterationFinished | events.IterationAborted) -> bool:
        return self.result is not None and (event.round, event.iteration) == (self.result.round, self.result.iteration)

    def _lost(self, node: SimNode) -> None:
        if self.result is not None:
            self.result.gone.add(node.name)
        node.is_present = node.is_noticed = node.is_due = node.has_model = False
        node.attached.clear()
        for chunk in [chunk for chunk, owner in self.owner.items() if owner == node.name]:
            self._disown(chunk)
        self.copying = {key: source for key, source in self.copying.items() if key[1] != node.name}
        self.freeing = {key for key in self.freeing if key[1] != node.name}

    def _disown(self, chunk: ChunkId) -> None:
        # What leavers still hold of it was given up when it went to its owner: nothing is freed there.
        self.given_up |= {(chunk, node.name) for node in self.present() if node.is_noticed}
        del self.owner[chunk]

    # Effects, before they are performed.

    def judge(self, effect: effects.Effect) -> None:
        """Check an effect against the guarantees, and write down what it means. Raises ViolationError when it must not
        happen now."""
        if self.result is not None:
            self._require(
                isinstance(effect, effects.LoadChunks | effects.FreeChunks | effects.ReleaseNode | effects.Log),
                "nothing moves while an iteration runs",
                effect,
            )
        match effect:
            case effects.FormRound():
                self._require(effect.round == self.round + 1, "rounds count up by one", effect)
                self._require(bool(effect.members), "a round has members", effect)
                for name in effect.members:
                    self._present(name, effect)
                self.round, self.members, self._is_forming = effect.round, effect.members, True
            case effects.LoadChunks():
                self._judge_load(effect)
            case effects.CopyChunks():
                self._judge_copy(effect)
            case effects.PrecopyChunks():
                self._judge_precopy(effect)
            case effects.CommitChunks():
                self._require(self.owner.get(effect.chunks[0]) in (effect.source, None), "the owner hands over", effect)
                self.arrived.discard((effect.chunks[0], effect.target))
                self._present(effect.target, effect)
                self._become_owner(effect.target, effect.chunks[0], effect)
                copy = self.nodes[effect.target].copies[effect.chunks[0]]
                copy.version = self.newest[effect.chunks[0]] = StateVersion(effect.round, copy.version.iteration)
            case effects.FreeChunks():
                self._judge_free(effect)
            case effects.AttachChunks():
                self._judge_attach(effect)
            case effects.NoticeNode():
                node = self._present(effect.node, effect)
                self._require(not node.is_noticed, "no node is given notice twice", effect)
                node.is_noticed = True
            case effects.StartIteration():
                self._judge_start(effect)
            case effects.ReleaseNode():
                self._judge_release(effect)
            case effects.FinishJob():
                self._require(self.must_stop, "a job ends when it is asked to", effect)

    def _judge_load(self, effect: effects.LoadChunks) -> None:
        node = self._present(effect.node, effect)
        for chunk in effect.chunks:
            self._require(chunk not in self.owner, "a chunk that has an owner is not restarted", effect)
            self._reserve(node, chunk, effect)

    def _judge_copy(self, effect: effects.CopyChunks) -> None:
        source, target = self._present(effect.source, effect), self._present(effect.target, effect)
        self._require(self.owner.get(effect.chunks[0]) in (effect.source, None), "the owner is copied", effect)
        if source.is_alive and source.is_known:
            copy = source.copies.get(effect.chunks[0])
            self._require(copy is not None and copy.is_whole, "the source holds the chunk", effect)
        busy = [target for chunk, target in self.copying if chunk == effect.chunks[0]]
        self._require(not busy, "one copy at a time", effect)
        self.copying[effect.chunks[0], effect.target] = effect.source
        self.arrived.discard((effect.chunks[0], effect.target))
        self._reserve(target, effect.chunks[0], effect)

    def _judge_precopy(self, effect: effects.PrecopyChunks) -> None:
        source, target = self._present(effect.source, effect), self._present(effect.target, effect)
        self._require(self.owner.get(effect.chunks[0]) in (effect.source, None), "the owner's rows are sent", effect)
        self._require(not target.is_due, "nothing is sent to a node that has to go", effect)
        if source.is_alive and source.is_known:
            self._require(self._has_whole(source, effect.chunks[0]), "the source holds the chunk", effect)
        size_bytes = self.infos[effect.chunks[0]].size_bytes
        room = None if target.capacity_bytes is None else target.capacity_bytes - self.used_bytes(target)
        if target.is_alive and not target.is_known and (effect.chunks[0] in target.copies or (room or 0) < size_bytes):
            self.refused.add(effect.numbers[0])  # it came back with more than anybody knows, and says so
            return
        self._require(
            not target.is_alive or effect.chunks[0] not in target.copies, "a node gets no second copy", effect
        )
        self._reserve(target, effect.chunks[0], effect)

    def _judge_free(self, effect: effects.FreeChunks) -> None:
        node = self._present(effect.node, effect)
        self._require(self.owner.get(effect.chunks[0]) != effect.node, "an owner's copy is not freed", effect)
        if self.result is not None:
            is_used = effect.node not in self.result.gone and effect.chunks[0] in self.result.chunks.get(
                effect.node, ()
            )
            self._require(not is_used, "no chunk is freed in its iteration", effect)
        self._judge_waste(node, effect.chunks[0], effect)
        self.freeing.add((effect.chunks[0], effect.node))

    def _judge_waste(self, node: SimNode, chunk: ChunkId, effect: effects.Effect) -> None:
        """A copy is given up."""
        copy = node.copies.get(chunk)
        if node.is_alive and copy is not None and copy.is_whole and chunk not in self.owner:
            others = [other for other in self.present() if other is not node and self._has_whole(other, chunk)]
            is_newest = copy.version >= self.newest[chunk] and chunk not in self.reloaded
            is_only = copy.counter > 0 and is_newest and not others
            self._require(not is_only, "the last copy of a state is not thrown away", effect)

    def _judge_attach(self, effect: effects.AttachChunks) -> None:
        node = self._present(effect.node, effect)
        for chunk in effect.removed:
            self._require(chunk in node.attached, "only what was attached is removed", effect)
            node.attached.discard(chunk)
        for chunk in effect.added:
            self._require(chunk not in node.attached, "nothing is attached twice", effect)
            self._require(self.owner.get(chunk) in (effect.node, None), "one owner per chunk", effect)
            if chunk not in self.owner:
                self._become_owner(effect.node, chunk, effect)
            node.attached.add(chunk)

    def _judge_start(self, effect: effects.StartIteration) -> None:
        self._require(effect.round == self.round, "an iteration runs in the current round", effect)
        self._require(effect.iteration == self.merged + 1, "iterations count up by one", effect)
        self._require(not self.copying, "no copy is in flight when an iteration starts", effect)
        for chunk, name in self.freeing:
            is_used = name in self.members and chunk in self.nodes[name].attached
            self._require(not is_used, "what is being freed is not attached", effect)
        is_free = not self.freeing or effect.is_complete
        self._require(is_free, "an iteration that lacks chunks waits for memory that may hold them", effect)
        knows_best = any(node.has_model for node in self.present())
        has_model = {name for name in self.members if self.nodes[name].has_model}
        self._require(bool(has_model) or not knows_best, "a task has the model while any node does", effect)
        is_alone = all(self.nodes[name].is_noticed for name in has_model)
        seen: dict[ChunkId, NodeId] = {}
        for name in self.members:
            node = self._present(name, effect)
            is_waiting = (self.copies_ahead and not node.is_due) or (is_alone and name in has_model)
            self._require(not node.is_noticed or is_waiting, "a node under notice takes no part", effect)
            for chunk in node.attached:
                self._require(chunk not in seen, "one owner per chunk", effect)
                seen[chunk] = name
                copy = node.copies.get(chunk)
                if node.is_alive:
                    self._require(copy is not None and copy.is_whole, "what is attached is held", effect)
                    assert copy is not None
                    self._require(copy.counter == self.expected[chunk], "the state is the newest one", effect)
                    copy.version = self.newest[chunk] = StateVersion(effect.round, effect.iteration - 1)
        self._require(seen == self.owner, "every owned chunk is attached to its owner", effect)
        self._require(effect.is_complete == (len(seen) == len(self.infos)), "is_complete says the truth", effect)
        self._require(bool(seen), "an iteration has something to compute on", effect)
        self._require(effect.is_complete or self.merged > 0, "the first iteration is complete", effect)
        self._require(effect.must_rebuild or not self.has_come_back, "state that comes back is in the model", effect)
        chunks = {name: frozenset(self.nodes[name].attached) for name in self.members}
        self.laps.append((effect.round, effect.iteration))
        self.result = SimIteration(effect.round, effect.iteration, chunks)

    def _judge_release(self, effect: effects.ReleaseNode) -> None:
        node = self._present(effect.node, effect)
        self._require(node.is_noticed, "only nodes under notice are released", effect)
        if self.is_saved and self.result is None and all(other.is_noticed for other in self.present()):
            self._lost(node)
            node.is_alive = False
            return
        self._require(effect.node not in self.owner.values(), "a released node owns nothing", effect)
        is_source = any(
            source == effect.node and self._has_whole(node, chunk) for (chunk, _), source in self.copying.items()
        )
        self._require(not is_source, "no node is released that a copy comes from", effect)
        for chunk in node.copies if node.is_known else ():
            if (chunk, effect.node) not in self.given_up:
                self._judge_waste(node, chunk, effect)
        others = [other for other in self.present() if other.name != node.name]
        is_last = node.has_model and bool(others) and not any(other.has_model for other in others)
        self._require(not is_last, "no node takes the model away", effect)
        takes_part = self.result is not None and effect.node in self.result.chunks.keys() - self.result.gone
        self._require(not takes_part, "no node is released in its iteration", effect)
        node.is_present = node.is_alive = node.has_model = False

    def _become_owner(self, name: NodeId, chunk: ChunkId, effect: effects.Effect) -> None:
        node = self.nodes[name]
        copy = node.copies.get(chunk)
        self._require(copy is not None and copy.is_whole, "the new owner holds the chunk", effect)
        assert copy is not None
        if chunk not in self.owner and copy.counter == 0 and self.expected[chunk] > 0:
            self.before_restart[chunk] = self.expected[chunk]
            self.expected[chunk] = 0
            self.restarts[chunk] += 1
        elif chunk not in self.owner and copy.counter == self.before_restart.get(chunk):
            self.expected[chunk] = copy.counter  # nothing was merged into the fresh state before it was lost as well
        self._require(copy.counter == self.expected[chunk], "the state is the newest one", effect)
        if chunk not in self.owner and copy.counter > 0:
            self.has_come_back = True  # the others may have rebuilt the model without it
        self.owner[chunk] = name

    def _reserve(self, node: SimNode, chunk: ChunkId, effect: effects.Effect) -> None:
        if not node.is_alive:
            return
        old = node.copies.get(chunk)
        # A copy that failed is asked for again before its memory is given back.
        self._require(old is None or not old.is_whole, "a node gets no second copy", effect)
        node.copies[chunk] = SimCopy()
        used = self.used_bytes(node)
        fits = node.capacity_bytes is None or used <= node.capacity_bytes
        self._require(fits, "capacities hold", f"{effect}: {used} of {node.capacity_bytes} bytes")

    def _present(self, name: NodeId, effect: effects.Effect) -> SimNode:
        node = self.nodes.get(name)
        self._require(node is not None and node.is_present, "no effect for a dead or released node", effect)
        assert node is not None
        return node

    def _has_whole(self, node: SimNode, chunk: ChunkId) -> bool:
        copy = node.copies.get(chunk)
        return copy is not None and copy.is_whole

    # The end, and the book.

    def judge_pause(self, reason: str, settings: SchedulerSettings, num_failures: Mapping[ChunkId, int]) -> str:
        """Check that the reason of a lasting pause is true.

        Args:
            reason: As told.
            settings: Of the job.
            num_failures: Loads and copies that failed, by chunk.

        Returns:
            Its kind.
        """
        staying = [node for node in self.present() if not node.is_noticed]
        homeless = [chunk for chunk in self.infos if chunk not in self.owner]
        noticed = [node for node in self.present() if node.is_noticed]
        # A chunk without an owner is about to be that of a node that stays and has loaded it, if there is one.
        settled = {chunk for chunk in homeless if any(self._has_whole(node, chunk) for node in staying)}
        leaving = [
            chunk
            for chunk in self.infos
            if chunk not in settled
            and any(self._has_whole(node, chunk) and self.owner.get(chunk) in (node.name, None) for node in noticed)
        ]
        if "min_nodes" in reason:
            self._require(len(staying) < settings.min_nodes, "a pause has a true reason", reason)
            return "too few nodes"
        if "no node stays" in reason:
            self._require(not staying, "a pause has a true reason", reason)
            return "nowhere to go"
        if "could not be" in reason:
            failed = [chunk for chunk in (*homeless, *leaving) if num_failures[chunk]]
            self._require(bool(failed), "a pause has a true reason", reason)
            return "failures"
        rooms = {node.name: node.capacity_bytes - self.used_bytes(node) for node in staying if node.capacity_bytes}
        self._require(len(rooms) == len(staying), "a pause has a true reason", f"{reason}: unlimited memory")
        if "which has to leave" in reason:
            fitting = [c for c in leaving if any(self.infos[c].size_bytes <= room for room in rooms.values())]
            self._require(bool(leaving) and not fitting, "a pause has a true reason", f"{reason}: {fitting} fit")
        else:
            self._require(bool(homeless), "a pause has a true reason", reason)
            self._require(not self._pack(homeless, rooms), "a pause has a true reason", f"{reason}: all fit")
        return "no room"

    def _pack(self, chunks: list[ChunkId], rooms: dict[NodeId, int]) -> bool:
        """Whether all chunks fit into the rooms, tightest fit first."""
        rooms = dict(rooms)
        for chunk in sorted(chunks, key=lambda chunk: -self.infos[chunk].size_bytes):
            size_bytes = self.infos[chunk].size_bytes
            fitting = [name for name, room in rooms.items() if room >= size_bytes]
            if not fitting:
                return False
            rooms[min(fitting, key=lambda name: rooms[name])] -= size_bytes
        return True

    def compare(self, ledger: Ledger) -> None:
        """Hold the book against the truth. Raises ViolationError when it claims what is not so."""
        if not ledger.num_chunks:
            return
        self._require(ledger.num_chunks == len(self.infos), "no chunk is forgotten", f"{ledger.num_chunks} are known")
        for node in self.present():
            if node.is_alive and node.is_known and not ledger.node_chunks[node.name].is_closing:
                used, booked = self.used_bytes(node), ledger.node_chunks[node.name].used_bytes
                if used > booked:
                    raise ViolationError(f"the book counts all memory: {node.name} uses {used} bytes, booked {booked}")
        for account in ledger.accounts():
            chunk, owner, processed = account.chunk, account.owner, sum(account.iterations.values())
            if owner is not None:
                node = self.nodes[owner]
                if node.is_alive and node.is_known and not self._has_whole(node, chunk):
                    raise ViolationError(f"an owner holds its chunk: chunk {chunk} on {owner}")
            if processed != self.processed[chunk]:
                raise ViolationError(
                    f"the ledger counts iterations: chunk {chunk} was processed {self.processed[chunk]} times, booked "
                    f"{processed}"
                )
            if account.replays < self.restarts[chunk]:
                raise ViolationError(f"restarts are written down: chunk {chunk} was restarted {self.restarts[chunk]}x")

    def _require(self, condition: bool, rule: str, what: object) -> None:
        if not condition:
            raise ViolationError(f"{rule}: {what}")
