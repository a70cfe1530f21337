"""What an agent knows of the resource manager, which runs in another process: requests go there, offers come."""

from typing import Protocol

from chicle_elastic.scheduling import effects, events


class ResourceLink(Protocol):
    """The way of an agent to the resource manager of its job. Used in the loop; no method waits.

    Every agent of the job performs the same requests, each at its time; the manager takes the one with the highest
    number. Every agent hears of each offer, and the first member of the round tells the log. So neither is lost with
    an agent.
    """

    offer: events.ResourcesOffered | None  # the last offer that came; None before the first one

    def request(self, effect: effects.RequestNodes) -> None:
        """Tell the resource manager what the job wants."""

    def finish(self, reason: str, *, has_failed: bool) -> None:
        """Tell it that the job is over, and needs no node in place of those that end now."""
