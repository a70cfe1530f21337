"""The two sides of the elastic benchmark: four nodes of Chicle, and four nodes of stock torchrun, on this host.

Either side has its rendezvous store in the process of the benchmark, where a change of the membership cannot hit it,
and its nodes in processes of their own: an agent and a task each, started like on a cluster.

Stock torchrun is given the best that it can do. Its time-outs are as short as they can be (`STOCK_CONF`): a round
closes at once when all four nodes are there and a second after the last call otherwise, and a node that is silent for
three seconds is dead, to the rendezvous and to the tasks. These import torch and numpy and nothing else, and their
checkpoint is small. `STOCK_ENVIRON` works around a fault of torch 2.13 that lets no scale-up succeed at all.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from torch.distributed import TCPStore

from benchmarks.elastic_laps import Lap, LapReader
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.settings import THREAD_LIMITS
from chicle_elastic.transports.secret import JobSecret

ROOT = Path(__file__).parents[1]
NUM_NODES = 4
STOCK_CONF = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3,is_host=0"
STOCK_ENVIRON = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it a joiner of stock torch 2.13 waits for a key that no node publishes, and the job ends with it."""
THREADS = dict.fromkeys(THREAD_LIMITS, "1")
TIMEOUT_S = 120.0
POLL_S = 0.05
"""Nothing is timed by it; what looks more often takes processor time from those who are timed."""


class Node:
    """An agent and its task.

    Attributes:
        name: Of the node; never used twice.
    """

    def __init__(self, name: str, folder: Path, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.name = name
        self._output = folder / f"{name}.out"
        self._reader = LapReader(folder / f"{name}.laps")
        with self._output.open("w") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, env={**environ}, cwd=ROOT)

    def laps(self) -> Sequence[Lap]:
        """The ends of its iterations so far."""
        return self._reader.laps()

    @property
    def is_running(self) -> bool:
        """Whether the agent has not ended."""
        return self._process.poll() is None

    def send(self, number: signal.Signals, *, to_task: bool = False) -> None:
        """Send a signal to the agent, and perhaps to its task first."""
        if to_task and self.laps():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.laps()[-1].pid, number)
        self._process.send_signal(number)

    def end(self) -> None:
        """Whatever is left of it is gone afterwards."""
        self.send(signal.SIGKILL, to_task=True)
        self._process.wait()

    def wait(self) -> int:
        """Its exit code."""
        return self._process.wait(TIMEOUT_S)

    def output(self) -> str:
        """The last that it has printed."""
        return self._output.read_text(errors="replace")[-3000:]


class Store(Protocol):
    """Give the store where nodes find each other."""

    @property
    def endpoint(self) -> str:
        """Return its address."""

    def close(self) -> None:
        """End it."""


class Side:
    """Nodes that run one job. A context manager that ends them all.

    Args:
        folder: For everything.
        iteration_ms: Shortest time of an iteration.

    Attributes:
        nodes: Those that take part, oldest first.
    """

    name: str

    def __init__(self, folder: Path, iteration_ms: float) -> None:
        folder.mkdir(parents=True)
        self.folder, self.iteration_ms = folder, iteration_ms
        self.nodes: list[Node] = []
        self._all: list[Node] = []
        self.store: Store = self.new_store()

    def new_store(self) -> Store:
        """Return where the nodes find each other."""
        return StoreServer()

    def command(self, name: str) -> list[str]:
        """How to start a node."""
        raise NotImplementedError

    def start(self) -> Node:
        """Start a node."""
        name = f"n{len(self._all)}"
        environ = {**os.environ, **STOCK_ENVIRON, **THREADS, "PYTHONPATH": str(ROOT)}
        node = Node(name, self.folder, self.command(name), environ)
        self.nodes.append(node)
        self._all.append(node)
        return node

    def wait_for(self, what: str, is_it: Callable[[], bool]) -> None:
        """Wait until something is true.

        Raises:
            RuntimeError: Time is up, or a node has ended that should not.
        """
        end_s = time.perf_counter() + TIMEOUT_S
        while not is_it():
            ended = [node for node in self.nodes if not node.is_running]
            if ended or time.perf_counter() > end_s:
                node = (ended or self.nodes)[0]
                raise RuntimeError(f"{self.name}: waited for {what}; the last that {node.name} said:\n{node.output()}")
            time.sleep(POLL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for node in self._all:
            node.end()
        self.store.close()


class Chicle(Side):
    """Ours.

    Args:
        folder: For everything.
        iteration_ms: Shortest time of an iteration.
        data: A chunk folder; None for small arrays.
    """

    name = "Chicle"

    def __init__(self, folder: Path, iteration_ms: float, data: Path | None = None) -> None:
        super().__init__(folder, iteration_ms)
        self._data = data
        JobSecret.load_or_create(folder / "job.secret")

    def command(self, name: str) -> list[str]:
        """The launcher."""
        return launcher(self, name, self.store.endpoint, self._data)


class StockStore:
    """A store in this process that torchrun can talk to."""

    def __init__(self) -> None:
        self._store: TCPStore | None = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.endpoint = f"127.0.0.1:{self._store.port}"

    def close(self) -> None:
        """End it."""
        self._store = None


class Stock(Side):
    """torchrun as it comes with torch."""

    name = "stock torchrun"

    def new_store(self) -> StockStore:
        """One of torch's own."""
        return StockStore()

    def command(self, name: str) -> list[str]:
        """torchrun."""
        return torchrun(self, name, self.store.endpoint, "127.0.0.1")


def launcher(side: Side, name: str, endpoint: str, data: Path | None) -> list[str]:
    """How to start a node of ours."""
    return [
        *(sys.executable, "-m", "chicle_elastic.launch", "--nnodes", f"1:{NUM_NODES}", "--name", name),
        *("--rdzv-endpoint", endpoint, "--secret-file", str(side.folder / "job.secret")),
        *("--log-dir", str(side.folder), "-m", "benchmarks.elastic_task"),
        *(str(side.folder), name, str(side.iteration_ms)),
        *(() if data is None else ("--data", str(data))),
    ]


def torchrun(side: Side, name: str, endpoint: str, address: str) -> list[str]:
    """How to start a node of stock torchrun at an address."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", f"1:{NUM_NODES}", "--nproc-per-node", "1"),
        *("--max-restarts", "1000", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint),
        *("--rdzv-id", "stock", "--rdzv-conf", STOCK_CONF, "--local-addr", address),
        *("--monitor-interval", "0.1", str(ROOT / "benchmarks/elastic_stock_task.py")),
        *(str(side.folder), name, str(side.iteration_ms)),
    ]
