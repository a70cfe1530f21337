"""TorchX's schedulers `chicle_slurm` and `chicle_kubernetes`, beside those of TorchX itself."""

import json
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chicle_elastic import TorchXRuntime, UsageError
from chicle_elastic.cluster.net.event_file import read_events
from estimators import ChicleSVM
from tests.harness.certificates import OPENSSL
from tests.harness.training import write_data
from tests.kubernetes.object_server import ObjectServer
from tests.programs import run_python
from tests.slurm.private_slurm import PrivateSlurm, reason_to_skip
from tests.timeouts import comes
from tests.torchx.command import torchx
from torchx_components import submission
from torchx_components.kubernetes_manifest import Manifest

pytest.importorskip("torchx.specs", reason="needs torchx")
REASON = reason_to_skip()
needs_kubectl = pytest.mark.skipif(not (shutil.which("kubectl") and OPENSSL), reason="needs kubectl and openssl")
DEFAULTS = """
from torchx.schedulers import DEFAULT_SCHEDULER_MODULES, get_default_scheduler_name, get_scheduler_factories

factories = get_scheduler_factories()
missing = DEFAULT_SCHEDULER_MODULES.keys() - factories.keys()
assert not missing, missing
for name in ("local_docker", "local_cwd", "slurm", "kubernetes", get_default_scheduler_name()):
    print(name, type(factories[name]("session")).__name__)
"""


def test_torchx_has_its_own_schedulers_as_well(environment: dict[str, str], tmp_path: Path) -> None:
    """TorchX hides them as soon as there are others; without -s it takes Docker, as ever."""
    done = run_python("-c", DEFAULTS, environ=environment, cwd=tmp_path)
    kinds = [line.split()[1] for line in done.stdout.splitlines()]
    assert kinds == ["DockerScheduler", "LocalScheduler", "SlurmScheduler", "KubernetesScheduler", "DockerScheduler"]
    said = torchx(environment, "run", "-s", "local_cwd", "utils.echo", "--msg", "hello", cwd=tmp_path)
    assert "SUCCEEDED" in said
    said = torchx(environment, "run", "-s", "slurm", "--dryrun", "utils.echo", "--msg", "hello", cwd=tmp_path)
    assert "sbatch" in said
    assert "member_partition" in torchx(environment, "runopts", "chicle_slurm", cwd=tmp_path)


@pytest.mark.parametrize("scheduler", ["chicle_slurm", "chicle_kubernetes"])
def test_what_is_no_job_of_chicle_is_refused(environment: dict[str, str], tmp_path: Path, scheduler: str) -> None:
    """With the scheduler that takes it."""
    with pytest.raises(AssertionError, match=f"submit it by {scheduler.removeprefix('chicle_')}"):
        torchx(environment, "run", "-s", scheduler, "--dryrun", "utils.echo", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_a_job_array_on_slurm(environment: dict[str, str], tmp_path: Path) -> None:
    """Without slurmdbd: two members train, the job is listed, cancelled and over, and its log is there."""
    write_data(tmp_path / "data.npz")
    out = tmp_path / "out"
    run = ["run", "-s", "chicle_slurm", "--workspace=", "-cfg"]
    job = ["chicle.svm", "-j", "2", "--train", str(tmp_path / "data.npz"), "--cpu", "1", "--memMB", "800"]
    job += ["--member_options", "--host 127.0.0.1", "--python", sys.executable]
    with PrivateSlurm(tmp_path / "slurm", 3) as slurm:
        there = {**environment, "SLURM_CONF": slurm.environment["SLURM_CONF"]}
        said = torchx(
            there,
            *(*run, "partition=main,time=10,member_partition=spot", "--wait", *job, "--out", str(out)),
            *("--", "--tol", "1e-4"),
            cwd=tmp_path,
            limit_s=200,
        )
        handle = handle_in(said)
        assert "SUCCEEDED" in said
        assert "the job is over" in torchx(there, "log", f"{handle}/anchor/0", cwd=tmp_path)
        assert comes(lambda: not slurm.run("squeue", "-h").strip(), 120, poll_s=0.5), slurm.run("squeue")

        endless = ["--out", str(tmp_path / "endless"), "--", "--tol", "0", "--max_iter", "100000000"]
        said = torchx(there, *run, "partition=main,backfill=true,sbatch=--comment ours", *job, *endless, cwd=tmp_path)
        second = handle_in(said)
        nodes = tmp_path / "endless" / "nodes"
        assert comes(lambda: nodes.exists() and any(each["kind"] == "iteration" for each in read_events(nodes)), 180)
        assert {*slurm.run("squeue", "-h", "-o", "%P").split()} == {"main", "spot"}
        assert "RUNNING" in torchx(there, "status", second, cwd=tmp_path)
        listed = torchx(there, "list", "-s", "chicle_slurm", cwd=tmp_path)
        assert re.search(rf"{handle}\s+SUCCEEDED", listed)
        assert second not in listed, "with a comment of its own it is known by its number alone"
        torchx(there, "cancel", second, cwd=tmp_path)
        assert comes(lambda: not slurm.run("squeue", "-h").strip(), 120, poll_s=0.5), slurm.run("squeue")
        assert "CANCELLED" in torchx(there, "status", second, cwd=tmp_path)

        for cfg, word in (
            ("partition=gold", "invalid partition"),
            ("member_partition=gold", "it has main, spot, idle"),
        ):
            with pytest.raises(AssertionError, match=word):
                torchx(there, *run, cfg, *job, *endless, cwd=tmp_path)
        with pytest.raises(AssertionError, match="no partition preempts jobs of main"):
            torchx(there, *run, "backfill=true,member_partition=main", *job, *endless, cwd=tmp_path)
    assert ChicleSVM.load(out / "model.npz").duality_gap_ <= 1e-4
    members = [len(event["seconds"]) for event in read_events(out / "nodes") if event["kind"] == "iteration"]
    assert max(members) == 2


def handle_in(said: str) -> str:
    """Return the handle that `torchx run` has printed."""
    found = re.search(r"^chicle_\S+$", said, re.MULTILINE)
    assert found is not None, said
    return found[0]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ObjectServer]:
    """A server that has no object yet."""
    with ObjectServer(tmp_path, socket.create_server(("127.0.0.1", 0))) as api:
        yield api


