"""The rendezvous store dies while real agents train: they go on, and a store at its place is filled again."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from chicle_elastic.cluster.rendezvous.store import StoreServer, connect_store, format_endpoint
from tests.cluster.cluster_harness import AgentProcess, LocalAgents, end_all, start_all, svm_script
from tests.harness.forked import Forked

pytestmark = pytest.mark.chaos  # too long for `make test`


def serve(endpoint: str) -> None:
    """Body of the process of the store."""
    with StoreServer(endpoint):
        signal.pause()


class StoreProcess:
    """A store in a process of its own, at one endpoint."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.endpoint = format_endpoint(*probe.getsockname())
        self._output = folder / "store.out"
        self.start()

    def start(self) -> None:
        """Start it; it listens."""
        self._process = Forked(serve, self.endpoint, output=self._output)
        connect_store(self.endpoint)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.send_signal(signal.SIGKILL)
        self._process.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    """A store that can be killed and restarted."""
    store = StoreProcess(tmp_path)
    yield store
    store.kill()


@pytest.fixture
def cluster(tmp_path: Path, store: StoreProcess) -> Iterator[LocalAgents]:
    """Agents whose job goes on until `end()`."""
    script = svm_script(tmp_path, "--min-ms", "20", "--tol", "0")
    with LocalAgents(tmp_path, script=script, options=("--grace", "5"), endpoint=store.endpoint) as agents:
        yield agents


def wait_for_store(agents: list[AgentProcess], *, is_reachable: bool) -> None:
    """Wait until each of these has noticed that the store is away, or that it is back."""
    for agent in agents:
        agent.wait_for("store", lambda event: event["is_reachable"] == is_reachable)


def test_a_store_that_comes_back_empty_is_filled_and_a_node_joins(cluster: LocalAgents, store: StoreProcess) -> None:
    """Training goes on meanwhile; afterwards a node joins, and a death is a change like any other."""
    first, second = members = start_all(cluster, 2)
    store.kill()
    wait_for_store(members, is_reachable=False)
    first.wait_for_members(2)
    first.signal(signal.SIGUSR2)
    standing = first.wait_for("standing")
    assert "is unreachable since" in standing["store"]
    assert first.output().count("training goes on; joins wait") == 1, "it is said once"
    store.start()
    wait_for_store(members, is_reachable=True)
    newcomer = cluster.start("n2")
    first.wait_for_members(3)
    second.kill_all()
    first.wait_for_members(2)
    end_all(cluster, [first, newcomer])
    assert not first.events("expelled")


def test_without_a_store_a_node_leaves_and_the_job_ends_in_order(cluster: LocalAgents, store: StoreProcess) -> None:
    """It never comes back. The round without the leaving node forms in the store of its first member."""
    first, second, leaver = members = start_all(cluster, 3)
    store.kill()
    wait_for_store(members, is_reachable=False)
    leaver.signal(signal.SIGTERM)
    assert leaver.wait_for_end() == 0, leaver.output()
    first.wait_for_members(2)
    end_all(cluster, [first, second])


def test_store_and_leader_die_at_once_and_a_new_store_lets_the_survivors_go_on(
    cluster: LocalAgents, store: StoreProcess
) -> None:
    """The new store is empty: the survivors' leader claims its term there, and they go on where they were."""
    leader, second, third = start_all(cluster, 3)
    store.kill()
    leader.kill_all()
    wait_for_store([second, third], is_reachable=False)
    merged = second.events("iteration")[-1]["iteration"]
    store.start()
    assert second.wait_for_members(2)["iteration"] >= merged
    end_all(cluster, [second, third])


@pytest.mark.parametrize("victim", [0, 2], ids=["leader", "follower"])
def test_store_and_a_member_die_at_once_and_the_majority_goes_on(
    cluster: LocalAgents, store: StoreProcess, victim: int
) -> None:
    """The two that are left are a majority of the three of the last term."""
    members = start_all(cluster, 3)
    store.kill()
    members.pop(victim).kill_all()
    members[0].wait_for_members(2)
    end_all(cluster, members)
