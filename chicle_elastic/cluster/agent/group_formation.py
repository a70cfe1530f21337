"""What this agent tells its task to connect to the others of a round, and what it does when that fails again and again.

One failure is ordinary: a member has died, and the next round goes without it. Failures of round after round mean that
two hosts cannot reach each other by the addresses that they advertise, which no further try repairs. So after
`MANY` of them the agent says so once, with the addresses, and waits longer before each next rendezvous; the quorum
timeout (`--patience`) counts meanwhile.
"""

import logging
import zlib
from collections.abc import Callable, Sequence

from chicle_elastic.cluster.net.peers import Peer
from chicle_elastic.cluster.rendezvous.store import parse_endpoint, round_prefix
from chicle_elastic.ids import NodeId
from chicle_elastic.runtime.control.messages import Connect, RoundNetwork
from chicle_elastic.transports.addresses import parse_tcp
from chicle_elastic.transports.node_address import NodeAddress
from chicle_elastic.transports.secret import JobSecret

MANY = 5
FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 15.0

logger = logging.getLogger(__name__)


class GroupFormation:
    """See the top of the module.

    Args:
        rdma: Name of the device that the model may go by; "" for none.
        address_of: The address that another node advertises, for the message; None while it is unknown.
    """

    def __init__(
        self,
        *,
        node: NodeId,
        address: NodeAddress,
        run_id: str,
        secret: JobSecret,
        patience_s: float,
        rdma: str = "",
        address_of: Callable[[NodeId], str | None],
    ) -> None:
        self._node, self._address, self._run_id = node, address, run_id
        self._secret, self._patience_s, self._address_of = secret, patience_s, address_of
        self._members: tuple[NodeId, ...] = ()
        self._last_round = 0
        self._num_failures = 0
        self._rdma = rdma

    def order(self, number: int, round: int, members: tuple[NodeId, ...], store: str) -> Connect:
        """Have the task of this node connect to the members of a round. Others may have been foreseen as members of it:
        keys in the store and the secret are those of these members.

        Args:
            number: Of its rendezvous.
            store: Endpoint of the store of the round.
        """
        host, port = parse_endpoint(store)
        prefix = f"{round_prefix(self._run_id, number)}group/{zlib.crc32(' '.join(members).encode())}"
        address = self._address
        network = RoundNetwork(
            bind=address.bind,
            advertise=address.advertise,
            first_port=address.ports.first,
            last_port=address.ports.last,
            key=self._secret.derive(prefix),
            rdma=self._rdma,
        )
        rank = members.index(self._node)
        return Connect(round=round, rank=rank, members=members, host=host, port=port, prefix=prefix, network=network)

    def called(self, members: Sequence[NodeId]) -> None:
        """A round of these members is to be formed: other members may be able to connect."""
        if tuple(members) != self._members:
            self._members = tuple(members)
            self._num_failures = 0

    def succeeded(self, round: int) -> None:
        """The members of a round have connected; its group may break later, which is no failure to form."""
        self._last_round, self._num_failures = round, 0

    def failed(self, round: int, reason: str) -> None:
        """The tasks of a round could not connect. Says so when it has happened `MANY` times to the same members."""
        if round == self._last_round or len(self._members) < 2:
            return
        self._last_round = round
        self._num_failures += 1
        if self._num_failures == MANY:
            logger.error("%s", self._explain(reason))

    @property
    def is_failing(self) -> bool:
        """Whether the present members have failed to connect `MANY` times in a row."""
        return self._num_failures >= MANY

    @property
    def pause_s(self) -> float:
        """How long to wait before the next rendezvous."""
        if not self.is_failing:
            return 0.0
        return min(LAST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self._num_failures - MANY))

    def describe(self) -> str:
        """The addresses of all members, as they advertise them."""
        others = [
            f"{node} at {self._address_of(node) or 'an unknown address'}"
            for node in self._members
            if node != self._node
        ]
        return f"{self._node} at {self._address.advertise}, {', '.join(others)}"

    def _explain(self, reason: str) -> str:
        return (
            f"the tasks of {len(self._members)} nodes could not connect {MANY} times in a row: {self.describe()} "
            f"({reason}). The agents reach each other, the tasks do not: check that a firewall leaves the ports of the "
            "tasks open (--port-range keeps all listeners of a node within a range), and that each address is one that "
            "the other hosts reach (--bulk-interface, --interface or --advertise chooses it; `chicle doctor --peer` "
            f"tries it). Further tries follow at intervals of up to {LAST_PAUSE_S:g} s, for {self._patience_s:g} s "
            "(--patience)"
        )


def host_of_peer(peer: Peer | None) -> str | None:
    """The address that a peer advertises; None while there is no link to it."""
    if peer is None or peer.endpoints is None:
        return None
    return parse_tcp(peer.endpoints.tcp)[0]
