"""What comes together travels together: answers of a node, results of its workers, and portions of a fetch."""

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.transfer.acknowledgements import Acknowledgements
from chicle_elastic.cluster.transfer.fetcher import PORTION_BYTES, portions
from chicle_elastic.cluster.transfer.result_batch import WAIT_S, ResultBatch
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import events
from chicle_elastic.testing.virtual_clock import VirtualClock

HERE, THERE = NodeId("n0"), NodeId("n1")


def copied(chunk: int, source: NodeId = THERE) -> events.ChunksCopied:
    """Chunk after chunk comes here."""
    return events.ChunksCopied(chunks=(ChunkId(chunk),), source=source, target=HERE, round=3)


def said(*answers: events.Event) -> list[events.Event]:
    """What is said when these are given in one turn of the loop."""
    heard: list[events.Event] = []
    with EventLoop() as loop:
        collected = Acknowledgements(loop, heard.append)
        for answer in answers:
            collected.say(answer)
        assert heard == []
        assert not collected.are_said
        loop.turn(0.0)
        assert collected.are_said
    return heard


def test_what_is_kept_is_said_when_it_is_released() -> None:
    """In its order, as one event; what must not wait goes before it."""
    heard: list[events.Event] = []
    failed = events.CopyFailed(chunk=ChunkId(7), source=THERE, target=HERE, round=3, reason="gone")
    with EventLoop() as loop:
        collected = Acknowledgements(loop, heard.append)
        collected.keep(copied(1))
        collected.say(failed)
        loop.turn(0.0)
        assert heard == [failed]
        assert not collected.are_said
        collected.keep(copied(2))
        collected.release()
        loop.turn(0.0)
        assert collected.are_said
    assert heard[1:] == [events.ChunksCopied(chunks=(ChunkId(1), ChunkId(2)), source=THERE, target=HERE, round=3)]


def test_what_differs_in_more_than_the_chunk_stays_apart_and_in_its_order() -> None:
    """Another source, another round, or something else that happened."""
    freed = [events.ChunksFreed(chunks=(ChunkId(chunk),), node=HERE, round=chunk // 2) for chunk in range(4)]
    failed = events.CopyFailed(chunk=ChunkId(7), source=THERE, target=HERE, round=3, reason="gone")
    ended = events.PrecopiesEnded(node=HERE, whole=(1,))
    heard = said(copied(1), copied(2), copied(3, NodeId("n2")), failed, failed, *freed, ended)
    assert heard == [
        events.ChunksCopied(chunks=(ChunkId(1), ChunkId(2)), source=THERE, target=HERE, round=3),
        copied(3, NodeId("n2")),
        failed,
        failed,
        events.ChunksFreed(chunks=(ChunkId(0), ChunkId(1)), node=HERE, round=0),
        events.ChunksFreed(chunks=(ChunkId(2), ChunkId(3)), node=HERE, round=1),
        ended,
    ]


def test_items_that_come_together_arrive_together_and_in_their_order() -> None:
    """And none before the loop turns: it is its thread that takes them."""
    taken: list[list[int]] = []
    clock = VirtualClock()
    with EventLoop(clock=clock) as loop:
        handover = ResultBatch(loop, taken.append)
        handover.add(1)
        handover.add(2)
        clock.advance(WAIT_S)
        handover.add(3)
        assert taken == []
        loop.turn(0.0)
        assert taken == [[1, 2, 3]]
        handover.add(4)
        loop.turn(0.0)
        assert taken == [[1, 2, 3]], "the clock runs from the first one that waits"
        handover.flush()
        handover.flush()
        loop.turn(0.0)
    assert taken == [[1, 2, 3], [4]]


def test_small_things_travel_together_and_large_ones_apart() -> None:
    """In their order, and nothing is left out."""
    sizes = [PORTION_BYTES // 2, PORTION_BYTES // 2, 1, PORTION_BYTES, *[100] * 50]
    cut = list(portions(sizes, lambda size: size))
    assert cut == [sizes[:2], sizes[2:4], sizes[4:]]
    assert list(portions([], len)) == []
