"""The process group of one round: all-reduce and broadcast over gloo; small sums bypass it (`small_allreduce`).

Theory of operation. Every round has a group of its own, a raw `ProcessGroupGloo` on keys that no other round has.
torch's default group is left alone: initialised a second time after a failure, its keys differ from those of its peers
and it waits for ever (measured). A group lives like this:

    ProcessGroup()  in the control thread, when the round is announced: from now on it can be broken
    connect()       in the main thread: find the others through the rendezvous store, connect to each of them
                    connect_devices(), where all have agreed on it: the same between their CUDA devices
    all_reduce() .. in the main thread, one at a time
    break_()        in any thread, at any time: all waiting in the group ends with PeerLostError
    close()         in the main thread: a background thread does the rest, because it may take milliseconds

Breaking a collective. gloo's `abort` does not wake a collective that waits for a silent peer (torch 2.13, measured);
the end of its connections does. So the connections that the group has opened are shut down: the TCP sockets of this
process that are new since `connect` began, without those to the stores of rounds (`store_client`). Any other connection
that another thread of this process opens in those few milliseconds would be taken for one of the group's. Listening
sockets are left alone: gloo ends the process when one of its own breaks (measured).

A collective that gloo never completes. When a member dies at the wrong moment gloo closes all its connections and one
of its threads waits for ever (torch 2.13: once in about a hundred deaths, measured). So the main thread waits in
slices, and abandons a broken group whose collective has not ended in the next slice; gloo's part of it stays until the
process ends, because destroying it would wait for that thread.

Breaking `connect`. gloo waits for connections of a peer that has just died until its timeout, and nothing wakes it. So
a thread of its own connects, and a broken group abandons it; it ends with the timeout. (It is no daemon: the end of the
interpreter would stop it inside gloo, and end the process with an abort.)

A peer that dies closes its connections by itself; the error comes at once. The agents detect a silent peer and order
the break: the group itself has no timeout while a peer computes.

Every task gets the same bits from `all_reduce`: one member computes each part of a large sum and sends it to the
others; every member sends small buffers to all others, and each adds them up in the order of the ranks
(`small_allreduce`). If two tasks cannot connect for that, gloo does all sums of the round. Updates on CUDA devices are
added up there if every member has one (`nccl_allreduce`).

gloo knows neither ranges of ports nor forwarded addresses. Where nodes have those, the members' own sockets do what
gloo does otherwise (`socket_group`); breaking them is the same.
"""

import logging
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import ChicleError, PeerLostError
from chicle_elastic.runtime.collectives.nccl_allreduce import CONNECT_S as CONNECT_DEVICES_S
from chicle_elastic.runtime.collectives.nccl_allreduce import NcclAllReduce, keep_for_ever, nccl_group
from chicle_elastic.runtime.collectives.network import GroupNetwork, gloo_group
from chicle_elastic.runtime.collectives.own_sockets import own_sockets, shut_down
from chicle_elastic.runtime.collectives.signed_store import signed_store
from chicle_elastic.runtime.collectives.small_allreduce import CONNECT_S, MAX_BYTES, SmallAllReduce
from chicle_elastic.runtime.collectives.socket_group import SocketGroup
from chicle_elastic.runtime.collectives.store_client import StoreClient

CONNECT_TIMEOUT_S = 20.0
COLLECTIVE_TIMEOUT = timedelta(days=30)
"""Of a collective: a task may compute for hours, and the agents detect silent peers."""
SLICE = timedelta(milliseconds=50)
"""How long to wait for a collective until looking whether the group is broken."""

logger = logging.getLogger(__name__)


