"""Whether the job still lives, as far as a joining node that reaches none of its agents can tell."""

from collections.abc import Set
from dataclasses import dataclass

from chicle_elastic.cluster.consensus.term_store import Beacon, Term

UNREACHABLE_S = 6.0
"""After so long without reaching any agent of the job, a joining node says so, and may be told that the job is dead."""
PROVEN_S = 2.0
"""The same where every agent is proven dead. An agent that the beacon does not name yet would have claimed a term by
then: it has joined within the last second, and the end of the leader's process closes its link to it at once."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the store says about a job of which no agent can be reached."""

    is_dead: bool  # the job may be begun anew
    is_late: bool  # this node has reached no agent for so long that people should know why it waits
    silent: dict[str, str]  # address of each incarnation of which nothing is known but that it does not answer
    reason: str


class JobSearch:
    """Watches the beacon of a job. `begin` comes first.

    Args:
        may_begin_anew: The operator says that no agent is alive; a beacon that moves proves the contrary.
    """

    def __init__(self, *, may_begin_anew: bool) -> None:
        self._may_begin_anew = may_begin_anew
        self._beacon, self._moved_s = Beacon(), 0.0

    def begin(self, now: float) -> None:
        """An incarnation begins to search."""
        self._moved_s = now

    def look(self, term: Term, beacon: Beacon, *, dead: Set[str], waited_s: float, now: float) -> Finding | None:
        """Read what is in the store now. Returns None as long as it is too early to say.

        Args:
            waited_s: Seconds since this node has reached an agent.
        """
        if beacon != self._beacon:
            self._beacon, self._moved_s = beacon, now
        if waited_s <= PROVEN_S:
            return None
        is_late = waited_s > UNREACHABLE_S
        agents = {term.lead: term.address}
        for agent in beacon.agents:  # of an earlier term some were lost since; of this one some have joined since
            if beacon.term == term.term or agent.life in term.members:
                agents[agent.life] = agent.address
        silent = {life: address for life, address in agents.items() if life not in dead}
        is_proven = not silent and now - self._moved_s >= PROVEN_S
        is_alive = not is_proven and now - self._moved_s < UNREACHABLE_S
        state = "the job lives" if is_alive else "the job may live, although its leader has given no sign for a while"
        whom = ", ".join(f"{life} at {address}" for life, address in silent.items()) or "they have just changed"
        remedy = "" if is_alive else ", or, if they have all ended, begin the job anew with --begin-anew"
        return Finding(
            is_dead=is_proven or (is_late and not is_alive and self._may_begin_anew),
            is_late=is_late,
            silent=silent,
            reason=f"{state}, and this node has reached none of its agents for {waited_s:.0f} s: {whom}; open the "
            f"ports between the hosts, give the agents addresses that others reach{remedy}",
        )
