"""The contract of `transports.base`, as tests. A transport is whatever passes them:

    class TestTcp(TransportContract):
        uri = "tcp://127.0.0.1:0"
        transport = TcpTransport

Peers are real: other transports, raw sockets that break the rules, and a process that is killed. Needs pytest.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.arrival import ArrivingChunk
from chicle_elastic.chunks.views import Chunk, StateSpec
from chicle_elastic.errors import ChunkCorruptError, PeerLostError, ProtocolError, SecretError, UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports import addresses, exchange, wire
from chicle_elastic.transports.base import Pull, Region
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.handshake import prove_as_listener
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.sockets import Transport
from chicle_elastic.transports.wire import Kind
from tests.harness.impostor import Impostor, wait_for_the_end
from tests.timeouts import comes

NUM_SLOTS = 8
SLOT_BYTES = 1 << 20

# Serves one arena of three slots of sevens, tells its address, and waits to be killed.
OWNER = """
import sys
from pathlib import Path
from {module} import {name}
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports.secret import JobSecret
arena = Arena.create(3, slot_bytes=4096)
for slot in range(3):
    arena.view(slot)[:] = bytes([7]) * 4096
transport = {name}(sys.argv[1], JobSecret.load(Path(sys.argv[2])), name="owner")
transport.register(arena)
print(transport.address, flush=True)
sys.stdin.read()
"""


class TransportContract:
    """Every rule of `transports.sockets.Transport`; subclasses say which transport, and where it listens.

    One class because it is a list of tests, which subclasses inherit.
    """

    uri = ""
    """Where to listen; "{test}" is replaced by something of each test's own, "{number}" by a number."""
    transport: Callable[..., Transport]
    """Makes a transport from (address, secret, name=...)."""
    timeout_s = 10.0
    """How long anything may take that is not meant to be waited for."""

    @pytest.fixture
    def secret(self) -> JobSecret:
        """The secret of the job."""
        return JobSecret.generate()

    @pytest.fixture
    def address(self) -> Callable[[], str]:
        """Gives addresses to listen on."""
        test, numbers = secrets.token_hex(8), iter(range(100))
        return lambda: self.uri.format(test=test, number=next(numbers))

    @pytest.fixture
    def arena(self) -> Iterator[Arena]:
        """Eight slots of 1 MiB with random bytes."""
        with Arena.create(NUM_SLOTS, slot_bytes=SLOT_BYTES) as arena:
            rng = np.random.default_rng(0)
            for slot in range(NUM_SLOTS):
                arena.array(slot)[:] = rng.integers(0, 256, SLOT_BYTES, dtype=np.uint8)
            yield arena

    @pytest.fixture
    def owner(self, secret: JobSecret, address: Callable[[], str], arena: Arena) -> Iterator[Transport]:
        """A transport with the arena registered."""
        with contextlib.closing(self.make(address(), secret, "owner")) as owner:
            assert owner.register(arena) == 0
            yield owner

    @pytest.fixture
    def reader(self, secret: JobSecret, address: Callable[[], str]) -> Iterator[Transport]:
        """A transport that fetches."""
        with contextlib.closing(self.make(address(), secret, "reader")) as reader:
            yield reader

    def make(self, address: str, secret: JobSecret, name: str) -> Transport:
        """A transport of the kind under test."""
        return type(self).transport(address, secret, name=name)

    def fetch(self, reader: Transport, address: str, region: Region) -> bytearray:
        """The bytes of a region."""
        content = bytearray(region.size_bytes)
        reader.fetch(address, region, memoryview(content), timeout_s=self.timeout_s)
        return content

    def assert_serves(self, reader: Transport, owner: Transport, arena: Arena) -> None:
        """A fetch works now."""
        assert self.fetch(reader, owner.address, Region(0, 0, 4096)) == arena.view(0)[:4096]

    def call(self, owner: Transport) -> socket.socket:
        """A raw connection to a transport, without a word said."""
        connect = addresses.connect_unix if owner.address.startswith("unix:") else addresses.connect_tcp
        return connect(owner.address, timeout_s=self.timeout_s)

    # What it is for.

    @pytest.mark.parametrize(
        ("offset", "size_bytes"), [(0, 1), (1, 63), (64, 4096), (SLOT_BYTES - 1, SLOT_BYTES + 2), (0, NUM_SLOTS << 20)]
    )
    def test_a_region_arrives_byte_for_byte(
        self, owner: Transport, reader: Transport, arena: Arena, offset: int, size_bytes: int
    ) -> None:
        """Whatever its offset and length, up to the whole arena."""
        whole = b"".join(bytes(arena.view(slot)) for slot in range(NUM_SLOTS))
        content = self.fetch(reader, owner.address, Region(0, offset, size_bytes))
        assert content == whole[offset : offset + size_bytes]

    def test_bytes_behind_the_region_are_left_alone(self, owner: Transport, reader: Transport, arena: Arena) -> None:
        """The slot of a neighbour begins right behind this one."""
        with Arena.create(2, slot_bytes=4096) as target:
            reader.fetch(owner.address, Region(0, 100, 4096), target.view(0), timeout_s=self.timeout_s)
            assert target.view(0) == arena.view(0)[100 : 100 + 4096]
            assert not target.array(1).any()

    def test_the_present_bytes_are_fetched(self, owner: Transport, reader: Transport, arena: Arena) -> None:
        """State changes between two fetches; nothing is kept from the first."""
        self.fetch(reader, owner.address, Region(0, 0, 4096))
        arena.array(0)[:4096] += 1
        self.assert_serves(reader, owner, arena)

    def test_every_arena_has_its_number(self, owner: Transport, reader: Transport) -> None:
        """Stores grow by arenas while peers are connected."""
        self.fetch(reader, owner.address, Region(0, 0, 64))
        with Arena.create(1, slot_bytes=64) as second:
            second.array(0)[:] = 9
            assert owner.register(second) == 1
            assert self.fetch(reader, owner.address, Region(1, 0, 64)) == bytes([9]) * 64

    def test_registered_memory_outlives_the_close_of_its_arena(self, owner: Transport, reader: Transport) -> None:
        """A descriptor that was closed may be that of another file by now; it is not served from."""
        with Arena.create(1, slot_bytes=64) as second:
            second.array(0)[:] = 9
            owner.register(second)
        assert self.fetch(reader, owner.address, Region(1, 0, 64)) == bytes([9]) * 64

    def test_several_regions_come_in_order(self, owner: Transport, reader: Transport, arena: Arena) -> None:
        """Every pull is reported once, when all of its bytes are there."""
        with Arena.create(NUM_SLOTS, slot_bytes=SLOT_BYTES) as target:
            slots = [*range(NUM_SLOTS)] * 3
            pulls = [Pull(Region(0, arena.offset(slot), SLOT_BYTES), target.view(slot)) for slot in slots]
            done = []
            for pull, error in reader.fetch_each(owner.address, pulls, timeout_s=self.timeout_s):
                assert error is None
                assert pull.into == arena.view(pull.region.offset // SLOT_BYTES)
                done.append(pull)
            assert done == pulls

    def test_fetches_of_several_threads_do_not_mix(self, owner: Transport, reader: Transport, arena: Arena) -> None:
        """Pulls from one peer run at the same time."""

        def pull(slot: int) -> bool:
            return self.fetch(reader, owner.address, Region(0, arena.offset(slot), SLOT_BYTES)) == arena.view(slot)

        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(pull, list(range(NUM_SLOTS)) * 4))

    def test_a_check_sees_the_bytes_as_they_arrive(self, owner: Transport, reader: Transport, arena: Arena) -> None:
        """Rising numbers, and what they count is there."""
        content, seen = bytearray(3 << 20), []

        def check(num_bytes: int) -> None:
            seen.append(num_bytes)
            assert content[num_bytes - 1] == arena.view((num_bytes - 1) >> 20)[(num_bytes - 1) & 0xFFFFF]

        reader.fetch(owner.address, Region(0, 0, 3 << 20), memoryview(content), check=check, timeout_s=self.timeout_s)
        assert seen == sorted(set(seen))
        assert len(seen) > 1
        assert seen[-1] == 3 << 20

    # Bad requests: the caller is told, and everything goes on.

    @pytest.mark.parametrize(
        ("region", "message"),
        [
            (Region(1, 0, 64), "there is no arena 1"),
            (Region(-1, 0, 64), "there is no arena -1"),
            (Region(0, NUM_SLOTS << 20, 64), f"no 64 bytes at offset {NUM_SLOTS << 20} of arena 0"),
            (Region(0, (NUM_SLOTS << 20) - 63, 64), "ask the owner again"),
            (Region(0, -64, 64), "no 64 bytes at offset -64"),
            (Region(0, 1 << 80, 64), "of arena 0, which has 8388608 bytes"),
        ],
    )
    def test_an_unknown_region_is_refused_with_figures(
        self, owner: Transport, reader: Transport, arena: Arena, region: Region, message: str
    ) -> None:
        """Nothing outside the registered arenas is read."""
        with pytest.raises(ProtocolError, match=message):
            self.fetch(reader, owner.address, region)
        self.assert_serves(reader, owner, arena)

    def test_one_bad_region_does_not_spoil_the_others(self, owner: Transport, reader: Transport, arena: Arena) -> None:
        """Each pull has an end of its own."""
        regions = [Region(0, 0, 64), Region(5, 0, 64), Region(0, 64, 64), Region(0, 1 << 40, 64), Region(0, 128, 64)]
        pulls = [Pull(region, memoryview(bytearray(64))) for region in regions]
        errors = [error for _, error in reader.fetch_each(owner.address, pulls, timeout_s=self.timeout_s)]
        assert [isinstance(error, ProtocolError) for error in errors] == [False, True, False, True, False]
        assert [pulls[number].into == arena.view(0)[64 * number // 2 :][:64] for number in (0, 2, 4)] == [True] * 3

    def test_an_empty_list_of_regions_asks_nobody(self, reader: Transport) -> None:
        """A plan without moves has no error either."""
        assert list(reader.fetch_each(reader.address, [])) == []

    def test_a_buffer_that_does_not_fit_is_our_own_mistake(self, owner: Transport, reader: Transport) -> None:
        """Nothing is fetched into too little memory, or into memory that cannot be written."""
        numbers = memoryview(np.zeros(8).data)  # as many bytes, but eight items
        for buffer in (memoryview(bytearray(63)), memoryview(bytes(64)), numbers):
            with pytest.raises(UsageError, match="a region of 64 bytes cannot be fetched"):
                reader.fetch(owner.address, Region(0, 0, 64), buffer)

    def test_a_broken_crc_fails_its_chunk_only(self, owner: Transport, reader: Transport, arena: Arena) -> None:
        """A flipped bit is found before the commit; chunks behind it on the same connection are right."""
        sizes = [layout.encode(_chunk(number), arena.view(number)) for number in range(3)]
        arena.array(1)[sizes[1] // 2] ^= 4
        views = [memoryview(bytearray(size)) for size in sizes]
        checks = [
            ArrivingChunk(view, chunk_id=ChunkId(number), where="from owner") for number, view in enumerate(views)
        ]
        pulls = [
            Pull(Region(0, arena.offset(number), len(view)), view, check)
            for number, (view, check) in enumerate(zip(views, checks, strict=True))
        ]
        errors = [error for _, error in reader.fetch_each(owner.address, pulls, timeout_s=self.timeout_s)]
        assert errors[0] is None
        assert isinstance(errors[1], ChunkCorruptError)
        assert "from owner: chunk 1: the immutable part is damaged" in str(errors[1])
        assert errors[2] is None
        checks[2].finish()

    def test_what_a_check_finds_early_is_not_forgotten(self, owner: Transport, reader: Transport, arena: Arena) -> None:
        """Bytes that come after the wrong ones do not make up for them."""
        seen: list[int] = []

        def check(num_bytes: int) -> None:
            seen.append(num_bytes)
            if len(seen) == 1:
                raise ChunkCorruptError("the first piece is wrong")

        content = memoryview(bytearray(3 << 20))
        with pytest.raises(ChunkCorruptError, match="the first piece is wrong"):
            reader.fetch(owner.address, Region(0, 0, 3 << 20), content, check=check, timeout_s=self.timeout_s)
        assert seen[0] < 3 << 20
        self.assert_serves(reader, owner, arena)

    # Strangers: they get nothing, and no peer notices.

    def test_a_wrong_secret_is_refused_on_both_sides(
        self,
        owner: Transport,
        reader: Transport,
        arena: Arena,
        address: Callable[[], str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The caller gets an error, the owner a line in its log; the job goes on."""
        with contextlib.closing(self.make(address(), JobSecret.generate(), "stranger")) as stranger:
            with pytest.raises(SecretError, match="the same secret file"):
                self.fetch(stranger, owner.address, Region(0, 0, 64))
            with pytest.raises(SecretError, match="the same secret file"):
                self.fetch(reader, stranger.address, Region(0, 0, 64))
        assert comes(lambda: "it calls itself 'stranger') did not prove the secret" in caplog.text)
        self.assert_serves(reader, owner, arena)

    @pytest.mark.parametrize(
        ("words", "error"),
        [
            (wire.pack_json(Kind.FETCH, [0, 0, 64]), "ProtocolError"),
            (wire.pack_json(Kind.DESCRIPTOR, 0), "ProtocolError"),
            (wire.pack_json(Kind.MESSAGE, "hello"), "ProtocolError"),
            (wire.pack_json(Kind.HELLO, {"purpose": "link", "name": "x", "nonce": "00"}), "ProtocolError"),
            (wire.pack_json(Kind.HELLO, ["no", "greeting"]), "ProtocolError"),
            (wire.pack_header(Kind.HELLO, 4) + b"\x80\x04N.", "ProtocolError"),
            (wire.HEADER.pack(wire.MAGIC, wire.VERSION + 1, Kind.HELLO, 64), "VersionError"),
            (wire.HEADER.pack(wire.MAGIC, wire.VERSION, 999, 64), "ProtocolError"),
            (wire.pack_header(Kind.HELLO, 1 << 60), "FrameLengthError"),
            (b"GET / HTTP/1.1\r\nHost: chicle\r\n\r\n", "ProtocolError"),
        ],
        ids=["fetch", "descriptor", "message", "purpose", "json", "pickle", "version", "kind", "length", "http"],
    )
    def test_who_does_not_greet_is_refused_with_the_reason(
        self, owner: Transport, reader: Transport, arena: Arena, words: bytes, error: str
    ) -> None:
        """Not a byte of an arena leaves before the secret is proven; the connection ends."""
        with self.call(owner) as sock:
            sock.sendall(words)
            deadline = Deadline(self.timeout_s)
            with pytest.raises(wire.RefusedError) as refused:
                exchange.receive_header(sock, {Kind.REFUSED: wire.REASON_BYTES}, deadline, peer="owner")
            assert refused.value.error == error
            with pytest.raises(PeerLostError):
                exchange.receive_header(sock, {}, deadline, peer="owner")
        self.assert_serves(reader, owner, arena)

    @pytest.mark.parametrize("words", [b"", wire.MAGIC, wire.pack_header(Kind.HELLO, 100) + b"{"])
    def test_a_frame_that_is_cut_hurts_nobody_else(
        self, owner: Transport, reader: Transport, arena: Arena, words: bytes
    ) -> None:
        """A peer that hangs up in the middle of a word is forgotten."""
        with self.call(owner) as sock:
            sock.sendall(words)
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(self.timeout_s)
            assert sock.recv(1) == b""
        self.assert_serves(reader, owner, arena)

    # Peers that are not what they should be.

    @pytest.mark.parametrize(
        ("answer", "error", "message"),
        [
            (wire.HEADER.pack(wire.MAGIC, 7, Kind.HELLO, 64), wire.VersionError, "speaks version 7 .* version 3"),
            (wire.pack_header(Kind.HELLO, 1 << 40), wire.FrameLengthError, "announces a HELLO frame of 1099511627776"),
            (wire.pack_header(Kind.HELLO, 100) + b"{", wire.TruncatedFrameError, "after 1 of 100 bytes"),
            (wire.pack_header(Kind.HELLO, 100)[:5], wire.TruncatedFrameError, "after 5 of 16 bytes"),
            (b"", PeerLostError, "closed the connection"),
            (b"SSH-2.0-OpenSSH_9.2p1\r\n", ProtocolError, "53 53 48 2d where a frame begins"),
        ],
    )
    def test_a_listener_that_is_no_agent_is_named(
        self, reader: Transport, address: Callable[[], str], answer: bytes, error: type[Exception], message: str
    ) -> None:
        """The error says who answered, and what."""

        def script(sock: socket.socket) -> None:
            sock.recv(1 << 16)
            sock.sendall(answer)

        with Impostor(address(), script) as impostor, pytest.raises(error, match=message) as raised:
            self.fetch(reader, impostor.address, Region(0, 0, 64))
        assert impostor.address in str(raised.value)

    def test_a_listener_without_the_secret_gets_no_request(self, reader: Transport, address: Callable[[], str]) -> None:
        """Its proof is looked at before anything is asked of it."""
        heard = bytearray()

        def script(sock: socket.socket) -> None:
            hello = wire.pack_json(Kind.HELLO, {"purpose": reader.scheme, "name": "owner", "nonce": "00"})
            sock.sendall(hello + wire.pack_header(Kind.PROOF, 32) + bytes(32))
            while data := sock.recv(1 << 16):
                heard.extend(data)

        with Impostor(address(), script) as impostor, pytest.raises(SecretError, match="did not prove the secret"):
            self.fetch(reader, impostor.address, Region(0, 0, 64))
        assert heard.count(wire.MAGIC) == 2  # greeting and proof

    def test_a_silent_peer_is_given_up(self, secret: JobSecret, reader: Transport, address: Callable[[], str]) -> None:
        """Whether it is silent from the beginning or after the proof; all pulls end."""
        pulls = [Pull(Region(0, 0, 64), memoryview(bytearray(64))) for _ in range(20)]
        for script in (wait_for_the_end, self.silent_after_proof(secret, threading.Event())):
            with Impostor(address(), script) as impostor:
                found = list(reader.fetch_each(impostor.address, pulls, timeout_s=0.2))
            assert [pull for pull, _ in found] == pulls
            for _, error in found:
                assert isinstance(error, PeerLostError)
                assert "did not answer within 0.2 s" in str(error)

    def test_disconnect_wakes_a_fetch(self, secret: JobSecret, reader: Transport, address: Callable[[], str]) -> None:
        """The agent finds out by heartbeat that a peer is silent, long before a transfer gives up."""
        is_waiting = threading.Event()
        script = self.silent_after_proof(secret, is_waiting)
        with Impostor(address(), script) as impostor, ThreadPoolExecutor(1) as threads:
            future = threads.submit(self.fetch, reader, impostor.address, Region(0, 0, 64))
            assert is_waiting.wait(self.timeout_s)
            reader.disconnect(impostor.address)
            assert isinstance(future.exception(self.timeout_s), PeerLostError)

    def test_close_wakes_a_fetch_and_ends_everything(
        self, secret: JobSecret, reader: Transport, address: Callable[[], str]
    ) -> None:
        """And it may be called again."""
        is_waiting = threading.Event()
        script = self.silent_after_proof(secret, is_waiting)
        with Impostor(address(), script) as impostor, ThreadPoolExecutor(1) as threads:
            future = threads.submit(self.fetch, reader, impostor.address, Region(0, 0, 64))
            assert is_waiting.wait(self.timeout_s)
            reader.close()
            assert isinstance(future.exception(self.timeout_s), PeerLostError)
            with pytest.raises(PeerLostError, match="closed"):
                self.fetch(reader, impostor.address, Region(0, 0, 64))
        reader.close()

    def test_a_killed_peer_is_noticed_and_its_successor_is_found(
        self, reader: Transport, secret: JobSecret, address: Callable[[], str], tmp_path: Path
    ) -> None:
        """SIGKILL closes its sockets; a new process at the same address is connected to anew."""
        with self.owner_process(address(), tmp_path / "one", secret) as (process, listening_at):
            assert self.fetch(reader, listening_at, Region(0, 4096, 4096)) == bytes([7]) * 4096
            os.kill(process.pid, signal.SIGKILL)
            process.wait(self.timeout_s)
            with pytest.raises(PeerLostError, match="cannot be reached"):
                self.fetch(reader, listening_at, Region(0, 4096, 4096))
        with self.owner_process(listening_at, tmp_path / "two", secret) as (_, again_at):
            assert again_at == listening_at
            assert self.fetch(reader, listening_at, Region(0, 0, 4096)) == bytes([7]) * 4096

    def silent_after_proof(self, secret: JobSecret, is_waiting: threading.Event) -> Callable[[socket.socket], None]:
        """The script of a peer that has the secret, and stops in the middle of a request."""
        scheme = type(self).transport.scheme  # type: ignore[attr-defined]

        def script(sock: socket.socket) -> None:
            prove_as_listener(sock, secret, Deadline(self.timeout_s), purpose=scheme, name="owner", peer="reader")
            sock.settimeout(None)
            if sock.recv(1):
                is_waiting.set()
            wait_for_the_end(sock)

        return script

    @contextlib.contextmanager
    def owner_process(
        self, address: str, folder: Path, secret: JobSecret
    ) -> Iterator[tuple["subprocess.Popen[str]", str]]:
        """A process that serves an arena, and where."""
        folder.mkdir()
        secret.save(folder / "secret")
        program = OWNER.format(module=type(self).transport.__module__, name=type(self).transport.__name__)
        with subprocess.Popen(
            [sys.executable, "-c", program, address, str(folder / "secret")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                yield process, process.stdout.readline().strip()
            finally:
                process.kill()


def _chunk(number: int) -> Chunk:
    """A dense chunk with a state."""
    num_rows, spec = 1000, StateSpec(outputs=1, width=1)
    return Chunk(
        id=ChunkId(number),
        rows=np.random.default_rng(number).normal(size=(num_rows, 50)),
        targets=np.zeros(num_rows),
        row_ids=np.arange(num_rows),
        state=spec.zeros(num_rows),
    )
