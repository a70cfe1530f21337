"""Where host names are not what a laboratory has: nodes find each other all the same."""

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
