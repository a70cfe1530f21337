"""What holds of a ledger between two events; after each event of a simulated job it is checked."""

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.node_chunks import PROMISED, Phase


class InvariantError(AssertionError):
    """The ledger contradicts itself: a fault of the scheduler. The message begins with the name of the invariant."""


def check_ledger(ledger: Ledger) -> None:
    """Test every invariant of a ledger, in time proportional to its size. Raises InvariantError for the first one that
    does not hold, by name."""
    freeing: set[tuple[NodeId, ChunkId]] = set()
    owners: dict[ChunkId, NodeId] = {}
    for node, held in ledger.node_chunks.items():
        used = rows = planned = owned_rows = owned_bytes = 0
        for chunk, phase in held.copies.items():
            info = ledger.info(chunk)
            used += info.size_bytes
            planned += info.size_bytes if phase not in (Phase.STRAY, Phase.FREEING) else 0
            rows += info.num_rows if phase in PROMISED else 0
            if phase is Phase.FREEING:
                freeing.add((node, chunk))
            if phase is Phase.OWNED:
                owned_rows, owned_bytes = owned_rows + info.num_rows, owned_bytes + info.size_bytes
                _require(
                    held.least_rows <= info.num_rows and held.least_bytes <= info.size_bytes,
                    "least is least",
                    f"{node} owns {info}, booked {held.least_rows} rows and {held.least_bytes} bytes at least",
                )
                _require(chunk not in owners, "one owner", f"chunk {chunk}: {owners.get(chunk)} and {node}")
                owners[chunk] = node
        _require(used == held.used_bytes, "bytes add up", f"{node} holds {used}, booked {held.used_bytes}")
        _require(rows == held.num_rows, "rows add up", f"{node} has {rows}, booked {held.num_rows}")
        _require(
            (owned_rows, owned_bytes) == (held.owned_rows, held.owned_bytes),
            "owned adds up",
            f"{node} owns {owned_rows} rows, {owned_bytes} bytes; booked {held.owned_rows}, {held.owned_bytes}",
        )
        _require(
            held.capacity_bytes is None or planned <= held.capacity_bytes,
            "within capacity",
            f"{node} was given {planned} bytes of {held.capacity_bytes}",
        )
        owned = {chunk for chunk, phase in held.copies.items() if phase is Phase.OWNED}
        _require(owned == held.owned.keys(), "owned list", f"{node} owns {owned}, booked {set(held.owned)}")
    for chunk, entry in ledger._entries.items():
        _require(entry.owner == owners.get(chunk), "owner holds", f"chunk {chunk}: {entry.owner}")
        _require((entry.owner is None) == (chunk in ledger._missing), "missing or owned", f"chunk {chunk}")
    _require(freeing == ledger.freeing.keys(), "frees add up", f"{freeing}, booked {set(ledger.freeing)}")


def _require(condition: bool, name: str, details: str) -> None:
    if not condition:
        raise InvariantError(f"{name}: {details}")
