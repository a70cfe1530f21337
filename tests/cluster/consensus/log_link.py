"""A connection of the virtual network."""

from dataclasses import dataclass


@dataclass(slots=True)
class Link:
    """One direction of a connection; when an end dies, what is on its way may arrive or not."""

    last_s: float = 0.0
    is_open: bool = True
    is_over: bool = False
    dies_after: float | None = None
