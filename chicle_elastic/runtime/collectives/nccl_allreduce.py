"""All-reduce of vectors on CUDA devices, from device to device, by an NCCL process group of the round.

Theory of operation. The round's `ProcessGroup` makes it when all members have agreed that they can (`backend_choice`),
as a raw `ProcessGroupNCCL` on keys of its own. Each member puts its part into one buffer on the device, where NCCL adds
up in place; the member copies the sum to the host once, where the model lies.

A sum of the round's metrics over the host goes before each sum here (`round`). So the others notice a member that dies
while they compute by its sockets, as without NCCL, and no kernel waits for members that still compute.

Waiting. NCCL's errors come asynchronously, and the death of a peer may never become one: then the kernel spins. So the
waiting thread polls whether the sum has ended, and between two polls whether the group is broken.

No watchdog. torch gives such a group two threads that end the *process* after an error or a timeout. Here a task
outlives its peers: the group is made under TORCH_NCCL_BLOCKING_WAIT=1, with which torch starts neither (read in its
source), and polling raises the error.

Breaking. Only `abort` ends a kernel; it may take long, and has hung in versions of NCCL. A thread of its own calls it,
which keeps the memory alive that the kernel may still write into. No thread may poll a group that is being aborted: it
would wait for the same lock, with the GIL. Therefore the thread that sums is also the one that aborts. A group in which
a sum waited is never destroyed, because that would wait as well.

Connecting. `ncclCommInitRank` waits for all others without a timeout, and torch's non-blocking mode for it has hung at
random (pytorch issue 153960). So a thread of its own connects, right after a gather that has shown that all members are
present, and tries a sum of the full size, which makes all connections that later ones need. When that takes too long,
the group abandons the thread. All these threads are daemons, because they may never end; the end
of the process waits for them a moment.

GPUs of one host read each other's memory: a member that dies there in the middle of a sum of NCCL itself may leave the
others with a CUDA error that no call repairs, which ends the job like any error of a solver. Between hosts this cannot
happen.

Nothing here but `nccl_group` knows NCCL: over a group of torch's gloo and the device "cpu" it does the same.
"""

import atexit
import contextlib
import ctypes
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from chicle_elastic.chunks.views import Array
from chicle_elastic.settings import environment_with

CONNECT_S = 30.0  # for connecting all devices, the first start of NCCL in the process included
SLICE_S = 0.02  # how long to wait for the thread that connects until looking whether the group is broken
POLL_S = 50e-6  # between two polls whether a sum has ended
GOODBYE_S = 5.0  # how long the end of the process waits for threads that abort

_threads: set[threading.Thread] = set()  # those that connect or abort at present


def nccl_group(store: Any, rank: int, size: int) -> Any:
    """A raw NCCL process group that reports errors to the polling thread only; not connected yet. Raises ImportError
    when this torch was built without NCCL, ValueError when there is no GPU, RuntimeError when NCCL cannot be used
    here."""
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options.global_ranks_in_group = list(range(size))
    with environment_with("TORCH_NCCL_BLOCKING_WAIT", "1"):  # it is read when a group is made
        return ProcessGroupNCCL(store, rank, size, options)


