"""Real agents and tasks with torch redistribute by RDMA READ: `make test-rdma-elastic`, minutes under emulation.

All of them run on the one kernel of the machine, where they would use shared memory: each is given another id of the
boot, as if it were on a host of its own. Everything else that they say goes over `lo`, so what is counted on the wire
between the two devices is RDMA.
"""

import signal
import time
from pathlib import Path

import pytest

from tests.harness.chaos_app import NUM_FEATURES, NUM_ROWS
from tests.harness.cluster_truth import Evidence, judge
from tests.rdma.devices import HOSTS, WIRES, bytes_of
from tests.rdma_elastic.hosts import Event, HostNode, Hosts

pytestmark = pytest.mark.chaos

ROW_BYTES = 8 * NUM_FEATURES
ON_A, ON_B = "rxe0", "rxe1"


def has_all(event: Event, *names: str) -> bool:
    """Whether exactly these nodes took part in an iteration, with all samples."""
    return set(event["samples"]) == set(names) and sum(event["samples"].values()) == NUM_ROWS


def test_agents_redistribute_by_rdma_on_join_notice_and_crash(tmp_path: Path) -> None:
    """Every sample is counted once per iteration, and no chunk came by another way."""
    began_s = time.monotonic()
    nodes: list[HostNode] = []

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} s: {text}", flush=True)

    with Hosts(tmp_path, address=HOSTS[0]) as hosts:

        def start(device: str) -> HostNode:
            nodes.append(hosts.start(f"n{len(nodes)}", device))
            return nodes[-1]

        try:
            first = start(ON_A)
            first.wait_for_iteration(lambda event: has_all(event, "n0"))
            say("n0 iterates")

            before = bytes_of(WIRES[0])
            second = start(ON_B)
            joined = first.wait_for_iteration(lambda event: has_all(event, "n0", "n1"))
            read_bytes, least_bytes = bytes_of(WIRES[0]) - before, joined["samples"]["n1"] * ROW_BYTES
            say(f"n1 has joined with {joined['samples']['n1']} samples, {read_bytes} bytes over the wire")
            assert joined["samples"]["n1"] > 0
            assert read_bytes > least_bytes

            start(ON_A)
            first.wait_for_iteration(lambda event: has_all(event, "n0", "n1", "n2"))
            say("n2 has joined")

            before = bytes_of(WIRES[1])
            last = first.events("iteration")[-1]
            least_bytes = last["samples"]["n1"] * ROW_BYTES
            second.send(signal.SIGTERM)
            assert second.wait_for_end() == 0
            first.wait_for_iteration(lambda event: has_all(event, "n0", "n2"))
            read_bytes = bytes_of(WIRES[1]) - before
            say(f"n1 has left; {read_bytes} bytes over the wire for {last['samples']['n1']} samples")
            assert read_bytes > least_bytes > 0

            fourth = start(ON_B)
            first.wait_for_iteration(lambda event: has_all(event, "n0", "n2", "n3"))
            say("n3 has joined")
            nodes[2].kill()
            for survivor in (first, fourth):
                survivor.wait_for_iteration(lambda event: has_all(event, "n0", "n3"))
            say("n2 was killed, and n0 and n3 go on with all samples")
            hosts.end_job()
            assert [first.wait_for_end(), fourth.wait_for_end()] == [0, 0]
            say("the job has ended")
        except AssertionError:
            for node in nodes:
                print(f"--- {node.name}\n{node.output()[-5000:]}")
            raise

    said = {node.name: node.output() for node in nodes}
    assert nodes[2].code() == -signal.SIGKILL
    everything = "".join(said.values())
    for text in (
        "come by tcp",
        "come by shm",
        "tcp takes over",
        "TCP takes over",
        "model goes by TCP",
        "goes by tcp",
        "without RDMA",
    ):
        assert text not in everything
    for node, device in (("n0", ON_A), ("n1", ON_B), ("n2", ON_A), ("n3", ON_B)):
        assert f"come by verbs: both agents have RDMA, this one {device}" in said[node]
    for node in nodes:
        assert {event["sums"] for event in node.events("group")} - {""} == {"rdma"}
    evidence = Evidence.read(tmp_path)
    assert judge(evidence, "count") == []
    assert set(evidence.lost) == {"n2"}
