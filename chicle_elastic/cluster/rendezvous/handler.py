"""Chicle's rendezvous for plain torchrun (`torchrun --rdzv-backend chicle`), with signed state in the store.

Members meet in the store (see `state` for the rules), and the handler behaves like torch's own. The agents of a Chicle
job need none: they meet in the replicated log. A member waits by polling: it reads the state after 1 ms, and ever later
up to 20 ms while nothing changes. A read is one round trip (12 us on loopback). torch's blocking `wait` would need a
second connection per agent, and prints a warning whenever it ends without a result.

For foreign values in the store see `state_store`.
"""

import functools
import logging
import math
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import PrefixStore, Store
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from chicle_elastic.cluster.rendezvous import state as states
from chicle_elastic.cluster.rendezvous.errors import RoundTimeoutError
from chicle_elastic.cluster.rendezvous.job_entry import JobEntry
from chicle_elastic.cluster.rendezvous.secret_watch import SecretWatch
from chicle_elastic.cluster.rendezvous.spares import Spares
from chicle_elastic.cluster.rendezvous.state import RendezvousState, RoundMember
from chicle_elastic.cluster.rendezvous.store import (
    address_towards,
    connect_store,
    keys_of_rounds,
    round_prefix,
)
from chicle_elastic.errors import ChicleError, UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.runtime.collectives.torch_store import torch_store
from chicle_elastic.settings import Settings
from chicle_elastic.transports.key_values import KeyValueClient

BACKEND = "chicle"
POLL_FIRST_S = 0.001
POLL_LAST_S = 0.020
KEPT_ROUNDS = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousSettings:
    """Timeouts: `--rdzv-conf join_timeout=...,last_call_timeout=...`."""

    join_timeout_s: float = 600.0
    last_call_s: float = 5.0  # for further nodes, when enough have arrived and the further ones are not known


class ChicleRendezvousHandler(RendezvousHandler):
    """One agent's side of the rendezvous."""

    def __init__(
        self,
        entry: JobEntry,
        settings: RendezvousSettings,
        *,
        address: str | None = None,
        secret_file: Path | None = None,
    ) -> None:
        self.entry = entry
        self._watch = SecretWatch(entry.secret, secret_file, entry.store, owner=entry.node)
        self._settings, self._state = settings, entry.state
        self._me = RoundMember(
            node=entry.node,
            token=secrets.token_hex(8),
            host=address or address_towards(entry.store.endpoint),
            port=_free_port(),
        )
        self._spares = Spares(entry)
        self._torch_store: Store | None = None
        self._round = 0

    def next_rendezvous(self) -> RendezvousInfo:
        """Take part in a round, as soon as it is complete. Raises RoundTimeoutError when too few nodes arrived in time,
        JobClosedError when the job is over, ForgedStateError when the store holds a foreign value, and no agent has
        restored the state, StoreUnreachableError when the store does not answer, ProtocolError when other agents run
        another version.

        Returns:
            Rank, number of nodes, a store for the agents of this round, and the address where its tasks connect.
        """
        state = self._wait()
        self._round = state.round
        rank = state.members.index(self._me)
        if rank == 0:
            old = state.round - KEPT_ROUNDS + 1
            store = self.entry.store
            for key in keys_of_rounds(store.call(KeyValueClient.list_keys), self.entry.run_id, before=old):
                store.call(functools.partial(KeyValueClient.delete_key, key=key))
        self._torch_store = torch_store(connect_store(self.entry.store.endpoint))
        agents = PrefixStore(f"{round_prefix(self.entry.run_id, state.round)}agents", self._torch_store)
        first = state.members[0]
        return RendezvousInfo(agents, rank, len(state.members), RendezvousStoreInfo(first.host, first.port))

    def get_backend(self) -> str:
        """ "chicle"."""
        return BACKEND

    def get_run_id(self) -> str:
        """Of the job."""
        return self.entry.run_id

    def is_closed(self) -> bool:
        """Whether the job is over."""
        _, state = self._state.read()
        return state is not None and state.is_closed

    def set_closed(self, *, is_success: bool = False) -> None:
        """The job is over: no node may join any more."""
        self.entry.set_closed(is_success=is_success)

    def num_nodes_waiting(self) -> int:
        """Number of nodes that a new round would admit; torch's own agents poll this. These are the waiting nodes,
        unless the job is full. It is 1 when other nodes have begun a new round already: torch's agents then join it,
        instead of waiting for a collective to fail."""
        _, state = self._state.read()
        if state is None or state.is_closed or self._spares.drop_silent(state):
            return 0  # for now
        if not state.is_complete or state.round > self._round:
            return 1
        return len(state.waiting) if len(state.members) < self.entry.max_nodes else 0

    def shutdown(self) -> bool:
        """End this agent's part and close the rendezvous, as torch's own does. Returns whether the store could still be
        written."""
        self._watch.close()
        try:
            self.set_closed()
        except (ChicleError, OSError) as error:
            logger.warning("%s could not leave the rendezvous in order: %s", self.entry.node, error)
            return False
        return True

    # How.

    def _wait(self) -> RendezvousState:
        """Wait for the next round with this node in it."""
        start_s = changed_s = time.monotonic()
        timeout_s = self._settings.join_timeout_s
        serial, poll_s = -1, POLL_FIRST_S
        while True:
            now_s = time.monotonic()
            reading, state = self._state.read()
            if state is not None:
                self.entry.check(state)
                if state.serial != serial:
                    serial, changed_s, poll_s = state.serial, now_s, POLL_FIRST_S
                if state.round > self._round and state.is_complete and self._me in state.members:
                    return state
                self._spares.show(state, self._me)
                wanted = self._step(state, is_quiet=now_s - changed_s >= self._settings.last_call_s)
                if wanted != state:
                    is_full = len(wanted.members) == self.entry.max_nodes  # who is missing has no place then
                    missing = wanted.missing() if wanted.is_complete and not is_full else ()
                    if self._state.write(reading, wanted) and missing:
                        names, waited_s = ", ".join(missing), now_s - changed_s
                        said = wanted.round, names, waited_s
                        logger.warning("round %d begins without %s, which did not come for %.1f s", *said)
                    continue  # read again at once, whether this write or that of another agent has won
            if now_s - start_s >= timeout_s:
                raise RoundTimeoutError(_too_late(self.entry.node, state, timeout_s))
            time.sleep(min(poll_s, max(0.0, start_s + timeout_s - now_s)))
            poll_s = min(poll_s * 1.5, POLL_LAST_S)

    def _step(self, state: RendezvousState, *, is_quiet: bool) -> RendezvousState:
        """The state that this node wants to write; the same one when it only has to wait."""
        wanted = states.come(state, self._me, max_nodes=self.entry.max_nodes)
        ready = states.may_complete(wanted, min_nodes=self.entry.min_nodes, is_quiet=is_quiet and wanted == state)
        return states.complete(wanted) if ready else wanted


