"""Two channels that are connected, without transports around them."""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from chicle_elastic.store.arena import Arena
from chicle_elastic.transports.base import Pull, Region
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.verbs.channel import Channel
from chicle_elastic.transports.verbs.device import Device, choose_port
from chicle_elastic.transports.verbs.memory import MemoryKey, RegisteredMemory
from tests.rdma.devices import HOSTS

NUM_SLOTS, SLOT_BYTES = 4, 1 << 20


@dataclass(frozen=True)
class Side:
    """One device, an arena registered with it."""

    device: Device
    memory: RegisteredMemory
    arena: Arena

    @property
    def key(self) -> MemoryKey:
        """Opens the arena."""
        return self.memory.key(0)


@contextlib.contextmanager
def two_sides() -> Iterator[tuple[Side, Side]]:
    """An owner, whose slots hold their numbers plus one, and a reader with empty slots."""
    with contextlib.ExitStack() as stack:
        sides = []
        for host in HOSTS:
            device = Device(choose_port(host))
            stack.callback(device.release)
            memory = RegisteredMemory(device)
            arena = stack.enter_context(Arena.create(NUM_SLOTS, slot_bytes=SLOT_BYTES))
            memory.add(arena)
            sides.append(Side(device, memory, arena))
        for slot in range(NUM_SLOTS):
            sides[0].arena.array(slot)[:] = slot + 1
        yield sides[0], sides[1]


@contextlib.contextmanager
def connected(
    owner: Side, reader: Side, socks: tuple[socket.socket, socket.socket] | None = None
) -> Iterator[tuple[Channel, Channel]]:
    """A channel of each of them; their sockets are silent."""
    with contextlib.ExitStack() as stack:
        socks = socks or socket.socketpair()
        channels = []
        for side, sock in zip((owner, reader), socks, strict=True):
            stack.callback(sock.close)
            channel = Channel(sock, side.device, side.memory, peer="the other")
            stack.callback(channel.close)
            channels.append(channel)
        channels[0].connect(channels[1].end_point)
        channels[1].connect(channels[0].end_point)
        yield channels[0], channels[1]


def read(channel: Channel, reader: Side, key: MemoryKey, *, timeout_s: float, offset: int = 0) -> memoryview:
    """Bytes of the owner's first slot in the reader's last one; raises what the channel does."""
    into = reader.arena.view(NUM_SLOTS - 1)
    channel.ask(Pull(Region(0, offset, SLOT_BYTES), into), key)
    error = channel.bring(Deadline(timeout_s))
    assert error is None
    return into
