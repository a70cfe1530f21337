"""Plays Kubernetes for one run: pods are containers of the lab, with the commands, signals and rules of the manifest.

What a Job controller does by the fields of a Job is done here, by those fields: so many pods as `parallelism` says,
until one has ended with 0; a pod that fails is judged by `podFailurePolicy` and replaced; one too many gets SIGTERM,
and SIGKILL when `terminationGracePeriodSeconds` are over. A pod is a host of the lab, whose first process is its
container; those of the anchor share one host, as the address of its Service stays.
"""

import base64
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.hosts.host import Host
from tests.hosts.host_process import ProgramProcess
from tests.hosts.lab import Lab
from tests.kubernetes.api_server import ApiServer
from tests.timeouts import timeout_s
from torchx_components.kubernetes_manifest import SECRET_FOLDER, Manifest

POLL_S = 0.1
MOST_PODS = 6
"""Of a Job of members, one after the other."""
ACCOUNT_FOLDER = "/run/secrets/kubernetes.io/serviceaccount"


@dataclass
class Pod:
    """One pod."""

    name: str  # its name, and that of its host
    job: str  # its Job
    host: Host  # where its container runs
    process: ProgramProcess  # the container
    spec: Manifest  # what the Job says of it
    labels: Manifest
    kill_s: float | None = None  # when it gets SIGKILL, by the monotonic clock; None while it is not deleted
    code: int | None = None  # the exit code; None while it runs

    def __str__(self) -> str:
        return self.name

    def listed(self) -> Manifest:
        """As the API has it."""
        metadata: Manifest = {"name": self.name, "labels": self.labels}
        metadata |= {"deletionTimestamp": "now"} if self.kill_s is not None else {}
        phase = "Running" if self.code is None else "Failed" if self.code else "Succeeded"
        return {"metadata": metadata, "spec": {"nodeName": self.host.name}, "status": {"phase": phase}}


@dataclass
class Tally:
    """What a Job has counted: pods that succeeded, that failed, and whether it was given up."""

    succeeded: int = 0
    failed: int = 0
    is_given_up: bool = False


