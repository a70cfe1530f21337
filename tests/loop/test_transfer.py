"""The state of a training on its way to a member that joins, over real connections."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from chicle_elastic.errors import PeerLostError
from chicle_elastic.runtime.collectives.process_group import ProcessGroup
from chicle_elastic.runtime.collectives.socket_group import GroupNetwork
from chicle_elastic.torch.schedule import Position
from chicle_elastic.torch.state import TrainingState, begin_transfer
from chicle_elastic.transports.key_values import KeyValueServer
from tests.timeouts import timeout_s

NETWORK = GroupNetwork.of(bind="127.0.0.1", advertise="127.0.0.1", key="ab" * 32)
LARGE = 4_000_000  # values, far more than sockets hold


@pytest.fixture
def store() -> Iterator[tuple[str, int]]:
    """Where members find each other."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    server = KeyValueServer(listener)
    yield address
    server.close()


def connected(store: tuple[str, int], rank: int, size: int) -> ProcessGroup:
    """A member of a group."""
    group = ProcessGroup(round=1, rank=rank, size=size)
    group.begin(store, prefix="test", network=NETWORK)
    group.connect()
    return group


def state_of(seed: int) -> TrainingState:
    """A model with a buffer, after a step of Adam; seeds differ in all values."""
    torch.manual_seed(seed)
    model = nn.BatchNorm1d(2)
    model.large = nn.Parameter(torch.rand(LARGE))
    model.running_mean.uniform_()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    state = TrainingState(model, optimizer, None, None)
    state.position = Position(step=seed)
    return state


def assert_alike(state: TrainingState, expected: TrainingState) -> None:
    """The states are alike, to the bit."""
    (head, tensors), (expected_head, values) = state.describe(), expected.describe()
    assert head == expected_head
    assert all(torch.equal(one, two) for one, two in zip(tensors.values(), values.values(), strict=True))


def test_senders_go_on_while_the_state_travels(store: tuple[str, int]) -> None:
    """Two send while the third has not begun to receive; a forward pass that changes buffers does not change the
    state that arrives, to the bit."""
    states = [*map(state_of, (1, 1, 2))]
    states[2].optimizer.state.clear()
    have_computed = threading.Barrier(3, timeout=timeout_s(20))

    def member(rank: int, state: TrainingState) -> TrainingState:
        group = connected(store, rank, 3)
        rest = begin_transfer(group, (0, 1), state)
        with ThreadPoolExecutor(1) as sender:
            if rank < 2:
                sending = sender.submit(rest)
                state.model(torch.rand(8, 2))
                have_computed.wait()
                sending.result()
            else:
                have_computed.wait()
                rest()
        group.close()
        return state

    with ThreadPoolExecutor(3) as threads:
        *_, received = threads.map(member, range(3), states)
    assert_alike(received, state_of(1))


def test_states_that_differ_come_from_one_member(store: tuple[str, int]) -> None:
    """After local steps every optimizer has a state of its own: half of one and half of another is that of none."""

    def member(rank: int, state: TrainingState) -> TrainingState:
        state.is_alike = False
        group = connected(store, rank, 3)
        begin_transfer(group, (0, 1), state)()
        group.all_gather(torch.ones(1, dtype=torch.float64).numpy())  # no member leaves while others receive
        group.close()
        return state

    with ThreadPoolExecutor(3) as threads:
        states = list(threads.map(member, range(3), map(state_of, range(3))))
    for rank, origin in enumerate((0, 1, 0)):
        assert_alike(states[rank], state_of(origin))


def test_a_sender_that_breaks_ends_both_sides(store: tuple[str, int]) -> None:
    """Whoever waits for the other one is woken; a receiver has the state of before, to the bit."""
    is_sent = threading.Event()

    def member(rank: int, state: TrainingState) -> None:
        group = connected(store, rank, 2)
        rest = begin_transfer(group, (0,), state)
        if rank:
            assert is_sent.wait(timeout_s(20))
            with pytest.raises(PeerLostError):
                rest()
            assert_alike(state, state_of(1))
        else:
            with ThreadPoolExecutor(1) as sender:
                sending = sender.submit(rest)
                is_sent.set()
                group.break_()
                with pytest.raises(PeerLostError):
                    sending.result(timeout_s(20))
        group.close()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(member, range(2), map(state_of, range(2))))
