"""The boundary: what has to move before the next iteration, and what stands in the way.

`Boundary.move` is called again and again until nothing is left to do. In each pass, in this order:

1. Nothing is planned while copies or frees are in flight.
2. Copies that the ledger did not know (strays) become owned or are freed.
3. Leavers hand their chunks over; what fits goes at once, also when not everything fits.
4. Missing chunks are loaded. Either all of them have room or none is ordered: a part would not let the job go on.
   Before the first merge, and when nothing is left to compute on, loads are waited for; otherwise they go on in the
   background.
5. Joiners get their share. Once per joiner; what a policy moves later is not undone.
6. Policies are asked, if the membership did not change, and what they and their slower colleagues want is done: chunks
   are moved, or copied ahead first and moved at a later boundary (`transitions`); parameters are set, nodes are
   asked for or let go.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import plan
from chicle_elastic.scheduling.effects import Effect, Log
from chicle_elastic.scheduling.inventory import Inventory
from chicle_elastic.scheduling.leases import Lease, Leases
from chicle_elastic.scheduling.ledger import Ledger, Movable
from chicle_elastic.scheduling.loads import Loads
from chicle_elastic.scheduling.members import Members
from chicle_elastic.scheduling.pending_policies import NodeHoldings, PendingPolicies, flaw_of, moves_of, observe
from chicle_elastic.scheduling.precopies import Precopies
from chicle_elastic.scheduling.settings import SchedulerSettings
from chicle_elastic.scheduling.text import bytes_text, count_text, replaced_text, tally_text
from chicle_elastic.scheduling.transitions import PendingTransitions
from chicle_elastic.values import (
    ChunkInfo,
    MoveChunks,
    Observations,
    Proposal,
    RedrawOwnership,
    ReleaseNode,
    Remember,
    RequestNodes,
    SendMessage,
    SetParameter,
)

ANY = np.random.default_rng(0)
"""Where nothing depends on what is drawn; to make a generator takes as long as a plan for few chunks."""


NOTHING = "it changes nothing"


class Purpose(IntEnum):
    """What randomness is drawn for; a part of the seed."""

    LOAD = 1
    LEAVE = 2
    JOIN = 3
    POLICY = 4
    AHEAD = 5


@dataclass(eq=False, repr=False)
class Boundary:
    """Plans and orders moves over the ledger of one scheduler. One class because what has to move is decided from the
    same tables in one go."""

    _ledger: Ledger
    _members: Members
    _leases: Leases
    _loads: Loads
    _inventory: Inventory
    _pending_policies: PendingPolicies
    _precopies: Precopies
    _pending_transitions: PendingTransitions
    _emit: Callable[[Effect], None]
    _settings: SchedulerSettings
    _leave: Callable[[NodeId], None]
    _is_starved: bool = False
    _is_turn_of_policies: bool = False
    _num_ordered: int = 0
    # Iteration after which chunks were last moved for a policy, or redrawn, or its memory changed, by its name.
    _moved_after: dict[str, int] = field(default_factory=dict)
    _redrawn_after: dict[str, int] = field(default_factory=dict)
    _remembered_after: dict[str, int] = field(default_factory=dict)

    def begin(self, *, ask_policies: bool) -> None:
        """An iteration has ended, or a new round is needed first."""
        self._is_turn_of_policies = ask_policies
        if not ask_policies:
            self._pending_transitions.forget_migrations("a new round begins")

    def move(self) -> bool:
        """Order the next moves, if any. Returns whether something is in flight that the next iteration has to wait
        for."""
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
        if self._pending_transitions.migrations:
            self._pending_transitions.settle_migrations()
        if self._is_turn_of_policies:
            if self._pending_policies.has_policies:
                self._pending_policies.ask(self._observations())
            # Once in a boundary: what arrives during it can wait for the next one, and must not make it longer.
            if self._pending_transitions.migrations:
                self._order_copies(self._pending_transitions.take_migrations())
        self._is_turn_of_policies = False
        self._act_for_policies()
        if self._precopies.held:
            self._precopies.discard(self._pending_transitions.unwanted(), round=self._members.round)
        # A load that is not wanted any more takes room until it is answered: what has none may have some then.
        return self._is_moving() or (self._loads.num_unwanted > 0 and self.obstacle() is not None)

    def is_ready(self) -> bool:
        """Whether nothing is copied ahead for nodes that arrive or depart; what is to be, is ordered."""
        return self._pending_transitions.is_ready(self._rng(Purpose.AHEAD))

    def load_missing(self) -> None:
        """Order loads of missing chunks; also while an iteration runs."""
        if self._ledger.num_missing <= self._loads.num_pending + len(self._loads.stuck):
            return
        self._precopies.discard_lost(round=self._members.round)
        unwanted, unplaced = self._loads.unwanted(), self.unplaced()
        for chunk in [chunk for chunk in unplaced if chunk in unwanted] if unwanted else ():
            node = next((node for node in self._members.eligible if node in unwanted[chunk]), None)
            if node is not None:
                self._loads.want_again(chunk, node)
                unplaced.remove(chunk)
        if self._inventory.has_strays:
            unplaced = [chunk for chunk in unplaced if not self._inventory.may_be_saved(chunk)]
        chunks = self._ledger.infos(unplaced)
        if not chunks:
            return
        avoid = self._loads.failed_nodes()
        rng = self._rng(Purpose.LOAD) if len(chunks) > 1 else ANY  # one chunk has one order
        placement = plan.plan_first(chunks, self._eligible(for_loads=True), rng, avoid=avoid)
        if placement.unplaced:
            self._precopies.discard_all(round=self._members.round)  # they may have the room
            return
        placed = placement.placed.by_node()
        for node, infos in placed.items():
            self._loads.order(infos, node, round=self._members.round)
        self._num_ordered += len(placement.placed)
        nodes = tally_text({node: len(infos) for node, infos in placed.items()})
        self._emit(Log(text=f"{count_text(len(chunks), 'chunk')} to be loaded by {nodes}"))

    def unplaced(self) -> list[ChunkId]:
        """Missing chunks that are neither on their way nor given up."""
        if not self._ledger.num_missing:
            return []
        known = self._loads.pending() | self._loads.stuck.keys() | self._leases.in_flight.keys()
        return [chunk for chunk in self._ledger.missing if chunk not in known]

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

    def find_target(self, chunk: ChunkId, lease: Lease) -> NodeId | None:
        """Another node for a copy that failed too often: the one with room that has least."""
        info = self._ledger.info(chunk)
        eligible = [
            candidate
            for candidate in self._eligible()
            if candidate.node not in lease.tried and candidate.node != lease.source and candidate.can_take(info)
        ]
        if not eligible:
            return None
        target = min(eligible, key=lambda candidate: candidate.num_rows).node
        self._precopies.take([(chunk, target)])
        return target

    def flaw(self, proposal: Proposal) -> str | None:
        """What is wrong with a decision as things stand, in words; None if it can be tried.

        A policy that has not seen its own last moves would ask for them again, and one that has not seen its memory
        would overwrite it. Moves of other policies are no flaw: a slow policy would never have its way beside a quick
        one. Of what they have left, it gets what it asks for.
        """
        if proposal.policy in self._pending_policies.disabled:
            return "it is disabled"
        if proposal.round != self._members.round:
            return f"it is of round {proposal.round}, and this is round {self._members.round}"
        has_moves = _has_moves(proposal)
        if not has_moves and not self._pending_policies.changes(proposal):
            return NOTHING
        seen, counts = proposal.iteration, self._num_chunks()
        for kind, afters, what in (
            (MoveChunks, self._moved_after, "chunks were moved for it"),
            (RedrawOwnership, self._redrawn_after, "chunks were redrawn for it"),
            (Remember, self._remembered_after, "its memory was changed"),
        ):
            after = afters.get(proposal.policy, -1)
            if seen is not None and seen <= after and any(isinstance(action, kind) for action in proposal.actions):
                return f"{what} after iteration {after}"
        if not has_moves:
            return flaw_of(proposal.actions, counts)
        if self._members.preparing:
            return f"chunks are on their way for {', '.join(self._members.preparing)}"
        if seen is not None and seen <= max(self._moved_after.values(), default=-1):
            counts = dict.fromkeys(counts, self._ledger.num_chunks)  # it could not know: it moves what is left
        return flaw_of(proposal.actions, counts)

    def arriving(self) -> dict[NodeId, tuple[int, int]]:
        """(chunks, samples) that each node has more when all migrations have ended, or less; without those of 0."""
        if not self._pending_transitions.migrations:
            return {}
        arriving: dict[NodeId, tuple[int, int]] = {}
        for chunk, (source, target) in self._pending_transitions.migrations.items():
            num_rows = self._ledger.info(chunk).num_rows
            for node, sign in ((source, -1), (target, 1)):
                num_chunks, samples = arriving.get(node, (0, 0))
                arriving[node] = num_chunks + sign, samples + sign * num_rows
        return {node: arriving[node] for node in sorted(arriving) if arriving[node] != (0, 0)}

    def _num_chunks(self) -> dict[NodeId, int]:
        """Chunks that each node that stays has when all that are on their way have arrived: what policies see."""
        counts = {node: len(self._ledger.node_chunks[node].owned) for node in self._members.eligible}
        for lease in self._leases.in_flight.values():
            if lease.source in counts and not lease.source_lost:
                counts[lease.source] -= 1
            if lease.target in counts:
                counts[lease.target] += 1
        for node, (num_chunks, _) in self.arriving().items():
            if node in counts:
                counts[node] += num_chunks
        return counts

    def end(self) -> int:
        """An iteration is started: the boundary is over. Returns loads and copies ordered since the last one ended."""
        self._is_starved = False
        num_ordered, self._num_ordered = self._num_ordered, 0
        return num_ordered

    def _is_moving(self) -> bool:
        return bool(self._leases.in_flight) or bool(self._ledger.freeing)

    def _is_done(self) -> bool:
        """Tell whether nothing is left to decide, so that no move needs the memory of copies that are being freed."""
        return not (
            self._ledger.num_missing
            or self._loads.num_pending
            or self._loads.num_unwanted
            or self._inventory.has_strays
            or self._members.joiners
            or self._members.preparing
            or self._pending_policies.proposals
            or (self._is_turn_of_policies and self._has_turn())
            or self._members.leaving
            or self._pending_transitions.unwanted()
        )

    def _has_turn(self) -> bool:
        return self._pending_policies.has_policies or self._pending_transitions.has_migrations_to_take()

    def _must_load(self) -> bool:
        return self._ledger.merged == self._ledger.began or self._is_starved

    def _move_from_leavers(self) -> None:
        leavers = [node for node in self._members.leaving if self._ledger.node_chunks[node].owned]
        chunks = [chunk for node in leavers for chunk in self._ledger.owned_by(node) if chunk not in self._leases.stuck]
        if not chunks:
            return
        infos = [self._ledger.info(chunk) for chunk in chunks]
        placement = plan.plan_leave(infos, self._eligible(), self._members.joiners, self._rng(Purpose.LEAVE))
        self._order_copies(placement.placed)
        if placement.unplaced:
            self._precopies.discard_all(round=self._members.round)  # they may have the room
        if placement.placed:
            moved = count_text(len(placement.placed), "chunk")
            targets = tally_text(Counter(node for _, node in placement.placed))
            self._emit(Log(text=f"under notice: {', '.join(leavers)}; {moved} to {targets}"))

    def _move_to_joiners(self) -> None:
        joiners = self._members.joiners
        if not joiners:
            return
        for node in joiners:
            self._members.filled(node)
        if len(self._members.eligible) == 1:  # no node has chunks for it
            return
        movable = self._movable()
        rng = self._rng(Purpose.JOIN)
        moves = plan.plan_join(movable, self._eligible(), joiners, rng)
        self._order_copies((move.chunk, move.target) for move in moves)
        if moves:
            sources = tally_text(Counter(move.source for move in moves))
            targets = tally_text(Counter(move.target for move in moves))
            moved = count_text(len(moves), "chunk")
            self._emit(Log(text=f"joined: {', '.join(joiners)}; {moved} to {targets} from {sources}"))

    def _act_for_policies(self) -> None:
        proposals = self._pending_policies.take()
        if not proposals:
            return
        flaws = [self.flaw(proposal) for proposal in proposals]  # now: what the first one moves is no flaw of the next
        sound: list[tuple[Proposal, np.random.Generator]] = []
        for number, (proposal, flaw) in enumerate(zip(proposals, flaws, strict=True)):
            if flaw is None:
                sound.append((proposal, self._rng(Purpose.POLICY, number)))
                if proposal.replaced:
                    self._emit(Log(text=replaced_text(proposal.policy, proposal.replaced)))
            else:
                self._pending_policies.refuse(proposal, flaw)
        # Nodes that are let go first: nothing is moved to them.
        for proposal, _ in sound:
            self._pending_policies.has_said = False
            for action in proposal.actions:
                match action:
                    case SetParameter():
                        self._pending_policies.set_parameter(proposal, action)
                    case RequestNodes():
                        self._pending_policies.request_nodes(proposal, action)
                    case ReleaseNode():
                        self._let_go_for(proposal, action.node)
                    case SendMessage():
                        self._pending_policies.send_message(proposal, action)
                    case Remember():
                        self._pending_policies.remember(proposal, action)
                        self._remembered_after[proposal.policy] = self._ledger.merged
            if not self._pending_policies.has_said and not _has_moves(proposal):
                self._pending_policies.refuse(dataclasses.replace(proposal, replaced=0), NOTHING)
        # Then moves: a redraw needs none of the chunks in particular, and may leave none that can be moved.
        for proposal, rng in sound:
            self._move_for(proposal, rng)
        for proposal, rng in sound:
            self._redraw_for(proposal, rng)

    def _move_for(self, proposal: Proposal, rng: np.random.Generator) -> None:
        eligible = set(self._members.eligible)  # a proposal of this boundary may have let a node go
        wanted = moves_of(proposal.actions)
        if wanted:
            counts = {pair: count for pair, count in wanted.items() if eligible.issuperset(pair)}
            moves = plan.plan_moves(counts, self._movable(), self._eligible(), rng)
            self._order_moves(moves)
            if moves:
                self._moved_after[proposal.policy] = self._ledger.merged
            total = sum(wanted.values())
            rest = "" if len(moves) >= total else " (others are on their way, have left, or find no room)"
            chunks = count_text(total, "chunk")
            self._emit(Log(text=f"{proposal.policy} moves {len(moves)} of {chunks}{rest}: {proposal.reason}"))

    def _redraw_for(self, proposal: Proposal, rng: np.random.Generator) -> None:
        """Plan redraws: counts stay, so decisions about them do not become stale."""
        for action in proposal.actions:
            if isinstance(action, RedrawOwnership):
                moves = plan.plan_redraw(action.share, self._movable(), self._eligible(), rng)
                self._order_moves(moves)
                self._redrawn_after[proposal.policy] = self._ledger.merged
                redrawn = count_text(len(moves), "chunk")
                self._emit(Log(text=f"{proposal.policy} redraws the owners of {redrawn}: {proposal.reason}"))

    def _order_moves(self, moves: list[plan.Transfer]) -> None:
        if self._settings.precopy:
            self._pending_transitions.migrate(moves)
        else:
            self._order_copies((move.chunk, move.target) for move in moves)

    def _let_go_for(self, proposal: Proposal, node: NodeId) -> None:
        """Put a node under notice, if enough others stay and no earlier policy decides on nodes."""
        staying = [other for other in self._members.staying if not self._members.present[other].is_departing]
        if node not in staying:
            self._pending_policies.say(f"{proposal.policy} need not release {node}, which leaves already")
        elif len(staying) <= self._settings.min_nodes:
            self._pending_policies.refuse_release(proposal, node)
        elif self._pending_policies.claims_nodes(proposal):
            self._pending_policies.say(f"{proposal.policy} releases {node}: {proposal.reason}")
            self._leave(node)

    def _order_copies(self, placed: Iterable[tuple[ChunkId, NodeId]]) -> None:
        orders = list(placed)
        self._precopies.take(orders)
        self._leases.order(orders, round=self._members.round)
        self._num_ordered += len(orders)

    def _eligible(self, *, for_loads: bool = False) -> list[plan.NodeCapacity]:
        """Seats as plans see them, chunks on their way counted at their targets.

        Args:
            for_loads: Rows that are copied ahead are of no use; the memory that they are in is taken.
        """
        coming = dict.fromkeys(self._ledger.node_chunks, 0)
        for chunk, lease in self._leases.in_flight.items():
            num_rows = self._ledger.info(chunk).num_rows
            coming[lease.target] += num_rows
            if lease.source in coming and not lease.source_lost:
                coming[lease.source] -= num_rows
        ahead = {} if for_loads else self._precopies.by_node()
        return [
            plan.NodeCapacity(
                node=node,
                num_rows=self._ledger.node_chunks[node].num_rows + coming[node],
                room_bytes=self._ledger.node_chunks[node].room_bytes,
                holds=self._ledger.node_chunks[node].copies,
                ahead=ahead.get(node, ()),
            )
            for node in self._members.eligible
        ]

    def _movable(self) -> Movable:
        going = self._leases.in_flight.keys() | self._pending_transitions.migrations.keys()
        return Movable(self._ledger, self._members.eligible, going)

    def _observations(self) -> Observations:
        return observe(
            self._pending_policies.recent,
            {node: self._holdings(node) for node in self._members.eligible},
            round=self._members.round,
            iteration=self._ledger.merged,
            min_nodes=self._settings.min_nodes,
            max_nodes=self._settings.max_nodes,
            wanted=self._pending_policies.wanted,
            travelling=len(self._pending_transitions.migrations),
            arriving=self.arriving(),
            offer=self._pending_policies.offer,
        )

    def _holdings(self, node: NodeId) -> NodeHoldings:
        held = self._ledger.node_chunks[node]
        return NodeHoldings(
            num_chunks=len(held.owned),
            samples=held.owned_rows,
            used_bytes=held.owned_bytes,
            capacity_bytes=held.capacity_bytes,
        )

    def _no_room(self, what: str, infos: list[ChunkInfo]) -> str:
        eligible = self._members.eligible
        if not eligible:
            return f"no room for {what}: no node stays; let a node join"
        rooms = [self._ledger.node_chunks[node].room_bytes or 0 for node in eligible]
        needed, largest = sum(info.size_bytes for info in infos), max(info.size_bytes for info in infos)
        return (
            f"no room for {what}: {bytes_text(needed)} needed, {bytes_text(sum(rooms))} free on the "
            f"{count_text(len(eligible), 'node')} that stay (at most {bytes_text(max(rooms))} on one; the largest "
            f"chunk has {bytes_text(largest)}); let a node join, or give the nodes more memory; rows of a chunk folder "
            "take none where they stay in its files (ChunkFolder.mapped, or --rows-in-files of a submitted fit)"
        )

    def _rng(self, purpose: Purpose, number: int = 0) -> np.random.Generator:
        """Make a generator that is the same for every agent that folds the same events."""
        return np.random.default_rng([self._settings.seed, self._members.round, self._ledger.merged, purpose, number])


def _has_moves(proposal: Proposal) -> bool:
    return any(isinstance(action, MoveChunks | RedrawOwnership) for action in proposal.actions)
