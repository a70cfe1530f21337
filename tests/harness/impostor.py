"""A peer that does not keep to the protocol: it listens like an agent, and then follows a script."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

from chicle_elastic.errors import ChicleError
from chicle_elastic.transports import addresses


class Impostor:
    """Listens in a thread and gives every connection to a script, one after the other. A context manager.

    Args:
        address: "tcp://host:port" or "unix:@name".
        script: Called with each connection; the end of the connection ends it (`OSError` and `ChicleError` are what
            it sees when the other side hangs up first).
    """

    def __init__(self, address: str, script: Callable[[socket.socket], None]) -> None:
        is_unix = address.startswith("unix:")
        self._listener = addresses.listen_unix(address) if is_unix else addresses.listen_tcp(address)
        self.address = address if is_unix else addresses.bound_tcp(self._listener)  # where it listens
        self._script = script
        self._current: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="impostor")
        self._thread.start()

    def close(self) -> None:
        """Hang up and end."""
        for sock in (self._listener, self._current):
            with contextlib.suppress(OSError, AttributeError):
                sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
        self._thread.join()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the listener was shut down
            while True:
                self._current, _ = self._listener.accept()
                with self._current as sock, contextlib.suppress(OSError, ChicleError):
                    self._script(sock)


def wait_for_the_end(sock: socket.socket) -> None:
    """Say nothing until the other side hangs up."""
    while sock.recv(1 << 16):
        pass
