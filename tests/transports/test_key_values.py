"""A store of keys and values: a real server, real connections, and callers that are none."""

import gc
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from chicle_elastic.errors import PeerLostError, ProtocolError
from chicle_elastic.transports import wire
from chicle_elastic.transports.key_values import MAX_BYTES, KeyValueClient, KeyValueServer
from chicle_elastic.transports.wire import HEADER, Kind
from tests.timeouts import timeout_s

Connect = Callable[[], KeyValueClient]


@pytest.fixture
def server() -> Iterator[tuple[KeyValueServer, int]]:
    """A server, and its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = int(listener.getsockname()[1])
    server = KeyValueServer(listener)
    yield server, port
    server.close()


@pytest.fixture
def connect(server: tuple[KeyValueServer, int]) -> Iterator[Connect]:
    """Makes clients."""
    clients: list[KeyValueClient] = []

    def connect() -> KeyValueClient:
        clients.append(KeyValueClient("127.0.0.1", server[1], connect_s=timeout_s(10)))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def test_operations(connect: Connect) -> None:
    """What one writes the other reads: any bytes under any text."""
    first, second = connect(), connect()
    value = bytes(range(256)) * 1000
    first.set("a/ü", value)
    assert second.get("a/ü") == value
    assert second.get("absent") is None
    assert second.get_all(["a/ü", "absent"]) is None
    assert second.get_all([]) == []
    assert first.compare_set("cell", "never written", "x") == b"never written"
    assert first.get("cell") is None
    assert first.compare_set("cell", "", "x") == b"x"
    assert second.compare_set("cell", "y", "z") == b"x"
    assert second.compare_set("cell", "x", "z") == b"z"
    assert (first.add("number", 5), second.add("number", -7)) == (5, -2)
    assert sorted(first.list_keys()) == ["a/ü", "cell", "number"]
    assert (first.delete_key("cell"), first.delete_key("cell")) == (True, False)


def test_a_client_that_is_dropped_in_a_cycle_closes_its_socket(server: tuple[KeyValueServer, int]) -> None:
    """An error holds its frames, and they hold the client; the collector may come to the socket first."""
    client = KeyValueClient("127.0.0.1", server[1], connect_s=timeout_s(10))
    held: list[object] = [client, *vars(client).values()]
    held.append(held)
    del client
    gc.collect()  # it keeps them in the order in which it came to them: from the younger list, and from its end
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del held
        gc.collect()
    assert not [warning for warning in caught if warning.category is ResourceWarning]


def test_many_wait_for_the_keys_of_all(connect: Connect) -> None:
    """Each writes one and waits for the others with one question, as the members of a round do."""
    count = 20
    keys = [str(number) for number in range(count)]

    def member(number: int) -> list[bytes] | None:
        return connect().trade(str(number), str(number), keys, wait_s=timeout_s(20))

    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(member, range(count)))
    assert found == [[key.encode() for key in keys]] * count


def test_a_wait_ends_with_its_time_and_the_connection_lives_on(connect: Connect) -> None:
    """Others are served meanwhile."""
    client = connect()
    assert client.get("absent", wait_s=0.01) is None
    client.set("key", "value")
    assert client.get("key", wait_s=60) == b"value"


def test_a_thread_that_waits_can_be_woken(connect: Connect) -> None:
    """And the connection is of no more use."""
    client = connect()
    timer = threading.Timer(0.05, client.shut_down)
    timer.start()
    with pytest.raises(PeerLostError):
        client.get("absent", wait_s=timeout_s(60))
    timer.join()
    with pytest.raises(PeerLostError):
        client.set("key", "value")


def test_the_end_of_the_server_ends_connections(server: tuple[KeyValueServer, int], connect: Connect) -> None:
    """Also of those that wait."""
    client = connect()
    client.set("key", "value")
    server[0].close()
    server[0].close()
    with pytest.raises(PeerLostError):
        client.get("key")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 2,
        HEADER.pack(b"\x89CHW", wire.VERSION, Kind.ASK, MAX_BYTES + 1),
        wire.pack_text(Kind.ASK, b"[]"),
        wire.pack_text(Kind.ASK, b'["Take",["key"],1e999]'),
        wire.pack_text(Kind.ASK, b'["Put","key",1]'),
        wire.pack_text(Kind.ASK, b"[" * 100_000),
        wire.pack_text(Kind.ASK, b'["Count","text",1]'),
        wire.pack_text(Kind.ASK, b'["Take",["absent"],60]') + wire.pack_text(Kind.ASK, b'["Names"]'),
    ],
    ids=["http", "too long", "nothing", "for ever", "no bytes", "deep", "no number", "two at once"],
)
def test_who_breaks_a_rule_is_hung_up_on(server: tuple[KeyValueServer, int], connect: Connect, sent: bytes) -> None:
    """The others do not notice."""
    client = connect()
    client.set("text", "x")
    with socket.create_connection(("127.0.0.1", server[1]), timeout=timeout_s(10)) as stranger:
        stranger.sendall(sent)
        said = b""
        try:
            while data := stranger.recv(4096):
                said += data
        except ConnectionResetError:
            pass
    assert not said or wire.unpack_header(said[: HEADER.size], {Kind.REFUSED: 4096}, peer="store")[0] is Kind.REFUSED
    assert client.get("text") == b"x"


def test_who_does_not_read_keeps_nobody_waiting(server: tuple[KeyValueServer, int], connect: Connect) -> None:
    """Its answer is sent as it makes room."""
    client = connect()
    for number in range(20):
        client.set(str(number), bytes(1 << 20))
    slow = connect()
    keys = ",".join(f'"{number}"' for number in range(20))
    slow._sock.sendall(wire.pack_text(Kind.ASK, f'["Take",[{keys}],0]'.encode()))
    assert client.get("0") == bytes(1 << 20)
    assert client.get_all([str(number) for number in range(20)]) == [bytes(1 << 20)] * 20


def test_something_else_that_answers_is_an_error() -> None:
    """As is a process that answers with nothing that a store says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = KeyValueClient("127.0.0.1", listener.getsockname()[1])
        other, _ = listener.accept()
        with other, client:
            other.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with pytest.raises(ProtocolError):
                client.set("key", "value")


def test_who_asks_for_too_much_is_hung_up_on_and_not_who_writes(connect: Connect) -> None:
    """A short question that names a long value a thousand times; also one that waits for what another one writes."""
    writer, greedy, waiting = connect(), connect(), connect()
    writer.set("long", b"x" * 3_000_000)
    with pytest.raises((PeerLostError, ProtocolError), match="at once"):
        greedy.get_all(["long"] * 1000)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(waiting.get_all, [*["long"] * 70, "late"], wait_s=timeout_s(60))
        writer.add("other", 1)
        writer.set("late", b"")
        with pytest.raises((PeerLostError, ProtocolError), match="at once"):
            asked.result(timeout_s(20))
    assert writer.get("other") == b"1"


def test_callers_leave_half_of_the_descriptors_to_the_process(server: tuple[KeyValueServer, int]) -> None:
    """More are refused at once; those that are there are served."""
    with KeyValueClient("127.0.0.1", server[1]) as client:
        client.set("key", b"value")
        server[0]._most_callers = 3
        idle = [socket.create_connection(("127.0.0.1", server[1])) for _ in range(3)]
        for sock in idle:
            sock.settimeout(timeout_s(10))
        assert idle[2].recv(1) == b""
        assert client.get("key") == b"value"
        for sock in idle:
            sock.close()
