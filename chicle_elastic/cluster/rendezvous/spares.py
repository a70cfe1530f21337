"""Signs of life of the nodes that wait for a place at plain torchrun's rendezvous; members watch them.

A node that waits writes a counter into the store every second. A member looks at the counters when its agent asks how
many nodes wait, as torch's agents always do. A node of which the counter stands still is dropped: its host is gone, and
the next round would wait for it.
"""

import functools
import logging
import time

from chicle_elastic.cluster.rendezvous import state as states
from chicle_elastic.cluster.rendezvous.job_entry import JobEntry
from chicle_elastic.cluster.rendezvous.signed_value import SignedValue
from chicle_elastic.cluster.rendezvous.state import RendezvousState, RoundMember
from chicle_elastic.cluster.rendezvous.store import round_prefix

SIGN_S = 1.0
SILENT_S = 5.0
"""Several signs: to drop a node that lives costs a line, as it waits again at once; a dead one costs a last call."""

logger = logging.getLogger(__name__)


class Spares:
    """The nodes that wait, as one agent sees them; or this agent as one of them."""

    def __init__(self, entry: JobEntry) -> None:
        self._entry = entry
        self._due_s, self._count = 0.0, 0
        self._heard: dict[RoundMember, tuple[object, float]] = {}  # the last sign, and since when it is known

    def show(self, state: RendezvousState, me: RoundMember) -> None:
        """Give a sign of life, if this node is not in the round. Raises StoreUnreachableError when the store does not
        answer."""
        if me not in state.members and self._is_due():
            self._count += 1
            sign = self._sign(state, me)
            sign.swap(sign.read(), self._count)

    def drop_silent(self, state: RendezvousState) -> bool:
        """Drop the nodes of which the signs have ended. Returns whether there were any. One that never gave a sign is
        of an earlier release. Raises StoreUnreachableError when the store does not answer."""
        if not self._is_due():
            return False
        now_s, before, self._heard = time.monotonic(), self._heard, {}
        for spare in state.waiting:
            sign, (known, since_s) = self._sign(state, spare).read().value, before.get(spare, (None, now_s))
            self._heard[spare] = (sign, since_s if sign == known else now_s)
        silent = [spare for spare, (sign, since_s) in self._heard.items() if sign and now_s - since_s >= SILENT_S]
        for spare in silent:
            logger.warning("%s waited for a place, and is dropped: silent for %g s", spare.node, SILENT_S)
        if silent:
            self._entry.state.change(functools.partial(states.drop, silent=silent))
        return bool(silent)

    def _is_due(self) -> bool:
        is_due = time.monotonic() >= self._due_s
        self._due_s = time.monotonic() + SIGN_S if is_due else self._due_s
        return is_due

    def _sign(self, state: RendezvousState, spare: RoundMember) -> SignedValue:
        key = f"{round_prefix(self._entry.run_id, state.round)}waiting/{spare.token}"
        return SignedValue(self._entry.store, key=key, secret=self._entry.secret)
