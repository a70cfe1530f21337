"""Links between agents: messages whole and in order, in an event loop, and an end that shows at once."""

import os
import selectors
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from chicle_elastic.errors import PeerLostError, ProtocolError, SecretError, UsageError
from chicle_elastic.transports import wire
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.handshake import prove_as_caller
from chicle_elastic.transports.links import Link, LinkListener, connect
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.wire import Kind
from tests.harness.impostor import Impostor
from tests.timeouts import timeout_s

TIMEOUT_S = timeout_s(10)

CALLER = """
import sys
from pathlib import Path
from chicle_elastic.transports.links import connect
from chicle_elastic.transports.secret import JobSecret
link = connect(sys.argv[1], JobSecret.load(Path(sys.argv[2])), name="n3")
link.send("here I am")
sys.stdin.read()
"""


@pytest.fixture
def listener(secret):
    """Where n1 takes links."""
    with LinkListener("tcp://127.0.0.1:0", secret, name="n1") as listener:
        yield listener


@pytest.fixture(params=["plain", "tls"])
def protection(request):
    """Return the certificate of both ends, or None."""
    return request.getfixturevalue("tls") if request.param == "tls" else None


@pytest.fixture
def guarded(secret, protection):
    """Where n1 takes links with or without TLS."""
    with LinkListener("tcp://127.0.0.1:0", secret, name="n1", tls=protection) as listener:
        yield listener


@pytest.fixture
def links(guarded, secret, protection):
    """Both ends of a link: at n1 and at n2."""
    calling = connect(guarded.address, secret, name="n2", timeout_s=TIMEOUT_S, tls=protection)
    with calling, accept(guarded) as listening:
        yield listening, calling


