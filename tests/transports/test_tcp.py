"""TCP keeps the contract of transports, and does not believe what a peer says about lengths."""

import selectors
import socket
import threading

import pytest

from chicle_elastic.errors import PeerLostError, ProtocolError, UsageError
from chicle_elastic.transports import exchange, wire
from chicle_elastic.transports.base import Region
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.handshake import prove_as_caller, prove_as_listener
from chicle_elastic.transports.listener import MAX_UNPROVEN
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.tcp import TcpTransport
from chicle_elastic.transports.wire import Kind
from tests.harness.impostor import Impostor
from tests.harness.transport_contract import TransportContract
from tests.timeouts import comes, timeout_s


class TestTcp(TransportContract):
    """The contract, over loopback."""

    uri = "tcp://127.0.0.1:0"
    transport = TcpTransport
    timeout_s = timeout_s(10)

    @pytest.mark.parametrize(
        ("answer", "error", "message"),
        [
            (wire.pack_header(Kind.BYTES, 65) + bytes(65), wire.FrameLengthError, "of 65 bytes, but it may have 64"),
            (wire.pack_header(Kind.BYTES, 63) + bytes(63), wire.FrameLengthError, "63 bytes for a region of 64"),
            (wire.pack_header(Kind.BYTES, 1 << 63), wire.FrameLengthError, "9223372036854775808 bytes"),
            (wire.pack_header(Kind.BYTES, 64) + bytes(40), wire.TruncatedFrameError, "after 40 of 64 bytes"),
            (wire.pack_json(Kind.MESSAGE, "psst"), ProtocolError, "kind MESSAGE where only BYTES, REFUSED may come"),
        ],
        ids=["longer", "shorter", "huge", "truncated", "other kind"],
    )
    def test_an_answer_of_another_length_is_not_used(self, secret, reader, answer, error, message):
        """A peer with the secret can be wrong, too."""

        def script(sock: socket.socket) -> None:
            prove_as_listener(sock, secret, Deadline(self.timeout_s), purpose="tcp", name="owner", peer="reader")
            sock.recv(1 << 16)
            sock.sendall(answer)

        with Impostor("tcp://127.0.0.1:0", script) as impostor, pytest.raises(error, match=message):
            self.fetch(reader, impostor.address, Region(0, 0, 64))

    @pytest.mark.parametrize(
        ("request_", "reason", "goes_on"),
        [
            (wire.pack_json(Kind.FETCH, [0, 0]), "no list of arena, offset and size: \\[0, 0\\]", True),
            (wire.pack_json(Kind.FETCH, [0, True, 64]), "no list of arena, offset and size", True),
            (wire.pack_json(Kind.FETCH, [0, 0.5, 64]), "no list of arena, offset and size", True),
            (wire.pack_header(Kind.FETCH, 2) + b"[[", "no JSON", True),
            (wire.pack_header(Kind.FETCH, 1 << 30), "FETCH frame of 1073741824 bytes", False),
            (wire.pack_header(Kind.BYTES, 8) + bytes(8), "kind BYTES where only FETCH may come", False),
        ],
        ids=["two figures", "a bool", "a float", "no JSON", "huge", "other kind"],
    )
    def test_a_request_that_makes_no_sense_is_refused(self, secret, owner, reader, arena, request_, reason, goes_on):
        """With the reason; the connection goes on where it is known where the next request begins."""
        with self.call(owner) as sock:
            deadline = Deadline(self.timeout_s)
            limits = {Kind.BYTES: 64, Kind.REFUSED: wire.REASON_BYTES}
            prove_as_caller(sock, secret, deadline, purpose="tcp", name="x", peer="owner")
            sock.sendall(request_)
            with pytest.raises(wire.RefusedError, match=reason):
                exchange.receive_header(sock, limits, deadline, peer="owner")
            if goes_on:
                sock.sendall(wire.pack_json(Kind.FETCH, [0, 0, 64]))
                assert exchange.receive_header(sock, limits, deadline, peer="owner") == (Kind.BYTES, 64)
            else:
                with pytest.raises(PeerLostError):
                    exchange.receive_header(sock, limits, deadline, peer="owner")
        self.assert_serves(reader, owner, arena)

    def test_a_listener_hangs_up_on_too_many_strangers(self, secret, reader, owner, arena):
        """Callers who say nothing take no more than a few threads, for a few seconds."""
        strangers = [self.call(owner) for _ in range(100)]
        deadline = Deadline(self.timeout_s)
        with selectors.DefaultSelector() as selector:
            for sock in strangers:
                selector.register(sock, selectors.EVENT_READ)
            while len(selector.get_map()) > MAX_UNPROVEN:
                hung_up = selector.select(deadline.left_s())
                assert hung_up, f"{len(selector.get_map())} strangers are still connected"
                for key, _ in hung_up:
                    selector.unregister(key.fileobj)
            assert not selector.select(0), "those within the limit may still prove the secret"
        for sock in strangers:
            sock.close()
        assert comes(
            lambda: not any("-owner-tcp://" in thread.name for thread in threading.enumerate()), self.timeout_s
        )
        self.assert_serves(reader, owner, arena)


def test_only_an_address_can_be_listened_on():
    """The message shows how to write one."""
    for address in ("127.0.0.1:0", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", "http://127.0.0.1:0", "tcp://h:1/x"):
        with pytest.raises(UsageError, match="write tcp://host:port"):
            TcpTransport(address, JobSecret.generate(), name="n1")
