"""An HTTP server for a scraper of metrics (`--metrics`), in a thread of its own: the agent's loop never waits for it.

It answers `GET /metrics` and nothing else, one request after the other; a client that is silent is given up after
`CLIENT_S`. It listens on this host alone unless another address is given: what it tells is no secret, but it asks for
none either.
"""

import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer
from typing import NamedTuple

from chicle_elastic.closing import Closing
from chicle_elastic.errors import UsageError

LOOPBACK = "127.0.0.1"
PATH = "/metrics"
CLIENT_S = 5.0

logger = logging.getLogger(__name__)


class MetricsAddress(NamedTuple):
    """Where to listen."""

    host: str
    port: int  # 0 for a free one

    @classmethod
    def parse(cls, text: str) -> "MetricsAddress":
        """From "9464", "0.0.0.0:9464" or "[::]:9464". Raises UsageError when it is neither."""
        host, _, port = text.strip().rpartition(":")
        if not (port.isascii() and port.isdecimal() and int(port) <= 65_535) or (":" in host and host[0] != "["):
            raise UsageError(f"{text!r} is no [HOST:]PORT; write 9464, or 0.0.0.0:9464 for all addresses of the host")
        return cls(host.strip("[]") or LOOPBACK, int(port))


class MetricsServer(Closing):
    """Serves a text; a context manager that ends it.

    A port that is taken is a warning, and nothing is served: a job does not fail because it cannot be watched.

    Args:
        address: Where to listen; None for nowhere.
    """

    def __init__(self, address: MetricsAddress | None, text: Callable[[], str], *, content_type: str) -> None:
        self._server: HTTPServer | None = None
        self._thread: threading.Thread | None = None
        if address is None:
            return
        try:
            self._server = _Server(address, _handler(text, content_type))
        except OSError as error:
            logger.warning("no metrics at %s:%d: %s", address.host, address.port, error)
            return
        self._thread = threading.Thread(target=self._server.serve_forever, name="chicle-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str | None:
        """Where the metrics are; None for nowhere."""
        if self._server is None:
            return None
        host, port = self._server.server_address[:2]
        name = str(host)
        return f"http://{f'[{name}]' if ':' in name else name}:{port}{PATH}"

    def close(self) -> None:
        """End it; waits for a request that is being answered, at most for `CLIENT_S`. May be called again."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            # `shutdown` waits for a client that sends a byte now and then, without an end.
            threading.Thread(target=server.shutdown, name="chicle-metrics-end", daemon=True).start()
            self._thread.join(CLIENT_S)
            server.server_close()


class _Server(HTTPServer):
    """Without the look-up of its own name, which may take seconds where no name server answers."""

    def __init__(self, address: MetricsAddress, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Of `TCPServer`."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that is gone is no error of this agent."""
        logger.debug("a scraper got no metrics", exc_info=True)


def _handler(text: Callable[[], str], content_type: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers one request."""

        timeout = CLIENT_S
        server_version = "chicle"
        sys_version = ""

        def do_GET(self) -> None:
            """The text, or 404."""
            if self.path.partition("?")[0] != PATH:
                self.send_error(404, f"metrics are at {PATH}")
                return
            content = text().encode()
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Not of every scrape."""

    return Handler
