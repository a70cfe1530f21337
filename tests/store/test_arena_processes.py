"""Arenas between real processes: the descriptor travels over a Unix socket, and SIGKILL leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from chicle_elastic.chunks.views import Chunk, StateSpec
from chicle_elastic.ids import ChunkId
from chicle_elastic.store.arena import Arena
from chicle_elastic.store.chunk_store import ChunkStore
from tests.chunk_slots import chunk_in_slot, put_chunk
from tests.timeouts import comes, timeout_s

NUM_SLOTS = 128
SLOT_BYTES = 1 << 20

PREAMBLE = f"""
import socket, sys
from chicle_elastic.store.arena import Arena
peer = socket.socket(fileno=int(sys.argv[1]))
sizes = dict(slot_bytes={SLOT_BYTES})
"""

# Attaches to the arena that it is sent, writes slot 3, says so, and waits.
TASK = (
    PREAMBLE
    + f"""
_, (fd,), _, _ = socket.recv_fds(peer, 1, 1)
arena = Arena.attach(fd, num_slots={NUM_SLOTS}, **sizes)
arena.view(3)[:] = b"t" * {SLOT_BYTES}
peer.sendall(b"!")
peer.recv(1)
"""
)

# Owns an arena, writes slot 5, sends the descriptor, and waits.
OWNER = (
    PREAMBLE
    + f"""
arena = Arena.create({NUM_SLOTS}, **sizes)
arena.view(5)[:] = b"o" * {SLOT_BYTES}
socket.send_fds(peer, [b"!"], [arena.fileno()])
peer.recv(1)
"""
)

# Attaches to the arena of a chunk store, decodes the chunk in slot 1, writes its state, says so, and waits.
TRAINING_TASK = (
    PREAMBLE
    + """
from chicle_elastic.chunks import layout
_, (fd,), _, _ = socket.recv_fds(peer, 1, 1)
arena = Arena.attach(fd, num_slots=4, slot_bytes=4096)
chunk = layout.decode(arena.view(1), where="slot 1")
chunk.state[...] = chunk.rows.sum() + chunk.id
peer.sendall(b"!")
peer.recv(1)
"""
)


@contextmanager
def child(program: str) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A process that runs `program`, and a Unix socket to it; killed at the end if it still runs."""
    ours, theirs = socket.socketpair()
    ours.settimeout(timeout_s(30))
    with ours, theirs:
        command = [sys.executable, "-c", program, str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
            theirs.close()
            try:
                yield process, ours
            finally:
                process.kill()


def sigkill(process: subprocess.Popen[bytes]) -> None:
    """Kill without notice, and wait until the kernel has taken everything back."""
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout_s(30)) == -signal.SIGKILL


def shared_memory_bytes() -> int:
    """All shared memory of the machine (`Shmem` in /proc/meminfo), which has every memory file in it."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Shmem in /proc/meminfo")


def test_what_a_task_wrote_outlives_its_sigkill():
    """The agent owns the arena: a restarted task finds every byte of the one that was killed."""
    with Arena.create(NUM_SLOTS, slot_bytes=SLOT_BYTES) as arena, child(TASK) as (task, to_task):
        socket.send_fds(to_task, [b"!"], [arena.fileno()])
        assert to_task.recv(1) == b"!"
        sigkill(task)
        assert bytes(arena.view(3)) == b"t" * SLOT_BYTES
        assert not arena.array(2).any()
        assert not arena.array(4).any()


def test_the_state_that_a_task_wrote_is_in_the_agents_store_after_its_sigkill():
    """The task decodes the chunk where it lies, without a copy; its work is not lost with it."""
    with ChunkStore(slot_bytes=4096, capacity_bytes=4 * 4096) as store:
        for number in (0, 5):
            rows = np.full((8, 3), number, dtype=np.float32)
            ids = np.arange(8, dtype=np.int64)
            put_chunk(
                store,
                Chunk(
                    id=ChunkId(number),
                    rows=rows,
                    targets=ids.astype(np.float64),
                    row_ids=ids,
                    state=StateSpec(outputs=1, width=1).zeros(8),
                ),
            )
        with child(TRAINING_TASK) as (task, to_task):
            socket.send_fds(to_task, [b"!"], [store.arenas[0].fileno()])
            assert to_task.recv(1) == b"!"
            sigkill(task)
        assert (chunk_in_slot(store, ChunkId(5)).state == 8 * 3 * 5 + 5).all()
        assert not chunk_in_slot(store, ChunkId(0)).state.any()


def test_memory_stays_with_a_peer_when_the_owner_is_killed_and_goes_with_the_peer():
    """The kernel frees an arena with its last holder, so a same-host peer can finish reading."""
    with child(OWNER) as (owner, to_owner):
        _, (fd,), _, _ = socket.recv_fds(to_owner, 1, 1)
        assert os.fstat(fd).st_blocks * 512 >= NUM_SLOTS * SLOT_BYTES
        sigkill(owner)
    with Arena.attach(fd, num_slots=NUM_SLOTS, slot_bytes=SLOT_BYTES) as arena:
        assert bytes(arena.view(5)) == b"o" * SLOT_BYTES
        assert os.fstat(arena.fileno()).st_nlink == 0


def test_sigkill_of_the_owner_leaves_nothing(tmp_path):
    """No file in /dev/shm or in the temporary folder, and the memory is back with the system."""
    with child(f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n{OWNER}") as (owner, to_owner):
        _, (fd,), _, _ = socket.recv_fds(to_owner, 1, 1)
        os.close(fd)  # the owner is the only holder again
        held_bytes = shared_memory_bytes()
        sigkill(owner)
        # Other programs use shared memory meanwhile, so look for most of the 128 MiB, not for the very byte.
        wanted_bytes = held_bytes - NUM_SLOTS * SLOT_BYTES * 3 // 4
        assert comes(lambda: shared_memory_bytes() <= wanted_bytes, 10)
    assert not [file for file in os.scandir("/dev/shm") if file.stat().st_size >= NUM_SLOTS * SLOT_BYTES]
    assert not list(tmp_path.iterdir())
