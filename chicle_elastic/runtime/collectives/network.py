"""What a member of a round needs of the network beyond the rendezvous store."""

from dataclasses import dataclass, field
from typing import Any

from chicle_elastic.transports.addresses import PortRange
from chicle_elastic.transports.node_address import NodeAddress
from chicle_elastic.transports.secret import JobSecret


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNetwork:
    """Where this member listens, and how the members of the round recognise each other.

    Attributes:
        address: Of this node.
        secret: Of this round, the same for all its members and derived from the job's; tasks do not know that one.
    """

    address: NodeAddress
    secret: JobSecret = field(repr=False)

    @classmethod
    def of(cls, *, bind: str, advertise: str, first_port: int = 0, last_port: int = 0, key: str) -> "GroupNetwork":
        """From the values of a message; `key` is the secret of the round in hex digits."""
        address = NodeAddress(bind=bind, advertise=advertise, ports=PortRange(first_port, last_port))
        return cls(address=address, secret=JobSecret(bytes.fromhex(key)))


def gloo_group(store: Any, rank: int, size: int, network: GroupNetwork, timeout: Any) -> Any:
    """A `ProcessGroupGloo` whose connections use the advertised address.

    gloo's default is the address that the name of the host resolves to: on Debian and Ubuntu that is 127.0.1.1, where
    members on other hosts find nothing, and in many containers it is none.

    Raises:
        RuntimeError: The members could not connect, or the address is not one of this host.
        SecretError: A process without the secret of the round wrote an address of gloo into the store.
    """
    from torch.distributed import ProcessGroupGloo

    kind: Any = ProcessGroupGloo  # torch declares neither of the two

    options = kind._Options()
    options._timeout = timeout
    options._devices = [kind.create_device(hostname=network.address.advertise)]
    return ProcessGroupGloo(store, rank, size, options)
