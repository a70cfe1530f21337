"""Links and chunks by mutual TLS: the same as without, and each mistake with the certificates is named at both ends."""

import contextlib
import random
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chicle_elastic.errors import PeerLostError, ProtocolError, TlsError, UsageError
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports import addresses
from chicle_elastic.transports.base import Region
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.handshake import prove_as_listener
from chicle_elastic.transports.links import LinkListener, connect
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import TransportSelector
from chicle_elastic.transports.tcp import TcpTransport
from chicle_elastic.transports.tls import TlsIdentity, greet_as_caller, greet_as_listener, make_contexts, wrap
from tests.harness.certificates import Authority
from tests.harness.impostor import Impostor, wait_for_the_end
from tests.timeouts import timeout_s
from tests.transports.test_links import accept, receive

TIMEOUT_S = timeout_s(10)


@pytest.fixture
def listener(secret: JobSecret, tls: TlsIdentity) -> Iterator[LinkListener]:
    """Where n1 takes links by TLS."""
    with LinkListener("tcp://127.0.0.1:0", secret, name="n1", tls=tls, proof_timeout_s=TIMEOUT_S) as listener:
        yield listener


def wait_for_line(caplog: pytest.LogCaptureFixture, words: str) -> None:
    """Wait until a listener's thread has logged a line with these words."""
    deadline = Deadline(TIMEOUT_S)
    while not any(words in record.getMessage() for record in caplog.records):
        assert deadline.left_s(), f"no line says {words!r}: {caplog.text}"
        threading.Event().wait(0.01)


@contextlib.contextmanager
def forwarder(target: str, seen: bytearray) -> Iterator[str]:
    """Stands between two ends and keeps what passes; yields its address."""

    def script(sock: socket.socket) -> None:
        with addresses.connect_tcp(target, timeout_s=TIMEOUT_S) as onward:
            other = {sock: onward, onward: sock}
            while True:
                for end in select.select(list(other), [], [])[0]:
                    piece = end.recv(1 << 16)
                    if not piece:
                        return
                    seen.extend(piece)
                    other[end].sendall(piece)

    with Impostor("tcp://127.0.0.1:0", script) as impostor:
        yield impostor.address


class TestLinks:
    """Links; `test_links` sends messages with and without TLS."""

    def test_bytes_are_not_readable_on_the_way(self, secret: JobSecret, tls: TlsIdentity) -> None:
        """Neither the names in the greeting nor a message; seen by a forwarder between the two ends."""
        seen = bytearray()
        with (
            LinkListener("tcp://127.0.0.1:0", secret, name="n1-the-listener", tls=tls) as listener,
            forwarder(listener.address, seen) as address,
            connect(address, secret, name="n2-the-caller", timeout_s=TIMEOUT_S, tls=tls) as calling,
            accept(listener) as listening,
        ):
            calling.send("a message to be kept")
            assert receive(listening, 1) == ["a message to be kept"]
        assert len(seen) > 100
        assert not any(word in seen for word in (b"n1-the-listener", b"n2-the-caller", b"to be kept", b"HELLO"))

    def test_a_listener_closes_while_a_caller_shakes_hands(self, secret: JobSecret, tls: TlsIdentity) -> None:
        """The caller sends nothing; its thread ends with the listener and not at its deadline."""
        listener = LinkListener("tcp://127.0.0.1:0", secret, name="n1", tls=tls, proof_timeout_s=timeout_s(60))
        with addresses.connect_tcp(listener.address, timeout_s=TIMEOUT_S) as silent:
            silent.sendall(b"\x16\x03\x01")  # a handshake begins
            listener.close()
            with contextlib.suppress(ConnectionResetError):
                assert not silent.recv(1 << 10)


