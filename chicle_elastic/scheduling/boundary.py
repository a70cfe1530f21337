"""The boundary: what has to move before the next iteration, and what stands in the way.

`Boundary.move` is called again and again until nothing is left to do. In each pass, in this order:

1. Nothing is planned while copies or frees are in flight.
2. Copies that the book did not know (strays) become owned or are freed.
3. Leavers hand their chunks over; what fits goes at once, also when not everything fits.
4. Missing chunks are loaded. Either all of them have room or none is ordered: a part would not let the job go on.
   Before the first merge, and when nothing is left to compute on, loads are waited for; otherwise they go on in the
   background.
5. Joiners get their share. Once per joiner; what a policy moves later is not undone.
6. Policies are asked, if the membership did not change, and what they and their slower colleagues want is moved; or
   copied ahead first, and moved at a later boundary (`preparing`).
"""

from collections.abc import Callable, Iterable
from enum import IntEnum

import numpy as np

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import plan
from chicle_elastic.scheduling.council import Council, Proposal, flaw_of
from chicle_elastic.scheduling.effects import Effect, Log
from chicle_elastic.scheduling.inventory import Inventory
from chicle_elastic.scheduling.leases import Lease, Leases
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.loads import Loads
from chicle_elastic.scheduling.members import Members
from chicle_elastic.scheduling.precopies import Precopies
from chicle_elastic.scheduling.preparing import Preparing
from chicle_elastic.scheduling.settings import SchedulerSettings
from chicle_elastic.scheduling.shelf import Phase
from chicle_elastic.scheduling.words import bytes_text, count_text, tally_text
from chicle_elastic.values import ChunkInfo, Observations


class Purpose(IntEnum):
    """What randomness is drawn for; a part of the seed."""

    LOAD = 1
    LEAVE = 2
    JOIN = 3
    POLICY = 4
    AHEAD = 5


