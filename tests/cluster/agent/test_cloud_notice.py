"""A real agent whose cloud takes its machine: it hands its chunks over and leaves, without a signal."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from chicle_elastic.cluster.options import END_S
from tests.cluster.cluster_harness import LocalAgents, svm_script
from tests.cluster.net.metadata_server import metadata_server


def test_a_node_leaves_when_its_cloud_takes_the_machine(tmp_path: Path) -> None:
    """With the time that the cloud leaves, and not with `--grace`; the other node, of another machine, goes on."""
    script = svm_script(tmp_path, "--min-ms", "20", "--tol", "0")
    with (
        metadata_server("aws") as server,
        LocalAgents(tmp_path, script=script, environ={"CHICLE_METADATA_URL": server.url}) as cluster,
    ):
        stays = cluster.start("n0")
        leaves = cluster.start("n1", options=("--notices", "aws", "--leave-exit-code", "143", "--host", "127.0.0.2"))
        stays.wait_for_members(2)
        server.wait_for_requests(1, "/latest/meta-data/spot/instance-action")
        server.action = {
            "action": "terminate",
            "time": (datetime.now(UTC) + timedelta(seconds=120)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        assert leaves.wait_for_end() == 143, leaves.output()
        [notice] = leaves.events("notice")
        assert 25 < notice["grace_s"] <= 120 - END_S
        [leaving] = leaves.events("leaving")
        assert (leaving["reason"], leaving["rest_s"]) == ("its chunks are handed over", 0), "no other is on its host"
        assert "aws takes this machine: terminate at" in leaves.output()
        stays.wait_for_members(1)
        stays.assert_none("lost", "aborted")
        cluster.end()
        assert stays.wait_for_end() == 0
