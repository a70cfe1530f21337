"""How a chunk, or a part of it, comes from one node to another: one order, one word of the source, one fetch.

    order          part           when                                                  answer
    PrecopyChunks  rows           early, while tasks compute: rows never change         PrecopiesEnded
    CopyChunks     all or state   at a boundary; state where the target has the rows    ChunksCopied, CopyFailed

    at the source (`source`)  seal the state, unless only rows are asked for; tell the target where the part lies
    at the target (`target`)  reserve a slot -> fetch the part, verified on arrival -> commit; rows wait for their copy

All agents fold the log, so an order reaches both ends; at the target it may come before the word of the source or
after it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import effects
from chicle_elastic.scheduling.codec import Count
from chicle_elastic.transports.base import Region

PLACES = "places"  # kind of the message in which a source says where chunks lie; its only field has the same name


class Part(Enum):
    """What is fetched of a chunk."""

    ROWS = "rows"
    STATE = "state"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """Bring one chunk, or its rows ahead of it, from node to node."""

    chunk: ChunkId
    source: NodeId
    target: NodeId
    round: int
    part: Part  # that the source offers: `ROWS`, or `ALL`, of which a target that has the rows fetches the state
    number: int  # tells orders for the same part of a chunk apart; a later one has a higher number, or is a repetition


def orders_of(effect: effects.PrecopyChunks | effects.CopyChunks) -> Iterator[Order]:
    """Yield the orders for each chunk of an effect."""
    pair, round = {"source": effect.source, "target": effect.target}, effect.round
    numbers = effect.numbers if isinstance(effect, effects.PrecopyChunks) else (round,) * len(effect.chunks)
    part = Part.ROWS if isinstance(effect, effects.PrecopyChunks) else Part.ALL
    for chunk, number in zip(effect.chunks, numbers, strict=True):
        yield Order(chunk=chunk, **pair, round=round, part=part, number=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a source has what was ordered."""

    chunk: ChunkId
    part: Part
    number: Count  # of the order
    region: Region | None = None  # the bytes; None where the source cannot give them
    error: str = ""


Places: TypeAlias = tuple[Place, ...]
