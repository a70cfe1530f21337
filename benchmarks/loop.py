"""What a change costs a training loop of PyTorch: `chicle_elastic.torch` against DDP under stock torchrun, tuned, and,
where they are installed, against torchft (`pip install --target FOLDER torchft-nightly`, then `--torchft FOLDER`) and
a group that PyTorch reconfigures in place (`pip install --target FOLDER torch==2.14.1 numpy`, `--in-place FOLDER`).

Four processes on this host train a network with Adam, the same batches on both sides. A process is killed, a node
joins, a node is given notice, and so on; the stall is the longest time between two steps around the change less two
median steps. Stock has a checkpoint every 10 steps and the shortest time-outs that it can have (`elastic_nodes`).
Then time without a change, and what averages after local steps save and lose.

    python -m benchmarks.loop [--changes N] [--stock-changes N] [--torchft FOLDER] [--large-changes N] [--pairs N]
                              [--seeds N] [--quick]

The last line is the whole result as JSON. Exit code 1 when a bar is missed.
"""

import ast
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn
from torch.distributed import TCPStore
from torch.nn import functional

import chicle_elastic.torch as elastic
from benchmarks.bars import Bar, Row
from benchmarks.elastic import JOIN, NOTICE, SIGKILL, Stalls, add_one, phase_rows, phases_of, summary, take_one
from benchmarks.elastic_laps import Lap
from benchmarks.elastic_nodes import (
    NUM_NODES,
    ROOT,
    STOCK_CONF,
    STOCK_ENVIRON,
    THREADS,
    TIMEOUT_S,
    Chicle,
    Node,
    Side,
    Stock,
)
from benchmarks.report import Report, parser
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.torch.schedule import Position
from chicle_elastic.transports.secret import JobSecret

TASK = str(ROOT / "benchmarks/loop_task.py")
BARS = {SIGKILL: Bar(400, 200, at_most=True), JOIN: Bar(250, 100, at_most=True), NOTICE: Bar(250, 100, at_most=True)}
"""Milliseconds of stall, less two median steps."""
AHEAD = Bar(1.0)
OVERHEAD = Bar(1.03, 1.0, at_most=True)
KINDS = (SIGKILL, NOTICE)
FIRST_STEPS = 5  # that are not looked at
Samples: TypeAlias = tuple[torch.Tensor, torch.Tensor, int, int, int]
"""Inputs, classes, batch of all nodes, epochs, and folds of which each is left out once to be judged."""


class ChicleLoop(Chicle):
    """Nodes with the loop of Chicle."""

    parameters = 5_000_000

    def command(self, name: str) -> list[str]:
        """The launcher."""
        return [
            *(sys.executable, "-m", "chicle_elastic.launch", "--nnodes", f"1:{NUM_NODES}", "--name", name),
            *("--rdzv-endpoint", self.store.endpoint, "--secret-file", str(self.folder / "job.secret")),
            *("--log-dir", str(self.folder), TASK, "chicle", str(self.folder), name),
            *("--parameters", str(self.parameters), "--step-ms", str(self.iteration_ms)),
        ]


class StockLoop(Stock):
    """Nodes with DDP under torchrun."""

    parameters = 5_000_000

    def command(self, name: str) -> list[str]:
        """torchrun."""
        return [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", f"1:{NUM_NODES}", "--nproc-per-node", "1"),
            *("--max-restarts", "1000", "--rdzv-backend", "c10d", "--rdzv-endpoint", self.store.endpoint),
            *("--rdzv-id", "stock", "--rdzv-conf", STOCK_CONF, "--local-addr", "127.0.0.1"),
            *("--monitor-interval", "0.1", TASK, "stock", str(self.folder), name),
            *("--parameters", str(self.parameters), "--step-ms", str(self.iteration_ms)),
        ]


class Lighthouse:
    """torchft's server of quorums, with its shortest times, in a process of its own."""

    def __init__(self, torchft: str) -> None:
        times = "join_timeout_ms=100, quorum_tick_ms=20, heartbeat_timeout_ms=1000"
        code = (
            "import time, torchft.coordination as c\n"
            f"server = c.LighthouseServer(bind='127.0.0.1:0', min_replicas=1, {times})\n"
            "print(server.address(), flush=True)\ntime.sleep(1e9)"
        )
        environ = {**os.environ, "PYTHONPATH": torchft}
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.endpoint = self._process.stdout.readline().strip()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


