"""The part of Kubernetes' API that kubectl needs to make, list, read and delete the objects of a run.

kubectl itself is the real one; objects are kept as they come, and no controller works on them.
"""

import json
import socket
import urllib.parse
from pathlib import Path
from typing import Any

from tests.kubernetes.api_server import TOKEN, ApiServer
from torchx_components.kubernetes_manifest import Manifest

RESOURCES = {
    "v1": {"secrets": "Secret", "serviceaccounts": "ServiceAccount", "services": "Service", "pods": "Pod"},
    "batch/v1": {"jobs": "Job"},
    "rbac.authorization.k8s.io/v1": {"roles": "Role", "rolebindings": "RoleBinding"},
    "kueue.x-k8s.io/v1beta1": {"localqueues": "LocalQueue"},
}
VERBS = ["create", "delete", "get", "list", "patch"]


class ObjectServer(ApiServer):
    """See the top of the module; arguments and context are those of `ApiServer`.

    Attributes:
        objects: By version, namespace, resource and name.
        logs: What pods have printed, by name.
    """

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        super().__init__(folder, listener)
        self.objects: dict[tuple[str, str, str, str], Manifest] = {}
        self.logs: dict[str, str] = {}

    def config(self, path: Path) -> Path:
        """Write what kubectl needs to know; its namespace is none of these objects'."""
        authority = str(self.account / "ca.crt")
        cluster = {"server": self.address, "certificate-authority": authority}
        users = [{"name": "a", "user": {"token": TOKEN}}]
        contexts = [{"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "other"}}]
        clusters = [{"name": "a", "cluster": cluster}]
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "a"}
        path.write_text(json.dumps({**config, "clusters": clusters, "users": users, "contexts": contexts}))
        return path

    def answer(self, method: str, path: str, token: str, body: Any) -> tuple[int, Any]:
        """Status and content."""
        url = urllib.parse.urlsplit(path)
        if (found := discovery(url.path)) is not None:
            return 200, found
        self.calls.append((method, path))
        if token != f"Bearer {TOKEN}":
            return 401, status(401, "Unauthorized", "Unauthorized")
        if method in self.denied:
            return 403, status(403, "Forbidden", "the user cannot do this")
        version, namespace, resource, name, *rest = split(url.path)
        if namespace and not resource:
            found = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": namespace}}
            return (200, found) if namespace == "lab" else (404, status(404, "NotFound", f'no namespace "{namespace}"'))
        if resource not in RESOURCES.get(version, {}):
            return 404, status(404, "NotFound", "the server could not find the requested resource")
        if rest == ["log"]:
            return 200, self.logs[name]
        with self.lock:
            if method == "POST":
                name = body["metadata"]["name"]
                if body["kind"] == "Job":
                    body["spec"]["selector"] = {"matchLabels": body["spec"]["template"]["metadata"]["labels"]}
                self.objects[version, namespace, resource, name] = body
                return 201, body
            if not name:
                selector = urllib.parse.parse_qs(url.query).get("labelSelector", [""])[0]
                items = [
                    each
                    for (of, place, kind, _), each in self.objects.items()
                    if (of, kind) == (version, resource) and namespace in ("", place) and selects(selector, each)
                ]
                return 200, {"kind": f"{RESOURCES[version][resource]}List", "apiVersion": version, "items": items}
            key = version, namespace, resource, name
            if key not in self.objects:
                return 404, status(404, "NotFound", f'{resource} "{name}" not found')
            return 200, self.objects.pop(key) if method == "DELETE" else self.objects[key]


def discovery(path: str) -> Manifest | None:
    """Return what there is, where a path asks for that."""
    groups = [version.split("/") for version in RESOURCES if "/" in version]
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        found = [
            {"name": group, "versions": [{"groupVersion": f"{group}/{version}", "version": version}]}
            for group, version in groups
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
    if path == "/openapi/v3":
        places = [f"apis/{version}" if "/" in version else f"api/{version}" for version in RESOURCES]
        return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in places}}
    is_openapi = path.startswith("/openapi/v3/")
    version = path.removeprefix("/openapi/v3").removeprefix("/apis/").removeprefix("/api/")
    if version not in RESOURCES:
        return None
    if is_openapi:  # the server judges fields, and not kubectl
        return {"openapi": "3.0.0", "info": {"title": "", "version": ""}, "paths": patches(version)}
    resources = [
        {"name": name, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": VERBS}
        for name, kind in RESOURCES[version].items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def patches(version: str) -> Manifest:
    """Return how objects of a version are patched, as OpenAPI has it."""
    group, _, number = version.rpartition("/")
    given = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    return {
        f"/{version}/{name}": {
            "patch": {
                "parameters": given,
                "responses": {},
                "x-kubernetes-group-version-kind": {"group": group, "version": number, "kind": kind},
            }
        }
        for name, kind in RESOURCES[version].items()
    }


def split(path: str) -> list[str]:
    """Split a path into version, namespace ("" for all), resource, name ("" for all), and the rest."""
    words = path.strip("/").split("/")[1:]
    version = words.pop(0) if words[:1] == ["v1"] else "/".join([words.pop(0), words.pop(0)]) if words[1:] else ""
    namespace = ""
    if words[:1] == ["namespaces"]:
        namespace, words = words[1], words[2:]
    return [version, namespace, *words, *[""] * (2 - len(words))]


def selects(selector: str, each: Manifest) -> bool:
    """Say whether an object has the labels of "KEY=VALUE,KEY=VALUE"."""
    labels = each["metadata"].get("labels", {})
    return all(
        labels.get(key) == value for key, _, value in (word.partition("=") for word in selector.split(",") if word)
    )


def status(code: int, reason: str, message: str) -> Manifest:
    """Return how the API says no."""
    words = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return {**words, "code": code, "reason": reason, "message": message}
