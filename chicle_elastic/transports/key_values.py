"""A store of keys and values that processes share: one serves it, the others connect to it.

The rendezvous store and the round stores are such stores (`cluster.rendezvous.store`). A store has no access control:
any process that reaches its port can read and write it, so what matters in it is signed by its writers.

Theory of operation. A caller asks one thing at a time, as one frame (`wire`), and gets one frame back. One thread
serves all callers, and none of them can hold it up: it reads and writes as sockets have bytes and room. A caller that
waits for keys gets its answer when the last of them is written, or when its time is over. Every answer comes in the
order of the questions, so a connection on which an exchange has failed is closed, and of no more use.
"""

import contextlib
import logging
import selectors
import socket
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec

from chicle_elastic.closing import Closing
from chicle_elastic.errors import ProtocolError
from chicle_elastic.transports import wire
from chicle_elastic.transports.addresses import format_tcp, tune_tcp
from chicle_elastic.transports.exchange import Deadline, receive_header, receive_payload, send_frame
from chicle_elastic.transports.wire import HEADER, Kind

MAX_BYTES = 4 << 20  # of an operation. An answer may be longer: it has the values of many keys
MAX_ANSWER_BYTES = wire.MESSAGE_BYTES
READ_BYTES = 1 << 16
MOST_DIGITS = 20
MOST_WAIT_S = 60.0  # in which the server does nothing; strangers may ask for any time
OPERATION_S = 60.0

_ASKED = {Kind.ASK: MAX_BYTES}
_ANSWERED = {Kind.ANSWER: MAX_ANSWER_BYTES, Kind.REFUSED: wire.REASON_BYTES}

_log = logging.getLogger(__name__)


class Swap(msgspec.Struct, tag=True, array_like=True):
    """Write a value in place of the expected one; an empty one is expected of an absent key. Returns what the key holds
    now, or what was expected where it holds nothing."""

    key: str
    expected: bytes
    value: bytes
    answer: ClassVar[Any] = bytes


class Count(msgspec.Struct, tag=True, array_like=True):
    """Add to the decimal number that a key holds, 0 where it is absent; returns the sum."""

    key: str
    amount: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
    answer: ClassVar[Any] = int


class Take(msgspec.Struct, tag=True, array_like=True):
    """Wait for all of the keys; returns their values, or None when the time is over."""

    keys: list[str]
    wait_s: float
    answer: ClassVar[Any] = list[bytes] | None


class Put(Take, tag=True, array_like=True):
    """Write a value, then wait as `Take` does: one round trip for both."""

    key: str
    value: bytes


class Names(msgspec.Struct, tag=True, array_like=True):
    """Returns all keys."""

    answer: ClassVar[Any] = list[str]


class Drop(msgspec.Struct, tag=True, array_like=True):
    """Delete a key; returns whether it was there."""

    key: str
    answer: ClassVar[Any] = bool


Operation: TypeAlias = Swap | Count | Take | Put | Names | Drop


