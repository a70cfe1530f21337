"""The entry to a job, in the rendezvous store: whether the job is open, seen from one agent."""

import functools
from pathlib import Path

from chicle_elastic.clock import MonotonicClock
from chicle_elastic.cluster.rendezvous import state as states
from chicle_elastic.cluster.rendezvous.errors import JobClosedError
from chicle_elastic.cluster.rendezvous.signed_value import SignedValue
from chicle_elastic.cluster.rendezvous.state import RendezvousState
from chicle_elastic.cluster.rendezvous.state_store import StateStore
from chicle_elastic.cluster.rendezvous.store import open_secret
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.transports.secret import JobSecret


class JobEntry:
    """See the top of the module. Raises UsageError when run id or number of nodes cannot be."""

    def __init__(
        self,
        store: StoreConnection,
        *,
        run_id: str,
        node: NodeId,
        secret: JobSecret,
        min_nodes: int,
        max_nodes: int,
    ) -> None:
        if not run_id or "/" in run_id or max_nodes > states.MAX_MEMBERS:
            raise UsageError(
                f"run id {run_id!r} with up to {max_nodes} nodes: the run id (--rdzv-id) has to have no slash and some "
                f"other character, and a job has at most {states.MAX_MEMBERS} nodes (--nnodes)"
            )
        self.store, self.run_id, self.node, self.secret = store, run_id, node, secret
        self.min_nodes, self.max_nodes = min_nodes, max_nodes
        cell = SignedValue(store, key=f"chicle/{run_id}/rendezvous", secret=secret)
        self.state = StateStore(cell, owner=node, clock=MonotonicClock())  # the shared state of the rendezvous
        self._has_seen_open = False

    @classmethod
    def open(
        cls, endpoint: str, *, run_id: str, node: NodeId, secret_file: Path | None, min_nodes: int, max_nodes: int
    ) -> "JobEntry":
        """Connect to the store and enter a job. Raises UsageError when there is no secret, StoreUnreachableError when
        there is no store at the endpoint, JobClosedError when the job is over."""
        secret = open_secret(secret_file, endpoint=endpoint)
        store = StoreConnection(endpoint).connect()
        entry = cls(store, run_id=run_id, node=node, secret=secret, min_nodes=min_nodes, max_nodes=max_nodes)
        entry.require_open()  # before a task is started, which would run the script of the user
        return entry

    def restore(self) -> None:
        """Store again whether the job is over, if the store was restarted. Raises StoreUnreachableError when the store
        does not answer."""
        self.state.restore()

    def set_closed(self, *, is_success: bool = False) -> None:
        """The job is over: no node may join any more."""
        self.state.change(functools.partial(states.close, is_success=is_success))

    def require_open(self) -> None:
        """Check that the job is not over. Raises JobClosedError when the job is over, StoreUnreachableError when the
        store does not answer."""
        _, state = self.state.read()
        if state is not None:
            self.check(state)

    def check(self, state: RendezvousState) -> None:
        """Check that a state that was read is that of an open job. Raises JobClosedError when the job is over."""
        if state.is_closed:
            raise JobClosedError(
                f"the job {self.run_id!r} is over; {self.node} comes too late to join it, and runs nothing: begin "
                "another job with another --rdzv-id, or at a new store",
                is_success=state.is_success,
                is_late=state.is_success and not self._has_seen_open,
            )
        self._has_seen_open = True
