"""Nodes from Kubernetes: the anchor sets how many pods the burst Job of a run has (`kubernetes_manifest`).

    request     PATCH Job NAME-burst: spec.parallelism = wanted - MIN; the core Job keeps its MIN
                With Kueue there is a Job for each burst member, which it admits and suspends as quota comes and goes
    members     GET pods: those that run
    the end     DELETE the Jobs of members that are not over by themselves

Which pod goes when there shall be fewer is for the Job controller to choose: it deletes one, and SIGTERM is the notice.
The same holds for machines that are drained or taken away. So the anchor gives no notice of its own.

It speaks to the API server by HTTPS as the service account of its pod. A thread of its own does, as a server may take
seconds; the methods of `KubernetesNodes` never wait.
"""

import contextlib
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chicle_elastic.errors import PeerLostError, UsageError
from chicle_elastic.ids import NodeId
from torchx_components.kubernetes_manifest import burst_sizes, job_names, member_selector
from torchx_components.polled_members import PolledMembers
from torchx_components.serving import Member

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_S = 10.0


class KubernetesApi:
    """The API server, as a pod's service account sees it.

    Args:
        server: "https://HOST:PORT".
        account: Folder with `token`, `ca.crt` and `namespace`, which Kubernetes mounts.
    """

    def __init__(self, server: str, account: Path = ACCOUNT) -> None:
        self._server, self._account = server, account
        try:
            self.namespace = (account / "namespace").read_text().strip()
            self._tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
            # Python 3.13 began to refuse authorities of clusters whose certificates lack extensions of RFC 5280.
            self._tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        except OSError as error:
            raise UsageError(
                f"{error.filename or account} cannot be read ({error.strerror}): the anchor has to run in a pod with a "
                "service account, as in the manifest"
            ) from error

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call it; returns what it answers. Raises UsageError when it refuses: no right, no such object. Raises
        PeerLostError when it does not answer, or not in its way."""
        headers = {"Authorization": f"Bearer {self._token()}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_S, context=self._tls) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                said = _message(error)
            if error.code == 403:
                raise UsageError(
                    f"Kubernetes refuses {method} {path}: {said}; apply the Role and the RoleBinding of the manifest"
                ) from None
            if error.code == 404:
                raise UsageError(f"Kubernetes has no {path}: {said}; apply the whole manifest") from None
            hint = "; the token of the service account has expired" if error.code == 401 else ""
            raise PeerLostError(f"Kubernetes answers {method} {path} with {error.code}: {said}{hint}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise PeerLostError(f"the API server {self._server} does not answer ({error})") from None

    def _token(self) -> str:
        return (self._account / "token").read_text().strip()  # each time: Kubernetes writes a new one every hour


class KubernetesNodes(PolledMembers[Member]):
    """`Members`; see the top of the module. Its Jobs start no pods by themselves when one has ended with 0."""

    name = "kubernetes"

    def __init__(self, api: KubernetesApi, name: str, *, least: int, most: int, begin: int, singles: int = 0) -> None:
        super().__init__(begin=begin, least=least, most=most, close_s=2 * REQUEST_S)
        # as of `Members`; why pods wait, where Kubernetes says so
        self.waiting = self._advice = f"kubectl describe jobs,pods -l chicle.run={name} says where they stand"
        self._api, self._name, self._set, self._singles = api, name, -1, singles

    def begin(self) -> None:
        """Look at the Jobs of the members, and set how many there shall be. Raises UsageError when they are not there,
        or the account may not patch them, PeerLostError when the API server does not answer."""
        self._turn()
        self._thread.start()

    def release(self, node: NodeId) -> None:
        """As of `ResourceManager`: the Job replaces a pod that has ended, if so many are wanted."""

    def notice(self, node: NodeId) -> None:
        """As of `Members`: the Job controller chooses the pods that it deletes, which is their notice."""

    def _close(self) -> None:
        """Delete the Jobs of members that are not over, if the run is; their pods get SIGTERM. An anchor that is moved
        to another machine leaves them alone: they train on, and find the next one."""
        if not self._is_ending and self._fault is None:
            return
        for job in job_names(self._name, self._singles):
            with contextlib.suppress(UsageError, PeerLostError):
                if not _has_ended(self._api.call("GET", self._path(job))):
                    policy = {"propagationPolicy": "Background"}
                    self._api.call("DELETE", self._path(job), policy)

    def _turn(self) -> None:
        jobs = job_names(self._name, self._singles)
        with self._lock:
            more = self._wanted - self._least
        if not self._is_ending and more != self._set:
            for burst, size in zip(jobs[1:], burst_sizes(self._singles, more), strict=True):
                self._api.call("PATCH", self._path(burst), {"spec": {"parallelism": size}})
            self._set = more
        fault = None
        for job in jobs:
            fault = fault or _failure(job, self._api.call("GET", self._path(job)))
        selector = urllib.parse.urlencode({"labelSelector": member_selector(self._name)})
        listed = self._api.call("GET", f"/api/v1/namespaces/{self._api.namespace}/pods?{selector}")
        now_s, known = time.monotonic(), self.members
        running: dict[NodeId, Member] = {}
        waiting = self._advice
        for pod in listed["items"]:
            name, status = NodeId(pod["metadata"]["name"]), pod.get("status", {})
            if status.get("phase") == "Running":
                since_s = known[name].since_s if name in known else now_s
                is_noticed = "deletionTimestamp" in pod["metadata"]
                running[name] = Member(name, pod["spec"].get("nodeName", ""), since_s, is_noticed)
            elif reason := _why_waiting(status):
                waiting = f"{name} waits: {reason}"
        self.waiting = waiting
        self._found(running, fault=fault)

    def _path(self, job: str) -> str:
        return f"/apis/batch/v1/namespaces/{self._api.namespace}/jobs/{job}"


def _conditions(status: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    return [each for each in status.get("conditions") or [] if each["type"] == kind and each["status"] == "True"]


def _has_ended(job: Mapping[str, Any]) -> bool:
    status = job.get("status", {})
    return bool(_conditions(status, "Complete") or _conditions(status, "Failed"))


def _failure(name: str, job: Mapping[str, Any]) -> str | None:
    for condition in _conditions(job.get("status", {}), "Failed"):
        said = condition.get("message") or condition.get("reason")
        return f"Kubernetes has given up Job {name}: {said}; kubectl logs job/{name} says why"
    return None


def _why_waiting(status: Mapping[str, Any]) -> str | None:
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason"))
    for container in status.get("containerStatuses") or []:
        waiting = container.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}"
    return None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return str(error.reason)
