"""The lab itself: hosts are apart, the network does what a test asks of it, and nothing is left of them."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.host import Host
from tests.hosts.lab import Lab
from tests.programs import run_python
from tests.timeouts import comes, timeout_s

ROOT = Path(__file__).parents[2]
ABANDONED = """
import os, pathlib, signal, sys
from tests.hosts.lab import Lab
lab = Lab(pathlib.Path(sys.argv[1]))
for host in lab.boot("a", "b"):
    host.start(["sleep", "600"], pathlib.Path(sys.argv[1]) / f"{host.name}.out", environ={}, is_container=True)
    print(os.stat(f"/proc/{host.pid}/ns/net").st_ino, os.stat(f"/proc/{host.pid}/ns/mnt").st_ino, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@contextlib.contextmanager
def datagrams(host: Host, address: str) -> Iterator[socket.socket]:
    """A datagram socket of a host, which waits for a second at most."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with host.inside(lambda: socket.socket(family, socket.SOCK_DGRAM)) as sock:
        sock.bind((address, 9))
        sock.settimeout(timeout_s(1.0))
        yield sock


def hears(source: Host, target: Host, *, number: int = 0) -> bool:
    """Whether a datagram from one host reaches the other."""
    address = target.addresses[number]
    with datagrams(source, source.addresses[number]) as sender, datagrams(target, address) as receiver:
        sender.sendto(b"hello", (address, 9))
        with contextlib.suppress(TimeoutError):
            return receiver.recv(100) == b"hello"
        return False


def inodes(kinds: tuple[str, ...] = ("net", "mnt")) -> set[int]:
    """The namespaces that any process of this machine is in."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found |= {os.stat(f"/proc/{pid}/ns/{kind}").st_ino for kind in kinds}
    return found


def test_hosts_have_names_addresses_memory_and_processes_of_their_own(lab: Lab) -> None:
    """What two machines have apart, two hosts have apart; they hear each other by IPv4 and IPv6."""
    a, b = lab.boot("a", "b")
    assert [a.run("hostname").strip(), b.read("/etc/hostname").strip()] == ["a", "b"]
    assert a.run("sh", "-c", "echo $$ && ls /proc | grep -c '^[0-9]'").split()[1] < "9"
    a.run("touch", "/dev/shm/mine")
    assert list(a.leftovers()) == ["shared memory is left on a: mine"]
    assert list(b.leftovers()) == []
    assert a.read("/proc/sys/kernel/random/boot_id") != b.read("/proc/sys/kernel/random/boot_id")
    assert "10.77.0.2" in a.run("getent", "hosts", "b") or "fd77::2" in a.run("getent", "hosts", "b")
    assert hears(a, b)
    assert hears(b, a, number=1)
    assert not Path("/dev/shm/mine").exists()


def test_a_cut_is_silent_and_a_half_open_one_has_a_direction(lab: Lab) -> None:
    """Frames between two hosts are dropped in both directions or in one; the third host hears all the time."""
    a, b, c = lab.boot("a", "b", "c")
    assert hears(a, b)
    lab.network.cut(("a", "b"))
    assert [hears(a, b), hears(b, a), hears(a, c)] == [False, False, True]
    lab.network.heal()
    assert hears(a, b)
    lab.network.cut_one_way(("b", "a"))
    assert [hears(a, b), hears(b, a)] == [True, False]
    lab.network.heal()
    lab.network.part(["a", "b"], ["b", "c"])
    assert [hears(a, b), hears(a, c), hears(c, b)] == [True, False, True]
    assert lab.network.counts()["blocked"] > 0


def test_a_cable_that_is_pulled_out_takes_the_carrier_away(lab: Lab) -> None:
    """And addresses stay for its return."""
    a, b = lab.boot("a", "b")
    lab.network.link_down("a")
    assert "NO-CARRIER" in a.run("ip", "link", "show", "eth0")
    assert not hears(b, a)
    lab.network.link_up("a")
    # The kernel may take a second to send and receive again.
    assert comes(lambda: "state UP" in a.run("ip", "link", "show", "eth0"))
    assert hears(b, a)
    assert hears(b, a, number=1)


def test_frames_are_delayed_and_lost(lab: Lab) -> None:
    """A datagram and its answer take twice the delay at least; half of many frames are lost."""
    a, b = lab.boot("a", "b")
    assert hears(a, b)
    lab.network.delay(0.05)
    start_s = time.monotonic()
    assert hears(a, b)
    assert hears(b, a)
    assert time.monotonic() - start_s >= 0.1
    lab.network.delay(0.0)
    lab.network.loss(0.5)
    with datagrams(a, a.addresses[0]) as sender:
        for _ in range(200):
            sender.sendto(b"x", (b.addresses[0], 9))
    comes(lambda: lab.network.counts()["lost"] >= 60, 5)
    assert 60 <= lab.network.counts()["lost"] <= 140


def test_a_host_that_is_powered_off_sends_no_farewell(lab: Lab) -> None:
    """Its peer's connection stays open, and its processes are gone."""
    a, b = lab.boot("a", "b")
    process = a.start(["sleep", "600"], lab.folder / "sleep.out", environ={})
    address = (a.addresses[0], 5000)
    with a.inside(lambda: socket.create_server(address)) as listener, b.inside(socket.socket) as client:
        client.connect(address)
        connection, _ = listener.accept()
        with connection:
            lab.power_off(a)
            client.settimeout(0.5)
            with pytest.raises(TimeoutError):
                client.recv(1)
    assert process.poll() is not None


def test_nothing_is_left_of_a_lab_whose_process_is_killed(tmp_path: Path) -> None:
    """SIGKILL strikes the tests amid their work: no namespace, mount, device or process survives them."""
    mounts = Path("/proc/self/mountinfo").read_text()
    result = run_python("-c", ABANDONED, str(tmp_path / "hosts"), code=-signal.SIGKILL, cwd=ROOT)
    theirs = {int(word) for word in result.stdout.split()}
    assert len(theirs) == 4
    assert comes(lambda: not theirs & inodes(), 10)
    assert Path("/proc/self/mountinfo").read_text() == mounts


def test_nothing_is_left_of_a_lab_in_which_a_test_fails(tmp_path: Path) -> None:
    """An exception amid a lab with running processes closes all of it."""
    before, mounts = inodes(), Path("/proc/self/mountinfo").read_text()

    def fail() -> None:
        with Lab(tmp_path / "hosts") as lab:
            for host in lab.boot("a", "b"):
                host.start(["sleep", "600"], tmp_path / f"{host.name}.out", environ={})
            lab.network.link_down("a")
            theirs.update(inodes() - before)
            raise ZeroDivisionError

    theirs: set[int] = set()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(theirs) >= 4
    assert not theirs & inodes()
    assert Path("/proc/self/mountinfo").read_text() == mounts
