"""The two devices of the machine, and the wire between them."""

import subprocess
from pathlib import Path

HOSTS = ("10.8.0.1", "10.8.0.2")
WIRES = ("wire-a", "wire-b")


def packets_of(wire: str) -> int:
    """Packets that left at this end of the wire so far."""
    return int(Path(f"/sys/class/net/{wire}/statistics/tx_packets").read_text(encoding="ascii"))


def bytes_of(wire: str) -> int:
    """Bytes that left at this end of the wire so far."""
    return int(Path(f"/sys/class/net/{wire}/statistics/tx_bytes").read_text(encoding="ascii"))


def tool(command: str) -> str:
    """Run `ip`, `tc` or another tool of the machine; returns what it prints."""
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def cut_wire() -> None:
    """Take the link down. The kernel forgets the routes that lead over it."""
    tool(f"ip link set {WIRES[0]} down")


def mend_wire() -> None:
    """Take it up again, with its routes."""
    for wire in WIRES:
        tool(f"ip link set {wire} up")
    tool(f"ip route replace {HOSTS[1]} dev {WIRES[0]} src {HOSTS[0]} table 102")
    tool(f"ip route replace {HOSTS[0]} dev {WIRES[1]} src {HOSTS[1]} table 101")
