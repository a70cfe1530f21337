"""Holds the shared state of the rendezvous for one agent: signed, compare-and-set, and stubborn.

What foreign values do (a forgery, a pickle, garbage, an older state put back): nothing of them is believed. A process
that has seen a good state logs the error, puts that state back and goes on. One that has not waits a moment for others
to do so, and then raises `ForgedStateError`. So the error comes in the process whose secret is wrong, and in all of
them only where nobody has ever seen a good state.
"""

import logging
import threading
import time
from collections.abc import Callable

from chicle_elastic.clock import Clock
from chicle_elastic.cluster import rendezvous_state as states
from chicle_elastic.cluster.rendezvous_errors import ForgedStateError
from chicle_elastic.cluster.rendezvous_state import RendezvousState
from chicle_elastic.cluster.signed_cell import Reading, SignedCell
from chicle_elastic.errors import ProtocolError

HEAL_S = 2.0
"""How long others may take to put a state right that cannot be believed."""
RETRY_S = 0.020

logger = logging.getLogger(__name__)


class StateHolder:
    """Reads and writes the state; from any thread.

    Args:
        cell: Where the state lies.
        owner: Name of the agent, for messages.
        clock: For the patience with a state that cannot be believed.
    """

    def __init__(self, cell: SignedCell, *, owner: str, clock: Clock) -> None:
        self._cell = cell
        self._owner = owner
        self._clock = clock
        self._lock = threading.RLock()
        self._known: RendezvousState | None = None
        self._unbelieved_since_s: float | None = None

    def look(self) -> tuple[Reading, RendezvousState | None]:
        """The state, with the reading that `write` needs; None while what lies there cannot be believed.

        Raises:
            ForgedStateError: That has gone on for `HEAL_S`.
            StoreLostError: The store is gone.
        """
        with self._lock:
            reading = self._cell.read()
            state, problem = self._believe(reading)
            if problem is None:
                self._unbelieved_since_s = None
                self._known = state or self._known
                return reading, self._known or RendezvousState()
            if self._known is not None:
                logger.error("%s puts the last good state of the rendezvous back: %s", self._owner, problem)
                self.write(reading, self._known)
                return self._cell.read(), self._known
            now_s = self._clock.now()
            if self._unbelieved_since_s is None:
                self._unbelieved_since_s = now_s
            if now_s - self._unbelieved_since_s >= HEAL_S:
                raise ForgedStateError(f"{self._owner} cannot take part in the job: {problem}")
            return reading, None

    def write(self, seen: Reading, state: RendezvousState) -> bool:
        """Put a state in place of what was seen; False when somebody was faster."""
        with self._lock:
            # A state that comes back after a forgery may be older than what is known, and serials never go back.
            new = states.written(state, after=self._known.serial if self._known else 0)
            value = new.to_json()
            if is_written := self._cell.is_in_place(self._cell.swap(seen, value), value):
                self._known = new
            return is_written

    def change(self, transition: Callable[[RendezvousState], RendezvousState]) -> None:
        """Apply a transition to the state in the store, however often somebody else is faster.

        Raises:
            ForgedStateError: See `look`.
            StoreLostError: The store is gone.
        """
        while True:
            reading, state = self.look()
            if state is None:
                time.sleep(RETRY_S)
                continue
            wanted = transition(state)
            if wanted == state or self.write(reading, wanted):
                return

    def _believe(self, reading: Reading) -> tuple[RendezvousState | None, str | None]:
        """The state that was read, or why it is not believed; neither when there was nothing."""
        if reading.problem is not None:
            return None, reading.problem
        if reading.raw is None:
            return None, None
        try:
            state = RendezvousState.from_json(reading.value)
        except ProtocolError as error:
            return None, str(error)
        if self._known is not None and state.serial < self._known.serial:
            return None, f"somebody put write {state.serial} of the state back, and {self._known.serial} was seen"
        return state, None
