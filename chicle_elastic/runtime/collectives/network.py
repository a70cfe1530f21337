"""What a member of a round needs of the network beyond the rendezvous store."""

from dataclasses import dataclass, field

from chicle_elastic.transports.addresses import PortRange
from chicle_elastic.transports.node_address import NodeAddress
from chicle_elastic.transports.secret import JobSecret


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNetwork:
    """Where this member listens, and how the members of the round recognise each other."""

    address: NodeAddress  # of this node
    # of this round, the same for all its members and derived from the job's; tasks do not know that one
    secret: JobSecret = field(repr=False)

    @classmethod
    def of(cls, *, bind: str, advertise: str, first_port: int = 0, last_port: int = 0, key: str) -> "GroupNetwork":
        """From the values of a message; `key` is the secret of the round in hex digits."""
        address = NodeAddress(bind=bind, advertise=advertise, ports=PortRange(first_port, last_port))
        return cls(address=address, secret=JobSecret(bytes.fromhex(key)))
