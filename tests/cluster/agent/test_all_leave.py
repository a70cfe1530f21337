"""Spot machines are taken all at once: later ones go on by themselves, from the newest whole checkpoint."""

import contextlib
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from chicle_elastic.ids import NodeId
from chicle_elastic.runtime.checkpoint import format as checkpoint
from chicle_elastic.transports.addresses import parse_tcp
from tests.cluster.cluster_harness import AgentProcess, LocalAgents, paced_script, svm_script
from tests.runtime.checkpoint import s3_server as s3
from tests.timeouts import comes

pytestmark = pytest.mark.chaos  # too long for `make test`

EVERY = 5
GRACE_S = 6.0


@contextlib.contextmanager
def silent_hosts(cluster: LocalAgents, nodes: list[AgentProcess]) -> Iterator[None]:
    """The hosts of these nodes, which have ended, are gone: an attempt to reach one proves nothing.

    Another process listens at their ports, and says nothing; a host that is gone does not even refuse a connection.
    """
    terms = cluster.term_store()
    with contextlib.ExitStack() as stack:
        for node in nodes:
            contact = terms.find(NodeId(node.name))
            assert contact is not None
            assert contact.has_ended
            stack.enter_context(socket.create_server(parse_tcp(contact.address)))
        yield


def last_iteration(node: AgentProcess) -> int:
    """The last one that it has written down."""
    return int(node.events("iteration")[-1]["iteration"])


@pytest.fixture(scope="module")
def server() -> Iterator[s3.S3Server]:
    """A server of S3 with the bucket "jobs"."""
    if not s3.is_installed():
        pytest.skip(s3.NEEDS)
    with s3.s3_server() as server:
        server.make_bucket("jobs")
        yield server


def check_that_all_leave_and_others_go_on(folder: Path, url: str, environ: dict[str, str]) -> None:
    """Two nodes get a notice at once; their hosts go; two new ones begin at the same store, and lose no iteration."""
    options = ("--checkpoint", url, "--checkpoint-every", str(EVERY), "--resume", "--grace", str(GRACE_S))
    script = svm_script(folder, "--min-ms", "40", "--tol", "0", "--cocoa")
    with LocalAgents(folder, nodes="2:4", script=script, options=options, environ=environ) as cluster:
        nodes = [cluster.start(f"n{number}") for number in range(2)]
        assert comes(lambda: any(node.events("checkpoint") for node in nodes))
        for node in nodes:
            node.signal(signal.SIGTERM)
        assert [node.wait_for_end() for node in nodes] == [0, 0]
        last = max(last_iteration(node) for node in nodes)
        with silent_hosts(cluster, nodes):
            late = [cluster.start(f"m{number}") for number in range(2)]
            first = late[0].wait_for("iteration", lambda event: len(event["seconds"]) == 2)["iteration"]
        assert first == last + 1, "the last iteration was saved when no node was left to stay"
        waits = re.compile(r"has reached no agent of the job for \d+ s and begins it anew")
        assert any(waits.search(node.output()) for node in late)
        cluster.end()
        assert [node.wait_for_end() for node in late] == [0, 0]
        results = list(cluster.results())
        assert len(results) == 2
        assert results[0] == results[1]
        assert results[0]["iterations"] >= first


def test_all_nodes_leave_and_new_ones_go_on_from_a_folder(tmp_path: Path) -> None:
    """Without a hand, and without --begin-anew: those that left have said so."""
    checkpoints = tmp_path / "checkpoints"
    check_that_all_leave_and_others_go_on(tmp_path, f"file://{checkpoints}", {})
    assert checkpoint.attempts(checkpoints)


def test_all_nodes_leave_and_new_ones_go_on_from_a_bucket(tmp_path: Path, server: s3.S3Server) -> None:
    """No folder is shared."""
    check_that_all_leave_and_others_go_on(tmp_path, "s3://jobs/one", server.environment)


