"""Holds the shared state of the rendezvous for one agent: signed, compare-and-set, and self-healing.

No agent accepts a foreign value (a forgery, a pickle, garbage, a rolled-back state). An agent that has read a valid
state before logs the error, restores that state and goes on. An agent that has not waits `HEAL_S` for another one to
restore it, and then raises `ForgedStateError`. So the error is raised in the process whose secret is wrong, and in all
processes only if none of them has ever read a valid state.
"""

import logging
import threading
import time
from collections.abc import Callable

from chicle_elastic.clock import Clock
from chicle_elastic.cluster.rendezvous import state as states
from chicle_elastic.cluster.rendezvous.errors import ForgedStateError
from chicle_elastic.cluster.rendezvous.signed_value import Reading, SignedValue
from chicle_elastic.cluster.rendezvous.state import RendezvousState
from chicle_elastic.errors import ProtocolError

HEAL_S = 2.0  # how long other agents may take to restore the state after a foreign value
RETRY_S = 0.020

logger = logging.getLogger(__name__)


class StateStore:
    """Reads and writes the state; from any thread."""

    def __init__(self, cell: SignedValue, *, owner: str, clock: Clock) -> None:
        self._cell = cell
        self._owner = owner
        self._clock = clock
        self._lock = threading.RLock()
        self._known: RendezvousState | None = None
        self._foreign_since_s: float | None = None

    def read(self) -> tuple[Reading, RendezvousState | None]:
        """The state, with the reading that `write` needs; the state is None while the store holds a foreign value.
        Raises ForgedStateError when the store has held a foreign value for `HEAL_S`, StoreUnreachableError when the
        store does not answer."""
        with self._lock:
            reading = self._cell.read()
            state, problem = self._decode(reading)
            if problem is None:
                self._foreign_since_s = None
                self._known = state or self._known
                return reading, self._known or RendezvousState()
            if self._known is not None:
                logger.error("%s restores the last valid state of the rendezvous: %s", self._owner, problem)
                self.write(reading, self._known)
                return self._cell.read(), self._known
            now_s = self._clock.now()
            if self._foreign_since_s is None:
                self._foreign_since_s = now_s
            if now_s - self._foreign_since_s >= HEAL_S:
                raise ForgedStateError(f"{self._owner} cannot take part in the job: {problem}")
            return reading, None

    def write(self, seen: Reading, state: RendezvousState) -> bool:
        """Write a state in place of what was read; False when another agent wrote first."""
        with self._lock:
            # A state restored after a forgery may be older than what this agent has read, and serials only grow.
            new = states.written(state, after=self._known.serial if self._known else 0)
            value = new.to_json()
            if is_written := self._cell.is_in_place(self._cell.swap(seen, value), value):
                self._known = new
            return is_written

    def change(self, transition: Callable[[RendezvousState], RendezvousState]) -> None:
        """Apply a transition to the state in the store; retried as often as another agent writes first. Raises
        ForgedStateError as `read` does, StoreUnreachableError when the store does not answer."""
        while True:
            reading, state = self.read()
            if state is None:
                time.sleep(RETRY_S)
                continue
            wanted = transition(state)
            if wanted == state or self.write(reading, wanted):
                return

    def restore(self) -> None:
        """Write the state that this agent knows into a store that was restarted and so has none. Raises
        StoreUnreachableError when the store does not answer."""
        with self._lock:
            reading = self._cell.read()
            if reading.raw is None and self._known is not None:
                self.write(reading, self._known)

    def _decode(self, reading: Reading) -> tuple[RendezvousState | None, str | None]:
        """The state that was read, or why it is not accepted; neither when the key was absent."""
        if reading.problem is not None:
            return None, reading.problem
        if reading.raw is None:
            return None, None
        try:
            state = RendezvousState.from_json(reading.value)
        except ProtocolError as error:
            return None, str(error)
        if self._known is not None and state.serial < self._known.serial:
            return None, f"the state was rolled back to write {state.serial}, after write {self._known.serial} was read"
        return state, None
