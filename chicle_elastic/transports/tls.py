"""Mutual TLS below the greeting: both ends show a certificate of the job's CA before either sends a byte of its own.

    caller                              listener
    TLS 1.3 handshake, both certificates verified, in the thread that dials or greets and never in an event loop
                                  <-    GO, one byte: the certificate of the caller was accepted
    HELLO, PROOF and so on, as without TLS (`handshake`)

The byte is there because a caller in TLS 1.3 has finished its handshake before the listener has verified its
certificate: without it a refusal would surface somewhere in the greeting, as a broken connection.

A certificate counts when the CA of the job has signed it and it is valid now. Its name does not: nodes have addresses
that no authority could have known. What makes a process a party of this very job is the secret, proven inside.

A listener with TLS peeks at the first byte: a caller without TLS is told so in a frame that it understands. A listener
without TLS knows a caller with TLS by its first bytes (`wire.unpack_header`).
"""

import contextlib
import logging
import os
import socket
import ssl
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from chicle_elastic.errors import ChicleError, PeerLostError, TlsError, UsageError
from chicle_elastic.transports import exchange, wire
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.secret import require_private

CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"
"""As cert-manager writes them, and a Kubernetes Secret of type kubernetes.io/tls."""
GO = b"\x06"
PIECE_BYTES = 1 << 17  # written by one call, so that a long message does not keep a non-blocking caller for long
DRAIN_BYTES = 1 << 16
HANDSHAKE_TURNS = 4
EXPIRED, NOT_YET_VALID, WRONG_PURPOSE = 10, 9, 26  # of OpenSSL (X509_V_ERR_...)
ONE_FOR_ALL = "start all nodes of a job with --tls, or none"

_log = logging.getLogger(__name__)


