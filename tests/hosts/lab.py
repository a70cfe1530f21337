"""Several hosts on one machine, and the network between them.

    with Lab(folder) as lab:
        a, b = lab.boot("a", "b")
        a.run("ping", "-c", "1", b.addresses[0])
        lab.network.cut(("a", "b"))

Each host has a network, UTS, mount, IPC and PID namespace of its own, its own /dev/shm, boot id and names, and one
device, eth0, with an IPv4 and an IPv6 address. All other files are those of this machine: a test reads what processes
write. The namespaces have no names, so they end with their last process; the first process of every host, like the
switch, ends with the process that made it. So nothing is left of a lab, whatever ends the tests.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.hosts.host import Host, Names
from tests.hosts.network import Network

TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "mount": "mount", "ip": "iproute2"}
"""Programs that the lab runs, and their packages on Debian."""


def reason_to_skip() -> str | None:
    """Why there can be no lab on this machine; None if there can."""
    if sys.platform != "linux":
        return "hosts are Linux namespaces"
    if os.geteuid() != 0:
        return "only root may create network namespaces: run make test-hosts as root"
    if missing := {package for tool, package in TOOLS.items() if shutil.which(tool) is None}:
        return f"the lab needs the packages {', '.join(sorted(missing))}"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "there is no /dev/net/tun, which the switch makes devices with"
    return None


class Lab:
    """Hosts and their network. A context manager that ends everything.

    Args:
        folder: New; for the files of the hosts.
        names: What every host's /etc/hosts says.
        families: IP versions of the network: 4, 6 or both.

    Attributes:
        network: Between the hosts.
        hosts: Those that are on, by name.
        folder: With the files of the hosts.
    """

    def __init__(self, folder: Path, *, names: Names = Names.FULL, families: Sequence[int] = (4, 6)) -> None:
        self.network = Network()
        self.hosts: dict[str, Host] = {}
        self.folder, self._names, self._families = folder, names, families
        self._numbers: dict[str, int] = {}

    def boot(self, *names: str, monotonic_offset_s: int = 0) -> list[Host]:
        """Start hosts with these names; each finds in its /etc/hosts the others, and those that were started before.

        Args:
            names: Host names.
            monotonic_offset_s: How much later than on this machine their monotonic clocks are.
        """
        for name in names:
            self._numbers[name] = len(self._numbers) + 1
        new = []
        for name in names:
            addresses = self.addresses(name)
            host = Host(
                name,
                self.folder / name,
                hosts="\n".join(self._lines(name)) + "\n",
                addresses=addresses,
                monotonic_offset_s=monotonic_offset_s,
            )
            self.hosts[name] = host
            new.append(host)
        for host in new:
            host.await_boot()
            self.network.plug(host.name, host.pid)
            host.set_addresses()
        return new

    def addresses(self, name: str) -> tuple[str, ...]:
        """Of a host, on the network between them."""
        number = self._numbers[name]
        return tuple(f"10.77.0.{number}" if family == 4 else f"fd77::{number}" for family in self._families)

    def power_off(self, host: Host) -> None:
        """A host dies: its link goes down first, so that no peer hears of it."""
        self.network.link_down(host.name)
        host.power_off()
        self.network.unplug(host.name)
        del self.hosts[host.name]

    def close(self) -> None:
        """End all hosts and the switch."""
        with contextlib.ExitStack() as stack:  # one that fails keeps no other from its end
            stack.callback(self.network.close)
            for host in self.hosts.values():
                stack.callback(host.power_off)

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _lines(self, name: str) -> Iterator[str]:
        """Of the /etc/hosts of a host."""
        yield from ("127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback")
        if self._names is Names.NONE:
            return
        for other in self._numbers:
            if other == name and self._names is Names.DEBIAN:
                yield f"127.0.1.1 {name}"
            else:
                yield from (f"{address} {other}" for address in self.addresses(other))
