"""How a chunk, or a part of it, comes from one node to another: one order, one word of the source, one fetch.

    order          part           when                                                  answer
    PrecopyChunk   rows           early, while tasks compute: rows never change         PrecopiesEnded
    CopyChunk      all or state   at a boundary; state where the target has the rows    ChunksCopied, CopyFailed

    at the source (`source`)  seal the state, unless only rows are asked for; tell the target where the part lies
    at the target (`target`)  reserve a slot -> fetch the part, verified on arrival -> commit; rows wait for their copy

All agents fold the log, so an order reaches both ends; at the target it may come before the word of the source or
after it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from chicle_elastic.ids import ChunkId
from chicle_elastic.scheduling import effects
from chicle_elastic.scheduling.codec import Count
from chicle_elastic.transports.base import Region

PLACES = "places"  # kind of the message in which a source says where chunks lie; its only field has the same name

Order: TypeAlias = effects.PrecopyChunk | effects.CopyChunk


class Part(Enum):
    """What is fetched of a chunk."""

    ROWS = "rows"
    STATE = "state"
    ALL = "all"


def part_of(order: Order) -> Part:
    """What the source offers: `ROWS`, or `ALL`, of which a target that has the rows fetches the state."""
    return Part.ROWS if isinstance(order, effects.PrecopyChunk) else Part.ALL


def number_of(order: Order) -> int:
    """Tells orders for the same part of a chunk apart; a later one has a higher number, or is a repetition."""
    return order.number if isinstance(order, effects.PrecopyChunk) else order.round


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a source has what was ordered."""

    chunk: ChunkId
    part: Part
    number: Count  # of the order
    region: Region | None = None  # the bytes; None where the source cannot give them
    error: str = ""


Places: TypeAlias = tuple[Place, ...]
