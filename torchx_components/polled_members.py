"""Members of a scheduler that answers slowly: a thread asks it, and the methods for the anchor never wait."""

import threading
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from chicle_elastic.errors import PeerLostError, UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.resources.managers import Assigned, Said
from torchx_components.serving import Member

POLL_S = 1.0

M = TypeVar("M", bound=Member)


class PolledMembers(Generic[M]):
    """The part of `Members` that does not depend on the scheduler. Subclasses implement `_turn` and `_close`.

    Args:
        least, most: Fewest and most members that are ever asked for.
        close_s: How long one turn may take.
    """

    name = ""  # of the scheduler, in messages

    def __init__(self, *, begin: int, least: int, most: int, close_s: float) -> None:
        self.members: Mapping[NodeId, M] = {}  # those that have a place, by name; replaced as a whole
        self._least, self._most, self._close_s = least, most, close_s
        self._wanted = min(begin, most)
        self._said: list[Said] = []
        self._fault: str | None = None
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._is_over = self._is_ending = False
        self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)

    def request(self, total: int, reason: str) -> None:
        """As of `ResourceManager`, within the fewest and the most members."""
        with self._lock:
            self._wanted = max(self._least, min(total, self._most))
        self._woken.set()

    def stop_starting(self) -> None:
        """As of `Members`."""
        self._is_ending = True
        self._woken.set()

    def poll(self, now_s: float) -> Sequence[Said]:
        """As of `ResourceManager`. Raises PeerLostError when the scheduler has given the members up, unless the job is
        over."""
        with self._lock:
            if self._fault is not None and not self._is_ending:
                raise PeerLostError(self._fault)
            said, self._said = self._said, []
            return said

    def close(self) -> None:
        """End the thread, then what is left of the members."""
        self._is_over = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(self._close_s)
        self._close()

    def _turn(self) -> None:
        """Ask the scheduler once, and tell it what is wanted."""
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def _found(self, running: Mapping[NodeId, M], said: Sequence[Said] = (), *, fault: str | None) -> None:
        """Take note of the members that have a place now, and tell of those that are new.

        Args:
            fault: Why the scheduler gives the members up, as it says now; None where it does not.
        """
        new = [Assigned(name) for name in running if name not in self.members]
        with self._lock:
            self.members, self._fault = running, fault
            self._said += [*new, *said]

    def _work(self) -> None:
        while not self._is_over:
            try:
                self._turn()
            except (PeerLostError, UsageError) as error:
                # A server that restarts is no reason to end; a right that was taken away may come back.
                print(f"{self.name}: {error}; it is asked again", flush=True)
            self._woken.wait(POLL_S)
            self._woken.clear()
