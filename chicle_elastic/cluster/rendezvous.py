"""Chicle's rendezvous for torch elastic: signed state, called rounds, nobody waits for a clock.

Agents of Chicle say who is expected (`expect`) before each `next_rendezvous`; see `rendezvous_state` for the rules.
Under plain torchrun (`torchrun --rdzv-backend chicle`) nobody does, and the handler behaves like torch's own.

How a member waits: it reads the state after 1 ms, and ever later up to 20 ms while nothing changes. A read is one
round trip (12 us on loopback). torch's blocking `wait` would need a second connection per agent, could not be
interrupted from another thread, and prints a warning whenever it ends without a result.

What foreign values in the store do, see `state_holder`.
"""

import functools
import logging
import math
import secrets
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from chicle_elastic.clock import Clock, MonotonicClock
from chicle_elastic.cluster import rendezvous_state as states
from chicle_elastic.cluster.rendezvous_errors import (
    IdentityError,
    JobClosedError,
    RoundAbandonedError,
    RoundTimeoutError,
)
from chicle_elastic.cluster.rendezvous_state import Member, RendezvousState
from chicle_elastic.cluster.signed_cell import SignedCell
from chicle_elastic.cluster.state_holder import StateHolder
from chicle_elastic.cluster.store_host import (
    address_towards,
    connect_store,
    open_secret,
    parse_endpoint,
    prune_rounds,
    round_prefix,
    store_errors,
)
from chicle_elastic.errors import ChicleError, UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.settings import Settings
from chicle_elastic.transports.secret import JobSecret

