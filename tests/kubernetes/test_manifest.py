"""The objects of a run are what Kubernetes takes, and say what the run needs."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chicle_elastic.cli.main import main
from chicle_elastic.errors import UsageError
from torchx_components.anchor import parser as anchor_parser
from torchx_components.kubernetes_manifest import LEFT, KubernetesRun, Manifest, manifests
from torchx_components.submit_kubernetes import parser, run_of

OPTIONS = (
    *("--name", "demo", "-j", "2:5", "--begin", "3", "--image", "registry/chicle:1", "--train", "/data/a9a"),
    *("--out", "s3://bucket/model", "--claim", "/data=datasets", "--env", "AWS_ENDPOINT_URL=http://minio:9000"),
    *("--resource", "nvidia.com/gpu=1", "--resource", "rdma/hca=1", "--memory", "16Gi", "--grace", "50"),
    *("--anchor-selector", "pool=steady", "--burst-toleration", "spot=true:NoSchedule"),
    *("--burst-toleration", "x:NoExecute", "--priority-class", "low"),
    *("--checkpoint", "s3://bucket/job", "--resume", "--notices", "gcp"),
    *("estimators.fit_task", "--C", "0.1"),
)
SCRIPT = ("--name", "a", "-j", "1:3", "--image", "i", "/app/train.py", "--lr", "0.1")
VERSIONS = ("1.29", "1.34")


def objects(*options: str) -> dict[str, Manifest]:
    """By kind and name."""
    made = manifests(run_of(parser().parse_args(options or OPTIONS)))
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in made}


def pod_of(job: Manifest) -> Manifest:
    """The pods that a Job makes."""
    pod: Manifest = job["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid(version: str) -> None:
    """By the schemas of Kubernetes, with unknown fields forbidden."""
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate").validate
    for each in objects().values():
        validate(each, version, strict=True)
    few = ("--name", "a", "-j", "1", "--image", "i", "--train", "/t", "--out", "/o", "m")
    for options in (few, SCRIPT, ("--queue", "lab", *OPTIONS), ("--volcano", "lab", *OPTIONS)):
        for each in objects(*options).values():
            validate(each, version, strict=True)


SPOILED: dict[str, Callable[[Manifest], object]] = {
    "grace as text": lambda job: pod_of(job).update(terminationGracePeriodSeconds="35"),
    "a field that there is not": lambda job: job["spec"].update(minReplicas=1),
    "an exit code that is text": lambda job: job["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"].update(
        values=["143"]
    ),
    "a command that is text": lambda job: pod_of(job)["containers"][0].update(command="python -m x"),
    "no containers": lambda job: pod_of(job).pop("containers"),
}


@pytest.mark.parametrize("what", SPOILED)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_spoiled_is_refused(what: str, version: str) -> None:
    """So the validation above can fail."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    job = copy.deepcopy(objects()["Job/demo-burst"])
    SPOILED[what](job)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, version, strict=True)


def test_members_are_what_was_asked_for() -> None:
    """MIN in the core, the others in the burst; each with its grace, memory, resources and place."""
    made = objects()
    core, burst = made["Job/demo-core"], made["Job/demo-burst"]
    assert (core["spec"]["parallelism"], burst["spec"]["parallelism"]) == (2, 1)
    for job in (core, burst):
        pod = pod_of(job)
        [container] = pod["containers"]
        assert pod["terminationGracePeriodSeconds"] == 60
        assert "completions" not in job["spec"]
        assert container["resources"]["limits"]["memory"] == "16Gi"
        assert container["resources"]["limits"]["rdma/hca"] == "1"
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert {"name": "claim-0", "mountPath": "/data"} in container["volumeMounts"]
        assert {"name": "AWS_ENDPOINT_URL", "value": "http://minio:9000"} in container["env"]
        command = container["command"]
        assert command[command.index("--checkpoint") + 1] == "s3://bucket/job"
        assert "--resume" in command
        assert command[command.index("--leave-exit-code") + 1] == str(LEFT)
        assert command[-5:] == ["estimators.fit_task", "--out", "s3://bucket/model", "--C", "0.1"]
    tolerations = pod_of(burst)["tolerations"]
    assert tolerations[0] == {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    assert tolerations[1] == {"key": "x", "operator": "Exists", "effect": "NoExecute"}
    assert "tolerations" not in pod_of(core)


def test_kueue_admits_members_beyond_the_least_one_by_one() -> None:
    """Each is a Job of its own in the queue; the anchor may change each of these; the core is in no queue."""
    made = objects("--queue", "lab", *OPTIONS)
    bursts = [made[f"Job/demo-burst-{number}"] for number in range(3)]
    assert [job["spec"]["parallelism"] for job in bursts] == [1, 0, 0]
    assert {job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] for job in bursts} == {"lab"}
    assert "kueue.x-k8s.io/queue-name" not in made["Job/demo-core"]["metadata"]["labels"]
    [_, jobs] = made["Role/demo-anchor"]["rules"]
    assert jobs["resourceNames"] == ["demo-core", *(job["metadata"]["name"] for job in bursts)]
    arguments = anchor_parser().parse_args(pod_of(made["Job/demo-anchor"])["containers"][0]["command"][3:])
    assert arguments.burst_jobs == 3


