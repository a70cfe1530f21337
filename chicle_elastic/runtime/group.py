"""The process group of one round: sums and broadcasts between the tasks, over gloo; small sums past it (`mesh_sums`).

Theory of operation. Every round has a group of its own, a raw `ProcessGroupGloo` on keys that no other round has.
torch's default group is left alone: initialised a second time after a failure, its keys differ from those of its peers
and it waits for ever (measured). A group lives like this:

    Group()         in the control thread, when the round is announced: from now on it can be broken
    connect()       in the main thread: meet the others in the rendezvous store, connect to each of them
                    connect_devices(), where all have agreed on it: the same between their CUDA devices
    all_reduce() .. in the main thread, one at a time
    break_()        in any thread, at any time: whatever waits in the group ends with PeerLostError
    close()         in the main thread: the rest is done by a thread, because it may take milliseconds

Breaking a collective. gloo's `abort` does not wake a collective that waits for a silent peer (torch 2.13, measured);
the end of its connections does. So the connections that the group has opened are shut down: the TCP sockets of this
process that are new since `connect` began. A connection that another thread of this process opens in those few
milliseconds would be taken for one of the group's. Listening sockets are left alone: gloo ends the process when one of
its own breaks (measured).

A collective that is not woken. When a member dies at the wrong moment gloo closes all its connections and one of its
threads goes on waiting on nothing (torch 2.13: once in about a hundred deaths, measured). So the main thread waits in
slices, and leaves a broken group that has not ended in the next slice; what gloo has of it stays until the process
ends, because to destroy it would be to wait for that thread.

Breaking `connect`. gloo waits for connections of a peer that has just died until its time-out, and nothing wakes it. So
a thread of its own connects, and a broken group leaves it behind; it ends with the time-out. (It is no daemon: the end
of the interpreter would cut it off inside gloo, and end the process with an abort.)

A peer that dies closes its connections by itself; the error comes at once. A peer that is silent is noticed by the
agents, which order the break: here nothing times out while it computes.

Every task gets the same bits from `all_reduce`: each part of a large sum is computed in one place and sent to the
others; small buffers are sent to everybody, who all add them up in the order of the ranks (`mesh_sums`). Where some two
tasks cannot connect for that, gloo does all sums of the round. Updates that lie on CUDA devices are added up there
where every member has one (`device_sums`).
"""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import PeerLostError
from chicle_elastic.runtime.connections import own_sockets, shut_down
from chicle_elastic.runtime.device_sums import CONNECT_S as CONNECT_DEVICES_S
from chicle_elastic.runtime.device_sums import DeviceSums, keep_for_ever, nccl_group
from chicle_elastic.runtime.mesh_sums import CONNECT_S, MAX_BYTES, SumMesh, own_host
from chicle_elastic.runtime.rendezvous_link import RendezvousLink

CONNECT_TIMEOUT_S = 20.0
PATIENCE = timedelta(days=30)
"""Of a collective: a task may compute for hours, and agents watch over silence."""
SLICE = timedelta(milliseconds=50)
"""How long to wait for a collective until looking whether the group is broken."""

logger = logging.getLogger(__name__)


