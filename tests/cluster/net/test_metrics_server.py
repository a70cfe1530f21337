"""The HTTP server for scrapers: what it answers, and what does not hold it up."""

import socket
import threading
import urllib.error
import urllib.request

import pytest

from chicle_elastic.cluster.net import metrics_server
from chicle_elastic.cluster.net.metrics_server import MetricsAddress, MetricsServer
from chicle_elastic.errors import UsageError
from tests.timeouts import timeout_s

TYPE = "text/plain; charset=utf-8"


def fetch(url: str) -> tuple[str, str]:
    """Type and text."""
    with urllib.request.urlopen(url, timeout=timeout_s(10)) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("9464", "127.0.0.1", 9464),
        (":0", "127.0.0.1", 0),
        ("0.0.0.0:9464", "0.0.0.0", 9464),
        ("[::]:9464", "::", 9464),
        ("localhost:1", "localhost", 1),
    ],
)
def test_an_address_is_a_port_and_perhaps_a_host(text: str, host: str, port: int) -> None:
    """This host alone, unless another address is given."""
    assert MetricsAddress.parse(text) == (host, port)


@pytest.mark.parametrize("text", ["", "here", "1.2.3.4:", "65536", "::1:80", "-1"])
def test_what_is_no_address_says_what_to_write(text: str) -> None:
    """An example."""
    with pytest.raises(UsageError, match=r"write 9464, or 0\.0\.0\.0:9464"):
        MetricsAddress.parse(text)


def test_each_request_gets_the_text_of_now() -> None:
    """With its type; another path is not found."""
    texts = iter(["first\n", "second\n"])
    with MetricsServer(MetricsAddress("127.0.0.1", 0), lambda: next(texts), content_type=TYPE) as server:
        assert server.url is not None
        assert server.url.startswith("http://127.0.0.1:")
        assert fetch(server.url) == (TYPE, "first\n")
        assert fetch(f"{server.url}?name=value") == (TYPE, "second\n")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(server.url.replace("/metrics", "/secret"))


def test_a_client_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one gets its answer."""
    monkeypatch.setattr(metrics_server, "CLIENT_S", 0.05)
    with MetricsServer(MetricsAddress("127.0.0.1", 0), lambda: "text", content_type=TYPE) as server:
        assert server.url is not None
        port = int(server.url.rpartition(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port)):
            assert fetch(server.url) == (TYPE, "text")


def test_a_client_that_trickles_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is in the middle of a request; it is left behind, and ends with its client."""
    is_asked, may_answer = threading.Event(), threading.Event()

    def text() -> str:
        is_asked.set()
        may_answer.wait()
        return ""

    monkeypatch.setattr(metrics_server, "CLIENT_S", 0.05)
    server = MetricsServer(MetricsAddress("127.0.0.1", 0), text, content_type=TYPE)
    thread = server._thread
    assert server.url is not None
    assert thread is not None
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert is_asked.wait(timeout_s(30))
        server.close()
        assert thread.is_alive()
        may_answer.set()
        thread.join(timeout_s(30))
    assert not thread.is_alive()


def test_a_port_that_is_taken_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A job does not fail because it cannot be watched."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = MetricsAddress("127.0.0.1", other.getsockname()[1])
        with MetricsServer(address, lambda: "", content_type=TYPE) as server:
            assert server.url is None
    assert f"no metrics at 127.0.0.1:{address.port}" in caplog.text


def test_without_an_address_there_is_no_server() -> None:
    """Nor a thread; it may be closed twice."""
    server = MetricsServer(None, lambda: "", content_type=TYPE)
    assert server.url is None
    server.close()
    server.close()
