"""The commands, environment and signals of a manifest, run as containers of the lab."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from chicle_elastic.chunks.convert import ConvertOptions, convert
from estimators import ChicleSVM
from tests.harness.certificates import OPENSSL
from tests.harness.training import WatchedRun, write_data
from tests.hosts.job_controller import JobController, Pod
from tests.hosts.lab import Lab
from tests.kubernetes.api_server import ApiServer
from torchx_components.kubernetes_manifest import LEFT, KubernetesRun, manifests

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="certificates are made by the program openssl")
SECRET = "5e" * 32
ENDLESS = ("--tol", "0", "--max_iter", "100000000")


class Cluster(WatchedRun):
    """A run in a cluster that the lab plays.

    Args:
        lab: Where pods run.
        folder: For data, outputs and logs.
        solver: Options of the estimator.
    """

    def __init__(self, lab: Lab, folder: Path, *solver: str) -> None:
        super().__init__(folder / "log")
        write_data(folder / "data.npz")
        data = convert([folder / "data.npz"], folder / "data", ConvertOptions(max_tasks=4)).path
        self.out = folder / "out"
        self.run = KubernetesRun(
            name="demo",
            image="not used",
            namespace="lab",
            least=2,
            most=3,
            begin=2,
            grace_s=20,
            secret=SECRET,
            task=["estimators.fit_task", "--out", str(self.out), *solver],
            train=str(data),
            log_dir=str(self.logs),
        )
        [server] = lab.boot("kubernetes")
        listener = server.inside(lambda: socket.create_server((server.addresses[0], 0)))
        self.api = ApiServer(folder, listener)
        self.controller = JobController(lab, self.api, manifests(self.run), folder / "pods")

    def __enter__(self) -> "Cluster":
        self.api.__enter__()
        self.controller.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.controller.__exit__(None, None, None)
        self.api.__exit__(None, None, None)

    def members(self) -> list[Pod]:
        """Pods of both Jobs that run and stay."""
        return self.controller.running("demo-core") + self.controller.running("demo-burst")

    def check(self) -> None:
        """The controller works."""
        if self.controller.error is not None:
            raise self.controller.error

    def printed(self) -> str:
        """What all pods have printed."""
        return self.controller.text()


@pytest.fixture
def endless(lab: Lab, tmp_path: Path) -> Iterator[Cluster]:
    """A run that does not end by itself."""
    with Cluster(lab, tmp_path, *ENDLESS) as cluster:
        yield cluster


def test_pods_come_are_drained_killed_and_replaced(endless: Cluster) -> None:
    """Two train, a third joins, one is drained within its grace, one killed: each time the Job's next pod joins."""
    cluster = endless
    first, second = cluster.wait_for_training(2)
    with cluster.api.lock:  # as kubectl patch job/demo-burst does
        cluster.api.jobs["demo-burst"]["spec"]["parallelism"] = 1
    cluster.wait_for_training(3)

    cluster.controller.delete(first)
    cluster.wait(lambda: first.code is not None, f"{first.name} to leave", seconds=cluster.run.grace_s)
    assert first.code == LEFT, cluster.controller.text()
    assert "leaves: its chunks are handed over" in first.process.text()
    three = cluster.wait_for_training(3)
    assert second in three

    second.process.send_signal(signal.SIGKILL)
    cluster.wait(lambda: second.code is not None, f"{second.name} to end")
    assert second.code not in (0, LEFT)
    three = cluster.wait_for_training(3)

    cluster.controller.delete(three[0])  # and its successor, while it starts as the first process of its container
    job, known = three[0].job, len(cluster.controller.pods)
    cluster.wait(lambda: len(cluster.controller.pods) > known, "the next pod")
    starting = cluster.controller.pods[-1]
    assert starting.job == job
    cluster.wait(lambda: starting.process.pid is not None, "its container")
    maps = Path(f"/proc/{starting.process.pid}/maps")
    cluster.wait(lambda: "libpython" in maps.read_text() or "python" in maps.read_text(), "Python")
    cluster.wait(lambda: "numpy" in maps.read_text() or "torch" in maps.read_text(), "its imports")
    cluster.controller.delete(starting)
    cluster.wait(lambda: starting.code is not None, f"{starting.name} to leave", seconds=cluster.run.grace_s)
    assert starting.code == LEFT, cluster.controller.text()
    cluster.wait_for_training(3)

    with cluster.api.lock:
        cluster.api.jobs["demo-burst"]["spec"]["parallelism"] = 0
    cluster.wait_for_training(2)


def test_a_run_ends_and_leaves_nothing(lab: Lab, tmp_path: Path) -> None:
    """The model is there, all pods have ended with 0, and the burst Job, which never had one, is deleted."""
    with Cluster(lab, tmp_path, "--tol", "1e-4") as cluster:
        controller = cluster.controller
        cluster.wait(lambda: bool(controller.pods) and controller.pods[0].code is not None, "the anchor to end")
        cluster.wait(lambda: all(pod.code is not None for pod in controller.pods), "all pods to end")
        assert [pod.code for pod in controller.pods] == [0, 0, 0], controller.text()
        assert ChicleSVM.load(cluster.out / "model.npz").duality_gap_ <= 1e-4
        with cluster.api.lock:
            assert "demo-burst" not in cluster.api.jobs
        cluster.wait(lambda: "status" in cluster.api.jobs["demo-core"], "the core Job to be complete")
        assert cluster.api.jobs["demo-core"]["status"]["conditions"][0]["type"] == "Complete"


def test_an_anchor_that_is_moved_finds_its_members_again(endless: Cluster) -> None:
    """Members train on while there is no store; the next anchor serves an empty one, and a member still joins."""
    cluster = endless
    cluster.wait_for_training(2)
    [anchor] = cluster.controller.running("demo-anchor")
    cluster.controller.delete(anchor)
    cluster.wait(lambda: anchor.code is not None, "the anchor to leave")
    assert anchor.code == LEFT, cluster.controller.text()
    assert cluster.api.jobs.keys() == {"demo-anchor", "demo-core", "demo-burst"}
    cluster.wait_for_training(2)