class KeyValueServer:
    """Serves a store in a thread of its own until `close`.

    Args:
        listener: Listening socket; it belongs to this object from now on.
    """

    def __init__(self, listener: socket.socket) -> None:
        import resource  # not on Windows

        self.values: dict[str, bytes] = {}  # what the store holds; with `lock` held, for the threads of this process
        self.lock = threading.Lock()  # see `values`
        self._listener = listener
        self._listener.setblocking(False)
        self._waiting: dict[str, set[_Caller]] = defaultdict(set)
        self._callers: set[_Caller] = set()
        # Strangers may connect and say nothing; this process needs descriptors for itself.
        self._most_callers = max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, 1)
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._thread = threading.Thread(target=self._serve, name="chicle-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server; every connection to it ends. May be called again."""
        with contextlib.suppress(OSError):
            self._wake_sender.send(b"!")
        self._thread.join()

    def _serve(self) -> None:
        is_open = True
        while is_open:
            now_s = time.monotonic()
            waiting = [caller for caller in self._callers if caller.asked is not None]
            for caller in waiting:
                if caller.end_s <= now_s:
                    self._answer_take(caller)
            ends_s = [caller.end_s for caller in waiting if caller.asked is not None]
            for key, _ in self._selector.select(min([MOST_WAIT_S, *(end_s - now_s for end_s in ends_s)])):
                if key.data is None:
                    is_open = False
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._callers:  # not hung up on a moment ago
                    self._attend(key.data)
        for caller in tuple(self._callers):
            self._hang_up(caller)
        self._selector.close()
        for sock in (self._listener, self._wake_receiver, self._wake_sender):
            sock.close()

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError as error:  # gone again; or no descriptor is left, and others may be given back
            if not isinstance(error, BlockingIOError | ConnectionError):
                _log.warning("the store cannot accept a connection: %s", error)
                time.sleep(0.1)
            return
        if len(self._callers) >= self._most_callers:
            _log.warning("the store refuses %s: it has %d callers", format_tcp(*address[:2]), len(self._callers))
            sock.close()
            return
        tune_tcp(sock)
        sock.setblocking(False)
        caller = _Caller(sock, format_tcp(*address[:2]))
        self._callers.add(caller)
        self._selector.register(sock, selectors.EVENT_READ, caller)

    def _attend(self, caller: "_Caller") -> None:
        """Write what a caller was answered; if it has all of that, read what it asks."""
        try:
            if not caller.to_send:
                asked = caller.read()
                if asked is not None:
                    self._do(caller, asked)
            self._write(caller)
        except OSError:
            self._hang_up(caller)
        except ProtocolError as error:
            self._refuse(caller, error)

    def _refuse(self, caller: "_Caller", error: ProtocolError) -> None:
        _log.warning("the store hangs up on a caller: %s", error)
        with contextlib.suppress(OSError):
            caller.sock.send(wire.pack_refusal(error))
        self._hang_up(caller)

    def _do(self, caller: "_Caller", asked: Operation) -> None:
        if isinstance(asked, Put):
            with self.lock:
                self.values[asked.key] = asked.value
            self._wrote(asked.key)
        if isinstance(asked, Take):
            caller.asked, caller.end_s = asked, time.monotonic() + asked.wait_s
            for key in asked.keys:
                self._waiting[key].add(caller)
            if self._has(asked.keys) or asked.wait_s <= 0:
                self._answer_take(caller)
            return
        with self.lock:
            answer, written = _applied(self.values, asked)
        caller.answer(answer)
        if written is not None:
            self._wrote(written)

    def _wrote(self, key: str) -> None:
        """Answer those that have waited for this key only."""
        for other in tuple(self._waiting.get(key, ())):
            if other.asked is not None and self._has(other.asked.keys):
                try:
                    self._answer_take(other)
                except ProtocolError as error:  # no fault of who has written
                    self._refuse(other, error)

    def _has(self, keys: Sequence[str]) -> bool:
        with self.lock:
            return all(key in self.values for key in keys)

    def _answer_take(self, caller: "_Caller") -> None:
        assert caller.asked is not None
        keys = caller.asked.keys
        self._forget(caller)
        with self.lock:
            found = [self.values.get(key) for key in keys]
        # Before it is made: a short question can name one long value a thousand times.
        num_bytes = sum(4 * len(value) // 3 + 8 for value in found if value is not None)
        if num_bytes > MAX_ANSWER_BYTES:
            raise ProtocolError(f"{caller.peer} asks for {num_bytes} bytes at once, and may have {MAX_ANSWER_BYTES}")
        caller.answer(None if None in found else found)
        self._watch(caller)

    def _write(self, caller: "_Caller") -> None:
        """Send as much as there is room for."""
        with contextlib.suppress(BlockingIOError):
            while caller.to_send:
                del caller.to_send[: caller.sock.send(caller.to_send)]
        self._watch(caller)

    def _watch(self, caller: "_Caller") -> None:
        wanted = selectors.EVENT_WRITE if caller.to_send else selectors.EVENT_READ
        if self._selector.get_key(caller.sock).events != wanted:
            self._selector.modify(caller.sock, wanted, caller)

    def _forget(self, caller: "_Caller") -> None:
        for key in () if caller.asked is None else caller.asked.keys:
            self._waiting[key].discard(caller)
            if not self._waiting[key]:
                del self._waiting[key]
        caller.asked = None

    def _hang_up(self, caller: "_Caller") -> None:
        self._forget(caller)
        self._callers.discard(caller)
        self._selector.unregister(caller.sock)
        caller.sock.close()


class _Caller:
    """A connection to the server, seen from there."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.sock, self.peer = sock, peer
        self.received, self.to_send = bytearray(), bytearray()
        self.asked: Take | None = None
        self.end_s = 0.0

    def read(self) -> Operation | None:
        """Read what there is; returns the operation that is whole now."""
        with contextlib.suppress(BlockingIOError):
            data = self.sock.recv(READ_BYTES)
            if not data:
                raise ConnectionError("it has ended")
            self.received += data
        if len(self.received) < HEADER.size:
            return None
        _, num_bytes = wire.unpack_header(self.received[: HEADER.size], _ASKED, peer=self.peer)
        if len(self.received) < HEADER.size + num_bytes:
            return None
        if self.asked is not None or len(self.received) > HEADER.size + num_bytes:
            raise ProtocolError(f"{self.peer} asks again before it has an answer")
        payload, self.received = bytes(self.received[HEADER.size :]), bytearray()
        try:
            return msgspec.json.decode(payload, type=Operation)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"{self.peer} asks for what no store does: {error}") from error

    def answer(self, value: Any) -> None:
        """Put an answer into the queue."""
        self.to_send += wire.pack_text(Kind.ANSWER, msgspec.json.encode(value))


def _applied(values: dict[str, bytes], asked: Operation) -> tuple[Any, str | None]:
    """Apply an operation that waits for nothing; returns its answer, and the key that it has written."""
    match asked:
        case Swap():
            if values.get(asked.key, b"") == asked.expected:
                values[asked.key] = asked.value
                return asked.value, asked.key
            return values.get(asked.key, asked.expected), None
        case Count():
            before = values.get(asked.key, b"0")
            if len(before) > MOST_DIGITS or not before.removeprefix(b"-").isdigit():
                raise ProtocolError(f"a caller counts up {asked.key[:100]!r}, which holds no number")
            values[asked.key] = b"%d" % (total := int(before) + asked.amount)
            return total, asked.key
        case Names():
            return list(values), None
        case Drop():
            return values.pop(asked.key, None) is not None, None
        case _:
            raise AssertionError(asked)


class KeyValueClient(Closing):
    """A connection to a store. Thread-safe; operations take turns. It is closed after an error, and when it is dropped.
    Raises OSError when no process listens there.

    Args:
        connect_s: How long connecting may take.

    Attributes:
        operation_s: How long the store may take to answer, beyond what an operation waits for.
    """

    def __init__(self, host: str, port: int, *, connect_s: float = OPERATION_S) -> None:
        self.port, self.operation_s = port, OPERATION_S
        self._peer = f"the store at {format_tcp(host, port)}"
        self._lock = threading.Lock()
        self._sock = socket.create_connection((host, port), timeout=connect_s)
        # Not __del__: in a cycle, as an error with its traceback makes one, the socket may go first, with a warning.
        self._close = weakref.finalize(self, self._sock.close)
        tune_tcp(self._sock)

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value. Raises PeerLostError when the store does not answer (whether it has executed the operation is
        not known), ProtocolError when what answers is no store. All operations do so."""
        self.trade(key, value, ())

    def get(self, key: str, *, wait_s: float = 0.0) -> bytes | None:
        """The value of a key, once it is there; None when it is not there in time."""
        found = self.get_all([key], wait_s=wait_s)
        return None if found is None else found[0]

    def get_all(self, keys: Sequence[str], *, wait_s: float = 0.0) -> list[bytes] | None:
        """The values of all keys, once they are there; None when one of them is not there in time."""
        found: list[bytes] | None = self._ask(Take(list(keys), wait_s), wait_s)
        return found

    def trade(self, key: str, value: str | bytes, keys: Sequence[str], *, wait_s: float = 0.0) -> list[bytes] | None:
        """Write a value, then return those of `keys` as `get_all` does; in one round trip."""
        found: list[bytes] | None = self._ask(Put(list(keys), wait_s, key, _as_bytes(value)), wait_s)
        return found

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes, /) -> bytes:
        """Write a value in place of the expected one, which is empty for an absent key. Returns what the key holds now,
        or `expected` where it holds nothing."""
        return bytes(self._ask(Swap(key, _as_bytes(expected), _as_bytes(desired))))

    def add(self, key: str, amount: int) -> int:
        """Add to the number that a key holds, 0 where it is absent; returns the sum."""
        return int(self._ask(Count(key, amount)))

    def list_keys(self) -> list[str]:
        """All keys."""
        return list(self._ask(Names()))

    def delete_key(self, key: str) -> bool:
        """Delete a key; returns whether it was there."""
        return bool(self._ask(Drop(key)))

    def shut_down(self) -> None:
        """End the connection; a thread that waits on it wakes up. From any thread."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. May be called again."""
        self._close()

    def _ask(self, asked: Operation, wait_s: float = 0.0) -> Any:
        frame = wire.pack_text(Kind.ASK, msgspec.json.encode(asked))
        with self._lock, contextlib.ExitStack() as on_error:
            on_error.callback(self.close)
            deadline = Deadline(wait_s + self.operation_s)
            send_frame(self._sock, frame, deadline, peer=self._peer)
            _, num_bytes = receive_header(self._sock, _ANSWERED, deadline, peer=self._peer)
            payload = receive_payload(self._sock, num_bytes, deadline, peer=self._peer)
            try:
                answer = msgspec.json.decode(payload, type=asked.answer)
            except (ValueError, RecursionError) as error:
                raise ProtocolError(f"{self._peer} gives an answer to another question: {error}") from error
            on_error.pop_all()
            return answer


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
