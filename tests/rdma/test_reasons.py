"""Why RDMA cannot be used is said exactly. Each reason is made real: in a process without a right, or on a device less.

Reasons that need no device are in tests/transports/test_verbs_library.py.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chicle_elastic.cli.main import main
from chicle_elastic.transports.verbs.device import choose_port
from chicle_elastic.transports.verbs.library import RdmaUnavailableError
from tests.rdma.devices import HOSTS, WIRES, mend_wire, tool
from tests.timeouts import timeout_s

NODES = Path("/dev/infiniband")

REGISTER = """
import sys
from chicle_elastic.errors import ChicleError
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports.base import Region
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.verbs.transport import VerbsTransport
try:
    with VerbsTransport("tcp://10.8.0.1:0", JobSecret.generate(), name="n1") as transport:
        for size_mib in map(int, sys.argv[1:]):
            with Arena.create(1, slot_bytes=size_mib << 20) as arena:
                try:
                    print(transport.register(arena))
                except ChicleError as error:
                    print(type(error).__name__, error)
        for number in range(len(sys.argv) - 1):
            try:
                transport.fetch(transport.address, Region(number, 0, 64), memoryview(bytearray(64)))
                print("read", number)
            except ChicleError as error:
                print(type(error).__name__, error)
except ChicleError as error:
    print(type(error).__name__, error)
"""


def without(*rights: str, limit_bytes: int | None = None, arguments: tuple[str, ...] = ()) -> list[str]:
    """What a process says that tries to register, without these rights of root."""
    bounds = ",".join(f"-{right}" for right in rights)
    limit = ["prlimit", f"--memlock={limit_bytes}"] if limit_bytes is not None else []
    done = subprocess.run(
        ["setpriv", f"--bounding-set={bounds}", *limit, sys.executable, "-c", REGISTER, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s(60),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_locked_memory_ends_with_the_limit() -> None:
    """What fits is served, the rest is refused with both figures; a peer that asks for it is told why."""
    said = without("ipc_lock", limit_bytes=12 << 20, arguments=("4", "16", "1"))
    assert said[0] == "0"
    assert said[1].startswith("CapacityError rxe0 cannot register 16.0 MiB: this process may lock 12.0 MiB in all")
    assert "LimitMEMLOCK=infinity" in said[1]
    assert said[2] == "2", "numbers go on, so that all transports of a node give the same ones"
    assert said[3] == "read 0"
    assert said[4].startswith("RefusedError")
    assert "arena 1 cannot be read by RDMA: rxe0 cannot register" in said[4]
    assert said[5] == "read 2"


def test_a_device_that_may_not_be_opened_is_named() -> None:
    """The library says only that there is no such file."""
    nodes = sorted(NODES.glob("uverbs*"))
    for node in nodes:
        node.chmod(0)
    try:
        [said] = without("dac_override", "dac_read_search")
    finally:
        for node in nodes:
            node.chmod(0o666)
    assert said.startswith("RdmaUnavailableError user 0 has no permission to open /dev/infiniband/uverbs0")


@contextlib.contextmanager
def no_devices() -> Iterator[None]:
    """For a while."""
    for number in range(2):
        tool(f"rdma link delete rxe{number}")
    try:
        yield
    finally:
        for number, wire in enumerate(WIRES):
            tool(f"rdma link add rxe{number} type rxe netdev {wire}")


def test_a_host_without_devices_says_so() -> None:
    """The modules are there, and nothing for them."""
    with no_devices(), pytest.raises(RdmaUnavailableError, match=r"^this host has no RDMA device$"):
        choose_port(HOSTS[0])
    assert choose_port(HOSTS[0]).device.startswith("rxe")


def test_a_container_without_the_device_files_says_so() -> None:
    """The kernel shows the devices of the host to everybody."""
    hidden = NODES.with_name("hidden")
    NODES.rename(hidden)
    try:
        with pytest.raises(RdmaUnavailableError, match="the kernel has rxe0, rxe1, but there is no /dev/infiniband/uv"):
            choose_port(HOSTS[0])
    finally:
        hidden.rename(NODES)


def test_the_doctor_reads_by_rdma(capsys: pytest.CaptureFixture[str]) -> None:
    """Both devices are listed with their addresses, and the one of the host is tried."""
    assert main(["doctor", "--host", HOSTS[1], "--json"]) == 0
    findings = {finding["topic"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["rdma rxe0"]["detail"].startswith("port 1 at 10.8.0.1 (GID 1)")
    assert findings["rdma rxe1"]["detail"].startswith("port 1 at 10.8.0.2 (GID 1)")
    assert findings["rdma"] == {"topic": "rdma", "verdict": "yes", "detail": "rxe1 read 1.0 MiB of this process"}


def test_a_device_is_chosen_by_name() -> None:
    """And one that is not there is refused with those that are."""
    assert choose_port(HOSTS[0], "rxe1").device == "rxe1"
    assert choose_port("0.0.0.0").device == "rxe0"
    with pytest.raises(RdmaUnavailableError, match="there is no RDMA device 'mlx5_0'; there is rxe0, rxe1"):
        choose_port(HOSTS[0], "mlx5_0")


def test_a_port_that_is_down_is_not_used() -> None:
    """The other one is; and when there is none, it is said where to look."""
    tool(f"ip link set {WIRES[0]} down")
    tool(f"ip link set {WIRES[1]} down")
    try:
        with pytest.raises(RdmaUnavailableError, match="no port of rxe0, rxe1 is active with an address"):
            choose_port(HOSTS[0])
    finally:
        mend_wire()
    assert choose_port(HOSTS[0]).device == "rxe0"
