"""The leader of each term: one signed value in the rendezvous store, replaced once per term.

    {"term": 3, "lead": "n1#8f3a", "address": "tcp://10.0.0.7:41234", "members": ["n1#8f3a", "n2#07bc"],
     "electorates": [{"n1": "n1#8f3a", "n2": "n2#07bc"}]}

The store has no other part in the log: of several agents that ask for a term, the first one is granted it. A leader
that was elected while the store was unreachable writes its term later (`heal`), and restores it when another process
has overwritten it; a foreign value is an error for a node that wants to join.

Beside the term the leader keeps a *beacon*, a counter that it increments each second, with the addresses of all agents
that it reaches: as long as the counter moves the job lives, and a node that reaches none of them must not begin another
one. Every agent stores its own address, one key per node, so that agents find each other without a leader. An agent
that ends in order marks it: where its host is gone as well, no refused connection would prove that it has ended.

A store that was restarted is empty. The leader then stores its term again (`heal`), each agent its address
(`publish_again`). Until the leader has had the time for it, no agent is granted a term, not even one that knows of no
term before: a store says when it has been there for so long (`SETTLED_KEY`). Nodes that paused with the job come before
those that would begin another one.
"""

import logging
import threading
import time
from dataclasses import dataclass

from chicle_elastic.cluster.consensus.messages import Electorates, Term
from chicle_elastic.cluster.rendezvous.errors import ForgedStateError, StoreUnreachableError
from chicle_elastic.cluster.rendezvous.signed_value import Reading, SignedValue
from chicle_elastic.cluster.rendezvous.store import RESTORE_S, SETTLED_KEY, SETTLED_S
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import codec
from chicle_elastic.transports.secret import JobSecret

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """How to reach an agent: its incarnation, where it accepts links, and whether it has ended in order."""

    life: str
    address: str
    has_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Beacon:
    """The sign of life of a leader."""

    count: int = 0
    term: int = 0  # of the leader
    leader: str = ""  # its incarnation; empty before the first sign
    agents: tuple[Contact, ...] = ()