def accept(listener: LinkListener) -> Link:
    """The next link, as soon as it is there."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        assert selector.select(TIMEOUT_S), "no link came"
    link = listener.accept()
    assert link is not None
    return link


def wait_for_messages(link: Link) -> list:
    """Messages, as soon as there are any, as an event loop waits for them."""
    with selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        while not (messages := link.receive()):
            selector.modify(link, selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_to_write else 0))
            ready = selector.select(TIMEOUT_S)
            assert ready, f"{link.peer} sent no message"
            if any(events & selectors.EVENT_WRITE for _, events in ready):
                link.flush()
    return messages


def receive(link: Link, num_messages: int) -> list:
    """That many messages."""
    messages = []
    while len(messages) < num_messages:
        messages += wait_for_messages(link)
    return messages


def wait_until_lost(link: Link) -> PeerLostError:
    """The error at the end of a link."""
    with pytest.raises(PeerLostError) as raised:
        read_for_ever(link)
    return raised.value


def read_for_ever(link: Link) -> None:
    """Read whatever comes, until an error does."""
    while True:
        wait_for_messages(link)


def send_for_ever(link: Link, size: int) -> None:
    """Send without end, until there is an error."""
    while True:
        link.send("x" * size)


class TestMessages:
    """What is sent arrives."""

    def test_both_ends_know_each_other_by_name(self, links):
        """As proven in the greeting."""
        listening, calling = links
        assert (listening.peer, calling.peer) == ("n2", "n1")

    def test_messages_go_both_ways_in_order(self, links):
        """Any JSON value is a message; several threads send while the loop reads."""
        listening, calling = links
        messages = [None, True, 1.5, "ä", [], {"a": [{}]}, "x" * 16_384, "y" * 65_537, "z" * 300_000] * 5
        with ThreadPoolExecutor(2) as threads:
            found = threads.submit(receive, listening, len(messages))
            sent = threads.submit(lambda: [listening.send(message) for message in messages])
            for message in messages:
                calling.send(message)
            assert receive(calling, len(messages)) == messages
            sent.result(TIMEOUT_S)
            while calling.wants_to_write:
                calling.flush()
            assert found.result(TIMEOUT_S) == messages

    def test_a_long_message_goes_out_as_the_kernel_takes_it(self, links):
        """`send` does not wait for a peer that is busy; the event loop flushes."""
        listening, calling = links
        message = "x" * (20 << 20)
        calling.send(message)
        assert calling.wants_to_write
        with selectors.DefaultSelector() as selector:
            selector.register(calling, selectors.EVENT_WRITE, calling.flush)
            selector.register(listening, selectors.EVENT_READ)
            found = []
            while not found:
                ready = selector.select(TIMEOUT_S)
                assert ready, "the message got stuck"
                for key, _ in ready:
                    found += key.data() or [] if key.data else listening.receive()
                if not calling.wants_to_write and calling in selector.get_map():
                    selector.unregister(calling)
        assert found == [message]

    def test_receive_never_waits(self, links):
        """An event loop has other things to do."""
        assert links[0].receive() == []

    def test_threads_may_send_while_the_loop_reads(self, links):
        """Messages do not mix, and OpenSSL allows one call at a time on a connection."""
        listening, calling = links
        with ThreadPoolExecutor(4) as threads:
            answers = threads.submit(lambda: [listening.send("x" * 100) for _ in range(2000)])
            sent = [threads.submit(calling.send, [number] * 2000) for number in range(200)]
            back = threads.submit(receive, calling, 2000)
            assert sorted(receive(listening, 200)) == [[number] * 2000 for number in range(200)]
            assert len(back.result(TIMEOUT_S)) == len(answers.result(TIMEOUT_S)) == 2000
            assert len([each.result(TIMEOUT_S) for each in sent]) == 200

    def test_a_peer_that_reads_nothing_is_given_up(self, links, monkeypatch):
        """Messages for a stopped process must not fill the memory of this one."""
        monkeypatch.setattr("chicle_elastic.transports.links.MAX_UNSENT_BYTES", 1 << 20)
        with pytest.raises(PeerLostError, match=r"n1 does not read its messages: \d+ bytes wait for it"):
            send_for_ever(links[1], 100_000)

    def test_what_is_no_json_is_not_sent(self, links):
        """And the link is as good as before."""
        listening, calling = links
        with pytest.raises(ProtocolError, match="use JSON values only"):
            calling.send({1, 2})
        calling.send("fine")
        assert receive(listening, 1) == ["fine"]


class TestEnds:
    """The end of a link is seen by the other end."""

    def test_what_came_before_the_end_is_received_first(self, links):
        """A farewell arrives."""
        listening, calling = links
        calling.send("farewell")
        calling.close()
        assert receive(listening, 1) == ["farewell"]
        assert "n2 closed the link" in str(wait_until_lost(listening))

    def test_a_killed_process_is_seen_at_once(self, listener, secret, tmp_path):
        """The kernel closes its sockets; the selector wakes up."""
        secret.save(tmp_path / "secret")
        command = [sys.executable, "-c", CALLER, listener.address, str(tmp_path / "secret")]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            try:
                with accept(listener) as link:
                    assert receive(link, 1) == ["here I am"]
                    os.kill(process.pid, signal.SIGKILL)
                    assert "n3" in str(wait_until_lost(link))
            finally:
                process.kill()

    def test_sending_to_the_lost_is_an_error(self, links):
        """Not at once: the kernel has to hear of it first."""
        listening, calling = links
        listening.close()
        wait_until_lost(calling)
        with pytest.raises(PeerLostError, match="n1 cannot be sent to any more"):
            send_for_ever(calling, 100_000)

    def test_a_closed_link_is_lost(self, links):
        """Whoever still holds it gets an error and no hang."""
        listening, _ = links
        listening.close()
        listening.close()
        assert listening.fileno() == -1
        with pytest.raises(PeerLostError):
            listening.send("x")
        with pytest.raises(PeerLostError):
            listening.receive()

    @pytest.mark.parametrize(
        ("words", "error", "message"),
        [
            (wire.pack_header(Kind.MESSAGE, 100) + b"{", wire.TruncatedFrameError, "of which 17 bytes had come"),
            (wire.pack_header(Kind.MESSAGE, 1 << 40), wire.FrameLengthError, "MESSAGE frame of 1099511627776 bytes"),
            (wire.HEADER.pack(wire.MAGIC, 1, Kind.MESSAGE, 2), wire.VersionError, "speaks version 1"),
            (wire.pack_header(Kind.MESSAGE, 4) + b"\x80\x04N.", ProtocolError, "no JSON"),
            (b"what?" * 10, ProtocolError, "where a frame begins"),
        ],
        ids=["truncated", "length", "version", "pickle", "noise"],
    )
    def test_a_broken_frame_ends_the_link(self, listener, secret, words, error, message):
        """With the name of who sent it."""
        host, port = listener.address.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port))) as sock:
            prove_as_caller(sock, secret, Deadline(TIMEOUT_S), purpose="link", name="n9", peer="n1")
            sock.sendall(words)
            sock.shutdown(socket.SHUT_WR)
            with accept(listener) as link, pytest.raises(error, match=f"n9.*{message}"):
                read_for_ever(link)


class TestStrangers:
    """Who has no secret gets no link."""

    def test_a_wrong_secret_is_refused(self, guarded, protection, links):
        """The caller is told, also with a certificate; nothing is accepted, and links that are there go on."""
        with pytest.raises(SecretError, match=r"the same secret file|did not prove the secret"):
            connect(guarded.address, JobSecret.generate(), name="x", timeout_s=TIMEOUT_S, tls=protection)
        assert guarded.accept() is None
        links[0].send("still here")
        assert receive(links[1], 1) == ["still here"]

    def test_who_says_nothing_keeps_nobody_waiting(self, secret):
        """Not the next caller, and not for ever."""
        with (
            LinkListener("tcp://127.0.0.1:0", secret, name="n1", proof_timeout_s=0.2) as listener,
            socket.create_connection(("127.0.0.1", int(listener.address.split(":")[2]))) as silent,
        ):
            with connect(listener.address, secret, name="n2", timeout_s=TIMEOUT_S), accept(listener) as link:
                assert link.peer == "n2"
            silent.settimeout(TIMEOUT_S)
            assert silent.recv(1) == b""

    def test_nobody_there_is_an_error(self, secret):
        """Not a hang."""
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
        with pytest.raises(PeerLostError, match=f"tcp://127.0.0.1:{port} cannot be reached"):
            connect(f"tcp://127.0.0.1:{port}", secret, name="n2", timeout_s=TIMEOUT_S)

    def test_a_listener_that_does_not_answer_is_given_up(self, secret):
        """A stopped agent still accepts connections: its kernel does."""
        with (
            Impostor("tcp://127.0.0.1:0", lambda sock: sock.recv(1) and sock.recv(1 << 16) and None) as impostor,
            pytest.raises(PeerLostError),
        ):
            connect(impostor.address, secret, name="n2", timeout_s=0.2)


class TestListening:
    """Where links come in."""

    def test_links_nobody_accepted_end_with_the_listener(self, secret):
        """Closing may be repeated."""
        listener = LinkListener("tcp://127.0.0.1:0", secret, name="n1")
        with connect(listener.address, secret, name="n2", timeout_s=TIMEOUT_S) as link:
            listener.close()
            listener.close()
            wait_until_lost(link)

    def test_an_accepted_link_outlives_the_listener(self, secret):
        """It belongs to whoever accepted it."""
        with LinkListener("tcp://127.0.0.1:0", secret, name="n1") as listener:
            calling = connect(listener.address, secret, name="n2", timeout_s=TIMEOUT_S)
            listening = accept(listener)
        with calling, listening:
            calling.send("still here")
            assert receive(listening, 1) == ["still here"]

    def test_a_taken_port_is_an_error(self, listener, secret):
        """With the address, and what to do."""
        with pytest.raises(UsageError, match=f"cannot listen on {listener.address} .*choose port 0"):
            LinkListener(listener.address, secret, name="n2")

    def test_ipv6_is_written_in_brackets(self, secret):
        """As in any address."""
        try:
            listener = LinkListener("tcp://[::1]:0", secret, name="n1")
        except UsageError:
            pytest.skip("this host has no IPv6")
        with listener, connect(listener.address, secret, name="n2", timeout_s=TIMEOUT_S):
            assert listener.address.startswith("tcp://[::1]:")
            accept(listener).close()
