"""`KubernetesNodes` against a server that speaks the part of the API that it needs."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from chicle_elastic.errors import PeerLostError, UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.resources.managers import Assigned
from tests.harness.certificates import OPENSSL
from tests.kubernetes.api_server import ApiServer
from tests.timeouts import comes
from torchx_components.kubernetes import KubernetesApi, KubernetesNodes
from torchx_components.kubernetes_manifest import KubernetesRun, Manifest, member_job

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="certificates are made by the program openssl")
RUN = KubernetesRun(name="demo", image="i", least=2, most=5, secret="00", task=["m"], train="/t", namespace="lab")


def pod(name: str, phase: str = "Running", role: str = "core", **status: object) -> Manifest:
    """As the API lists it."""
    labels = {"chicle.run": "demo", "chicle.role": role}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": f"machine-of-{name}"},
        "status": {"phase": phase, **status},
    }


@pytest.fixture
def pods() -> list[Manifest]:
    """Those that there are; a test changes them."""
    return [pod("demo-core-a"), pod("demo-core-b"), pod("other", role="anchor")]


@pytest.fixture
def api(tmp_path: Path, pods: list[Manifest]) -> Iterator[ApiServer]:
    """A server with the two Jobs of a run."""
    with ApiServer(tmp_path, socket.create_server(("127.0.0.1", 0)), pods=lambda: list(pods)) as api:
        api.jobs["demo-core"] = member_job(RUN, "core", 2)
        api.jobs["demo-burst"] = member_job(RUN, "burst", 0)
        yield api


@pytest.fixture
def nodes(api: ApiServer) -> Iterator[KubernetesNodes]:
    """Have not begun."""
    nodes = KubernetesNodes(KubernetesApi(api.address, api.account), "demo", least=2, most=5, begin=3)
    yield nodes
    nodes.close()


def burst(api: ApiServer) -> int:
    """Pods that the burst Job shall have."""
    with api.lock:
        parallelism: int = api.jobs["demo-burst"]["spec"]["parallelism"]
        return parallelism


def test_the_burst_job_has_what_is_wanted_beyond_the_core(api: ApiServer, nodes: KubernetesNodes) -> None:
    """Never fewer than none, never more than MAX; and pods that run are members, with their machines."""
    nodes.begin()
    assert burst(api) == 1
    assert dict(nodes.members).keys() == {"demo-core-a", "demo-core-b"}
    assert nodes.members[NodeId("demo-core-a")].host == "machine-of-demo-core-a"
    assert set(nodes.poll(0.0)) == {Assigned(NodeId("demo-core-a")), Assigned(NodeId("demo-core-b"))}
    assert not nodes.poll(1.0)
    for total, expected in ((4, 2), (9, 3), (1, 0)):
        nodes.request(total, "a test")
        assert comes(lambda expected=expected: burst(api) == expected)


def test_with_a_queue_each_burst_member_has_a_job(api: ApiServer) -> None:
    """Give as many a member as are wanted beyond the core; at the end all of them are deleted."""
    with api.lock:
        api.jobs |= {f"demo-burst-{number}": member_job(RUN, "burst", 0) for number in range(3)}
    nodes = KubernetesNodes(KubernetesApi(api.address, api.account), "demo", least=2, most=5, begin=4, singles=3)

    def sizes() -> list[int]:
        with api.lock:
            return [api.jobs[f"demo-burst-{number}"]["spec"]["parallelism"] for number in range(3)]

    try:
        nodes.begin()
        assert sizes() == [1, 1, 0]
        for total, expected in ((9, [1, 1, 1]), (3, [1, 0, 0]), (1, [0, 0, 0])):
            nodes.request(total, "a test")
            assert comes(lambda expected=expected: sizes() == expected)
        assert burst(api) == 0, "it is none of its Jobs"
        nodes.stop_starting()
    finally:
        nodes.close()
    assert list(api.jobs) == ["demo-burst"]


def test_what_a_person_sets_stays_until_the_job_asks_for_another_number(
    api: ApiServer, nodes: KubernetesNodes, pods: list[Manifest]
) -> None:
    """`kubectl patch` is a request, too."""
    nodes.begin()
    with api.lock:
        api.jobs["demo-burst"]["spec"]["parallelism"] = 3
    pods.append(pod("demo-burst-c", role="burst"))
    assert comes(lambda: len(nodes.members) == 3)
    assert burst(api) == 3
    nodes.request(2, "a test")
    assert comes(lambda: burst(api) == 0)


UNSCHEDULED = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient cpu."}


def creating(reason: str, message: str) -> list[Manifest]:
    """The status of a pod's container that has not begun."""
    return [{"state": {"waiting": {"reason": reason, "message": message}}}]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"conditions": [UNSCHEDULED]}, "demo-core-c waits: 0/3 nodes are available: 3 Insufficient cpu."),
        (
            {"containerStatuses": creating("ImagePullBackOff", "no such image")},
            "demo-core-c waits: ImagePullBackOff: no such image",
        ),
        ({"conditions": [{**UNSCHEDULED, "status": "True"}]}, ""),
        ({"containerStatuses": creating("ContainerCreating", "")}, ""),
        ({"containerStatuses": [{"state": {"running": {}}}]}, ""),
    ],
    ids=["no machine", "no image", "has a machine", "begins", "runs"],
)
def test_pods_that_wait_say_why(nodes: KubernetesNodes, pods: list[Manifest], status: Manifest, said: str) -> None:
    """Kubernetes' own words reach the user, as long as it says them; a pod on its way says nothing."""
    pods.append(pod("demo-core-c", "Pending", **status))
    nodes.begin()
    nowhere = "kubectl describe jobs,pods -l chicle.run=demo says where they stand"
    assert nodes.waiting == (said or nowhere)
    pods.pop()
    assert comes(lambda: nodes.waiting == nowhere)


