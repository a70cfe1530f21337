"""A local server of S3 in a process of its own, for tests of URLs; and the settings that lead s3fs to it.

Needs `pip install 'chicle-elastic[test-url]'`; tests skip without it, with the reason `NEEDS`.
"""

import contextlib
import importlib.util
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from tests.timeouts import timeout_s

SERVER = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print("at", server.server_port, flush=True)
server.serve_forever()
"""
NEEDS = "needs s3fs and moto's server: pip install 'chicle-elastic[test-url]'"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server that runs."""

    endpoint: str  # its URL

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead a process to it."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.endpoint}

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        import fsspec

        keys = {"key": KEYS["AWS_ACCESS_KEY_ID"], "secret": KEYS["AWS_SECRET_ACCESS_KEY"]}
        fsspec.filesystem("s3", endpoint_url=self.endpoint, skip_instance_cache=True, **keys).mkdir(name)

    def refuse_all(self) -> None:
        """From now on, the server checks who asks; it knows no user, and so answers 403."""
        self._limit(b"0")

    def refuse_none(self) -> None:
        """Undo `refuse_all`."""
        self._limit(b"1000000000")

    def _limit(self, num_unchecked: bytes) -> None:
        request = urllib.request.Request(
            f"{self.endpoint}/moto-api/reset-auth", data=num_unchecked, headers={"Content-Type": "text/plain"}
        )
        with urllib.request.urlopen(request, timeout=timeout_s(20)) as answer:
            answer.read()


def is_installed() -> bool:
    """Whether there are the packages for it."""
    return all(importlib.util.find_spec(package) for package in ("s3fs", "moto", "flask"))


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server; it takes a moment to start."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        found = re.fullmatch(r"at (\d+)\n", process.stdout.readline())
        assert found, "the server of S3 has not started"
        yield S3Server(f"http://127.0.0.1:{found[1]}")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]
