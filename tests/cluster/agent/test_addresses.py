"""Nodes whose addresses and ports were chosen: real agents and tasks on addresses of this host, and what a doctor sees.

Those that need hosts whose ports are closed run in a network namespace, as this very file (`main`).
"""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cluster.cluster_harness import ROOT, AgentProcess, LocalAgents, svm_script
from tests.programs import run


def make_cluster(folder: Path, *options: str) -> LocalAgents:
    """Two nodes whose job goes on until `end()`."""
    return LocalAgents(folder, nodes="2:2", script=svm_script(folder, "--tol", "0"), options=options)


def listeners_of(agent: AgentProcess) -> set[tuple[str, int]]:
    """Addresses and ports that its processes listen on."""
    inodes: set[str] = set()
    for pid in (agent.process.pid, agent.task_pid):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(fd) if fd.is_symlink() else ""
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    found = set()
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *rest = line.split()
        if state == "0A" and rest[5] in inodes:
            host, _, port = local.partition(":")
            found.add((socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)))
    return found


@pytest.mark.chaos
def test_all_listeners_of_nodes_with_a_range_lie_in_it(tmp_path: Path) -> None:
    """Links, chunks and sums; a doctor finds each agent, and says what is wrong where something is."""
    with make_cluster(tmp_path, "--port-range", "21400-21449") as cluster:
        agents = [cluster.start(f"n{number}", options=("--host", f"127.0.0.{number}")) for number in (5, 6)]
        for agent in agents:
            agent.wait_for_members(2)
        for agent in agents:
            listeners = listeners_of(agent)
            assert len(listeners) == 3
            assert {port for _, port in listeners} <= set(range(21400, 21450))
        check_doctor(cluster, tmp_path)
        cluster.end()
        assert [agent.wait_for_end() for agent in agents] == [0, 0], agents[0].output()


@pytest.mark.chaos
def test_agents_and_tasks_listen_on_the_address_of_their_node(tmp_path: Path) -> None:
    """Links, chunks and the round store; also of the node that is told no address, on the way to the store."""
    with make_cluster(tmp_path) as cluster:
        agents = [cluster.start("n7", options=("--local-addr", "127.0.0.7")), cluster.start("n1")]
        for agent, host in zip(agents, ("127.0.0.7", "127.0.0.1"), strict=True):
            agent.wait_for_members(2)
            listeners = listeners_of(agent)
            assert len(listeners) == 3
            assert {address for address, _ in listeners} == {host}
        cluster.end()
        assert [agent.wait_for_end() for agent in agents] == [0, 0], agents[0].output()


def check_doctor(cluster: LocalAgents, folder: Path) -> None:
    """What `chicle doctor --peer` prints of this job: all is well; with another secret, and where no store is, not."""
    command = [sys.executable, "-m", "chicle_elastic", "doctor", "--peer", cluster.endpoint]
    seen = run(*command, "--secret-file", str(folder / "job.secret"))
    lines = {" ".join(line.split()[:-1])[:60] for line in seen.stdout.splitlines()}
    for topic in ("name", "store port", "store", "secret", "link n5", "chunks n5", "link n6", "chunks n6"):
        assert any(line.startswith(f"{topic} yes") for line in lines), seen.stdout
    assert any(line.startswith("clock n5 +0.0") or line.startswith("clock n5 -0.0") for line in lines), seen.stdout
    assert "iB/s from tcp://127.0.0.5:214" in seen.stdout
    seen = run(*command, CHICLE_SECRET_FILE="")
    assert "give --secret-file" in seen.stdout
    (folder / "other.secret").write_text("cd" * 32)
    (folder / "other.secret").chmod(0o600)
    seen = run(*command, "--secret-file", str(folder / "other.secret"), code=1)
    assert "is not signed with the secret of this job" in seen.stdout


@pytest.mark.chaos
def test_a_node_beside_the_store_does_not_advertise_loopback() -> None:
    """The store listens on an address that other hosts reach, and the node was given 127.0.0.1."""
    in_namespace("refuses")


@pytest.mark.chaos
def test_tasks_that_cannot_connect_are_said_once_and_given_up() -> None:
    """A firewall leaves the ports of agents open, and those of tasks not."""
    in_namespace("gives_up")


def in_namespace(what: str) -> None:
    """Run a function of this file where the network is that of a test."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    setup = f"""
set -e
ip link set lo up
for name in data0 data1; do ip tuntap add $name mode tap; ip link set $name up; done
ip address add 10.77.2.1/24 dev data0
ip address add 10.77.3.1/24 dev data1
exec {sys.executable} -m tests.cluster.agent.test_addresses {what}
"""
    run("unshare", "--net", "sh", "-c", setup, seconds=140, cwd=ROOT)


def refuses(folder: Path) -> None:
    """Two addresses to choose from: the node names both."""
    secret = ["--secret-file", str(folder / "job.secret")]
    launch = [sys.executable, "-m", "chicle_elastic.launch"]
    command = [*launch, "--store-only", "--rdzv-endpoint", "[::]:29400", *secret]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as store:
        assert store.stdout is not None
        assert store.stdout.readline().startswith("rendezvous store at")
        ended = run(*launch, "--rdzv-endpoint", "127.0.0.1:29400", *secret, "--name", "n1", "-m", "this", code=2)
        assert "reach it at 127.0.0.1, which only this host does" in ended.stderr, ended.stderr
        assert "data0 10.77.2.1, data1 10.77.3.1" in ended.stderr
        assert "Traceback" not in ended.stderr
        store.terminate()


def gives_up(folder: Path) -> None:
    """Of the four ports of a node the last is that of sums."""
    rules = """
ip rule add pref 100 lookup local
ip rule add pref 10 ipproto tcp dport 21503 prohibit
ip rule del pref 0
"""
    subprocess.run(["sh", "-ec", rules], check=True)
    with make_cluster(folder, "--port-range", "21500-21503", "--patience", "12") as cluster:
        agents = [
            cluster.start(f"n{number}", options=("--host", address))
            for number, address in enumerate(("10.77.2.1", "10.77.3.1"), start=1)
        ]
        codes = [agent.wait_for_end() for agent in agents]
        outputs = [agent.output() for agent in agents]
        rounds = max(len(agent.events("round")) for agent in agents)
    assert codes == [1, 1], outputs[0]
    assert any("the tasks could not connect to each other for 12 s" in output for output in outputs), outputs
    for output in outputs:
        assert output.count("could not connect 5 times in a row: n") == 1, output
        assert "n1 at 10.77.2.1" in output, output
        assert "n2 at 10.77.3.1" in output, output
    assert 5 <= rounds <= 15, rounds


if __name__ == "__main__":
    from tests.runtime.cluster_task.cluster_driver import start_fork_server

    start_fork_server()
    with tempfile.TemporaryDirectory() as folder:
        globals()[sys.argv[1]](Path(folder))
