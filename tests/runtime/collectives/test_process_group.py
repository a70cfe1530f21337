"""The process group of a round: real processes, a real store, real connections."""

import signal
from importlib.util import find_spec

import pytest

from tests.runtime.collectives.members import DEVICES, start, store
from tests.timeouts import timeout_s

__all__ = ["start", "store"]

SMALL, LARGE = 100, 5000
"""Values of buffers that go to the others as a whole, and in parts."""


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_sums_and_broadcasts_happen_in_place(start, count):
    """The buffer keeps its address; every member gets the same bits."""
    body = (
        f"count = {count}"
        + """
connect(group)
buffer = np.random.default_rng(rank).normal(size=count)
address = buffer.ctypes.data
group.all_reduce(buffer)
assert buffer.ctypes.data == address
expected = sum(np.random.default_rng(other).normal(size=count) for other in range(size))
np.testing.assert_allclose(buffer, expected, atol=1e-12)
say(zlib.crc32(buffer.tobytes()))
words = np.full(3, rank, dtype=np.uint8)
group.broadcast(words, root=1, to=range(size))
say(words.tolist(), group.all_gather(np.array([rank, 0.5])).tolist())
group.close()
"""
    )
    members = start(body, body, body)
    sums = {member.hear() for member in members}
    assert len(sums) == 1
    rest = {member.hear() for member in members}
    assert rest == {"[1, 1, 1] [[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]]"}
    for member in members:
        member.end()


@pytest.mark.parametrize(("count", "to"), [(SMALL, [1, 2]), (LARGE, [2])])
def test_a_broadcast_takes_one_step_for_few_values_and_for_one_receiver(start, count, to):
    """No receiver waits for another one, and no member that is not addressed takes part."""
    body = "connect(group)\nhear()\n" + f"buffer = np.full({count}, rank)\nto = {to}\n"
    get = "if rank == 0 or rank in to:\n    group.broadcast(buffer, root=0, to=to)\n"
    rest = "say(set(buffer.tolist()), group.all_gather(np.array([rank])).ravel().tolist())\ngroup.close()"
    members = start(*[body + get + ("say('here')\n" if rank == 2 else "") + rest for rank in range(3)])
    for member in (members[0], members[2]):
        member.tell()
    assert members[2].hear() == "here"
    members[1].tell()
    assert [member.hear() for member in members] == [
        f"{{{0 if rank in to else rank}}} [0.0, 1.0, 2.0]" for rank in range(3)
    ]
    for member in members:
        member.end()


def test_a_group_of_one_needs_no_store(start):
    """The last node of a job works on without connections."""
    [member] = start(
        """
store = "nowhere.invalid", 1
connect(group)
buffer = np.ones(3)
group.all_reduce(buffer)
group.broadcast(buffer, root=0, to=[0])
say(buffer.tolist(), group.all_gather(np.array([2.0])).tolist())
group.break_()
attempt(group.all_reduce, buffer)
"""
    )
    assert member.hear() == "[1.0, 1.0, 1.0] [[2.0]]"
    assert member.hear().startswith("lost")
    member.end()


HOST = """
def join(group):
    connect(group)

def total(group):
    buffer = np.ones(count)
    group.all_reduce(buffer)
    return buffer[0]
"""
WAYS = {
    "few values": f"count = {SMALL}{HOST}",
    "many values": f"count = {LARGE}{HOST}",
    "devices": DEVICES
    + """
def join(group):
    connect(group)
    connect_devices(group)

def total(group):
    return add_up(group)[0]
""",
}
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
each_way = pytest.mark.parametrize("way", ["few values", "many values", pytest.param("devices", marks=needs_torch)])
AGAIN = "group.close(); group = make(2); attempt(join, group); say(total(group))"


