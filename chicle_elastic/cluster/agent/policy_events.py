"""What one node tells the log for policies, few at a time: what waits for a boundary is a burden for the leader.

A decision of a policy of this node, and a complete checkpoint. A decision that the log never takes has its line.
"""

import dataclasses
from collections.abc import Callable, Iterable

from chicle_elastic.cluster.consensus.entries import Entry
from chicle_elastic.cluster.consensus.replicated_log import ReplicatedLog
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.scheduler import OVER, State
from chicle_elastic.scheduling.text import refused_texts


class PolicyEvents:
    """See the top of the module. Everything is called in the loop.

    Args:
        say: Takes the lines about decisions that are refused.
    """

    def __init__(self, log: ReplicatedLog, say: Callable[[str], None]) -> None:
        self._log, self._say = log, say
        # Decision of each policy that waits until its earlier one is in the log, by the policy's name.
        self._held: dict[str, events.Proposal] = {}
        self._saved: events.CheckpointSaved | None = None  # newest checkpoint that the log was not told of
        self._seen_at_end = 0  # own proposals that the log had when the job was over; the others were refused then

    def proposed(self, proposal: events.Proposal) -> None:
        """A policy has decided. A decision that the log would refuse is patient, so it costs no node a boundary. Of a
        policy one patient decision and one other are on their way at most, and its newest waits here for those that
        have no place."""
        if (held := self._held.pop(proposal.policy, None)) is not None:
            proposal = dataclasses.replace(proposal, replaced=proposal.replaced + held.replaced + 1)
        is_patient = self._log.scheduler.flaw_of(proposal) is not None
        if self._is_over:
            self._refuse([proposal], OVER)
        elif any(said.is_patient <= is_patient for said in self._on_their_way() if said.policy == proposal.policy):
            self._held[proposal.policy] = proposal
        else:
            self._log.append(dataclasses.replace(proposal, is_patient=is_patient))

    def saved(self, event: events.CheckpointSaved) -> None:
        """A checkpoint is complete. The newest waits here while an older one waits for a boundary: a steady job has
        none."""
        self._saved = event
        self.tell_saved()

    def iteration_begins(self) -> None:
        """A boundary is over: what waits here may find that the events before it are in the log."""
        for held in list(self._held.values()):
            self.proposed(self._held.pop(held.policy))
        self.tell_saved()

    def folded(self, proposal: events.Proposal, entry: Entry) -> None:
        """A decision came to its place. Perhaps that is behind the end of the job, but in the log when this node
        performed that: `end` did not find it on its way, and the scheduler leaves the line to its author."""
        if entry.number <= self._seen_at_end and entry.origin == self._log.snapshot().incarnation:
            self._refuse([proposal], OVER)

    def lose(self, flaw: str) -> None:
        """The log takes no decision of this incarnation any more, and the job goes on."""
        if not self._is_over:
            self._refuse((*self._on_their_way(), *self._held.values()), flaw)
        self._held.clear()
        self._seen_at_end = 0

    def end(self) -> None:
        """The job is over."""
        self._refuse((*self._on_their_way(), *self._held.values()), OVER)
        self._held.clear()
        self._seen_at_end = self._log.snapshot().seen

    @property
    def _is_over(self) -> bool:
        return self._log.scheduler.state is State.FINISHED

    def tell_saved(self) -> None:
        """Tell the log of the newest checkpoint, unless it knows or an older one is on its way there."""
        if self._saved is None or self._is_over:
            return
        if not any(isinstance(event, events.CheckpointSaved) for event in self._log.snapshot().proposed):
            self._log.append(self._saved)
            self._saved = None

    def _on_their_way(self) -> list[events.Proposal]:
        return [said for said in self._log.snapshot().proposed if isinstance(said, events.Proposal)]

    def _refuse(self, proposals: Iterable[events.Proposal], flaw: str) -> None:
        for proposal in proposals:
            for text in refused_texts(proposal, flaw):
                self._say(text)