class Group:
    """The members of a round, seen from one of them. A group of one needs no connection.

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
        self._link: RendezvousLink | None = None
        self._before: frozenset[int] = frozenset()
        self._link_sockets: frozenset[int] = frozenset()
        self._sockets: frozenset[int] = frozenset()
        self._gloo: Any = None
        self._mesh: SumMesh | None = None
        self._device_sums: DeviceSums | None = None
        self._error: Exception | None = None

    @property
    def is_broken(self) -> bool:
        """Whether nothing goes any more, because of `break_` or of a member that was lost."""
        return self._is_broken

    @property
    def device_sums(self) -> DeviceSums | None:
        """Where to put updates that lie on a device; None where all updates are summed over the hosts."""
        return self._device_sums

    def connect(self, link: RendezvousLink, *, prefix: str, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Connect to all other members, who do the same.

        Args:
            link: To the rendezvous store.
            prefix: Of the keys of this round, which no other round uses.
            timeout_s: How long to wait for the others.

        Raises:
            PeerLostError: Somebody did not come, the store is gone, or the group was broken meanwhile.
        """
        with self._lock:
            self._require_whole()
            if self.size == 1:
                return
            self._link = link
            self._before = own_sockets()
        threading.Thread(target=self._connect, args=(link, prefix, timeout_s), name="chicle-group-connect").start()
        self._settled.wait()
        if self._error is not None:
            self._is_broken = True
            raise self._lost("could not be formed", self._error) from self._error
        self._require_whole()

    def connect_devices(
        self,
        link: RendezvousLink,
        *,
        prefix: str,
        device: Any,
        num_values: int,
        make_group: Callable[[Any, int, int], Any] = nccl_group,
        timeout_s: float = CONNECT_DEVICES_S,
    ) -> None:
        """Connect this member's device to those of all others, who do the same; `device_sums` says what came of it.

        It is there for all members or for none. Where some member fails, none tries again in a later round.

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
        from torch.distributed import PrefixStore

        self._require_whole()
        client = link.take(timeout_s)
        store = PrefixStore(f"{prefix}/devices", client.store)
        with self._lock:
            self._sockets |= client.sockets  # a break wakes whoever waits for the store
        sums, reason = DeviceSums.connect(
            lambda: make_group(store, self.rank, self.size),
            device=device,
            num_values=num_values,
            is_over=lambda: self._is_broken,
            timeout_s=timeout_s,
        )
        self._device_sums = sums  # whatever comes now, it is closed with the group
        with self._lock:
            self._sockets -= client.sockets
            is_good = sums is not None and not self._is_broken
        if is_good:
            link.give_back(client)  # NCCL has no more to ask it
        else:
            link.prepare()  # a thread that was left behind may still have it
        if self.all_gather(np.array([float(sums is not None)])).all():
            return
        link.has_device_ways = False
        logger.warning(
            "round %d, rank %d: no NCCL between the devices of the members; updates are summed over the hosts. %s",
            self.round,
            self.rank,
            f"Here: {reason}" if reason else "It failed elsewhere.",
        )
        if sums is not None:
            sums.abort()
            self._device_sums = None

    def add_up_on_devices(self, out: Array) -> None:
        """Sum what all members have put into `device_sums`; the same bits for every member.

        Args:
            out: OUT; the sum, ndarray of shape (num_values,), float64, C-contiguous.

        Raises:
            PeerLostError: A member was lost, or the group was broken; `out` holds nothing of use.
        """
        assert self._device_sums is not None
        self._require_whole()
        try:
            self._device_sums.add_up(out, is_over=lambda: self._is_broken)
        except RuntimeError as error:
            self._is_broken = True
            raise self._lost("was cut off in a sum on devices", error) from error
        self._require_whole()

    def all_reduce(self, buffer: Array) -> None:
        """Replace `buffer` by the sum of the members' buffers, in place; the same bits for every member.

        Args:
            buffer: ndarray of shape (n,), float64, C-contiguous; the same n for every member.

        Raises:
            PeerLostError: A member was lost, or the group was broken; `buffer` holds nothing of use.
        """
        if self.size == 1:
            self._require_whole()
            return
        if self._mesh is not None and buffer.nbytes <= MAX_BYTES:
            self._require_whole()
            try:
                self._mesh.add_up(buffer)
            except OSError as error:
                self._is_broken = True
                raise self._lost("was cut off in an all-reduce", error) from error
            self._require_whole()
            return
        import torch

        self._do("an all-reduce", lambda: self._gloo.allreduce([torch.from_numpy(buffer)]))

    def broadcast(self, buffer: Array, *, root: int) -> None:
        """Replace `buffer` by that of the member `root`, in place.

        Args:
            buffer: ndarray of shape (n,), float64, float32 or uint8, C-contiguous; the same for every member.
            root: Rank of the member that has what the others want.

        Raises:
            PeerLostError: A member was lost, or the group was broken; `buffer` holds nothing of use.
        """
        if self.size == 1:
            self._require_whole()
            return
        import torch
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank = root
        self._do("a broadcast", lambda: self._gloo.broadcast([torch.from_numpy(buffer)], options))

    def all_gather(self, row: Array) -> Array:
        """Everybody's row.

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
        """End whatever waits in this group, now and later. From any thread; may be called again."""
        with self._lock:
            self._is_broken = True
            if self._link is not None and not self._settled.is_set():
                self._sockets = self._link_sockets | (own_sockets() - self._before)
                self._link.prepare()
            self._settled.set()
            shut_down(self._sockets)

    def close(self) -> None:
        """Leave. The connections end in the background; peers that still wait get a PeerLostError."""
        self.break_()
        box, self._gloo = [self._gloo], None
        if self._mesh is not None:
            self._mesh.close()
        if self._device_sums is not None:
            self._device_sums.abort()
        threading.Thread(target=box.clear, name="chicle-group-close").start()

    def _connect(self, link: RendezvousLink, prefix: str, timeout_s: float) -> None:
        """Body of the thread that connects."""
        from torch.distributed import PrefixStore, ProcessGroupGloo

        gloo: Any = None
        mesh: SumMesh | None = None
        error: Exception | None = None
        try:
            client = link.take(timeout_s)
            with self._lock:
                self._link_sockets = client.sockets
                self._require_whole()
            gloo = ProcessGroupGloo(
                PrefixStore(prefix, client.store), self.rank, self.size, timedelta(seconds=timeout_s)
            )
            mesh = self._connect_mesh(gloo, link, min(timeout_s, CONNECT_S))
            gloo.set_timeout(PATIENCE)
        except (RuntimeError, OSError) as caught:
            error = caught
        with self._lock:
            if self._settled.is_set():
                if mesh is not None:
                    mesh.close()
                return  # broken meanwhile: this thread drops what it has made
            if error is None:
                self._sockets = own_sockets() - self._before - client.sockets
                link.give_back(client)
            self._gloo, self._mesh, self._error = gloo, mesh, error
            self._settled.set()

    def _connect_mesh(self, gloo: Any, link: RendezvousLink, timeout_s: float) -> SumMesh | None:
        import torch

        def gather(row: Array) -> Array:
            # Not a sum: its ring takes 2 (size - 1) steps, each of which waits for its turn on a busy processor.
            sent, rows = np.tile(row, self.size), np.empty((self.size, len(row)))
            gloo.alltoall_base(torch.from_numpy(rows.reshape(-1)), torch.from_numpy(sent), [], []).wait()
            return rows

        host = own_host(link.host, link.port) if link.has_direct_ways else None
        mesh = SumMesh.connect(
            self.rank, self.size, host=host, gather=gather, is_over=self._settled.is_set, timeout_s=timeout_s
        )
        if link.has_direct_ways and mesh is None:
            logger.warning(
                "some two tasks of the job cannot connect to each other: small sums go over gloo from now on"
            )
        link.has_direct_ways = mesh is not None
        return mesh

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
    return str(error).strip().partition("\n")[0][:200]