class ProcessGroup:
    """The members of a round, seen from one of them. A group of one needs no connection.

    One class because its threads share one state: a break has to find every connection that any of them has made.

    Args:
        round: The round.
        rank: Position of this task among the members.
        size: Number of members.
    """

    def __init__(self, *, round: int, rank: int, size: int) -> None:
        self.round = round
        self.rank = rank
        self.size = size
        self._lock = threading.Lock()
        self._is_broken = False
        self._settled = threading.Event()  # connected, failed to connect, or broken meanwhile
        self._link: StoreClient | None = None
        self._before: frozenset[int] = frozenset()
        self._link_sockets: frozenset[int] = frozenset()
        self._sockets: frozenset[int] = frozenset()
        self._network: GroupNetwork | None = None
        self._gloo: Any = None
        self._socket_group: SocketGroup | None = None
        self._small_allreduce: SmallAllReduce | None = None
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

    def connect(
        self, link: StoreClient, *, prefix: str, network: GroupNetwork, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> None:
        """Connect to all other members, who do the same.

        Args:
            link: To the rendezvous store.
            prefix: Of the keys of this round, which no other round uses.
            network: Where this member listens, and the secret of the round.
            timeout_s: How long to wait for the others.

        Raises:
            PeerLostError: A member did not connect, the store is gone, or the group was broken meanwhile.
        """
        with self._lock:
            self._require_whole()
            self._network = network
            if self.size == 1:
                return
            self._link = link
            self._before = own_sockets()
        threading.Thread(
            target=self._connect, args=(link, prefix, network, timeout_s), name="chicle-group-connect"
        ).start()
        self._settled.wait()
        if self._error is not None:
            self._is_broken = True
            raise self._lost("could not be formed", self._error) from self._error
        self._require_whole()

    def connect_devices(
        self,
        link: StoreClient,
        *,
        prefix: str,
        device: Any,
        num_values: int,
        make_group: Callable[[Any, int, int], Any] = nccl_group,
        timeout_s: float = CONNECT_DEVICES_S,
    ) -> None:
        """Connect this member's device to those of all others, who do the same; then `device_sums` is set, or None.

        It is set for all members or for none. If a member fails, no member tries again in a later round.

        Args:
            link: To the rendezvous store.
            prefix: That of `connect`.
            device: `torch.device` that updates lie on.
            num_values: Length of the updates.
            make_group: Makes a raw process group from (store, rank, size); called in another thread.
            timeout_s: How long to wait for the others.

        Raises:
            PeerLostError: A member was lost, the store is gone, or the group was broken meanwhile.
        """
        self._require_whole()
        assert self._network is not None
        client = link.take(timeout_s)
        store = signed_store(client.store, f"{prefix}/devices", self._network.secret)
        with self._lock:
            self._sockets |= client.sockets  # a break wakes the thread that waits for the store
        sums, reason = NcclAllReduce.connect(
            lambda: make_group(store, self.rank, self.size),
            device=device,
            num_values=num_values,
            is_over=lambda: self._is_broken,
            timeout_s=timeout_s,
        )
        self._nccl_allreduce = sums  # from now on closed with the group, also after an error
        with self._lock:
            self._sockets -= client.sockets
            is_good = sums is not None and not self._is_broken
        if is_good:
            link.give_back(client)  # NCCL has no more to ask it
        else:
            link.prepare()  # an abandoned thread may still use the old one
        if self.all_gather(np.array([float(sums is not None)])).all():
            return
        link.may_use_nccl = False
        logger.warning(
            "round %d, rank %d: NCCL cannot connect all devices; gloo sums the updates over the hosts. %s",
            self.round,
            self.rank,
            f"On this rank: {reason}" if reason else "It failed on another rank.",
        )
        if sums is not None:
            sums.abort()
            self._nccl_allreduce = None

    def add_up_on_devices(self, out: Array) -> None:
        """Sum what all members have put into `device_sums`; the same bits for every member.

        Args:
            out: OUT; the sum, ndarray of shape (num_values,), float64, C-contiguous.

        Raises:
            PeerLostError: A member was lost, or the group was broken; the content of `out` is undefined.
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
        """Replace `buffer` by the sum of the members' buffers, in place; the same bits for every member.

        Args:
            buffer: ndarray of shape (n,), float64, C-contiguous; the same n for every member.

        Raises:
            PeerLostError: A member was lost, or the group was broken; the content of `buffer` is undefined.
        """
        if self.size == 1:
            self._require_whole()
            return
        if self._small_allreduce is not None and buffer.nbytes <= MAX_BYTES:
            small_allreduce = self._small_allreduce
            self._do_by_sockets("an all-reduce", lambda: small_allreduce.add_up(buffer))
            return
        if (group := self._socket_group) is not None:
            self._do_by_sockets("an all-reduce", lambda: group.all_reduce(buffer))
            return
        import torch

        self._do("an all-reduce", lambda: self._gloo.allreduce([torch.from_numpy(buffer)]))

    def broadcast(self, buffer: Array, *, root: int) -> None:
        """Replace `buffer` by that of the member `root`, in place.

        Args:
            buffer: ndarray of shape (n,), float64, float32 or uint8, C-contiguous; the same for every member.
            root: Rank of the member whose buffer the others get.

        Raises:
            PeerLostError: A member was lost, or the group was broken; the content of `buffer` is undefined.
        """
        if self.size == 1:
            self._require_whole()
            return
        if (group := self._socket_group) is not None:
            self._do_by_sockets("a broadcast", lambda: group.broadcast(buffer, root=root))
            return
        import torch
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank = root
        self._do("a broadcast", lambda: self._gloo.broadcast([torch.from_numpy(buffer)], options))

    def all_gather(self, row: Array) -> Array:
        """Gather the rows of all members.

        Args:
            row: ndarray of shape (n,), float64; finite.

        Returns:
            ndarray of shape (size, n), by rank.

        Raises:
            PeerLostError: A member was lost, or the group was broken.
        """
        rows = np.zeros((self.size, len(row)))
        rows[self.rank] = row
        self.all_reduce(rows.reshape(-1))
        return rows

    def break_(self) -> None:
        """End all waiting in this group, now and later. From any thread; may be called again."""
        with self._lock:
            self._is_broken = True
            if self._link is not None and not self._settled.is_set():
                self._sockets = self._link_sockets | (own_sockets() - self._before - self._link.sockets())
                self._link.prepare()
            self._settled.set()
            shut_down(self._sockets)

    def close(self) -> None:
        """Leave. The connections end in the background; peers that still wait get a PeerLostError."""
        self.break_()
        box, self._gloo = [self._gloo], None
        if self._small_allreduce is not None:
            self._small_allreduce.close()
        if self._nccl_allreduce is not None:
            self._nccl_allreduce.abort()
        threading.Thread(target=box.clear, name="chicle-group-close").start()

    def _connect(self, link: StoreClient, prefix: str, network: GroupNetwork, timeout_s: float) -> None:
        """Body of the thread that connects."""
        gloo: Any = None
        socket_group: SocketGroup | None = None
        small_allreduce: SmallAllReduce | None = None
        error: Exception | None = None
        try:
            client = link.take(timeout_s)
            with self._lock:
                self._link_sockets = client.sockets
                self._require_whole()
            store = signed_store(client.store, prefix, network.secret, num_members=self.size)
            if network.address.is_plain:
                gloo = gloo_group(store, self.rank, self.size, network, timedelta(seconds=timeout_s))
                small_allreduce = self._connect_small_allreduce(gloo, link, network, min(timeout_s, CONNECT_S))
                gloo.set_timeout(COLLECTIVE_TIMEOUT)
            else:
                socket_group = SocketGroup.connect(
                    self.rank,
                    self.size,
                    store=store,
                    network=network,
                    is_over=self._settled.is_set,
                    timeout_s=timeout_s,
                )
                small_allreduce = SmallAllReduce(self.rank, socket_group.peers)
        except (RuntimeError, OSError, ChicleError) as caught:
            error = caught
        with self._lock:
            if self._settled.is_set():
                if small_allreduce is not None:
                    small_allreduce.close()
                return  # broken meanwhile: this thread drops what it has made
            if error is None:
                self._sockets = own_sockets() - self._before - client.sockets - link.sockets()
                link.give_back(client)
            self._gloo, self._socket_group, self._small_allreduce = gloo, socket_group, small_allreduce
            self._error = error
            self._settled.set()

    def _connect_small_allreduce(
        self, gloo: Any, link: StoreClient, network: GroupNetwork, timeout_s: float
    ) -> SmallAllReduce | None:
        import torch

        def gather(row: Array) -> Array:
            # Not a sum: its ring takes 2 (size - 1) steps, each of which waits for its turn on a busy processor.
            sent, rows = np.tile(row, self.size), np.empty((self.size, len(row)))
            gloo.alltoall_base(torch.from_numpy(rows.reshape(-1)), torch.from_numpy(sent), [], []).wait()
            return rows

        host = network.address.advertise if link.has_direct_ways else None
        small_allreduce = SmallAllReduce.connect(
            self.rank, self.size, host=host, gather=gather, is_over=self._settled.is_set, timeout_s=timeout_s
        )
        if link.has_direct_ways and small_allreduce is None:
            logger.warning("two tasks of the job cannot connect to each other: small all-reduces use gloo from now on")
        link.has_direct_ways = small_allreduce is not None
        return small_allreduce

    def _do_by_sockets(self, what: str, call: Callable[[], None]) -> None:
        self._require_whole()
        try:
            call()
        except OSError as error:
            self._is_broken = True
            raise self._lost(f"was cut off in {what}", error) from error
        self._require_whole()

    def _do(self, what: str, start: Callable[[], Any]) -> None:
        self._require_whole()
        try:
            work = start()
            while not _has_ended(work):
                if self._is_broken and not _has_ended(work):
                    keep_for_ever(self._gloo)
                    break
        except RuntimeError as error:
            self._is_broken = True
            raise self._lost(f"was cut off in {what}", error) from error
        self._require_whole()

    def _require_whole(self) -> None:
        if self._is_broken:
            raise self._lost("is broken", None)

    def _lost(self, what: str, error: Exception | None) -> PeerLostError:
        detail = f" ({_first_line(error)})" if error else ""
        return PeerLostError(
            f"the group of round {self.round} {what}{detail}, seen from rank {self.rank} of {self.size}; the agents "
            "form the next round without the members that are gone"
        )


def _has_ended(work: Any) -> bool:
    """Wait a moment for a collective; an error that ended it is raised."""
    try:
        work.wait(SLICE)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # the error, unless it has ended just now
    return True


def _first_line(error: Exception) -> str:
    """Without the place in gloo's sources that its errors begin with."""
    return re.sub(r"^\[[^]]*:\d+] *", "", str(error).strip().partition("\n")[0])[:200]