BACKEND = "chicle"
POLL_FIRST_S = 0.001
POLL_LAST_S = 0.020
KEPT_ROUNDS = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousSettings:
    """How long the handler waits for what. (In plain torchrun: `--rdzv-conf join_timeout=...,last_call_timeout=...`.)

    Attributes:
        join_timeout_s: For a round that nobody called.
        last_call_s: For further nodes, when enough are there and it is not known who else will come.
    """

    join_timeout_s: float = 600.0
    last_call_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A round that the scheduler called."""

    round: int
    members: tuple[NodeId, ...]
    timeout_s: float


class ChicleRendezvousHandler(RendezvousHandler):
    """One agent's side of the rendezvous.

    Args:
        store: A connection of its own to the store (`connect_store`).
        endpoint: Where the store is; told to the members of called rounds as the place where their group is set up.
        run_id: Of the job.
        node: Name of this node.
        secret: Of the job.
        min_nodes: Fewer make no round, where nobody called it.
        max_nodes: More find no place, where nobody called it.
        address: Of this host, for others; by default the one on the way to the store.
        settings: See there.
        clock: For time-outs.
    """

    def __init__(
        self,
        store: TCPStore,
        *,
        endpoint: str,
        run_id: str,
        node: NodeId,
        secret: JobSecret,
        min_nodes: int = 1,
        max_nodes: int = states.MAX_MEMBERS,
        address: str | None = None,
        settings: RendezvousSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not run_id or "/" in run_id or max_nodes > states.MAX_MEMBERS:
            raise UsageError(
                f"run id {run_id!r} with up to {max_nodes} nodes: the run id (--rdzv-id) has to have no slash and some "
                f"other character, and a job has at most {states.MAX_MEMBERS} nodes (--nnodes)"
            )
        self.store = store
        self.endpoint = endpoint
        self.node = node
        self.min_nodes, self.max_nodes = min_nodes, max_nodes
        self._run_id = run_id
        self._settings = settings or RendezvousSettings()
        self._clock = clock or MonotonicClock()
        cell = SignedCell(store, endpoint=endpoint, key=f"chicle/{run_id}/rendezvous", secret=secret)
        self._secret = secret
        self._state = StateHolder(cell, owner=node, clock=self._clock)
        self._me = Member(
            node=node,
            token=secrets.token_hex(8),
            host=address or address_towards(endpoint),
            port=_free_port(),
        )
        self._wake = threading.Event()
        self._abandoned: tuple[int, str] = (-1, "")
        self._call: _Call | None = None
        self._is_called = False
        self._has_left = False
        self._round = 0
        self._members: tuple[NodeId, ...] = ()

    # What Chicle's agent uses.

    @property
    def round(self) -> int:
        """Number of the last round that this node was a member of; 0 before the first."""
        return self._round

    @property
    def members(self) -> tuple[NodeId, ...]:
        """Its members in rank order."""
        return self._members

    def await_calls(self) -> None:
        """All rounds of this handler will be called (`expect`): its end is not that of the job, however early it is."""
        self._is_called = True

    def expect(self, *, round: int, members: tuple[NodeId, ...], timeout_s: float) -> None:
        """Say what the next `next_rendezvous` is for; to be said again before each.

        Args:
            round: Number of the round, higher than those before.
            members: Everybody, in the rank order that is wanted; the same at all of them.
            timeout_s: How long to wait for the last one.

        Raises:
            UsageError: This node is not among the members.
        """
        if self.node not in members or len(set(members)) != len(members) or not timeout_s > 0:
            raise UsageError(
                f"round {round} of {', '.join(members)} within {timeout_s} s was called at {self.node}: the members "
                "have to be different ones, this node among them, and the time > 0"
            )
        self._call = _Call(round=round, members=members, timeout_s=timeout_s)
        self._is_called = True

    def abandon(self, *, round: int, reason: str) -> None:
        """Wait no longer for this round or one before it; from any thread, before or during `next_rendezvous`."""
        if round > self._abandoned[0]:
            self._abandoned = (round, reason)
        self._wake.set()

    def leave(self) -> None:
        """This node takes part no more; the others are not waited for and go on. Idempotent.

        Raises:
            StoreLostError: The store is gone.
        """
        self._has_left = True
        self._state.change(lambda state: states.depart(state, self._me))

    # What torch's agents use.

    def next_rendezvous(self) -> RendezvousInfo:
        """Take part in a round, and wait until it is complete.

        Returns:
            Rank, number of nodes, a store for the agents of this round, and where its tasks can meet: for a called
            round at the job's store, otherwise at a port of rank 0.

        Raises:
            RoundTimeoutError: Somebody did not come in time.
            RoundAbandonedError: `abandon` was called, or the others are in a later round.
            JobClosedError: The job is over.
            IdentityError: There is another agent with the name of this node.
            ForgedStateError: What lies in the store cannot be believed, and nobody put it right.
            StoreLostError: The store is gone.
            ProtocolError: Others were told of other members, or are of another version.
        """
        call, self._call = self._call, None
        if call is None and self._is_called:
            raise UsageError(f"next_rendezvous of {self.node} without a round; say expect(...) before each")
        state = self._wait_for(call)
        self._round, self._members = state.round, tuple(member.node for member in state.members)
        rank = state.members.index(self._me)
        if rank == 0:
            with store_errors(self.endpoint):
                prune_rounds(self.store, self._run_id, before=state.round - KEPT_ROUNDS + 1)
        host, port = parse_endpoint(self.endpoint) if call else (state.members[0].host, state.members[0].port)
        agents = PrefixStore(f"{round_prefix(self._run_id, state.round)}agents", self.store)
        return RendezvousInfo(agents, rank, len(state.members), RendezvousStoreInfo(host, port))

    def get_backend(self) -> str:
        """ "chicle"."""
        return BACKEND

    def get_run_id(self) -> str:
        """Of the job."""
        return self._run_id

    def is_closed(self) -> bool:
        """Whether the job is over."""
        _, state = self._state.look()
        return state is not None and state.is_closed

    def set_closed(self, *, is_success: bool = False) -> None:
        """The job is over: nobody may join any more.

        Args:
            is_success: It has done what it was to do.
        """
        self._state.change(functools.partial(states.close, is_success=is_success))

    def require_open(self) -> None:
        """See that the job is not over.

        Raises:
            JobClosedError: It is.
            StoreLostError: The store is gone.
        """
        _, state = self._state.look()
        if state is not None:
            self._require_open(state)

    def num_nodes_waiting(self) -> int:
        """Number of nodes for which a new round would be good; torch's own agents poll this.

        Nodes that wait and would find a place. At least 1 when others have begun a new round already: torch's agents
        then come too, instead of waiting for a collective to fail.
        """
        _, state = self._state.look()
        if state is None or state.is_closed:
            return 0
        if not state.is_complete or state.round > self._round:
            return 1
        return len(state.waiting) if len(state.members) - len(state.gone) < self.max_nodes else 0

    def shutdown(self) -> bool:
        """This agent ends. Under plain torchrun that closes the rendezvous, as torch's own does, unless it left.

        In a job of Chicle one agent ends and the others go on, whatever the reason; its end is said by `set_closed`.

        Returns:
            Whether the store was still there to be told.
        """
        try:
            if self._is_called or self._has_left:
                self.leave()
            else:
                self.set_closed()
        except (ChicleError, OSError) as error:
            logger.warning("%s could not say goodbye at the rendezvous: %s", self.node, error)
            return False
        return True

    # How.

    def _require_open(self, state: RendezvousState) -> None:
        if state.is_closed:
            raise JobClosedError(
                f"the job {self._run_id!r} is over; {self.node} comes too late", is_success=state.is_success
            )

    def _wait_for(self, call: _Call | None) -> RendezvousState:
        start_s = changed_s = self._clock.now()
        timeout_s = call.timeout_s if call else self._settings.join_timeout_s
        serial, poll_s = -1, POLL_FIRST_S
        while True:
            self._wake.clear()  # before the look at what it announces
            if call and call.round <= self._abandoned[0]:
                raise RoundAbandonedError(f"round {call.round} is not waited for any more: {self._abandoned[1]}")
            now_s = self._clock.now()
            reading, state = self._state.look()
            if state is not None:
                self._require_open(state)
                if state.serial != serial:
                    serial, changed_s, poll_s = state.serial, now_s, POLL_FIRST_S
                if self._is_in(state, call):
                    self._publish(state)
                    return state
                is_quiet = now_s - changed_s >= self._settings.last_call_s
                wanted = self._step(state, call, is_quiet)
                if wanted != state:
                    self._state.write(reading, wanted)
                    continue  # look at once, whether it was written or somebody was faster
            if call and (published := self._published(call)):
                return published
            if now_s - start_s >= timeout_s:
                raise RoundTimeoutError(_too_late(self.node, call, state, timeout_s))
            self._wake.wait(min(poll_s, max(0.0, start_s + timeout_s - now_s)))
            poll_s = min(poll_s * 1.5, POLL_LAST_S)

    def _is_in(self, state: RendezvousState, call: _Call | None) -> bool:
        """Whether this is the round that this node waits for, complete and with it."""
        is_the_round = state.round == call.round if call else state.round > self._round
        return is_the_round and state.is_complete and self._me in state.members

    def _publish(self, state: RendezvousState) -> None:
        """Write the complete state under the round's own key too, before this node goes on and looks no more.

        Should the state be lost now (forged, and put back by a member that had not seen it complete yet), then the
        members that still wait find it there; nobody else would tell them.
        """
        if state.is_called:
            cell = self._round_cell(state.round)
            reading = cell.read()
            if reading.raw is None or reading.problem is not None:
                cell.swap(reading, state.to_json())

    def _published(self, call: _Call) -> RendezvousState | None:
        """What another member published of this round; None while nobody has."""
        reading = self._round_cell(call.round).read()
        if reading.raw is None or reading.problem is not None:
            return None
        state = RendezvousState.from_json(reading.value)
        return state if self._me in state.members else None

    def _round_cell(self, round: int) -> SignedCell:
        key = f"{round_prefix(self._run_id, round)}members"
        return SignedCell(self.store, endpoint=self.endpoint, key=key, secret=self._secret)

    def _step(self, state: RendezvousState, call: _Call | None, is_quiet: bool) -> RendezvousState:
        """What this node makes of the state; the same when it only has to wait."""
        if call is None:
            wanted = states.come(state, self._me, max_nodes=self.max_nodes)
            ready = states.may_complete(wanted, min_nodes=self.min_nodes, is_quiet=is_quiet and wanted == state)
            return states.complete(wanted) if ready else wanted
        if state.round > call.round:
            raise RoundAbandonedError(
                f"{self.node} comes to round {call.round}, and the others are in round {state.round} already; it was "
                "taken for dead, and has to join again"
            )
        if state.round == call.round and (other := state.member(self.node)) and other != self._me:
            raise IdentityError(
                f"another agent takes part in round {call.round} as {self.node} (at {other.host}); give every node a "
                "name of its own (--name)"
            )
        return states.call(state, self._me, round=call.round, expected=call.members)


def create_handler(parameters: RendezvousParameters) -> ChicleRendezvousHandler:
    """The handler for the parameters that torchrun collected.

    Of `--rdzv-conf`: join_timeout, last_call_timeout (seconds), secret_file, node.

    Raises:
        UsageError: No secret, no endpoint, or values that are no numbers.
        StoreLostError: There is no store at the endpoint.
    """
    secret_file = parameters.get("secret_file") or Settings.from_environment().secret_file
    if secret_file is None:
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
    store = connect_store(parameters.endpoint)
    return ChicleRendezvousHandler(
        store,
        endpoint=parameters.endpoint,
        run_id=parameters.run_id,
        node=node,
        secret=open_secret(Path(secret_file), endpoint=parameters.endpoint),
        min_nodes=parameters.min_nodes,
        max_nodes=parameters.max_nodes,
        address=parameters.local_addr,
        settings=settings,
    )


def _seconds(parameters: RendezvousParameters, key: str, default: float) -> float:
    try:
        value = float(parameters.get(key, default))
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"--rdzv-conf {key}={parameters.get(key)} is no number of seconds >= 0")
    return value


def _too_late(node: NodeId, call: _Call | None, state: RendezvousState | None, timeout_s: float) -> str:
    if state is None:
        return f"{node} found no state of the rendezvous that it could believe within {timeout_s:g} s"
    here = ", ".join(member.node for member in state.members) or "nobody"
    if call is not None:
        return (
            f"round {call.round} is not complete after {timeout_s:g} s: here are {here}, missing is "
            f"{', '.join(state.missing()) or 'nobody'}; who does not come has to be declared lost before the next round"
        )
    return (
        f"{node} was in no complete round after {timeout_s:g} s (round {state.round}: {here}); start more nodes, or "
        "allow fewer (--nnodes MIN:MAX)"
    )


def _free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])