class TlsSocket(ssl.SSLSocket):
    """A socket inside of TLS that behaves as one outside of it, as far as `exchange`, `links` and `pool` use it.

    Non-blocking, `recv` and `send` may be called from two threads, and `close` from either; blocking, one thread at a
    time reads or writes, and another one may call `shutdown` to wake it.
    """

    # OpenSSL allows one call at a time, and a closed descriptor may be another connection's. `wrap` gives each socket a
    # lock of its own; this one is for `close` when Python cannot make the socket.
    _guard = threading.Lock()
    _has_ended = False

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Bytes that are here: of several records up to `buflen`; with MSG_PEEK, whether anything is here at all.
        Raises BlockingIOError when there are none, on a non-blocking socket."""
        if flags:
            return bytes(self.pending()) or socket.socket.recv(self, buflen, flags)
        found = bytearray()
        with self._guard:
            while len(found) < buflen and not self._has_ended:
                try:
                    piece = super().recv(buflen - len(found))
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    if found:
                        break
                    raise BlockingIOError from None
                except OSError:
                    if found:
                        break  # the next call raises, or finds the end
                    raise
                self._has_ended = not piece
                found += piece
                if self.gettimeout() != 0:
                    break
        return bytes(found)

    def send(self, data: Any, flags: int = 0) -> int:
        """Send a first piece of the bytes; after BlockingIOError, call it again with the same bytes. Raises
        BlockingIOError when the kernel takes nothing now, on a non-blocking socket."""
        with self._guard:
            try:
                return super().send(memoryview(data)[:PIECE_BYTES], flags)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def sendmsg(self, buffers: Iterable[memoryview], *_: Any) -> int:  # type: ignore[override]
        """Send a piece of the first buffer; TLS gathers nothing."""
        return super().send(next(iter(buffers))[:PIECE_BYTES])

    def shutdown(self, how: int) -> None:
        """End the connection below TLS; `SSLSocket` would go on in plain text."""
        socket.socket.shutdown(self, how)

    def close(self) -> None:
        """Hang up, once no other thread is within a call."""
        with self._guard:
            super().close()


class Contexts(NamedTuple):
    """For the two ends of a connection, with the same certificate."""

    listener: ssl.SSLContext
    caller: ssl.SSLContext


class TlsIdentity:
    """The certificate of a node, its key, and the CA whose certificates it accepts. Thread-safe. Raises UsageError when
    a file is missing, others can read the key, they do not belong together, or no other node would accept the
    certificate.

    The files are read again when they have changed, so that certificates can be renewed while a job runs. Files that
    cannot be used then are reported once, and the ones before stay in use.

    Args:
        folder: With tls.crt (the certificate, and intermediate ones behind it), tls.key (its private key, not
            encrypted, of a mode that a secret file may have) and ca.crt; all PEM.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._stamps = self._look()
        self._contexts = self._load()

    def wrap_as_caller(self, sock: socket.socket) -> TlsSocket:
        """A new socket for a connection; the old one is detached. Nothing is sent before `greet_as_caller`."""
        return wrap(self._current().caller, sock, is_listener=False)

    def wrap_as_listener(self, sock: socket.socket) -> TlsSocket:
        """The same for the other end."""
        return wrap(self._current().listener, sock, is_listener=True)

    def _current(self) -> Contexts:
        with self._lock:
            with contextlib.suppress(UsageError):  # while the files are replaced, say
                stamps = self._look()
                if stamps != self._stamps:
                    self._stamps = stamps
                    try:
                        self._contexts = self._load()
                    except UsageError as error:
                        _log.warning("the certificate of before stays in use: %s", error)
            return self._contexts

    def _look(self) -> list[tuple[int, int]]:
        try:
            statuses = [os.stat(self._folder / name) for name in (CERTIFICATE, KEY, AUTHORITY)]
        except OSError as error:
            raise UsageError(
                f"{error.filename} cannot be read ({error.strerror}); a folder for --tls holds {CERTIFICATE}, {KEY} "
                f"and {AUTHORITY}"
            ) from error
        return [(status.st_ino, status.st_mtime_ns) for status in statuses]

    def _load(self) -> Contexts:
        """Read the files, and let the two ends of a connection shake hands in memory."""
        require_private(self._folder / KEY, os.stat(self._folder / KEY), "key file")
        try:
            contexts = make_contexts(self._folder)
            _shake_hands(contexts)
        except ssl.SSLCertVerificationError as error:
            raise UsageError(
                f"no other node would accept the certificate {self._folder / CERTIFICATE} ({error.verify_message}); "
                f"{_remedy(error)}"
            ) from error
        except OSError as error:
            raise UsageError(
                f"the files in {self._folder} cannot be used together ({_words(error)}); {CERTIFICATE} and {AUTHORITY} "
                f"hold certificates and {KEY} the key of {CERTIFICATE}, not encrypted, all in PEM"
            ) from error
        return contexts


