"""Worker threads in lanes: what is urgent runs while what is bulky holds all that it may hold."""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.net.worker_lanes import BULK_PER_PEER, NUM_WORKERS, Lane
from chicle_elastic.errors import PeerLostError
from chicle_elastic.ids import NodeId
from tests.cluster.loops import turn_until
from tests.timeouts import timeout_s

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
NUM_PORTIONS = 60


class Portions:
    """Fetches that stay in their threads until `release`."""

    def __init__(self) -> None:
        self.started: list[NodeId] = []
        self.ended: list[int] = []
        self._has_started = threading.Semaphore(0)
        self._may_end = threading.Event()

    def begin(self, loop: EventLoop, peer: NodeId, count: int) -> None:
        """Ask for so many."""
        for number in range(count):
            loop.work(lambda number=number: self._fetch(peer, number), lambda future: future.result(), peer=peer)

    def await_started(self, count: int) -> None:
        """Until so many more hold a thread."""
        for _ in range(count):
            assert self._has_started.acquire(timeout=timeout_s(10))

    def release(self) -> None:
        """Let all of them go on."""
        self._may_end.set()

    def _fetch(self, peer: NodeId, number: int) -> None:
        self.started.append(peer)
        self._has_started.release()
        self._may_end.wait()
        self.ended.append(number)


@pytest.fixture
def portions() -> Iterator[Portions]:
    """Released at the end, whatever happens."""
    portions = Portions()
    yield portions
    portions.release()


@pytest.fixture
def loop(portions: Portions) -> Iterator[EventLoop]:
    """A loop, closed when its workers can end."""
    with EventLoop() as loop:
        yield loop
        portions.release()


@pytest.mark.parametrize("lane", [lane for lane in Lane if lane is not Lane.BULK])
def test_a_claim_does_not_wait_behind_chunks(loop: EventLoop, portions: Portions, lane: Lane) -> None:
    """Portions hold all threads of the bulk lane; the other lanes answer, and no portion has ended."""
    for peer in (A, B, C):
        portions.begin(loop, peer, NUM_PORTIONS)
    portions.await_started(NUM_WORKERS[Lane.BULK])
    answers: list[str] = []
    loop.work(lambda: "granted", lambda future: answers.append(future.result()), lane=lane)
    turn_until(lambda: bool(answers), loop)
    assert answers == ["granted"]
    assert portions.ended == []


def test_one_peer_never_has_all_threads(loop: EventLoop, portions: Portions) -> None:
    """Sixty portions of one peer hold their share; a portion of another, asked for last, runs beside them."""
    portions.begin(loop, A, NUM_PORTIONS)
    portions.begin(loop, B, 1)
    portions.await_started(BULK_PER_PEER + 1)
    assert sorted(portions.started) == [A] * BULK_PER_PEER + [B]


def test_all_portions_of_a_peer_come(loop: EventLoop, portions: Portions) -> None:
    """Bounded, and none forgotten."""
    portions.release()
    come: list[int] = []
    for number in range(NUM_PORTIONS):
        loop.work(lambda number=number: come.append(number), lambda _: None, peer=A)
    turn_until(lambda: len(come) == NUM_PORTIONS, loop)
    assert sorted(come) == list(range(NUM_PORTIONS))


@pytest.mark.parametrize("where", [{"lane": Lane.STORE}, {"peer": A}])
def test_an_exception_that_no_caller_asks_for_is_in_the_log(
    loop: EventLoop, caplog: pytest.LogCaptureFixture, where: dict
) -> None:
    """With its traceback, also when the callback never looks at the future."""
    done: list[Future] = []

    def break_down() -> None:
        raise KeyError("no such arena")

    with caplog.at_level(logging.ERROR):
        loop.work(break_down, done.append, **where)
        turn_until(lambda: bool(done), loop)
    assert isinstance(done[0].exception(), KeyError)
    [record] = caplog.records
    assert "break_down" in record.exc_text
    assert "no such arena" in record.exc_text


def test_an_error_that_callers_expect_is_theirs(loop: EventLoop, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that cannot be reached is no error of Chicle."""
    done: list[Future] = []

    def lose() -> None:
        raise PeerLostError("it is gone")

    with caplog.at_level(logging.ERROR):
        loop.work(lose, done.append, lane=Lane.DIAL)
        turn_until(lambda: bool(done), loop)
    assert isinstance(done[0].exception(), PeerLostError)
    assert not caplog.records


def test_what_waits_is_dropped_at_the_end(portions: Portions) -> None:
    """`close` waits for those that run, and begins no other."""
    loop = EventLoop()
    portions.begin(loop, A, NUM_PORTIONS)
    portions.await_started(BULK_PER_PEER)
    closing = threading.Thread(target=loop.close, daemon=True)
    closing.start()
    while not loop._workers._is_closed:
        assert closing.is_alive()
    portions.release()
    closing.join(timeout_s(10))
    assert not closing.is_alive()
    assert len(portions.ended) == BULK_PER_PEER