class TermStore:
    """The values of one job. Thread-safe: a lock serialises the operations on its connection to the store."""

    def __init__(self, store: StoreConnection, *, run_id: str, secret: JobSecret) -> None:
        self._store, self._secret, self._run_id = store, secret, run_id
        self._cell = SignedValue(store, key=f"chicle/{run_id}/term", secret=secret)
        self._beacon_cell = SignedValue(store, key=f"chicle/{run_id}/beacon", secret=secret)
        self._lock = threading.Lock()
        self._empty_since_s: float | None = None
        self._published: tuple[NodeId, Contact] | None = None

    def look(self) -> Term:
        """The newest term. Raises ForgedStateError when the store holds a foreign value, StoreUnreachableError when the
        store does not answer."""
        with self._lock:
            return self._judge(self._cell.read())

    def claim(
        self, term: int, contact: Contact, members: tuple[str, ...], electorates: Electorates = (), *, known: int
    ) -> tuple[bool, Term]:
        """Ask for a term. Returns whether it was granted, and the newest term. Raises ForgedStateError when the store
        holds a foreign value, StoreUnreachableError when the store does not answer.

        Args:
            known: Newest term that this one may follow on.
        """
        with self._lock:
            seen = self._cell.read()
            newest = self._judge(seen)
            wanted = Term(
                term=term, lead=contact.life, address=contact.address, members=members, electorates=electorates
            )
            if newest == wanted:
                return True, newest  # an earlier attempt was executed, and its answer lost
            if not self._is_settled(seen, knows_job=known > 0):
                raise StoreUnreachableError(
                    f"the rendezvous store at {self._store.endpoint} has just begun and has no term of "
                    f"{self._run_id!r} yet"
                )
            if newest.term > known or newest.term >= term:
                return False, newest
            value = codec.to_values(wanted)
            now = self._cell.swap(seen, value)
            return self._cell.is_in_place(now, value), self._judge(now)

    def heal(self, known: Term) -> Term:
        """Write the term that the leader knows to be the newest, if the store has none that new, or a foreign value.
        Returns the term that the store has now; none where another agent was faster. Raises StoreUnreachableError when
        the store does not answer."""
        with self._lock:
            seen = self._cell.read()
            try:
                newest = self._judge(seen)
                if newest.term >= known.term:
                    return newest
                found = f"it holds term {newest.term}" if newest.term else "it holds none: it was restarted"
                logger.warning("the leader restores term %d in the rendezvous store: %s", known.term, found)
            except ForgedStateError as error:
                logger.error("the leader restores term %d in the rendezvous store: %s", known.term, error)
            values = codec.to_values(known)
            return known if self._cell.is_in_place(self._cell.swap(seen, values), values) else Term()

    def beat(self, term: int, leader: str, agents: tuple[Contact, ...]) -> None:
        """The leader lives: increment the counter of the beacon. Raises StoreUnreachableError when the store does not
        answer."""
        with self._lock:
            seen = self._beacon_cell.read()
            count = self._beacon(seen).count + 1
            self._beacon_cell.swap(seen, codec.to_values(Beacon(count=count, term=term, leader=leader, agents=agents)))

    def beacon(self) -> Beacon:
        """The last sign of life of a leader. Raises StoreUnreachableError when the store does not answer."""
        with self._lock:
            return self._beacon(self._beacon_cell.read())

    @property
    def _has_reconnected(self) -> bool:
        return self._store.generation > 1

    def _is_settled(self, seen: Reading, *, knows_job: bool) -> bool:
        """Whether the store holds a term, or has held none for so long that no leader is there to restore it.

        Args:
            seen: The value of the term.
            knows_job: This node has the job, if it may go on: it comes before those that would begin another one.
        """
        if not knows_job and not self._has_reconnected and (seen.raw is not None or self._has_store_settled()):
            return True
        now = time.monotonic()
        if seen.raw is not None:
            self._empty_since_s = None
        elif self._empty_since_s is None:
            self._empty_since_s = now
        wait_s = RESTORE_S if knows_job else SETTLED_S
        return self._empty_since_s is None or now - self._empty_since_s > wait_s

    def _has_store_settled(self) -> bool:
        """Say whether the store, empty now, has been there for so long that nobody is left who would fill it."""
        return self._store.compare_set(SETTLED_KEY, "?", "?") != b"?"

    @staticmethod
    def _beacon(reading: Reading) -> Beacon:
        """A foreign value is none: the leader overwrites it within a second."""
        try:
            beacon: Beacon = codec.from_values(reading.value, Beacon)
        except ProtocolError:
            return Beacon()
        return beacon

    def publish(self, node: NodeId, contact: Contact) -> None:
        """Let others find this agent. Raises StoreUnreachableError when the store does not answer."""
        cell = self._contact_cell(node)
        value = {"life": contact.life, "address": contact.address}
        with self._lock:
            while not cell.is_in_place(cell.swap(cell.read(), value), value):
                pass  # another process writes this key too: retry, or no agent would find this one
            self._published = node, contact

    def mark_ended(self) -> None:
        """The agent takes no part in the job any more, and accepts no links. Raises StoreUnreachableError when the
        store does not answer."""
        with self._lock:
            published, self._published = self._published, None
            if published is None:
                return
            node, contact = published
            cell = self._contact_cell(node)
            seen = cell.read()
            if isinstance(seen.value, dict) and seen.value.get("life") == contact.life:
                cell.swap(seen, {"life": contact.life, "address": contact.address, "has_ended": True})

    def publish_again(self) -> bool:
        """Let others find this agent after the store was restarted, too. Returns whether the store did not hold what
        this agent has published. Raises StoreUnreachableError when the store does not answer."""
        with self._lock:
            published = self._published
            if published is None:
                return False
            node, contact = published
            cell = self._contact_cell(node)
            seen = cell.read()
            if seen.raw is not None:
                return False
            cell.swap(seen, {"life": contact.life, "address": contact.address})
            return True

    def find(self, node: NodeId) -> Contact | None:
        """How to reach the agent of a node; None when the store holds no signed contact of it. Raises
        StoreUnreachableError when the store does not answer."""
        with self._lock:
            value = self._contact_cell(node).read().value
        if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in ("life", "address")):
            return None
        return Contact(life=value["life"], address=value["address"], has_ended=value.get("has_ended") is True)

    def _contact_cell(self, node: NodeId) -> SignedValue:
        key = f"chicle/{self._run_id}/agent/{node}"
        return SignedValue(self._store, key=key, secret=self._secret)

    def _judge(self, reading: Reading) -> Term:
        if reading.raw is None:
            return Term()
        value = reading.value
        if reading.problem is None:
            try:
                term: Term = codec.from_values(value, Term)
                return term
            except ProtocolError:
                pass
        raise ForgedStateError(
            f"the rendezvous store holds no valid term of job {self._run_id!r}: "
            f"{reading.problem or 'the value is signed, but malformed'}; give all nodes the same secret and version"
        )
