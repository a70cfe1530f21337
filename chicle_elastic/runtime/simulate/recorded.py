"""A recorded job as a scenario: its nodes, joins, notices and losses, with speeds and delays as they were measured.

The recording is folded again (`scheduling.replaying`), and what it shows becomes numbers of the model. All of them are
medians but for `iteration_s`, a mean:

    seconds per sample, noise     reports of the tasks, node by node
    iteration_s                   an iteration beside its slowest task, without the tails
    epochs_per_iteration          samples of an iteration over rows of the data
    round_s                       from the order to form a round to its members' meeting
    load_bytes_per_s              loads at the start, from the first order to the last answer of a node
    latency_s, bytes_per_s        copies of states, and pre-copies

A node is as fast as the median of its iterations says, so one that changed its speed is not. When a node was lost is
not in a recording, only when that was known. Decisions of the recorded policies are left out: the simulation has its
own.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from chicle_elastic.errors import UsageError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.simulate.result import SimulationResult
from chicle_elastic.runtime.simulate.scenario import Scenario, SimulatedJob, SimulatedNetwork, SimulatedNode
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.replaying import Replay, Step
from chicle_elastic.values import ChunkInfo

AFTER_S = 1e-6  # a node leaves so much after it joined, at least: a recording may have both at one moment
PATIENT_S = 1e6  # grace of a node that left in time
INTERRUPT_SHARE = 0.2  # part of the grace period after which a handover is due (as in `virtual_cluster`)
MAD_TO_SIGMA = 1.4826
MOST_NOISE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """What a recording says."""

    scenario: Scenario
    infos: tuple[ChunkInfo, ...]
    result: SimulationResult  # the job as it was, with a price of 1 for a node second; bytes are not known


def read_recording(path: Path) -> RecordedJob:
    """Read a recording, compressed if its name ends with .gz. Of one that begins with a snapshot what came before is
    left out. Raises UsageError when it has no iteration, ProtocolError when a line cannot be read; with file and line.
    """
    reader = _Reader(path)
    for step in Replay(path):
        reader.add(step)
    return reader.result()


def trimmed_mean(values: Sequence[float]) -> float:
    """Mean without the smallest and the largest twentieth: a message that came late makes the next one early."""
    number = len(values) // 20
    kept = sorted(values)[number : len(values) - number]
    return fmean(kept)


@dataclass(slots=True)
class _Node:
    """A node of the recording; times in seconds since its first entry."""

    joined_s: float
    capacity_bytes: int | None
    noticed_s: float | None = None
    due_s: float | None = None
    lost_s: float | None = None
    released_s: float | None = None
    row_s: list[float] = field(default_factory=list)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin_s: float | None = None
        self._now_s = 0.0
        self._infos: tuple[ChunkInfo, ...] = ()
        self._sizes: dict[ChunkId, int] = {}
        self._nodes: dict[str, _Node] = {}
        self._names: dict[NodeId, str] = {}
        self._began_s: dict[int, float] = {}
        self._ended_s = 0.0
        self._stalls_s: dict[int, float] = {}
        self._beside_s: list[float] = []
        self._epochs: list[float] = []
        self._round_began_s: dict[int, float] = {}
        self._rounds_s: list[float] = []
        self._ordered_s: dict[tuple[str, ChunkId, NodeId], float] = {}
        self._precopies: dict[int, tuple[ChunkId, float]] = {}
        self._rows_at: set[tuple[ChunkId, NodeId]] = set()
        self._loads: dict[NodeId, tuple[float, float, int]] = {}
        self._copies_s: list[float] = []
        self._rates: list[float] = []
        self._samples = self._num_moved = self._num_aborted = 0
        self._lines: list[str] = []
        self._history = History()
        self._reason: str | None = None
        self._step: Step | None = None

    def add(self, step: Step) -> None:
        """Learn an entry."""
        if self._begin_s is None:
            self._begin_s = step.line.now
            if step.index != 1:
                self._begin_amid(step)
        self._step = step
        self._now_s = step.line.now - self._begin_s
        self._learn(step)
        for effect in step.line.effects:
            self._see(effect)

    def _begin_amid(self, step: Step) -> None:
        """Take chunks and nodes of a recording that begins with a snapshot as if the job began there."""
        ledger = step.scheduler.ledger
        self._infos = tuple(ledger.infos(account.chunk for account in ledger.accounts()))
        self._sizes = {info.id: info.size_bytes for info in self._infos}
        for node, held in ledger.node_chunks.items():
            if not (isinstance(step.line.event, events.NodeJoined) and step.line.event.node == node):
                self._join(events.NodeJoined(node=node, capacity_bytes=held.capacity_bytes))
                if node in step.scheduler.under_notice:
                    self._node(node).noticed_s = self._now_s

    def result(self) -> RecordedJob:
        """The scenario, once all entries are known."""
        step = self._step
        if step is None or not self._history:
            raise UsageError(f"{self._path}: the recording has no finished iteration to go by")
        settings = step.scheduler.settings
        by_node = {name: median(node.row_s) for name, node in self._nodes.items() if node.row_s}
        row_s = min(by_node.values(), default=0.0) or 1e-9
        usual_s = median(by_node.values()) if by_node else row_s
        nodes = tuple(
            self._as_node(name, node, speed=row_s / (by_node.get(name) or usual_s or row_s))
            for name, node in self._nodes.items()
        )
        rates = [
            total / (end_s - begin_s) for begin_s, end_s, total in self._loads.values() if end_s > begin_s and total
        ]
        usual = SimulatedNetwork()
        network = SimulatedNetwork(
            bytes_per_s=median(self._rates) if self._rates else usual.bytes_per_s,
            latency_s=max(0.0, median(self._copies_s)) if self._copies_s else usual.latency_s,
            load_bytes_per_s=median(rates) if rates else usual.load_bytes_per_s,
            round_s=median(self._rounds_s) if self._rounds_s else 0.0,
            detect_s=0.0,  # a recording has the moment at which the loss was known
        )
        rows = sum(info.num_rows for info in self._infos)
        job = SimulatedJob(
            iterations=len(self._history),
            chunks=len(self._infos),
            rows_per_chunk=max(1, round(rows / len(self._infos))),
            chunk_bytes=max(1, min(self._sizes.values())),
            state_bytes=0,  # what a state takes is in the time of a copy
            row_s=row_s,
            iteration_s=max(0.0, trimmed_mean(self._beside_s)),
            epochs_per_iteration=median(self._epochs) or 1.0,
            noise=self._noise(),
            precopy=settings.precopy,
            min_nodes=settings.min_nodes,
            max_nodes=settings.max_nodes,
            start_nodes=settings.start_nodes or settings.min_nodes,
        )
        scenario = Scenario(name=self._path.name, seed=settings.seed, job=job, network=network, nodes=nodes)
        return RecordedJob(scenario=scenario, infos=self._infos, result=self._recorded(step))

    def _learn(self, step: Step) -> None:
        now_s, event = self._now_s, step.line.event
        match event:
            case events.ChunksDeclared() if not self._infos:
                self._infos = event.chunks
                self._sizes = {info.id: info.size_bytes for info in event.chunks}
            case events.NodeJoined():
                self._join(event)
            case events.LeaveNoticed() if event.node in self._names:
                node = self._node(event.node)
                node.noticed_s = now_s if node.noticed_s is None else node.noticed_s
            case events.HandoverDue() if event.node in self._names:
                self._node(event.node).due_s = now_s
            case events.NodeLost() if event.node in self._names:
                self._node(event.node).lost_s = now_s
                del self._names[event.node]
            case events.RoundFormed() if event.round in self._round_began_s:
                self._rounds_s.append(now_s - self._round_began_s.pop(event.round))
            case events.ChunksLoaded() if event.node in self._loads and not self._history:
                begin_s, _, total = self._loads[event.node]
                self._loads[event.node] = begin_s, now_s, total + self._bytes(event.chunks)
            case events.ChunksCopied():
                self._copied(event)
            case events.PrecopiesEnded():
                self._precopied(event)
            case events.IterationFinished() if event.iteration in self._began_s:
                self._finish(step, event)
            case events.IterationAborted():
                self._num_aborted += 1

    def _see(self, effect: effects.Effect) -> None:
        now_s = self._now_s
        match effect:
            case effects.FormRound():
                self._round_began_s[effect.round] = now_s
            case effects.LoadChunks():
                self._loads.setdefault(effect.node, (now_s, now_s, 0))
            case effects.CopyChunks():
                self._ordered_s.update((("copy", chunk, effect.target), now_s) for chunk in effect.chunks)
            case effects.PrecopyChunks():
                self._precopies.update(zip(effect.numbers, ((chunk, now_s) for chunk in effect.chunks), strict=True))
            case effects.CommitChunks():
                self._num_moved += len(effect.chunks)
            case effects.ReleaseNode() if effect.node in self._names:
                self._node(effect.node).released_s = now_s
                del self._names[effect.node]
            case effects.StartIteration():
                self._began_s[effect.iteration] = now_s
                if self._history:
                    self._stalls_s[effect.iteration] = now_s - self._ended_s
            case effects.FinishJob():
                self._reason = effect.reason
            case effects.Log():
                self._lines.append(effect.text)

    def _join(self, event: events.NodeJoined) -> None:
        if event.node in self._names:
            return  # the scheduler ignored it
        name, number = str(event.node), 2
        while name in self._nodes:
            name, number = f"{event.node}~{number}", number + 1
        self._names[event.node] = name
        self._nodes[name] = _Node(joined_s=self._now_s, capacity_bytes=event.capacity_bytes)

    def _finish(self, step: Step, event: events.IterationFinished) -> None:
        now_s = self._now_s
        self._ended_s = now_s
        longest_s = max((report.duration_s for report in event.reports.values()), default=0.0)
        self._beside_s.append(now_s - self._began_s[event.iteration] - longest_s)
        samples = sum(report.samples for report in event.reports.values())
        rows = sum(info.num_rows for info in self._infos)
        self._samples += samples
        self._epochs.append(samples / rows)
        for name, report in event.reports.items():
            if name in self._names and report.samples > 0 and report.duration_s > 0:
                self._node(name).row_s.append(report.duration_s / report.samples)
        owned = step.scheduler.ledger.node_chunks
        self._history.append(
            IterationRecord(
                iteration=event.iteration,
                epochs=self._samples / rows,
                time_s=now_s,
                num_tasks=len(event.reports),
                num_chunks={str(name): len(owned[name].owned) for name in event.reports if name in owned},
                seconds={str(name): report.duration_s for name, report in event.reports.items()},
                samples=samples,
                events=tuple(self._lines),
            )
        )
        self._lines = []

    def _copied(self, event: events.ChunksCopied) -> None:
        begins_s = [self._ordered_s.pop(("copy", chunk, event.target), None) for chunk in event.chunks]
        known_s = [begin_s for begin_s in begins_s if begin_s is not None]
        if not known_s:
            return
        took_s = self._now_s - min(known_s)
        if all((chunk, event.target) in self._rows_at for chunk in event.chunks):
            self._copies_s.append(took_s)
        elif took_s > 0:
            self._rates.append(self._bytes(event.chunks) / took_s)
        self._rows_at.difference_update((chunk, event.target) for chunk in event.chunks)

    def _precopied(self, event: events.PrecopiesEnded) -> None:
        orders = [self._precopies.pop(number) for number in event.whole if number in self._precopies]
        self._rows_at.update((chunk, event.node) for chunk, _ in orders)
        took_s = self._now_s - min((begin_s for _, begin_s in orders), default=self._now_s)
        if took_s > 0:
            self._rates.append(self._bytes(chunk for chunk, _ in orders) / took_s)

    def _as_node(self, name: str, node: _Node, *, speed: float) -> SimulatedNode:
        lost_s, noticed_s, grace_s = node.lost_s, node.noticed_s, PATIENT_S
        if noticed_s is not None:
            noticed_s = max(noticed_s, node.joined_s + AFTER_S)
            if node.due_s is not None:
                grace_s = (node.due_s - noticed_s) / INTERRUPT_SHARE
            if lost_s is not None and lost_s > noticed_s:
                grace_s = lost_s - noticed_s
            grace_s = max(grace_s, AFTER_S)
            lost_s = None
        elif lost_s is not None:
            lost_s = max(lost_s, node.joined_s + AFTER_S)
        return SimulatedNode(
            name=name,
            speed=speed,
            joins_s=node.joined_s,
            notice_s=noticed_s,
            grace_s=grace_s,
            dies_s=lost_s,
            memory_bytes=node.capacity_bytes,
        )

    def _noise(self) -> float:
        """Median of the nodes' relative deviation of the time per sample, without outliers."""
        found = []
        for node in self._nodes.values():
            if len(node.row_s) > 2:
                middle = median(node.row_s)
                found.append(MAD_TO_SIGMA * median(abs(value - middle) for value in node.row_s) / middle)
        return min(MOST_NOISE, median(found)) if found else 0.0

    def _recorded(self, step: Step) -> SimulationResult:
        node_s = 0.0
        for node in self._nodes.values():
            ends_s = [end_s for end_s in (node.lost_s, node.released_s) if end_s is not None]
            node_s += min(ends_s, default=self._now_s) - node.joined_s
        return SimulationResult(
            scenario=self._path.name,
            policies=(),
            is_real=True,
            has_finished=self._reason is not None,
            reason=self._reason or "the recording ends before the job",
            time_s=self._ended_s,
            node_s=node_s,
            cost=node_s,
            aborted=self._num_aborted,
            chunks_moved=self._num_moved,
            bytes_moved=None,
            chunks_lost=sum(step.scheduler.ledger.replayed.values()),
            stall_s=math.fsum(self._stalls_s.values()),
            longest_stall_s=max(self._stalls_s.values(), default=0.0),
            history=self._history,
        )

    def _node(self, node: NodeId) -> _Node:
        return self._nodes[self._names[node]]

    def _bytes(self, chunks: Iterable[ChunkId]) -> int:
        return sum(self._sizes[chunk] for chunk in chunks)