class TorchftLoop(Side):
    """Nodes with DDP of torchft: processes without agents."""

    name, parameters = "torchft", 5_000_000
    torchft = ""

    def new_store(self) -> Lighthouse:
        """Return where the nodes find each other."""
        return Lighthouse(self.torchft)

    def command(self, name: str) -> list[str]:
        """The task itself."""
        return [
            *("env", f"PYTHONPATH={self.torchft}", f"TORCHFT_LIGHTHOUSE={self.store.endpoint}"),
            *(sys.executable, TASK, "torchft", str(self.folder), name, "--parameters", str(self.parameters)),
        ]


class Members:
    """The store of nodes, and who says which of them form the next group, which PyTorch leaves to its user: those that
    run, are ready and have not said that they leave."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes, self._store = nodes, TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._store.set("round", "0")
        self.endpoint = f"127.0.0.1:{self._store.port}"
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._say)
        self._thread.start()

    def _say(self) -> None:
        round, said = 0, list[str]()
        while not self._is_over.wait(0.005):
            names = [node.name for node in self._nodes if node.is_running and self._is_member(node.name)]
            if names != said and (round or len(names) == NUM_NODES):
                round, said = round + 1, names
                self._store.set(f"members/{round}", json.dumps(names))
                self._store.set("round", str(round))

    def _is_member(self, name: str) -> bool:
        return self._store.check([f"ready/{name}"]) and not self._store.check([f"leaves/{name}"])

    def close(self) -> None:
        """End it."""
        self._is_over.set()
        self._thread.join()


class InPlaceLoop(Side):
    """Nodes of a group that PyTorch reconfigures: processes without agents."""

    name, parameters = "in-place", 5_000_000
    torch = ""

    def new_store(self) -> Members:
        """Return where the nodes find each other."""
        return Members(self._all)

    def command(self, name: str) -> list[str]:
        """The task itself."""
        return [
            *("env", f"PYTHONPATH={self.torch}", f"MEMBERS={self.store.endpoint}"),
            *(sys.executable, TASK, "in_place", str(self.folder), name, "--parameters", str(self.parameters)),
        ]


def play(side: Side, changes: int) -> Stalls:
    """All changes of one side; milliseconds of stall by kind, less one more median step."""
    stalls: Stalls = defaultdict(list)
    for _ in range(NUM_NODES):
        side.start()
    side.wait_for("steps of all nodes", lambda: all(len(node.laps()) > 20 for node in side.nodes))
    kinds = itertools.chain.from_iterable(KINDS for _ in range(changes))
    for number, kind in enumerate(kinds):
        step_ms = median_step_ms(side.nodes[-1].laps())
        stalls[kind].append(take_one(side, kind, number // 2 % NUM_NODES) - step_ms)
        stalls[JOIN].append(add_one(side) - step_ms)
        print(f"  {side.name}: {kind} {stalls[kind][-1]:.0f} ms, join {stalls[JOIN][-1]:.0f} ms", file=sys.stderr)
    return stalls


def median_step_ms(laps: Sequence[Lap]) -> float:
    """The median time between the last steps."""
    ends = [lap.end_s for lap in laps[-50:]]
    return 1e3 * statistics.median(later - earlier for earlier, later in itertools.pairwise(ends))


def steps_done_again(folder: Path) -> tuple[int, int]:
    """(steps that were done more than once, steps that were never done), over all nodes of a side."""
    done: dict[int, set[str]] = defaultdict(set)
    again = 0
    for path in folder.glob("*.steps"):
        seen: set[int] = set()
        for line in path.read_text().splitlines():
            step = int(line.split()[0])
            if step < 0:
                continue
            again += step in seen
            seen.add(step)
            done[step].add(path.stem)
    missing = max(done) + 1 - len(done) if done else 0
    return again, missing


def samples_dropped(folder: Path) -> int:
    """Batches of a node whose step failed, and whose samples were not used."""
    return sum(path.read_text().count("-1 ") for path in folder.glob("*.steps"))


def lines_of(side: str) -> int:
    """Lines of a side's whole loop."""
    body = ast.parse(Path(TASK).read_text()).body
    [found] = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == side]
    return (found.end_lineno or 0) - found.lineno + 1