def test_volcano_places_the_core_together_and_takes_back_the_burst() -> None:
    """Find each in its queue, by annotations; the anchor stays with the cluster's own scheduler."""
    made = objects("--volcano", "lab", *OPTIONS)
    for role, least, is_taken in (("core", "2", "false"), ("burst", "1", "true")):
        job = made[f"Job/demo-{role}"]
        assert job["metadata"]["annotations"] == {"scheduling.volcano.sh/group-min-member": least}
        assert pod_of(job)["schedulerName"] == "volcano"
        annotations = {"scheduling.volcano.sh/queue-name": "lab", "volcano.sh/preemptable": is_taken}
        assert job["spec"]["template"]["metadata"]["annotations"] == annotations
    assert "schedulerName" not in pod_of(made["Job/demo-anchor"])


def test_a_script_needs_no_data_and_no_folder() -> None:
    """Its members get neither, and a module without them is refused."""
    made = objects(*SCRIPT)
    command = pod_of(made["Job/a-core"])["containers"][0]["command"]
    assert command[-3:] == ["/app/train.py", "--lr", "0.1"]
    assert "--data" not in command
    with pytest.raises(UsageError, match="--train and --out missing"):
        objects(*SCRIPT[:6], "module")


def test_the_anchor_may_do_what_it_does_and_no_more() -> None:
    """Its Role names the two Jobs; members have no account, and the secret is in no command."""
    made = objects()
    [pods, jobs] = made["Role/demo-anchor"]["rules"]
    assert pods == {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    assert jobs["resourceNames"] == ["demo-core", "demo-burst"]
    assert made["Service/demo-anchor"]["spec"]["selector"].items() <= (
        made["Job/demo-anchor"]["spec"]["template"]["metadata"]["labels"].items()
    )
    anchor = pod_of(made["Job/demo-anchor"])
    assert anchor["nodeSelector"] == {"pool": "steady"}
    assert anchor["serviceAccountName"] == "demo-anchor"
    arguments = anchor_parser().parse_args(anchor["containers"][0]["command"][3:])
    assert (arguments.members, arguments.nodes, arguments.begin) == ("kubernetes", "2:5", 3)
    for job in ("core", "burst"):
        assert pod_of(made[f"Job/demo-{job}"])["automountServiceAccountToken"] is False
    run = run_of(parser().parse_args(OPTIONS))
    jobs_text = json.dumps([each for each in manifests(run) if each["kind"] == "Job"])
    assert run.secret not in jobs_text
    assert run.secret not in repr(run)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "A9A"}, "is no name for objects"),
        ({"least": 3, "most": 2}, "3 to 2 nodes cannot be"),
        ({"burst_tolerations": ["spot"]}, "is no taint"),
        ({"queue": "Lab"}, "--queue Lab: the name of a queue"),
        ({"queue": "lab", "least": 2}, "is for members beyond MIN"),
        ({"queue": "lab", "volcano": "lab"}, "give one of them"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], said: str) -> None:
    """Before anything is applied."""
    values: dict[str, Any] = {"name": "demo", "image": "i", "least": 1, "most": 2, "secret": "00", "task": ["m"]}
    with pytest.raises(UsageError, match=said):
        manifests(KubernetesRun(train="/t", **values | changed))


def test_the_command_prints_a_list_and_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 1 and one line."""
    assert main(["submit", "kubernetes", *OPTIONS]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [each["kind"] for each in printed["items"]].count("Job") == 3
    wrong = ["5:2" if each == "2:5" else each for each in OPTIONS]
    assert main(["submit", "kubernetes", *wrong]) == 1
    assert capsys.readouterr().err.startswith("chicle submit kubernetes: -j 5:2: write MIN:MAX")
    at_url = ["s3://bucket/chunks" if each == "/data/a9a" else each for each in OPTIONS]
    with pytest.raises(SystemExit):
        main(["submit", "kubernetes", *at_url, "--rows-in-files"])
    assert "s3://bucket/chunks is a URL" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["submit", "kubernetes", "--apply", *OPTIONS]) == 1
    assert "there is no kubectl on this host" in capsys.readouterr().err