def test_those_that_come_while_all_leave_get_the_model(tmp_path: Path) -> None:
    """Without any checkpoint: the nodes under notice take part in one more iteration, then they leave."""
    script = paced_script(tmp_path)
    with LocalAgents(tmp_path, nodes="1:4", script=script, options=("--grace", "90")) as cluster:
        old = [cluster.start(f"n{number}") for number in range(2)]
        old[0].wait_for("iteration", lambda event: len(event["seconds"]) == 2)
        for node in old:
            node.signal(signal.SIGTERM)
        for node in old:
            node.wait_for("paused")
        late = [cluster.start(f"m{number}") for number in range(2)]
        assert [node.wait_for_end() for node in old] == [0, 0]
        # The last iteration of the old nodes may have had all chunks on the new ones already.
        last = last_iteration(old[0])
        alone = late[0].wait_for(
            "iteration", lambda event: event["seconds"].keys() == {"m0", "m1"} and event["iteration"] > last
        )
        assert alone["figures"]["objective"] == alone["iteration"], "the model counts iterations"
        assert not any("no surviving node has the model" in node.output() for node in late)
        cluster.end()
        assert [node.wait_for_end() for node in late] == [0, 0]


def test_a_node_that_cannot_write_to_the_bucket_says_so_and_does_not_join(tmp_path: Path, server: s3.S3Server) -> None:
    """With its name, the reason and what to look at; the others train on, and save."""
    script = svm_script(tmp_path, "--min-ms", "20", "--tol", "0", "--cocoa")
    options = ("--checkpoint", "s3://jobs/two", "--checkpoint-every", str(EVERY))
    with LocalAgents(tmp_path, nodes="1:4", script=script, options=options, environ=server.environment) as cluster:
        first = cluster.start("n0")
        first.wait_for("checkpoint")
        stranger = cluster.start("n1", options=("--checkpoint", "s3://no-such-bucket/two"))
        assert stranger.wait_for_end() == 1
        assert "node n1 cannot write to s3://no-such-bucket/two" in stranger.output()
        assert "check from this node that the bucket exists" in stranger.output()
        first.wait_for("checkpoint", after=len(first.events()))
        assert {node for event in first.events("iteration") for node in event["seconds"]} == {"n0"}
        cluster.end()
        assert first.wait_for_end() == 0


def test_a_store_that_refuses_while_a_job_runs_costs_checkpoints_only(tmp_path: Path, server: s3.S3Server) -> None:
    """The node that could not write says so; when the store takes files again, checkpoints come again."""
    script = svm_script(tmp_path, "--min-ms", "20", "--tol", "0", "--cocoa")
    options = ("--checkpoint", "s3://jobs/three", "--checkpoint-every", str(EVERY))
    with LocalAgents(tmp_path, nodes="1:4", script=script, options=options, environ=server.environment) as cluster:
        node = cluster.start("n0")
        node.wait_for("checkpoint")
        server.refuse_all()
        try:
            before = last_iteration(node)
            node.wait_for("iteration", lambda event: event["iteration"] > before + 4 * EVERY)
        finally:
            server.refuse_none()
        node.wait_for("checkpoint", after=len(node.events()))
        cluster.end()
        assert node.wait_for_end() == 0
        assert "node n0 cannot write a checkpoint to s3://jobs/three" in node.output()


def test_a_task_that_dies_while_the_store_refuses_is_replaced_and_the_job_goes_on(
    tmp_path: Path, server: s3.S3Server
) -> None:
    """A new node would not join; a member's new task must not end the job of the others."""
    script = svm_script(tmp_path, "--min-ms", "20", "--tol", "0", "--cocoa")
    options = ("--checkpoint", "s3://jobs/four", "--checkpoint-every", str(EVERY), "--resume")
    with LocalAgents(tmp_path, nodes="1:4", script=script, options=options, environ=server.environment) as cluster:
        first, second = (cluster.start(f"n{number}") for number in range(2))
        first.wait_for_members(2)
        server.refuse_all()
        try:
            os.kill(second.task_pid, signal.SIGKILL)
            first.wait_for_members(1)
            first.wait_for_members(2)
        finally:
            server.refuse_none()
        first.wait_for("iteration", after=len(first.events()))
        cluster.end()
        assert [node.wait_for_end() for node in (first, second)] == [0, 0]
        assert "the job goes on without" in second.output()