def create_handler(parameters: RendezvousParameters) -> ChicleRendezvousHandler:
    """The handler for the parameters that torchrun collected. Of `--rdzv-conf`: join_timeout, last_call_timeout
    (seconds), secret_file, node. Raises UsageError when there is no secret or no endpoint, or a value is not a number,
    StoreUnreachableError when there is no store at the endpoint, JobClosedError when the job is over."""
    settings_here = Settings.from_environment()
    given = parameters.get("secret_file") or (None if settings_here.secret else settings_here.secret_file)
    secret_file = None if given is None else Path(given)
    if secret_file is None and settings_here.secret is None:
        raise UsageError(
            "no job secret: set CHICLE_SECRET_FILE to a file of mode 0600 with the same content on every node"
        )
    if parameters.get_as_bool("is_host", False):
        raise UsageError(
            "is_host=1: a node may leave, and so never serves the rendezvous store; run it beside the nodes: python -m "
            f"chicle_elastic.launch --store-only --rdzv-endpoint {parameters.endpoint}"
        )
    defaults = RendezvousSettings()
    settings = RendezvousSettings(
        join_timeout_s=_seconds(parameters, "join_timeout", defaults.join_timeout_s),
        last_call_s=_seconds(parameters, "last_call_timeout", defaults.last_call_s),
    )
    node = NodeId(str(parameters.get("node") or f"{socket.gethostname()}-{secrets.token_hex(4)}"))
    entry = JobEntry.open(
        parameters.endpoint,
        run_id=parameters.run_id,
        node=node,
        secret_file=secret_file,
        min_nodes=parameters.min_nodes,
        max_nodes=parameters.max_nodes,
    )
    return ChicleRendezvousHandler(entry, settings, address=parameters.local_addr, secret_file=secret_file)


def _seconds(parameters: RendezvousParameters, key: str, default: float) -> float:
    try:
        value = float(parameters.get(key, default))
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"--rdzv-conf {key}={parameters.get(key)} has to be a number of seconds >= 0")
    return value


def _too_late(node: NodeId, state: RendezvousState | None, timeout_s: float) -> str:
    if state is None:
        return f"{node} read no valid rendezvous state within {timeout_s:g} s; give all nodes the same secret"
    present = ", ".join(member.node for member in state.members) or "no node"
    return (
        f"{node} was in no complete round after {timeout_s:g} s (round {state.round}: {present}); start more nodes, or "
        "allow fewer (--nnodes MIN:MAX)"
    )


def _free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])
