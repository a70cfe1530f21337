"""What a simulation is told: the job, its nodes, the network, what happens to nodes, and which nodes can be had.

A scenario is a TOML file or made in Python. Everything is checked before the first event: a key that there is not, a
value out of its range, and what cannot be, such as a node that dies before it joins. The message has file, line and
key.
"""

import itertools
import math
import re
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from chicle_elastic.errors import UsageError
from chicle_elastic.resources.schedule import MAX_NODES, flaw_of_step, read_text
from chicle_elastic.runtime.simulate.traces import UNITS_S, read_trace

MAX_CHUNKS = 2_000_000
LARGEST = 1e9  # of numbers without another limit, so that sums of them stay finite; 1 / LARGEST is the smallest rate
LOSSES = ("hinge", "squared_hinge", "logistic")
MESSAGE = re.compile(r"(?P<text>.*?)(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)
STEP = re.compile(r"\.(?P<key>\w+)|\[(?P<index>\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """The job; with real work, chunks and rows are those of the data."""

    iterations: int = 100  # merged iterations after which the job ends, >= 1
    until_s: float | None = None  # virtual seconds after which the simulation ends anyway; None for never
    chunks: int = 512  # chunks of the data set, >= 1
    rows_per_chunk: int = 1000  # samples in each, >= 1
    chunk_bytes: int = 1 << 20  # bytes of each, state included, >= 1
    # bytes of the state in each: what moves at a boundary once rows were pre-copied, <= `chunk_bytes`
    state_bytes: int = 8 << 10
    row_s: float = 1e-5  # seconds per sample on a node of speed 1, > 0
    iteration_s: float = 0.0  # seconds of an iteration beside what tasks compute: the all-reduce and the merge
    epochs_per_iteration: float = 1.0  # samples that a task processes in an iteration, over those that it has, > 0
    noise: float = 0.0  # standard deviation of the time of a task, relative to it, >= 0 and < 1
    precopy: bool = True  # whether rows are pre-copied while iterations run, as agents do
    min_nodes: int = 1  # fewer nodes pause the job
    max_nodes: int | None = None  # more nodes are not asked for; None for no limit
    # nodes that the job waits for at its start; None for those that are ready at second 0
    start_nodes: int | None = None
    # sets of policies to compare, as "Rebalance+Shuffle:share=0.1"; the command line overrides them
    policies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("iterations", "chunks", "rows_per_chunk", "chunk_bytes", "min_nodes"):
            _require(name, getattr(self, name) >= 1, getattr(self, name), ">= 1")
        _require("chunks", self.chunks <= MAX_CHUNKS, self.chunks, f"<= {MAX_CHUNKS}")
        _require("state_bytes", 0 <= self.state_bytes <= self.chunk_bytes, self.state_bytes, ">= 0 and <= chunk_bytes")
        _require("row_s", 0 < self.row_s <= LARGEST, self.row_s, f"> 0 and <= {LARGEST:g}")
        is_share = 0 < self.epochs_per_iteration <= LARGEST
        _require("epochs_per_iteration", is_share, self.epochs_per_iteration, f"> 0 and <= {LARGEST:g}")
        _require("noise", 0 <= self.noise < 1, self.noise, ">= 0 and < 1")
        _require_seconds(self, "iteration_s", "until_s")
        for name in ("max_nodes", "start_nodes"):
            value = getattr(self, name)
            _require(name, value is None or value >= self.min_nodes, value, f">= min_nodes={self.min_nodes}")
        if self.max_nodes is not None and self.start_nodes is not None:
            _require("start_nodes", self.start_nodes <= self.max_nodes, self.start_nodes, f"<= {self.max_nodes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMachine:
    """Hold what named nodes and those of a supply have in common."""

    name: str  # of the node; of several the start of the names, "fast" for fast-0, fast-1 and so on
    speed: float = 1.0  # samples per second, relative to `row_s`, > 0: 0.5 is half as fast
    boot_s: float = 0.0  # seconds from the start of a node until it joins
    grace_s: float = 30.0  # seconds from its notice until it is taken away
    price: float = 1.0  # of a second of the node; in a supply, where no step has one
    memory_bytes: int | None = None  # memory for chunks; None for as much as there is to hold
    bytes_per_s: float | None = None  # of its link, each way; None for that of the network

    def __post_init__(self) -> None:
        _require("name", bool(re.fullmatch(r"\S{1,100}", self.name)), self.name, "1 to 100 characters without blanks")
        _require_rate(self, "speed")
        _require_rate(self, "bytes_per_s")
        _require_seconds(self, "boot_s", "grace_s")
        _require("price", 0 <= self.price <= LARGEST, self.price, f">= 0 and <= {LARGEST:g}")
        _require("memory_bytes", self.memory_bytes is None or self.memory_bytes >= 1, self.memory_bytes, ">= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedNode(SimulatedMachine):
    """A node, or several that are alike."""

    count: int = 1  # nodes like this one, >= 1
    joins_s: float = 0.0  # second at which it is started and paid for
    notice_s: float | None = None  # second at which it is given notice; None for never
    dies_s: float | None = None  # second at which it is lost without notice; None for never

    def __post_init__(self) -> None:
        SimulatedMachine.__post_init__(self)
        _require("count", 1 <= self.count <= MAX_NODES, self.count, f">= 1 and <= {MAX_NODES}")
        _require_seconds(self, "joins_s", "notice_s", "dies_s")
        for name in ("notice_s", "dies_s"):
            value = getattr(self, name)
            what = f"> {self.ready_s:g}: the node joins at joins_s + boot_s"
            _require(name, value is None or value > self.ready_s, value, what)
        if self.notice_s is not None and self.dies_s is not None:
            gone_s = self.notice_s + self.grace_s
            what = f"> notice_s={self.notice_s:g} and <= {gone_s:g}, when the node is taken away"
            _require("dies_s", self.notice_s < self.dies_s <= gone_s, self.dies_s, what)

    @property
    def ready_s(self) -> float:
        """Second at which it joins."""
        return self.joins_s + self.boot_s

    @property
    def names(self) -> tuple[str, ...]:
        """Of each node."""
        return (self.name,) if self.count == 1 else tuple(f"{self.name}-{number}" for number in range(self.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedNetwork:
    """What it takes to move bytes and to agree."""

    bytes_per_s: float = 1e9  # of the link of a node, each way, > 0
    latency_s: float = 2e-4  # seconds of a copy beside its bytes
    load_bytes_per_s: float = 1e9  # of one node that loads from the source, > 0
    round_s: float = 0.05  # seconds until all members of a new round have met
    detect_s: float = 1.0  # seconds until the others know that a node was lost

    def __post_init__(self) -> None:
        for name in ("bytes_per_s", "load_bytes_per_s"):
            _require_rate(self, name)
        _require_seconds(self, "latency_s", "round_s", "detect_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoss:
    """Several nodes that are lost at once, without notice."""

    at_s: float  # Second
    nodes: tuple[str, ...] = ()  # their names
    # instead of names, the share of all nodes that are there then, drawn by the seed, > 0 and <= 1
    share: float | None = None

    def __post_init__(self) -> None:
        _require_seconds(self, "at_s")
        _require("share", self.share is None or 0 < self.share <= 1, self.share, "> 0 and <= 1")
        if bool(self.nodes) == (self.share is not None):
            raise UsageError("nodes: a loss has either nodes or a share of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSupply(SimulatedMachine):
    """Nodes that a resource manager gives and takes, beside those that are named. The job has all of them that there
    are, or as many as a policy asks for. Where there are fewer than the job has, the newest are given notice."""

    name: str = "spot"
    # (second, nodes) or (second, nodes, price): so many there are from then on, at such a price of a node second; the
    # last price holds on
    steps: tuple[tuple[float, ...], ...] = ()
    trace: str | None = None  # instead of steps, a file with them, relative to the scenario; formats are in `traces`
    trace_unit: str = "s"  # of the times in a trace of counts, "s" or "ms"
    trace_from_s: float = 0.0  # second of the trace at which the job begins

    def __post_init__(self) -> None:
        SimulatedMachine.__post_init__(self)
        _require("trace_unit", self.trace_unit in UNITS_S, self.trace_unit, f"one of {', '.join(UNITS_S)}")
        _require_seconds(self, "trace_from_s")
        if bool(self.steps) == (self.trace is not None):
            raise UsageError("steps: a supply has either steps or a trace")
        for number, step in enumerate(self.steps):
            flaw = flaw_of_step(step, self.steps[number - 1] if number else None)
            if flaw is not None:
                raise UsageError(f"steps={list(step)}: {flaw}")

    def nodes_at(self, now_s: float) -> int:
        """Nodes that there are at this second; none before the first step."""
        return next((int(step[1]) for step in reversed(self.steps) if step[0] <= now_s), 0)

    def price_at(self, now_s: float) -> float:
        """Price of a node second at this second."""
        known = (step[2] for step in reversed(self.steps) if step[0] <= now_s and len(step) > 2)
        return next(known, self.price)

    def cost(self, begin_s: float, end_s: float) -> float:
        """What one node costs from one second to another one."""
        cuts = [begin_s, *(step[0] for step in self.steps if begin_s < step[0] < end_s), end_s]
        return sum(self.price_at(since_s) * (until_s - since_s) for since_s, until_s in itertools.pairwise(cuts))


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedData:
    """Data and algorithm of real work."""

    folder: str  # of chunks, as `chicle convert` writes it, relative to the scenario
    loss: str = "hinge"  # of the linear model: "hinge", "squared_hinge" or "logistic"
    C: float = 1.0  # factor of the sum of losses, > 0
    tol: float = 1e-3  # relative duality gap at which the job ends; 0 for never
    trainer: str = ""  # instead of the linear model one of your own, "package.module:Class"
    parameters: dict[str, Any] = field(default_factory=dict)  # what it is made with

    def __post_init__(self) -> None:
        _require("loss", self.loss in LOSSES, self.loss, f"one of {', '.join(LOSSES)}")
        _require("C", 0 < self.C < math.inf, self.C, "> 0 and finite")
        _require("tol", 0 <= self.tol < math.inf, self.tol, ">= 0 and finite")
        if self.parameters and not self.trainer:
            raise UsageError("parameters: they are of a trainer of your own; the linear model has loss, C and tol")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A simulation, but for its policies.

    Raises:
        UsageError: It contradicts itself.

    >>> from chicle_elastic.runtime.simulate.scenario import Scenario, SimulatedJob, SimulatedNode
    >>> scenario = Scenario(nodes=(SimulatedNode(name="n", count=4),), job=SimulatedJob(iterations=10))
    >>> SimulatedNode(name="n", joins_s=60, dies_s=30)
    Traceback (most recent call last):
    ...
    chicle_elastic.errors.UsageError: dies_s=30: it must be > 60: the node joins at joins_s + boot_s
    """

    seed: int = 0  # of all random choices; the same seed gives the same bytes
    job: SimulatedJob = field(default_factory=SimulatedJob)
    network: SimulatedNetwork = field(default_factory=SimulatedNetwork)
    nodes: tuple[SimulatedNode, ...] = ()  # nodes by name
    losses: tuple[SimulatedLoss, ...] = ()  # nodes that are lost together
    supply: SimulatedSupply | None = None  # nodes of a resource manager; None for none
    data: SimulatedData | None = None  # of real work; None where there is none
    name: str = "scenario"  # for the table

    def __post_init__(self) -> None:
        _require("seed", self.seed >= 0, self.seed, ">= 0")
        if not self.nodes and self.supply is None:
            raise UsageError("nodes: there are none, and no supply of any")
        known: dict[str, SimulatedNode] = {}
        for number, node in enumerate(self.nodes):
            for name in node.names:
                if name in known:
                    raise UsageError(f"nodes[{number}].name={name!r}: another node has this name")
                known[name] = node
        if len(known) > MAX_NODES:
            raise UsageError(f"nodes: there are {len(known)}; a scenario has at most {MAX_NODES}")
        if self.supply is not None and any(re.fullmatch(rf"{re.escape(self.supply.name)}-\d+", name) for name in known):
            raise UsageError(f"supply.name={self.supply.name!r}: a node has a name that begins like this")
        self._require_memory()
        self._require_losses(known)
        needed = self.job.start_nodes or self.job.min_nodes
        if self.supply is None and len(known) < needed:
            raise UsageError(f"job: it needs {needed} nodes to begin, and there are never more than {len(known)}")

    @classmethod
    def read(cls, path: str | Path) -> "Scenario":
        """Read a TOML file. Raises UsageError when it cannot be read, or contradicts itself; with file, line and
        key."""
        path = Path(path)
        text = read_text(path, "scenario")
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path}: {error}") from error
        known = {"name": path.stem, **table}
        _require_keys(path, text, known)
        try:
            scenario = msgspec.convert(known, cls)
            if scenario.supply is not None and scenario.supply.trace is not None:
                given = scenario.supply
                trace = path.parent / scenario.supply.trace
                steps = read_trace(trace, unit=given.trace_unit, from_s=given.trace_from_s)
                known["supply"] = {**table["supply"], "steps": steps}
                del known["supply"]["trace"]
                scenario = msgspec.convert(known, cls)
        except msgspec.ValidationError as error:
            found = MESSAGE.fullmatch(str(error))
            assert found is not None
            message, where = found["text"], found["path"] or ""
            raise UsageError(_fault_text(path, text, where, message)) from error
        return scenario

    def start_nodes(self) -> int | None:
        """Nodes that the job waits for at its start; None for as many as it needs."""
        if self.job.start_nodes is not None:
            return self.job.start_nodes
        ready = sum(node.count for node in self.nodes if node.ready_s == 0)
        if self.supply is not None and self.supply.boot_s == 0:
            ready += self.supply.nodes_at(0.0)
        most = ready if self.job.max_nodes is None else min(ready, self.job.max_nodes)
        return most if most >= self.job.min_nodes else None

    def _require_memory(self) -> None:
        machines: list[tuple[str, int | None]] = [
            (f"nodes[{number}]", node.memory_bytes) for number, node in enumerate(self.nodes)
        ]
        if self.supply is not None:
            machines.append(("supply", self.supply.memory_bytes))
        for where, memory_bytes in machines:
            if memory_bytes is not None and memory_bytes < self.job.chunk_bytes:
                raise UsageError(
                    f"{where}.memory_bytes={memory_bytes}: it must be >= job.chunk_bytes={self.job.chunk_bytes}, or "
                    "the node holds no chunk"
                )

    def _require_losses(self, known: dict[str, SimulatedNode]) -> None:
        lost: dict[str, float] = {}
        for number, loss in enumerate(self.losses):
            for name in loss.nodes:
                where = f"losses[{number}].nodes"
                if name not in known:
                    raise UsageError(f"{where}: there is no node {name!r}; there are {', '.join(list(known)[:8])}")
                node = known[name]
                if loss.at_s <= node.ready_s:
                    raise UsageError(f"{where}: {name} joins at second {node.ready_s:g}, and is lost at {loss.at_s:g}")
                ends_s = [node.dies_s, lost.get(name)]
                ends_s += [None if node.notice_s is None else node.notice_s + node.grace_s]
                gone_s = min((end_s for end_s in ends_s if end_s is not None), default=math.inf)
                if loss.at_s >= gone_s:
                    raise UsageError(f"{where}: {name} is gone at second {gone_s:g}, before its loss at {loss.at_s:g}")
                lost[name] = loss.at_s


KEYS: dict[str, Any] = {
    "job": SimulatedJob,
    "network": SimulatedNetwork,
    "nodes": SimulatedNode,
    "losses": SimulatedLoss,
    "supply": SimulatedSupply,
    "data": SimulatedData,
}


def _require_keys(path: Path, text: str, table: dict[str, Any]) -> None:
    """Refuse keys that mean nothing: they are slips."""
    tables: list[tuple[str, Any, Any]] = [("", Scenario, table)]
    for key, kind in KEYS.items():
        value = table.get(key)
        items = [(f".{key}[{number}]", item) for number, item in enumerate(value)] if isinstance(value, list) else []
        tables += [(where, kind, item) for where, item in items or [(f".{key}", value)]]
    for where, kind, value in tables:
        if not isinstance(value, dict):
            continue
        known = [item.name for item in fields(kind)]
        for key in value:
            if key not in known:
                message = f"there is no such key; there are {', '.join(known)}"
                raise UsageError(_fault_text(path, text, f"{where}.{key}", message))


def _fault_text(path: Path, text: str, where: str, message: str) -> str:
    """A fault with file, line and key: "spot.toml:12: nodes[1].speed=0.0: it must be > 0 and finite".

    Args:
        where: Path of a table or key, as msgspec says it: ".nodes[1]".
        message: What is wrong; it begins with a key in that table where a check of ours found it.
    """
    named = re.match(r"((?:\w+(?:\[\d+\])?\.)*\w+(?:\[\d+\])?)[=:]", message)
    steps = [step["key"] or int(step["index"]) for step in STEP.finditer(f"{where}.{named[1]}" if named else where)]
    line = _line_of(text, steps)
    place = f"{path}:{line}" if line else f"{path}"
    return ": ".join(filter(None, [place, f"{where}{'.' if named else ': '}{message}".lstrip(".: ")]))


def _line_of(text: str, steps: list[str | int]) -> int | None:
    """Line of a key, from 1; that of its table where the key is not found; None without either."""
    lines = text.splitlines()
    table = next((step for step in steps if isinstance(step, str)), None)
    index = next((step for step in steps if isinstance(step, int)), 0)
    headers = [number for number, line in enumerate(lines) if re.match(rf"\s*\[\[?\s*{table}\s*\]", line)]
    begin, found = 0, None
    if table in KEYS and len(headers) > index:
        begin = found = headers[index]
    key = next((step for step in reversed(steps) if isinstance(step, str)), None)
    for number in range(begin + (found is not None), len(lines)):
        if lines[number].lstrip().startswith("["):
            break
        if re.match(rf"\s*{key}\s*=", lines[number]):
            return number + 1
    return None if found is None else found + 1


def _require(name: str, is_right: bool, value: object, what: str) -> None:
    if not is_right:
        raise UsageError(f"{name}={value!r}: it must be {what}")


def _require_seconds(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        _require(name, value is None or 0 <= value <= LARGEST, value, f">= 0 and <= {LARGEST:g}")


def _require_rate(owner: object, name: str) -> None:
    value = getattr(owner, name)
    is_rate = value is None or 1 / LARGEST <= value < math.inf
    _require(name, is_rate, value, f">= {1 / LARGEST:g} and finite")
