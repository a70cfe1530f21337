"""Messages between agent and task, and the channel that carries them."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import typing

import pytest

from chicle_elastic.errors import ProtocolError, UsageError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.records import Transition
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.runtime.control.channel import MAX_FRAME_BYTES, Channel, Listener, new_address
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.runtime.training.ledger_pages import LedgerPage
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports import unix_frames
from chicle_elastic.values import ChunkAccount, MoveChunks, SetParameter, StateVersion, TaskReport
from tests.timeouts import timeout_s

NOBODY = 65534
# Becomes another user, connects to the abstract name that it is given, and prints what it is told.
STRANGER = f"""
import os, socket, sys
os.setuid({NOBODY})
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect("\\0" + sys.argv[1])
    print(sock.recv(100), end="")
"""
PAGE = LedgerPage(before=StateVersion(1, 6), after=None, chunks=(ChunkId(3),), rows=(8,))
OURS = f"and this one version {control.VERSION}"
PLACEMENT = control.Placement(chunk=ChunkId(4), arena=0, slot=2)
MESSAGES = [
    control.Hello(pid=7),
    control.Expect(num_chunks=2, slot_bytes=704),
    control.Declare(seed=1, num_rows=20, rows=(10, 10), size_bytes=(640, 704), slot_bytes=704),
    control.Declare(
        seed=1, num_rows=9, rows=(9,), size_bytes=(640,), slot_bytes=640, merged=7, checkpoints="5 iterations, 0 s"
    ),
    control.Saved(iteration=7, size_bytes=640, duration_s=0.25, has_policies=True, is_resumed=True),
    control.Loaded(chunk=ChunkId(1), round=2),
    control.LoadFailed(chunk=ChunkId(1), round=2, reason="no such file"),
    control.GroupReady(round=2, merged=6, model_address=1 << 46, sums="rdma"),
    control.GroupReady(
        round=2, merged=6, model_address=1 << 46, ledger=(dataclasses.replace(PAGE, after=StateVersion(1, 6)),)
    ),
    control.GroupBroke(round=2, reason="peer closed"),
    control.IterationEnded(
        round=2,
        iteration=7,
        reports={NodeId("n0"): TaskReport(samples=20, duration_s=0.5)},
        votes=1,
        stop_reason=None,
        figures={"duality_gap": 1e-3},
        epochs=7.0,
        duration_s=0.02,
        model_address=1 << 46,
        ledger=(dataclasses.replace(PAGE, after=StateVersion(2, 7)),),
    ),
    control.IterationBroke(round=2, iteration=7, reason="peer closed", ledger=(PAGE,)),
    control.UserMessage(sender="n0", to="*", payload='{"a": [1, 2.5]}'),
    control.Proposal(
        policy="Rebalance",
        round=2,
        iteration=7,
        actions=(MoveChunks(NodeId("n0"), NodeId("n1"), 2), SetParameter("rate", 0.5)),
        reason="slow",
    ),
    control.PolicyDisabled(policy="Rebalance", reason="raised ValueError: no"),
    control.Left(),
    control.Failed(traceback="Traceback ...\nValueError: ä"),
    control.Welcome(node=NodeId("n0"), wants_ledger=False),
    control.Welcome(
        node=NodeId("n0"), checkpoint=CheckpointSettings(folder="/shared/job", every_s=2.5), wants_resume=True
    ),
    control.Arena(index=1, num_slots=4, slot_bytes=704),
    control.Load(chunk=ChunkId(1), arena=0, slot=3, round=2, merged=6),
    control.Load(chunk=ChunkId(1), arena=0, slot=3, round=2, merged=6, began=6),
    control.Precopied(chunks=(PLACEMENT,)),
    control.Attach(added=(PLACEMENT,), removed=(ChunkId(4), ChunkId(5))),
    control.Connect(
        round=2,
        rank=0,
        members=(NodeId("n0"),),
        host="127.0.0.1",
        port=29500,
        prefix="chicle/run/2",
        network=control.RoundNetwork(
            bind="127.0.0.1", advertise="127.0.0.1", first_port=20000, last_port=20009, key="ab" * 32
        ),
    ),
    control.Round(
        round=2,
        members=(NodeId("n0"),),
        has_losses=True,
        capacity_bytes=(None,),
        chunk_bytes=704,
        disabled=("Rebalance",),
    ),
    control.Iterate(round=2, iteration=7, is_complete=True, num_tasks=1, lines=("n0 joined",)),
    control.Vote(),
    control.Interrupt(),
    control.Break(round=2),
    control.Deliver(sender="n1", to="trainer", payload="null"),
    Transition(
        iteration=7,
        round=3,
        members=("n0", "n1"),
        reasons=("n2 is lost",),
        detect_ms=0.5,
        ahead_ms=0.0,
        pause_ms=1.0,
        rendezvous_ms=12.0,
        move_ms=3.0,
        group_ms=11.0,
        first_ms=41.5,
        stall_ms=None,
        whole_ms=250.0,
    ),
    control.Finish(
        merged=40,
        reason="all done",
        accounts=(ChunkAccount(chunk=ChunkId(4), rows=10, owner=None, iterations={NodeId("n0"): 3}, replays=1),),
    ),
    control.Finish(reason="gap reached", merged=0, failure=None),
    control.Save(round=3, iteration=7, merged_round=2, nodes=(NodeId("n0"), NodeId("n1"))),
    control.Exit(),
]


@pytest.fixture
def ends():
    """The agent's and the task's end of one channel."""
    with Listener(new_address()) as listener:
        task = Channel.connect(listener.address, timeout_s=timeout_s(10))
        agent = listener.accept()
    with agent, task:
        yield agent, task


def test_every_message_arrives_as_it_was_sent(ends):
    """All of them, each by the side that may say it."""
    agent, task = ends
    assert {type(message) for message in MESSAGES} == set(typing.get_args(control.Message))
    for message in MESSAGES:
        sender, receiver = (task, agent) if isinstance(message, control.TaskMessage) else (agent, task)
        sender.send(message)
        assert receiver.receive() == message


def test_messages_that_came_together_are_handed_out_one_by_one(ends):
    """A stream has no borders of its own; `read` takes whatever is there."""
    agent, task = ends
    sent = [control.Loaded(chunk=ChunkId(number), round=1) for number in range(100)]
    for message in sent:
        task.send(message)
    received = []
    while len(received) < len(sent):
        received += agent.read()
    assert received == sent
    assert agent.read() == []
    assert not agent.is_at_end


def test_a_message_may_be_larger_than_the_buffer_of_the_socket(ends):
    """The list of a million chunks arrives while it is being sent."""
    agent, task = ends
    rows = tuple(range(500_000))
    declared = control.Declare(seed=0, num_rows=1, rows=rows, size_bytes=rows, slot_bytes=64)
    sender = threading.Thread(target=task.send, args=(declared,))
    sender.start()
    assert agent.receive() == declared
    sender.join()


def test_descriptors_arrive_with_their_messages_in_order(ends):
    """Also when other messages come before, between and behind."""
    agent, task = ends
    with Arena.create(2, slot_bytes=64) as first, Arena.create(3, slot_bytes=64) as second:
        for arena in (first, second):
            arena.view(0)[:] = bytes([arena.num_slots]) * 64
        agent.send(control.Vote())
        for index, arena in enumerate((first, second)):
            announced = control.Arena(index=index, num_slots=arena.num_slots, slot_bytes=64)
            agent.send(announced, fd=arena.fileno())
        agent.send(control.Vote())
        arenas = [message for message in (task.receive() for _ in range(4)) if isinstance(message, control.Arena)]
        for announced in arenas:
            with Arena.attach(task.take_fd(), num_slots=announced.num_slots, slot_bytes=64) as mapped:
                assert bytes(mapped.view(0)) == bytes([announced.num_slots]) * 64
    with pytest.raises(ProtocolError, match="without the descriptor"):
        task.take_fd()


def test_the_end_comes_after_everything_that_was_said(ends):
    """A task that dies right after its last word is heard."""
    agent, task = ends
    task.send(control.Left())
    task.close()
    assert agent.read() == [control.Left()]
    assert agent.receive() is None
    assert agent.is_at_end
    with pytest.raises(ConnectionError):
        agent.send(control.Vote())


def frame(data):
    """Bytes of a frame."""
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    return unix_frames.HEAD.pack(len(text), 0, 0) + text


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (frame(b"\x80\x04pickle"), "is no JSON"),
        (unix_frames.HEAD.pack(MAX_FRAME_BYTES + 1, 0, 0), "a message of .* bytes was announced .* at most"),
        (unix_frames.HEAD.pack(2, 0, 1), "a payload of 1 bytes was announced .* at most 0"),
        (unix_frames.HEAD.pack(2, 1, 0) + b"{}", "1 descriptors were announced .* and 0 came"),
        (frame([1, 2]), r"\[1, 2\] has the type None, which is none of Hello"),
        (frame({"type": "Vote"}), "has the type 'Vote', which is none of Hello"),
        (frame({"type": "Hello", "pid": "7"}), r"Expected `int`, got `str` - at `Hello\.pid`"),
        (frame({"type": "Hello"}), r"missing required field `pid` - at `Hello`"),
        (frame({"type": "Hello", "pid": 7, "more": 1}), r"unknown field `more` - at `Hello`"),
        (
            frame({"type": "Hello", "pid": 7, "version": 99}),
            f"speaks version 99 {OURS}",
        ),
        (
            frame({"type": "Hello", "pid": 7, "uid": 0, "version": 99}),
            f"speaks version 99 {OURS}",
        ),
        (
            frame({"type": "Hello", "process": 7, "version": 8}),
            f"speaks version 8 {OURS}",
        ),
        (frame({"type": "Left"})[:-3], "ended inside a message"),
    ],
)
def test_what_is_no_message_is_refused(sent, complaint):
    """Foreign bytes, messages of the wrong side, another version, a length that lies, a truncated frame."""
    ours, theirs = socket.socketpair()
    with Channel(ours, control.TaskMessage) as channel, theirs:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ProtocolError, match=complaint):
            channel.receive()


def test_descriptors_that_nobody_took_are_closed(ends):
    """The fixture for leaks looks, too."""
    agent, task = ends
    read_end, write_end = os.pipe()
    agent.send(control.Vote(), fd=write_end)
    os.close(write_end)
    assert task.receive() == control.Vote()
    task.close()
    with open(read_end, "rb") as pipe:
        assert pipe.read() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_is_hung_up_on():
    """It may see the name of the socket; it gets no word, and the task that comes after it is served."""
    with Listener(new_address()) as listener:
        stranger = subprocess.Popen(
            [sys.executable, "-c", STRANGER, listener.address.removeprefix("unix:@")], stdout=subprocess.PIPE
        )
        with pytest.raises(ProtocolError, match=f"process {stranger.pid} .* belongs to user {NOBODY}, not to 0"):
            listener.accept()
        assert stranger.communicate(timeout=timeout_s(20)) == (b"b''", None)
        with Channel.connect(listener.address) as task, listener.accept() as agent:
            task.send(control.Hello(pid=7))
            assert agent.receive() == control.Hello(pid=7)


def test_two_agents_never_share_an_address():
    """Not even when somebody asks for it."""
    assert new_address() != new_address()
    with Listener(new_address()) as listener, pytest.raises(UsageError, match="choose a name that is not taken"):
        Listener(listener.address)


@pytest.mark.parametrize("address", ["unix:@chicle-control-of-no-agent", "/tmp/control", ""])
def test_a_task_without_an_agent_is_told_how_it_is_started(address):
    """The script was run by itself."""
    with pytest.raises(ProtocolError, match=r"no agent listens.*chicle_elastic\.launch"):
        Channel.connect(address)


def test_chunks_are_declared_to_the_scheduler_with_the_size_of_a_slot():
    """A plan that counts bytes must not need more slots than there are."""
    declared = control.Declare(seed=1, num_rows=20, rows=(12, 8), size_bytes=(640, 704), slot_bytes=704)
    infos = declared.to_event().chunks
    assert [(info.id, info.num_rows, info.size_bytes) for info in infos] == [(0, 12, 704), (1, 8, 704)]
