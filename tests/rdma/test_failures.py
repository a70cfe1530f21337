"""What goes wrong on a wire or at the other end is a named error in time, and the next connection works."""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.errors import PeerLostError, ProtocolError
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports.base import Pull, Region
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.verbs.channel import SUCCESS
from chicle_elastic.transports.verbs.failures import (
    QueuePairError,
    RemoteAccessError,
    RetriesExceededError,
)
from chicle_elastic.transports.verbs.queue_pair import ALARM, QueuePair
from chicle_elastic.transports.verbs.stream import Stream
from chicle_elastic.transports.verbs.transport import VerbsTransport
from tests.rdma.channels import NUM_SLOTS, SLOT_BYTES, Side, connected, read, two_sides
from tests.rdma.devices import HOSTS, WIRES, cut_wire, mend_wire, tool
from tests.timeouts import timeout_s

TIMEOUT_S = timeout_s(10)

# Serves one arena, tells its address, and waits to be killed.
OWNER = """
import sys
from pathlib import Path
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.verbs.transport import VerbsTransport
arena = Arena.create(16, slot_bytes=1 << 20)
transport = VerbsTransport("tcp://10.8.0.1:0", JobSecret.load(Path(sys.argv[1])), name="owner")
transport.register(arena)
print(transport.address, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    """An owner and a reader."""
    with two_sides() as sides:
        yield sides


def test_queue_pairs_are_made_while_others_are_closed(sides: tuple[Side, Side]) -> None:
    """By two threads: a new one finds its own event file, though numbers of open files come free meanwhile."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            each = [pool.submit(lambda: [QueuePair(sides[0].device).close() for _ in range(150)]) for _ in range(2)]
        assert [future.exception() for future in each] == [None, None]
    finally:
        sys.setswitchinterval(interval_s)


def test_an_end_that_does_not_say_how_long_its_pieces_are_is_not_connected_to(sides: tuple[Side, Side]) -> None:
    """As one of another release might."""
    ours, theirs = (Stream(side.device, slot_bytes=4096, peer="n1") for side in sides)
    try:
        content = json.loads(theirs.describe())
        del content["slot_bytes"]
        with pytest.raises(ProtocolError):
            ours.connect(json.dumps(content).encode())
    finally:
        ours.close()
        theirs.close()


def assert_recovers(owner: Side, reader: Side) -> None:
    """A new pair of channels on the same memory works."""
    reader.arena.array(NUM_SLOTS - 1)[:] = 0
    with connected(owner, reader) as (_, ours):
        assert read(ours, reader, owner.key, timeout_s=TIMEOUT_S) == owner.arena.view(0)


@dataclasses.dataclass
class Transports:
    """An owner with an arena, and a reader with another."""

    owner: VerbsTransport
    arena: Arena
    reader: VerbsTransport
    target: Arena

    def fetch_all(self, timeout_s: float = TIMEOUT_S) -> list[Exception | None]:
        """All slots, into the same ones of the target."""
        pulls = [Pull(Region(0, self.arena.offset(slot), SLOT_BYTES), self.target.view(slot)) for slot in range(8)]
        return [error for _, error in self.reader.fetch_each(self.owner.address, pulls, timeout_s=timeout_s)]

    def assert_works(self) -> None:
        """Every byte is fetched."""
        for slot in range(8):
            self.target.array(slot)[:] = 0
        assert self.fetch_all() == [None] * 8
        for slot in range(8):
            assert self.target.view(slot) == self.arena.view(slot)


@pytest.fixture
def transports() -> Iterator[Transports]:
    """Of both devices."""
    secret = JobSecret.generate()
    with contextlib.ExitStack() as stack:
        arenas = [stack.enter_context(Arena.create(8, slot_bytes=SLOT_BYTES)) for _ in HOSTS]
        rng = np.random.default_rng(1)
        for slot in range(8):
            arenas[0].array(slot)[:] = rng.integers(0, 256, SLOT_BYTES, dtype=np.uint8)
        made = []
        for host, arena, name in zip(HOSTS, arenas, ("owner", "reader"), strict=True):
            transport = stack.enter_context(VerbsTransport(f"tcp://{host}:0", secret, name=name))
            transport.register(arena)
            made.append(transport)
        yield Transports(made[0], arenas[0], made[1], arenas[1])


def test_a_wrong_key_is_refused_by_the_card(sides: tuple[Side, Side]) -> None:
    """Not a byte is read; the queue pair is of no use any more, and says so."""
    owner, reader = sides
    wrong = dataclasses.replace(owner.key, key=owner.key.key ^ 0x55)
    with connected(owner, reader) as (_, ours):
        with pytest.raises(RemoteAccessError, match=r"a READ of 1048576 bytes at offset 0 of arena 0 failed \(REM_ACC"):
            read(ours, reader, wrong, timeout_s=TIMEOUT_S)
        with pytest.raises(QueuePairError, match="WR_FLUSH_ERR"):
            read(ours, reader, owner.key, timeout_s=TIMEOUT_S)
    assert not reader.arena.array(NUM_SLOTS - 1).any()
    assert_recovers(owner, reader)


