"""What a chart shows of the nodes of an iteration: a curve each while they are few, a band of all of them otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

MAX_CURVES = 16  # nodes with a curve each; of more the band alone is drawn, because one of 64 lines is not to be found


@dataclass(slots=True)
class Stay:
    """When a node was there; `last` is None as long as it is."""

    first: int
    last: int | None = None


class NodeCurves:
    """Turns the chunks and seconds of iterations into scalars."""

    def __init__(self) -> None:
        self._present: frozenset[str] = frozenset()
        self._drawn: frozenset[str] = frozenset()
        # when each node was there, in the order in which they came; a node that comes back has a stay more
        self.stays: dict[str, list[Stay]] = {}

    def scalars(self, iteration: int, chunks: Mapping[str, int], seconds: Mapping[str, float]) -> dict[str, float]:
        """Scalars by tag of one iteration. They are `chunks/NODE` and `seconds/NODE`; a node that has left has 0 chunks
        once, and then its curves end. With two nodes and more there are `nodes/chunks_min`, `_median` and `_max`, and
        the same of `seconds`."""
        present = frozenset([*chunks, *seconds])
        for node in sorted(present - self._present):
            self.stays.setdefault(node, []).append(Stay(iteration))
        for node in self._present - present:
            self.stays[node][-1].last = iteration - 1
        found: dict[str, float] = {f"chunks/{node}": 0 for node in sorted(self._drawn - present)}
        self._present = present
        self._drawn = present if len(present) <= MAX_CURVES else frozenset()
        if self._drawn:
            found |= {f"chunks/{node}": count for node, count in chunks.items()}
            found |= {f"seconds/{node}": duration_s for node, duration_s in seconds.items()}
        if len(present) > 1:
            found |= _band("chunks", chunks) | _band("seconds", seconds)
        return found

    @property
    def members_text(self) -> str:
        """A Markdown table of the nodes, when they came and when they left."""
        lines = ["| node | from iteration | to iteration |", "| --- | --- | --- |"]
        lines += [
            f"| {node} | {stay.first} | {'is here' if stay.last is None else stay.last} |"
            for node, stays in self.stays.items()
            for stay in stays
        ]
        return f"**{len(self._present)} nodes**\n\n" + "\n".join(lines)

    @property
    def present(self) -> frozenset[str]:
        """Nodes of the latest iteration."""
        return self._present


def _band(name: str, values: Mapping[str, float]) -> dict[str, float]:
    if not values:
        return {}
    known = list(values.values())
    return {f"nodes/{name}_min": min(known), f"nodes/{name}_median": median(known), f"nodes/{name}_max": max(known)}
