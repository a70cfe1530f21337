"""Chunks move between nodes by RDMA READ when one joins, leaves, or is lost; torch has no part in it."""

import sys

import pytest

from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import TransportSelector
from tests.rdma.devices import HOSTS, WIRES, cut_wire, mend_wire, packets_of
from tests.rdma.shells import NUM_CHUNKS, SIZE_BYTES, Cluster
from tests.timeouts import timeout_s

TIMEOUT_S = timeout_s(20)


def test_chunks_and_their_states_follow_the_members() -> None:
    """Join, notice and crash: nothing is lost that could be kept, and every byte is right each time."""
    with Cluster(TIMEOUT_S) as cluster:
        cluster.join("n0", HOSTS[0])
        cluster.iterate(2)
        assert len(cluster.loads) == NUM_CHUNKS
        before = packets_of(WIRES[0])
        cluster.join("n1", HOSTS[1])
        cluster.iterate(2)
        cluster.check()
        moved = len(cluster.copies)
        assert moved == NUM_CHUNKS // 2
        assert (packets_of(WIRES[0]) - before) * 4096 >= moved * SIZE_BYTES, (
            "over the wire, from the first to the second"
        )
        assert (
            cluster.nodes["n1"].transports.route(cluster.nodes["n0"].transports.endpoints).reason.startswith("verbs: ")
        )  # type: ignore[index]

        cluster.leave("n0")
        cluster.iterate(2)
        assert set(cluster.nodes) == {"n1"}
        assert len(cluster.copies) == NUM_CHUNKS
        cluster.check()

        cluster.join("n2", HOSTS[0])
        cluster.iterate(2)
        cluster.check()
        assert len(cluster.loads) == NUM_CHUNKS, "graceful changes load nothing again"
        cluster.crash("n2")
        cluster.iterate()
        cluster.iterate_until_complete()
        cluster.check()
        assert len(cluster.loads) == NUM_CHUNKS + NUM_CHUNKS // 2
        assert not cluster.failures
        assert "torch" not in sys.modules


def test_tcp_takes_over_when_rdma_fails(caplog: pytest.LogCaptureFixture) -> None:
    """The wire of RDMA is cut, while TCP finds another way: chunks come, and the log says how and why."""
    caplog.set_level("INFO", "chicle_elastic.transports.selector")
    with Cluster(TIMEOUT_S) as cluster:
        cluster.join("n0", HOSTS[0])
        cluster.iterate(1)
        cluster.join("n1", HOSTS[1])
        cut_wire()
        try:
            cluster.iterate(2)
        finally:
            mend_wire()
        cluster.check()
        assert len(cluster.copies) == NUM_CHUNKS // 2
        assert not cluster.failures
        assert "failed, tcp takes over for 30 s: " in caplog.text
        route = cluster.nodes["n1"].transports.route(cluster.nodes["n0"].transports.endpoints)  # type: ignore[index]
        assert route.reason.startswith("tcp: RDMA has just failed: ")
        cluster.nodes["n1"].transports.disconnect(cluster.nodes["n0"].transports.endpoints)  # type: ignore[index]
        route = cluster.nodes["n1"].transports.route(cluster.nodes["n0"].transports.endpoints)  # type: ignore[index]
        assert route.reason.startswith("verbs: "), "its next life is tried again"


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (None, None, "verbs: both agents have RDMA, this one rxe0"),
        (None, "off", "tcp: the peer offers no RDMA"),
        ("off", None, "tcp: the peer offers no shm"),
        ("mlx5_7", None, "tcp: the peer offers no shm"),
    ],
)
def test_the_transport_is_chosen_per_peer(first: str | None, second: str | None, reason: str) -> None:
    """Both have to have RDMA; a device that is not there is a reason and no error."""
    secret = JobSecret.generate()
    with (
        TransportSelector(secret, name="n1", tcp_address=f"tcp://{HOSTS[0]}:0", rdma=first) as one,
        TransportSelector(secret, name="n2", tcp_address=f"tcp://{HOSTS[1]}:0", has_shm=False, rdma=second) as other,
    ):
        assert one.route(other.endpoints).reason == reason
        if first == "mlx5_7":
            assert one.reason_against_rdma == "there is no RDMA device 'mlx5_7'; there is rxe0, rxe1"
    with TransportSelector(secret, name="n1") as loopback:
        assert loopback.reason_against_rdma == "its address is 127.0.0.1, where only agents of this host find it"
