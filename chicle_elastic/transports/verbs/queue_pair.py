"""One end of a reliable connection between two cards, with a completion queue of its own.

pyverbs leaks every work request that is not closed, and crashes on one that is closed twice: they are made, posted and
closed in one place each. It also blocks the whole interpreter in every call that waits, so nothing here waits: `fileno`
is for `poll`, `heed_event` takes what made it readable, `completions` asks the queue.
"""

import contextlib
import ipaddress
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from chicle_elastic.errors import ProtocolError
from chicle_elastic.transports.verbs.device import Device
from chicle_elastic.transports.verbs.failures import QueuePairError
from chicle_elastic.transports.verbs.library import CREATION, load

MAX_SENDS = 64
POLL_AT_ONCE = 32
HOP_LIMIT = 64
# A try takes 4.096 us * 2**ACK_TIMEOUT = 67 ms and longer on some cards. Seven tries would be tries for ever.
ACK_TIMEOUT = 14
NUM_TRIES = 6
RECEIVER_PAUSE = 12  # 0.64 ms; verbs asks for it, though a READ needs no receive
ALARM = 1 << 63
"""Number of a receive that nothing is ever sent to: it completes when the queue pair goes into its error state."""

_EVENT_FILE = "infinibandevent"
_PACKET_BITS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPoint:
    """What the other end has to know to connect."""

    number: int  # of the queue pair
    packet: int  # number of the first packet
    gid: str  # address of the port
    lid: int  # its identifier on InfiniBand, else 0
    mtu: int  # largest packet, as verbs count it
    reads: int  # READs that it answers at a time

    @classmethod
    def from_json(cls, content: Any, *, peer: str) -> "EndPoint":
        """The end point in JSON values. Raises ProtocolError when it is none."""
        fields = content if isinstance(content, dict) else {}
        limits = {"number": 1 << _PACKET_BITS, "packet": 1 << _PACKET_BITS, "lid": 1 << 16, "mtu": 6, "reads": 256}
        figures = {name: fields.get(name) for name in limits}
        gid = fields.get("gid")
        try:
            address = ipaddress.IPv6Address(gid if isinstance(gid, str) else "").packed.hex(
                ":", 2
            )  # verbs know no dots
        except ValueError:
            address = ""
        for name, limit in limits.items():
            figure = figures[name]
            is_right = type(figure) is int and (name in ("lid", "packet") or figure > 0) and 0 <= figure < limit
            if not address or not is_right:
                raise ProtocolError(f"{peer} describes its queue pair as {content!r:.120}, which is none")
        return cls(gid=address, **figures)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Completion:
    """A work request that has ended."""

    work: int  # the number that it was given
    status: int  # 0 for success
    num_bytes: int  # that came, where it is a receive that succeeded