class NcclAllReduce:
    """One member's end of it. Used by one thread at a time.

    Args:
        group: Raw process group of the members; it belongs to this object from now on.
    """

    def __init__(self, group: Any, device: Any, num_values: int) -> None:
        import torch

        self._group = group
        self._buffer = torch.zeros(num_values, dtype=torch.float64, device=device)

    @classmethod
    def connect(
        cls,
        make_group: Callable[[], Any],
        *,
        device: Any,
        num_values: int,
        is_over: Callable[[], bool],
        timeout_s: float,
    ) -> "tuple[NcclAllReduce | None, str]":
        """Connect to all other members, who do the same. Returns the object, or None and the reason if this member
        failed to connect."""
        attempt = _Attempt(lambda: cls(make_group(), device, num_values))
        thread = _start(attempt.run, "chicle-device-connect")
        end_s = time.monotonic() + timeout_s
        while thread.is_alive() and not is_over() and time.monotonic() < end_s:
            thread.join(SLICE_S)
        return attempt.leave()

    def clear(self) -> None:
        """Set the buffer to zero, the contribution of a member without chunks."""
        self._buffer.zero_()

    def put(self, vector: Any, factor: float) -> None:
        """What this member contributes: `factor * vector`.

        Args:
            vector: Tensor of shape (num_values,) on the device, or an ndarray.
        """
        import torch

        torch.mul(torch.as_tensor(vector, device=self._buffer.device), factor, out=self._buffer)

    def add_up(self, out: Array, *, is_over: Callable[[], bool]) -> None:
        """Sum what all members have put; the same bits for every member. NCCL leaves "identical copies of the result"
        with all members (its documentation of ncclAllReduce). Raises RuntimeError when a member was lost.

        Args:
            out: OUT; the sum, ndarray of shape (num_values,), float64.
            is_over: Whether the group is broken; then this ends soon, and the content of `out` is undefined.
        """
        import torch

        if self._has_added_up(is_over):
            torch.from_numpy(out).copy_(self._buffer)

    def try_out(self, *, is_over: Callable[[], bool]) -> bool:
        """Whether a sum of ones is right; it makes all connections that later sums need. Raises RuntimeError when a
        member was lost."""
        size = self._group.size()
        self._buffer.fill_(1.0)
        return self._has_added_up(is_over) and bool((self._buffer == size).all())

    def abort(self) -> None:
        """End all waiting in the group, here and in peers; returns at once. May be called again."""
        group, self._group = self._group, None
        if group is None:
            return
        # The kernel may write into the buffer until the abort is done.
        held = [group, self._buffer]
        _start(lambda: _abort(held), "chicle-device-abort")

    def _has_added_up(self, is_over: Callable[[], bool]) -> bool:
        """Sum the buffer in place; False when the group was broken meanwhile, and aborted here."""
        work = self._group.allreduce([self._buffer])
        while not is_over():
            if work.is_completed():
                work.wait()  # raises the error that ended the sum, if any; does not block
                return True
            time.sleep(POLL_S)
        keep_for_ever(self._group)
        self.abort()
        return False


class _Attempt:
    """An attempt to connect, in a thread that may be abandoned."""

    def __init__(self, make: Callable[[], NcclAllReduce]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._sums: NcclAllReduce | None = None
        self._is_left = False
        self._reason = "it takes too long"

    def run(self) -> None:
        """Body of the thread."""
        sums: NcclAllReduce | None = None
        is_good, reason = False, "a sum of ones was wrong"
        try:
            sums = self._make()
            is_good = sums.try_out(is_over=lambda: self._is_left)
        except Exception as error:  # of any kind: the members use the hosts instead
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
        with self._lock:
            if is_good and not self._is_left:
                self._sums = sums
                return
            self._reason = reason
        if sums is not None:
            sums.abort()

    def leave(self) -> tuple[NcclAllReduce | None, str]:
        """The result so far; a later one is dropped."""
        with self._lock:
            self._is_left = True
            return self._sums, "" if self._sums is not None else self._reason


def keep_for_ever(group: Any) -> None:
    """Never destroy this process group, not even at the end of the interpreter: that would wait for its threads."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _abort(held: list[Any]) -> None:
    with contextlib.suppress(RuntimeError):  # NCCL's; the group is not used any more
        held[0].abort()
    held.clear()


def _start(body: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread that may never end."""

    def run() -> None:
        try:
            body()
        finally:
            _threads.discard(thread)

    _wait_at_exit()
    thread = threading.Thread(target=run, name=name, daemon=True)
    _threads.add(thread)
    thread.start()
    return thread


@functools.cache
def _wait_at_exit() -> None:
    atexit.register(_join_threads)


def _join_threads() -> None:
    """Wait for aborts, so that the end of the interpreter, and of CUDA with it, does not come in the middle of one."""
    end_s = time.monotonic() + GOODBYE_S
    for thread in tuple(_threads):
        thread.join(max(0.0, end_s - time.monotonic()))
