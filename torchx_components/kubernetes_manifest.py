"""The objects of a run on Kubernetes, as dictionaries; pure functions, no cluster is asked.

    Secret NAME-secret              the job secret
    ServiceAccount, Role, RoleBinding NAME-anchor    the anchor may look at the pods, and patch the two Jobs of members
    Service NAME-anchor             where members find the rendezvous store
    Job NAME-anchor                 one pod, which stays: store and resource manager
    Job NAME-core                   MIN members
    Job NAME-burst                  0 to MAX - MIN members more, on machines that may be taken away
    Jobs NAME-burst-0, -1, ...      one member each instead, where a queue of Kueue admits them one by one

Members are pods of plain Jobs without `completions`: such a Job replaces pods that fail, and is over when one has ended
with 0 and the others have ended. So a member that leaves on a notice ends with `LEFT`, which the Job counts as no
failure and replaces; all end with 0 when the training is over. No resource definition of anybody's is needed.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from chicle_elastic.errors import UsageError
from chicle_elastic.start_signals import LEAVE_OPTION

Manifest: TypeAlias = dict[str, Any]

STORE_PORT = 29400
LEFT = 143  # exit code of a member that left on a notice: that of SIGTERM, so that one that was starting counts alike
USAGE = 2  # exit code of argparse: each further member would end the same way
MOST_FAILURES = 6
KEPT_S = 3600  # jobs that are over stay for so long, for `kubectl logs`
SECRET_FOLDER = "/var/run/chicle"
USER = 10001
NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")
QUEUE = re.compile(r"[a-z0-9]([-.a-z0-9]{0,61}[a-z0-9])?")
RUN_LABEL, ROLE_LABEL = "chicle.run", "chicle.role"


@dataclass(frozen=True, kw_only=True)
class KubernetesRun:
    """What a user says of a run."""

    name: str  # of the run; the objects are called after it
    image: str  # with Chicle in it
    least: int  # fewest members; with fewer the training pauses
    most: int  # most members
    secret: str = field(repr=False)  # the job secret, hex digits
    task: Sequence[str]  # module of the tasks, and its arguments but `--train`
    train: str  # chunk folder, as the pods see it; "" where the task is a script
    namespace: str = "default"  # of all objects
    begin: int | None = None  # members to begin with; None for `most`
    grace_s: float = 25.0  # seconds that a member has from a notice
    node_options: Sequence[str] = ()  # further options of `python -m torchx_components.node`
    env: Mapping[str, str] = field(default_factory=dict)  # environment of anchor and members
    cpu: str = "2"  # processors of a member, as Kubernetes writes them
    # of a member; it is request and limit, since the chunks are in memory that counts for the container
    memory: str = "4Gi"
    # further resources of a member, such as {"nvidia.com/gpu": 1} or a device of an RDMA plug-in
    extended: Mapping[str, int] = field(default_factory=dict)
    # name of a PersistentVolumeClaim by the folder where the pods see it
    claims: Mapping[str, str] = field(default_factory=dict)
    member_selector: Mapping[str, str] = field(default_factory=dict)  # labels of machines for members, of both Jobs
    # labels of machines for the anchor; it should not be on spot machines
    anchor_selector: Mapping[str, str] = field(default_factory=dict)
    burst_tolerations: Sequence[str] = ()  # taints that burst members bear, "KEY=VALUE:EFFECT" or "KEY:EFFECT"
    priority_class: str | None = None  # of burst members
    queue: str | None = None  # Kueue's queue of burst members, each of which is a Job of its own then
    volcano: str | None = None  # Volcano's queue of all members, which Volcano places then
    spreads: bool = True  # at most one member per machine, where there are enough machines
    log_dir: str = "/tmp/chicle"  # folder of members for event files
    state: str | None = None  # folder on a claim where the anchor writes how the job stands; None for nowhere

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UsageError(f"{self.name!r} is no name for objects of Kubernetes: small letters, digits and -")
        if not 1 <= self.least <= self.most:
            raise UsageError(f"{self.least} to {self.most} nodes cannot be")
        if self.queue and self.volcano:
            raise UsageError("--queue is of Kueue, and --volcano of Volcano: give one of them")
        if self.queue and self.least == self.most:
            raise UsageError(f"--queue {self.queue} is for members beyond MIN, of which -j {self.least} has none")
        for option, queue in (("--queue", self.queue), ("--volcano", self.volcano)):
            if queue is not None and not QUEUE.fullmatch(queue):
                raise UsageError(f"{option} {queue}: the name of a queue has small letters, digits, - and .")

    @property
    def anchor(self) -> str:
        """Name of the anchor's Job, Service and account."""
        return f"{self.name}-anchor"

    @property
    def singles(self) -> int:
        """Jobs of one burst member each; 0 where all are of one Job."""
        return self.most - self.least if self.queue else 0

    @property
    def store(self) -> str:
        """Where members find the rendezvous store."""
        return f"{self.anchor}:{STORE_PORT}"


