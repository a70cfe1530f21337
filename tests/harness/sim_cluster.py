"""A cluster in one process for property tests: virtual nodes that perform effects, with random delays and bad luck.

A history is a function of its seed. What nodes say reaches the scheduler late and in any order that the promises in
`scheduling.events` allow. `sim_weather` makes nodes join, leave, crash and come back; `sim_truth` judges every effect
and compares the books after every event. When the weather has calmed down, the job must run, or be paused for a reason
that is true.

    python -m tests.harness.sim_cluster SEED      tells one history, event by event
"""

import heapq
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.effects import dispatch
from chicle_elastic.scheduling.events import Acknowledgement
from chicle_elastic.scheduling.recording import RecordedPolicy, Recorder
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings, State
from chicle_elastic.values import ChunkInfo, TaskReport, TrainingState
from tests.harness.ledger_check import check_ledger
from tests.harness.sim_faults import FaultInjector, FaultProfile, RandomPolicy
from tests.harness.sim_truth import SimCopy, SimNode, Truth, ViolationError
from tests.harness.text_sink import TextSink, replay
from tests.scheduling.stage import parts

MAX_EVENTS = 4000
NUM_CALM_LAPS = 2
SAID = TrainingState(parameters={"rate": 1.0})
"""Of every iteration: what policies may set."""


