"""The network between the hosts of a lab: what is cut, what is slow, and how much of it struck."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SWITCH = Path(__file__).with_name("switch.py")
END_S = 10.0

Direction = tuple[str, str]


class Network:
    """A switch in a process of its own, and what it does to frames. A context manager that ends it.

    A cut is silent, like that of a firewall that drops: both ends keep their connections, and no reset arrives. Hosts
    are named.
    """

    def __init__(self) -> None:
        self._blocked: set[Direction] = set()
        self._switch = subprocess.Popen(
            [sys.executable, "-S", "-E", str(SWITCH)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests
        )

    def plug(self, host: str, pid: int) -> None:
        """Give the host whose network namespace process `pid` has the device eth0, without an address."""
        self._command(plug=host, pid=pid)

    def unplug(self, host: str) -> None:
        """The host is gone; what it held is forgotten."""
        self._command(unplug=host)

    def cut(self, *pairs: tuple[str, str]) -> None:
        """No frame passes between the two hosts of a pair, in neither direction."""
        self.cut_one_way(*pairs, *((b, a) for a, b in pairs))

    def cut_one_way(self, *directions: Direction) -> None:
        """No frame passes from the first host to the second; the other direction stays open."""
        self._block(self._blocked | set(directions))

    def part(self, *groups: Iterable[str]) -> None:
        """No frame passes between hosts of different groups; a host may be in several groups."""
        sets = [set(group) for group in groups]
        hosts = set[str]().union(*sets)
        self.cut(*((a, b) for a in hosts for b in hosts if a < b and not any({a, b} <= group for group in sets)))

    def heal(self) -> None:
        """Nothing is cut any more. Cables that were pulled out stay out."""
        self._block(set())

    def link_down(self, host: str) -> None:
        """Pull the cable of a host out: its device loses the carrier."""
        self._command(carrier=host, up=False)

    def link_up(self, host: str) -> None:
        """Put the cable of a host back in."""
        self._command(carrier=host, up=True)

    def delay(self, seconds: float) -> None:
        """Every frame takes so long, in each direction."""
        self._command(delay_s=seconds)

    def loss(self, share: float) -> None:
        """This share of the frames is lost."""
        self._command(loss=share)

    def counts(self) -> dict[str, int]:
        """Frames since the start that were "forwarded", "blocked" and "lost"."""
        return self._command()

    def close(self) -> None:
        """End the switch; its devices go with it."""
        if self._switch.stdin is None or self._switch.stdout is None or self._switch.stdin.closed:
            return
        self._switch.stdin.close()
        self._switch.wait(END_S)
        self._switch.stdout.close()

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _block(self, blocked: set[Direction]) -> None:
        self._blocked = blocked
        self._command(block=sorted(blocked))

    def _command(self, **fields: Any) -> dict[str, int]:
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        self._switch.stdin.write(json.dumps(fields) + "\n")
        self._switch.stdin.flush()
        answer = self._switch.stdout.readline()
        if not answer:
            raise RuntimeError(f"the switch ended with exit code {self._switch.wait()} at {fields}; see its stderr")
        return dict(json.loads(answer))