class TestRefusals:
    """The listener stays as it is and logs a line; the caller is told."""

    def assert_serves(self, listener: LinkListener, secret: JobSecret, tls: TlsIdentity) -> None:
        """A node of the job gets its link."""
        with connect(listener.address, secret, name="n9", timeout_s=TIMEOUT_S, tls=tls), accept(listener) as link:
            assert link.peer == "n9"

    def test_a_caller_of_another_ca(
        self,
        listener: LinkListener,
        secret: JobSecret,
        tls: TlsIdentity,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """It does not accept the listener either, and says so."""
        stranger = TlsIdentity(Authority(tmp_path / "other").issue(tmp_path / "n2"))
        with pytest.raises(TlsError, match=r"127\.0\.0\.1.*not accept \(.*give all nodes of a job certificates"):
            connect(listener.address, secret, name="n2", timeout_s=TIMEOUT_S, tls=stranger)
        wait_for_line(caplog, "does not accept the certificate of this node (unknown ca); give all nodes certificates")
        self.assert_serves(listener, secret, tls)

    @pytest.mark.parametrize(
        ("kind", "alert", "why"),
        [
            ("other CA", "unknown ca", "unable to get local issuer certificate"),
            ("expired", "certificate expired", "certificate has expired); renew it"),
            ("server only", "unsupported certificate|bad certificate", "for both purposes, serverAuth and clientAuth"),
        ],
    )
    def test_a_certificate_that_the_listener_does_not_accept(
        self,
        kind: str,
        alert: str,
        why: str,
        listener: LinkListener,
        secret: JobSecret,
        authority: Authority,
        tls: TlsIdentity,
        folder: Path,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The caller has accepted that of the listener; it is told by TLS, the listener says why."""
        if kind == "other CA":
            own = Authority(tmp_path / "other").issue(tmp_path / "n2")
            (own / "ca.crt").write_bytes((folder / "ca.crt").read_bytes())
        elif kind == "expired":
            own = authority.issue(tmp_path / "n2", is_expired=True)
        else:
            own = authority.issue(tmp_path / "n2", purposes="serverAuth")
        plain = addresses.connect_tcp(listener.address, timeout_s=TIMEOUT_S)
        told = pytest.raises(TlsError, match=rf"n1 does not accept the certificate of this node \(({alert})\)")
        with wrap(make_contexts(own).caller, plain, is_listener=False) as sock, told:
            greet_as_caller(sock, Deadline(TIMEOUT_S), peer="n1")
        wait_for_line(caplog, why)
        assert "n1 ends a connection for link: tcp://127.0.0.1:" in caplog.text
        self.assert_serves(listener, secret, tls)

    def test_a_caller_without_tls(
        self, listener: LinkListener, secret: JobSecret, tls: TlsIdentity, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is told in a frame of its own protocol."""
        with pytest.raises(ProtocolError, match=r"127\.0\.0\.1.* refused: .*with TLS only.*start all nodes .* --tls"):
            connect(listener.address, secret, name="n2", timeout_s=TIMEOUT_S)
        wait_for_line(caplog, "speaks no TLS, and this node does; start all nodes of a job with --tls, or none")
        self.assert_serves(listener, secret, tls)

    def test_a_listener_without_tls(
        self, secret: JobSecret, tls: TlsIdentity, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The caller sees that no TLS answers, and the listener knows TLS by its first bytes."""
        with LinkListener("tcp://127.0.0.1:0", secret, name="n1", proof_timeout_s=TIMEOUT_S) as listener:
            with pytest.raises(TlsError, match=r"127\.0\.0\.1.* speaks no TLS, and this node does; start all nodes"):
                connect(listener.address, secret, name="n2", timeout_s=TIMEOUT_S, tls=tls)
            wait_for_line(caplog, "speaks TLS, and this node does not on this connection; start all nodes")
            with connect(listener.address, secret, name="n2", timeout_s=TIMEOUT_S), accept(listener) as link:
                assert link.peer == "n2"

    def test_a_caller_that_is_no_agent(
        self, listener: LinkListener, secret: JobSecret, tls: TlsIdentity, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A browser, a scanner, a connection that ends at once: one line each."""
        with addresses.connect_tcp(listener.address, timeout_s=TIMEOUT_S) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while browser.recv(1 << 10):
                pass
        wait_for_line(caplog, "speaks no TLS")
        addresses.connect_tcp(listener.address, timeout_s=TIMEOUT_S).close()
        wait_for_line(caplog, "closed the connection before the TLS handshake")
        self.assert_serves(listener, secret, tls)

    def test_older_versions_of_tls_are_refused(self, listener: LinkListener, folder: Path) -> None:
        """Only 1.3."""
        context = make_contexts(folder).caller
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        plain = addresses.connect_tcp(listener.address, timeout_s=TIMEOUT_S)
        with wrap(context, plain, is_listener=False) as sock, pytest.raises(TlsError):
            greet_as_caller(sock, Deadline(TIMEOUT_S), peer="n1")


class TestFolder:
    """Mistakes in the folder of --tls show at the start of a node."""

    def refusal(self, folder: Path) -> str:
        """What the node says."""
        with pytest.raises(UsageError) as raised:
            TlsIdentity(folder)
        return str(raised.value)

    def test_files_that_cannot_be_used_are_named(self, authority: Authority, folder: Path, tmp_path: Path) -> None:
        """Missing, readable by others, of another certificate, no certificate at all, expired, for servers only."""
        assert "tls.crt cannot be read (No such file or directory); a folder for --tls holds" in self.refusal(tmp_path)
        open_to_all = authority.issue(tmp_path / "open")
        (open_to_all / "tls.key").chmod(0o644)
        assert "tls.key has mode 0644" in self.refusal(open_to_all)
        mixed = authority.issue(tmp_path / "mixed")
        (mixed / "tls.crt").write_bytes((folder / "tls.crt").read_bytes())
        assert "cannot be used together (key values mismatch)" in self.refusal(mixed)
        (mixed / "tls.crt").write_text("no certificate")
        assert "cannot be used together" in self.refusal(mixed)
        assert "(certificate has expired); renew it" in self.refusal(authority.issue(tmp_path / "old", is_expired=True))
        one_way = authority.issue(tmp_path / "one-way", purposes="serverAuth")
        assert "issue it for both purposes" in self.refusal(one_way)
        foreign = Authority(tmp_path / "other").issue(tmp_path / "foreign")
        (foreign / "ca.crt").write_bytes((folder / "ca.crt").read_bytes())
        assert "no other node would accept the certificate" in self.refusal(foreign)

    def test_a_renewed_certificate_is_used_without_a_restart(
        self, authority: Authority, secret: JobSecret, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """New connections show it; files that cannot be used are reported, and the ones before stay."""
        tls = TlsIdentity(authority.issue(tmp_path / "n1"))
        other = Authority(tmp_path / "other")
        with LinkListener("tcp://127.0.0.1:0", secret, name="n1", tls=tls, proof_timeout_s=TIMEOUT_S) as listener:
            authority.issue(tmp_path / "n1", is_expired=True)
            with connect(listener.address, secret, name="n2", timeout_s=TIMEOUT_S, tls=tls), accept(listener):
                assert "the certificate of before stays in use" in caplog.text
            other.issue(tmp_path / "n1")
            newcomer = TlsIdentity(other.issue(tmp_path / "n3"))
            with connect(listener.address, secret, name="n3", timeout_s=TIMEOUT_S, tls=newcomer), accept(listener):
                pass


class TestChunks:
    """The bytes of chunks by TLS. The contract of transports is in test_tcp."""

    def test_regions_arrive_and_connections_are_kept(self, secret: JobSecret, tls: TlsIdentity) -> None:
        """Several megabytes, one after the other over one connection."""
        size = 5 << 20
        with Arena.create(2, slot_bytes=size) as arena:
            arena.view(0)[:] = random.Random(0).randbytes(size)
            with (
                TcpTransport("tcp://127.0.0.1:0", secret, name="owner", tls=tls) as owner,
                TcpTransport("tcp://127.0.0.1:0", secret, name="reader", tls=tls) as reader,
            ):
                region = Region(owner.register(arena), 0, size)
                for _ in range(3):
                    into = bytearray(size)
                    reader.fetch(owner.address, region, memoryview(into), timeout_s=TIMEOUT_S)
                    assert into == bytes(arena.view(0))

    def test_ends_with_and_without_tls_refuse_each_other(self, secret: JobSecret, tls: TlsIdentity) -> None:
        """In words, and not by waiting."""
        region, into = Region(0, 0, 64), memoryview(bytearray(64))
        with (
            TcpTransport("tcp://127.0.0.1:0", secret, name="with", tls=tls) as with_tls,
            TcpTransport("tcp://127.0.0.1:0", secret, name="without") as without,
        ):
            with pytest.raises(ProtocolError, match="with TLS only"):
                without.fetch(with_tls.address, region, into, timeout_s=TIMEOUT_S)
            with pytest.raises(TlsError, match="speaks no TLS"):
                with_tls.fetch(without.address, region, into, timeout_s=TIMEOUT_S)

    def test_a_disconnect_ends_a_fetch_that_waits(self, secret: JobSecret, tls: TlsIdentity) -> None:
        """By another thread, within a call that waits for bytes."""
        is_waiting = threading.Event()

        def script(plain: socket.socket) -> None:
            with tls.wrap_as_listener(plain) as sock:
                deadline = Deadline(TIMEOUT_S)
                greet_as_listener(sock, deadline, peer="reader")
                prove_as_listener(sock, secret, deadline, purpose="tcp", name="owner", peer="reader")
                sock.recv(1)
                is_waiting.set()
                wait_for_the_end(sock)

        with (
            Impostor("tcp://127.0.0.1:0", script) as impostor,
            TcpTransport("tcp://127.0.0.1:0", secret, name="reader", tls=tls) as reader,
            ThreadPoolExecutor(1) as threads,
        ):
            region, into = Region(0, 0, 64), memoryview(bytearray(64))
            future = threads.submit(reader.fetch, impostor.address, region, into, timeout_s=timeout_s(60))
            assert is_waiting.wait(TIMEOUT_S)
            reader.disconnect(impostor.address)
            assert isinstance(future.exception(TIMEOUT_S), PeerLostError)

    def test_rdma_does_not_go_around_tls(self, secret: JobSecret, tls: TlsIdentity) -> None:
        """With --tls-bulk there is none, and the node says why."""
        with TransportSelector(secret, name="n1", tls=tls) as transports:
            assert transports.endpoints.verbs is None
            assert "--tls-bulk" in str(transports.reason_against_rdma)
