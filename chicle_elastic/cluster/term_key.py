"""Who leads: one signed value in the rendezvous store, replaced once per term.

    {"term": 3, "lead": "n1#8f3a", "address": "tcp://10.0.0.7:41234", "members": ["n1#8f3a", "n2#07bc"]}

The store has no part in the log but this: a term is granted to whoever replaces the value of the term before it.
A value that cannot be believed is an error for whoever wants to join; the lead puts its own back (`heal`). Addresses of
all agents lie beside it, one key per node, so that agents find each other without a lead.
"""

import logging
import threading
from dataclasses import dataclass

from torch.distributed import Store

from chicle_elastic.cluster.rendezvous_errors import ForgedStateError
from chicle_elastic.cluster.signed_cell import Reading, SignedCell
from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling.codec import decode_fields, encode_fields
from chicle_elastic.transports.secret import JobSecret

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """What the store says of a term.

    Attributes:
        term: Its number; 0 before the first.
        lead: Life of the agent that leads.
        address: Where that agent takes links.
        members: Lives that it began with.
    """

    term: int = 0
    lead: str = ""
    address: str = ""
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """How to reach an agent: its life, and where it takes links."""

    life: str
    address: str


class TermKey:
    """The values of one job. Thread-safe: a connection to the store does one thing at a time, so others wait.

    Args:
        store: Connection of its own.
        endpoint: Where the store is, for messages.
        run_id: Of the job.
        secret: Of the job.
    """

    def __init__(self, store: Store, *, endpoint: str, run_id: str, secret: JobSecret) -> None:
        self._store, self._endpoint, self._secret, self._run_id = store, endpoint, secret, run_id
        self._cell = SignedCell(store, endpoint=endpoint, key=f"chicle/{run_id}/term", secret=secret)
        self._lock = threading.Lock()

    def look(self) -> Term:
        """The newest term.

        Raises:
            ForgedStateError: What lies there cannot be believed.
            StoreLostError: The store is gone.
        """
        with self._lock:
            return self._judge(self._cell.read())

    def claim(self, term: int, contact: Contact, members: tuple[str, ...]) -> tuple[bool, Term]:
        """Ask for a term.

        Returns:
            Whether it was granted, and the newest term.

        Raises:
            ForgedStateError: What lies there cannot be believed.
            StoreLostError: The store is gone.
        """
        with self._lock:
            seen = self._cell.read()
            newest = self._judge(seen)
            if newest.term != term - 1:
                return False, newest
            value = _encode(Term(term=term, lead=contact.life, address=contact.address, members=members))
            now = self._cell.swap(seen, value)
            return self._cell.is_in_place(now, value), self._judge(now)

    def heal(self, known: Term) -> bool:
        """Put the term that the lead knows to be the newest back, if something that cannot be believed lies there.

        Returns:
            Whether that was so.

        Raises:
            StoreLostError: The store is gone.
        """
        with self._lock:
            seen = self._cell.read()
            try:
                self._judge(seen)
            except ForgedStateError as error:
                logger.error("the lead puts term %d back into the store: %s", known.term, error)
                self._cell.swap(seen, _encode(known))
                return True
            return False

    def publish(self, node: NodeId, contact: Contact) -> None:
        """Let others find this agent.

        Raises:
            StoreLostError: The store is gone.
        """
        cell = self._contact_cell(node)
        value = {"life": contact.life, "address": contact.address}
        with self._lock:
            while not cell.is_in_place(cell.swap(cell.read(), value), value):
                pass  # somebody else writes there: as long as nobody stops that, nobody would find this agent

    def find(self, node: NodeId) -> Contact | None:
        """How to reach the agent of a node; None when nothing credible lies there.

        Raises:
            StoreLostError: The store is gone.
        """
        with self._lock:
            value = self._contact_cell(node).read().value
        if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in ("life", "address")):
            return None
        return Contact(life=value["life"], address=value["address"])

    def _contact_cell(self, node: NodeId) -> SignedCell:
        key = f"chicle/{self._run_id}/agent/{node}"
        return SignedCell(self._store, endpoint=self._endpoint, key=key, secret=self._secret)

    def _judge(self, reading: Reading) -> Term:
        if reading.raw is None:
            return Term()
        value = reading.value
        if reading.problem is None:
            try:
                return decode_fields(Term, value, "the term in the store")
            except ProtocolError:
                pass
        raise ForgedStateError(
            f"the term of job {self._run_id!r} in the rendezvous store cannot be believed: "
            f"{reading.problem or 'it is signed, but no term'}"
        )


def _encode(term: Term) -> dict[str, object]:
    return encode_fields(term)
