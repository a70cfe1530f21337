"""The connection to a real store that dies, comes back empty, or says nothing."""

import contextlib
import socket
import threading

import pytest

from chicle_elastic.cluster.consensus import term_store
from chicle_elastic.cluster.consensus.term_store import Contact, Term, TermStore
from chicle_elastic.cluster.rendezvous import store, store_connection
from chicle_elastic.cluster.rendezvous.errors import StoreUnreachableError
from chicle_elastic.cluster.rendezvous.store import StoreServer, parse_endpoint
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import PeerLostError
from chicle_elastic.ids import NodeId
from chicle_elastic.testing.virtual_clock import VirtualClock
from chicle_elastic.transports.secret import JobSecret
from tests.cluster.rendezvous.rendezvous_agents import wait_for
from tests.timeouts import comes

N0 = NodeId("n0")
CONTACT = Contact(life="n0#1", address="tcp://127.0.0.1:1")


def reads(connection: StoreConnection, key: str) -> bytes:
    """The value of a key; nothing where it is absent."""
    return connection.compare_set(key, "", "")


def terms(connection: StoreConnection, secret: JobSecret) -> TermStore:
    """The terms of a job over a connection."""
    return TermStore(connection, run_id="job", secret=secret)


def test_a_store_that_died_is_one_error_and_the_next_store_at_its_place_is_used() -> None:
    """The operation fails, and does not wait; a later one connects again."""
    with StoreServer() as host:
        endpoint = host.endpoint
        connection = StoreConnection(endpoint).connect()
        assert connection.compare_set("key", "", "value") == b"value"
    with pytest.raises(StoreUnreachableError, match="start it again") as caught:
        reads(connection, "key")
    assert isinstance(caught.value, PeerLostError)
    with StoreServer(endpoint):
        wait_for(connection)
        assert connection.generation == 2
        assert reads(connection, "key") == b"", "it is another store, and empty"


def test_a_store_that_answers_nothing_any_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is cut off: here something between takes the bytes and passes none on."""
    monkeypatch.setattr(store_connection, "OPERATION_S", 0.2)
    with StoreServer() as host, _Relay(parse_endpoint(host.endpoint)[1]) as relay:
        connection = StoreConnection(f"127.0.0.1:{relay.port}").connect()
        assert connection.compare_set("key", "", "value") == b"value"
        relay.is_open.clear()
        with pytest.raises(StoreUnreachableError):
            reads(connection, "key")
        relay.is_open.set()
        wait_for(connection)
        assert reads(connection, "key") == b"value"


def test_in_the_back_off_operations_fail_without_an_attempt() -> None:
    """Else every thread of an agent could wait for a silent host at the same time."""
    with StoreServer() as host:
        endpoint = host.endpoint
        connection = StoreConnection(endpoint, clock=VirtualClock()).connect()
    for _ in range(2):
        with pytest.raises(StoreUnreachableError):
            reads(connection, "key")
    with StoreServer(endpoint), pytest.raises(StoreUnreachableError):
        reads(connection, "key")  # the clock stands still, and so the back-off goes on


def test_the_leader_and_each_agent_fill_a_restarted_store() -> None:
    """The term by the leader, the address by each agent; what is there is left alone."""
    secret = JobSecret.generate()
    with StoreServer() as host:
        endpoint = host.endpoint
        connection = StoreConnection(endpoint)
        leader = terms(connection, secret)
        _, first = leader.claim(1, CONTACT, ("n0#1",), known=0)
        _, second = leader.claim(2, CONTACT, ("n0#1", "n1#1"), known=1)
        assert not leader.publish_again(), "nothing is published yet"
        leader.publish(N0, CONTACT)
        assert not leader.publish_again()
    with pytest.raises(StoreUnreachableError):
        leader.look()
    with StoreServer(endpoint):
        wait_for(connection)
        assert (leader.look(), leader.find(N0)) == (Term(), None)
        assert leader.heal(second) == second
        assert leader.publish_again()
        assert leader.heal(second) == second, "it is there"
        assert (leader.look(), leader.find(N0)) == (second, CONTACT)
        assert leader.heal(first) == second, "a later term is none that has to be healed"
        assert leader.look() == second


def test_a_restarted_store_grants_no_term_before_the_leader_had_time_to_restore_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise half of the nodes, or a node that waited for the store, would begin where it is empty."""
    secret = JobSecret.generate()
    with StoreServer() as host:
        endpoint = host.endpoint
        connections = [StoreConnection(endpoint) for _ in range(3)]
        leader, survivor, stranger = (terms(connection, secret) for connection in connections)
        _, first = leader.claim(1, CONTACT, ("n0#1",), known=0)
        assert survivor.look() == stranger.look() == first
    other = Contact(life="n9#1", address="tcp://127.0.0.1:9")
    with StoreServer(endpoint):
        for connection in connections:
            wait_for(connection)
        newcomer = terms(StoreConnection(endpoint), secret)  # for whom there has been no other store
        for terms_of_node, known in ((survivor, 1), (stranger, 0), (newcomer, 0)):
            with pytest.raises(StoreUnreachableError, match="has just begun and has no term"):
                terms_of_node.claim(known + 1, other, ("n9#1",), known=known)
        fourth = Term(term=4, lead="n0#1", address=CONTACT.address, members=("n0#1",))
        assert leader.heal(fourth) == fourth
        assert stranger.claim(1, other, ("n9#1",), known=0) == (False, leader.look())
    with StoreServer(endpoint):
        wait_for(connections[1])
        monkeypatch.setattr(term_store, "RESTORE_S", -1.0)
        is_granted, fifth = survivor.claim(5, CONTACT, ("n0#1",), known=4)
        assert is_granted
        assert survivor.claim(5, CONTACT, ("n0#1",), known=4) == (True, fifth), (
            "the answer to an earlier attempt was lost"
        )


