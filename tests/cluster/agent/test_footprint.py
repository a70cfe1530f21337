"""The judge of leaks sees what there is more of, and takes a pool that fills for no leak."""

import os
import socket
import threading
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.cluster.agent.footprint import FOREIGN, Footprint, grown, look_around, pooled


def having(things: Mapping[str, int], children: frozenset[int] = frozenset({7})) -> Footprint:
    """An agent with these things."""
    return Footprint(Counter(things), num_descriptors=0, num_threads=0, num_ports=0, children=children, private_kib=0)


BEFORE = {"/dev/null": 1, "tcp socket": 2, "unix socket to the task of n0": 1, "unix socket to the agent of n1": 1}
LIMITS = pooled("n0", others=1)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("/dev/null", 2),
        ("tcp socket", 3),
        ("tcp socket that listens", 1),
        ("unix socket to the task of n0", 2),
        ("unix socket to the agent of n0", 1),
        ("unix socket to the agent of n1", 17),
        ("arena of the agent of n0", 1),
        ("arena of the agent of n1", 9),
        ("thread chicle-agent-bulk", 9),
        ("thread chicle-agent-store", 3),
        ("thread shm-n0-a local process", 9),
        ("thread of nobody", 1),
        (f"arena {FOREIGN}", 1),
    ],
)
def test_one_more_than_there_may_be_is_seen(kind: str, count: int) -> None:
    """And named, with the figures; one less is no leak."""
    before = having(BEFORE)
    [line] = grown(before, having({**BEFORE, kind: count}), LIMITS)
    assert f"{count} of '{kind}'" in line
    assert not grown(before, having({**BEFORE, kind: count - 1}), LIMITS)


def test_what_was_left_of_a_node_before_is_left_still() -> None:
    """Whoever has gone owns nothing, whenever it went."""
    kind = f"unix socket {FOREIGN}"
    assert grown(having({kind: 1}), having({kind: 1}), LIMITS)


def test_another_child_is_seen() -> None:
    """Also when it comes in place of the one before."""
    assert grown(having({}), having({}, frozenset({8})), LIMITS)


def kinds() -> Counter[tuple[str, int]]:
    """What this process has, by kind and whose it is."""
    return Counter(map(tuple, look_around()["descriptors"]))


def test_descriptors_are_told_apart() -> None:
    """By what is at their other end."""
    before = kinds()
    listener = socket.create_server(("127.0.0.1", 0))
    caller, callee = socket.create_connection(listener.getsockname()), listener.accept()[0]
    here, there = socket.socketpair()
    arena = os.memfd_create("chicle-arena")
    more = kinds() - before
    assert more == {
        ("tcp socket that listens", 0): 1,
        ("tcp socket", 0): 2,
        ("unix socket", os.getpid()): 2,
        ("arena", os.fstat(arena).st_ino): 1,
    }
    there.close()
    callee.close()
    assert kinds() - before == {
        ("tcp socket that listens", 0): 1,
        (f"tcp socket {FOREIGN}", 0): 1,
        (f"unix socket {FOREIGN}", 0): 1,
        ("arena", os.fstat(arena).st_ino): 1,
    }
    os.close(arena)
    for sock in (listener, caller, here):
        sock.close()


def test_the_next_life_of_a_node_is_no_new_kind() -> None:
    """A node that is taken for lost on a busy machine begins another life, whose name is in the names of threads."""
    over = threading.Event()
    names = ("link-accept-n1#bbf59efe", "link-accept-n1#9ffba123", "chicle-agent-bulk_7")
    threads = [threading.Thread(target=over.wait, name=name) for name in names]
    before = Counter(look_around()["threads"])
    for thread in threads:
        thread.start()
    more = Counter(look_around()["threads"]) - before
    over.set()
    for thread in threads:
        thread.join()
    assert more == {"thread link-accept-n1": 2, "thread chicle-agent-bulk": 1}
