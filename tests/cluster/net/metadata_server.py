"""A metadata server for tests: it speaks the protocols of three clouds over real sockets, and refuses what they refuse.

AWS: a token by PUT, refused when it has expired; 404 until there is an action. GCP: a header, an ETag, answers that
wait for a change. Azure: a header, a version, the name of the machine, events of several machines.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.timeouts import timeout_s


class MetadataServer:
    """What one cloud says; every attribute may be changed while it runs.

    Attributes:
        cloud: "aws", "gcp" or "azure".
        action: AWS: what is at spot/instance-action; None for 404.
        is_preempted: GCP: the value.
        events: Azure: scheduled events.
        is_down: It closes every connection without an answer.
        tokens: AWS: tokens that are valid now.
        paths: All requests so far, "METHOD path?query".
    """

    def __init__(self, cloud: str) -> None:
        self.cloud = cloud
        self.action: dict[str, str] | None = None
        self.events: list[dict[str, object]] = []
        self.is_preempted = False
        self.is_down = False
        self.tokens: set[str] = set()
        self.paths: list[str] = []
        self.changed = threading.Condition()
        self.is_ending = False
        self.url = ""

    def wait_for_requests(self, count: int, path: str) -> None:
        """Wait until so many requests for a path have come."""
        with self.changed:
            has_come = self.changed.wait_for(lambda: self.num_requests(path) >= count, timeout_s(30))
        assert has_come, self.paths

    def num_requests(self, path: str) -> int:
        """Requests so far whose path ends so, without the query."""
        return sum(entry.partition("?")[0].endswith(path) for entry in self.paths)

    def preempt(self) -> None:
        """GCP: the value becomes TRUE, and requests that wait are answered."""
        with self.changed:
            self.is_preempted = True
            self.changed.notify_all()


def _handler(server: MetadataServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers for one server."""

        def do_PUT(self) -> None:
            """AWS: a token."""
            if not self._begin():
                return
            ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if server.cloud != "aws" or urlsplit(self.path).path != "/latest/api/token":
                self._answer(404)
            elif not ttl.isdecimal() or not 1 <= int(ttl) <= 21_600:
                self._answer(400)
            else:
                token = f"token-{len(server.paths)}=="
                server.tokens.add(token)
                self._answer(200, token)

        def do_GET(self) -> None:
            """Everything else."""
            if self._begin():
                getattr(self, f"_{server.cloud}")(urlsplit(self.path).path, parse_qs(urlsplit(self.path).query))

        def _aws(self, path: str, query: dict[str, list[str]]) -> None:
            if self.headers.get("X-aws-ec2-metadata-token") not in server.tokens:
                self._answer(401)
            elif path == "/latest/meta-data/spot/instance-action" and server.action is not None:
                self._answer(200, json.dumps(server.action))
            else:
                self._answer(404)

        def _gcp(self, path: str, query: dict[str, list[str]]) -> None:
            if self.headers.get("Metadata-Flavor") != "Google":
                self._answer(403)
            elif path == "/computeMetadata/v1/instance/id":
                self._answer(200, "4711")
            elif path == "/computeMetadata/v1/instance/preempted":
                if query.get("wait_for_change") == ["true"]:
                    with server.changed:
                        server.changed.wait_for(
                            lambda: server.is_ending or query.get("last_etag") != [self._etag()],
                            float(query["timeout_sec"][0]),
                        )
                self._answer(200, "TRUE" if server.is_preempted else "FALSE", ETag=self._etag())
            else:
                self._answer(404)

        def _azure(self, path: str, query: dict[str, list[str]]) -> None:
            if self.headers.get("Metadata") != "true" or "api-version" not in query:
                self._answer(400)
            elif path == "/metadata/instance/compute/name" and query.get("format") == ["text"]:
                self._answer(200, "pool_3")
            elif path == "/metadata/scheduledevents" and query["api-version"] == ["2020-07-01"]:
                self._answer(200, json.dumps({"DocumentIncarnation": 1, "Events": server.events}))
            else:
                self._answer(404)

        def _etag(self) -> str:
            return "a1b2/+" if server.is_preempted else "c3d4/+"

        def _begin(self) -> bool:
            with server.changed:
                server.paths.append(f"{self.command} {self.path}")
                server.changed.notify_all()
            self.close_connection = True
            return not server.is_down

        def _answer(self, code: int, text: str = "", **headers: str) -> None:
            self.send_response(code)
            if server.cloud == "gcp":
                self.send_header("Metadata-Flavor", "Google")
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            with contextlib.suppress(OSError):  # who has asked is gone
                self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    return Handler


@contextlib.contextmanager
def metadata_server(cloud: str) -> Iterator[MetadataServer]:
    """Run one on a free port."""
    server = MetadataServer(cloud)
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    http.daemon_threads = False  # so that closing waits for them
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        with server.changed:
            server.is_ending = True
            server.changed.notify_all()
        http.shutdown()
        thread.join()
        http.server_close()