def test_bytes_behind_the_arena_are_refused_by_the_card(sides: tuple[Side, Side]) -> None:
    """Even when the owner said that it is longer than it is: the last slot and one byte of what is behind it."""
    owner, reader = sides
    longer = dataclasses.replace(owner.key, size_bytes=2 * owner.key.size_bytes)
    with connected(owner, reader) as (_, ours), pytest.raises(RemoteAccessError, match="ask the owner again"):
        read(ours, reader, longer, timeout_s=TIMEOUT_S, offset=(NUM_SLOTS - 1) * SLOT_BYTES + 1)
    assert_recovers(owner, reader)


def test_a_card_that_answers_no_more_is_given_up(sides: tuple[Side, Side]) -> None:
    """The queue pair at the other end is gone, while its process still holds the connection."""
    owner, reader = sides
    with connected(owner, reader) as (theirs, ours):
        theirs.close()
        with pytest.raises(RetriesExceededError, match="RETRY_EXC_ERR"):
            read(ours, reader, owner.key, timeout_s=TIMEOUT_S)
    assert_recovers(owner, reader)


def test_a_hang_up_ends_a_read_before_the_card_gives_up(sides: tuple[Side, Side]) -> None:
    """The kernel closes the sockets of a process that dies, and whoever waits for its card looks at them, too."""
    owner, reader = sides
    socks = socket.socketpair()
    with connected(owner, reader, socks) as (theirs, ours):
        theirs.close()
        socks[0].close()
        with pytest.raises(PeerLostError, match="the other closed the connection"):
            read(ours, reader, owner.key, timeout_s=TIMEOUT_S)


def test_a_time_out_ends_a_read(sides: tuple[Side, Side]) -> None:
    """Before the card gives up, when it is shorter than the tries of the card."""
    owner, reader = sides
    with connected(owner, reader) as (theirs, ours):
        theirs.close()
        with pytest.raises(PeerLostError, match=r"the other did not answer within 0.05 s"):
            read(ours, reader, owner.key, timeout_s=0.05)
    assert_recovers(owner, reader)


def test_an_error_of_a_queue_pair_raises_the_alarm(sides: tuple[Side, Side]) -> None:
    """So that a READ of which the card only says that it succeeded is not believed."""
    owner, reader = sides
    with contextlib.closing(QueuePair(owner.device)) as theirs, contextlib.closing(QueuePair(reader.device)) as ours:
        ours.post_receive()
        ours.connect(theirs.end_point, peer="the other")
        theirs.connect(ours.end_point, peer="the other")
        place = reader.memory.place_of(reader.arena.view(0))
        assert place is not None
        wrong = owner.key.key ^ 0x55
        ours.post_read(
            1, address=place[0], size_bytes=64, key=place[1], their_address=owner.key.address, their_key=wrong
        )
        found: dict[int, int] = {}
        deadline = Deadline(TIMEOUT_S)
        while ALARM not in found:
            assert deadline.left_s(), f"no alarm; completions are {found}"
            found.update({each.work: each.status for each in ours.completions()})
        assert found[1] != SUCCESS
        assert found[ALARM] != SUCCESS


def test_a_wire_that_is_cut_is_an_error_until_it_is_mended(transports: Transports) -> None:
    """All pulls end, and the transport makes new queue pairs once there is a way again."""
    transports.assert_works()
    cut_wire()
    try:
        errors = transports.fetch_all()
        assert [type(error) for error in errors] == [RetriesExceededError] * 8
        for error in transports.fetch_all():
            assert isinstance(error, QueuePairError)
            assert "finds no way to reader at" in str(error)
    finally:
        mend_wire()
    transports.assert_works()


def test_no_byte_is_wrong_when_packets_are_lost(transports: Transports) -> None:
    """One in a hundred, both ways: the cards send them again."""
    for wire_ in WIRES:
        tool(f"tc qdisc add dev {wire_} root netem loss 1%")
    try:
        transports.assert_works()
        lost = sum(int(re.findall(r"dropped (\d+)", tool(f"tc -s qdisc show dev {wire_}"))[0]) for wire_ in WIRES)
    finally:
        for wire_ in WIRES:
            tool(f"tc qdisc del dev {wire_} root")
    assert lost, "nothing was shown"


def test_an_owner_that_is_killed_in_the_middle_is_noticed(tmp_path: Path) -> None:
    """Pulls that had not come by then end with an error; those that had are right."""
    secret = JobSecret.generate()
    secret.save(tmp_path / "secret")
    target = Arena.create(16, slot_bytes=SLOT_BYTES)
    with (
        target,
        subprocess.Popen(
            [sys.executable, "-c", OWNER, str(tmp_path / "secret")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
        VerbsTransport(f"tcp://{HOSTS[1]}:0", secret, name="reader") as reader,
    ):
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        reader.register(target)
        pulls = [Pull(Region(0, slot * SLOT_BYTES, SLOT_BYTES), target.view(slot)) for slot in range(16)] * 4
        errors = []
        for number, (_, error) in enumerate(reader.fetch_each(address, pulls, timeout_s=TIMEOUT_S)):
            errors.append(error)
            if number == 2:
                os.kill(process.pid, signal.SIGKILL)
        lost = list(itertools.dropwhile(lambda error: error is None, errors))
        assert len(errors) == 64
        assert len(lost) > 32
        assert all(isinstance(error, PeerLostError) for error in lost)
