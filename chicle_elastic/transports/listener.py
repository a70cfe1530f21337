"""Takes connections and lets each prove the secret before it is handed on.

One thread accepts; every connection gets a thread of its own, so that a silent caller keeps no other one waiting.
A caller has a few seconds to prove the secret, and at most `MAX_UNPROVEN` callers may be at it at a time: others are
hung up on, so that strangers can take neither memory nor threads. What goes wrong with one connection is logged and
ends that connection only.
"""

import contextlib
import logging
import selectors
import socket
import threading
from collections.abc import Callable

from chicle_elastic.closing import Closing
from chicle_elastic.errors import ChicleError
from chicle_elastic.transports import addresses
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.handshake import prove_as_listener
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.tls import TlsIdentity, TlsSocket, expect_caller, greet_as_listener

MAX_UNPROVEN = 64
PROOF_TIMEOUT_S = 5.0
JOIN_TIMEOUT_S = 5.0
RETRY_S = 0.1

_log = logging.getLogger(__name__)


class Listener(Closing):
    """Accepts connections for one purpose. A context manager that closes it. Raises UsageError when the address cannot
    be listened on.

    Args:
        address: "tcp://host:port" or "unix:@name".
        serve: Called in the connection's own thread with the proven socket and the caller's name.
        gives_away: Whether the socket belongs to `serve` from then on; otherwise it is closed when `serve` returns, and
            `close` hangs up on it.
        tls: Callers have to shake hands by TLS first; None for connections without, and always so on Unix sockets.
    """

    def __init__(
        self,
        address: str,
        secret: JobSecret,
        *,
        purpose: str,
        name: str,
        serve: Callable[[socket.socket, str], None],
        gives_away: bool = False,
        proof_timeout_s: float = PROOF_TIMEOUT_S,
        tls: TlsIdentity | None = None,
    ) -> None:
        self._is_unix = address.startswith("unix:")
        self._listener = addresses.listen_unix(address) if self._is_unix else addresses.listen_tcp(address)
        # where it listens, with the port it has got
        self.address = address if self._is_unix else addresses.bound_tcp(self._listener)
        self._listener.setblocking(False)
        self._secret, self._purpose, self._name, self._serve = secret, purpose, name, serve
        self._gives_away = gives_away
        self._tls = None if self._is_unix else tls
        self._proof_timeout_s = proof_timeout_s
        self._lock = threading.Lock()
        self._connections: dict[threading.Thread, socket.socket | None] = {}  # None: given away
        self._num_unproven = 0
        self._closing = threading.Event()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._acceptor = threading.Thread(target=self._accept_all, name=f"{purpose}-accept-{name}", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Stop, hang up on callers whose socket was not given away, and wait for their threads. May be repeated."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
            connections = dict(self._connections)
        self._wake_sender.send(b"!")
        self._acceptor.join(JOIN_TIMEOUT_S)
        for sock in connections.values():
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it
        for thread in connections:
            if thread is not threading.current_thread():
                thread.join(JOIN_TIMEOUT_S)
        for sock in (self._listener, self._wake_receiver, self._wake_sender):
            sock.close()

    def _accept_all(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake_receiver, selectors.EVENT_READ)
            while not self._closing.is_set():
                selector.select()
                try:
                    sock, peer = self._listener.accept()
                except (BlockingIOError, ConnectionError):
                    continue
                except OSError as error:  # no descriptors left, say: others may be given back
                    _log.warning("%s cannot accept a connection for %s: %s", self._name, self._purpose, error)
                    self._closing.wait(RETRY_S)
                    continue
                self._begin(sock, "a local process" if self._is_unix else addresses.format_tcp(*peer[:2]))

    def _begin(self, sock: socket.socket, peer: str) -> None:
        thread = threading.Thread(
            target=self._run, args=(sock, peer), name=f"{self._purpose}-{self._name}-{peer}", daemon=True
        )
        with self._lock:
            is_welcome = not self._closing.is_set() and self._num_unproven < MAX_UNPROVEN
            if is_welcome:
                self._num_unproven += 1
                self._connections[thread] = sock
                thread.start()  # before anybody can wait for it
        if not is_welcome:
            _log.warning("%s hangs up on %s: %d callers have yet to prove the secret", self._name, peer, MAX_UNPROVEN)
            sock.close()

    def _run(self, sock: socket.socket, peer: str) -> None:
        is_ours = True
        try:
            try:
                if not self._is_unix:
                    addresses.tune_tcp(sock)
                deadline = Deadline(self._proof_timeout_s)
                if self._tls is not None:
                    sock = self._wrap(sock, peer, self._tls, deadline)
                caller = self._prove(sock, peer, deadline)
            finally:
                with self._lock:
                    self._num_unproven -= 1
            is_ours = not (self._gives_away and self._let_go())
            if is_ours and self._gives_away:
                return  # closed meanwhile
            self._serve(sock, caller)
        except (ChicleError, OSError) as error:
            if not self._closing.is_set():
                _log.warning("%s ends a connection for %s: %s", self._name, self._purpose, error)
        finally:
            if is_ours:
                sock.close()
            with self._lock:
                del self._connections[threading.current_thread()]

    def _let_go(self) -> bool:
        """The socket is not ours to close any more; not so when `close` has begun, which may have hung up already."""
        with self._lock:
            if not self._closing.is_set():
                self._connections[threading.current_thread()] = None
            return not self._closing.is_set()

    def _wrap(self, sock: socket.socket, peer: str, tls: TlsIdentity, deadline: Deadline) -> TlsSocket:
        """The socket for TLS, which `close` hangs up on from now on."""
        expect_caller(sock, deadline, peer=peer)
        wrapped = tls.wrap_as_listener(sock)
        with self._lock:
            self._connections[threading.current_thread()] = wrapped
            is_closing = self._closing.is_set()
        if is_closing:  # `close` may have known the socket of before only, and waits for this thread
            with contextlib.suppress(OSError):
                wrapped.shutdown(socket.SHUT_RDWR)
        return wrapped

    def _prove(self, sock: socket.socket, peer: str, deadline: Deadline) -> str:
        """The caller's name, once it has proven the secret."""
        if isinstance(sock, TlsSocket):
            greet_as_listener(sock, deadline, peer=peer)
        return prove_as_listener(sock, self._secret, deadline, purpose=self._purpose, name=self._name, peer=peer)