def manifests(run: KubernetesRun) -> list[Manifest]:
    """All objects, in the order in which they are to be made."""
    bursts = job_names(run.name, run.singles)[1:]
    more = burst_sizes(run.singles, max(0, min(run.begin or run.most, run.most) - run.least))
    return [
        _secret(run),
        *_account(run),
        _service(run),
        _anchor_job(run),
        member_job(run, "core", run.least),
        *(member_job(run, "burst", size, name=name) for name, size in zip(bursts, more, strict=True)),
    ]


def job_names(name: str, singles: int = 0) -> list[str]:
    """The Jobs of the members of a run: core, then burst."""
    return [f"{name}-core", *([f"{name}-burst-{number}" for number in range(singles)] or [f"{name}-burst"])]


def burst_sizes(singles: int, more: int) -> list[int]:
    """Members of each burst Job, if there shall be so many beyond MIN."""
    return [int(number < more) for number in range(singles)] or [more]


def member_selector(name: str) -> str:
    """Label selector of the pods of all members of a run."""
    return f"{RUN_LABEL}={name},{ROLE_LABEL} in (core,burst)"


def member_job(run: KubernetesRun, role: str, parallelism: int, *, name: str | None = None) -> Manifest:
    """The Job of the core members, or one of burst members."""
    command = ["python", "-m", "torchx_components.node", "--store", run.store]
    command += ["--secret-file", f"{SECRET_FOLDER}/secret", "--nnodes", f"{run.least}:{run.most}"]
    command += ["--name", "$(POD_NAME)", "--grace", f"{run.grace_s:g}", LEAVE_OPTION, str(LEFT)]
    command += ["--data", run.train] if run.train else []
    command += ["--log-dir", run.log_dir, *run.node_options, *run.task]
    resources: Manifest = {"cpu": run.cpu, "memory": run.memory, **{name: str(n) for name, n in run.extended.items()}}
    pod = _pod(run, role, command, limits=resources, selector=run.member_selector)
    # A member has its grace, and then some seconds to end.
    pod["terminationGracePeriodSeconds"] = int(run.grace_s) + 10
    if run.spreads:
        term = {"labelSelector": {"matchLabels": {RUN_LABEL: run.name}}, "topologyKey": "kubernetes.io/hostname"}
        weighted = [{"weight": 100, "podAffinityTerm": term}]
        pod["affinity"] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}
    metadata = _metadata(run, name or f"{run.name}-{role}", role)
    if role == "burst":
        pod |= {"tolerations": [_toleration(text) for text in run.burst_tolerations]} if run.burst_tolerations else {}
        pod |= {"priorityClassName": run.priority_class} if run.priority_class else {}
        metadata["labels"] |= {"kueue.x-k8s.io/queue-name": run.queue} if run.queue else {}
    spec = _job_spec(run, role, pod, parallelism)
    if run.volcano:
        # Core members are placed together and stay, those of the burst one by one, and others may take their place.
        metadata["annotations"] = {"scheduling.volcano.sh/group-min-member": str(run.least if role == "core" else 1)}
        pod["schedulerName"] = "volcano"
        is_preemptable = "true" if role == "burst" else "false"
        annotations = {"scheduling.volcano.sh/queue-name": run.volcano, "volcano.sh/preemptable": is_preemptable}
        spec["template"]["metadata"]["annotations"] = annotations
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _anchor_job(run: KubernetesRun) -> Manifest:
    command = ["python", "-m", "torchx_components.anchor", "--members", "kubernetes", "--run-name", run.name]
    command += ["-j", f"{run.least}:{run.most}", "--begin", str(min(run.begin or run.most, run.most))]
    command += ["--host", run.anchor, "--secret-file", f"{SECRET_FOLDER}/secret"]
    command += ["--burst-jobs", str(run.singles)] if run.singles else []
    command += ["--out", run.state] if run.state else []
    limits = {"cpu": "1", "memory": "1Gi"}
    pod = _pod(run, "anchor", command, limits=limits, selector=run.anchor_selector, account=run.anchor)
    pod["terminationGracePeriodSeconds"] = 90
    # An autoscaler that tidies up must not move it; members would wait for the store.
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    spec = _job_spec(run, "anchor", pod, 1)
    spec["completions"] = 1
    spec["template"]["metadata"]["annotations"] = annotations
    metadata = _metadata(run, run.anchor, "anchor")
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _job_spec(run: KubernetesRun, role: str, pod: Manifest, parallelism: int) -> Manifest:
    return {
        "parallelism": parallelism,
        "backoffLimit": MOST_FAILURES,
        "ttlSecondsAfterFinished": KEPT_S,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "Ignore", "onExitCodes": {"containerName": role, "operator": "In", "values": [LEFT]}},
                {"action": "FailJob", "onExitCodes": {"containerName": role, "operator": "In", "values": [USAGE]}},
            ]
        },
        "template": {"metadata": {"labels": _labels(run, role)}, "spec": pod},
    }