def test_pods_that_end_are_gone(nodes: KubernetesNodes, pods: list[Manifest]) -> None:
    """One that is being deleted is under notice."""
    nodes.begin()
    pods[:] = [pod("demo-core-a", "Failed"), pod("demo-core-b")]
    pods[1]["metadata"]["deletionTimestamp"] = "2026-11-23T00:00:00Z"
    assert comes(lambda: list(nodes.members) == ["demo-core-b"])
    assert nodes.members[NodeId("demo-core-b")].is_noticed


FAILED = {
    "type": "Failed",
    "status": "True",
    "reason": "BackoffLimitExceeded",
    "message": "Job has reached the limit",
}


def fault_of(nodes: KubernetesNodes) -> str:
    """Why the nodes are given up; "" while they are not."""
    try:
        nodes.poll(1.0)
    except PeerLostError as error:
        return str(error)
    return ""


def test_a_job_that_kubernetes_has_given_up_ends_the_run(api: ApiServer, nodes: KubernetesNodes) -> None:
    """With its reason, and for nothing else; and then nothing is left of the members' Jobs that is not over."""
    api.jobs["demo-core"]["status"] = {"conditions": [{**FAILED, "type": "Suspended"}, {**FAILED, "status": "False"}]}
    nodes.begin()
    assert not fault_of(nodes)
    with api.lock:
        api.jobs["demo-core"]["status"] = {"conditions": [FAILED]}
    assert comes(lambda: bool(fault_of(nodes)))
    assert "Job demo-core: Job has reached the limit; kubectl logs job/demo-core says why" in fault_of(nodes)
    nodes.close()
    assert "demo-burst" not in api.jobs
    assert "demo-core" in api.jobs, "it is over, and stays for its logs"


def test_a_job_that_is_applied_again_is_given_up_no_more(api: ApiServer, nodes: KubernetesNodes) -> None:
    """The fault is what Kubernetes says now, and not what it has said once; the end leaves the Jobs alone."""
    api.jobs["demo-core"]["status"] = {"conditions": [FAILED]}
    nodes.begin()
    assert fault_of(nodes)
    with api.lock:
        api.jobs["demo-core"] = member_job(RUN, "core", 2)
    assert comes(lambda: not fault_of(nodes))
    nodes.close()
    assert api.jobs.keys() == {"demo-core", "demo-burst"}


def test_an_anchor_that_is_moved_leaves_its_members_alone(api: ApiServer, nodes: KubernetesNodes) -> None:
    """Only a run that is over deletes Jobs."""
    nodes.begin()
    nodes.close()
    assert api.jobs.keys() == {"demo-core", "demo-burst"}


def test_a_run_that_is_over_deletes_what_is_left(api: ApiServer, nodes: KubernetesNodes) -> None:
    """Such as a burst Job that never had a pod, which would not end by itself."""
    nodes.begin()
    with api.lock:
        api.jobs["demo-core"]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    nodes.stop_starting()
    nodes.close()
    assert list(api.jobs) == ["demo-core"]


@pytest.mark.parametrize("denied", ["PATCH", "GET"])
def test_a_missing_right_is_said_at_the_beginning(api: ApiServer, nodes: KubernetesNodes, denied: str) -> None:
    """With what to apply."""
    api.denied = {denied}
    with pytest.raises(UsageError, match="apply the Role and the RoleBinding"):
        nodes.begin()


def test_a_manifest_that_was_applied_in_part_is_said(api: ApiServer, nodes: KubernetesNodes) -> None:
    """There is no burst Job."""
    with api.lock:
        del api.jobs["demo-burst"]
    with pytest.raises(UsageError, match="apply the whole manifest"):
        nodes.begin()


def test_a_token_is_read_anew_and_one_that_has_expired_is_said(api: ApiServer, nodes: KubernetesNodes) -> None:
    """Kubernetes writes a new one every hour."""
    token = (api.account / "token").read_text()
    (api.account / "token").write_text("old")
    with pytest.raises(PeerLostError, match="has expired"):
        nodes.begin()
    (api.account / "token").write_text(token)
    nodes.begin()


def test_a_right_that_is_taken_away_later_does_not_end_the_run(
    api: ApiServer, nodes: KubernetesNodes, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line, and the anchor asks again."""
    nodes.begin()
    api.denied = {"PATCH"}
    nodes.request(5, "a test")
    printed = ""

    def is_said() -> bool:
        nonlocal printed
        printed += capfd.readouterr().out
        return "it is asked again" in printed

    assert comes(is_said)
    api.denied = set()
    assert comes(lambda: burst(api) == 3)


def test_where_there_is_no_server_and_no_account_that_is_said(tmp_path: Path, api: ApiServer) -> None:
    """One line each."""
    with pytest.raises(UsageError, match="has to run in a pod with a service account"):
        KubernetesApi(api.address, tmp_path / "nowhere")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(PeerLostError, match=f"https://127.0.0.1:{port} does not answer"):
        KubernetesApi(f"https://127.0.0.1:{port}", api.account).call("GET", "/")