class QueuePair:
    """See the top of the module. For one thread at a time. Raises QueuePairError when the device makes none.

    Args:
        device: Whose it is; held until `close`.
        num_receives: Most receives that are posted at a time; one is the alarm.
    """

    def __init__(self, device: Device, *, num_receives: int = 1) -> None:
        verbs = self._verbs = load()
        if not device.hold():
            raise QueuePairError("the transport is closed; there are no queue pairs any more")
        self._device = device
        self._made: list[Any] = []  # in the order to close them
        self._is_closed = False
        try:
            self._channel, self._fd = _completion_channel(device)
            self._made.insert(0, self._channel)
            self._queue = verbs.CQ(device.context, MAX_SENDS + num_receives, None, self._channel, 0)
            self._made.insert(0, self._queue)
            self._queue.req_notify()
            room = verbs.QPCap(
                max_send_wr=MAX_SENDS, max_recv_wr=num_receives, max_send_sge=1, max_recv_sge=1, max_inline_data=0
            )
            attributes = verbs.QPInitAttr(
                qp_type=verbs.IBV_QPT_RC, scq=self._queue, rcq=self._queue, cap=room, sq_sig_all=0
            )
            self._pair = verbs.QP(device.domain, attributes)
            self._made.insert(0, self._pair)
            initial = verbs.QPAttr(port_num=device.port.number)
            initial.pkey_index = 0
            initial.qp_access_flags = verbs.IBV_ACCESS_REMOTE_READ
            self._pair.to_init(initial)
        except BaseException as error:
            self.close()
            if isinstance(error, verbs.PyverbsError):
                raise QueuePairError(f"{device.port.device} makes no queue pair ({error})") from error
            raise
        port = device.port
        self.end_point = EndPoint(
            number=self._pair.qp_num,
            packet=secrets.randbits(_PACKET_BITS),
            gid=port.gid,
            lid=port.lid,
            mtu=port.mtu,
            reads=port.max_reads,
        )

    def fileno(self) -> int:
        """Readable when there may be completions."""
        return self._fd

    def connect(self, theirs: EndPoint, *, peer: str) -> None:
        """Be ready to read at the other end, and to be read by it. Raises QueuePairError when the other end cannot be
        reached by this device."""
        verbs, ours, port = self._verbs, self.end_point, self._device.port
        try:
            route = verbs.GlobalRoute(dgid=verbs.GID(theirs.gid), sgid_index=port.gid_index, hop_limit=HOP_LIMIT)
            attributes = verbs.QPAttr(port_num=port.number)
            attributes.ah_attr = verbs.AHAttr(
                gr=route, is_global=int(not port.is_infiniband), port_num=port.number, dlid=theirs.lid
            )
            attributes.path_mtu = min(ours.mtu, theirs.mtu)
            attributes.dest_qp_num, attributes.rq_psn = theirs.number, theirs.packet
            attributes.max_dest_rd_atomic = ours.reads
            attributes.min_rnr_timer = RECEIVER_PAUSE
            self._pair.to_rtr(attributes)
            attributes.sq_psn = ours.packet
            attributes.max_rd_atomic = min(ours.reads, theirs.reads)
            attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = ACK_TIMEOUT, NUM_TRIES, NUM_TRIES
            self._pair.to_rts(attributes)
        except verbs.PyverbsError as error:
            raise QueuePairError(
                f"{port.device} at {port.gid} finds no way to {peer} at {theirs.gid} ({error}); "
                "are both in one network?"
            ) from error

    def post_read(
        self, work: int, *, address: int, size_bytes: int, key: int, their_address: int, their_key: int
    ) -> None:
        """Have bytes of the peer copied to `address`, which lies in memory registered under `key`. Raises
        QueuePairError when the pair takes no more work."""
        verbs = self._verbs
        part = verbs.SGE(address, size_bytes, key)
        request = verbs.SendWR(work, verbs.IBV_WR_RDMA_READ, 1, 0, [part], verbs.IBV_SEND_SIGNALED)
        request.set_wr_rdma(their_key, their_address)
        self._post(self._pair.post_send, request, part)

    def post_send(self, work: int, *, address: int, size_bytes: int, key: int) -> None:
        """Have bytes of this process, or none, sent to the oldest receive of the peer. Raises QueuePairError when the
        pair takes no more work."""
        verbs = self._verbs
        part = verbs.SGE(address, size_bytes, key)
        request = verbs.SendWR(work, verbs.IBV_WR_SEND, 1, 0, [part], verbs.IBV_SEND_SIGNALED)
        self._post(self._pair.post_send, request, part)

    def post_receive(self, work: int = ALARM, *, address: int = 0, size_bytes: int = 0, key: int = 0) -> None:
        """Post a receive, which completes with a SEND of the peer, and without success as soon as the queue pair has an
        error. Raises QueuePairError when the pair takes no more work.

        So one that nothing is sent to is an alarm. Without it, Soft-RoCE of Linux 6.1 on an overloaded host now and
        then calls the last READ successful of a queue pair that it gives up, and no byte of that READ has arrived. The
        flushed receive comes together with it.
        """
        part = self._verbs.SGE(address, size_bytes, key)
        self._post(self._pair.post_recv, self._verbs.RecvWR(work, 1, [part]), part)

    def completions(self) -> list[Completion]:
        """What has ended since the last call, at most 32 of it. Raises QueuePairError when the device is gone."""
        with self._raises("is gone"):
            _, found = self._queue.poll(POLL_AT_ONCE)
        return [Completion(each.wr_id, each.status, each.byte_len) for each in found]

    def heed_event(self) -> None:
        """Take the event that made `fileno` readable, and ask for the next one; then look for completions again. Raises
        QueuePairError when the device is gone."""
        with self._raises("is gone"):
            self._channel.get_cq_event(self._queue)  # there is one, so this does not wait
            self._queue.ack_events(1)
            self._queue.req_notify()

    def status_names(self) -> dict[int, str]:
        """Status of a completion by number."""
        prefix = "IBV_WC_"
        return {
            value: name.removeprefix(prefix)
            for name, value in vars(self._verbs).items()
            if name.startswith(prefix) and (name.endswith("_ERR") or name == "IBV_WC_SUCCESS")
        }

    def close(self) -> None:
        """End all work that is under way: from now on the card writes nowhere for it. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        with CREATION:
            for made in self._made:
                made.close()
        self._device.release()

    def _post(self, post: Any, request: Any, part: Any) -> None:
        try:
            with self._raises("takes no more work"):
                post(request)
        finally:
            request.close()
            part.close()

    @contextlib.contextmanager
    def _raises(self, what: str) -> Iterator[None]:
        """Raise QueuePairError for an error of pyverbs."""
        try:
            yield
        except self._verbs.PyverbsError as error:
            raise QueuePairError(f"{self._device.port.device} {what} ({error})") from error


def _completion_channel(device: Device) -> tuple[Any, int]:
    """A completion channel and its descriptor, which pyverbs 44 does not tell."""
    with CREATION:
        before = _event_files()
        channel = load().CompChannel(device.context)
        fd = getattr(channel, "fd", None)
        if fd is None:
            (fd,) = _event_files() - before
    return channel, int(fd)


def _event_files() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if _EVENT_FILE in os.readlink(f"/proc/self/fd/{name}"):
                found.add(int(name))
        except FileNotFoundError:  # the descriptor of the listing itself, or one that was closed meanwhile
            continue
    return found