def _pod(
    run: KubernetesRun,
    role: str,
    command: Sequence[str],
    *,
    limits: Manifest,
    selector: Mapping[str, str],
    account: str | None = None,
) -> Manifest:
    own_name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    volumes: list[Manifest] = [
        {"name": "secret", "secret": {"secretName": f"{run.name}-secret", "defaultMode": 0o440}},
        {"name": "tmp", "emptyDir": {}},
    ]
    mounts: list[Manifest] = [
        {"name": "secret", "mountPath": SECRET_FOLDER, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    for number, (folder, claim) in enumerate(sorted(run.claims.items())):
        volumes.append({"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": f"claim-{number}", "mountPath": folder})
    container = {
        "name": role,
        "image": run.image,
        "command": list(command),
        "env": [own_name, *({"name": name, "value": value} for name, value in sorted(run.env.items()))],
        "resources": {"requests": dict(limits), "limits": dict(limits)},
        "volumeMounts": mounts,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod: Manifest = {
        "restartPolicy": "Never",  # podFailurePolicy wants it so
        # With an fsGroup the secret is readable for the user of the process, and for no other.
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "automountServiceAccountToken": account is not None,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": volumes,
    }
    pod |= {"serviceAccountName": account} if account else {}
    return pod | ({"nodeSelector": dict(selector)} if selector else {})


def _secret(run: KubernetesRun) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(run, f"{run.name}-secret", "secret"),
        "type": "Opaque",
        "data": {"secret": base64.b64encode(f"{run.secret}\n".encode()).decode()},
    }


def _account(run: KubernetesRun) -> list[Manifest]:
    metadata = _metadata(run, run.anchor, "anchor")
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {
            "apiGroups": ["batch"],
            "resources": ["jobs"],
            "resourceNames": job_names(run.name, run.singles),
            "verbs": ["get", "patch", "delete"],
        },
    ]
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": run.anchor},
            "subjects": [{"kind": "ServiceAccount", "name": run.anchor, "namespace": run.namespace}],
        },
    ]


def _service(run: KubernetesRun) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(run, run.anchor, "anchor"),
        "spec": {
            "selector": _labels(run, "anchor"),
            "ports": [{"name": "store", "port": STORE_PORT, "targetPort": STORE_PORT, "protocol": "TCP"}],
        },
    }


def _metadata(run: KubernetesRun, name: str, role: str) -> Manifest:
    return {"name": name, "namespace": run.namespace, "labels": _labels(run, role)}


def _labels(run: KubernetesRun, role: str) -> Manifest:
    return {RUN_LABEL: run.name, ROLE_LABEL: role, "app.kubernetes.io/name": "chicle"}


def _toleration(text: str) -> Manifest:
    taint, _, effect = text.rpartition(":")
    key, is_equal, value = taint.partition("=")
    if not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise UsageError(f"{text!r} is no taint; write KEY=VALUE:EFFECT or KEY:EFFECT, e.g. spot=true:NoSchedule")
    same = {"operator": "Equal", "value": value} if is_equal else {"operator": "Exists"}
    return {"key": key, "effect": effect, **same}
