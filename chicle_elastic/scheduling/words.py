"""How reasons and log lines speak of sizes and numbers."""

from collections.abc import Iterable

from chicle_elastic.ids import NodeId


def bytes_text(size: int) -> str:
    """A size for people: "9.2 MiB"."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{size} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def count_text(count: int, thing: str) -> str:
    """A number of things: "1 chunk", "3 chunks"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def tally_text(nodes: Iterable[NodeId]) -> str:
    """How often each node occurs: "n1 (4), n2 (3)"."""
    counts: dict[NodeId, int] = {}
    for node in nodes:
        counts[node] = counts.get(node, 0) + 1
    return ", ".join(f"{node} ({count})" for node, count in sorted(counts.items()))
