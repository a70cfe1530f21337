"""Frames over a Unix socket: whole, in order, with their descriptors; what breaks a limit is refused."""

import os
import socket
import struct
import subprocess
import sys
import threading

import pytest

from chicle_elastic.cluster.local import messages
from chicle_elastic.errors import ProtocolError
from chicle_elastic.transports import unix_frames
from chicle_elastic.transports.unix_frames import FramedSocket, Limits
from tests.runtime.control.test_control import STRANGER
from tests.timeouts import timeout_s

LIMITS = Limits(text_bytes=1000, fds=2, payload_bytes=1 << 20)


@pytest.fixture
def ends():
    """Both ends of one connection, and the first one's bare socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    first, second = (FramedSocket(sock, LIMITS, what="the test's connection") for sock in (ours, theirs))
    yield first, second, ours
    first.close()
    second.close()


def test_frames_arrive_whole_and_in_order_with_their_descriptors(ends):
    """Text, payload and descriptors of each frame stay together."""
    sender, receiver, _ = ends
    payload = os.urandom(1 << 18)
    thread = threading.Thread(target=lambda: sender.send(b"second", payload=payload))
    read_end, write_end = os.pipe()
    sender.send(b"first", fds=(read_end, write_end))
    thread.start()
    first, second = receiver.receive(), receiver.receive()
    thread.join()
    assert (first.text, first.payload, second.text, second.fds) == (b"first", b"", b"second", [])
    assert second.payload == payload
    os.write(first.fds[1], b"through")
    assert os.read(read_end, 100) == b"through"
    for fd in (read_end, write_end, *first.fds):
        os.close(fd)


def test_posted_frames_wait_in_their_order_with_their_descriptors(ends):
    """Nothing is read meanwhile; the sender closes its descriptors at once, and the receiver gets its own."""
    sender, receiver, _ = ends
    expected = []
    for number in range(2000):
        read_end, write_end = os.pipe() if number % 100 == 0 else (None, None)
        sender.post(f"{number} ".encode() * 100, fds=() if read_end is None else (read_end,))
        if read_end is not None:
            os.write(write_end, str(number).encode())
            os.close(read_end)
            os.close(write_end)
        expected.append(number)
    assert sender.wants_to_write
    found = []
    while len(found) < len(expected):
        frame = receiver.receive(timeout_s(10))
        found.append(int(frame.text.split()[0]))
        for fd in frame.fds:
            assert os.read(fd, 100) == str(found[-1]).encode()
            os.close(fd)
        sender.flush()
    assert found == expected
    assert not sender.wants_to_write


def test_what_waits_for_a_peer_is_bounded(ends):
    """The frame that is too much is refused and says why; those before still come, and closing frees descriptors."""
    _, receiver, sock = ends
    limits = Limits(text_bytes=1000, fds=2, unsent_bytes=50_000)
    bounded = FramedSocket(sock.dup(), limits, what="the test's connection")
    read_end, write_end = os.pipe()

    def fill() -> None:
        for _ in range(10_000):
            bounded.post(bytes(900), fds=(read_end,))

    with pytest.raises(unix_frames.NotReadingError, match=r"does not read: \d+ bytes in \d+ messages wait"):
        fill()
    os.close(read_end)
    assert bounded.wants_to_write
    bounded.close()
    receiver.close()  # the descriptors in the socket go with it
    with pytest.raises(BrokenPipeError):
        os.write(write_end, b"x")
    os.close(write_end)


def test_a_peer_that_is_gone_is_an_error_of_post_and_of_flush(ends):
    """What waits for it is dropped."""
    sender, receiver, _ = ends
    while not sender.wants_to_write:
        sender.post(bytes(1000))
    receiver.close()
    with pytest.raises(ConnectionError):
        sender.flush()
    assert not sender.wants_to_write
    with pytest.raises(ConnectionError):
        sender.post(b"more")


def test_frames_of_several_threads_do_not_mix(ends):
    """Each frame is sent as a whole."""
    sender, receiver, _ = ends
    threads = [
        threading.Thread(target=lambda n=n: [sender.send(bytes([n]), payload=bytes([n]) * 99_999) for _ in range(20)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    frames = [receiver.receive(timeout_s(10)) for _ in range(80)]
    for thread in threads:
        thread.join()
    assert all(frame.payload == frame.text * 99_999 for frame in frames)


def test_nothing_within_the_time_is_no_end(ends):
    """A frame comes later."""
    sender, receiver, _ = ends
    assert receiver.receive(0.01) is None
    assert receiver.read() == []
    assert not receiver.is_at_end
    sender.send(b"later")
    assert [frame.text for frame in receiver.read()] == [b"later"]


def test_the_end_comes_after_the_last_frame(ends):
    """And sending to the end that has closed is refused."""
    sender, receiver, _ = ends
    sender.send(b"last")
    sender.close()
    assert [frame.text for frame in receiver.read()] == [b"last"]
    assert receiver.is_at_end
    assert receiver.receive() is None
    with pytest.raises(ConnectionError, match="the test's connection"):
        receiver.send(b"too late")


def test_a_frame_that_is_cut_off_is_no_frame(ends):
    """The receiver sees the end, and how much of the frame came."""
    _, receiver, sock = ends
    sock.sendall(unix_frames.HEAD.pack(10, 0, 0) + b"cut")
    sock.shutdown(socket.SHUT_WR)
    assert receiver.receive() is None
    assert receiver.is_at_end
    assert receiver.num_partial_bytes == unix_frames.HEAD.size + 3


@pytest.mark.parametrize(
    ("head", "complaint"),
    [
        ((1001, 0, 0), "a message of 1001 bytes was announced over the test's connection; at most 1000"),
        ((2, 0, 2 << 20), "a payload of 2097152 bytes was announced"),
        ((0, 1, 0), "1 descriptors were announced over the test's connection and 0 came"),
    ],
)
def test_a_frame_beyond_the_limits_is_refused_before_it_has_come(ends, head, complaint):
    """Memory for it is never taken."""
    _, receiver, sock = ends
    sock.sendall(unix_frames.HEAD.pack(*head))
    with pytest.raises(ProtocolError, match=complaint):
        receiver.receive()


def test_too_many_descriptors_are_refused(ends):
    """The kernel closes those beyond the limit; the others are closed with the connection."""
    _, receiver, sock = ends
    read_end, write_end = os.pipe()
    socket.send_fds(sock, [unix_frames.HEAD.pack(0, 3, 0)], [write_end] * 3)
    os.close(write_end)
    with pytest.raises(ProtocolError, match="more than 2 descriptors came at once over the test's connection"):
        receiver.receive()
    receiver.close()
    with open(read_end, "rb") as pipe:
        assert pipe.read() == b""


def test_a_peer_that_does_not_read_counts_as_gone():
    """Where there is such a limit: a sender never waits for a stopped process."""
    ours, theirs = socket.socketpair()
    sender = FramedSocket(ours, Limits(text_bytes=9, fds=0, send_timeout_s=0.05), what="the test's connection")
    with theirs, pytest.raises(ConnectionError, match=r"has not read for 0\.05 s"):
        sender.send(b"", payload=bytes(16 << 20))
    sender.close()


@pytest.mark.parametrize("text", [b"\x80\x04pickle", b"[1]", b"{}", b'{"kind": 7}'])
def test_what_is_no_message_of_a_local_cluster_is_refused(text):
    """No JSON, no object, no kind; descriptors that came beside it are closed."""
    connection, sock = messages.pair()
    read_end, write_end = os.pipe()
    with connection, sock:
        socket.send_fds(sock, [unix_frames.HEAD.pack(len(text), 1, 0) + text], [write_end])
        os.close(write_end)
        with pytest.raises(ProtocolError, match="is no message"):
            connection.read()
    with open(read_end, "rb") as pipe:
        assert pipe.read() == b""


def test_a_task_that_is_killed_inside_a_message_just_ends():
    """The driver of a local cluster goes on with the other tasks."""
    connection, sock = messages.pair()
    with connection:
        sock.sendall(struct.pack("<I", 10))
        sock.close()
        assert connection.read() == []
        assert connection.is_at_end


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_local_cluster_hangs_up_on_a_process_of_another_user():
    """It may see the name of the socket; it gets no word, and the process that comes after it is served."""
    address = f"chicle-test-{os.urandom(8).hex()}"
    listener = messages.listen(address)
    with listener:
        stranger = subprocess.Popen([sys.executable, "-c", STRANGER, address], stdout=subprocess.PIPE)
        assert messages.accept(listener) is None
        assert stranger.communicate(timeout=timeout_s(20)) == (b"b''", None)
        with messages.connect(address) as client, messages.accept(listener) as server:
            client.send("hello")
            assert server.receive(timeout_s(10)).kind == "hello"