@dataclass
class JobController:
    """See the top of the module; a context manager."""

    lab: Lab  # where pods run
    api: ApiServer  # has the Jobs; a Job that is deleted there gives up its pods
    objects: list[Manifest]  # the manifest
    folder: Path  # for the outputs of pods
    pods: list[Pod] = field(default_factory=list)  # all that were started, in their order
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self._tallies: dict[str, Tally] = {}
        self._lock = threading.RLock()
        self._is_over = threading.Event()
        self._secret = self._object("Secret")["data"]["secret"]
        self._thread = threading.Thread(target=self._work)
        self.api.pods = lambda: [pod.listed() for pod in self.pods]

    def __enter__(self) -> "JobController":
        jobs = {each["metadata"]["name"]: each for each in self.objects if each["kind"] == "Job"}
        anchor, *members = jobs
        # All at once, so that each knows the names of all: without a name server, one that is not known costs seconds.
        self.lab.boot(anchor, *(f"{job}-{number}" for job in members for number in range(MOST_PODS)))
        self.api.jobs |= jobs
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def running(self, job: str) -> list[Pod]:
        """Pods of a Job that run and stay."""
        return [pod for pod in self.pods if pod.job == job and pod.code is None and pod.kill_s is None]

    def delete(self, pod: Pod) -> None:
        """As `kubectl delete pod`, an eviction or a drain does: SIGTERM, and SIGKILL when the grace is over."""
        pod.process.send_signal(signal.SIGTERM)
        pod.kill_s = time.monotonic() + timeout_s(pod.spec["terminationGracePeriodSeconds"])

    def text(self) -> str:
        """What all pods have printed, the end of it."""
        return "\n".join(f"--- {pod.name} ({pod.code}):\n{pod.process.text()}" for pod in self.pods)

    # The thread.

    def _work(self) -> None:
        try:
            while not self._is_over.wait(POLL_S):
                self._turn()
        except BaseException as error:
            self.error = error

    def _turn(self) -> None:
        now_s = time.monotonic()
        for pod in self.pods:
            if pod.code is None and pod.kill_s is not None and now_s >= pod.kill_s:
                pod.process.send_signal(signal.SIGKILL)
            if pod.code is None and (code := pod.process.poll()) is not None:
                # The shell's way to say a signal, as a container has it.
                pod.code = 128 - code if code < 0 else code
                self._judge(pod)
        with self.api.lock:
            jobs = dict(self.api.jobs)
        for name in {pod.job for pod in self.pods} - jobs.keys():
            for pod in self.running(name):
                self.delete(pod)
        for name, job in jobs.items():
            self._control(name, job)

    def _control(self, name: str, job: Manifest) -> None:
        tally = self._tallies.setdefault(name, Tally())
        active = [pod for pod in self.pods if pod.job == name and pod.code is None]
        staying = self.running(name)
        if tally.is_given_up:
            for pod in staying:
                self.delete(pod)
            self._set(job, "Failed")
        elif tally.succeeded:
            if not active:
                self._set(job, "Complete")
        else:
            wanted = job["spec"]["parallelism"]
            for pod in reversed(staying[wanted:]):
                self.delete(pod)
            # The controller waits for pods that are being deleted before it replaces them.
            for _ in range(wanted - len(active)):
                self._start(name, job)

    def _judge(self, pod: Pod) -> None:
        with self.api.lock:
            job = self.api.jobs.get(pod.job)
        if job is None:
            return
        tally = self._tallies.setdefault(pod.job, Tally())
        if pod.code == 0:
            tally.succeeded += 1
            return
        for rule in job["spec"]["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes", {}).get("values", [])
            is_taken = "onPodConditions" in rule and pod.kill_s is not None
            if is_taken or pod.code in codes:
                tally.is_given_up |= rule["action"] == "FailJob"
                return
        tally.failed += 1
        tally.is_given_up |= tally.failed > job["spec"]["backoffLimit"]

    def _set(self, job: Manifest, condition: str) -> None:
        with self.api.lock:
            job["status"] = {"conditions": [{"type": condition, "status": "True", "reason": "test"}]}

    def _start(self, name: str, job: Manifest) -> None:
        number = sum(pod.job == name for pod in self.pods)
        template = job["spec"]["template"]
        pod_name, has_account = f"{name}-{number}", "serviceAccountName" in template["spec"]
        host = self.lab.hosts[name if has_account else pod_name]
        self._mount(host, has_account=has_account)
        [container] = template["spec"]["containers"]
        environ = {"POD_NAME": pod_name, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        environ |= {each["name"]: each["value"] for each in container["env"] if "value" in each}
        environ |= self._of_the_cluster()
        command = [word.replace("$(POD_NAME)", pod_name) for word in container["command"]]
        process = host.start(command, self.folder / f"{pod_name}.out", environ=environ, is_container=True)
        labels = template["metadata"]["labels"]
        self.pods.append(Pod(pod_name, name, host, process, template["spec"], labels))

    def _mount(self, host: Host, *, has_account: bool) -> None:
        """The Secret, and the account of the anchor, where the manifest has them; nobody else sees these folders."""
        host.run("mount", "-t", "tmpfs", "tmpfs", "/run")  # again, for the next anchor
        root = Path(f"/proc/{host.pid}/root")
        secret = root / SECRET_FOLDER.replace("/var/run", "run").lstrip("/")
        secret.mkdir(parents=True)
        (secret / "secret").write_bytes(base64.b64decode(self._secret))
        (secret / "secret").chmod(0o440)
        if has_account:
            account = root / ACCOUNT_FOLDER.lstrip("/")
            account.mkdir(parents=True)
            for file in self.api.account.iterdir():
                (account / file.name).write_bytes(file.read_bytes())

    def _of_the_cluster(self) -> dict[str, str]:
        host, _, port = self.api.address.removeprefix("https://").rpartition(":")
        return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT_HTTPS": port}

    def _object(self, kind: str) -> Any:
        return next(each for each in self.objects if each["kind"] == kind)
