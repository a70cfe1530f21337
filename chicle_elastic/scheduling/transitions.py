"""What is made ready while iterations run: nodes that come, nodes that go, and moves that a policy wants.

    a node joins      arriving:  present and no member; its share is pre-copied; then comes the round that it is in
    a notice comes    departing: still a member; its chunks are pre-copied to others; then it leaves
    a policy moves    migrations: pre-copied to where they go; then they are copied, at a boundary like any other

Each chunk has a migration of its own: it is copied at the first boundary after its rows have arrived, whatever else
is on its way, and other chunks may be given a migration meanwhile. A migration ends, too, where its rows do not come.

Whatever asks for a new round ends the waiting: those who arrive are in it, those who depart leave, and what has been
pre-copied so far is used. So does everything that keeps iterations from running: then there is nothing to gain.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import plan
from chicle_elastic.scheduling.effects import Effect, Log
from chicle_elastic.scheduling.ledger import Ledger, Movable
from chicle_elastic.scheduling.members import Members
from chicle_elastic.scheduling.precopies import Precopies
from chicle_elastic.scheduling.text import count_text, tally_text


@dataclass(eq=False, repr=False)
class PendingTransitions:
    """Plans pre-copies, and knows when they have ended."""

    _ledger: Ledger
    _members: Members
    _precopies: Precopies
    _emit: Callable[[Effect], None]
    # (source, target) of moves that a policy wants, by chunk
    migrations: dict[ChunkId, tuple[NodeId, NodeId]] = field(default_factory=dict)

    def is_ready(self, rng: np.random.Generator) -> bool:
        """Order what is still to be ordered; whether nothing is on its way any more."""
        if any(not self._members.present[node].is_planned for node in self._members.preparing):
            for node in self._members.preparing:
                self._members.present[node].is_planned = True
            self._plan(rng)
        return not self._precopies.in_flight

    def migrate(self, moves: Sequence[plan.Transfer]) -> None:
        """Make moves ready that a policy wants."""
        self.migrations.update((move.chunk, (move.source, move.target)) for move in moves)
        ahead = [(move.chunk, move.target) for move in moves if (move.target, move.chunk) not in self._precopies.held]
        self._precopies.order(ahead, round=self._members.round)

    def settle_migrations(self) -> None:
        """Forget migrations that make no sense any more, or whose rows have not come."""
        kept = {
            chunk: (source, target)
            for chunk, (source, target) in self.migrations.items()
            if self._ledger.owner(chunk) == source
            and self._members.is_seat(target)
            and (target, chunk) in self._precopies.held
        }
        self._forgotten(len(self.migrations) - len(kept), "a node has gone, or their rows have not come")
        self.migrations = kept

    def forget_migrations(self, why: str) -> None:
        """Leave the chunks where they are, whose rows are on their way for policies."""
        self._forgotten(len(self.migrations), why)
        self.migrations.clear()

    def _forgotten(self, count: int, why: str) -> None:
        if count:
            self._emit(Log(text=f"{count_text(count, 'chunk')} on the way for policies will not move: {why}"))

    def take_migrations(self) -> list[tuple[ChunkId, NodeId]]:
        """(chunk, target) of the migrations whose rows have arrived; they are migrations no more."""
        ready = [(chunk, target) for chunk, (_, target) in self.migrations.items() if self._is_whole(chunk, target)]
        for chunk, _ in ready:
            del self.migrations[chunk]
        return ready

    def has_migrations_to_take(self) -> bool:
        """Whether rows of any migration have arrived."""
        return any(self._is_whole(chunk, target) for chunk, (_, target) in self.migrations.items())

    def unwanted(self) -> list[tuple[NodeId, ChunkId]]:
        """(target, chunk) of the pre-copies that no node and no migration waits for."""
        if self._members.preparing or not self._precopies.held:
            return []
        wanted = {(target, chunk) for chunk, (_, target) in self.migrations.items()}
        return [key for key in self._precopies.held if key not in wanted]

    def _is_whole(self, chunk: ChunkId, target: NodeId) -> bool:
        return self._precopies.is_whole(target, chunk)

    def _plan(self, rng: np.random.Generator) -> None:
        """Who is to have what: first the chunks of those who go, then the share of those who come."""
        ahead = {chunk: node for node, chunk in self._precopies.held}
        eligible = self._eligible(ahead)
        arriving = [candidate.node for candidate in eligible if self._members.present[candidate.node].is_arriving]
        departing = [node for node in self._members.preparing if self._members.present[node].is_departing]
        leaving = [chunk for node in departing for chunk in self._ledger.owned_by(node) if chunk not in ahead]
        orders: list[tuple[ChunkId, NodeId]] = []
        if leaving and eligible:
            infos = [self._ledger.info(chunk) for chunk in leaving]
            orders += plan.plan_leave(infos, eligible, arriving, rng).placed
            by_node = {candidate.node: candidate for candidate in eligible}
            for chunk, node in orders:
                by_node[node].take(self._ledger.info(chunk))
        if arriving:
            movable = Movable(self._ledger, [candidate.node for candidate in eligible], ahead)
            moves = plan.plan_join(movable, eligible, arriving, rng)
            orders += [(move.chunk, move.target) for move in moves]
        self._precopies.order(orders, round=self._members.round)
        if orders:
            nodes = ", ".join(self._members.preparing)
            targets = tally_text(Counter(node for _, node in orders))
            self._emit(Log(text=f"for {nodes}: the rows of {count_text(len(orders), 'chunk')} ahead to {targets}"))

    def _eligible(self, ahead: Mapping[ChunkId, NodeId]) -> list[plan.NodeCapacity]:
        """Seats as they will be, with whatever is ahead already counted where it will be."""
        rows = {node: held.owned_rows for node, held in self._ledger.node_chunks.items()}
        for chunk, target in ahead.items():
            owner = self._ledger.owner(chunk)
            if owner is not None:
                num_rows = self._ledger.info(chunk).num_rows
                rows[owner] -= num_rows
                rows[target] += num_rows
        node_chunks = self._ledger.node_chunks
        nodes = [node for node in self._members.eligible if not self._members.present[node].is_departing]
        nodes += [node for node in self._members.preparing if self._members.present[node].is_arriving]
        return [
            plan.NodeCapacity(
                node=node,
                num_rows=rows[node],
                room_bytes=node_chunks[node].room_bytes,
                holds=node_chunks[node].copies,
            )
            for node in nodes
        ]
