"""Proposals on their way into the log: kept by their author until they are there, in their order, each once."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chicle_elastic.cluster.consensus.log import Log
from chicle_elastic.cluster.consensus.messages import Propose
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling.events import Event, is_patient


class PendingProposals:
    """What one author has proposed and not seen in the log yet."""

    def __init__(self, life: str) -> None:
        self._life = life
        self._unseen: dict[int, Event] = {}
        self._num_proposed = 0

    def add(self, event: Event) -> Propose:
        """A new proposal."""
        self._num_proposed += 1
        self._unseen[self._num_proposed] = event
        return self._propose(self._num_proposed)

    def seen(self, number: int) -> None:
        """A proposal is in the log."""
        self._unseen.pop(number, None)

    def __iter__(self) -> Iterator[Propose]:
        """Everything that has no place yet, in its order."""
        return iter([self._propose(number) for number in self._unseen])

    def _propose(self, number: int) -> Propose:
        return Propose(origin=self._life, number=number, event=self._unseen[number])


@dataclass(frozen=True, slots=True)
class _Waiting:
    node: NodeId
    proposal: Propose


class PendingProposal:
    """What waits at the leader for its place.

    The proposals of an author have consecutive numbers. One that comes too early is dropped: the author told an
    earlier one to a node that did not lead, and says both again when the present leader sends its log.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._items: deque[_Waiting] = deque()

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def is_urgent(self) -> bool:
        """Say whether any of them asks for a boundary; others wait for one that comes anyway."""
        return not all(is_patient(item.proposal.event) for item in self._items)

    def add(self, node: NodeId, proposal: Propose) -> None:
        """Let a proposal wait, if it is the author's next."""
        same = [item.proposal.number for item in self._items if item.proposal.origin == proposal.origin]
        if proposal.number == max(same, default=self._log.seen(proposal.origin)) + 1:
            self._items.append(_Waiting(node, proposal))

    def pop(self, must_wait: Callable[[Event], bool]) -> Propose | None:
        """Return the next one that is not in the log already, without those that must wait and what their authors said
        behind them."""
        found, kept, authors = None, [], set()
        while self._items and found is None:
            item = self._items.popleft()
            proposal = item.proposal
            is_new = proposal.number == self._log.seen(proposal.origin) + 1
            if proposal.origin in authors or (is_new and must_wait(proposal.event)):
                authors.add(proposal.origin)
                kept.append(item)
            elif is_new:
                found = proposal
        self._items.extendleft(reversed(kept))
        return found

    def drop(self, node: NodeId) -> None:
        """Forget what a node said that is gone: it does not count any more."""
        self._items = deque(item for item in self._items if item.node != node)

    def clear(self) -> None:
        """Forget everything; authors remember."""
        self._items.clear()