def peer_rows(ours: Stalls, peer: type[Side], folder: Path, changes: int) -> Iterator[Row]:
    """Measure what the same changes cost a peer, beside ours. A side that ends by itself is told."""
    name = peer.name
    try:
        with peer(folder, 0.0) as side:
            stalls = play(side, changes)
            again, never = steps_done_again(side.folder)
            dropped = samples_dropped(side.folder)
    except RuntimeError as error:
        yield Row(name, f"{name}: not measured; {str(error).partition(';')[0]}", None, "", "")
        return
    for kind, values in stalls.items():
        shown = summary(ours[kind]), summary(values)
        more = statistics.median(values) - statistics.median(ours[kind])
        yield Row(name, f"stall of {name} less ours, {kind}, ms", None, *shown, more, None, {"all": values})
    what = f"{name}: sums of a node that failed, steps that a node did again, and steps never done"
    yield Row(name, what, None, "", f"{dropped}, {again} and {never}")


def rows_of(ours: Stalls, stock: Stalls, what: str) -> Iterator[Row]:
    """A row per kind of change."""
    for kind, bar in BARS.items():
        if not ours.get(kind):
            continue
        median = statistics.median(ours[kind])
        details = {"ours_ms": ours[kind], "stock_ms": stock.get(kind, [])}
        shown = summary(ours[kind]), summary(stock.get(kind, []))
        yield Row("stall", f"stall on {kind}, {what}, ms", None, *shown, median, bar, details)


def overhead(size: int, pairs: int, num_steps: int, folder: Path) -> Iterator[Row]:
    """Time and processor time of so many steps without a change, against DDP, in alternating pairs."""
    ratios, cpu_ratios = [], []
    for pair in range(pairs):
        order = ("chicle", "stock") if pair % 2 else ("stock", "chicle")
        found = {side: run_steps(side, size, num_steps, folder / f"{size}-{pair}-{side}") for side in order}
        ratios.append(found["chicle"][0] / found["stock"][0])
        cpu_ratios.append(found["chicle"][1] / found["stock"][1])
        shown = ", ".join(f"{side} {step:.1f} ms, CPU {cpu:.1f} ms" for side, (step, cpu) in sorted(found.items()))
        print(f"  {size} processes, a step: {shown}", file=sys.stderr)
    for name, values in (("step", ratios), ("processor time of a step", cpu_ratios)):
        low, high = interval(values)
        shown = f"{low:.3f} to {high:.3f}"
        bar = OVERHEAD if name == "step" else None
        yield Row("overhead", f"{name}, {size} processes, over DDP (95 %)", None, shown, "", high, bar, {"all": values})


def averages(seeds: int) -> Iterator[Row]:
    """Bytes that a node adds up, and accuracy, with 16 local steps of four nodes over those with a sum at each step."""
    for (what, load), (name, make) in itertools.product(DATA.items(), OPTIMIZERS.items()):
        x, y, batch, num_epochs, num_folds = load()
        runs = [
            [average((x, y), make, batch, num_epochs, local, seed, num_folds) for local in (1, 16)]
            for seed in range(seeds)
        ]
        less = runs[0][0][0] / runs[0][1][0]
        losts = [each[1] - local[1] for each, local in runs]
        theirs, ours = (f"{statistics.mean(run[which][1] for run in runs):.2f}" for which in (0, 1))
        shown = f"accuracy that is lost, H = 16, {what}, {name}, points"
        yield Row("average", f"less traffic, H = 16, {what}, {name}", None, f"{less:.1f}x", "", less, Bar(5.0))
        bar = Bar(0.3, at_most=True)
        yield Row("average", shown, None, ours, theirs, statistics.mean(losts), bar, {"all": losts})
        print(f"  {shown}: {statistics.mean(losts):.2f}", file=sys.stderr)


def teacher() -> Samples:
    """Labels of a made-up network."""
    x = torch.randn(12_000, 20, generator=torch.Generator().manual_seed(5))
    torch.manual_seed(1)
    labels = nn.Sequential(nn.Linear(20, 24), nn.Tanh(), nn.Linear(24, 5))(1.5 * x).argmax(1)
    return x, labels, 64, 8, 2


def scaled(data: Any, batch: int, num_epochs: int) -> Samples:
    """A data set of scikit-learn's, each feature to mean 0 and deviation 1."""
    x = torch.tensor(data.data, dtype=torch.float32)
    return (x - x.mean(0)) / (x.std(0) + 1e-9), torch.tensor(data.target), batch, num_epochs, 4


