"""What the control plane costs where there are many nodes and chunks: pure, no process, no socket.

Every agent folds the same log in its event loop, so what the scheduler takes for one event holds every node up. One
job is followed through its life: it begins, all chunks are loaded, a node joins, a notice comes, a node is lost and
the others report what they hold.

    python -m benchmarks.scale [--sizes 64x15625,256x62500,1024x250000,4096x1000000] [--json FILE]

Times are processor time of this thread, in ms, one run. A change costs the sum of its steps. The bars are those of the
largest size: a first plan takes at most 2 s, a join or a loss 0.5 s, and a join at most 1 % more moves than a joiner's
share has chunks; the exit code is 1 where one is missed.
"""

import functools
import gc
import math
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.bars import Bar, Row
from benchmarks.report import Report, parser
from chicle_elastic.cluster.consensus.entries import Entry
from chicle_elastic.cluster.consensus.followers import Followers
from chicle_elastic.cluster.consensus.log import Log
from chicle_elastic.cluster.consensus.messages import Install, Message, Messages
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import codec, effects, events
from chicle_elastic.scheduling.effects import Effect
from chicle_elastic.scheduling.events import Event
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from chicle_elastic.transports import wire
from chicle_elastic.transports.wire import Kind
from chicle_elastic.values import ChunkInfo, TaskReport

SIZES = ((64, 15_625), (256, 62_500), (1024, 250_000), (4096, 1_000_000))
A_TURN = 256
"""Nodes whose reports a leader hears in one turn of its loop, and sends on together."""
BARS = {
    "first plan, ms": Bar(2000.0, at_most=True),
    "a join, ms": Bar(500.0, at_most=True),
    "a notice, ms": Bar(500.0, at_most=True),
    "a loss, ms": Bar(500.0, at_most=True),
    "moves of a join over its share": Bar(1.01, at_most=True),
}
"""What is judged at the largest size."""
CHUNK_BYTES = 1 << 20


