"""The part of Kubernetes' API that an anchor speaks to, over HTTPS on a socket of the test.

It keeps Jobs and lists pods; what it stands for is the API server. The client under test is that of the product.
"""

import json
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from chicle_elastic.transports.tls import AUTHORITY, CERTIFICATE, KEY
from tests.harness.certificates import Authority
from torchx_components.kubernetes_manifest import Manifest

TOKEN = "token-of-the-account"


class ApiServer:
    """See the top of the module; a context manager.

    Args:
        folder: New, for certificates and the folder of a service account.
        listener: Listens already; its address is what the certificate is for.
        pods: Lists the pods there are, as the API has them.

    Attributes:
        jobs: By name, with `status`; the test may change them under `lock`.
        account: Folder as Kubernetes mounts it for a service account.
        denied: Methods that the account has no right to.
        calls: Methods and paths, in the order in which they came.
    """

    def __init__(
        self, folder: Path, listener: socket.socket, *, pods: Callable[[], list[Manifest]] = lambda: []
    ) -> None:
        self.jobs: dict[str, Manifest] = {}
        self.lock = threading.RLock()
        self.denied: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self.pods = pods
        host, port = listener.getsockname()[:2]
        self.address = f"https://{host}:{port}"
        authority = Authority(folder / "ca")
        issued = authority.issue(folder / "server", address=host)
        self.account = folder / "account"
        self.account.mkdir()
        (self.account / "token").write_text(TOKEN)
        (self.account / "namespace").write_text("lab")
        (self.account / "ca.crt").write_bytes((issued / AUTHORITY).read_bytes())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(issued / CERTIFICATE, issued / KEY)
        self._server = _Server(self, context.wrap_socket(listener, server_side=True))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> "ApiServer":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, method: str, path: str, token: str, body: Any) -> tuple[int, Any]:
        """Status and content."""
        self.calls.append((method, path))
        if token != f"Bearer {TOKEN}":
            return 401, {"message": "Unauthorized"}
        if method in self.denied:
            return 403, {"message": f'User "system:serviceaccount:lab:demo" cannot {method.lower()} resource'}
        url = urllib.parse.urlsplit(path)
        if url.path == "/api/v1/namespaces/lab/pods" and method == "GET":
            selector = urllib.parse.parse_qs(url.query)["labelSelector"][0]
            return 200, {"kind": "PodList", "items": [pod for pod in self.pods() if _selects(selector, pod)]}
        prefix, _, name = url.path.rpartition("/")
        with self.lock:
            if prefix != "/apis/batch/v1/namespaces/lab/jobs" or name not in self.jobs:
                return 404, {"message": f'jobs.batch "{name}" not found'}
            job = self.jobs[name]
            if method == "PATCH":
                job["spec"] |= body["spec"]
            elif method == "DELETE":
                job["metadata"]["deletionTimestamp"] = "now"
                del self.jobs[name]
            return 200, job


class _Server(HTTPServer):
    """On a socket that listens already."""

    def __init__(self, api: ApiServer, listener: ssl.SSLSocket) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.api = listener, api


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        assert self.headers["Content-Type"] == "application/merge-patch+json"
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing; `calls` has it."""

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        api = self.server.api  # type: ignore[attr-defined]
        status, content = api.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
        written = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(written)))
        self.end_headers()
        self.wfile.write(written)


def _selects(selector: str, pod: Manifest) -> bool:
    """Of "KEY=VALUE,KEY in (A,B)"."""
    equal, _, rest = selector.partition(",")
    key, _, value = equal.partition("=")
    role, _, roles = rest.partition(" in ")
    labels = pod["metadata"]["labels"]
    return labels.get(key) == value and labels.get(role) in roles.strip("()").split(",")