DATA: dict[str, Callable[[], Samples]] = {
    "made up": teacher,
    "digits": lambda: scaled(load_digits(), 64, 20),
    "breast cancer": lambda: scaled(load_breast_cancer(), 16, 10),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.2),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}


def average(
    data: tuple[torch.Tensor, torch.Tensor],
    make: Callable[[Any], torch.optim.Optimizer],
    batch: int,
    num_epochs: int,
    local_steps: int,
    seed: int,
    num_folds: int,
) -> tuple[int, float]:
    """Train nodes that take turns in this process, with the loop's own sums, once without each fold. With a sum at each
    step one node does what four do (`tests/loop`). Bytes of all vectors of a node, and accuracy in percent on what was
    left out."""
    found, num_bytes, num_nodes = 0.0, 0, NUM_NODES if local_steps > 1 else 1
    order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(seed))
    for fold in range(num_folds):
        is_left = torch.arange(len(order)) % num_folds == fold
        (x, judged_x), (y, judged_y) = [(part[order[~is_left]], part[order[is_left]]) for part in data]
        loops: list[Any] = []
        for _ in range(num_nodes):
            torch.manual_seed(seed)
            sizes = itertools.pairwise((x.shape[1], 64, 64, int(y.max()) + 1))
            model = nn.Sequential(*itertools.chain.from_iterable((nn.Linear(*size), nn.ReLU()) for size in sizes))[:-1]
            loops.append(
                elastic.loop(
                    model, make(model.parameters()), (x, y), batch_size=batch, seed=seed, local_steps=local_steps
                )
            )
            loops[-1]._seat.workers = tuple(range(num_nodes))
        plan, position = dataclasses.replace(loops[0]._plan, num_epochs=num_epochs), Position()
        while not plan.is_over(position):
            shares, samples, total = plan.batches(position, num_nodes), torch.from_numpy(plan.order(position.epoch)), 0
            num_samples = [sum(map(len, pieces)) for pieces in shares]
            for loop, pieces, num in zip(loops, shares, num_samples, strict=True):
                loop._sum.begin()
                for piece in filter(len, pieces):
                    rows = samples[piece.start : piece.stop]
                    functional.cross_entropy(loop._model(x[rows]), y[rows]).backward()
                    loop._sum.end_batch()
                total = total + loop._sum.fill(num / sum(num_samples), is_first=loop is loops[0])
            for loop in loops:
                loop._sum.buffer[:] = total
                loop._sum.commit(loop._outer_step())
            num_bytes += loops[0]._sum.buffer.nbytes
            position = plan.after(position, num_nodes)
        with torch.no_grad():
            found += float((loops[0]._model(judged_x).argmax(1) == judged_y).sum())
    return num_bytes, 100 * found / len(order)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the median, by ranks."""
    ordered, num = sorted(values), len(values)
    reach = round(0.98 * num**0.5)
    return ordered[max(0, num // 2 - reach)], ordered[min(num - 1, num // 2 + reach)]


def run_steps(side: str, size: int, num_steps: int, folder: Path) -> tuple[float, float]:
    """Train so many steps. Median step, and processor time of a step of all processes and agents, in milliseconds."""
    folder.mkdir(parents=True)
    environ = {**os.environ, **STOCK_ENVIRON, **THREADS, "PYTHONPATH": str(ROOT)}
    JobSecret.load_or_create(folder / "job.secret")
    rest = ["--num-steps", str(num_steps), "--checkpoint-every", "1000000"]
    with StoreServer() as store:
        ours = [
            *("-m", "chicle_elastic.launch", "--nnodes", f"{size}:{size}", "--rdzv-endpoint", store.endpoint),
            *("--secret-file", str(folder / "job.secret"), "--name"),
        ]
        commands = [[*ours, f"n{rank}", TASK, side, str(folder), f"n{rank}"] for rank in range(size)]
        if side == "stock":  # one agent for all processes, which costs least
            commands = [["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), TASK, side]]
            commands[0] += [str(folder), "rank"]
        processes = []
        for number, command in enumerate(commands):
            with (folder / f"{number}.out").open("w") as output:
                whole = [sys.executable, *command, *rest]
                processes.append(subprocess.Popen(whole, stdout=output, stderr=output, env=environ, cwd=ROOT))
        codes = [process.wait(TIMEOUT_S) for process in processes]
    if any(codes):
        raise RuntimeError(f"{side}: {codes}\n{(folder / '0.out').read_text()[-2000:]}")
    cpu_s, gaps = 0.0, list[float]()
    for path in folder.glob("*.steps"):
        lines = [line.split() for line in path.read_text().splitlines()[FIRST_STEPS:]]
        cpu_s += (float(lines[-1][2]) - float(lines[0][2])) / (len(lines) - 1)
        gaps += [float(later[1]) - float(earlier[1]) for earlier, later in itertools.pairwise(lines)]
    return 1e3 * statistics.median(gaps), 1e3 * cpu_s


def main() -> int:
    """Measure, print a table and one line of JSON, compare with the bars."""
    line = parser("The stall of each change of a PyTorch loop, and its overhead, against torchrun with DDP.")
    line.add_argument("--changes", type=int, default=5, help="kills, and notices (default 5); twice as many joins")
    line.add_argument("--stock-changes", type=int, default=2, help="the same for stock, 0 leaves it out (default 2)")
    line.add_argument("--torchft", metavar="FOLDER", default="", help="where torchft is; by default it is left out")
    line.add_argument("--in-place", metavar="FOLDER", default="", help="where torch >= 2.14 is; by default left out")
    line.add_argument("--large-changes", type=int, default=3, help="changes with 300 MB of state (default 3)")
    line.add_argument("--pairs", type=int, default=21, help="pairs of runs without a change (default 21)")
    line.add_argument("--num-steps", type=int, default=100, help="steps of each of these runs (default 100)")
    line.add_argument("--seeds", type=int, default=5, help="runs of local steps and averages (default 5)")
    arguments = line.parse_args()
    if arguments.quick:
        arguments.seeds = min(1, arguments.seeds)
        arguments.changes = arguments.large_changes = arguments.pairs = 1
        arguments.stock_changes, arguments.num_steps = min(1, arguments.stock_changes), 20
    report = Report(arguments, packages=["torch"])
    with tempfile.TemporaryDirectory(prefix="chicle-bench-loop-") as name:
        folder = Path(name)
        with ChicleLoop(folder / "chicle", 0.0) as side:
            ours = play(side, arguments.changes)
            again, never = steps_done_again(side.folder)
            phases = phases_of(side)
        stock: Stalls = {}
        stock_again = stock_never = 0
        if arguments.stock_changes:
            with StockLoop(folder / "stock", 0.0) as peer:
                stock = play(peer, arguments.stock_changes)
                stock_again, stock_never = steps_done_again(peer.folder)
        report.add(rows_of(ours, stock, "5 M parameters"))
        for kind in ours:
            if stock.get(kind):
                ratio = statistics.median(stock[kind]) / max(1.0, statistics.median(ours[kind]))
                report.add([Row("ratio", f"stall of torchrun over ours, {kind}", None, "", "", ratio, AHEAD)])
        shown = f"{again} and {never}", f"{stock_again} and {stock_never}"
        done = Row(
            "work",
            "steps that a node did again, and steps never done",
            None,
            *shown,
            again + never,
            Bar(0, at_most=True),
        )
        report.add([done])
        TorchftLoop.torchft, InPlaceLoop.torch = arguments.torchft, arguments.in_place
        for other, is_there in ((TorchftLoop, arguments.torchft), (InPlaceLoop, arguments.in_place)):
            if is_there:
                report.add(peer_rows(ours, other, folder / other.name, max(1, arguments.stock_changes)))
        theirs = (
            f"{lines_of('stock')}, torchft {lines_of('torchft')}, in place {lines_of('in_place')} and its `Members`"
        )
        shown = f"{lines_of('chicle')}", theirs
        report.add([Row("work", "lines of the whole loop", None, *shown)])
        report.add(phase_rows(phases))
        if arguments.large_changes:
            with ChicleLoop(folder / "large", 0.0) as large:
                large.parameters = 25_000_000
                report.add(rows_of(play(large, arguments.large_changes), {}, "300 MB of state"))
        for size in (2, 4):
            if arguments.pairs:
                report.add(overhead(size, arguments.pairs, arguments.num_steps, folder))
    if arguments.seeds:
        report.add(averages(arguments.seeds))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