class ScaledJob:
    """A leader's log, fed with the events of a job in their order.

    Args:
        num_nodes: Nodes that begin the job.
        num_chunks: Chunks of the data set.

    Attributes:
        times_ms: Processor time by step, in the order of the job.
        sizes: Bytes of messages by name.
        moves_over_share: Chunks that moved to the node that joined, over its share of the chunks.
    """

    def __init__(self, num_nodes: int, num_chunks: int) -> None:
        self.times_ms: dict[str, float] = {}
        self.sizes: dict[str, int] = {}
        self.moves_over_share = math.nan
        self._nodes = [NodeId(f"n{number}") for number in range(num_nodes)]
        self._num_chunks = num_chunks
        settings = SchedulerSettings(seed=1, min_nodes=1, start_nodes=num_nodes, precopy=True)
        self._settings = settings
        self._log = Log(Scheduler(settings))

    def run(self) -> None:
        """Follow the job through its life."""
        self._timed("data declared, nodes known", self._begin)
        self._load()
        self._snapshot()
        self._join()
        self._notice()
        self._lose()

    def _begin(self) -> None:
        infos = tuple(
            ChunkInfo(id=ChunkId(number), num_rows=1000 + number % 7, size_bytes=CHUNK_BYTES)
            for number in range(self._num_chunks)
        )
        self._fold(events.ChunksDeclared(chunks=infos))
        capacity_bytes = 4 * (self._num_chunks // len(self._nodes) + 1) * CHUNK_BYTES
        for node in self._nodes:
            self._fold(events.NodeJoined(node=node, capacity_bytes=capacity_bytes))
        gc.freeze()  # as agents do with a large ledger

    def _load(self) -> None:
        self._report_inventories("first inventories")
        loads = self._timed("first plan", self._form_round)
        loaded = [
            events.ChunksLoaded(chunks=effect.chunks, node=effect.node, round=effect.round)
            for effect in loads
            if isinstance(effect, effects.LoadChunks)
        ]
        copies = self._timed("fold of all loads", lambda: self._fold_all(loaded))
        self._settle(copies)
        self._timed("fold of an iteration", self._iterate)

    def _snapshot(self) -> None:
        text = self._timed("snapshot", self._encode_snapshot)
        self.sizes["snapshot"] = len(text)
        copy = Log(Scheduler(self._settings))
        self._timed(
            "snapshot, installed",
            lambda: copy.install(wire.unpack_json(Kind.MESSAGE, text, peer="")["messages"][0]["state"]),
        )

    def _encode_snapshot(self) -> bytes:
        install = Install(term=1, state=self._log.state(write=codec.to_raw))
        return codec.encode(Messages(messages=(install,)), is_finite=True)

    def _join(self) -> None:
        joiner = NodeId("late")
        capacity_bytes = 4 * (self._num_chunks // len(self._nodes) + 1) * CHUNK_BYTES
        self._fold(events.NodeJoined(node=joiner, capacity_bytes=capacity_bytes))
        ahead = self._timed("join: plan ahead", self._iterate)
        self._timed("join: rows are there", lambda: self._fold_all(_precopied(ahead)))
        self._timed("join: boundary", self._iterate)
        self._nodes.append(joiner)
        self._report_inventories("join: inventories")
        copies = self._timed("join: copies", self._form_round)
        num_moves = sum(len(order.chunks) for order in copies if isinstance(order, effects.CopyChunks))
        self.moves_over_share = num_moves / (self._num_chunks // len(self._nodes))
        self._timed("join: commit", lambda: self._settle(copies))

    def _notice(self) -> None:
        leaver = self._nodes[0]
        self._fold(events.LeaveNoticed(node=leaver))
        ahead = self._timed("notice: plan ahead", self._iterate)
        self._timed("notice: rows are there", lambda: self._fold_all(_precopied(ahead)))
        self._timed("notice: boundary", self._iterate)
        self._report_inventories("notice: inventories")
        self._nodes.remove(leaver)
        copies = self._timed("notice: copies", self._form_round)
        self._timed("notice: commit", lambda: self._settle(copies))

    def _lose(self) -> None:
        lost = self._nodes.pop(1)
        followers = Followers(self._log)
        for node in self._nodes:
            followers.know(node, len(self._log))
        ledger = self._log.scheduler.ledger
        self._timed("loss: fold", lambda: self._fold(events.NodeLost(node=lost)))
        round, iteration = self._log.in_flight or (0, 0)
        self._fold(events.IterationAborted(round=round, iteration=iteration, reason="a member is gone"))
        self.sizes["sent after a loss"] = 0
        for start in range(0, len(self._nodes), A_TURN):
            nodes = self._nodes[start : start + A_TURN]
            self._report_inventories("loss: inventories", nodes)
            self._timed("loss: sent to all", functools.partial(self._send, followers))
        self._timed("loss: plan", self._form_round)
        assert not ledger.num_chunks - self._num_chunks

    def _send(self, followers: Followers) -> None:
        """Encode what a leader sends to all its followers, as it does at the end of a turn."""
        alike: dict[int, list[Message]] = {}
        for node in self._nodes[1:]:
            message = followers.tell(node, _life(node), term=1)
            alike.setdefault(id(message), []).append(message)
        self.sizes["sent after a loss"] += sum(
            len(messages) * len(wire.pack_text(Kind.MESSAGE, codec.encode(Messages(messages=(messages[0],)))))
            for messages in alike.values()
        )

    def summary(self) -> dict[str, float]:
        """What is judged: each change as the sum of its steps."""
        changes = {
            f"a {change}, ms": sum(ms for step, ms in self.times_ms.items() if step.startswith(f"{change}: "))
            for change in ("join", "notice", "loss")
        }
        first = {"first plan, ms": self.times_ms["first plan"]}
        return first | changes | {"moves of a join over its share": self.moves_over_share}

    # What nodes say.

    def _report_inventories(self, step: str, nodes: Iterable[NodeId] = ()) -> None:
        """Every node holds what the ledger gives to it, and says so."""
        round = self._log.scheduler.round
        reports = [
            events.InventoryReported(node=node, chunks={}, round=round, is_as_known=True)
            for node in nodes or self._nodes
        ]
        self._timed(step, functools.partial(self._fold_all, reports))

    def _form_round(self) -> list[Effect]:
        return self._fold(events.RoundFormed(round=self._log.scheduler.round, members=tuple(self._nodes)))

    def _iterate(self) -> list[Effect]:
        assert self._log.in_flight is not None
        round, iteration = self._log.in_flight
        reports = {node: TaskReport(samples=1000, duration_s=0.02) for node in self._nodes}
        return self._fold(events.IterationFinished(round=round, iteration=iteration, reports=reports))

    def _settle(self, ordered: list[Effect]) -> None:
        """Answer copies and frees until the next iteration is started."""
        while ordered:
            answers: list[Event] = []
            for order in ordered:
                match order:
                    case effects.CopyChunks():
                        pair = {"source": order.source, "target": order.target}
                        answers.append(events.ChunksCopied(chunks=order.chunks, round=order.round, **pair))
                    case effects.FreeChunks():
                        answers.append(events.ChunksFreed(chunks=order.chunks, node=order.node, round=order.round))
            ordered = self._fold_all(answers)

    # How.

    def _fold_all(self, happened: Iterable[Event]) -> list[Effect]:
        return [effect for event in happened for effect in self._fold(event)]

    def _fold(self, event: Event) -> list[Effect]:
        origin = _life(event.node) if isinstance(event, events.NodeJoined) else ""
        return self._log.append(Entry(now=0.0, event=event, term=1, origin=origin))

    def _timed(self, step: str, do: Callable[[], Any]) -> Any:
        began_s = time.thread_time()
        result = do()
        self.times_ms[step] = self.times_ms.get(step, 0.0) + 1e3 * (time.thread_time() - began_s)
        return result


def _life(node: NodeId) -> str:
    return f"{node}#0"


def _precopied(ordered: list[Effect]) -> list[Event]:
    """Every node answers once, when all that it was to fetch has come."""
    numbers: dict[NodeId, list[int]] = {}
    for order in ordered:
        if isinstance(order, effects.PrecopyChunks):
            numbers.setdefault(order.target, []).extend(order.numbers)
    return [events.PrecopiesEnded(node=node, whole=tuple(sorted(whole))) for node, whole in numbers.items()]


def main() -> int:
    """Measure all sizes and print a table."""
    line = parser(__doc__.splitlines()[0])
    line.add_argument("--sizes", default=",".join(f"{nodes}x{chunks}" for nodes, chunks in SIZES))
    arguments = line.parse_args()
    report = Report(arguments)
    for size in arguments.sizes.split(",")[: 1 if arguments.quick else None]:
        num_nodes, num_chunks = (int(number) for number in size.split("x"))
        job = ScaledJob(num_nodes, num_chunks)
        job.run()
        steps = [(step, f"{ms:.1f} ms") for step, ms in job.times_ms.items()]
        steps += [(name, f"{count:,} bytes") for name, count in job.sizes.items()]
        report.add(Row("step", f"{size}: {step}", None, shown, "") for step, shown in steps)
        bars = BARS if (num_nodes, num_chunks) == SIZES[-1] else {}
        report.add(
            Row("judged", f"{size}: {name}", None, f"{value:.4g}", "", value, bars.get(name))
            for name, value in job.summary().items()
        )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
