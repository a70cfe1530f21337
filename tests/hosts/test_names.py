"""Where host names and networks are not what a laboratory has: nodes find each other all the same."""

import subprocess
from pathlib import Path

import pytest

from tests.hosts.host import Names
from tests.hosts.job import PORT, STORE, Job
from tests.hosts.lab import Lab

pytestmark = pytest.mark.hosts


def test_debian_resolves_the_own_name_to_loopback(tmp_path: Path) -> None:
    """Debian and Ubuntu write 127.0.1.1 for the host itself; the others have good addresses, by which nodes dial."""
    with Lab(tmp_path / "hosts", names=Names.DEBIAN) as lab:
        job = Job(lab, endpoint=f"{STORE}:{PORT}")
        job.end(job.start_members("n1", "n2"))


def test_no_name_resolves(tmp_path: Path) -> None:
    """There is no name server, and /etc/hosts has localhost only; the store is given by its address."""
    with Lab(tmp_path / "hosts", names=Names.NONE) as lab:
        job = Job(lab)
        job.end(job.start_members("n1", "n2"))


def test_the_network_speaks_ipv6_only(tmp_path: Path) -> None:
    """No host has an IPv4 address but that of its loopback device."""
    with Lab(tmp_path / "hosts", families=(6,)) as lab:
        job = Job(lab)
        job.end(job.start_members("n1", "n2"))


def test_chunks_and_sums_go_by_a_network_of_their_own(tmp_path: Path) -> None:
    """A cable between the two hosts, beside the network on which the store is; each node has its own end of it."""
    with Lab(tmp_path / "hosts") as lab:
        job = Job(lab, more=["--bulk-interface", "bulk0"])
        first, second = hosts = lab.boot("n1", "n2")
        ends = [("bulk0", "netns", str(host.pid)) for host in hosts]
        subprocess.run(["ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1]], check=True)
        for host, address in zip(hosts, ("10.79.0.1", "10.79.0.2"), strict=True):
            host.run("ip", "address", "add", f"{address}/24", "dev", "bulk0")
            host.run("ip", "link", "set", "bulk0", "up")
        nodes = [job.start(first)]
        job.wait_for_members(nodes)
        nodes.append(job.start(second))
        job.wait_for_members(nodes)
        chunks = nodes[1].last("transport")
        assert chunks is not None
        assert chunks["peer"].startswith("tcp://10.79.0.1:")
        by_cable = [row for row in first.run("cat", "/proc/net/tcp").splitlines() if " 01004F0A:" in row]
        assert len([row for row in by_cable if " 02004F0A:" in row]) >= 2, "one connection for chunks, one for sums"
        job.end(nodes)