class Boundary:
    """Plans and orders moves over the books of one scheduler.

    Args:
        ledger: Who holds what.
        members: Who is there.
        leases: Takes orders to copy.
        loads: Takes orders to load.
        inventory: Knows strays.
        council: Knows policies and what they want.
        precopies: Knows what is copied ahead.
        preparing: Knows for whom.
        emit: Takes log lines.
        settings: Of the job.
    """

    def __init__(
        self,
        ledger: Ledger,
        members: Members,
        leases: Leases,
        loads: Loads,
        inventory: Inventory,
        council: Council,
        precopies: Precopies,
        preparing: Preparing,
        emit: Callable[[Effect], None],
        settings: SchedulerSettings,
    ) -> None:
        self._ledger = ledger
        self._members = members
        self._leases = leases
        self._loads = loads
        self._inventory = inventory
        self._council = council
        self._emit = emit
        self._seed = settings.seed
        self._precopies = precopies
        self._copies_ahead = settings.precopy
        self._preparing = preparing
        self._is_starved = False
        self._is_turn_of_policies = False
        self._num_ordered = 0
        self._moved_after = -1

    def begin(self, *, ask_policies: bool) -> None:
        """An iteration has ended, or a new round is needed first.

        Args:
            ask_policies: The membership is the one that policies have seen at work.
        """
        self._is_turn_of_policies = ask_policies
        if not ask_policies:
            self._preparing.migrations.clear()

    def move(self) -> bool:
        """Order the next moves, if any.

        Returns:
            Whether something is in flight that the next iteration has to wait for.
        """
        if self._is_moving():
            return bool(self._leases.in_flight) or not self._is_done()
        self._inventory.settle(round=self._members.round)
        if self._is_moving():
            return True
        self._is_starved = self._is_starved or self._ledger.num_missing == self._ledger.num_chunks
        self._move_from_leavers()
        self.load_missing()
        if self._must_load() and self._loads.num_pending:
            return True
        self._move_to_joiners()
        if self._is_turn_of_policies and self._council.has_policies:
            self._council.ask(self._observations())
        self._is_turn_of_policies = False
        self._order_copies(self._preparing.take_migrations())
        self._move_for_policies()
        if not self._members.preparing and not self._preparing.migrations:
            self._precopies.discard_all(round=self._members.round)
        # A load that nobody wants takes room until it is answered: what has none may have some then.
        return self._is_moving() or (self._loads.num_unwanted > 0 and self.obstacle() is not None)

    def is_ready(self) -> bool:
        """Whether nothing is copied ahead for nodes that arrive or depart; what is to be, is ordered."""
        return self._preparing.is_ready(self._rng(Purpose.AHEAD))

    def load_missing(self) -> None:
        """Order loads of missing chunks; also while an iteration runs."""
        if self._ledger.num_missing <= self._loads.num_pending + len(self._loads.stuck):
            return
        self._precopies.discard_lost(round=self._members.round)
        chunks = []
        for chunk in self.unplaced():
            node = self._unwanted_load(chunk)
            if node is not None:
                self._loads.want_again(chunk, node)
            elif not self._inventory.may_be_saved(chunk):
                chunks.append(self._ledger.info(chunk))
        if not chunks:
            return
        avoid = {info.id: self._loads.failed_nodes(info.id) for info in chunks}
        placement = plan.plan_first(chunks, self._seats(for_loads=True), self._rng(Purpose.LOAD), avoid=avoid)
        if placement.unplaced:
            self._precopies.discard_all(round=self._members.round)  # they may have the room
            return
        for chunk, node in placement.placed:
            self._order_load(chunk, node)
        nodes = tally_text(node for _, node in placement.placed)
        self._emit(Log(text=f"{count_text(len(chunks), 'chunk')} to be loaded by {nodes}"))

    def unplaced(self) -> list[ChunkId]:
        """Missing chunks that are neither on their way nor given up."""
        return [
            chunk
            for chunk in self._ledger.missing
            if not self._loads.is_pending(chunk)
            and chunk not in self._loads.stuck
            and chunk not in self._leases.in_flight
        ]

    def obstacle(self) -> str | None:
        """Why no iteration can be started although nothing is left to move; None if it can."""
        if self._loads.stuck:
            return f"{next(iter(self._loads.stuck.values()))}; make its source readable, then let a node join"
        infos = [self._ledger.info(chunk) for chunk in self.unplaced()]
        if infos:
            return self._no_room(f"{count_text(len(infos), 'chunk')} to be loaded", infos)
        for node in self._members.leaving:
            owned = self._ledger.owned_by(node)
            stuck = [self._leases.stuck[chunk] for chunk in owned if chunk in self._leases.stuck]
            if stuck:
                return f"{node} cannot leave: {stuck[0]}; let a node join"
            if owned:
                infos = [self._ledger.info(chunk) for chunk in owned]
                return self._no_room(f"{count_text(len(owned), 'chunk')} of {node}, which has to leave", infos)
        return None

    def find_target(self, lease: Lease) -> NodeId | None:
        """Another node for a copy that failed too often: the one with room that has least for its weight."""
        info = self._ledger.info(lease.chunk)
        seats = [
            seat
            for seat in self._seats()
            if seat.node not in lease.tried and seat.node != lease.source and seat.can_take(info)
        ]
        if not seats:
            return None
        target = min(seats, key=lambda seat: seat.num_rows / seat.weight).node
        self._precopies.take(lease.chunk, target)
        return target

    def flaw(self, proposal: Proposal) -> str | None:
        """What is wrong with a decision as things stand, in words; None if it can be tried."""
        if proposal.policy in self._council.disabled:
            return "it is disabled"
        if proposal.generation != self._members.round:
            return f"it is of round {proposal.generation}, and this is round {self._members.round}"
        if proposal.iteration is not None and proposal.iteration <= self._moved_after:
            return f"it saw iteration {proposal.iteration}, and chunks have moved after iteration {self._moved_after}"
        if self._preparing.migrations:
            return "chunks are on their way for an earlier one"
        if self._members.preparing:
            return f"chunks are on their way for {', '.join(self._members.preparing)}"
        return flaw_of(proposal.moves, {node: len(self._ledger.shelves[node].owned) for node in self._members.seats})

    def end(self) -> int:
        """An iteration is started: the boundary is over.

        Returns:
            Loads and copies ordered since the last one ended.
        """
        self._is_starved = False
        num_ordered, self._num_ordered = self._num_ordered, 0
        return num_ordered

    def _is_moving(self) -> bool:
        return bool(self._leases.in_flight) or bool(self._ledger.freeing)

    def _is_done(self) -> bool:
        """Whether nothing is left to decide, so that nobody needs the memory of copies that are being freed."""
        return not (
            self._ledger.num_missing
            or self._loads.num_pending
            or self._loads.num_unwanted
            or self._inventory.has_strays
            or self._members.joiners
            or self._members.preparing
            or self._preparing.migrations
            or self._precopies.held
            or self._council.proposals
            or (self._is_turn_of_policies and self._council.has_policies)
            or self._members.leaving
        )

    def _must_load(self) -> bool:
        return self._ledger.merged == self._ledger.began or self._is_starved

    def _move_from_leavers(self) -> None:
        leavers = [node for node in self._members.leaving if self._ledger.shelves[node].owned]
        chunks = [chunk for node in leavers for chunk in self._ledger.owned_by(node) if chunk not in self._leases.stuck]
        if not chunks:
            return
        infos = [self._ledger.info(chunk) for chunk in chunks]
        placement = plan.plan_leave(infos, self._seats(), self._members.joiners, self._rng(Purpose.LEAVE))
        self._order_copies(placement.placed)
        if placement.unplaced:
            self._precopies.discard_all(round=self._members.round)  # they may have the room
        if placement.placed:
            moved = count_text(len(placement.placed), "chunk")
            targets = tally_text(node for _, node in placement.placed)
            self._emit(Log(text=f"under notice: {', '.join(leavers)}; {moved} to {targets}"))

    def _move_to_joiners(self) -> None:
        joiners = self._members.joiners
        if not joiners:
            return
        for node in joiners:
            self._members.present[node].is_new = False
        moves = plan.plan_join(self._movable(), self._seats(), joiners, self._rng(Purpose.JOIN))
        self._order_copies((move.chunk, move.target) for move in moves)
        if moves:
            sources = tally_text(move.source for move in moves)
            targets = tally_text(move.target for move in moves)
            moved = count_text(len(moves), "chunk")
            self._emit(Log(text=f"joined: {', '.join(joiners)}; {moved} to {targets} from {sources}"))

    def _move_for_policies(self) -> None:
        proposals, self._council.proposals = self._council.proposals, []
        flaws = [self.flaw(proposal) for proposal in proposals]  # now: what the first one moves is no flaw of the next
        for number, (proposal, flaw) in enumerate(zip(proposals, flaws, strict=True)):
            if flaw is not None:
                self._emit(Log(text=f"decision of policy {proposal.policy} is ignored: {flaw}"))
                continue
            rng = self._rng(Purpose.POLICY, number)
            moves = plan.plan_policy(proposal.moves, self._movable(), self._seats(), rng)
            if self._copies_ahead:
                self._preparing.migrate(moves)
            else:
                self._order_copies((move.chunk, move.target) for move in moves)
            wanted = count_text(sum(proposal.moves.values()), "chunk")
            self._emit(Log(text=f"{proposal.policy} moves {len(moves)} of {wanted}: {proposal.reason}"))

    def _order_load(self, chunk: ChunkId, node: NodeId) -> None:
        self._loads.order(chunk, node, round=self._members.round)
        self._num_ordered += 1

    def _order_copies(self, placed: Iterable[tuple[ChunkId, NodeId]]) -> None:
        for chunk, target in placed:
            source = self._ledger.owner(chunk)
            assert source is not None
            self._precopies.take(chunk, target)
            self._leases.order(chunk, source, target, round=self._members.round)
            self._num_ordered += 1
            self._moved_after = self._ledger.merged

    def _seats(self, *, for_loads: bool = False) -> list[plan.Seat]:
        """Seats as plans see them, chunks on their way counted at their targets.

        Args:
            for_loads: Rows that are copied ahead are of no use; the memory that they are in is taken.
        """
        coming = dict.fromkeys(self._ledger.shelves, 0)
        for lease in self._leases.in_flight.values():
            num_rows = self._ledger.info(lease.chunk).num_rows
            coming[lease.target] += num_rows
            if lease.source in coming and not lease.source_lost:
                coming[lease.source] -= num_rows
        return [
            plan.Seat(
                node=node,
                weight=self._ledger.shelves[node].weight,
                num_rows=self._ledger.shelves[node].num_rows + coming[node],
                room_bytes=self._ledger.shelves[node].room_bytes,
                holds=self._ledger.shelves[node].copies,
                ahead=() if for_loads else self._precopies.at(node),
            )
            for node in self._members.seats
        ]

    def _movable(self) -> dict[NodeId, list[ChunkInfo]]:
        """Chunks that seats own and that are not on their way."""
        going = self._leases.in_flight.keys() | self._preparing.migrations.keys()
        return {
            node: [self._ledger.info(chunk) for chunk in self._ledger.owned_by(node) if chunk not in going]
            for node in self._members.seats
        }

    def _unwanted_load(self, chunk: ChunkId) -> NodeId | None:
        for node in self._members.seats:
            if self._ledger.phase(node, chunk) is Phase.UNWANTED:
                return node
        return None

    def _observations(self) -> Observations:
        seats = self._members.seats
        shelves = self._ledger.shelves
        return Observations(
            round=self._members.round,
            iteration=self._ledger.merged,
            num_chunks={node: len(shelves[node].owned) for node in seats},
            samples={node: self._ledger.samples(node) for node in seats},
            weights={node: shelves[node].weight for node in seats},
            capacity_bytes={node: shelves[node].capacity_bytes for node in seats},
            used_bytes={node: shelves[node].used_bytes for node in seats},
            reports={node: tuple(self._council.reports.get(node, ())) for node in seats},
        )

    def _no_room(self, what: str, infos: list[ChunkInfo]) -> str:
        """Both figures: what is needed, and what there is."""
        seats = self._members.seats
        if not seats:
            return f"no room for {what}: no node stays; let a node join"
        rooms = [self._ledger.shelves[node].room_bytes or 0 for node in seats]
        needed, largest = sum(info.size_bytes for info in infos), max(info.size_bytes for info in infos)
        return (
            f"no room for {what}: {bytes_text(needed)} needed, {bytes_text(sum(rooms))} free on the "
            f"{count_text(len(seats), 'node')} that stay (at most {bytes_text(max(rooms))} on one; the largest chunk "
            f"has {bytes_text(largest)}); let a node join or give the nodes more memory"
        )

    def _rng(self, purpose: Purpose, number: int = 0) -> np.random.Generator:
        """The same for every agent that folds the same events."""
        return np.random.default_rng([self._seed, self._members.round, self._ledger.merged, purpose, number])
