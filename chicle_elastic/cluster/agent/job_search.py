"""Whether the job still lives, as far as a joining node that reaches none of its agents can tell."""

from collections.abc import Set
from dataclasses import dataclass

from chicle_elastic.cluster.consensus.term_store import Beacon, Term

UNREACHABLE_S = 6.0
"""After so long without reaching any agent of the job, a joining node looks whether the job is dead."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the store says about a job of which no agent can be reached.

    Attributes:
        is_dead: The job may be begun anew.
        silent: Address of each incarnation of which nothing is known but that it does not answer.
        reason: Why this node waits, in words.
    """

    is_dead: bool
    silent: dict[str, str]
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
        """What is in the store now.

        Args:
            term: The newest term.
            beacon: The beacon.
            dead: Incarnations that are proven dead.
            waited_s: Seconds since this node has reached an agent.
            now: Seconds on the clock of this agent.

        Returns:
            None as long as it is too early to say.
        """
        if beacon != self._beacon:
            self._beacon, self._moved_s = beacon, now
        if waited_s <= UNREACHABLE_S:
            return None
        agents = {term.lead: term.address}
        for agent in beacon.agents:  # of an earlier term some were lost since; of this one some have joined since
            if beacon.term == term.term or agent.life in term.members:
                agents[agent.life] = agent.address
        silent = {life: address for life, address in agents.items() if life not in dead}
        is_alive = now - self._moved_s < UNREACHABLE_S
        state = "the job lives" if is_alive else "the job may live, although its leader has given no sign for a while"
        whom = ", ".join(f"{life} at {address}" for life, address in silent.items()) or "they have just changed"
        remedy = "" if is_alive else ", or, if they have all ended, begin the job anew with --begin-anew"
        return Finding(
            is_dead=not is_alive and (not silent or self._may_begin_anew),
            silent=silent,
            reason=f"{state}, and this node has reached none of its agents for {waited_s:.0f} s: {whom}; open the "
            f"ports between the hosts, give the agents addresses that others reach{remedy}",
        )