class SimCluster:
    """Virtual nodes around one scheduler.

    One class because it is a shell with a method per effect.

    Args:
        seed: Of everything.
        make_scheduler: Builds the scheduler under test; tests break it on purpose.
        is_recorded: Keep the recording, so that it can be replayed.
        tell: Takes lines for a person.
    """

    def __init__(
        self,
        seed: int,
        *,
        make_scheduler: Callable[..., Scheduler] = Scheduler,
        is_recorded: bool = False,
        tell: Callable[[str], object] | None = None,
    ) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.fault_profile = FaultProfile.draw(rng)
        chunks = _draw_chunks(rng)
        total_bytes = sum(info.size_bytes for info in chunks)
        self.capacity_bytes = rng.choice((None, None, total_bytes, max(4, (2 * total_bytes + 2) // 3)))
        self.settings = _draw_settings(seed, rng)
        self.truth = Truth(chunks, copies_ahead=self.settings.precopy)
        self.policies = (RandomPolicy(seed), Rebalance()) if self.fault_profile.has_policies else ()
        asked = [RecordedPolicy(policy) for policy in self.policies] if is_recorded else self.policies
        self.scheduler = make_scheduler(self.settings, asked)
        self.recording: list[str] = []
        # how often each kind of thing happened, for tests that ask whether their faults struck
        self.happened: Counter[str] = Counter()
        self.num_failures: Counter[ChunkId] = Counter()
        self.now_s = 0.0
        self._handler = Recorder(self.scheduler, TextSink(self.recording.append)) if is_recorded else self.scheduler
        self._tell = tell
        self._fault_injector = FaultInjector(self)
        self._num_events = 0
        self._num_entries = 0
        self._calm_laps = 0
        self._is_deserted = False
        self._saves = random.Random(f"checkpoints of {seed}")
        self._has_place = self._saves.random() < 0.5
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._last_word_s: dict[NodeId, float] = {}
        self._inventory_s: dict[NodeId, float] = {}
        self._lap_lives: dict[NodeId, int] = {}
        self._together: dict[tuple[int, Acknowledgement], tuple[float, list[ChunkId]]] = {}
        self.after(0.0, self.deliver, events.ChunksDeclared(chunks=chunks))
        for _ in range(rng.randint(1, 4)):
            self.after(self.delay_s(), self._fault_injector.join)

    def run(self) -> "SimCluster":
        """Live through the history. Raises ViolationError with seed and time when a guarantee was broken. Returns this
        cluster, to look at."""
        try:
            while self._queue and self.scheduler.state is not State.FINISHED and not self._is_deserted:
                self.now_s, _, act, args = heapq.heappop(self._queue)
                act(*args)
            self._judge_end()
        except Exception as error:
            what = str(error) if isinstance(error, ViolationError) else f"{type(error).__name__}: {error}"
            raise ViolationError(f"{what} [seed {self.seed}, t={self.now_s:.4f}]") from error
        return self

    def check_replay(self) -> None:
        """Fold the recording again, with the policies and with their answers: every effect must be the same."""
        num_events = sum(1 for _ in replay(self.recording, self.policies))
        num_answered = sum(1 for _ in replay(self.recording))
        if not num_events == num_answered == self._num_events:
            raise ViolationError(f"a recording has every event: {num_events} of {self._num_events} [seed {self.seed}]")

    # Time, and what the scheduler hears.

    def after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Do something later."""
        self._at(self.now_s + delay_s, act, *args)

    def _at(self, time_s: float, act: Callable[..., None], *args: Any) -> None:
        self._num_entries += 1
        heapq.heappush(self._queue, (time_s, self._num_entries, act, args))

    def delay_s(self) -> float:
        """A random delay; some things are slow."""
        return self.rng.random() * self.rng.choice((0.01, 0.1, 1.0))

    def deliver(self, event: events.Event) -> None:
        """Let the scheduler learn an event, and perform what it orders."""
        self._num_events += 1
        if self._num_events > MAX_EVENTS:
            raise ViolationError(f"the job comes to an end: {MAX_EVENTS} events and it has not")
        if isinstance(event, events.NodeLost):
            self.happened[f"lost while {self.scheduler.state.value}"] += 1
        self.truth.told(event)
        ordered = self._handler.handle(event, now=self.now_s)
        if self._tell is not None:
            self._tell_about(event, ordered)
        for effect in ordered:
            for part in [effect] if isinstance(effect, effects.LoadChunks) else parts(effect):
                self.truth.judge(part)
                dispatch(part, self)
        check_ledger(self.scheduler.ledger)
        self.truth.compare(self.scheduler.ledger)
        self._fault_injector.strike()

    def forget_words_of(self, node: SimNode) -> None:
        """A new life begins: what the old one said may come before or after what the new one says."""
        self._last_word_s.pop(node.name, None)

    def _say(self, node: SimNode, event: events.Event) -> None:
        """Send what a node says: its words overtake each other, but none overtakes its inventory."""
        arrival_s = max(self.now_s + self.delay_s(), self._inventory_s.get(node.name, 0.0))
        last_s = self._last_word_s.get(node.name, 0.0)
        if isinstance(event, events.InventoryReported):
            arrival_s = self._inventory_s[node.name] = max(arrival_s, last_s)
        self._last_word_s[node.name] = max(arrival_s, last_s)
        if isinstance(event, Acknowledgement) and self.rng.random() < 0.5:
            self._say_with_others(node, event, arrival_s)
            return
        self._at(arrival_s, self.deliver, event)
        if isinstance(event, events.ChunksLoaded | events.ChunksCopied) and self.rng.random() < 0.02:
            self._at(arrival_s + self.delay_s(), self.deliver, event)

    def _say_with_others(self, node: SimNode, event: Acknowledgement, arrival_s: float) -> None:
        """Answers that differ in nothing but the chunks may be said by one event."""
        key = (node.life, replace(event, chunks=()))
        known_s, chunks = self._together.get(key, (0.0, []))
        if chunks and known_s > self._inventory_s.get(node.name, 0.0):
            chunks.extend(event.chunks)
            return
        chunks = list(event.chunks)
        self._together[key] = arrival_s, chunks

        def say() -> None:
            if self._together[key][1] is chunks:
                self._together[key] = 0.0, []
            self.happened["answers said together"] += len(chunks) > 1
            self.deliver(replace(event, chunks=tuple(chunks)))

        self._at(arrival_s, say)

    # Performing effects.

    def form_round(self, effect: effects.FormRound) -> None:
        """Nodes say what they hold, and the round is formed later."""
        formed_s = self.now_s
        if self.fault_profile.has_inventories:
            for node in self.truth.present():
                if node.is_alive:
                    self._fault_injector.forget_something(node)
                    self._say(node, self._inventory(node, effect.round))
                    formed_s = max(formed_s, self._inventory_s[node.name])
        self._at(formed_s + self.delay_s(), self._round_forms, effect)

    def _inventory(self, node: SimNode, round: int) -> events.InventoryReported:
        """All that the node holds; or, where it holds what the ledger gives to it, what it holds besides."""
        whole = {chunk: copy.version for chunk, copy in node.copies.items() if copy.is_whole}
        ledger = self.scheduler.ledger
        known = {chunk: ledger.version(chunk) for chunk in ledger.owned_by(node.name)}
        if known.items() <= whole.items() and self.rng.random() < 0.5:
            self.happened["inventory as known"] += bool(known)
            besides = {chunk: version for chunk, version in whole.items() if chunk not in known}
            return events.InventoryReported(node=node.name, chunks=besides, round=round, is_as_known=True)
        return events.InventoryReported(node=node.name, chunks=whole, round=round)

    def _round_forms(self, effect: effects.FormRound) -> None:
        if effect.round != self.truth.round:
            return
        alive = tuple(name for name in effect.members if self.truth.nodes[name].is_alive)
        if alive == effect.members:
            self.deliver(events.RoundFormed(round=effect.round, members=alive))
        elif alive and self.rng.random() < 0.3:
            self.happened["round formed without a member"] += 1
            self.deliver(events.RoundFormed(round=effect.round, members=alive))
        # Otherwise the loss of a member will be told, and a new round asked for.

    def load_chunks(self, effect: effects.LoadChunks) -> None:
        """The node answers later, chunk by chunk or for all at once."""
        node = self.truth.nodes[effect.node]
        is_together = len(effect.chunks) > 1 and self.rng.random() < 0.3
        for chunks in [effect.chunks] if is_together else [(chunk,) for chunk in effect.chunks]:
            self.after(self.delay_s(), self._loaded, chunks, effect.round, node, node.life)

    def _loaded(self, chunks: tuple[ChunkId, ...], round: int, node: SimNode, life: int) -> None:
        if not node.is_alive or node.life != life:
            return
        failed = [chunk for chunk in chunks if self._fault_injector.fails()]
        for chunk in failed:
            del node.copies[chunk]
            self.num_failures[chunk] += 1
            self._say(node, events.LoadFailed(chunk=chunk, node=node.name, reason="no such file", round=round))
        loaded = tuple(chunk for chunk in chunks if chunk not in failed)
        for chunk in loaded:
            node.copies[chunk].is_whole = True
        if loaded:
            self._say(node, events.ChunksLoaded(chunks=loaded, node=node.name, round=round))

    def copy_chunks(self, effect: effects.CopyChunks) -> None:
        """The target answers later."""
        source, target = self.truth.nodes[effect.source], self.truth.nodes[effect.target]
        self.after(self.delay_s(), self._copied, effect, source, source.life, target, target.life)

    def _copied(
        self, effect: effects.CopyChunks, source: SimNode, source_life: int, target: SimNode, target_life: int
    ) -> None:
        if not target.is_alive or target.life != target_life:
            return
        chunk = effect.chunks[0]
        copy = source.copies.get(chunk) if source.is_alive and source.life == source_life else None
        if copy is None or self._fault_injector.fails():
            is_there = source.is_alive and source.life == source_life
            if copy is None and is_there and not self.happened["chunk destroyed"]:
                raise ViolationError(f"a leased copy is not freed: {effect}")
            del target.copies[chunk]
            self.num_failures[chunk] += 1
            answer: events.Event = events.CopyFailed(
                chunk=chunk, source=source.name, target=target.name, round=effect.round, reason="connection reset"
            )
        else:
            target.copies[chunk] = SimCopy(is_whole=True, counter=copy.counter, version=copy.version)
            self.truth.arrived.add((chunk, target.name))
            answer = events.ChunksCopied(chunks=(chunk,), source=source.name, target=target.name, round=effect.round)
        self._say(target, answer)

    def precopy_chunks(self, effect: effects.PrecopyChunks) -> None:
        """The target answers later, or at once that it has no memory."""
        source, target = self.truth.nodes[effect.source], self.truth.nodes[effect.target]
        self.happened["rows sent ahead"] += 1
        if effect.numbers[0] in self.truth.refused:
            self.happened["rows ahead refused"] += 1
            self._say(target, events.PrecopiesEnded(node=target.name, failed=effect.numbers))
            return
        args = (effect, source, source.life, target, target.life, target.copies.get(effect.chunks[0]))
        self.after(self.delay_s() * self.rng.choice((1.0, 1.0, 5.0)), self._precopied, *args)

    def _precopied(
        self,
        effect: effects.PrecopyChunks,
        source: SimNode,
        source_life: int,
        target: SimNode,
        target_life: int,
        place: SimCopy | None,
    ) -> None:
        if not target.is_alive or target.life != target_life:
            return
        copy = source.copies.get(effect.chunks[0]) if source.is_alive and source.life == source_life else None
        is_wanted = target.copies.get(effect.chunks[0]) is place
        is_there = copy is not None and copy.is_whole and not self._fault_injector.fails()
        if not is_there and is_wanted:
            self.happened["rows ahead failed"] += 1
            del target.copies[effect.chunks[0]]
        elif not is_wanted:
            self.happened["rows ahead taken or discarded on their way"] += 1
        key = "whole" if is_there else "failed"
        self._say(target, events.PrecopiesEnded(node=target.name, **{key: effect.numbers}))

    def free_chunks(self, effect: effects.FreeChunks) -> None:
        """The node answers later."""
        node = self.truth.nodes[effect.node]
        self.after(self.delay_s(), self._freed, effect, node, node.life)

    def _freed(self, effect: effects.FreeChunks, node: SimNode, life: int) -> None:
        if node.is_alive and node.life == life:
            node.copies.pop(effect.chunks[0], None)
            self._say(node, events.ChunksFreed(chunks=effect.chunks, node=node.name, round=effect.round))

    def start_iteration(self, effect: effects.StartIteration) -> None:
        """The iteration ends later, merged or not."""
        self.happened["complete" if effect.is_complete else "partial"] += 1
        self._lap_lives = {name: self.truth.nodes[name].life for name in self.truth.members}
        present = self.truth.present()
        is_settled = all(node.name in self.truth.members and not node.is_noticed for node in present)
        if self._fault_injector.is_calm() and effect.is_complete and is_settled:
            self._calm_laps += 1
            if self._calm_laps > NUM_CALM_LAPS:
                self.after(0.0, self.deliver, events.StopRequested(reason="seen enough"))
        self.after(self.delay_s(), self._lap_ends, effect)

    def _lap_ends(self, effect: effects.StartIteration) -> None:
        nodes = [self.truth.nodes[name] for name in self._lap_lives]
        there = [node for node in nodes if node.is_alive and node.life == self._lap_lives[node.name]]
        is_whole = len(there) == len(nodes)
        if is_whole or (there and self.rng.random() < 0.15):
            # Not whole: a member died in the last moment, when its update had been merged by the others.
            self.happened["merged without a member"] += not is_whole
            self.truth.merge(there)
            reports = {node.name: TaskReport(samples=10, duration_s=self.rng.random()) for node in there}
            event: events.Event = events.IterationFinished(
                round=effect.round, iteration=effect.iteration, reports=reports, training=(SAID,)
            )
        else:
            event = events.IterationAborted(round=effect.round, iteration=effect.iteration, reason="a member is gone")
        self.after(self.delay_s(), self.deliver, event)

    def commit_chunks(self, effect: effects.CommitChunks) -> None:
        """`Truth.judge` has changed the owner."""

    def attach_chunks(self, effect: effects.AttachChunks) -> None:
        """`Truth.judge` has told the task."""

    def notice_node(self, effect: effects.NoticeNode) -> None:
        """`Truth.judge` has put the node under notice."""
        self.happened["let go by a policy"] += 1

    def request_nodes(self, effect: effects.RequestNodes) -> None:
        """A resource manager that does nothing."""
        self.happened["nodes requested"] += 1

    def release_node(self, effect: effects.ReleaseNode) -> None:
        """`Truth.judge` has let the node go. Those that come when none is left begin a job of their own."""
        if self.truth.is_saved and not self.truth.present():
            self.happened["all left with a checkpoint"] += 1
            self._is_deserted = True

    def save_checkpoint(self, effect: effects.SaveCheckpoint) -> None:
        """The first node says later that all have written their parts, in half of the histories."""
        if self._has_place:
            lives = {name: self.truth.nodes[name].life for name in effect.nodes}
            self.after(self._saves.random(), self._saved, effect.iteration, lives)

    def _saved(self, iteration: int, lives: Mapping[NodeId, int]) -> None:
        nodes = self.truth.nodes
        if all(nodes[name].is_alive and nodes[name].life == life for name, life in lives.items()):
            self.deliver(events.CheckpointSaved(iteration=iteration, size_bytes=1, duration_s=1.0, is_resumed=True))

    def pause_job(self, effect: effects.PauseJob) -> None:
        """`_judge_end` looks at the reason, if it is the last word."""

    def finish_job(self, effect: effects.FinishJob) -> None:
        """`run` sees it in the state of the scheduler."""

    def log(self, effect: effects.Log) -> None:
        """Shown by `tell`; no node does anything."""

    # The end.

    def _judge_end(self) -> None:
        state, reason = self.scheduler.state, self.scheduler.pause_reason
        if state is State.PAUSED:
            assert reason is not None
            self.happened[f"paused: {self.truth.judge_pause(reason, self.settings, self.num_failures)}"] += 1
        elif state is State.WAITING:
            staying = [node for node in self.truth.present() if not node.is_noticed]
            if len(staying) >= (self.settings.start_nodes or self.settings.min_nodes):
                raise ViolationError(f"the job begins: {len(staying)} nodes wait")
        elif state is not State.FINISHED:
            raise ViolationError(f"the job goes on: nothing is left to happen, and it is {state.value}")
        if state is not State.FINISHED:
            self.deliver(events.StopRequested(reason="no node comes"))
            if self.scheduler.state is not State.FINISHED:
                raise ViolationError(f"a job ends when it is asked to: it is {self.scheduler.state.value}")
        if self.fault_profile.is_graceful:
            self._judge_graceful()

    def _judge_graceful(self) -> None:
        """No node was lost and nothing failed: no chunk may ever have been missing, skipped or restarted."""
        truth = self.truth
        if self.happened["partial"] or truth.restarts:
            raise ViolationError(f"graceful changes lose nothing: {dict(self.happened)}, {truth.restarts}")
        for chunk in truth.infos:
            counts = truth.expected[chunk], truth.processed[chunk]
            if counts != (truth.merged, truth.merged):
                raise ViolationError(f"each chunk once per iteration: chunk {chunk} {counts} of {truth.merged}")

    def _tell_about(self, event: events.Event, ordered: list[effects.Effect]) -> None:
        assert self._tell is not None
        self._tell(f"{self.now_s:9.4f}  {event}")
        for effect in ordered:
            self._tell(f"           -> {effect}")
        self._tell(f"           {self.scheduler.state.value}")


def _draw_chunks(rng: random.Random) -> tuple[ChunkInfo, ...]:
    largest = rng.choice((1, 1, 3))
    return tuple(
        ChunkInfo(id=ChunkId(number), num_rows=10, size_bytes=rng.randint(1, largest))
        for number in range(rng.randint(1, 9))
    )


def _draw_settings(seed: int, rng: random.Random) -> SchedulerSettings:
    min_nodes = rng.choice((1, 1, 1, 2))
    return SchedulerSettings(
        seed=seed,
        min_nodes=min_nodes,
        start_nodes=rng.choice((None, None, min_nodes + 1)),
        max_copy_attempts=rng.choice((1, 2)),
        max_load_attempts=rng.choice((2, 6)),
        precopy=rng.random() < 0.6,
    )


def main(arguments: list[str]) -> int:
    """Tell one history."""
    if len(arguments) != 1 or not arguments[0].isdigit():
        print("usage: python -m tests.harness.sim_cluster SEED", file=sys.stderr)
        return 2
    cluster = SimCluster(int(arguments[0]), is_recorded=True, tell=print)
    print(cluster.fault_profile, cluster.settings, f"capacity_bytes={cluster.capacity_bytes}")
    cluster.run().check_replay()
    print(dict(cluster.happened))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
