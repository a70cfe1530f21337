"""The two sides of the benchmark of hosts: nodes of Chicle and of stock torchrun, each on a host of the laboratory.

The hosts are those of `tests/hosts`: namespaces of this machine behind a switch in Python, which delays frames; a token
bucket in each host's kernel bounds the rate at which it sends (`tc`, the module sch_tbf). Hosts and switch share the
processors of this machine, so what is measured is an upper bound.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic_laps import LapReader
from benchmarks.elastic_nodes import ROOT, STOCK_ENVIRON, THREADS, Node, Side, launcher, torchrun
from chicle_elastic.transports.secret import JobSecret
from tests.hosts.host import Host
from tests.hosts.lab import Lab

PORT = 29400
JUMBO = 9000
"""Bytes of a frame where the rate is not bounded: a frame costs the switch the same, whatever its length."""
TORCH_STORE = """
import sys, threading
from torch.distributed import TCPStore
store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=True, wait_for_workers=False)
threading.Event().wait()
"""


@dataclass(frozen=True, slots=True)
class Link:
    """The network between the hosts.

    Attributes:
        name: For tables.
        rate_gbit: At which a host sends; None for what the switch forwards.
        round_trip_s: That the switch adds to its own 0.1 ms.
    """

    name: str
    rate_gbit: float | None
    round_trip_s: float

    def apply(self, host: Host) -> None:
        """Shape what a host sends.

        Raises:
            RuntimeError: The kernel cannot do it.
        """
        if self.rate_gbit is None:
            host.run("ip", "link", "set", "eth0", "mtu", str(JUMBO))
            return
        rate = f"{round(1000 * self.rate_gbit)}mbit"
        try:
            host.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "256k", "limit", "4m")
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"tc cannot bound the rate of {host.name}: {error.stderr.strip()}") from error


class HostNode(Node):
    """A node whose agent and task run on a host of their own.

    Args:
        host: The host.
        folder: For its files.
        command: To start the agent.
        environ: Further variables of its environment.
    """

    def __init__(self, host: Host, folder: Path, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.name, self.host = host.name, host
        self._output = folder / f"{host.name}.out"
        self._reader = LapReader(folder / f"{host.name}.laps")
        self._program = host.start(command, self._output, environ=environ)

    @property
    def is_running(self) -> bool:
        """Whether the agent has not ended."""
        return self._program.poll() is None

    def send(self, number: int, *, to_task: bool = False) -> None:
        """Send a signal to the agent; SIGKILL `to_task` ends all that runs on the host."""
        if to_task:
            self.host.kill_processes()
        else:
            self._program.send_signal(number)

    def end(self) -> None:
        """Whatever is left of it is gone afterwards."""
        if self.host.is_on:
            self.host.kill_processes()


class HostSide(Side):
    """Nodes on hosts that run one job.

    Args:
        lab: Of the hosts; the side starts them, and its store on one more.
        link: Between them.
        folder: For everything.
        iteration_ms: Shortest time of an iteration.
        data: A chunk folder for ours; None for small arrays.
    """

    def __init__(self, lab: Lab, link: Link, folder: Path, iteration_ms: float, data: Path | None) -> None:
        folder.mkdir(parents=True)
        self.folder, self.iteration_ms = folder, iteration_ms
        self.nodes, self._all = [], []
        self._lab, self._link, self._data = lab, link, data
        self.secret_file = folder / "job.secret"
        JobSecret.load_or_create(self.secret_file)
        (host,) = lab.boot("store")
        link.apply(host)
        self.endpoint = f"{host.addresses[0]}:{PORT}"
        self._store = host.start(self.store_command(host), folder / "store.out", environ={"PYTHONPATH": str(ROOT)})
        lab.network.delay(link.round_trip_s / 2)

    def start(self) -> Node:
        """Start a host, and a node on it."""
        (host,) = self._lab.boot(f"n{len(self._all)}")
        self._link.apply(host)
        environ = {**THREADS, "PYTHONPATH": str(ROOT), **self.environ}
        node = HostNode(host, self.folder, self.command_on(host), environ)
        self.nodes.append(node)
        self._all.append(node)
        return node

    @property
    def environ(self) -> Mapping[str, str]:
        """Further variables of the environment of a node."""
        return {}

    def store_command(self, host: Host) -> list[str]:
        """How to start the store on a host."""
        command = [sys.executable, "-m", "chicle_elastic.launch", "--store-only", "--rdzv-endpoint", self.endpoint]
        return [*command, "--secret-file", str(self.secret_file)]

    def command_on(self, host: Host) -> list[str]:
        """How to start a node on a host."""
        raise NotImplementedError

    def __exit__(self, *exc_info: object) -> None:
        for node in self._all:
            node.end()


class ChicleOnHosts(HostSide):
    """Ours, with default options."""

    name = "Chicle"

    def command_on(self, host: Host) -> list[str]:
        """The launcher."""
        return launcher(self, host.name, self.endpoint, self._data)


class StockOnHosts(HostSide):
    """torchrun as it comes with torch, tuned as in `elastic_nodes`."""

    name = "stock torchrun"

    @property
    def environ(self) -> Mapping[str, str]:
        """What it needs to work on several hosts at all."""
        return {**STOCK_ENVIRON, "GLOO_SOCKET_IFNAME": "eth0"}

    def store_command(self, host: Host) -> list[str]:
        """A store of torch's: torchrun cannot talk to ours."""
        return [sys.executable, "-c", TORCH_STORE, host.addresses[0], str(PORT)]

    def command_on(self, host: Host) -> list[str]:
        """torchrun."""
        return torchrun(self, host.name, self.endpoint, host.addresses[0])