def make_contexts(folder: Path) -> Contexts:
    """Read certificate, key and CA; whether the CA has signed the certificate is not looked at. Raises OSError when a
    file cannot be read or is none of its kind, or the key is that of another certificate."""
    contexts = Contexts(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    for context in contexts:
        context.sslsocket_class = TlsSocket
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(folder / AUTHORITY)
        context.load_cert_chain(folder / CERTIFICATE, folder / KEY, password="")  # never ask a terminal for one
    contexts.listener.num_tickets = 0  # no session is resumed
    return contexts


def greet_as_caller(sock: TlsSocket, deadline: Deadline, *, peer: str) -> None:
    """Shake hands with a listener, and wait for its word that it has accepted the certificate of this node. Raises
    TlsError when one end does not accept the certificate of the other, or the peer speaks no TLS, PeerLostError when it
    is gone or silent."""
    try:
        deadline.apply(sock, peer=peer)
        sock.do_handshake()
        deadline.apply(sock, peer=peer)
        word = sock.recv(len(GO))
    except OSError as error:
        raise _failure(error, deadline, peer=peer) from error
    if word != GO:
        raise PeerLostError(f"{peer} closed the connection after the TLS handshake")


def expect_caller(sock: socket.socket, deadline: Deadline, *, peer: str) -> None:
    """Wait for the first byte of a caller; one that speaks no TLS is told so. Call it before `wrap_as_listener`. Raises
    TlsError when it speaks no TLS, PeerLostError when it is gone or silent."""
    try:
        deadline.apply(sock, peer=peer)
        first = sock.recv(1, socket.MSG_PEEK)
    except OSError as error:
        raise _failure(error, deadline, peer=peer) from error
    if not first:
        raise PeerLostError(f"{peer} closed the connection before the TLS handshake")
    if first == wire.MAGIC[:1]:
        told = TlsError(f"it takes connections with TLS only, and this one has none; {ONE_FOR_ALL}")
        exchange.send_frame(sock, wire.pack_refusal(told), deadline, peer=peer)
        _drain(sock, deadline)
        raise TlsError(f"{peer} speaks no TLS, and this node does; {ONE_FOR_ALL}")


def greet_as_listener(sock: TlsSocket, deadline: Deadline, *, peer: str) -> None:
    """Shake hands with a caller. On failure the caller is told why, by an alert of TLS. Raises TlsError when one end
    does not accept the certificate of the other, PeerLostError when it is gone or silent."""
    try:
        deadline.apply(sock, peer=peer)
        sock.do_handshake()
    except OSError as error:
        _drain(sock, deadline)
        raise _failure(error, deadline, peer=peer) from error
    exchange.send_frame(sock, GO, deadline, peer=peer)


def wrap(context: ssl.SSLContext, sock: socket.socket, *, is_listener: bool) -> TlsSocket:
    """A socket for TLS in place of one that is connected, which is detached; nothing is sent yet. Raises PeerLostError
    when the connection is broken."""
    try:
        wrapped = context.wrap_socket(sock, server_side=is_listener, do_handshake_on_connect=False)
    except OSError as error:
        raise PeerLostError(f"the connection broke before the TLS handshake ({_words(error)})") from error
    assert isinstance(wrapped, TlsSocket)
    wrapped._guard = threading.Lock()  # `SSLSocket` has no constructor to extend
    return wrapped


def _drain(sock: socket.socket, deadline: Deadline) -> None:
    """Read until the caller hangs up: a close before that could throw the reason away that it has not read yet."""
    with contextlib.suppress(OSError, ChicleError):
        socket.socket.shutdown(sock, socket.SHUT_WR)
        num_bytes = 0
        while num_bytes < DRAIN_BYTES:
            deadline.apply(sock, peer="")
            piece = socket.socket.recv(sock, DRAIN_BYTES)
            if not piece:
                return
            num_bytes += len(piece)


def _shake_hands(contexts: Contexts) -> None:
    to_listener, to_caller = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        contexts.caller.wrap_bio(to_caller, to_listener),
        contexts.listener.wrap_bio(to_listener, to_caller, server_side=True),
    )
    for _ in range(HANDSHAKE_TURNS):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()


def _failure(error: OSError, deadline: Deadline, *, peer: str) -> ChicleError:
    """What a failed handshake means, to be raised."""
    if isinstance(error, TimeoutError):
        return deadline.passed(peer)
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(
            f"{peer} showed a certificate that this node does not accept ({error.verify_message}); {_remedy(error)}"
        )
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return PeerLostError(f"{peer} broke the TLS handshake off ({_words(error)}); it has ended, or speaks no TLS")
    reason = error.reason or ""
    if "ALERT" in reason:
        alert = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return TlsError(
            f"{peer} does not accept the certificate of this node ({alert}); give all nodes certificates of one CA, "
            "valid now, and compare the clocks"
        )
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"):
        return TlsError(f"{peer} speaks no TLS, and this node does; {ONE_FOR_ALL}")
    return TlsError(f"{peer} and this node do not agree on TLS 1.3 ({_words(error)}); {ONE_FOR_ALL}")


def _remedy(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == EXPIRED:
        return "renew it"
    if error.verify_code == NOT_YET_VALID:
        return "compare the clocks"
    if error.verify_code == WRONG_PURPOSE:
        return "issue it for both purposes, serverAuth and clientAuth"
    return f"give all nodes of a job certificates of one CA, and its certificate as {AUTHORITY}"


def _words(error: OSError) -> str:
    """What went wrong, without the names that OpenSSL's functions have."""
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return reason.replace("_", " ").lower() if reason else (error.strerror or str(error))
