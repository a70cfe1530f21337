"""Outages that chaos strikes with: of the store, of the store and the leader at once, and of links between agents.

A job begins with another outage than the one before, so a few seeds play all of them. While links are down or nodes
are without both store and leader, nothing else strikes, and no outage begins before all nodes are well: what is left
of a job that loses more than a majority at one time waits for the others, as it should, and would only look like a
hang. When only the store is away, all other strikes go on.

No node is started while the store is away or empty: a store that has just been restarted looks to a new node like that
of a new job, until the leader has filled it.
"""

import random
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import cycle, islice

from tests.harness.chaos_nodes import ChaosNode
from tests.harness.faults import HEARD, Fault

MIN_MEMBERS = 3
"""With fewer, no part is smaller than the other, and there is no pair of followers."""
MANY_MEMBERS = 5
"""With so many, a part of two is still the smaller one."""


class Outage(Enum):
    """What fails; the value is its name in the table."""

    STORE_RESTARTED = "store restarted"
    STORE_AWAY = "store away"
    STORE_AND_LEAD = "store and lead killed"
    LEAD_PARTED = "lead parted"
    MEMBER_PARTED = "member parted"
    PAIR_CUT = "pair cut"

    @property
    def seconds(self) -> tuple[float, float]:
        """Shortest and longest."""
        return (0.0, 0.0) if self is Outage.STORE_RESTARTED else (0.5, 5.0)

    @property
    def ends_store(self) -> bool:
        """Whether the store is killed."""
        return self in (Outage.STORE_RESTARTED, Outage.STORE_AWAY, Outage.STORE_AND_LEAD)

    @property
    def needs_quiet(self) -> bool:
        """Whether nothing else may strike before all nodes are well again."""
        return self not in (Outage.STORE_RESTARTED, Outage.STORE_AWAY)


def outages_of(job: int) -> Iterator[Outage]:
    """The outages of a job, without end.

    Args:
        job: Number of the job, from 0.
    """
    outages = tuple(Outage)
    return islice(cycle(outages), job % len(outages), None)


def smaller_part(
    outage: Outage, members: Sequence[ChaosNode], lead: ChaosNode, rng: random.Random
) -> tuple[list[ChaosNode], list[ChaosNode]]:
    """Who loses the links to whom.

    Args:
        outage: Of links.
        members: All nodes of the job, at least `MIN_MEMBERS`.
        lead: One of them.
        rng: Draws who is struck.
    """
    followers = [node for node in members if node is not lead]
    rng.shuffle(followers)
    if outage is Outage.PAIR_CUT:
        return followers[:1], followers[1:2]
    first = [lead] if outage is Outage.LEAD_PARTED else []
    part = [*first, *followers][: 2 if len(members) >= MANY_MEMBERS else 1]
    return part, [node for node in members if node not in part]


def faults_of(
    outage: Outage, part: Sequence[ChaosNode], others: Sequence[ChaosNode], *, number: int, seconds: float
) -> list[Fault]:
    """The faults that part the nodes; their names have to begin with a number that no other fault has.

    Args:
        outage: Of links.
        part: Some nodes.
        others: Nodes that they lose the links to.
        number: Of the first fault.
        seconds: How long.
    """
    pairs = [(node, peer) for node in part for peer in others]
    return [
        Fault(
            name=f"{number + index} {outage.value}",
            node=node.name,
            step=HEARD,
            action="part",
            where={"peer": peer.name},
            seconds=seconds,
        )
        for index, (node, peer) in enumerate(pairs)
    ]