JOB = ("chicle.svm", "-j", "2:5", "--begin", "3", "--image", "registry/chicle", "--train", "/data/a9a")
JOB += ("--out", "s3://bucket/model", "--cpu", "4", "--memMB", "8000", "--gpu", "1", "--env", "A=b")
JOB += ("--member_options", "--claim /data=datasets --priority-class low", "--", "--C", "0.1")


@needs_kubectl
def test_a_run_on_kubernetes(environment: dict[str, str], tmp_path: Path, api: ObjectServer) -> None:
    """kubectl makes its objects; status, list and log are those of its anchor; cancel leaves nothing."""
    there = {**environment, "KUBECONFIG": str(api.config(tmp_path / "config"))}
    run = ["run", "-s", "chicle_kubernetes", "--workspace=", "-cfg"]
    cfg = "namespace=lab,queue=team"
    with pytest.raises(AssertionError, match=r'--queue team: .*"team" not found; kubectl get localqueue'):
        torchx(there, *run, cfg, *JOB, cwd=tmp_path)
    assert not api.objects
    queue = {"kind": "LocalQueue", "apiVersion": "kueue.x-k8s.io/v1beta1"}
    api.objects["kueue.x-k8s.io/v1beta1", "lab", "localqueues", "team"] = {**queue, "metadata": {"name": "team"}}
    handle = handle_in(torchx(there, *run, cfg, *JOB, cwd=tmp_path))
    name = handle.partition("lab:")[2]
    jobs = {key[3]: value for key, value in api.objects.items() if key[2] == "jobs"}
    bursts = [f"{name}-burst-{number}" for number in range(3)]
    assert jobs.keys() == {f"{name}-anchor", f"{name}-core", *bursts}
    assert [jobs[burst]["spec"]["parallelism"] for burst in bursts] == [1, 0, 0]
    [container] = jobs[bursts[0]]["spec"]["template"]["spec"]["containers"]
    limits = {"cpu": "4", "memory": "8000Mi", "nvidia.com/gpu": "1"}
    assert container["resources"]["limits"] == limits
    assert container["command"][-2:] == ["--C", "0.1"]
    assert {"name": "A", "value": "b"} in container["env"]

    anchor = jobs[f"{name}-anchor"]
    assert "PENDING" in torchx(there, "status", handle, cwd=tmp_path)
    anchor["status"] = {"active": 1, "ready": 1}
    assert "RUNNING" in torchx(there, "status", handle, cwd=tmp_path)
    assert re.search(rf"{handle}\s+RUNNING", torchx(there, "list", "-s", "chicle_kubernetes", cwd=tmp_path))
    pod: Manifest = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "lab"}, "status": {}}
    pod["metadata"]["labels"] = anchor["spec"]["template"]["metadata"]["labels"]
    pod["spec"] = anchor["spec"]["template"]["spec"]
    pod["status"] = {"phase": "Running"}
    api.objects["v1", "lab", "pods", "p"] = pod
    api.logs["p"] = "anchor: rendezvous store at x\nanchor: the job is over\n"
    assert "anchor: the job is over" in torchx(there, "log", f"{handle}/anchor/0", cwd=tmp_path)
    anchor["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert "SUCCEEDED" in torchx(there, "status", handle, cwd=tmp_path)
    anchor["status"] = {"active": 1, "ready": 1}
    torchx(there, "cancel", handle, cwd=tmp_path)
    left = {key[2] for key in api.objects}
    assert left == {"localqueues", "pods"}, "pods are for Kubernetes to delete"


@pytest.mark.parametrize(
    ("cfg", "job", "said"),
    [
        ("namespace=lab", ("--image", ""), "needs an image with Chicle in it"),
        ("queue=team", ("-j", "3"), "--queue team is for members beyond MIN"),
        ("queue=team,volcano=team", (), "give one of them"),
        ("queue=Team", (), "--queue Team: the name of a queue has"),
        ("namespace=lab", ("--member_options", "--nowhere x"), "member_options are those of chicle submit kubernetes"),
    ],
)
def test_what_kubernetes_would_refuse_is_said(
    environment: dict[str, str], tmp_path: Path, cfg: str, job: tuple[str, ...], said: str
) -> None:
    """Name the option, before a cluster is asked."""
    words = {"-j": "2:5", "--image": "registry/chicle", "--train": "/data/a9a", "--out": "/data/out"}
    words |= dict(zip(job[::2], job[1::2], strict=True))
    given = [word for option, value in words.items() if value for word in (option, value)]
    with pytest.raises(AssertionError, match=said):
        torchx(
            environment, "run", "-s", "chicle_kubernetes", "--dryrun", "-cfg", cfg, "chicle.svm", *given, cwd=tmp_path
        )


def test_a_fit_from_a_notebook_needs_a_claim(tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the job is on it, or it is refused and removed; an image is named too."""
    monkeypatch.syspath_prepend(installed)
    X, y = [[0.0], [1.0]], [0, 1]
    for cfg, said in (({}, "an image with Chicle in it"), ({"image": "registry/chicle"}, "is on no claim")):
        runtime = TorchXRuntime("chicle_kubernetes", (1, 2), folder=tmp_path / "jobs", cfg=cfg)
        with pytest.raises(UsageError, match=said):
            ChicleSVM(runtime=runtime).fit(X, y)
    assert not list((tmp_path / "jobs").iterdir())


@needs_kubectl
def test_a_fit_from_a_notebook_is_submitted(
    tmp_path: Path, api: ObjectServer, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its anchor writes how the job stands where this process looks; another process asks and cancels."""
    monkeypatch.syspath_prepend(installed)
    monkeypatch.setenv("KUBECONFIG", str(api.config(tmp_path / "config")))
    runtime = TorchXRuntime(
        "chicle_kubernetes",
        (1, 2),
        folder=tmp_path / "jobs",
        cfg={"image": "registry/chicle", "namespace": "lab"},
        member_options=("--claim", f"{tmp_path}=jobs"),
    )
    job = runtime.new_folder()
    runtime.submit(job, job / "data")
    handle = json.loads((job / "submitted.json").read_text())["handle"]
    name = handle.partition("lab:")[2]
    [anchor, core] = (
        api.objects["batch/v1", "lab", "jobs", f"{name}-{role}"]["spec"]["template"]["spec"]["containers"][0]["command"]
        for role in ("anchor", "core")
    )
    assert anchor[anchor.index("--out") + 1] == str(job)
    assert core[-3:] == [submission.FIT_TASK, "--out", str(job)]
    assert submission.ask(job) == f"{handle} is pending"
    TorchXRuntime.cancel(job)
    assert not [key for key in api.objects if key[2] == "jobs"]