@each_way
def test_a_break_from_another_thread_ends_a_sum_that_waits_for_a_silent_peer(start, way):
    """At once, and the peer notices soon after it goes on; both can form the next round, devices included."""
    waits = f"""{WAYS[way]}
join(group)
say("connected")
breaker = later(lambda group=group, main=threading.get_ident(): break_when_it_waits(group, main))
attempt(total, group)
breaker.join()
{AGAIN}
"""
    attempts = "" if way == "devices" else "attempt(total, group); attempt(total, group)"
    silent = f"""{WAYS[way]}
join(group)
say("connected")
hear()
{attempts}
{AGAIN}
"""
    first, second = start(waits, silent)
    assert {first.hear(), second.hear()} == {"connected"}
    second.signal(signal.SIGSTOP)
    first.tell()
    word, waited_s, *rest = first.hear().split()
    assert word == "lost"
    assert float(waited_s) < timeout_s(20)
    assert ("is broken" if way == "devices" else "was cut off in an all-reduce") in " ".join(rest)
    second.signal(signal.SIGCONT)
    second.tell()
    if attempts:
        words = second.hear(), second.hear()
        assert way == "few values" or "was cut off in an all-reduce" in words[0]
        assert "lost" in words[1], "it may have all parts of the sum that was broken, and none of another one"
    for expected in ("done", "2.0"):
        assert {first.hear(), second.hear()} == {expected}


@each_way
def test_a_peer_that_is_killed_ends_a_sum_at_once(start, way):
    """Its connections end with it, and say so; NCCL's do not always, and then the agents' break does."""
    waits = WAYS[way] + "join(group); say('connected'); attempt(total, group); group.close()"
    first, second = start(waits, WAYS[way] + "join(group); say('connected'); hear()")
    assert {first.hear(), second.hear()} == {"connected"}
    second.process.kill()
    word, waited_s, *rest = first.hear().split()
    assert word == "lost"
    assert "was cut off in" in " ".join(rest)
    assert float(waited_s) < timeout_s(20)
    first.end()


def test_connecting_can_be_broken_while_a_peer_does_not_come(start):
    """A member died between the rendezvous and its connection; the others must not wait for it."""
    body = """
breaker = later(lambda: (hear(), group.break_()))
say("connects")
attempt(connect, group, timeout_s=5)
breaker.join()
say("again")
attempt(connect, group)
"""
    first, second = start(body, "hear()")
    assert first.hear() == "connects"
    first.tell()
    assert "lost" in first.hear()
    assert first.hear() == "again"
    assert "is broken" in first.hear()
    first.end()
    second.tell()


def test_a_store_that_is_gone_is_a_peer_that_is_lost(start):
    """The driver has died."""
    [first, second] = start("store = '127.0.0.1', 1; attempt(connect, group, timeout_s=1)", "")
    assert "could not be formed" in first.hear()
    second.end()


def test_a_broken_group_leaves_other_connections_of_the_process_alone(start):
    """Also those that are opened while it lives, under a descriptor number that was once its own."""
    body = """
import socket
connect(group)
listener = socket.create_server(("127.0.0.1", 0))
ours = socket.create_connection(listener.getsockname())
theirs, _ = listener.accept()
group.break_()
ours.sendall(b"still here")
say(theirs.recv(100).decode())
"""
    members = start(body, body)
    assert {member.hear() for member in members} == {"still here"}


@each_way
def test_many_rounds_leave_no_descriptor_and_no_thread(start, way):
    """Groups end in the background, in threads of their own; the last have to be given a moment."""
    body = f"""{WAYS[way]}
def used():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

def lap(round):
    group = make(round)
    join(group)
    assert total(group) == size
    group.close()

lap(1)
hear()
before = used()
for round in range(2, {32 if way == "devices" else 102}):
    lap(round)
deadline = time.monotonic() + {timeout_s(20)}
while any(now > then for now, then in zip(used(), before)) and time.monotonic() < deadline:
    time.sleep(0.01)
say(all(now <= then for now, then in zip(used(), before)), before, used())
"""
    members = start(body, body)
    for member in members:
        member.tell()
    for member in members:
        assert member.hear().startswith("True")
