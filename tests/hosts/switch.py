"""A switch between hosts, as a process: it forwards Ethernet frames, and it delays, loses and blocks them.

    python tests/hosts/switch.py

Theory of operation. Each port is a TAP device, which the switch creates as `eth0` inside the network namespace of a
host: the kernel of that host sends frames to it, and the switch reads and writes them through a descriptor. So the
devices go away with the switch, whatever ended it. The switch learns which address lives behind which port and floods
frames to unknown ones, like any switch. It needs neither a compiler nor netem, which many kernels lack; a frame costs
about 9 us of one core, so a link carries 150 MB/s.

Commands come as JSON objects, one a line, on standard input; each is answered with a line on standard output. At the
end of its input the switch ends.

    {"plug": "a", "pid": 7}          make eth0 in the network namespace of process 7, as port "a"
    {"unplug": "a"}                  remove it
    {"block": [["a", "b"]]}          drop every frame from "a" to "b", and no other: replaces what was blocked before
    {"carrier": "a", "up": false}    the cable of "a" is pulled out, or back in
    {"delay_s": 0.02}                every frame takes so long from now on
    {"loss": 0.01}                   this share of the frames is lost from now on, drawn with a fixed seed
    {}                               nothing; the answer says what happened

Every answer is {"forwarded": N, "blocked": N, "lost": N}: frames since the start. Linux only, needs root.
"""

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
TUNSETCARRIER = 0x400454E2
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
MAX_FRAME = 1 << 14
MAX_WAITING = 1 << 16
"""Frames on their way while there is delay; more than that are lost, like in a full queue."""
BURST = 64
"""Frames of one port before the others get their turn."""

libc = ctypes.CDLL(None, use_errno=True)


def set_namespace(descriptor: int, kind: int) -> None:
    """Move this process into a namespace."""
    if libc.setns(descriptor, kind):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def make_tap(pid: int) -> int:
    """Create the TAP device eth0 in the network namespace of a process; returns its descriptor."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    theirs = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        set_namespace(theirs, CLONE_NEWNET)
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TAP | IFF_NO_PI))
        return tap
    finally:
        set_namespace(own, CLONE_NEWNET)
        os.close(own)
        os.close(theirs)


class Switch:
    """The ports, and what happens to frames between them."""

    def __init__(self) -> None:
        self._taps: dict[str, int] = {}
        self._ports: dict[int, str] = {}
        self._learned: dict[bytes, str] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._down: set[str] = set()
        self._delay_s = self._loss = 0.0
        self._rng = random.Random(1)
        self._waiting: list[tuple[float, int, str, bytes]] = []
        self._num_waited = 0
        self._counts = {"forwarded": 0, "blocked": 0, "lost": 0}
        self._epoll = select.epoll()

    def serve(self) -> None:
        """Forward frames and obey commands until standard input ends."""
        commands = sys.stdin.fileno()
        os.set_blocking(commands, False)
        self._epoll.register(commands, select.EPOLLIN)
        rest = b""
        while True:
            for descriptor, _ in self._epoll.poll(self._wait_s()):
                if descriptor != commands:
                    self._read(descriptor)
                    continue
                if not (text := os.read(commands, 1 << 16)):
                    return
                *lines, rest = (rest + text).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
                    print(json.dumps(self._counts), flush=True)
            self._send_due()

    def _obey(self, command: dict[str, Any]) -> None:
        if "plug" in command:
            tap = make_tap(command["pid"])
            self._taps[command["plug"]], self._ports[tap] = tap, command["plug"]
            self._epoll.register(tap, select.EPOLLIN)
        if (port := command.get("unplug")) in self._taps:
            tap = self._taps.pop(port)
            del self._ports[tap]
            self._epoll.unregister(tap)
            os.close(tap)
        if "block" in command:
            self._blocked = {(source, target) for source, target in command["block"]}
        if "carrier" in command:
            port, is_up = command["carrier"], command["up"]
            (self._down.discard if is_up else self._down.add)(port)
            fcntl.ioctl(self._taps[port], TUNSETCARRIER, struct.pack("i", is_up))
        self._delay_s = command.get("delay_s", self._delay_s)
        self._loss = command.get("loss", self._loss)

    def _read(self, tap: int) -> None:
        for _ in range(BURST):
            if (source := self._ports.get(tap)) is None:
                return
            try:
                frame = os.read(tap, MAX_FRAME)
            except OSError:  # nothing more; or the host is gone, and its device with it
                return
            self._learned[frame[6:12]] = source
            for target in self._targets(frame, source):
                self._forward(frame, source, target)

    def _targets(self, frame: bytes, source: str) -> Iterator[str]:
        """Where a frame goes: to one port, or to all others."""
        is_for_one = not frame[0] & 1
        if is_for_one and (port := self._learned.get(frame[:6])) in self._taps:
            yield port
        else:
            yield from [port for port in self._taps if port != source]

    def _forward(self, frame: bytes, source: str, target: str) -> None:
        if source == target:
            return
        if (source, target) in self._blocked or source in self._down or target in self._down:
            self._counts["blocked"] += 1
        elif (self._loss and self._rng.random() < self._loss) or len(self._waiting) >= MAX_WAITING:
            self._counts["lost"] += 1
        elif self._delay_s:
            self._num_waited += 1  # two frames of one instant keep their order
            heapq.heappush(self._waiting, (time.monotonic() + self._delay_s, self._num_waited, target, frame))
        else:
            self._write(frame, target)

    def _wait_s(self) -> float | None:
        return max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None

    def _send_due(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(self._waiting)
            self._write(frame, target)

    def _write(self, frame: bytes, target: str) -> None:
        self._counts["forwarded"] += 1
        try:
            os.write(self._taps[target], frame)
        except (OSError, KeyError):  # its queue is full, or the host is gone
            self._counts["lost"] += 1


if __name__ == "__main__":
    Switch().serve()