def test_who_has_the_job_goes_on_before_one_that_has_lost_it_begins_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have found the restarted store empty for as long: a node that paused with the job comes first."""
    secret = JobSecret.generate()
    with StoreServer() as host:
        endpoint = host.endpoint
        connections = [StoreConnection(endpoint) for _ in range(2)]
        paused, expelled = (terms(connection, secret) for connection in connections)
        paused.claim(1, CONTACT, ("n0#1",), known=0)
        assert expelled.look() == paused.look()
    with StoreServer(endpoint):
        for connection in connections:
            wait_for(connection)
        monkeypatch.setattr(term_store, "RESTORE_S", 0.0)
        other = Contact(life="n9#1", address="tcp://127.0.0.1:9")
        for _ in range(2):
            with pytest.raises(StoreUnreachableError, match="has just begun"):
                expelled.claim(1, other, ("n9#1",), known=0)
        assert comes(lambda: _grants(paused), 10)
        assert expelled.claim(1, other, ("n9#1",), known=0) == (False, paused.look())


def _grants(terms_of_node: TermStore) -> bool:
    try:
        return terms_of_node.claim(2, CONTACT, ("n0#1",), known=1)[0]
    except StoreUnreachableError:
        return False


def test_a_store_that_nobody_can_have_known_grants_a_term_at_once_and_another_one_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job begins without waiting for survivors that there cannot be."""
    secret = JobSecret.generate()
    with StoreServer() as host:
        is_granted, _ = terms(StoreConnection(host.endpoint), secret).claim(1, CONTACT, ("n0#1",), known=0)
        assert is_granted
        endpoint = host.endpoint
    monkeypatch.setattr(store, "SETTLED_S", 0.2)
    with StoreServer(endpoint):
        newcomer = terms(StoreConnection(endpoint), secret)
        with pytest.raises(StoreUnreachableError, match="has just begun"):
            newcomer.claim(1, CONTACT, ("n0#1",), known=0)
        assert comes(lambda: is_granted_at(newcomer), 10)


def test_a_leader_that_heals_does_not_take_the_term_of_a_faster_one_for_its_own() -> None:
    """Between its look and its write another agent gets a term."""

    class Overtaken(StoreConnection):
        def compare_set(self, key: str, expected: str | bytes, desired: str | bytes, /) -> bytes:
            if expected != desired and other is not None:
                other.claim(2, CONTACT, ("n0#1",), known=1)
            return super().compare_set(key, expected, desired)

    other, secret = None, JobSecret.generate()
    with StoreServer() as host:
        lead = terms(Overtaken(host.endpoint).connect(), secret)
        assert comes(lambda: is_granted_at(lead), 10)
        other = terms(StoreConnection(host.endpoint).connect(), secret)
        assert lead.heal(Term(term=2, lead="n1#1", address="tcp://127.0.0.1:2", members=("n1#1",))) == Term()
        assert other.look().lead == "n0#1"


def is_granted_at(newcomer: TermStore) -> bool:
    """Whether the first term is granted now."""
    try:
        return newcomer.claim(1, CONTACT, ("n0#1",), known=0)[0]
    except StoreUnreachableError:
        return False


class _Relay:
    """A port that passes on what it gets, while `is_open`."""

    def __init__(self, port: int) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._target = port
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            there = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [here, there]
            for ends in ((here, there), (there, here)):
                thread = threading.Thread(target=self._pass_on, args=ends)
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(4096):
                if self.is_open.is_set():
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def __enter__(self) -> "_Relay":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()
