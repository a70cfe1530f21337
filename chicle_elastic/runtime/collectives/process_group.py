"""The process group of one round: all-reduce and broadcast over the members' own sockets (`socket_group`).

Theory of operation. Every round has a group of its own, on keys that no other round has. A group lives like this:

    ProcessGroup()  in the control thread, when the round is foreseen or called: it can be broken from now on
    begin()         in the control thread: begin to find the others through the round store and to connect to each of
                    them, which takes five round trips, while iterations run, the agents meet and chunks move
    connect()       in the main thread, when the members have met: wait until all are connected
                    connect_devices(), where all have agreed on it: the same between their CUDA devices
    all_reduce() .. in the main thread, one at a time
    break_()        in any thread, at any time: all waiting in the group ends with PeerLostError
    close()         in the main thread

Breaking shuts the connections down, which wakes whoever waits for a peer. While the group connects, a thread of its own
does that: nothing wakes a connection to a host that is silent, so a broken group abandons the thread, and it ends with
its timeout.

A peer that dies closes its connections by itself; the error comes at once. The agents detect a silent host and order
the break; a connection that was cut without a reset is found by the sockets. The group itself has no timeout while a
peer computes.

Every task gets the same bits from `all_reduce`. Updates on CUDA devices are added up there if every member has one
(`nccl_allreduce`). Nothing else here needs torch: the tasks of linear models never import it.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import PeerLostError
from chicle_elastic.runtime.collectives.nccl_allreduce import CONNECT_S as CONNECT_DEVICES_S
from chicle_elastic.runtime.collectives.nccl_allreduce import NcclAllReduce, nccl_group
from chicle_elastic.runtime.collectives.signed_store import SignedStore
from chicle_elastic.runtime.collectives.socket_group import GroupNetwork, SocketGroup
from chicle_elastic.runtime.collectives.torch_store import torch_store
from chicle_elastic.transports.key_values import KeyValueClient

CONNECT_TIMEOUT_S = 20.0
MOST_DETAIL = 200  # characters of an error in another one

Address: TypeAlias = tuple[str, int]

logger = logging.getLogger(__name__)


class ProcessGroup:
    """The members of a round, seen from one of them. A group of one needs no connection. One class because its threads
    share one state: a break has to find every connection that any of them has made.

    Args:
        names: Nodes of the members, by rank.
        rdma_failures: Names of nodes that this process could not reach by RDMA, of all its groups; INOUT.
    """

    def __init__(
        self, *, round: int, rank: int, size: int, names: Sequence[str] = (), rdma_failures: set[str] | None = None
    ) -> None:
        self.round = round
        self.rank = rank
        self.size = size
        self._names = names
        self._rdma_failures = set() if rdma_failures is None else rdma_failures
        self._lock = threading.Lock()
        self._is_broken = False
        self._settled = threading.Event()  # connected, failed to connect, or broken meanwhile
        self._begun: tuple[Address, str, GroupNetwork] | None = None
        self._store: KeyValueClient | None = None  # the connection on which a thread of this group waits, to wake it
        self._sockets: SocketGroup | None = None
        self._nccl_allreduce: NcclAllReduce | None = None
        self._error: Exception | None = None

    @property
    def is_broken(self) -> bool:
        """Whether the group is unusable, because of `break_` or of a member that was lost."""
        return self._is_broken

    @property
    def device_sums(self) -> NcclAllReduce | None:
        """Where to put updates that lie on a device; None where all updates are summed over the hosts."""
        return self._nccl_allreduce

    @property
    def sums(self) -> str:
        """Say by what updates are summed: "tcp", "rdma" or "nccl"; "" in a group of one."""
        if self._nccl_allreduce is not None:
            return "nccl"
        return "" if self._sockets is None else self._sockets.way

    def begin(
        self, store: Address, *, prefix: str, network: GroupNetwork, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> None:
        """Begin to connect to all other members, who do the same."""
        self._begun = store, prefix, network
        if self.size > 1:
            threading.Thread(
                target=self._connect, args=(store, prefix, network, timeout_s), name="chicle-group-connect", daemon=True
            ).start()

    def connect(self) -> None:
        """Wait until all members are connected, after `begin`. Raises PeerLostError when a member did not connect, the
        store is gone, or the group was broken meanwhile."""
        self._require_whole()
        if self.size == 1:
            return
        assert self._begun is not None
        network = self._begun[2]
        self._settled.wait()
        if self._error is not None:
            self._is_broken = True
            raise self._lost("could not be formed", self._error) from self._error
        host, failures = network.address.advertise, self._rdma_failures
        self._do("looking for RDMA", lambda group: group.use_rdma(host=host, device=network.rdma, failures=failures))

    def connect_devices(
        self,
        *,
        device: Any,
        num_values: int,
        make_group: Callable[[Any, int, int], Any] = nccl_group,
        timeout_s: float = CONNECT_DEVICES_S,
    ) -> bool:
        """Connect this member's device to those of all others, who do the same; then `device_sums` is set, or None.
        Raises PeerLostError when a member was lost, the store is gone, or the group was broken meanwhile. Returns
        whether `device_sums` is set, which is so for all members or for none. If it is not, no member should try again
        in a later round.

        Args:
            make_group: Makes a raw process group from (store, rank, size); called in another thread.
        """
        self._require_whole()
        assert self._begun is not None
        self.all_gather(np.zeros(1))  # the time for devices begins when those that had to catch up are there, too
        store, prefix, network = self._begun
        client = self._open_store(store, timeout_s)
        signed = torch_store(SignedStore(client, f"{prefix}/devices", network.secret))
        sums, reason = NcclAllReduce.connect(
            lambda: make_group(signed, self.rank, self.size),
            device=device,
            num_values=num_values,
            is_over=lambda: self._is_broken,
            timeout_s=timeout_s,
        )
        self._nccl_allreduce = sums  # from now on closed with the group, also after an error
        if sums is not None:
            self._close_store()  # NCCL has no more to ask it; otherwise an abandoned thread may still
        if self.all_gather(np.array([float(sums is not None)])).all():
            return True
        logger.warning(
            "round %d, rank %d: NCCL cannot connect all devices; the updates are summed over the hosts. %s",
            self.round,
            self.rank,
            f"On this rank: {reason}" if reason else "It failed on another rank.",
        )
        if sums is not None:
            sums.abort()
            self._nccl_allreduce = None
        return False

    def add_up_on_devices(self, out: Array) -> None:
        """Sum what all members have put into `device_sums`; the same bits for every member. Raises PeerLostError when a
        member was lost, or the group was broken; the content of `out` is undefined.

        Args:
            out: OUT; the sum, ndarray of shape (num_values,), float64, C-contiguous.
        """
        assert self._nccl_allreduce is not None
        self._require_whole()
        try:
            self._nccl_allreduce.add_up(out, is_over=lambda: self._is_broken)
        except RuntimeError as error:
            self._is_broken = True
            raise self._lost("was cut off in a sum on devices", error) from error
        self._require_whole()

    def all_reduce(self, buffer: Array) -> None:
        """Replace `buffer` by the sum of the members' buffers, in place; the same bits for every member. Raises
        PeerLostError when a member was lost, or the group was broken; the content of `buffer` is undefined.

        Args:
            buffer: ndarray of shape (n,), float64 or float32, C-contiguous; the same n and dtype for every member.
        """
        self._do("an all-reduce", lambda group: group.all_reduce(buffer))

    def broadcast(self, buffer: Array, *, root: int, to: Sequence[int]) -> None:
        """Replace `buffer` of the members `to` by that of the member `root`, in place; no other member calls it. Raises
        PeerLostError when a member was lost, or the group was broken; the content of `buffer` is undefined.

        Args:
            buffer: ndarray of shape (n,), float64, float32 or uint8, C-contiguous; the same for every member.
        """
        self._do("a broadcast", lambda group: group.broadcast(buffer, root=root, to=to))

    def exchange(
        self, outgoing: Mapping[int, Sequence[memoryview]], incoming: Mapping[int, Sequence[memoryview]]
    ) -> None:
        """Send views to members and receive others, by rank (`SocketGroup.exchange`). Raises PeerLostError when a
        member was lost, or the group was broken; the content of `incoming` is undefined."""
        self._do("a transfer", lambda group: group.exchange(outgoing, incoming))

    def all_gather(self, row: Array) -> Array:
        """Gather the rows of all members. Raises PeerLostError when a member was lost, or the group was broken. Returns
        ndarray of shape (size, n), by rank.

        Args:
            row: ndarray of shape (n,), float64; finite.
        """
        rows = np.zeros((self.size, len(row)))
        rows[self.rank] = row
        self.all_reduce(rows.reshape(-1))
        return rows

    def break_(self) -> None:
        """End all waiting in this group, now and later. From any thread; may be called again."""
        with self._lock:
            self._is_broken = True
            self._settled.set()
            if self._store is not None:
                self._store.shut_down()
            if self._sockets is not None:
                self._sockets.shut_down()

    def close(self) -> None:
        """Leave. Peers that still wait get a PeerLostError."""
        self.break_()
        self._close_store()
        with self._lock:
            sockets, self._sockets = self._sockets, None
        if sockets is not None:
            sockets.close()
        if self._nccl_allreduce is not None:
            self._nccl_allreduce.abort()

    def _connect(self, store: Address, prefix: str, network: GroupNetwork, timeout_s: float) -> None:
        sockets: SocketGroup | None = None
        error: Exception | None = None
        try:
            client = self._open_store(store, timeout_s)
            sockets = SocketGroup.connect(
                self.rank,
                self.size,
                store=SignedStore(client, prefix, network.secret),
                network=network,
                is_over=self._settled.is_set,
                timeout_s=timeout_s,
                names=self._names,
                wants_rdma=bool(network.rdma) and self._rdma_failures.isdisjoint(self._names),
            )
        except Exception as caught:  # whatever it is, as no thread that can be started: who waits is told
            error = caught
        self._close_store()
        with self._lock:
            if not self._settled.is_set():
                self._sockets, self._error = sockets, error
                self._settled.set()
            elif sockets is not None:  # broken meanwhile
                sockets.close()

    def _open_store(self, store: Address, timeout_s: float) -> KeyValueClient:
        try:
            client = KeyValueClient(*store, connect_s=timeout_s)
        except OSError as error:
            raise PeerLostError(
                f"the store of the round at {store[0]}:{store[1]} does not answer ({error.strerror or error}); the "
                "agent of the round's first member serves it: is that node gone, or a firewall in between?"
            ) from error
        with self._lock:
            self._store = client
            self._require_whole()
        return client

    def _close_store(self) -> None:
        with self._lock:
            client, self._store = self._store, None
        if client is not None:
            client.close()

    def _do(self, what: str, call: Callable[[SocketGroup], None]) -> None:
        self._require_whole()
        if self._sockets is None:
            return  # a group of one
        try:
            call(self._sockets)
        except OSError as error:
            self._is_broken = True
            raise self._lost(f"was cut off in {what}", error) from error
        self._require_whole()

    def _require_whole(self) -> None:
        if self._is_broken:
            raise self._lost("is broken", None)

    def _lost(self, what: str, error: Exception | None) -> PeerLostError:
        detail = f" ({str(error).strip()[:MOST_DETAIL]})" if error else ""
        return PeerLostError(
            f"the group of round {self.round} {what}{detail}, seen from rank {self.rank} of {self.size}; the agents "
            "form the next round without the members that are gone"
        )
